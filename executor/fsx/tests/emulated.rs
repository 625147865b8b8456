//! `fsx run` on a GPU, which is emulated (cargo feature `emulated`): the way of a run on a real one.

#[path = "../../tests/common/mod.rs"]
mod common;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{next_item, ranking};
use fs_schedule::Schedule;
use serde_json::Value;
use tempfile::TempDir;

/// A folder with a schedule in it.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new(schedule: &Schedule) -> Option<Self> {
        if Command::new("g++").arg("--version").output().is_err() {
            eprintln!("skipped: g++ is not installed, and compiles the kernels");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        common::write(&folder.path().join("s.json"), schedule);
        Some(Self { folder })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fsx"));
        command.current_dir(self.folder.path()).args(["run", "s.json"]).args(arguments);
        command.env("FS_EMULATED", Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated"));
        command
    }

    fn fsx(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn report(&self, arguments: &[&str]) -> Value {
        let output = self.fsx(&[&["--json", "--quiet"], arguments].concat());
        assert!(output.status.success(), "{}", said(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn losses(report: &Value) -> Vec<f64> {
    report["loss"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap_or(f64::NAN)).collect()
}

/// Histories of some users.
fn visits() -> String {
    let mut text = String::from("userId,movieId,rating,timestamp\n");
    for user in 0..11 {
        for at in 0..4 + user % 4 {
            writeln!(text, "{user},{},5,{at}", (user * 7 + at * at * 5) % 40).unwrap();
        }
    }
    text
}

#[test]
fn a_run_is_near_the_cpus() {
    let Some(place) = Place::new(&next_item(4, 50, "d.csv")) else { return };
    fs::write(place.path("d.csv"), visits()).unwrap();
    let given = ["--ranks", "2", "--steps", "5"];
    let own = place.report(&[&given[..], &["--backend", "emulated", "--save", "m"]].concat());
    let cpu = place.report(&[&given[..], &["--backend", "cpu"]].concat());
    let (found, expected) = (losses(&own), losses(&cpu));
    assert_eq!(found.len(), 5);
    for (a, b) in found.iter().zip(&expected) {
        assert!((a - b).abs() <= 1e-4 * b.abs(), "{found:?}, {expected:?} on the CPU");
    }
    assert_eq!(own["evaluation"]["users"], cpu["evaluation"]["users"]);
    // What it saved is what the CPU goes on from.
    let next = place.report(&["--steps", "1", "--init", "m", "--ranks", "2"]);
    let all = place.report(&["--steps", "6", "--ranks", "2"]);
    let (a, b) = (losses(&next)[0], losses(&all)[5]);
    assert!((a - b).abs() <= 1e-4 * b.abs(), "{a}, {b} on the CPU");
}

#[test]
fn a_run_goes_on_from_its_checkpoint() {
    let Some(place) = Place::new(&ranking(6, true)) else { return };
    let whole = place.report(&["--backend", "emulated", "--steps", "6"]);
    let from = ["--backend", "emulated", "--checkpoint", "c", "--resume", "c", "--every", "2"];
    let first = place.report(&[&from[..], &["--steps", "3"]].concat());
    let second = place.report(&[&from[..], &["--steps", "6"]].concat());
    let parts: Vec<f64> = losses(&first).into_iter().chain(losses(&second)).collect();
    assert_eq!(parts, losses(&whole));
}

#[test]
fn a_loss_that_is_no_number_ends_the_run() {
    let mut schedule = ranking(6, true);
    schedule.settings.optimizer =
        fs_schedule::DenseOptimizer::Sgd { lr: 1e30, momentum: 0.0, weight_decay: 0.0 };
    let Some(place) = Place::new(&schedule) else { return };
    let error = |backend: &str| {
        let output = place.fsx(&["--backend", backend, "--steps", "50", "--save", "m"]);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(!place.path("m").exists());
        let line = said.lines().find(|line| line.starts_with("error: the loss of step"));
        line.unwrap_or_else(|| panic!("{said}")).to_owned()
    };
    assert_eq!(error("emulated"), error("cpu"));
    let all = place.report(&["--backend", "emulated", "--steps", "5", "--allow-nan"]);
    assert_eq!(losses(&all).len(), 5);
}

#[test]
fn a_gpu_that_is_lost_ends_the_run() {
    let Some(place) = Place::new(&ranking(6, true)) else { return };
    // It makes some for each event before it begins.
    for calls in [3, 5_000, 15_000] {
        let given =
            ["--backend", "emulated", "--ranks", "2", "--steps", "50", "--save", "m", "--report", "r"];
        let output = place.command(&given).env("FS_EMULATED_LOST", calls.to_string()).output().unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert_eq!(said.matches("error:").count(), 1, "{said}");
        assert!(said.contains("the GPU is lost"), "{said}");
        if calls > 300 {
            assert!(said.contains("rank ") && said.contains(" failed in `"), "{said}");
        }
        assert!(!place.path("m").exists(), "{said}");
    }
}

#[test]
fn a_number_of_calls_that_is_none_is_refused() {
    let Some(place) = Place::new(&ranking(6, true)) else { return };
    for given in ["abc", "-1", "", "1.5"] {
        let mut command = place.command(&["--backend", "emulated", "--steps", "1"]);
        let output = command.env("FS_EMULATED_LOST", given).output().unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        let sentence = "FS_EMULATED_LOST is the number of calls after which the device is lost";
        assert!(said.contains(sentence) && said.contains(&format!("not `{given}`")), "{said}");
    }
}

#[test]
fn compiled_kernels_that_are_not_whole_are_built_anew() {
    let Some(place) = Place::new(&ranking(6, true)) else { return };
    let given = ["--backend", "emulated", "--steps", "1"];
    let expected = losses(&place.report(&given));
    let (from, folder) = (Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated"), place.path("emulated"));
    fs::create_dir(&folder).unwrap();
    let mut cut = Vec::new();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        // All libraries, and one of the objects that they are made of.
        if name.starts_with("kernels-") || name.starts_with("sort.cu-") {
            let bytes = fs::read(&path).unwrap();
            let half = &bytes[..bytes.len() / 2];
            fs::write(folder.join(name), half).unwrap();
            cut.push((folder.join(name), half.len()));
        } else if path.is_file() {
            fs::copy(&path, folder.join(name)).unwrap();
        }
    }
    let mut command = place.command(&[&["--json", "--quiet"], &given[..]].concat());
    let output = command.env("FS_EMULATED", &folder).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(losses(&serde_json::from_slice(&output.stdout).unwrap()), expected);
    let length = |path: &Path| fs::metadata(path).unwrap().len() as usize;
    let anew = |what: &str| {
        let of = |path: &Path| path.file_name().unwrap().to_str().unwrap().starts_with(what);
        cut.iter().any(|(path, half)| of(path) && length(path) > *half)
    };
    assert!(anew("kernels-") && anew("sort.cu-"), "{cut:?}");
}

/// What carried out copies is told by operation; together they are what the schedule's transfers and the host's lists take.
#[test]
fn it_is_told_what_carried_out_copies() {
    let schedule = ranking(6, true);
    let Some(place) = Place::new(&schedule) else { return };
    let report = place.report(&["--backend", "emulated", "--ranks", "2", "--steps", "4", "--copies"]);
    let copies = &report["copies"];
    assert_eq!((copies["device"].as_str(), copies["copy_engines"].as_u64()), (Some("emulated"), Some(2)));
    let transfers = copies["transfers"].as_array().unwrap();
    let of = |name: &str, way: &str| -> Vec<&Value> {
        transfers.iter().filter(|t| t["operation"] == name && t["way"] == way).collect()
    };
    let rows = schedule.train.ops.iter().find(|op| op.action.name() == "all_to_all_rows").unwrap();
    // Rows go to the outbox and from there to their targets, never by way of the host.
    let [within] = of(&rows.name, "within the device")[..] else { panic!("{copies}") };
    assert_eq!(within["by"], "multiprocessors");
    assert!(within["bytes"].as_u64() > Some(0) && within["nanoseconds"].as_u64() > Some(0), "{within}");
    assert!(of(&rows.name, "to the host").is_empty() && of(&rows.name, "to the device").is_empty());
    let load = &schedule.train.ops[0];
    let [up] = of(&load.name, "to the device")[..] else { panic!("{copies}") };
    assert_eq!(up["by"], "a copy engine (channel 0)");
    assert!(transfers.iter().any(|t| t["way"] == "to the host" && t["by"] == "a copy engine (channel 1)"));
    // Without being asked nothing is told, and a CPU has nothing to tell.
    assert!(place.report(&["--backend", "emulated", "--steps", "1"])["copies"].is_null());
    let output = place.fsx(&["--copies", "--steps", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("ask for them with `--backend cuda`"), "{}", said(&output));
}
