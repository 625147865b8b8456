//! Signals at any moment, and more ranks than there can be threads: an end within seconds, with what is promised.
#![cfg(target_os = "linux")]

#[path = "../../tests/common/mod.rs"]
mod common;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use common::{next_item, ranking};
use fs_schedule::Schedule;
use serde_json::Value;
use tempfile::TempDir;

/// How long a command may take to end once it is told to.
const SOON: Duration = Duration::from_secs(5);

fn place(schedule: &Schedule) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    common::write(&folder.path().join("s.json"), schedule);
    folder
}

fn start(folder: &Path, arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fsx"));
    command.current_dir(folder).args(["run", "s.json", "--report", "r.json"]).args(arguments);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

/// Waits for the end, which comes soon: how it ended, and the report. Nothing half written is left.
fn end(mut child: Child, folder: &Path) -> (ExitStatus, Value) {
    let told = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if told.elapsed() > SOON {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("it goes on after {SOON:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let names = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.filter(|name| name.contains(".tmp")).count(), 0);
    let report = fs::read_to_string(folder.join("r.json")).unwrap_or_else(|e| panic!("{status}: {e}"));
    (status, serde_json::from_str(&report).unwrap())
}

/// Until the status file says so.
fn wait_for(folder: &Path, what: &str) {
    let began = Instant::now();
    while !fs::read_to_string(folder.join("now.json")).is_ok_and(|text| text.contains(what)) {
        assert!(began.elapsed() < Duration::from_mins(2), "it never says {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A batch of evaluation that takes a minute is not waited for.
#[test]
fn a_slow_evaluation_ends_soon() {
    const USERS: u32 = 4096;
    let folder = place(&next_item(USERS, 2_000_000, "d.csv"));
    let mut text = String::from("userId,movieId,rating,timestamp\n");
    for user in 0..USERS {
        for at in 0..4 {
            writeln!(text, "{user},{},1,{at}", (user * 7 + at) % 5000).unwrap();
        }
    }
    fs::write(folder.path().join("d.csv"), text).unwrap();
    for (name, status) in [("-TERM", 143), ("-INT", 130)] {
        let _ = fs::remove_file(folder.path().join("now.json"));
        let child = start(folder.path(), &["--ranks", "1", "--steps", "1", "--status", "now.json"]);
        wait_for(folder.path(), "evaluating");
        std::thread::sleep(Duration::from_millis(200));
        signal(&child, name);
        let (ended, report) = end(child, folder.path());
        assert_eq!(ended.code(), Some(status));
        assert_eq!((&report["interrupted"], &report["steps"]), (&true.into(), &1.into()));
        assert_eq!(report["loss"].as_array().unwrap().len(), 1);
        assert!(report["evaluation"].is_null());
    }
}

/// Data that never come are not waited for either.
#[test]
fn loading_ends_soon() {
    let folder = place(&next_item(4, 50, "d.csv"));
    let data = folder.path().join("d.csv");
    for (name, status) in [("-INT", 130), ("-TERM", 143)] {
        assert!(Command::new("mkfifo").arg(&data).status().unwrap().success());
        let child = start(folder.path(), &["--ranks", "1"]);
        // Opens once the run reads it.
        let pipe = fs::File::options().write(true).open(&data).unwrap();
        signal(&child, name);
        let (ended, report) = end(child, folder.path());
        assert_eq!(ended.code(), Some(status));
        assert_eq!((&report["interrupted"], &report["steps"]), (&true.into(), &0.into()));
        assert_eq!(report["model"], next_item(4, 50, "d.csv").model);
        drop(pipe);
        fs::remove_file(&data).unwrap();
        fs::remove_file(folder.path().join("r.json")).unwrap();
    }
}

/// The second signal does not wait for anything.
#[test]
fn a_second_signal_ends_it_at_once() {
    let folder = place(&ranking(12, true));
    let child = start(folder.path(), &["--ranks", "3", "--steps", "100000000", "--status", "now.json"]);
    wait_for(folder.path(), "training");
    std::thread::sleep(Duration::from_millis(500));
    signal(&child, "-TERM");
    std::thread::sleep(Duration::from_millis(20));
    signal(&child, "-TERM");
    let (ended, report) = end(child, folder.path());
    assert_eq!(ended.code(), Some(143));
    assert_eq!(report["interrupted"], true);
    assert_eq!(report["loss"].as_array().unwrap().len() as u64, report["steps"].as_u64().unwrap());
}

/// More ranks than threads: said before anything is started.
#[test]
fn too_many_ranks_are_refused() {
    let mut schedule = ranking(12, true);
    schedule.settings.batch = 1 << 24;
    let folder = place(&schedule);
    let fsx = env!("CARGO_BIN_EXE_fsx");
    for (ranks, limit) in [("16777216", "unlimited"), ("4096", "4194304")] {
        let script =
            format!("ulimit -v {limit} && exec '{fsx}' run s.json --ranks {ranks} --steps 1 --no-evaluate");
        let began = Instant::now();
        let output = Command::new("bash").current_dir(folder.path()).args(["-c", &script]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.starts_with(&format!("error: {ranks} ranks need ")), "{said}");
        assert!(said.contains(" more can be started here"), "{said}");
        assert!(began.elapsed() < SOON);
    }
}
