//! The binary: results, manners, and what it says about bad input.

#[path = "../../tests/common/mod.rs"]
mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{next_item, ranking};
use fs_schedule::{Data, Input, InputKind, Schedule};
use serde_json::Value;
use tempfile::TempDir;

const RATINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/data/ml-latest-small/ratings.csv");

/// A folder with a schedule in it.
struct Place {
    folder: TempDir,
    schedule: PathBuf,
}

impl Place {
    fn new(schedule: &Schedule) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.json");
        common::write(&path, schedule);
        Self { folder, schedule: path }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn fsx(&self, arguments: &[&str]) -> Output {
        fsx(&self.schedule, arguments)
    }

    /// Runs and expects failure; what was said.
    fn fails(&self, arguments: &[&str]) -> String {
        let output = self.fsx(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert_eq!(said.matches("error:").count(), 1, "one clear error: {said}");
        assert!(!said.contains("panicked"), "{said}");
        said
    }

    /// Training on a CSV file with this text fails; what was said.
    fn csv_fails(text: &str) -> String {
        let place = Self::new(&next_item(4, 50, "d.csv"));
        fs::write(place.path("d.csv"), text).unwrap();
        place.fails(&[])
    }
}

fn fsx(schedule: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fsx")).arg("run").arg(schedule).args(arguments).output().unwrap()
}

fn contains(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "no `{part}` in: {said}");
    }
}

#[test]
fn a_run_writes_its_report() {
    let place = Place::new(&ranking(12, true));
    let report = place.path("r.json");
    let output = place.fsx(&["--ranks", "2", "--steps", "5", "--report", report.to_str().unwrap()]);
    let (out, said) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{said}");
    contains(&said, &["planned for 1 rank(s), running with 2"]);
    contains(&out, &["steps      5", "loss", "median", "tokens/s"]);
    let report: Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    assert_eq!((&report["ranks"], &report["steps"], &report["samples"]), (&2.into(), &5.into(), &60.into()));
    assert_eq!(report["loss"].as_array().unwrap().len(), 5);
    assert_eq!(report["loss_per_rank"][4].as_array().unwrap().len(), 2);
    assert_eq!(report["interrupted"], false);
    for field in ["median", "p10", "p90", "p99", "min", "max"] {
        assert!(report["step_ms"][field].as_f64().unwrap() > 0.0);
    }
    assert!(report["tokens_per_second"].as_f64().unwrap() > 0.0);
    assert!(report["peak_memory_bytes"].as_u64().unwrap() > report["memory"]["tables"].as_u64().unwrap());
    assert!(report["schedule"].as_str().unwrap().starts_with("sha256:"));
    let ops = report["ops"].as_array().unwrap();
    assert!(
        ops.iter()
            .any(|op| op["name"] == "attention.grad" && op["ms"].as_f64().unwrap() > 0.0 && op["count"] == 5)
    );
}

#[test]
fn json_goes_to_standard_output_and_evaluation_is_in_it() {
    let place = Place::new(&next_item(32, 9066, RATINGS));
    let output = place.fsx(&["--json", "--quiet", "--steps", "2"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["evaluation"]["users"], 671);
    for (who, seen) in
        [("model", "all"), ("model", "unseen"), ("popularity", "all"), ("popularity", "unseen")]
    {
        for metric in ["hr_10", "hr_50", "ndcg_10"] {
            let value = report["evaluation"][who][seen][metric].as_f64().unwrap();
            assert!((0.0..=1.0).contains(&value));
        }
    }
    let output = place.fsx(&["--json", "--quiet", "--steps", "1", "--no-evaluate"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["evaluation"].is_null());
}

#[test]
fn saved_values_are_where_training_starts_again() {
    let place = Place::new(&ranking(12, true));
    let (a, b) = (place.path("a.safetensors"), place.path("b.safetensors"));
    let (a, b) = (a.to_str().unwrap(), b.to_str().unwrap());
    assert!(place.fsx(&["--steps", "3", "--save", a]).status.success());
    let output = place.fsx(&["--ranks", "3", "--steps", "0", "--init", a, "--save", b]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read(a).unwrap(), fs::read(b).unwrap());
    assert_eq!(fs::read_dir(place.folder.path()).unwrap().count(), 3, "no temporary files stay");
    contains(&place.fails(&["--init", RATINGS]), &["ratings.csv is not a safetensors file"]);
    let mut larger = ranking(12, true);
    larger.tables[0].rows = 301;
    let other = Place::new(&larger);
    contains(&other.fails(&["--init", a]), &["`table.items` is F32 [300, 8], expected F32 [301, 8]"]);
}

/// What was used of a file, and what was not, on standard error and in the report.
#[test]
fn what_was_started_from_is_said() {
    let place = Place::new(&next_item(4, 50, "d.csv"));
    let lines =
        "userId,movieId,rating,timestamp\n1,31,2,10\n1,32,3,11\n1,33,3,12\n2,31,1,10\n2,33,2,11\n2,32,2,12\n";
    fs::write(place.path("d.csv"), lines).unwrap();
    let saved = place.path("v.safetensors");
    let saved = saved.to_str().unwrap();
    assert!(place.fsx(&["--steps", "3", "--save", saved]).status.success());
    // One item is new, one is gone.
    fs::write(place.path("d.csv"), lines.replace(",31,", ",77,")).unwrap();
    let output = place.fsx(&["--steps", "2", "--init", saved, "--json"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    contains(
        &said,
        &[
            "rows of 2 ids, found by id; training goes on after step 3",
            "lacks ids of the data, whose rows start as the model says: 77",
            "has ids that the data lacks, whose rows are kept: 31",
        ],
    );
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["first_step"], &report["steps"]), (&3.into(), &2.into()));
    let init = &report["init"];
    assert_eq!((&init["step"], &init["ids"]["matched"]["new"]), (&3.into(), &1.into()));
    assert!(init["used"].as_array().unwrap().iter().any(|name| name == "table.items"), "{init}");
    assert!(
        init["no_state"].as_array().unwrap().is_empty() && init["in_file"].as_array().unwrap().is_empty()
    );
    // Generated data has no vocabulary and needs none.
    let place = Place::new(&ranking(12, true));
    assert!(place.fsx(&["--steps", "1", "--save", saved]).status.success());
    let said = String::from_utf8(place.fsx(&["--steps", "1", "--init", saved]).stderr).unwrap();
    assert!(!said.contains("note:"), "{said}");
    contains(&said, &["ids of the data are row numbers; training goes on after step 1"]);
}

/// What inputs' `max` leaves out of training and of evaluation.
#[test]
fn tokens_outside_of_the_window_are_said() {
    let mut schedule = next_item(4, 50, "d.csv");
    schedule.lengths[0].max = 3;
    let place = Place::new(&schedule);
    // Of 9 items 8 are shown in evaluation and 7 trained on, each time the 3 last; of 4 items 3 and 2.
    let of = |(user, items)| (0..items).map(move |i| format!("{user},{i},1,{i}\n"));
    let lines: Vec<String> = [(1, 9), (2, 4)].into_iter().flat_map(of).collect();
    fs::write(place.path("d.csv"), format!("userId,movieId,rating,timestamp\n{}", lines.concat())).unwrap();
    let output = place.fsx(&["--steps", "1", "--report", place.path("r.json").to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    let cut = "44.4% of 9 tokens of training and 45.5% of 11 tokens of evaluation lie outside";
    contains(&said, &["note: ", cut]);
    contains(&String::from_utf8(output.stdout).unwrap(), &["window     44.4%"]);
    let report: Value = serde_json::from_str(&fs::read_to_string(place.path("r.json")).unwrap()).unwrap();
    let of = |what: &str| (&report["truncation"][what]["tokens"], &report["truncation"][what]["left_out"]);
    assert_eq!(of("training"), (&9.into(), &4.into()));
    assert_eq!(of("evaluation"), (&11.into(), &5.into()));
    // Nothing is said where nothing is left out.
    schedule.lengths[0].max = 20;
    common::write(&place.schedule, &schedule);
    let said = String::from_utf8(place.fsx(&["--steps", "1"]).stderr).unwrap();
    assert!(!said.contains("lie outside"), "{said}");
}

/// Whatever this machine has: without a driver that is what is missing, with one it is the data.
#[test]
fn without_a_gpu_nothing_begins() {
    let place = Place::new(&next_item(4, 50, "d.csv"));
    // Nothing is read either: the data file does not exist.
    let said = place.fails(&["--backend", "cuda"]);
    let missing =
        ["libcuda", "libnvrtc", "libcublas", "driver is too old", "driver does not start", "there is no GPU"];
    let without = said.contains("CUDA") && missing.iter().any(|m| said.contains(m));
    assert!(without || said.contains("d.csv"), "{said}");
    let output = place.fsx(&["--backend", "cuda", "--json"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    let output = place.fsx(&["--backend", "nonsense"]);
    assert_eq!(output.status.code(), Some(2));
    contains(&String::from_utf8_lossy(&output.stderr), &["nonsense", "possible values: cpu, cuda"]);
}

#[test]
fn wrong_numbers_of_ranks() {
    let place = Place::new(&ranking(12, true));
    contains(&place.fails(&["--ranks", "0"]), &["--ranks 0", "at least one"]);
    contains(&place.fails(&["--ranks", "5"]), &["12 samples", "5 ranks", "1, 2, 3, 4, 6, 12"]);
    assert_eq!(place.fsx(&["--steps", "1", "--epochs", "1"]).status.code(), Some(2));
    assert_eq!(place.fsx(&["--ranks", "-1"]).status.code(), Some(2));
}

#[test]
fn schedules_that_cannot_be_run() {
    let place = Place::new(&ranking(12, true));
    let said = |path: &Path| String::from_utf8(fsx(path, &[]).stderr).unwrap();
    contains(&said(&place.path("none.json")), &["error: cannot read schedule", "none.json"]);
    let text = fs::read_to_string(&place.schedule).unwrap();
    let changed = place.path("changed.json");
    fs::write(&changed, text.replacen("\"batch\": 12", "\"batch\": 16", 1)).unwrap();
    contains(&said(&changed), &["was changed after it was compiled"]);
    fs::write(
        &changed,
        text.replacen(&format!("\"version\": {}", fs_schedule::VERSION), "\"version\": 99", 1),
    )
    .unwrap();
    contains(&said(&changed), &["version 99", "compile the model again"]);
    fs::write(&changed, "").unwrap();
    contains(&said(&changed), &["it is empty"]);
    let mut large = ranking(12, true);
    large.tables[0].rows = 1 << 40;
    contains(&Place::new(&large).fails(&[]), &["table `items` is too large", "are available"]);
}

#[test]
fn files_that_cannot_be_written() {
    let place = Place::new(&ranking(12, true));
    contains(
        &place.fails(&["--report", "/dev/full"]),
        &["cannot write the report /dev/full", "No space left"],
    );
    contains(&place.fails(&["--save", "/dev/full"]), &["cannot write the values /dev/full", "No space left"]);
    // Found before training: nothing is computed first.
    let said = place.fails(&["--report", "/no/such/folder/r.json", "--steps", "1000000000"]);
    contains(&said, &["/no/such/folder/r.json", "No such file"]);
    let folder = place.folder.path().to_str().unwrap();
    contains(&place.fails(&["--report", folder, "--steps", "1000000000"]), &["is a directory"]);
}

#[test]
fn results_do_not_replace_inputs_or_each_other() {
    let place = Place::new(&ranking(12, true));
    let schedule = place.schedule.to_str().unwrap().to_owned();
    let before = fs::read(&place.schedule).unwrap();
    contains(&place.fails(&["--report", &schedule]), &["would hold both the schedule and the report"]);
    contains(&place.fails(&["--save", &schedule]), &["would hold both the schedule and the values"]);
    assert_eq!(fs::read(&place.schedule).unwrap(), before);
    let one = place.folder.path().join("one").to_str().unwrap().to_owned();
    contains(&place.fails(&["--report", &one, "--save", &one]), &["both the report and the values"]);
    // The schedule's own data as well, which no flag names.
    let fed = Place::new(&next_item(4, 50, "d.csv"));
    let data = fed.path("d.csv");
    fs::write(&data, "userId,movieId,rating,timestamp\n1,31,2.5,10\n1,32,3,11\n1,33,3,12\n").unwrap();
    let (before, path) = (fs::read(&data).unwrap(), data.to_str().unwrap());
    for what in ["--report", "--save", "--trace", "--status"] {
        contains(&fed.fails(&[what, path]), &["would hold both the schedule's data and the"]);
    }
    // Names of one file that is not there yet, and the files of a folder of traces.
    let at = |name: &str| place.path(name).to_str().unwrap().to_owned();
    fs::create_dir(place.path("sub")).unwrap();
    let said = place.fails(&["--report", &at("new"), "--save", &at("sub/../new")]);
    contains(&said, &["both the report and the values"]);
    let said = place.fails(&["--trace", &(at("sub") + "/"), "--report", &at("sub/rank-0.json")]);
    contains(&said, &["both the report and the trace"]);
    let mut profile = Command::new(env!("CARGO_BIN_EXE_fsx"));
    let output = profile.arg("profile").arg(&fed.schedule).arg("-o").arg(&data).output().unwrap();
    contains(&String::from_utf8(output.stderr).unwrap(), &["is read, so the profile needs another name"]);
    assert_eq!(fs::read(&data).unwrap(), before);
    // What can be kept is kept.
    contains(&place.fails(&["--report", "/dev/full", "--save", &one]), &["cannot write the report"]);
    assert!(fs::metadata(&one).is_ok_and(|m| m.len() > 0));
}

#[test]
fn ratings_that_cannot_be_used() {
    const HEAD: &str = "userId,movieId,rating,timestamp\n";
    let good = "1,31,2.5,10\n1,32,3,11\n1,33,3,12\n2,31,1,10\n2,32,2,11\n2,34,2,12\n";
    let with = |lines: &str| Place::csv_fails(&format!("{HEAD}{good}{lines}"));
    contains(&Place::csv_fails(""), &["d.csv is empty"]);
    contains(&Place::csv_fails(HEAD), &["header line but no interactions"]);
    contains(
        &Place::csv_fails("user_id,movieId,rating,timestamp\n1,2,3,4\n"),
        &["no column `userId`, did you mean `user_id`?", "user_id, movieId, rating, timestamp"],
    );
    contains(&with("3,31,nan,10\n"), &["line 8, column `rating`: `nan` is not a finite number"]);
    contains(&with("3,31,good,10\n"), &["line 8, column `rating`: `good` is not a number"]);
    contains(&with("3,31,2,later\n"), &["line 8, column `timestamp`: `later`"]);
    contains(&with("3,,2,10\n"), &["line 8, column `movieId`", "is empty"]);
    contains(&with("3,31\n"), &["line 8", "2 fields where the header has 4"]);
    contains(&with("77,31,2,10\n"), &["user `77` has 1 interaction(s), 3 are needed", "min_interactions 3"]);
    let many: Vec<String> = (0..60).map(|i| format!("1,{i},2,{i}\n")).collect();
    let many = many.concat();
    contains(
        &Place::csv_fails(&format!("{HEAD}{many}")),
        &["60 distinct items", "`items` has 50 rows", "at least 60"],
    );

    let place = Place::new(&next_item(4, 50, "d.csv"));
    contains(&place.fails(&[]), &["cannot read data file d.csv", "No such file", "--data FILE"]);
    fs::create_dir(place.path("d.csv")).unwrap();
    contains(&place.fails(&[]), &["is a directory"]);
    contains(&place.fails(&["--data", RATINGS]), &["9066 distinct items"]);

    let mut lenient = next_item(4, 50, "d.csv");
    if let Some(Data::Csv { min_interactions, .. }) = &mut lenient.data {
        *min_interactions = Some(3);
    }
    let place = Place::new(&lenient);
    fs::write(place.path("d.csv"), format!("{HEAD}{good}77,31,2,10\n")).unwrap();
    let output = place.fsx(&["--json", "-q"]);
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["samples"], &report["evaluation"]["users"]), (&2.into(), &2.into()));
    fs::write(place.path("d.csv"), format!("{HEAD}77,31,2,10\n")).unwrap();
    contains(&place.fails(&[]), &["no user has 3 interactions"]);
    lenient.inputs.push(Input { name: "click".into(), kind: InputKind::SampleLabel });
    let place = Place::new(&lenient);
    fs::write(place.path("d.csv"), format!("{HEAD}{good}")).unwrap();
    contains(&place.fails(&[]), &["input `click` cannot be filled", "safetensors"]);
}

#[test]
fn memory_stays_close_to_what_is_held() {
    let mut large = ranking(12, true);
    large.tables[0].rows = 6_000_000;
    large.tables[0].init = fs_schedule::Init::Hash { scale: 0.05, salt: 0 };
    let output = Place::new(&large).fsx(&["--ranks", "2", "--steps", "3", "--json", "-q"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let memory = &report["memory"];
    assert_eq!((&memory["tables"], &memory["optimizer_state"]), (&192_000_000.into(), &24_000_000.into()));
    assert!(memory["peak_ratio"].as_f64().unwrap() < 1.15, "{memory}");
}

#[cfg(unix)]
#[test]
fn an_interrupt_stops_after_the_step() {
    use std::process::Stdio;
    let place = Place::new(&ranking(12, true));
    let report = place.path("r.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fsx"));
    command
        .arg("run")
        .arg(&place.schedule)
        .args(["--ranks", "3", "--steps", "100000000", "--report"])
        .arg(&report);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(700));
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    contains(&String::from_utf8(output.stdout).unwrap(), &["of 100000000 (interrupted)"]);
    let report: Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    assert_eq!(report["interrupted"], true);
    assert_eq!(report["loss"].as_array().unwrap().len() as u64, report["steps"].as_u64().unwrap());
    assert!(report["steps"].as_u64().unwrap() > 0);
}

#[test]
fn a_loss_that_is_no_number_ends_the_run() {
    let place = Place::new(&ranking(12, true));
    let saved = place.fsx(&["--steps", "2", "--save", place.path("m").to_str().unwrap()]);
    assert!(saved.status.success());
    let before = fs::read(place.path("m")).unwrap();
    let mut schedule = ranking(12, true);
    schedule.settings.optimizer =
        fs_schedule::DenseOptimizer::Sgd { lr: 1e30, momentum: 0.0, weight_decay: 0.0 };
    common::write(&place.schedule, &schedule);
    for ranks in ["1", "3"] {
        let (m, r, c) = (place.path("m"), place.path("r"), place.path(ranks));
        let [m, r, c] = [&m, &r, &c].map(|path| path.to_str().unwrap());
        let given = ["--ranks", ranks, "--steps", "100000000", "--save", m, "--report", r];
        let said = place.fails(&[&given[..], &["--checkpoint", c, "--every", "1"]].concat());
        let report: Value = serde_json::from_slice(&fs::read(r).unwrap()).unwrap();
        let losses = report["loss"].as_array().unwrap();
        let first = losses.iter().position(|loss| loss.as_f64().is_none()).unwrap();
        // How soon depends on the machine.
        assert!(first > 0 && losses.len() < 1_000_000, "{}", losses.len());
        assert_eq!(report["interrupted"], true);
        let at = format!("the loss of step {first} is ");
        contains(&said, &[&at, "nothing was saved to", "smaller learning rate", "--allow-nan"]);
        let newest = &report["checkpoints"]["newest"];
        let usable = newest.as_u64().is_some_and(|newest| newest <= first as u64);
        assert_eq!(said.contains("--resume"), usable, "{said}");
        if usable {
            contains(&said, &[&format!("goes on from the checkpoint of step {newest};")]);
        }
        // The same from there.
        let again = place.fails(&["--ranks", ranks, "--steps", "100000000", "--resume", c]);
        contains(&again, &[&at]);
    }
    assert_eq!(fs::read(place.path("m")).unwrap(), before, "what was saved before stays");
    let all = place.fsx(&["--steps", "9", "--allow-nan", "--save", place.path("n").to_str().unwrap()]);
    let said = String::from_utf8(all.stderr).unwrap();
    assert!(all.status.success() && place.path("n").exists(), "{said}");
    assert_eq!(said.matches("warning: the loss of step").count(), 1, "{said}");
}

#[test]
fn comparing() {
    let (a, b) = (Place::new(&ranking(12, true)), Place::new(&next_item(4, 50, "d.csv")));
    let compare = |first: &Path, second: &Path, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fsx"));
        command.arg("compare").args([first, second]).args(["--steps", "4", "--block", "2"]).args(more);
        command.output().unwrap()
    };
    let output = compare(&a.schedule, &a.schedule, &["--ranks", "2", "--link", "1 GB/s, 10 us", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&found["equal"], &found["steps"]), (&Value::from(true), &Value::from(4)));
    let said = String::from_utf8(compare(&a.schedule, &a.schedule, &[]).stdout).unwrap();
    contains(
        &said,
        &["4 steps on 1 rank(s), in turns", "equal    losses, tables, parameters and optimizer states"],
    );
    let output = compare(&a.schedule, &b.schedule, &[]);
    assert_eq!(output.status.code(), Some(1));
    contains(&String::from_utf8(output.stderr).unwrap(), &["cannot be compared: their "]);
    let output = compare(&a.schedule, &a.schedule, &["--link", "0 Mbit/s"]);
    assert_eq!(output.status.code(), Some(2));
    contains(&String::from_utf8(output.stderr).unwrap(), &["nothing gets through less than a byte a second"]);
}

#[test]
fn profiling() {
    let place = Place::new(&ranking(12, true));
    let profile = place.path("p.json");
    let measure = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fsx"));
        command.arg("profile").arg(&place.schedule).arg("-o").arg(&profile).args(["--steps", "6"]).args(more);
        command.output().unwrap()
    };
    let output = measure(&["--ranks", "2", "--link", "1 GB/s, 10 us"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    contains(
        &String::from_utf8(output.stdout).unwrap(),
        &["6 steps of", "link", "fsc compile MODEL.fs --profile"],
    );
    let found = fs_schedule::profile::read(&profile).unwrap();
    assert_eq!((found.ranks, found.steps), (2, 6));
    assert!(found.transfers.link.is_some());
    assert_eq!(found.ops.len(), ranking(12, true).train.ops.len());
    // One rank has no link to measure.
    let alone = measure(&["--ranks", "1", "--link", "200 Mbit/s, 5 ms"]);
    contains(&String::from_utf8(alone.stderr).unwrap(), &["one rank has nobody to talk to"]);
    let found = fs_schedule::profile::read(&profile).unwrap();
    assert_eq!((found.link, found.transfers.link), (None, None));
    let before = fs::read(&profile).unwrap();
    // What cannot be measured leaves the old profile as it is.
    let bad: [(&[&str], i32, &str); 4] = [
        (&["--link", "0 Mbit/s"], 2, "nothing gets through less than a byte a second"),
        (&["--ranks", "5"], 1, "does not divide over 5 ranks"),
        (&["--ranks", "0"], 1, "at least one rank"),
        (&["--steps", "0"], 2, "steps"),
    ];
    for (arguments, status, says) in bad {
        let output = measure(arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {output:?}");
        contains(&String::from_utf8(output.stderr).unwrap(), &[says]);
        assert_eq!(fs::read(&profile).unwrap(), before);
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_fsx"));
    let output = command.arg("profile").arg(&place.schedule).arg("-o").arg(&place.schedule).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    contains(&String::from_utf8(output.stderr).unwrap(), &["is read, so the profile needs another name"]);
}

#[test]
fn comparing_more_than_two() {
    let place = Place::new(&ranking(12, true));
    let path = place.schedule.as_path();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fsx"));
    command.arg("compare").args([path, path, path]).args(["--steps", "4", "--block", "2", "--json"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["schedules"].as_array().unwrap().len(), 3);
    assert_eq!(found["first_ms"], found["schedules"][0]["step_ms"]);
    assert_eq!(found["ratio"], found["schedules"][1]["ratio"]);
    let one = Command::new(env!("CARGO_BIN_EXE_fsx")).arg("compare").arg(path).output().unwrap();
    assert_eq!(one.status.code(), Some(2), "one schedule is no comparison");
}
