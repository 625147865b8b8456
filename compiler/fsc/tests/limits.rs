//! What a command may not have, or may never get: memory, room in files, a stack, the other end of a pipe.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const DATA: &str = "csv \"r.csv\" { user \"u\"  item \"i\"  time \"t\" }";
const GENERATED: &str = "generate { lengths fixed(3) }";

fn model(layers: u32, workload: &str) -> String {
    let layers: String =
        (0..layers).fold(String::new(), |text, n| text + &format!("  x = linear(x, 8, name: \"l{n}\")\n"));
    format!(
        "model wide {{\n  table items {{ rows 100  dim 8  optimizer sgd(lr: 0.1) }}\n  input item: ids(items) {{ max 5 }}\n  \
         input following: next(item)\n  let x = lookup(item)\n{layers}  \
         loss sampled_softmax(x, items, following, negatives: 3, normalize: tokens)\n}}\n\
         train {{ batch 512  steps 1 }}\nworkload drawn {{ {workload} }}\n"
    )
}

fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("m.fs"), model(100, GENERATED)).expect("written");
    fs::write(folder.path().join("large.fs"), model(2000, GENERATED)).expect("written");
    folder
}

/// Runs it under a limit, a line of a shell.
fn limited(folder: &Path, limit: &str, args: &[&str]) -> Output {
    let mut command = Command::new("bash");
    command.arg("-c").arg(format!("{limit}; exec \"$0\" \"$@\"")).arg(env!("CARGO_BIN_EXE_fsc")).args(args);
    ended(
        command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()),
        limit,
    )
}

/// What a command that ends soon leaves, whatever it may wait for.
fn ended(command: &mut Command, what: &str) -> Output {
    let mut child = command.spawn().expect("it starts");
    let began = Instant::now();
    while child.try_wait().expect("it runs").is_none() {
        if began.elapsed() > Duration::from_mins(1) {
            child.kill().expect("ended");
            panic!("{what}: it waits");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("it ends")
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// Rust's runtime and the C library, which ask for memory before a program or a thread begins, end it in no other way.
fn aborted_by_the_runtime(out: &Output) -> bool {
    let said = said(out);
    let told = said.contains("fatal runtime error") || said.contains("Fatal glibc error");
    out.status.signal() == Some(6) && told
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("listed").flatten();
    let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The error of a run that ends soon, whatever it waits for.
fn refused(folder: &Path, args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fsc"));
    command.args(args).current_dir(folder).stdout(Stdio::null()).stderr(Stdio::piped());
    let out = ended(&mut command, &format!("{args:?}"));
    assert_eq!(out.status.code(), Some(1), "{args:?}: {}", said(&out));
    said(&out)
}

/// Wherever memory is missing: one line, and nothing half written.
#[test]
fn no_memory_ends_in_an_error() {
    let folder = folder();
    let at = folder.path();
    let out = limited(at, "true", &["compile", "m.fs", "-o", "s.json", "--ranks", "64"]);
    assert!(out.status.success(), "{}", said(&out));
    let before = names(at);
    // The allocator takes 32 MiB at once, so little work is refused in few places.
    for (args, whole, step, least) in [
        (&["compile", "large.fs", "-o", "o.json"][..], 1, 6_000, 4),
        (&["chakra", "s.json", "-o", "new/traces", "--steps", "8"], 64, 1_000, 2),
    ] {
        let (mut done, mut refused, mut aborted) = (0, BTreeSet::new(), 0);
        for limit in (12_000..500_000).step_by(step) {
            let out = limited(at, &format!("ulimit -v {limit}"), args);
            let said = said(&out);
            match out.status.code() {
                Some(0) => {
                    done += 1;
                    let written = match at.join("new/traces") {
                        traces if traces.exists() => names(&traces).len(),
                        _ => usize::from(at.join("o.json").exists()),
                    };
                    assert_eq!(written, whole, "{limit}");
                    let _ = fs::remove_file(at.join("o.json"));
                    let _ = fs::remove_dir_all(at.join("new"));
                }
                // The thread that watches for signals needs memory before anything is begun, and may say so itself.
                Some(1) if said.contains("cannot watch for Ctrl-C") => {}
                // So does the runtime for that thread, which then says more than we do.
                Some(1) if said.contains("failed to allocate an alternative stack") => {}
                Some(1) if said.contains("of memory cannot be had") => {
                    assert!(said.starts_with("error: ") && said.lines().count() == 1, "{limit}: {said}");
                    refused.insert(said.clone());
                }
                None if aborted_by_the_runtime(&out) => aborted += u32::from(done > 0 || !refused.is_empty()),
                // The system cannot even map the program.
                None if out.status.signal() == Some(11)
                    && done == 0
                    && refused.is_empty()
                    && said.is_empty() => {}
                // Before it begins.
                Some(1 | 127) if done == 0 && refused.is_empty() => {
                    assert!(!said.contains("panicked"), "{limit}: {said}");
                }
                _ => panic!("{args:?} {limit}: {:?}: {said}", out.status),
            }
            if aborted_by_the_runtime(&out) {
                let _ = fs::remove_dir_all(at.join("new"));
                names(at).iter().filter(|name| !before.contains(name)).for_each(|name| {
                    let _ = fs::remove_file(at.join(name));
                });
            }
            assert_eq!(names(at), before, "{args:?} {limit}: {said}");
            if done == 3 {
                break;
            }
        }
        // What it says tells how much was missing, and so where.
        assert!(done == 3 && refused.len() >= least && aborted < 3, "{args:?}: {done} {refused:?} {aborted}");
    }
}

/// As a full disk.
#[test]
fn a_limit_of_files_ends_in_an_error() {
    let folder = folder();
    let at = folder.path();
    let out = limited(at, "true", &["compile", "m.fs", "-o", "s.json", "--ranks", "2"]);
    assert!(out.status.success(), "{}", said(&out));
    let before = names(at);
    for args in [
        &["compile", "m.fs", "-o", "o.json"][..],
        &["viz", "s.json", "-o", "o.svg"],
        &["chakra", "s.json", "-o", "new/traces"],
    ] {
        let out = limited(at, "ulimit -f 1", args);
        let said = said(&out);
        assert_eq!(out.status.code(), Some(1), "{args:?}: {:?} {said}", out.status);
        assert!(said.contains("cannot write") && said.contains("too large"), "{args:?}: {said}");
        assert_eq!(names(at), before, "{args:?}");
    }
    // A folder that was there stays.
    fs::create_dir(at.join("old")).expect("a folder");
    let out = limited(at, "ulimit -f 1", &["chakra", "s.json", "-o", "old/new"]);
    assert_eq!(out.status.code(), Some(1), "{}", said(&out));
    assert!(at.join("old").exists() && names(&at.join("old")).is_empty());
}

/// What is said there is lost, and nothing else.
#[test]
fn standard_error_may_be_full() {
    let folder = folder();
    let at = folder.path();
    fs::write(at.join("bad.fs"), "model {").expect("written");
    for (args, code) in
        [(&["compile", "m.fs", "-o", "o.json"][..], 0), (&["check", "bad.fs"], 1), (&["check", "--no"], 2)]
    {
        let out = limited(at, "exec 2> /dev/full", args);
        assert_eq!(out.status.code(), Some(code), "{args:?}");
    }
    assert!(at.join("o.json").exists());
}

/// A pipe need not have an end that anybody fills.
#[test]
fn pipes_are_no_imports_and_not_formatted() {
    let folder = folder();
    let at = folder.path();
    assert!(Command::new("mkfifo").arg(at.join("pipe")).status().expect("mkfifo").success());
    fs::write(at.join("imports.fs"), "import \"pipe\"\n").expect("written");
    for args in [&["check", "imports.fs"][..], &["fmt", "pipe"], &["fmt", "--check", "pipe"]] {
        let said = refused(at, args);
        assert!(said.contains("pipe, not a file"), "{args:?}: {said}");
    }
    // A model itself may come through one.
    let out = limited(at, "true", &["check", "/dev/stdin"]);
    assert!(!out.status.success());
    let piped = Command::new("bash")
        .args(["-c", "cat m.fs | \"$0\" check /dev/stdin && \"$0\" check <(cat m.fs)"])
        .arg(env!("CARGO_BIN_EXE_fsc"))
        .current_dir(at)
        .output()
        .expect("it starts");
    assert!(piped.status.success(), "{}", said(&piped));
}

/// No fault of the model.
#[test]
fn a_small_stack_is_called_so() {
    let folder = folder();
    let out = limited(folder.path(), "ulimit -s 64", &["check", "m.fs"]);
    let said = said(&out);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("ulimit -s") && !said.contains("expected"), "{said}");
    assert_eq!(said.matches("error[").count(), 1, "once: {said}");
}

/// A schedule names the data from its own folder, by text.
#[test]
fn folders_that_no_schedule_can_name() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in [&b"a\nb"[..], b"a\x1b[31mb", "a\u{202e}b".as_bytes(), b"a\xffb"] {
        let inner = folder.path().join(OsStr::from_bytes(name));
        fs::create_dir(&inner).expect("a folder");
        fs::write(inner.join("m.fs"), model(1, DATA)).expect("written");
        fs::write(inner.join("g.fs"), model(1, GENERATED)).expect("written");
        let output = folder.path().join("s.json");
        for (at, given) in [(folder.path(), inner.join("m.fs")), (&inner, "m.fs".into())] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_fsc"));
            command.arg("compile").arg(&given).arg("-o").arg(&output).current_dir(at);
            let out = command.output().expect("it starts");
            if out.status.success() {
                // It is named as it is.
                let text = fs::read_to_string(&output).expect("written");
                let schedule: fs_schedule::Schedule = serde_json::from_str(&text).expect("a schedule");
                let Some(fs_schedule::Data::Csv { path, .. }) = schedule.data else { panic!("no data") };
                assert_eq!(folder.path().join(path), inner.join("r.csv"), "{given:?}");
                fs::remove_file(&output).expect("removed");
            } else {
                let said = said(&out);
                assert!(said.contains("data") && said.contains("rename"), "{given:?}: {said}");
                assert!(!said.contains(['\u{1b}', '\u{202e}']) && !output.exists(), "{given:?}: {said}");
            }
        }
        // Without data there is nothing to name.
        let mut command = Command::new(env!("CARGO_BIN_EXE_fsc"));
        let out = command.arg("compile").arg(inner.join("g.fs")).arg("-o").arg(&output).output();
        let out = out.expect("it starts");
        assert!(out.status.success(), "{name:?}: {}", said(&out));
        fs::remove_file(&output).expect("removed");
    }
}
