//! `fsx run --trace` and `--status`: files that are there at the end, and what is said about wishes that cannot be.

#[path = "../../tests/common/mod.rs"]
mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::ranking;
use serde_json::Value;
use tempfile::TempDir;

struct Place {
    folder: TempDir,
    schedule: PathBuf,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let schedule = folder.path().join("s.json");
        common::write(&schedule, &ranking(12, true));
        Self { folder, schedule }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn fsx(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fsx"));
        command.arg("run").arg(&self.schedule).args(["--ranks", "2"]).args(arguments).output().unwrap()
    }

    /// Runs 30 steps.
    fn run(&self, arguments: &[&str]) -> Output {
        let output = self.fsx(&[&["--steps", "30"], arguments].concat());
        assert!(output.status.success(), "{output:?}");
        output
    }

    /// Expects an error, and that nothing was trained or written.
    fn fails(&self, status: i32, arguments: &[&str]) -> String {
        let before = fs::read_dir(self.folder.path()).unwrap().count();
        let output = self.fsx(&[&["--steps", "30"], arguments].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(status), 0), "{said}");
        assert_eq!(said.matches("error:").count(), 1, "{said}");
        assert_eq!(fs::read_dir(self.folder.path()).unwrap().count(), before, "{said}");
        said
    }
}

fn steps(path: impl AsRef<Path>) -> Vec<u64> {
    let trace = fs_schedule::trace::read(path.as_ref()).unwrap_or_else(|e| panic!("{e}"));
    let mut steps: Vec<u64> = trace.executions().map(|e| e.step).collect();
    steps.sort_unstable();
    steps.dedup();
    steps
}

fn contains(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "no `{part}` in: {said}");
    }
}

#[test]
fn traces_of_chosen_and_usual_steps() {
    let place = Place::new();
    let file = place.path("t.json");
    place.run(&["--trace", &file, "--trace-steps", "7..11"]);
    assert_eq!(steps(&file), [7, 8, 9, 10]);
    place.run(&["--trace", &file, "--trace-steps", "29..30"]);
    assert_eq!(steps(&file), [29], "an older trace is replaced");
    place.run(&["--trace", &file]);
    assert_eq!(steps(&file), (10..30).collect::<Vec<_>>());
    for (length, usual) in [("1", 0..1), ("2", 0..2), ("25", 5..25), ("100", 10..30)] {
        let output = place.fsx(&["--steps", length, "--trace", &file]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(steps(&file), usual.collect::<Vec<_>>(), "of {length}");
    }
    let folder = place.path("ranks/");
    place.run(&["--trace", &folder, "--trace-steps", "7..9"]);
    place.run(&["--trace", &place.path("ranks"), "--trace-steps", "8..9"]);
    assert_eq!(steps(&folder), [8], "a folder that is there takes the next trace");
    let mut files: Vec<_> =
        fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    assert_eq!(files, ["rank-0.json", "rank-1.json"]);
    assert_eq!(fs::read_dir(place.folder.path()).unwrap().count(), 3, "no temporary files stay");
}

#[test]
fn the_report_says_what_was_traced() {
    let place = Place::new();
    let output = place.run(&["--trace", &place.path("t.json"), "--trace-steps", "7..11", "--json", "-q"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let traced = &report["traced"];
    assert_eq!((&traced["first_step"], &traced["end_step"]), (&7.into(), &11.into()));
    for rank in traced["ranks"].as_array().unwrap() {
        let share = |name: &str| rank[name].as_f64().unwrap();
        for name in ["idle", "compute", "communication", "overlap"] {
            assert!((0.0..=1.0).contains(&share(name)), "{rank}");
        }
        assert!((share("accounted_compute") + share("accounted_bubble") - 1.0).abs() < 1e-9, "{rank}");
        let covered = share("compute") + share("communication") * (1.0 - share("overlap")) + share("idle");
        assert!((covered - 1.0).abs() < 1e-9, "{rank}");
    }
    let output = place.run(&["--json", "-q"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["traced"].is_null());
}

#[test]
fn wishes_that_cannot_be() {
    let place = Place::new();
    let file = place.path("t.json");
    let with = |steps: &str, status: i32| place.fails(status, &["--trace", &file, "--trace-steps", steps]);
    contains(&with("20..31", 1), &["--trace-steps 20..31 goes beyond the run", "30 steps are 0..30"]);
    contains(&with("30..31", 1), &["goes beyond the run"]);
    contains(&with("9..9", 2), &["no step lies in 9..9"]);
    contains(&with("9..8", 2), &["no step lies in 9..8"]);
    contains(&with("9-12", 2), &["expected two step numbers A..B"]);
    contains(&place.fails(2, &["--trace-steps", "3..4"]), &["--trace <FILE|FOLDER/>"]);
    contains(
        &place.fails(1, &["--trace", &place.path("no/t.json")]),
        &["cannot write the trace", "no/t.json"],
    );
    let schedule = place.schedule.to_str().unwrap();
    contains(&place.fails(1, &["--trace", schedule]), &["would hold both the schedule and the trace"]);
    contains(&place.fails(1, &["--trace", &file, "--report", &file]), &["the report and the trace"]);
    // The folder of the schedule is full of what looks like traces.
    let here = place.folder.path().to_str().unwrap();
    contains(&place.fails(1, &["--trace", here]), &["s.json is not of this run", "another folder"]);
    let output = place.fsx(&["--steps", "0", "--trace", &file]);
    contains(&String::from_utf8(output.stderr).unwrap(), &["--trace needs a run of at least one step"]);
    let output = place.fsx(&["--steps", "100000000", "--trace", &file, "--trace-steps", "0..100000000"]);
    assert_eq!(output.status.code(), Some(1));
    contains(&String::from_utf8(output.stderr).unwrap(), &["is too long", "trace at most"]);
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_has_its_trace() {
    use std::process::Stdio;
    let place = Place::new();
    for (wish, held) in [("10..40", true), ("99999998..99999999", false)] {
        let file = place.path(if held { "a.json" } else { "b.json" });
        let mut command = Command::new(env!("CARGO_BIN_EXE_fsx"));
        command.arg("run").arg(&place.schedule).args(["--ranks", "2", "--steps", "100000000"]);
        command.args(["--trace", &file, "--trace-steps", wish]);
        let status = place.path(if held { "a.status" } else { "b.status" });
        command.args(["--status", &status]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Until it has done more steps than shall be traced, however slow the machine is.
        let done = || {
            let text = std::fs::read_to_string(&status).ok()?;
            serde_json::from_str::<serde_json::Value>(&text).ok()?["view"]["done"].as_u64()
        };
        let began = std::time::Instant::now();
        while done().is_none_or(|steps| steps < 100) {
            assert!(began.elapsed().as_secs() < 120, "{:?} steps are done", done());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(130), "{said}");
        assert_eq!(said.contains("note: the run ended early: the trace holds no step of"), !held, "{said}");
        assert_eq!(steps(&file).len(), if held { 30 } else { 0 });
    }
}

#[test]
fn the_status_of_a_run() {
    let place = Place::new();
    let status = place.path("status.json");
    place.run(&["--status", &status, "-q"]);
    let top =
        |path: &str| Command::new(env!("CARGO_BIN_EXE_fsx")).args(["top", "--once", path]).output().unwrap();
    let output = top(&status);
    assert!(output.status.success(), "{output:?}");
    let shown = String::from_utf8(output.stdout).unwrap();
    contains(&shown, &["serial on 2 rank(s)", "done 30/30", "loss ", "bubble   █ compute", "engines  host"]);
    let output = top(place.schedule.to_str().unwrap());
    assert_eq!(output.status.code(), Some(1));
    contains(&String::from_utf8(output.stderr).unwrap(), &["s.json is not the status of a run"]);
    contains(&place.fails(1, &["--status", &place.path("no/s.json")]), &["cannot write the status"]);
}
