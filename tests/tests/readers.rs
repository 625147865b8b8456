//! What commands read is bounded, and what they print of it steers no terminal.

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
    assert!(said.contains("a line has more than"), "{said}");
}

#[test]
fn large_files_are_refused() {
    let folder = place();
    let at = folder.path();
    fs::write(at.join("large.fs"), "# ü\n".repeat(2 << 20)).expect("written");
    assert!(fails(at, "fsc", &["check", "large.fs"]).contains("larger than 4 MiB"));
    fs::write(at.join("large.csv"), "column,".repeat(3 << 20)).expect("written");
    let said = fails(at, "fsx", &["run", "m.json", "--data", "large.csv"]);
    assert!(said.contains("a line has more than") && said.len() < 1000, "{said}");
    // Within a line's bounds what is said of it still is short.
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
    for end in ["\n", "\r\n"] {
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
    assert!(said(&twice).contains("two tensors `a`"), "{}", said(&twice));
}

/// A status that cannot be written is said, also by a run that else says nothing.
#[test]
fn a_full_disk_is_said() {
    let folder = place();
    let out = run(folder.path(), "fsx", &["run", "m.json", "-q", "--status", "/dev/full"]);
    assert!(out.status.success() && said(&out).contains("cannot write the status"), "{}", said(&out));
}
