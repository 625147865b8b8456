//! Where a run finds its data, and what it says about a file of initial values that fits only in part.

#[path = "../../tests/common/mod.rs"]
mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use common::{next_item, ranking};
use fs_schedule::Schedule;

fn fsx(folder: &Path, arguments: &[&str]) -> Output {
    let mut fsx = Command::new(env!("CARGO_BIN_EXE_fsx"));
    fsx.current_dir(folder).arg("run").args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Interactions of one user with so many items.
fn log(items: usize) -> String {
    let lines: Vec<String> = (0..items).map(|i| format!("1,{i},1,{i}")).collect();
    format!("userId,movieId,rating,timestamp\n{}\n", lines.join("\n"))
}

#[test]
fn data_is_looked_for_beside_the_schedule_then_in_the_working_directory() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for folder in ["out", "here", "far"] {
        fs::create_dir_all(at(folder)).unwrap();
    }
    let schedule: Schedule = next_item(4, 50, "data.csv");
    common::write(&at("out/s.json"), &schedule);
    let run = |folder: &str, schedule: &str| fsx(&at(folder), &[schedule, "--steps", "0", "--no-evaluate"]);

    let missing = said(&run("here", "../out/s.json"));
    for part in ["data.csv", "the schedule's folder", "working directory", "--data FILE"] {
        assert!(missing.contains(part), "{missing}");
    }
    // Too many items for the table tell which file was read.
    fs::write(at("here/data.csv"), log(60)).unwrap();
    assert!(said(&run("here", "../out/s.json")).contains("60 distinct items"));
    fs::write(at("out/data.csv"), log(70)).unwrap();
    assert!(said(&run("here", "../out/s.json")).contains("70 distinct items"), "beside the schedule first");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(at("out/s.json"), at("far/link.json")).unwrap();
        assert!(said(&run("far", "link.json")).contains("70 distinct items"), "where the link leads");
    }
    // A file that is named now is where the user says, whatever lies beside the schedule.
    let given = fsx(&at("here"), &["../out/s.json", "--data", "data.csv", "--steps", "0"]);
    assert!(said(&given).contains("60 distinct items"), "{}", said(&given));
}

#[test]
fn what_initial_values_do_not_match_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let schedule = ranking(12, true);
    common::write(&at("s.json"), &schedule);
    assert!(fsx(dir.path(), &["s.json", "--steps", "1", "--save", "all.safetensors"]).status.success());
    let whole = fsx(dir.path(), &["s.json", "--steps", "0", "--init", "all.safetensors"]);
    assert!(!said(&whole).contains("note:"), "everything matches: {}", said(&whole));

    // The same file with two tensors under other names.
    let mut bytes = fs::read(at("all.safetensors")).unwrap();
    let (table, parameter) = (&schedule.tables[0].name, &schedule.parameters[0].name);
    let renamed = [format!("table.{table}"), parameter.clone()];
    for name in &renamed {
        let quoted = format!("\"{name}\"");
        let place = bytes.windows(quoted.len()).position(|w| w == quoted.as_bytes()).unwrap();
        bytes[place + 1] = b'X';
    }
    fs::write(at("some.safetensors"), bytes).unwrap();
    let output = fsx(dir.path(), &["s.json", "--steps", "0", "--init", "some.safetensors"]);
    assert!(output.status.success());
    let told = said(&output);
    let notes: Vec<&str> = told.lines().filter(|l| l.starts_with("note: some.safetensors")).collect();
    assert_eq!(notes.len(), 2, "{notes:?}");
    for name in &renamed {
        assert!(
            notes[0].contains("no place for") && notes[0].contains(&format!("X{}", &name[1..])),
            "{notes:?}"
        );
        assert!(notes[1].contains("no values for") && notes[1].contains(name.as_str()), "{notes:?}");
    }
    // What may undo a training is said to all; a file that fits needs no words.
    for (file, notes) in [("some", notes), ("all", vec![])] {
        let file = format!("{file}.safetensors");
        let quiet = fsx(dir.path(), &["s.json", "--steps", "0", "--init", &file, "--quiet"]);
        assert_eq!(said(&quiet).lines().collect::<Vec<_>>(), notes);
    }
}

/// Initial values are no data.
#[test]
fn a_file_of_initial_values_is_called_so() {
    let dir = tempfile::tempdir().unwrap();
    common::write(&dir.path().join("s.json"), &ranking(12, true));
    fs::write(dir.path().join("empty"), "").unwrap();
    fs::create_dir(dir.path().join("folder")).unwrap();
    fs::write(dir.path().join("text"), "no tensors").unwrap();
    assert!(Command::new("mkfifo").arg(dir.path().join("pipe")).status().unwrap().success());
    for (name, why) in [
        ("missing", "No such file"),
        ("empty", "is empty"),
        ("folder", "there is no checkpoint in folder"),
        ("text", "is not a safetensors file"),
        ("pipe", "plain file"),
    ] {
        let mut fsx = Command::new("timeout");
        fsx.args(["20", env!("CARGO_BIN_EXE_fsx"), "run", "s.json", "--steps", "0", "--init", name]);
        let output = fsx.current_dir(dir.path()).output().unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{name}: {said}");
        assert!(said.contains("initial values") && said.contains(why), "{name}: {said}");
        assert!(!said.contains("data file") && !said.contains("--data"), "{name}: {said}");
    }
}

/// Nor does watching wait for a pipe that nobody fills.
#[test]
fn a_pipe_is_no_status() {
    let dir = tempfile::tempdir().unwrap();
    assert!(Command::new("mkfifo").arg(dir.path().join("pipe")).status().unwrap().success());
    let mut fsx = Command::new("timeout");
    fsx.args(["20", env!("CARGO_BIN_EXE_fsx"), "top", "--once", "pipe"]);
    let output = fsx.current_dir(dir.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("pipe, not a file"), "{}", said(&output));
}

/// As a full disk: no part of a file is left, nor a folder that was made for it.
#[cfg(target_os = "linux")]
#[test]
fn a_limit_of_files_ends_in_an_error() {
    let dir = tempfile::tempdir().unwrap();
    common::write(&dir.path().join("s.json"), &ranking(12, true));
    for (option, path) in [("--save", "m.safetensors"), ("--report", "r.json"), ("--trace", "new/traces/")] {
        let script =
            format!("ulimit -f 1; exec \"$0\" run s.json -q --steps 30 --no-evaluate {option} {path}");
        let mut command = Command::new("bash");
        command.args(["-c", &script]).arg(env!("CARGO_BIN_EXE_fsx")).current_dir(dir.path());
        let output = command.output().unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{option}: {:?} {said}", output.status);
        assert!(said.contains("cannot write") && said.contains("too large"), "{option}: {said}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "{option}");
    }
}

/// What is written goes where a link leads, so that is where it is tried before training.
#[test]
fn a_link_to_nowhere_is_found_before_training() {
    let dir = tempfile::tempdir().unwrap();
    common::write(&dir.path().join("s.json"), &ranking(12, true));
    std::os::unix::fs::symlink("no-such-folder/m.safetensors", dir.path().join("m.safetensors")).unwrap();
    for option in ["--save", "--report"] {
        let output =
            fsx(dir.path(), &["s.json", "--steps", "1", "--status", "now.json", option, "m.safetensors"]);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("m.safetensors"), "{said}");
        // What is there from the first step on.
        assert!(!dir.path().join("now.json").exists(), "{option}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[cfg(target_os = "linux")]
#[test]
fn a_limit_on_address_space_is_seen_before_memory_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let mut schedule = ranking(12, true);
    // 2 GiB of values, where 1 GiB may be taken: most machines have that free.
    schedule.tables[0].rows = (2 << 30) / 4 / u64::from(schedule.tables[0].dim);
    common::write(&dir.path().join("s.json"), &schedule);
    let fsx = env!("CARGO_BIN_EXE_fsx");
    let script = format!("ulimit -v 1048576 && exec '{fsx}' run s.json --steps 0");
    let output = Command::new("bash").current_dir(dir.path()).args(["-c", &script]).output().unwrap();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("does not fit") || said.contains("available"), "{said}");
}

/// Whatever is missing, of what was looked at before or of what was not: it ends in one line.
#[cfg(target_os = "linux")]
#[test]
fn a_limit_on_address_space_ends_in_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut schedule = ranking(12, true);
    schedule.tables[0].rows = (64 << 20) / 4 / u64::from(schedule.tables[0].dim);
    common::write(&dir.path().join("s.json"), &schedule);
    let (mut trained, mut refused, mut aborted) = (0, 0, 0);
    for limit in (60_000..900_000).step_by(47_000) {
        let script =
            format!("ulimit -v {limit}; exec \"$0\" run s.json -q --ranks 2 --steps 2 --save m.safetensors");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).arg(env!("CARGO_BIN_EXE_fsx")).current_dir(dir.path());
        let output = command.output().unwrap();
        let said = said(&output);
        match output.status.code() {
            Some(0) => trained += 1,
            Some(1) => {
                refused += 1;
                assert!(said.starts_with("error: ") && said.lines().count() <= 2, "{limit}: {said}");
            }
            // Rust's runtime and the C library take memory for each thread, and know no other way to end.
            None if said.contains("fatal runtime error") || said.contains("Fatal glibc error") => {
                aborted += 1;
                continue;
            }
            _ => panic!("{limit}: {:?}: {said}", output.status),
        }
        let names = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        assert_eq!(names.filter(|name| name.contains(".tmp")).count(), 0, "{limit}");
    }
    assert!(trained > 3 && refused > 3 && aborted < 2, "{trained} {refused} {aborted}");
}
