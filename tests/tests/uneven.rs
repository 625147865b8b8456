//! Balance and bad input, through the binaries: what cannot be balanced is said at its place, what need not be costs nothing.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use fs_schedule::Schedule;
use fs_schedule::file;
use fs_tests::binary;
use serde_json::Value;
use tempfile::TempDir;

/// A folder for a model, its schedule and its report.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(binary(program));
        command.args(arguments).current_dir(self.0.path()).output().expect("it runs")
    }

    fn compile(&self, model: &str, ranks: &str) -> Output {
        fs::write(self.path("m.fs"), model).expect("the model is written");
        self.run("fsc", &["compile", "m.fs", "--strategy", "pec", "--ranks", ranks, "-o", "m.json"])
    }

    /// Compiles, changes the schedule and trains; the summary and the report.
    fn trains(&self, model: &str, ranks: &str, change: impl FnOnce(&mut Schedule)) -> (String, Value) {
        let compiled = self.compile(model, ranks);
        assert!(compiled.status.success(), "{}", text(&compiled.stderr));
        self.change(change);
        let run = self.run("fsx", &["run", "m.json", "--report", "r.json"]);
        assert!(run.status.success(), "{}", text(&run.stderr));
        let report = fs::read_to_string(self.path("r.json")).expect("a report");
        let report: Value = serde_json::from_str(&report).expect("JSON");
        (text(&run.stdout), report["balance"].clone())
    }

    fn change(&self, change: impl FnOnce(&mut Schedule)) {
        let path = self.path("m.json");
        let bytes = fs::read(&path).expect("a schedule");
        let mut schedule = file::parse(&path, &bytes, true).unwrap_or_else(|e| panic!("{e}"));
        change(&mut schedule);
        schedule.reference.digest = schedule.reference_digest();
        fs::write(path, file::to_text(&schedule)).expect("the schedule is written");
    }
}

/// Changes a setting.
type Change = fn(&mut fs_schedule::Balance);

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// One clear error, and what it says.
fn fails(output: &Output, parts: &[&str]) {
    let said = text(&output.stderr);
    assert!(!output.status.success() && !said.contains("panicked"), "{said}");
    for part in parts {
        assert!(said.contains(part), "no `{part}` in: {said}");
    }
}

fn model(lengths: &str, batch: u32, balance: &str) -> String {
    format!(
        "model small {{
  table a {{ rows 60  dim 8  init normal(0, 0.5)  optimizer adagrad(lr: 0.05) }}
  input x: ids(a) {{ max 9 }}
  input click: label like x
  let h = lookup(x)
  let g = h + silu_attention(linear(h, 8), linear(h, 8), linear(h, 8), heads: 2)
  loss bce_with_logits(linear(g, 1), click, normalize: tokens)
}}
train {{ batch {batch}  steps 5  optimizer adam(lr: 1e-2)  balance {balance} }}
workload w {{ generate {{ lengths {lengths}  ids zipf(1.05)  labels bernoulli(0.5)  samples 13 }} }}"
    )
}

#[test]
fn samples_that_cost_the_same_stay() {
    for (lengths, balance) in [
        ("fixed(7)", "on"),
        ("uniform(0, 1)", "cost(c0: 3, c1: 0, c2: 0)"),
        ("uniform(0, 9)", "cost(c0: 1, c1: 0, c2: 0)"),
        ("uniform(0, 9)", "cost(c0: 0, c1: 0, c2: 0)"),
    ] {
        // Passes of 13 samples in batches of 13, one rank of which has one more, would not be equal: take all of a pass.
        let text = model(lengths, 12, balance).replace("samples 13", "samples 24");
        let (summary, report) = Place::new().trains(&text, "4", |_| {});
        assert!(
            summary.contains("balance    samples cost the ranks the same, nothing moved; planned in "),
            "{summary}"
        );
        assert_eq!(
            (report["moved_samples"].as_f64(), report["moved_bytes"].as_f64()),
            (Some(0.0), Some(0.0))
        );
        assert_eq!((report["waiting"].as_f64(), report["waiting_at_home"].as_f64()), (Some(0.0), Some(0.0)));
        assert_eq!(report["batches"], 5);
    }
}

#[test]
fn few_samples_for_many_ranks() {
    for (batch, ranks) in [(1, "4"), (3, "4")] {
        let said = Place::new().compile(&model("uniform(0, 9)", batch, "on"), ranks);
        let expected = format!("a batch of {batch} samples does not divide over 4 ranks");
        fails(&said, &["FS0064", &expected, "write a batch such as 4"]);
    }
    // One sample for each rank, then one for all of them.
    let (summary, report) = Place::new().trains(&model("uniform(1, 9)", 4, "on"), "4", |_| {});
    assert!(summary.contains("balance    nothing moved: ranks wait "), "{summary}");
    assert!(summary.contains(" of a step for the slowest, with any plan "), "{summary}");
    assert_eq!(report["waiting"], report["waiting_at_least"]);
    // A batch of 12 and one of a single sample, which bounds its step.
    let (summary, report) = Place::new().trains(&model("fixed(7)", 12, "on"), "4", |_| {});
    assert!(summary.contains(" of 7 ids bounds step 1; one sample bounds 2 of 5 steps"), "{summary}");
    assert_eq!(report["bounded_batches"], 2);
    let (_, report) = Place::new().trains(&model("uniform(1, 9)", 1, "on"), "1", |_| {});
    assert_eq!((report["waiting"].as_f64(), report["moved_samples"].as_f64()), (Some(0.0), Some(0.0)));
}

#[test]
fn costs_that_are_no_numbers() {
    let place = Place::new();
    for (cost, parts) in [
        (
            "c0: 1e99, c1: 1e99, c2: 1e99",
            &["FS0064", "m.fs:9:", "a sample of 9 ids would cost more than can be added up", "divide"][..],
        ),
        ("c0: 1e308, c1: 1e308, c2: 1e308", &["FS0064", "a sample of 9 ids would cost more"]),
        ("c0: -1, c1: 1, c2: 1", &["FS0041", "`c0` must be a number from 0"]),
        ("c0: 1, c1: 1e999, c2: 1", &["FS0004", "the number is too large"]),
        ("c0: 1, c1: nan, c2: 1", &["error[FS"]),
    ] {
        fails(&place.compile(&model("uniform(0, 9)", 8, &format!("cost({cost})")), "4"), parts);
    }
    // The greatest and the least that can be: shares are numbers, samples move.
    for cost in ["c0: 1e97, c1: 1e97, c2: 1e97", "c0: 0, c1: 1e-320, c2: 0", "c0: 0, c1: 0, c2: 1e-300"] {
        let text = model("uniform(0, 9)", 8, &format!("cost({cost})")).replace("samples 13", "samples 24");
        let (_, report) = Place::new().trains(&text, "4", |_| {});
        let share =
            |field: &str| report[field].as_f64().unwrap_or_else(|| panic!("{field} of {cost}: {report}"));
        assert!(
            share("moved_samples") > 0.0 && share("waiting") < share("waiting_at_home"),
            "{cost}: {report}"
        );
    }
    // Schedules with such costs are refused.
    let changes: [Change; 4] = [
        |b| b.cost.constant = -1.0,
        |b| b.cost.groups[0].square = 1e300,
        |b| b.cost.groups[0].linear = -0.5,
        |b| b.slack = -1.0,
    ];
    for change in changes {
        assert!(place.compile(&model("uniform(0, 9)", 8, "on"), "4").status.success());
        place.change(|s| change(s.settings.balance.as_mut().expect("a balance")));
        fails(
            &place.run("fsx", &["run", "m.json"]),
            &["rule `settings`: costs and slack of the balance must be numbers"],
        );
    }
}

/// Costs that follow measured times are a setting that the schedule says and its digests cover; the summary has what they
/// came to.
#[test]
fn costs_are_fitted_where_that_is_asked_for() {
    let place = Place::new();
    for balance in ["on(fit: on)", "cost(c0: 1, c1: 0, c2: 0, fit: on)"] {
        let text = model("uniform(1, 9)", 12, balance)
            .replace("steps 5", "steps 80")
            .replace("samples 13", "samples 999");
        let (summary, report) = place.trains(&text, "2", |_| {});
        assert!(summary.contains("\n           fitted: a sample takes "), "{summary}");
        let fitted = &report["fitted"];
        assert!(fitted["batches"].as_u64().is_some_and(|n| n > 20), "{report}");
        let group = &fitted["cost"]["groups"][0];
        for cost in [&fitted["step_ns"], &fitted["cost"]["constant"], &group["linear"], &group["square"]] {
            assert!(cost.as_f64().is_some_and(|c| c >= 0.0), "{report}");
        }
        for times in ["expected_ms", "measured_ms"] {
            let times = fitted[times].as_array().expect("times of ranks");
            assert!(
                times.len() == 2 && times.iter().all(|t| t.as_f64().is_some_and(|t| t > 0.0)),
                "{report}"
            );
        }
    }
    let (summary, report) = place.trains(&model("uniform(1, 9)", 12, "on"), "2", |s| {
        assert!(!s.settings.balance.as_ref().expect("a balance").fit);
    });
    assert!(!summary.contains("fitted") && report.get("fitted").is_none(), "{summary}");
    // Switched on behind the back of the digests.
    let path = place.path("m.json");
    let bytes = fs::read(&path).expect("a schedule");
    let mut schedule = file::parse(&path, &bytes, true).unwrap_or_else(|e| panic!("{e}"));
    schedule.settings.balance.as_mut().expect("a balance").fit = true;
    fs::write(&path, file::to_text(&schedule)).expect("the schedule is written");
    fails(&place.run("fsx", &["run", "m.json"]), &["rule `reference`"]);
}

#[test]
fn a_limit_that_nobody_can_meet() {
    let place = Place::new();
    let limit = |tokens| {
        move |s: &mut Schedule| {
            s.settings.balance.as_mut().expect("a balance").limit =
                Some(fs_schedule::RankLimit::Tokens(tokens));
        }
    };
    assert!(place.compile(&model("fixed(9)", 8, "on"), "4").status.success());
    place.change(limit(8));
    let said = place.run("fsx", &["run", "m.json"]);
    fails(
        &said,
        &[
            " failed in `assign`: step 0: sample 0, which rank 0 reads, takes up 9, but a rank can hold 8; raise the limit",
        ],
    );
    // Each sample fits, all together do not.
    place.change(limit(17));
    let said = place.run("fsx", &["run", "m.json"]);
    fails(
        &said,
        &[
            "failed in `assign`: step 0: sample ",
            "takes up 9, fits nowhere: of the 17 that a rank can hold",
            "has most left and holds 9",
        ],
    );
    place.change(limit(18));
    assert!(place.run("fsx", &["run", "m.json"]).status.success());
}

/// A history that alone exceeds the mean is named, in the summary and in the report.
#[test]
fn one_history_bounds_the_step() {
    let place = Place::new();
    let mut visits = String::from("user,item\n");
    for user in 0..16 {
        let n = if user == 5 { 21_001 } else { 30 + user };
        (0..n).for_each(|at| writeln!(visits, "{user},{}", at % 40).expect("text grows"));
    }
    fs::write(place.path("visits.csv"), visits).expect("the data is written");
    let text = "model last {
  table items { rows 40  dim 4  init normal(0, 0.5)  optimizer sgd(lr: 0.1) }
  input history: ids(items) { max 30_000 }
  input following: next(history)
  loss sampled_softmax(linear(lookup(history), 4), items, following, negatives: 2, temperature: 1, normalize: tokens)
}
train { batch 16  epochs 2  balance on }
workload visits { csv \"visits.csv\" { user \"user\"  item \"item\" } }";
    let (summary, report) = place.trains(text, "4", |_| {});
    assert!(summary.contains(" of 21,000 ids bounds step "), "{summary}");
    assert!(summary.contains("; one sample bounds 2 of 2 steps"), "{summary}");
    assert_eq!((&report["longest"]["tokens"], &report["bounded_batches"]), (&21_000.into(), &2.into()));
    assert!(report["waiting_at_least"].as_f64().is_some_and(|share| share > 0.7), "{report}");
}
