//! What commands read is bounded, and what they print of it steers no terminal.

mod saved;

use std::fs;
use std::os::unix::fs::symlink;
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

/// A folder with a model, its schedule and its data.
fn place() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("m.fs"), MODEL).expect("written");
    fs::write(folder.path().join("r.csv"), "u,i,t\n1,a,1\n1,b,2\n1,c,3\n2,a,1\n2,c,2\n2,b,3\n")
        .expect("written");
    let out = run(folder.path(), "fsc", &["compile", "m.fs"]);
    assert!(out.status.success(), "{}", said(&out));
    folder
}

/// Runs a binary with little memory: what takes all of it fails.
fn run(folder: &Path, name: &str, args: &[&str]) -> Output {
    let mut command = Command::new("sh");
    command.arg("-c").arg("ulimit -v 3000000; exec \"$0\" \"$@\"").arg(binary(name)).args(args);
    command.current_dir(folder).output().expect("it starts")
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// The error of a run that must fail.
fn fails(folder: &Path, name: &str, args: &[&str]) -> String {
    let out = run(folder, name, args);
    let said = said(&out);
    assert_eq!(out.status.code(), Some(1), "{name} {args:?}: {said}");
    assert!(!said.contains("panicked"), "{name} {args:?}: {said}");
    said
}

#[test]
fn devices_that_do_not_end_are_refused() {
    let folder = place();
    let at = folder.path();
    fs::write(at.join("imports.fs"), "import \"/dev/zero\"\n").expect("written");
    for args in [
        &["check", "imports.fs"][..],
        &["check", "/dev/zero"],
        &["fmt", "/dev/zero"],
        &["opt", "/dev/zero"],
        &["verify", "/dev/zero"],
        &["viz", "m.json", "--trace", "/dev/zero", "-o", "x.html"],
    ] {
        let said = fails(at, "fsc", args);
        assert!(said.contains("device"), "{args:?}: {said}");
    }
    for args in [&["top", "--once", "/dev/zero"][..], &["run", "/dev/zero"]] {
        let said = fails(at, "fsx", args);
        assert!(said.contains("device"), "{args:?}: {said}");
    }
    let said = fails(at, "fsx", &["run", "m.json", "--data", "/dev/zero"]);
    assert!(said.contains("a record has more than"), "{said}");
}

#[test]
fn large_files_are_refused() {
    let folder = place();
    let at = folder.path();
    fs::write(at.join("large.fs"), "# ü\n".repeat(2 << 20)).expect("written");
    assert!(fails(at, "fsc", &["check", "large.fs"]).contains("larger than 4 MiB"));
    fs::write(at.join("large.csv"), "column,".repeat(3 << 20)).expect("written");
    let said = fails(at, "fsx", &["run", "m.json", "--data", "large.csv"]);
    assert!(said.contains("a record has more than") && said.len() < 1000, "{said}");
    // Ends of lines within quotes end nothing.
    let quoted = format!("{}\"{}", '\u{feff}', "7,8,9\n".repeat(1 << 20));
    for (name, text, line) in
        [("header", quoted.clone(), 1), ("record", format!("u,i,t\n1,a,1\n1,{quoted}"), 3)]
    {
        // A mark at the start of a file only.
        let text = if line > 1 { text.replace('\u{feff}', "") } else { text };
        fs::write(at.join("quoted.csv"), text).expect("written");
        let said = fails(at, "fsx", &["run", "m.json", "--data", "quoted.csv"]);
        let wanted = format!("line {line}: a record has more than");
        assert!(said.contains(&wanted) && said.contains("quote") && said.len() < 1000, "{name}: {said}");
    }
    // A lone return ends a record, and what looks like a mark is one at the start of a file only.
    let lines = "7,8,9\n".repeat(1 << 20);
    for text in
        [format!("u,i,t\n1,a,1\r\"{lines}"), format!("u,i,t\r\"{lines}"), format!(",\u{feff}\",\"x{lines}")]
    {
        fs::write(at.join("quoted.csv"), text).expect("written");
        let said = fails(at, "fsx", &["run", "m.json", "--data", "quoted.csv"]);
        assert!(said.contains("a record has more than"), "{said}");
    }
    let rows = (0..200_000).map(|n| format!("{},{},{n}", n % 50, ["a", "b", "c"][n % 3]));
    fs::write(
        at.join("returns.csv"),
        ["u,i,t".to_owned()].into_iter().chain(rows).collect::<Vec<_>>().join("\r"),
    )
    .expect("written");
    let out =
        run(at, "fsx", &["run", "m.json", "-q", "--steps", "1", "--no-evaluate", "--data", "returns.csv"]);
    assert!(out.status.success(), "{}", self::said(&out));
    // Within a record's bounds what is said of it still is short.
    fs::write(at.join("wide.csv"), "column,".repeat(10_000)).expect("written");
    let said = fails(at, "fsx", &["run", "m.json", "--data", "wide.csv"]);
    assert!(said.contains("no column") && said.len() < 1000, "{said}");
}

#[test]
fn what_data_files_say_steers_no_terminal() {
    let folder = place();
    let at = folder.path();
    for text in [
        "u\u{1b}[31m,i\u{202e},t\n1,a,1\n",
        "u,i,t\n\u{1b}[31m,a,1\n",
        "u,i,t\n1,a,\u{1b}]0;title\u{7}\n",
        "u,i,t\n1,a,\u{202e}\n",
    ] {
        fs::write(at.join("evil.csv"), text).expect("written");
        let said = fails(at, "fsx", &["run", "m.json", "--data", "evil.csv"]);
        assert!(!said.contains(['\u{1b}', '\u{202e}', '\u{7}']), "{said:?}");
        assert!(said.contains("\\u{"), "{said:?}");
    }
}

#[test]
fn a_column_that_comes_twice_is_refused() {
    let folder = place();
    fs::write(folder.path().join("twice.csv"), "u,i,t,i\n1,a,1,b\n1,b,2,a\n").expect("written");
    let said = fails(folder.path(), "fsx", &["run", "m.json", "--data", "twice.csv"]);
    assert!(said.contains("several columns `i`"), "{said}");
    // One that nobody reads may.
    fs::write(
        folder.path().join("other.csv"),
        "u,i,t,x,x\n1,a,1,,\n1,b,2,,\n1,c,3,,\n2,a,1,,\n2,b,2,,\n2,c,3,,\n",
    )
    .expect("written");
    let out = run(folder.path(), "fsx", &["run", "m.json", "--data", "other.csv"]);
    assert!(out.status.success(), "{}", self::said(&out));
}

#[test]
fn lines_are_counted_whatever_ends_them() {
    let folder = place();
    for end in ["\n", "\r\n", "\r"] {
        let text = ["u,i,t", "1,a,1", "", "1,\"b\",2", "1,c,never"].join(end);
        fs::write(folder.path().join("bad.csv"), text).expect("written");
        let said = fails(folder.path(), "fsx", &["run", "m.json", "--data", "bad.csv"]);
        assert!(said.contains("line 5") && said.contains("`never`"), "{end:?}: {said}");
    }
}

#[test]
fn results_are_written_through_links() {
    let folder = place();
    let at = folder.path();
    fs::create_dir(at.join("far")).expect("a folder");
    let names = ["values.safetensors", "report.json", "trace.json", "status.json"];
    for name in names {
        symlink(Path::new("far").join(name), at.join(name)).expect("a link");
    }
    let args = [
        "run", "m.json", "-q", "--save", names[0], "--report", names[1], "--trace", names[2], "--status",
        names[3],
    ];
    // The first time the links lead to nothing yet.
    for _ in 0..2 {
        let out = run(at, "fsx", &args);
        assert!(out.status.success(), "{}", said(&out));
        for name in names {
            assert!(at.join(name).is_symlink(), "{name} is a link still");
            assert!(at.join("far").join(name).is_file(), "{name} is written");
        }
        assert_eq!(
            fs::read_dir(at.join("far")).expect("listed").count(),
            names.len(),
            "nothing else is left"
        );
    }
    symlink("far/m.json", at.join("out.json")).expect("a link");
    let out = run(at, "fsc", &["compile", "m.fs", "-o", "out.json"]);
    assert!(out.status.success() && at.join("out.json").is_symlink(), "{}", said(&out));
    assert!(at.join("far/m.json").is_file());
}

#[test]
fn tensor_files_hold_what_they_say_and_nothing_else() {
    let folder = place();
    let at = folder.path();
    let out = run(at, "fsx", &["run", "m.json", "-q", "--save", "v.safetensors"]);
    assert!(out.status.success(), "{}", said(&out));
    let whole = fs::read(at.join("v.safetensors")).expect("values");
    let init = |bytes: &[u8]| {
        fs::write(at.join("w.safetensors"), bytes).expect("written");
        run(at, "fsx", &["run", "m.json", "-q", "--init", "w.safetensors"])
    };
    assert!(init(&whole).status.success());
    let more = init(&[&whole[..], b"more"].concat());
    assert!(said(&more).contains("4 bytes follow its last tensor"), "{}", said(&more));
    let one = r#""a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
    let header = format!("{{{one},{one}}}");
    let twice = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 4]].concat();
    let twice = init(&twice);
    assert!(said(&twice).contains("it has `a` twice"), "{}", said(&twice));
    // What a header says beside tensors counts as well, and within a tensor's entry.
    for twice in [
        r#""__metadata__":{"k":"1","k":"2"}"#,
        r#""b":{"dtype":"F32","shape":[0],"shape":[0],"data_offsets":[4,4]}"#,
    ] {
        let header = format!("{{{twice},{one}}}");
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 4]].concat();
        let out = init(&file);
        assert!(
            !out.status.success() && (said(&out).contains("twice") || said(&out).contains("duplicate")),
            "{}",
            said(&out)
        );
    }
    let long = one.replacen("\"a\"", &format!("\"{}\"", "n".repeat(100_000)), 1);
    let twice = format!("{{{long},{long}}}");
    let dtype = format!("{{{}}}", one.replace("F32", &"F".repeat(100_000)));
    for header in [format!("{{{long}}}"), twice, dtype] {
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 4]].concat();
        let out = init(&file);
        assert!(!out.status.success() && said(&out).len() < 4000, "{}", said(&out).len());
    }
    let many: Vec<String> = (0..20_000).map(|n| one.replacen("\"a\"", &format!("\"t{n}\""), 1)).collect();
    let many: Vec<String> = many
        .iter()
        .enumerate()
        .map(|(n, t)| t.replace("[0,4]", &format!("[{},{}]", 4 * n, 4 * n + 4)))
        .collect();
    let header = format!("{{{}}}", many.join(","));
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; 80_000]].concat();
    let out = init(&file);
    assert!(said(&out).contains("it holds: t0") && said(&out).len() < 4000, "{}", said(&out).len());
}

/// Names of tensors reach the terminal as texts, too.
#[test]
fn what_tensor_files_say_steers_no_terminal() {
    let folder = place();
    let at = folder.path();
    let file = |name: &str| {
        let entry = r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
        let header = format!("{{\"{name}\":{entry}}}");
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 4]].concat();
        fs::write(at.join("evil.safetensors"), bytes).expect("written");
    };
    for name in ["a\\u001b[31m", "a\u{202e}", "a\\u0007"] {
        file(name);
        for args in [
            &["run", "m.json", "--init", "evil.safetensors"][..],
            &["run", "m.json", "--data", "evil.safetensors"],
        ] {
            let said = fails(at, "fsx", args);
            assert!(!said.contains(['\u{1b}', '\u{202e}', '\u{7}']), "{said:?}");
            assert!(said.contains("\\u{"), "{said:?}");
        }
    }
    // Ids of the data as well, which notes name.
    let out = run(at, "fsx", &["run", "m.json", "-q", "--save", "v.safetensors"]);
    assert!(out.status.success(), "{}", said(&out));
    fs::write(at.join("new.csv"), "u,i,t\n1,a,1\n1,b,2\n1,\u{1b}[31m\u{202e},3\n").expect("written");
    let out = run(at, "fsx", &["run", "m.json", "--init", "v.safetensors", "--data", "new.csv"]);
    let said = said(&out);
    assert!(out.status.success() && said.contains("lacks ids of the data"), "{said}");
    assert!(!said.contains(['\u{1b}', '\u{202e}']) && said.contains("\\u{1b}[31m\\u{202e}"), "{said:?}");
}

/// Whoever presses Ctrl-C twice while something is written finds nothing half-written.
#[test]
fn a_second_signal_leaves_nothing_behind() {
    let folder = place();
    let at = folder.path();
    fs::write(at.join("large.fs"), MODEL.replace("rows 100  dim 4", "rows 4_000_000  dim 16"))
        .expect("written");
    assert!(run(at, "fsc", &["compile", "large.fs", "--strategy", "serial"]).status.success());
    let names = || -> Vec<String> {
        let entries = fs::read_dir(at).expect("listed").flatten();
        entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
    };
    let before = names().len();
    let mut command = Command::new(binary("fsx"));
    command.args(["run", "large.json", "-q", "--no-evaluate", "--save", "large.safetensors"]).current_dir(at);
    let mut child = command.stderr(std::process::Stdio::null()).spawn().expect("it starts");
    let writing = || names().iter().any(|name| name.contains(".tmp"));
    while !writing() && child.try_wait().expect("it runs").is_none() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(writing(), "it has written before anybody looked");
    let pid = child.id().to_string();
    for _ in 0..2 {
        assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    assert_eq!(names().len(), before, "{:?}", names());
}

/// A status that cannot be written is said, also by a run that else says nothing.
#[test]
fn a_full_disk_is_said() {
    let folder = place();
    let out = run(folder.path(), "fsx", &["run", "m.json", "-q", "--status", "/dev/full"]);
    assert!(out.status.success() && said(&out).contains("cannot write the status"), "{}", said(&out));
}

/// Records without end fill memory, whatever each of them takes: short ones, names of a megabyte, users with a list each.
#[test]
fn records_without_end_end_with_an_error() {
    let folder = place();
    let long = "x=$(head -c 900000 /dev/zero | tr '\\0' x); n=0; while n=$((n + 1)); do echo \"$n$x,2,3\" || exit; done";
    let turns = "awk 'BEGIN {while (1) print n++ % 100000 \",2,3\"}'";
    for records in ["yes 1,2,3", long, turns] {
        let said = said_of_pipe(folder.path(), "ulimit -v 1200000; ", &format!("echo u,i,t; {records}"));
        assert!(said.contains("does not fit into memory: at line "), "{records}: {said}");
        assert!(said.contains("use a part of it, or more memory") && said.lines().count() == 1, "{said}");
    }
    let said = said_of_pipe(folder.path(), "", "echo u,i,t; yes ''");
    assert!(said.contains("line 1048578: 1048576 lines before it are empty"), "{said}");
}

/// What a run on the records that a command writes says, which fails.
fn said_of_pipe(folder: &Path, limit: &str, records: &str) -> String {
    let lines = format!("{limit}({records}) | \"$0\" run m.json --data /dev/stdin -q");
    let mut command = Command::new("sh");
    command.args(["-c", &lines]).arg(binary("fsx")).current_dir(folder);
    let out = command.output().expect("it starts");
    let said = said(&out);
    assert_eq!(out.status.code(), Some(1), "{said}");
    said
}

/// A file that ends is read, or does not fit into memory, whatever there is of it.
#[test]
fn files_fit_into_memory_or_are_refused() {
    use std::fmt::Write as _;
    let folder = place();
    let mut text = String::from("u,i,t\n");
    for n in 0..1_200_000 {
        writeln!(text, "{},{},{n}", n % 9, n % 7).expect("text");
    }
    fs::write(folder.path().join("r.csv"), text).expect("written");
    let (mut fitted, mut refused, mut aborted) = (0, 0, 0);
    for limit in (60_000..1_060_000).step_by(40_000) {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("ulimit -v {limit}; exec \"$0\" run m.json -q --no-evaluate"));
        let out = command.arg(binary("fsx")).current_dir(folder.path()).output().expect("it starts");
        match out.status.code() {
            Some(0) => fitted += 1,
            Some(1) => {
                refused += 1;
                let words = ["memory", "thread", "Ctrl-C"];
                assert!(words.iter().any(|word| said(&out).contains(word)), "{}", said(&out));
            }
            // By Rust's runtime or the C library, which take memory for each thread.
            None if ["fatal runtime error", "Fatal glibc error"]
                .iter()
                .any(|end| said(&out).contains(end)) =>
            {
                aborted += 1;
            }
            other => panic!("{limit}: {other:?}: {}", said(&out)),
        }
    }
    assert!(fitted > 0 && refused > 0 && aborted < 2, "{fitted} {refused} {aborted}");
}

/// A mark of the order of bytes is passed over, and UTF-16 is called by its name.
#[test]
fn marks_and_other_encodings() {
    let folder = place();
    let at = folder.path();
    let marked = |text: &str| format!("\u{feff}{text}").into_bytes();
    let wide =
        |text: &str| format!("\u{feff}{text}").encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let read = |name: &str| fs::read_to_string(at.join(name)).expect("read");
    let imported = run(at, "fsc", &["opt", "m.fs"]).stdout;
    let imported = String::from_utf8(imported).expect("text");
    let files = [("m.fs", read("m.fs")), ("r.csv", read("r.csv")), ("m.ir", imported)];
    let formatted = run(at, "fsc", &["fmt", "m.fs"]);
    assert!(formatted.status.success());
    for (name, args) in [
        ("m.fs", &["check", "x"][..]),
        ("m.fs", &["fmt", "x", "--check"]),
        ("m.fs", &["compile", "x", "-o", "o.json"]),
        ("m.ir", &["opt", "x", "--pipeline", "canonicalize"]),
        ("r.csv", &["run", "m.json", "--no-evaluate", "-q", "--data", "x"]),
    ] {
        let (_, text) = files.iter().find(|(n, _)| *n == name).expect("a file");
        let text = if name == "m.fs" { read("m.fs") } else { text.clone() };
        let file = name.replace(['m', 'r'], "x");
        let args: Vec<&str> = args.iter().map(|a| if *a == "x" { file.as_str() } else { a }).collect();
        let program = if args[0] == "run" { "fsx" } else { "fsc" };
        fs::write(at.join(&file), marked(&text)).expect("written");
        let out = run(at, program, &args);
        assert!(out.status.success(), "{args:?}: {}", said(&out));
        fs::write(at.join(&file), wide(&text)).expect("written");
        let said = fails(at, program, &args);
        assert!(said.contains("UTF-16"), "{args:?}: {said}");
    }
    fs::write(at.join("x.json"), marked(&read("m.json"))).expect("written");
    assert!(fails(at, "fsc", &["verify", "x.json"]).contains("byte order mark"));
    fs::write(at.join("x.json"), wide(&read("m.json"))).expect("written");
    assert!(fails(at, "fsc", &["verify", "x.json"]).contains("UTF-16"));
    // Elsewhere it is a character like others that nobody sees, with its place.
    for (c, kind) in [
        ('\u{feff}', "a byte order mark"),
        ('\u{e0067}', "a tag"),
        ('\u{7}', "a control"),
        ('\u{202e}', "direction"),
    ] {
        fs::write(at.join("x.fs"), format!("// one\n// t{c}wo\n")).expect("written");
        let said = fails(at, "fsc", &["check", "x.fs"]);
        let (code, escape) = (format!("U+{:04X}, ", u32::from(c)), c.escape_unicode().to_string());
        for part in ["FS0006", kind, &code, "x.fs:2:5", &format!("// t{escape}wo")] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}

/// What is larger than is read is an error, also where it comes through a pipe.
#[test]
fn nothing_is_cut_off_in_silence() {
    let folder = place();
    let at = folder.path();
    let file = fs::File::create(at.join("large.ir")).expect("a file");
    std::io::Write::write_all(&mut &file, b"\n".repeat((64 << 20) + 1).as_slice()).expect("written");
    let given = fs::File::open(at.join("large.ir")).expect("opened");
    let out = Command::new(binary("fsc")).args(["opt", "-"]).stdin(given).output().expect("it starts");
    assert!(said(&out).contains("larger than"), "{}", said(&out));
    assert!(fails(at, "fsc", &["opt", "large.ir"]).contains("larger than"));
    fs::write(at.join("now.json"), " ".repeat((1 << 20) + 1)).expect("written");
    assert!(fails(at, "fsx", &["top", "--once", "now.json"]).contains("larger than"));
}

/// A trace is far larger in memory than its text, which is looked at before there is none left.
#[test]
fn traces_fit_into_memory_or_are_refused() {
    let folder = place();
    let at = folder.path();
    let out = run(at, "fsx", &["run", "m.json", "-q", "--no-evaluate", "--trace", "t.json"]);
    assert!(out.status.success(), "{}", said(&out));
    let trace = fs::read_to_string(at.join("t.json")).expect("a trace");
    let (head, rest) = trace.split_once("\"traceEvents\": [").expect("events");
    let many = "{\"ph\":\"X\"},".repeat(1 << 20);
    fs::write(at.join("large.json"), format!("{head}\"traceEvents\": [{many}{rest}")).expect("written");
    let mut refused = 0;
    for limit in [100_000, 200_000, 300_000, 400_000, 600_000, 3_000_000] {
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(format!("ulimit -v {limit}; exec \"$0\" viz m.json --trace large.json -o v.html"));
        let out = command.arg(binary("fsc")).current_dir(at).output().expect("it starts");
        let said = said(&out);
        if out.status.success() {
            continue;
        }
        refused += 1;
        assert_eq!(out.status.code(), Some(1), "{limit}: {said}");
        assert!(
            said.contains("does not fit into the memory") && said.contains("--trace-steps"),
            "{limit}: {said}"
        );
    }
    assert!((3..6).contains(&refused), "{refused}");
}

/// What is wrong is said in words that can be read, not in as many as the file has.
#[test]
fn messages_are_short() {
    const MOST: usize = 6000;
    let folder = place();
    let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).expect("written");
    let long = |what: &str| what.repeat((2 << 20) / what.len());
    let schedule = std::fs::read_to_string(folder.path().join("m.json")).expect("read");
    let with = |from: &str, to: String| {
        assert!(schedule.contains(from), "{from}");
        schedule.replacen(from, &to, 1)
    };
    let first = "\n \"model\": ";
    write("field.json", with(first, format!("\n \"{}\": 1,{first}", long("a b "))));
    write("version.json", with("\"version\": ", format!("\"version\": \"{}\", \"x\": ", long("a"))));
    write("action.json", with("\"action\": \"load_batch\"", format!("\"action\": \"{}\"", long("load_"))));
    write("model.json", with(first, format!("{first}\"{}\", \"x\":", long("m "))));
    for name in ["field.json", "version.json", "action.json", "model.json"] {
        for (program, args) in [("fsc", vec!["verify", "--ignore-digest"]), ("fsx", vec!["run", "-q"])] {
            let said = fails(folder.path(), program, &[&args[..], &[name]].concat());
            assert!(said.len() < MOST, "{program} {name}: {} bytes: {}", said.len(), &said[..MOST]);
        }
    }
    write("name.fs", format!("model {} {{ }}\n", long("m")));
    write("use.fs", format!("model m {{ let x = {}(1) }}\n", long("f")));
    write("import.fs", format!("import \"{}\"\n", long("../i")));
    write("number.fs", format!("model m {{ let x = {} }}\n", long("1")));
    write("none.fs", format!("model m {{ let x = {} }}\n", long("\u{e9}")));
    let imports: Vec<String> = (0..300).map(|n| format!("import \"{}{n}\"\n", "a/".repeat(2000))).collect();
    write("imports.fs", imports.concat());
    write("lines.fs", format!("model m {{ {} }}\n", long("let x = y(z) ; ")));
    for name in ["name.fs", "use.fs", "import.fs", "number.fs", "none.fs", "lines.fs", "imports.fs"] {
        let most = if name == "imports.fs" { 60_000 } else { MOST };
        for args in [["check", name], ["compile", name]] {
            let said = fails(folder.path(), "fsc", &args);
            assert!(said.len() < most, "{name}: {} bytes: {}", said.len(), &said[..most]);
        }
    }
}

/// What puts a text somewhere into a schedule.
type Change = fn(&mut fs_schedule::Schedule, String);

/// Long and hidden texts are no part of a schedule, whatever its digest says; paths of the user's own are shown escaped.
#[test]
fn texts_of_schedules_are_short_and_seen() {
    let folder = place();
    let path = |name: &str| folder.path().join(name);
    let read = || fs_schedule::read(&path("m.json")).unwrap_or_else(|e| panic!("{e}"));
    let changes: [(&str, Change); 4] = [
        ("model", |s, text| s.model = text),
        ("cluster", |s, text| s.prediction.as_mut().expect("a prediction").cluster = text),
        ("reason", |s, text| s.train.ops[0].reason = text),
        ("source", |s, text| s.sources[0].path = text),
    ];
    for (name, change) in changes {
        for text in ["long ".repeat(1 << 18), "a\u{200b}b".into(), "a\u{3164}b".into(), "a\u{e0041}b".into()]
        {
            let mut schedule = read();
            change(&mut schedule, text);
            fs::write(path("x.json"), fs_schedule::to_text(&schedule)).expect("written");
            for (program, args) in [("fsc", ["verify", "x.json"]), ("fsx", ["run", "x.json"])] {
                let said = fails(folder.path(), program, &args);
                let why = ["text in it", "limits"].iter().any(|why| said.contains(why));
                assert!(said.len() < 3000 && why, "{name}: {said}");
            }
        }
    }
    for text in ["T\\u001b[31m", "T\u{202e}", "T\\udb40\\udc41"] {
        let status =
            format!("{{\"format\": \"fs-status\", \"at\": 0.0, \"view\": {{\"title\": \"{text}\"}}}}");
        fs::write(path("status.json"), status).expect("written");
        let said = fails(folder.path(), "fsx", &["top", "--once", "status.json"]);
        assert!(said.contains("steer a terminal"), "{said}");
    }
    let hidden = path("a\u{202e}b\u{1b}[31m");
    fs::create_dir(&hidden).expect("a folder");
    fs::copy(path("m.json"), hidden.join("m.json")).expect("copied");
    fs::copy(path("r.csv"), hidden.join("r.csv")).expect("copied");
    let (schedule, model) = (
        hidden.join("m.json").to_string_lossy().to_string(),
        hidden.join("m.fs").to_string_lossy().to_string(),
    );
    fs::write(&model, "model m { let x = }\n").expect("written");
    for (program, args) in [
        ("fsc", &["verify", &schedule][..]),
        ("fsc", &["fmt", &model]),
        ("fsx", &["run", &schedule]),
        ("fsx", &["compare", &schedule, &schedule, "--steps", "2"]),
    ] {
        let out = run(folder.path(), program, args);
        assert_eq!(out.status.success(), args[0] != "fmt", "{program} {args:?}: {}", said(&out));
        let all = format!("{}{}", said(&out), String::from_utf8_lossy(&out.stdout));
        assert!(!all.contains('\u{202e}') && !all.contains('\u{1b}'), "{program} {args:?}: {all:?}");
    }
}
