//! A command that a signal ends leaves nothing half written, and what was to be replaced.
#![cfg(target_os = "linux")]

use std::fmt::Write as _;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SIGNALS: [(&str, i32); 7] = [
    ("-INT", 130),
    ("-TERM", 143),
    ("-HUP", 129),
    ("-USR1", 138),
    ("-USR2", 140),
    ("-XCPU", 152),
    // Who sends it wants to look at what the process leaves.
    ("-QUIT", QUIT),
];
const QUIT: i32 = 131;

fn start(folder: &Path, args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fsc"));
    command.current_dir(folder).args(args).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().expect("it starts")
}

/// It may have ended by then.
fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    let _ = Command::new("kill").args([name, &pid]).stderr(Stdio::null()).status().expect("kill");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("listed").flatten();
    let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Ends a command that has just begun something; whether it could be caught doing so.
fn caught(folder: &Path, args: &[&str], name: &str, code: i32) -> bool {
    let before = names(folder);
    let mut child = start(folder, args);
    let half = || names(folder).iter().any(|name| name.contains(".tmp"));
    while !half() && child.try_wait().expect("it runs").is_none() {}
    signal(&child, "-STOP");
    let caught = half();
    signal(&child, name);
    signal(&child, "-CONT");
    let out = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    if out.status.success() {
        // Quicker than the signal: whole.
        assert!(!half(), "{args:?} {name}: {:?}", names(folder));
        return false;
    }
    match code {
        QUIT => assert_eq!(out.status.signal(), Some(QUIT - 128), "{args:?}: {:?} {said}", out.status),
        _ => assert_eq!(out.status.code(), Some(code), "{args:?} {name}: {:?} {said}", out.status),
    }
    assert!(!said.contains("error"), "{args:?} {name}: {said}");
    assert_eq!(names(folder), before, "{args:?} {name}");
    caught
}

fn model(layers: u32) -> String {
    let mut text = String::from(
        "model wide {\n  table items { rows 100  dim 8  optimizer sgd(lr: 0.1) }\n  input item: ids(items) { max 5 }\n  \
         input click: label like item\n  let x = lookup(item)\n",
    );
    for n in 0..layers {
        writeln!(text, "  x = linear(x, 8, name: \"l{n}\")").expect("text");
    }
    text + "  loss bce_with_logits(linear(x, 1, name: \"head\"), click, normalize: tokens)\n}\ntrain { batch 512  steps 1 }\n\
            workload drawn { generate { lengths fixed(3) } }\n"
}

#[test]
fn nothing_half_written_is_left() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    fs::write(at.join("m.fs"), model(60)).expect("written");
    let out = start(at, &["compile", "m.fs", "-o", "s.json", "--ranks", "256"])
        .wait_with_output()
        .expect("it ends");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    for place in ["a", "b"] {
        fs::create_dir(at.join(place)).expect("a folder");
    }
    fs::write(at.join("a/o.json"), "what was there").expect("written");
    let began = Instant::now();
    for (name, code) in SIGNALS {
        // A folder of its own each, with the place of what is begun.
        for (place, args) in [
            ("a", &["compile", "../m.fs", "-o", "o.json", "--strategy", "serial"][..]),
            ("b", &["chakra", "../s.json", "-o", ".", "--steps", "8"]),
        ] {
            // Writing takes a millisecond or so.
            let caught = (0..200).any(|_| caught(&at.join(place), args, name, code));
            assert!(caught, "{args:?}: it is never seen writing");
        }
        assert!(began.elapsed() < Duration::from_mins(3), "it goes on");
    }
}

/// As `nohup` starts a command: it goes on when its terminal is gone.
#[test]
fn signals_that_are_to_be_passed_over_are() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("m.fs"), model(60)).expect("written");
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" compile m.fs"]).arg(env!("CARGO_BIN_EXE_fsc"));
    let mut child = command.current_dir(folder.path()).stderr(Stdio::null()).spawn().expect("it starts");
    let comm = format!("/proc/{}/comm", child.id());
    while !fs::read_to_string(&comm).is_ok_and(|name| name.trim() == "fsc") {}
    while child.try_wait().expect("it runs").is_none() {
        let pid = child.id().to_string();
        let _ = Command::new("kill").args(["-HUP", &pid]).stderr(Stdio::null()).status();
    }
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert!(folder.path().join("m.json").exists());
}
