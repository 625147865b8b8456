//! Signals at any moment, and more ranks than there can be threads: an end within seconds, with what is promised.
#![cfg(target_os = "linux")]

#[path = "../../tests/common/mod.rs"]
mod common;

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
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

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fsx"));
    command.current_dir(folder).args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn start(folder: &Path, arguments: &[&str]) -> Child {
    command(folder, &["run", "s.json", "--report", "r.json"]).args(arguments).spawn().unwrap()
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

/// Waits for the end, which comes soon. Nothing half written is left.
fn ended(mut child: Child, folder: &Path) -> ExitStatus {
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
    assert_eq!(
        names.filter(|name| [".tmp", ".check", ".last"].iter().any(|end| name.contains(end))).count(),
        0
    );
    status
}

/// The same of a run: how it ended, and the report.
fn end(child: Child, folder: &Path) -> (ExitStatus, Value) {
    let status = ended(child, folder);
    let report = fs::read_to_string(folder.join("r.json")).unwrap_or_else(|e| panic!("{status}: {e}"));
    (status, serde_json::from_str(&report).unwrap())
}

/// Looks again and again until it is so.
fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < Duration::from_mins(2), "it never comes to this: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Until the status file says so.
fn wait_for(folder: &Path, what: &str) {
    wait_until(what, || fs::read_to_string(folder.join("now.json")).is_ok_and(|text| text.contains(what)));
}

/// Until it has a thread of this name.
fn wait_for_thread(child: &Child, name: &str) {
    let tasks = format!("/proc/{}/task", child.id());
    let is =
        |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).is_ok_and(|c| c.trim() == name);
    wait_until(name, || fs::read_dir(&tasks).is_ok_and(|tasks| tasks.flatten().any(is)));
}

/// What is being written beside a file.
fn half_written(folder: &Path, file: &str) -> bool {
    let names = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    names.into_iter().any(|name| name.starts_with(file) && name.contains(".tmp"))
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

/// Threads by the thousand compete with whoever ends them, and are ended one by one.
#[test]
fn thousands_of_threads_end_soon() {
    let mut schedule = ranking(12, true);
    schedule.settings.batch = 1000;
    let folder = place(&schedule);
    for (name, status) in [("-TERM", 143), ("-INT", 130)] {
        let child =
            start(folder.path(), &["--ranks", "1000", "--steps", "100000000", "--status", "now.json"]);
        wait_for(folder.path(), "training");
        signal(&child, name);
        let (ended, report) = end(child, folder.path());
        assert_eq!((ended.code(), &report["interrupted"]), (Some(status), &true.into()));
        fs::remove_file(folder.path().join("now.json")).unwrap();
    }
}

/// A run that has failed ends too where nobody takes its last words.
#[test]
fn a_failed_run_whose_words_nobody_takes_ends() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let folder = place(&ranking(12, true));
    // Full: nothing more goes in until somebody reads.
    let filler = std::thread::spawn(move || {
        let stalled = writer.try_clone().unwrap();
        let _ = std::io::Write::write_all(&mut writer, &vec![b'x'; 1 << 20]);
        drop(stalled);
    });
    std::thread::sleep(Duration::from_millis(300));
    let mut command = command(folder.path(), &["run", "nothere.json"]);
    let stderr =
        std::fs::OpenOptions::new().write(true).open(format!("/proc/self/fd/{}", fd(&reader))).unwrap();
    let child = command.stderr(stderr).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    signal(&child, "-TERM");
    std::thread::sleep(Duration::from_millis(100));
    signal(&child, "-TERM");
    let status = ended(child, folder.path());
    assert_eq!(status.code(), Some(143));
    drop(reader);
    filler.join().unwrap();
}

fn fd(pipe: &impl std::os::fd::AsRawFd) -> i32 {
    pipe.as_raw_fd()
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

/// A limit of time, a job's end, a question for what the process leaves: the report is there each time.
#[test]
fn other_signals_end_it_too() {
    let folder = place(&ranking(12, true));
    for (name, code) in [("-USR2", 140), ("-XCPU", 152), ("-QUIT", 0)] {
        let child = start(folder.path(), &["--ranks", "3", "--steps", "100000000", "--status", "now.json"]);
        wait_for(folder.path(), "training");
        signal(&child, name);
        let (ended, report) = end(child, folder.path());
        let quit = ended.signal() == Some(3);
        assert!(if code == 0 { quit } else { ended.code() == Some(code) }, "{name}: {ended:?}");
        assert_eq!(report["interrupted"], true, "{name}");
        let _ = fs::remove_file(folder.path().join("core"));
        fs::remove_file(folder.path().join("now.json")).unwrap();
        fs::remove_file(folder.path().join("r.json")).unwrap();
    }
}

/// What a table of this size takes to be written is long enough to be found being written, and stopped there.
const LARGE: u64 = 3_000_000;

/// A run that is being saved, stopped (as by a debugger) right after its file has come to be.
fn saving(folder: &Path, piped: bool) -> Child {
    // On a busy machine the whole file may be written before this test sees its beginning.
    for _ in 0..5 {
        fs::write(folder.join("m.safetensors"), "what was there").unwrap();
        let _ = fs::remove_file(folder.join("r.json"));
        let arguments =
            ["run", "s.json", "--report", "r.json", "--ranks", "1", "--steps", "1", "--no-evaluate"];
        let mut command = command(folder, &arguments);
        let stderr = if piped { Stdio::piped() } else { Stdio::null() };
        let mut child = command.args(["--save", "m.safetensors"]).stderr(stderr).spawn().unwrap();
        let whole = || fs::read(folder.join("m.safetensors")).unwrap() != b"what was there";
        wait_until("saving", || half_written(folder, "m.safetensors") || whole());
        signal(&child, "-STOP");
        if half_written(folder, "m.safetensors") {
            return child;
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    panic!("it is always quicker than this test")
}

fn large() -> TempDir {
    let mut schedule = ranking(12, true);
    schedule.tables[0].rows = LARGE;
    place(&schedule)
}

/// Whoever cannot wait for a file to be written keeps the one that was there.
#[test]
fn saving_is_ended_at_once_by_two_signals() {
    let folder = large();
    let ended_at_once = || {
        let child = saving(folder.path(), false);
        // Both are there when it goes on, and which is taken first is the system's choice.
        signal(&child, "-TERM");
        signal(&child, "-INT");
        signal(&child, "-CONT");
        let (status, report) = end(child, folder.path());
        let saved = fs::read(folder.path().join("m.safetensors")).unwrap();
        if saved != b"what was there" {
            // On a busy machine the rest was written before the thread ran that waits for signals.
            assert!(saved.len() as u64 > 36 * LARGE, "{} bytes", saved.len());
            return false;
        }
        assert!(matches!(status.code(), Some(130 | 143)), "{status}");
        assert_eq!((&report["interrupted"], &report["steps"]), (&true.into(), &1.into()));
        true
    };
    assert!((0..5).any(|_| ended_at_once()), "it is always written to its end");
}

/// Nor is it waited for after one signal, if it takes too long: stopped meanwhile it has had its time.
#[test]
fn saving_that_takes_long_is_ended() {
    let folder = large();
    let mut child = saving(folder.path(), true);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    signal(&child, "-TERM");
    signal(&child, "-CONT");
    lines.find(|line| line.as_ref().unwrap().contains("stopping")).unwrap().unwrap();
    signal(&child, "-STOP");
    let half = half_written(folder.path(), "m.safetensors");
    std::thread::sleep(Duration::from_millis(3500));
    signal(&child, "-CONT");
    let (status, report) = end(child, folder.path());
    let saved = fs::read(folder.path().join("m.safetensors")).unwrap();
    if saved == b"what was there" {
        assert_eq!((status.code(), &report["interrupted"]), (Some(143), &true.into()));
    } else {
        // On a fast disk the rest was written before.
        assert!(saved.len() as u64 > 36 * LARGE, "{} bytes, half written: {half}", saved.len());
    }
}

/// A signal while a file is written that takes no longer than that: everything is whole, as if there had been none.
#[test]
fn saving_that_takes_little_is_finished() {
    let folder = large();
    let mut child = saving(folder.path(), true);
    let mut stderr = child.stderr.take().unwrap();
    signal(&child, "-TERM");
    signal(&child, "-CONT");
    let (status, report) = end(child, folder.path());
    let mut said = String::new();
    std::io::Read::read_to_string(&mut stderr, &mut said).unwrap();
    let saved = fs::read(folder.path().join("m.safetensors")).unwrap();
    if status.success() {
        assert_eq!(report["interrupted"], false);
        assert!(said.contains("note: nothing was left to stop: the run is whole"), "{said}");
        let again =
            ["run", "s.json", "--ranks", "1", "--steps", "1", "--no-evaluate", "--init", "m.safetensors"];
        assert!(command(folder.path(), &again).status().unwrap().success(), "it can be gone on with");
    } else {
        // A slow disk.
        assert_eq!((status.code(), &report["interrupted"]), (Some(143), &true.into()));
        assert_eq!(saved, b"what was there");
    }
}

/// As `nohup` starts a run: it goes on when its terminal is gone.
#[test]
fn signals_that_are_to_be_passed_over_are() {
    let folder = place(&ranking(12, true));
    let script =
        "trap '' HUP; exec \"$0\" run s.json --report r.json --ranks 2 --steps 100000000 --status now.json";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(env!("CARGO_BIN_EXE_fsx")).current_dir(folder.path());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for(folder.path(), "training");
    signal(&child, "-HUP");
    signal(&child, "-HUP");
    std::thread::sleep(Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none(), "it has ended");
    signal(&child, "-TERM");
    assert_eq!(end(child, folder.path()).0.code(), Some(143));
}

/// Nobody reads the pipe that the report goes to.
#[test]
fn a_report_that_nobody_reads_is_not_waited_for() {
    let folder = place(&ranking(12, true));
    let pipe = folder.path().join("r.pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let arguments = ["run", "s.json", "--report", "r.pipe", "--ranks", "1", "--status", "now.json"];
    for (name, status, steps) in [("-TERM", 143, "100000000"), ("-INT", 130, "1")] {
        let _ = fs::remove_file(folder.path().join("now.json"));
        let child = command(folder.path(), &arguments).args(["--steps", steps]).spawn().unwrap();
        // Whether it can be written is found out first.
        drop(fs::File::open(&pipe).unwrap());
        if steps == "1" {
            wait_for(folder.path(), "\"done\"");
            std::thread::sleep(Duration::from_millis(200));
        } else {
            wait_for(folder.path(), "training");
        }
        signal(&child, name);
        assert_eq!(ended(child, folder.path()).code(), Some(status), "{name}");
    }
}

/// Comparing and measuring end at once, while they load and while they run, and leave what was there.
#[test]
fn comparing_and_measuring_end_at_once() {
    let folder = place(&ranking(12, true));
    let compare: &[&str] = &["compare", "s.json", "s.json", "--ranks", "2", "--steps", "100000000"];
    let profile: &[&str] = &["profile", "s.json", "-o", "p.json", "--ranks", "2", "--steps", "1000000"];
    fs::write(folder.path().join("p.json"), "what was there").unwrap();
    let check = |child: Child, name: &str, status: i32| {
        let began = Instant::now();
        signal(&child, name);
        assert_eq!(ended(child, folder.path()).code(), Some(status));
        assert!(began.elapsed() < Duration::from_secs(3), "at once");
        assert_eq!(fs::read_to_string(folder.path().join("p.json")).unwrap(), "what was there");
    };
    for arguments in [compare, profile] {
        for (name, status) in [("-TERM", 143), ("-INT", 130)] {
            let child = command(folder.path(), arguments).spawn().unwrap();
            wait_for_thread(&child, "rank-reader");
            check(child, name, status);
        }
    }
    common::write(&folder.path().join("s.json"), &next_item(4, 50, "d.csv"));
    assert!(Command::new("mkfifo").arg(folder.path().join("d.csv")).status().unwrap().success());
    for arguments in [compare, profile] {
        let child = command(folder.path(), arguments).spawn().unwrap();
        let pipe = fs::File::options().write(true).open(folder.path().join("d.csv")).unwrap();
        check(child, "-TERM", 143);
        drop(pipe);
    }
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
/// Runs in `folder` as somebody who may have no more than so many processes and threads. The superuser may have any
/// number, so it is another user, one that nothing else runs as; `None` where that cannot be.
fn limited(folder: &Path, most: u64, arguments: &str) -> Option<Output> {
    let fsx = env!("CARGO_BIN_EXE_fsx");
    fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
    let user = 100_000 + std::process::id();
    let another = || {
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={user}"), format!("--regid={user}")]);
        command.args(["--clear-groups", "--inh-caps=-all"]);
        command
    };
    if !another().args(["test", "-x", fsx]).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: needs the superuser, setpriv, and that others may run {fsx}");
        return None;
    }
    let script = format!("ulimit -u {most} && exec '{fsx}' {arguments}");
    Some(another().args(["bash", "-c", &script]).current_dir(folder).output().unwrap())
}

/// A user's limit of threads holds; whatever it is, a run succeeds or says what is the matter in one line.
#[test]
fn a_users_limit_of_threads_holds() {
    let folder = place(&ranking(60, true));
    let run = |most, ranks| {
        limited(folder.path(), most, &format!("run s.json --ranks {ranks} --steps 2 --no-evaluate --quiet"))
    };
    let Some(enough) = run(200, 30) else { return };
    assert!(enough.status.success(), "{}", String::from_utf8_lossy(&enough.stderr));
    let refused = run(60, 30).unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(
        said.starts_with("error: 30 ranks need ") && said.contains(" more can be started here"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    let mut outcomes = Vec::new();
    for most in 1..=40 {
        let output = run(most, 2).unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        match output.status.code() {
            Some(0) => assert_eq!(said, "", "{most}"),
            Some(1) => assert!(said.starts_with("error: ") && said.lines().count() == 1, "{most}: {said}"),
            other => panic!("{most}: {other:?}: {said}"),
        }
        outcomes.push(output.status.success());
    }
    assert!(outcomes.is_sorted() && !outcomes[0] && outcomes[39], "more threads help: {outcomes:?}");
}
