//! Numbers of microbatches that the compiler chooses: through the binaries to the bits of that number, and on random models
//! never predicted worse than one.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use fs_compiler::sched::policy;
use fs_compiler::search::microbatches::{numbers, search, with_tables};
use fs_compiler::search::{self, Candidate, candidates};
use fs_compiler::{CompileError, CompileOptions, Strategy, compile_with};
use fs_dsl::checked::{Cluster, Microbatches};
use fs_schedule::{Schedule, verify};
use fs_tests::models::{Features, models};
use fs_tests::{binary, checked, dividing};
use proptest::prelude::*;
use serde_json::Value;
use tempfile::TempDir;

/// A whole batch takes more memory than the machine has.
const MODEL: &str = "model m {
  table items { rows 200  dim 16  init normal(0, 0.5)  optimizer adam(lr: 0.01)  sharding row_wise }
  input item: ids(items) { max 20 }
  input click: label like item
  let h = relu(linear(relu(linear(lookup(item), 64)), 64))
  loss bce_with_logits(linear(h, 1), click, normalize: tokens)
}
train { batch 64  steps 6  microbatches auto }
workload w { generate { lengths uniform(5, 20)  ids zipf(1.05)  labels hash } }
cluster small from dgx_h100 { gpus_per_node 2  memory 460 KiB }
";

fn project() -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    fs::write(dir.path().join("m.fs"), MODEL).expect("the model is written");
    dir
}

fn runs(dir: &Path, name: &str, args: &[&str]) -> String {
    let out: Output = Command::new(binary(name)).current_dir(dir).args(args).output().expect("it starts");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{args:?}: {said}");
    said
}

fn read(dir: &Path, name: &str) -> Value {
    let text = fs::read_to_string(dir.join(name)).expect("it is written");
    serde_json::from_str(&text).expect("JSON")
}

fn parts(dir: &Path, name: &str) -> u64 {
    read(dir, name)["settings"]["microbatches"].as_u64().expect("a number")
}

/// Losses of the world and of each rank, in all digits: those of a step follow from all updates before it.
fn trained(dir: &Path, schedule: &str) -> (Value, Value) {
    runs(dir, "fsx", &["run", schedule, "--report", "r.json"]);
    let report = read(dir, "r.json");
    assert!(report["loss"].as_array().is_some_and(|l| l.len() == 6), "{report}");
    (report["loss"].clone(), report["loss_per_rank"].clone())
}

#[test]
fn trains_to_the_bits_of_the_number_that_is_chosen() {
    let dir = project();
    let dir = dir.path();
    for strategy in ["auto", "serial", "pec"] {
        let compile = |out: &str, more: &[&str]| {
            runs(dir, "fsc", &[&["compile", "m.fs", "-o", out, "--strategy", strategy], more].concat())
        };
        let said = compile("auto.json", &[]);
        let number = parts(dir, "auto.json");
        assert!(number > 1, "{said}");
        compile("fixed.json", &["--microbatches", &number.to_string()]);
        compile("one.json", &["--microbatches", "1"]);
        let [auto, fixed, one] = ["auto.json", "fixed.json", "one.json"].map(|name| trained(dir, name));
        assert_eq!(auto, fixed, "{strategy}");
        assert_ne!(auto, one, "{strategy}: microbatches do not round otherwise");
    }
}

/// A profile knows the number that it was measured in.
#[test]
fn profiles_keep_their_number() {
    let dir = project();
    let dir = dir.path();
    let serial = ["compile", "m.fs", "-o", "s.json", "--strategy", "serial", "--ranks", "2"];
    runs(dir, "fsc", &[&serial[..], &["--microbatches", "2"]].concat());
    runs(dir, "fsx", &["profile", "s.json", "-o", "p.json"]);
    for strategy in ["serial", "auto"] {
        let args = ["compile", "m.fs", "-o", "s.json", "--strategy", strategy, "--profile", "p.json"];
        let said = runs(dir, "fsc", &args);
        assert!(said.contains("note: the profile was measured in 2 microbatches"), "{said}");
        assert_eq!(parts(dir, "s.json"), 2, "{said}");
        let said = runs(dir, "fsc", &[&args[..], &["--microbatches", "4"]].concat());
        assert!(parts(dir, "s.json") == 4 && !said.contains("note: the profile"), "{said}");
    }
    // Of another batch, which its number does not divide: that it is another model is what is said.
    fs::write(
        dir.join("m.fs"),
        MODEL.replace("batch 64", "batch 63").replace("gpus_per_node 2", "gpus_per_node 1"),
    )
    .expect("written");
    let args = ["compile", "m.fs", "-o", "s.json", "--ranks", "1", "--profile", "p.json"];
    let out = Command::new(binary("fsc")).current_dir(dir).args(args).output().expect("it starts");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && said.contains("the profile is of another schedule"), "{said}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// What is chosen is proved, is what its number gives by itself, and never exceeds more, or takes longer, than one microbatch.
    #[test]
    fn never_worse_than_one(
        model in models(Features { shardings: true, microbatches: false, placements: true }),
        times in prop::sample::select(vec![1u32, 4, 16]),
        ranks in prop::sample::select(vec![1u32, 2, 4]),
        preset in prop::sample::select(vec!["local", "dgx_h100", "h100x256"]),
        tight in any::<bool>(),
        strategy in prop::sample::select(vec![None, Some(Strategy::Serial), Some(Strategy::Pec)]),
        lookahead in prop::option::of(1..=3u32),
    ) {
        let mut program = dividing(checked(&model.text()), ranks);
        program.train.batch = program.train.batch.saturating_mul(times);
        program.train.microbatches = Microbatches::Auto;
        let cluster = fs_dsl::cluster::preset(preset).expect("a preset");
        let options = CompileOptions::new(strategy.unwrap_or(Strategy::Serial), ranks).lookahead(lookahead);
        let wide = options.clone().cluster(cluster.clone());
        // A model may ask for what cannot be.
        let Ok(one) = compile_with(&program, &wide) else { return Ok(()) };
        // A little less memory than a whole batch takes; too little for the tables themselves is an error of any number.
        let needs = one.schedule.prediction.as_ref().map_or(0, |p| p.memory);
        let small = options.cluster(Cluster { memory: needs.saturating_sub(1), ..cluster });
        let (options, one) = match compile_with(&program, &small) {
            Ok(one) if tight => (small, one),
            _ => (wide, one),
        };
        let of = |n: u32| Ok::<_, CompileError>(options.clone().microbatches(n));
        let tried = numbers(&program, &options).expect("numbers");
        let within = |s: &Schedule| {
            let p = s.prediction.as_ref().expect("a prediction");
            let most = options.cluster.as_ref().map_or(u64::MAX, |c| c.memory);
            (if p.memory > most { p.memory } else { 0 }, p.step)
        };
        let fixed = |n: u32| options.clone().microbatches(n);
        let (found, same, one) = if let Some(strategy) = strategy {
            let candidate = Candidate::new(policy::of(strategy), lookahead);
            let best = search(&program, tried, &[candidate], of).expect("it compiles in one");
            let found = best.compiled.schedule;
            // In one window, too, where there are several microbatches.
            let same = search::search(&program, &fixed(found.settings.microbatches), [candidate]);
            (found, same.expect("chosen").compiled.schedule, one.schedule)
        } else {
            let all: Vec<Candidate> = candidates(lookahead).collect();
            let (best, _, _) = with_tables(&program, tried, &all, of).expect("it compiles in one");
            let found = best.compiled.schedule;
            let alone = |n| {
                let found = search::tables::search(&program, &fixed(n), all.iter().copied());
                found.expect("chosen").0.compiled.schedule
            };
            let same = alone(found.settings.microbatches);
            (found, same, alone(1))
        };
        prop_assert!(within(&found) <= within(&one), "{:?} is worse than {:?}", within(&found), within(&one));
        prop_assert!(verify::verify(&found).is_empty());
        let bare = |s: &Schedule| fs_schedule::file::to_text(&Schedule { search: None, ..s.clone() });
        prop_assert!(bare(&found) == bare(&same), "it is not what its number gives");
    }
}
