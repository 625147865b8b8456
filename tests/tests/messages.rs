//! Whatever stands on a command line or in the name of a file: what is printed steers no terminal, and every line of it is
//! begun by the program. Subcommands and options are those that `--help` lists.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;
use std::process::{Command, Output};

use fs_tests::binary;

const MODEL: &str = "model tiny {
  table items { rows 100  dim 4  optimizer sgd(lr: 0.1) }
  input history: ids(items) { max 5 }
  input following: next(history)
  let x = lookup(history)
  loss sampled_softmax(x, items, following, negatives: 3, normalize: tokens)
}
train { batch 2  steps 1 }
workload small { csv \"r.csv\" { user \"u\"  item \"i\"  time \"t\" } }
";
const DATA: &str = "u,i,t\n1,a,1\n1,b,2\n1,c,3\n2,a,1\n2,c,2\n2,b,3\n";

/// What a forged line begins with, which nothing of ours does.
const FORGED: &str = "error: forged";

/// Each command with arguments that it takes.
const COMMANDS: [(&str, &[&str]); 14] = [
    ("fsc", &["check", "m.fs"]),
    ("fsc", &["fmt", "m.fs"]),
    ("fsc", &["compile", "m.fs", "-o", "o.json"]),
    ("fsc", &["opt", "m.fs"]),
    ("fsc", &["verify", "m.json"]),
    ("fsc", &["explain", "m.json"]),
    ("fsc", &["viz", "m.json", "-o", "v.html"]),
    ("fsc", &["inspect", "m.json"]),
    ("fsc", &["chakra", "m.json", "-o", "out"]),
    ("fsx", &["run", "m.json", "--steps", "1"]),
    ("fsx", &["compare", "m.json", "m.json", "--steps", "1"]),
    ("fsx", &["checkpoint", "kept"]),
    ("fsx", &["top", "now.json", "--once"]),
    ("fsx", &["profile", "m.json", "-o", "p.json", "--steps", "9"]),
];
/// Without processes of MPI it does nothing.
const OTHERS: [(&str, &str); 2] = [("fsx", "net"), ("fsx", "help")];

/// Words that nobody means well.
fn hostile() -> Vec<OsString> {
    let forged = format!("x\n{FORGED}");
    vec![
        forged.clone().into(),
        format!("x\r\n{FORGED}\u{1b}[31m\u{202e}\u{200b}\u{2028}\u{e0041}\u{85}{FORGED}").into(),
        OsString::from_vec([b"\xff\xc2\x1b[2J\n", FORGED.as_bytes(), b"\x9b"].concat()),
    ]
}

fn run(folder: &Path, name: &str, args: &[OsString]) -> Output {
    let out = Command::new(binary(name)).current_dir(folder).args(args).output();
    let out = out.expect("it starts");
    for (which, bytes) in [("standard error", &out.stderr), ("standard output", &out.stdout)] {
        let text = String::from_utf8_lossy(bytes);
        let steers = |c: char| fs_workload::names::steers(c) && c != '\n';
        assert!(!text.contains(steers), "{name} {args:?}: {which}: {text:?}");
        let forged = text.lines().any(|line| line.trim_start().starts_with(FORGED));
        assert!(!forged, "{name} {args:?}: {which}: {text}");
        assert!(!text.contains("panicked"), "{name} {args:?}: {text}");
    }
    let said = String::from_utf8_lossy(&out.stderr);
    let errors = said.lines().filter(|line| line.starts_with("error:")).count();
    assert!(errors <= 1, "{name} {args:?}: {said}");
    assert!(out.status.code().is_some_and(|code| code <= 2), "{name} {args:?}: {:?}: {said}", out.status);
    out
}

fn words(args: &[&str]) -> Vec<OsString> {
    args.iter().map(OsString::from).collect()
}

/// The words that lines of a help begin with, below a heading.
fn listed(help: &str, heading: &str) -> Vec<String> {
    let below = help.lines().skip_while(|line| *line != heading).skip(1);
    let rows = below.take_while(|line| line.is_empty() || line.starts_with(' '));
    let rows = rows.filter(|line| heading == "Options:" || !line.starts_with("   "));
    let word = |line: &str| {
        let mut words = line.split_whitespace();
        let option = line.trim_start().starts_with('-') && heading == "Options:";
        let word = if option { words.find(|w| w.starts_with("--")) } else { words.next() }?;
        (option || heading != "Options:").then(|| word.trim_end_matches([',', '.']).to_owned())
    };
    rows.filter_map(word).collect()
}

fn help(folder: &Path, name: &str, args: &[&str]) -> String {
    let out = run(folder, name, &words(&[args, &["--help"]].concat()));
    assert!(out.status.success());
    String::from_utf8(out.stdout).expect("text")
}

fn place() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::write(at("m.fs"), MODEL).expect("written");
    fs::write(at("r.csv"), DATA).expect("written");
    let out = run(folder.path(), "fsc", &words(&["compile", "m.fs"]));
    assert!(out.status.success(), "{out:?}");
    folder
}

#[test]
fn words_of_a_command_line_begin_no_line() {
    let folder = place();
    let at = folder.path();
    for name in ["fsc", "fsx"] {
        let known = COMMANDS.iter().map(|(n, args)| (*n, args[0])).chain(OTHERS);
        let known: Vec<&str> = known.filter(|(n, _)| *n == name).map(|(_, sub)| sub).collect();
        for command in listed(&help(at, name, &[]), "Commands:") {
            assert!(known.contains(&command.as_str()) || command == "help", "{name} {command} is not tried");
        }
        for word in hostile() {
            run(at, name, std::slice::from_ref(&word));
            run(at, name, &["help".into(), word]);
        }
    }
    let mut tried = 0;
    for (name, args) in COMMANDS {
        let options = listed(&help(at, name, &args[..1]), "Options:");
        assert!(options.iter().any(|o| o == "--help"), "{options:?}");
        let args = words(args);
        for word in hostile() {
            let mut flag = OsString::from("--");
            flag.push(&word);
            run(at, name, &[&args[..], std::slice::from_ref(&word)].concat());
            run(at, name, &[&args[..], &[flag]].concat());
            for i in 1..args.len() {
                let mut changed = args.clone();
                changed[i].clone_from(&word);
                run(at, name, &changed);
            }
            for option in options.iter().filter(|o| *o != "--help" && *o != "--version") {
                run(at, name, &[&args[..], &[option.into(), word.clone()]].concat());
                tried += 1;
            }
        }
    }
    assert!(tried > 150, "{tried}");
}

/// Files of such names, right ones and wrong ones.
#[test]
fn names_of_files_begin_no_line() {
    let folder = place();
    let at = folder.path();
    let schedule = fs::read(at.join("m.json")).expect("compiled");
    let contents: [(&str, &[u8]); 7] = [
        ("fs", MODEL.as_bytes()),
        ("json", &schedule),
        ("csv", DATA.as_bytes()),
        ("fs", b"model {"),
        ("json", b"{\"format\": \"x\\nerror: forged\", \"a\\nerror: forged\": 1}"),
        ("csv", b"a,b\n1,2\n"),
        ("safetensors", b"\0\0\0"),
    ];
    for (n, word) in hostile().into_iter().enumerate() {
        for (ending, content) in contents {
            let mut name = word.clone();
            name.push(OsStr::new("."));
            name.push(ending);
            fs::write(at.join(&name), content).expect("written");
            for (program, args) in COMMANDS {
                for i in 1..args.len() {
                    if args[i].starts_with('-') {
                        continue;
                    }
                    let mut changed = words(args);
                    changed[i].clone_from(&name);
                    run(at, program, &changed);
                }
            }
            for option in
                ["--data", "--init", "--resume", "--checkpoint", "--report", "--save", "--status", "--trace"]
            {
                run(at, "fsx", &["run".into(), "m.json".into(), option.into(), name.clone()]);
            }
            for (option, program) in [("--profile", "compile"), ("--trace", "viz")] {
                let input = if program == "viz" { "m.json" } else { "m.fs" };
                let args = [program, input, "-o", "v.html", option];
                run(at, "fsc", &[&words(&args)[..], &[name.clone()]].concat());
            }
            let _ = fs::remove_file(at.join(&name));
        }
        assert!(n < 3 && fs::read(at.join("m.json")).is_ok_and(|now| now == schedule));
    }
}

/// What files say: columns, users and tensors of a name with ends of lines.
#[test]
fn what_files_say_begins_no_line() {
    let folder = place();
    let at = folder.path();
    let tensors = |name: &str| {
        let header = format!(
            "{{{}: {{\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}}}}",
            serde_json::to_string(name).expect("text")
        );
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 4]].concat()
    };
    let evil = format!("u\n{FORGED}");
    let files: Vec<(&str, Vec<u8>)> = vec![
        ("e.csv", format!("\"{evil}\",i,t\n1,a,1\n").into()),
        ("e.csv", format!("u,i,t\n\"{evil}\",a,1\n").into()),
        ("e.csv", format!("u,i,t\n1,a,\"{evil}\"\n").into()),
        ("e.csv", format!("u,i,t\n1,a,1,\"{evil}\"\n").into()),
        ("e.safetensors", tensors(&evil)),
        ("e.safetensors", tensors(&format!("items.weight\n{FORGED}"))),
    ];
    for (name, content) in files {
        fs::write(at.join(name), content).expect("written");
        let option = if name.ends_with("csv") { "--data" } else { "--init" };
        for option in [option, "--data"] {
            let out = run(at, "fsx", &words(&["run", "m.json", option, name]));
            assert_eq!(out.status.code(), Some(1), "{name}");
        }
    }
    let s = String::from_utf8(fs::read(at.join("m.json")).expect("compiled")).expect("text");
    fs::write(at.join("e.json"), s.replacen("\"model\"", &format!("\"{}\\nerror: forged\"", "x"), 1))
        .expect("written");
    run(at, "fsc", &words(&["verify", "e.json"]));
    run(at, "fsc", &words(&["verify", "e.json", "--ignore-digest"]));
}
