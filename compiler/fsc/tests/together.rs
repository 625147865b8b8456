//! `--bucket-bytes`: in what parts dense gradients are summed, and what is said of it.

use std::fs;
use std::process::{Command, Output};

const MODEL: &str = "model m {
  table a { rows 50  dim 4  init normal(0, 0.5)  optimizer sgd(lr: 0.1) }
  input x: ids(a) { max 5 }
  input y: label
  loss bce_with_logits(linear(relu(linear(pool(x, sum), 8)), 1), y, normalize: samples)
}
train { batch 8  steps 2  optimizer sgd(lr: 0.1) }
workload w { generate { lengths uniform(0, 5)  ids uniform  labels bernoulli(0.5)  samples 16 } }";

/// Compiles the model; what was said, and how many sums over ranks a step has.
fn compile(args: &[&str]) -> (Output, usize) {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("m.fs"), MODEL).expect("written");
    let mut fsc = Command::new(env!("CARGO_BIN_EXE_fsc"));
    fsc.current_dir(folder.path()).args(["compile", "m.fs", "-o", "s.json", "--ranks", "2"]);
    let run = fsc.args(args).output().expect("fsc starts");
    let text = fs::read_to_string(folder.path().join("s.json")).unwrap_or_default();
    (run, text.matches("\"all_reduce\"").count())
}

fn said(run: &Output) -> String {
    String::from_utf8_lossy(&run.stderr).into_owned()
}

#[test]
fn buckets_are_as_asked_for() {
    let (run, none) = compile(&["--bucket-bytes", "0"]);
    assert!(!run.status.success() && none == 0, "{}", said(&run));
    assert!(said(&run).contains("0 is not in 1.."), "{}", said(&run));
    let (run, one) = compile(&["--strategy", "overlap", "--bucket-bytes", "1000000"]);
    assert!(run.status.success() && !said(&run).contains("warning"), "{}", said(&run));
    // Each layer's gradients are ready at once and stay together.
    let (run, all) = compile(&["--strategy", "overlap", "--bucket-bytes", "1"]);
    assert!(run.status.success() && all > one && one > 0, "{one} {all} {}", said(&run));
    let (run, _) = compile(&["--strategy", "auto", "--bucket-bytes", "1"]);
    assert!(run.status.success() && !said(&run).contains("warning"), "{}", said(&run));
    let (run, serial) = compile(&["--strategy", "serial", "--bucket-bytes", "1"]);
    assert!(run.status.success() && serial == one, "{}", said(&run));
    assert!(said(&run).contains("`serial` sums them at once"), "{}", said(&run));
}
