//! `fsc viz`, `fsc inspect` and `fsc chakra` from outside: files, messages and exit statuses.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

const MODEL: &str = "model tiny {
  table items { rows 10  dim 4  optimizer sgd(lr: 0.1) }
  input history: ids(items) { max 5 }
  input click: label like history
  loss bce_with_logits(linear(lookup(history), 1, name: \"head\"), click, normalize: tokens)
}
train { batch 4  steps 2 }
workload synthetic { generate { lengths fixed(3)  ids uniform  labels bernoulli(0.5) } }
";

fn command(args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_fsc"));
    c.args(args).env_remove("COLUMNS").env_remove("LC_ALL").env_remove("LC_CTYPE").env("LANG", "C");
    c
}

fn fsc(args: &[&str]) -> Output {
    command(args).output().expect("fsc starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn name(path: &Path) -> &str {
    path.to_str().expect("temporary paths are text")
}

/// A folder with a schedule for two ranks.
fn folder() -> (TempDir, PathBuf) {
    let dir = TempDir::new().expect("a temporary folder");
    let (model, schedule) = (dir.path().join("m.fs"), dir.path().join("s.json"));
    fs::write(&model, MODEL).expect("the model is written");
    let out = fsc(&["compile", name(&model), "-o", name(&schedule), "--ranks", "2"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    (dir, schedule)
}

/// Fails with a message that holds all of `parts`, and never by a panic.
fn fails(args: &[&str], parts: &[&str]) {
    let out = fsc(args);
    let said = text(&out.stderr);
    assert!(!out.status.success(), "{args:?} must fail");
    assert!(!said.contains("panicked"), "{args:?}: {said}");
    for part in parts {
        assert!(said.contains(part), "{args:?} must say `{part}`, says:\n{said}");
    }
}

/// Names in a folder, sorted.
fn list(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .expect("a folder")
        .map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn pictures_by_ending() {
    let (dir, schedule) = folder();
    for (file, start) in [("a.svg", "<svg "), ("a.SVG", "<svg "), ("a.dot", "digraph ")] {
        let out = dir.path().join(file);
        let run = fsc(&["viz", name(&schedule), "-o", name(&out)]);
        assert!(run.status.success(), "{}", text(&run.stderr));
        assert!(fs::read_to_string(&out).expect("a picture").starts_with(start));
    }
    let both = dir.path().join("both.svg");
    assert!(fsc(&["viz", name(&schedule), name(&schedule), "-o", name(&both)]).status.success());
    let one = fs::read_to_string(dir.path().join("a.svg")).expect("a picture");
    assert!(
        fs::read_to_string(&both).expect("a picture").matches(">s<").count() == 2,
        "named by their files"
    );
    let run = fsc(&["viz", name(&schedule), "-o", name(&both), "--steps", "5"]);
    assert!(run.status.success() && fs::read_to_string(&both).expect("a picture") != one);
}

#[test]
fn pictures_that_cannot_be_drawn() {
    let (dir, schedule) = folder();
    let at = |n: &str| dir.path().join(n);
    let before = list(dir.path());
    fails(&["viz", name(&schedule), "-o", name(&at("a.png"))], &[".html", ".svg", ".dot", "a.png"]);
    fails(&["viz", name(&schedule), "-o", name(&at("a"))], &[".svg"]);
    fails(&["viz", name(&at("none.json")), "-o", name(&at("a.svg"))], &["none.json", "No such file"]);
    fails(&["viz", name(&schedule), "-o", name(&at("no/such/a.svg"))], &["cannot write", "a.svg"]);
    fails(&["viz", name(&schedule), name(&schedule), "-o", name(&at("a.dot"))], &["one schedule"]);
    fails(&["viz", name(&schedule), "-o", name(&at("a.dot")), "--steps", "2"], &["--steps"]);
    fails(&["viz", name(&at("m.fs")), "-o", name(&at("a.svg"))], &["not a schedule"]);
    assert_eq!(list(dir.path()), before, "nothing is left behind");
}

#[test]
fn schedules_without_prediction_must_be_compiled_again() {
    let (dir, schedule) = folder();
    let mut s = fs_schedule::read(&schedule).expect("a schedule");
    s.prediction = None;
    let bare = dir.path().join("bare.json");
    fs_schedule::write(&bare, &s).expect("it is written");
    let out = dir.path().join("a.svg");
    fails(&["viz", name(&bare), "-o", name(&out)], &["no prediction", "compile it again"]);
    fails(&["inspect", name(&bare)], &["no prediction", "compile it again"]);
    fails(&["chakra", name(&bare), "-o", name(dir.path())], &["no prediction", "compile it again"]);
}

#[test]
fn inspect_fits_what_it_is_told() {
    let (_dir, schedule) = folder();
    let out = fsc(&["inspect", name(&schedule), "--width", "60"]);
    let shown = text(&out.stdout);
    assert!(out.status.success() && shown.is_ascii() && !shown.contains('\u{1b}'), "{shown}");
    assert!(shown.lines().filter(|l| l.contains("% |")).all(|l| l.len() == 60), "{shown}");
    for width in ["40", "50", "60", "80", "100", "133"] {
        let out = fsc(&["inspect", name(&schedule), "--ascii", "--width", width]);
        let most: usize = width.parse().expect("a number");
        let long = text(&out.stdout).lines().find(|l| l.len() > most).map(str::to_owned);
        assert_eq!(long, None, "{width}");
    }
    // Not a terminal, but shells say how wide one would be.
    let out = command(&["inspect", name(&schedule)]).env("COLUMNS", "72").output().expect("fsc starts");
    assert!(text(&out.stdout).lines().filter(|l| l.contains("% |")).all(|l| l.len() == 72));
    let out = command(&["inspect", name(&schedule)]).env("LANG", "en_GB.UTF-8").output().expect("fsc starts");
    assert!(text(&out.stdout).contains('│'));
    let ascii = command(&["inspect", name(&schedule), "--ascii"])
        .env("LANG", "C.UTF-8")
        .output()
        .expect("fsc starts");
    assert!(text(&ascii.stdout).is_ascii());
    fails(&["inspect", name(&schedule), "--width", "5"], &["--width", "40"]);
    fails(&["inspect", name(&schedule), "--steps", "0"], &["--steps"]);
    fails(&["inspect", "no/such.json"], &["no/such.json"]);
}

#[test]
fn chakra_writes_a_file_per_rank() {
    let (dir, schedule) = folder();
    let to = dir.path().join("traces/deep");
    let run = fsc(&["chakra", name(&schedule), "-o", name(&to), "--steps", "2"]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    assert_eq!(list(&to), ["s.0.et", "s.1.et"]);
    let first = fs::read(to.join("s.0.et")).expect("a trace");
    let run = fsc(&["chakra", name(&schedule), "-o", name(&to), "--steps", "2", "--name", "other"]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    assert_eq!(fs::read(to.join("other.0.et")).expect("a trace"), first);
    // A trace of more ranks is not overwritten in part without a word.
    fs::write(to.join("s.2.et"), "old").expect("it is written");
    let run = fsc(&["chakra", name(&schedule), "-o", name(&to), "--steps", "2"]);
    assert!(run.status.success() && text(&run.stderr).contains("s.2.et"), "{}", text(&run.stderr));
}

#[test]
fn chakra_that_cannot_be_written() {
    let (dir, schedule) = folder();
    let file = dir.path().join("file");
    fs::write(&file, "kept").expect("it is written");
    fails(&["chakra", name(&schedule), "-o", name(&file)], &["cannot write", "file"]);
    assert_eq!(fs::read_to_string(&file).expect("the file"), "kept");
    let to = dir.path().join("traces");
    fails(&["chakra", name(&schedule), "-o", name(&to), "--steps", "0"], &["--steps"]);
    fails(&["chakra", name(&schedule), "-o", name(&to), "--steps", "99999999999"], &["fewer steps"]);
    fails(&["chakra", name(&schedule), "-o", name(&to), "--name", "a/b"], &["--name"]);
    assert!(!to.exists(), "no folder for nothing");
    // A folder stands where the last file belongs: no trace is left half exported.
    fs::create_dir_all(to.join("s.1.et/full")).expect("a folder");
    fails(&["chakra", name(&schedule), "-o", name(&to)], &["cannot write", "s.1.et"]);
    assert_eq!(list(&to), ["s.1.et"], "what was written is taken back");
}
