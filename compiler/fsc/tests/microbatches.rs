//! `fsc compile` of a model that leaves the number of microbatches to the compiler, and `--microbatches auto`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

/// Less memory than a whole batch takes, on machines that launch at once.
const MODEL: &str = "model m {
  table items { rows 1000  dim 16  optimizer sgd(lr: 0.1)  sharding row_wise }
  input item: ids(items) { max 20 }
  let h = relu(linear(relu(linear(lookup(item), 256)), 256))
  loss bce_with_logits(linear(h, 1), click, normalize: tokens)
  input click: label like item
}
train { batch 64  steps 3  microbatches auto  balance off }
workload w { generate { lengths fixed(20)  ids uniform } }
cluster small from dgx_h100 { gpus_per_node 2  memory 2 MiB }
";

fn folder(model: &str) -> TempDir {
    let dir = TempDir::new().expect("a temporary folder");
    fs::write(dir.path().join("m.fs"), model).expect("the model is written");
    dir
}

/// What was said, and whether it went well.
fn fsc(dir: &Path, args: &[&str]) -> (bool, String) {
    let mut fsc = Command::new(env!("CARGO_BIN_EXE_fsc"));
    let out = fsc.current_dir(dir).env("XDG_CACHE_HOME", dir.join("cache")).args(args).output();
    let out = out.expect("fsc starts");
    let said = [out.stdout, out.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(!said.contains("panicked"), "{args:?}: {said}");
    (out.status.success(), said)
}

/// The schedule but for how it was found, its microbatches, and what was said.
fn compile(dir: &Path, more: &[&str]) -> (Value, u64, String) {
    let (good, said) = fsc(dir, &[&["compile", "m.fs", "-o", "s.json"], more].concat());
    assert!(good, "{more:?}: {said}");
    let (good, verified) = fsc(dir, &["verify", "s.json"]);
    assert!(good, "{more:?}: {verified}");
    let text = fs::read_to_string(dir.join("s.json")).expect("a schedule");
    let mut schedule: Value = serde_json::from_str(&text).expect("JSON");
    let all = schedule.as_object_mut().expect("an object");
    all.remove("search");
    all.remove("digest");
    let parts = all["settings"]["microbatches"].as_u64().expect("a number");
    (schedule, parts, said)
}

#[test]
fn what_is_chosen_is_what_the_number_gives() {
    let dir = folder(MODEL);
    let dir = dir.path();
    for strategy in [&["--strategy", "serial"][..], &["--strategy", "pec", "--lookahead", "2"], &[]] {
        let (found, parts, said) = compile(dir, strategy);
        assert!(parts > 1, "{said}");
        assert!(said.contains(" in 1 microbatch: ") && said.contains(" in 2 microbatches: "), "{said}");
        let (good, explained) = fsc(dir, &["explain", "s.json"]);
        assert!(good && explained.contains(&format!(" in {parts} microbatches: ")), "{explained}");
        let number = parts.to_string();
        let (fixed, _, said) = compile(dir, &[strategy, &["--microbatches", &number]].concat());
        assert!(found == fixed, "{strategy:?}: {parts} microbatches differ");
        assert!(!said.contains("microbatch"), "one number needs no words: {said}");
        // The number in the model: another model, the same step.
        fs::write(dir.join("m.fs"), MODEL.replace("microbatches auto", &format!("microbatches {number}")))
            .expect("written");
        let (fixed, _, _) = compile(dir, strategy);
        assert_eq!(found["train"], fixed["train"], "{strategy:?}");
        // Asked for on the command line, whatever the model says.
        let (asked, _, _) = compile(dir, &[strategy, &["--microbatches", "auto"]].concat());
        assert_eq!(found["train"], asked["train"], "{strategy:?}");
        fs::write(dir.join("m.fs"), MODEL).expect("written");
    }
    let (one, parts, said) = compile(dir, &["--microbatches", "1"]);
    assert!(parts == 1 && said.contains("small has 2.1 MB") && one != compile(dir, &[]).0, "{said}");
}

#[test]
fn other_words_are_told() {
    let dir = folder(MODEL);
    for (words, parts) in [
        ("often", "expected a whole number from 1 to 64, or `auto`"),
        ("-1", "unexpected argument '-1'"),
        ("", "expected a whole number from 1 to 64, or `auto`"),
        ("1.5", "expected a whole number"),
        ("0", "microbatches must be in 1..=64, is 0"),
        ("65", "microbatches must be in 1..=64, is 65"),
        ("7", "cannot be cut into 7 equal microbatches"),
    ] {
        let (good, said) = fsc(dir.path(), &["compile", "m.fs", "--microbatches", words]);
        assert!(!good && said.contains(parts), "{words}: {said}");
    }
    // Before anything is made for so many.
    let uneven = MODEL.replace("  balance off", "").replace("fixed(20)", "uniform(1, 20)");
    let dir = folder(&uneven);
    let (good, said) = fsc(dir.path(), &["compile", "m.fs", "--microbatches", "4000000000"]);
    assert!(!good && said.contains("microbatches must be in 1..=64, is 4000000000"), "{said}");
    let dir = folder(&MODEL.replace("microbatches auto", "microbatches often"));
    let (good, said) = fsc(dir.path(), &["compile", "m.fs"]);
    assert!(!good && said.contains("must be a whole number from 1 to 64, or `auto`"), "{said}");
}

/// Data are counted for the numbers that are tried, and told of once.
#[test]
fn data_are_counted_for_what_is_tried() {
    let model = "model m {
      table items { rows 50  dim 4  optimizer sgd(lr: 0.1)  sharding row_wise }
      input item: ids(items) { max 20 }
      input following: next(item)
      loss sampled_softmax(lookup(item), items, following, negatives: 4, normalize: tokens)
    }
    train { batch 64  epochs 1  microbatches auto }
    workload w { csv \"log.csv\" { user \"u\"  item \"i\" } }
    cluster fast from dgx_h100 { gpus_per_node 2 }";
    let dir = folder(model);
    let mut log = String::from("u,i\n");
    for user in 0..300 {
        for n in 0..4 + user % 5 {
            let _ = writeln!(log, "{user},{}", (user * 7 + n * n) % 50);
        }
    }
    fs::write(dir.path().join("log.csv"), log).expect("the data are written");
    let (found, parts, said) = compile(dir.path(), &[]);
    assert_eq!(parts, 1, "launches bound its step: {said}");
    assert_eq!(said.matches("lengths and ids: counted in").count(), 1, "{said}");
    let kept = fs::read_to_string(dir.path().join(".log.csv.counts.json")).expect("counts are kept");
    let of = |parts: u32| kept.replace(' ', "").contains(&format!("\"ranks\":2,\"microbatches\":{parts},"));
    assert_eq!([1, 2, 4, 8, 16, 32].map(of), [true, true, true, false, false, false], "{said}");
    assert!(found == compile(dir.path(), &["--microbatches", "1"]).0);
    assert!(found != compile(dir.path(), &["--assume", "workload"]).0, "what was counted is used");
    fs::write(dir.path().join("log.csv"), "u,i\n1\n").expect("the data are written");
    let (good, said) = fsc(dir.path(), &["compile", "m.fs"]);
    assert!(!good && said.contains("log.csv") && said.contains("--assume workload"), "{said}");
}
