//! Schedules of wide models are read again: what their operations cost is one text, and that is long.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use fs_tests::binary;

const REST: &str = "workload w { generate { lengths fixed(2) ids uniform labels bernoulli(0.5) } }\n";

/// So many tables, each pooled.
fn tables(n: usize) -> String {
    let mut text = String::from("model wide {\n");
    for i in 0..n {
        let _ = writeln!(text, "  table a{i} {{ rows 40  dim 2  optimizer sgd(lr: 0.1) }}");
        let _ = writeln!(text, "  input x{i}: ids(a{i}) {{ max 3 }}");
    }
    let all: Vec<String> = (0..n).map(|i| format!("pool(x{i}, sum)")).collect();
    with_loss(&text, &format!("concat({})", all.join(", ")))
}

/// One table, whose rows are used so many times at once.
fn uses(n: usize, join: &str, open: &str, close: &str) -> String {
    let text =
        "model wide {\n  table a { rows 40  dim 2  optimizer sgd(lr: 0.1) }\n  input x: ids(a) { max 3 }\n";
    with_loss(
        &format!("{text}  let p = pool(x, sum)\n"),
        &format!("{open}{}{close}", vec!["p"; n].join(join)),
    )
}

fn with_loss(text: &str, what: &str) -> String {
    let train = "train { batch 2  steps 1  optimizer sgd(lr: 0.1) }";
    format!(
        "{text}  input y: label\n  loss bce_with_logits(linear({what}, 1), y, normalize: samples)\n}}\n{train}\n{REST}"
    )
}

fn runs(folder: &Path, program: &str, args: &[&str]) {
    let out = Command::new(binary(program)).current_dir(folder).args(args).output().expect("it starts");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{program} {args:?}: {}", said.chars().take(600).collect::<String>());
}

#[test]
fn what_is_compiled_is_read_again() {
    let folder = tempfile::TempDir::new().expect("a folder");
    for text in [tables(450), uses(3_000, ", ", "concat(", ")"), uses(5_000, " + ", "", "")] {
        fs::write(folder.path().join("m.fs"), text).expect("written");
        runs(folder.path(), "fsc", &["compile", "m.fs", "-o", "m.json", "--ranks", "2"]);
        runs(folder.path(), "fsc", &["verify", "m.json"]);
        runs(folder.path(), "fsx", &["run", "m.json", "-q", "--no-evaluate"]);
    }
}
