//! What the language says of balanced samples, through both binaries.

use std::process::{Command, Output};

use fs_schedule::RankLimit;
use fs_tests::binary;

fn model(lengths: &str, balance: &str) -> String {
    format!(
        "model m {{
  table items {{ rows 500  dim 8  optimizer sgd(lr: 0.1) }}
  input history: ids(items) {{ max 60 }}
  input click: label like history
  loss bce_with_logits(linear(lookup(history), 1), click, normalize: tokens)
}}
train {{ batch 8  steps 4  optimizer sgd(lr: 0.1)  {balance} }}
workload w {{ generate {{ lengths {lengths}  ids zipf(1.05) }} }}
"
    )
}

fn run(lengths: &str, balance: &str) -> (Output, fs_schedule::Schedule) {
    let dir = tempfile::tempdir().expect("a folder");
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("m.fs"), model(lengths, balance)).expect("the model is written");
    let said = |command: &mut Command| command.current_dir(dir.path()).output().expect("it runs");
    let compiled =
        said(Command::new(binary("fsc")).args(["compile", "m.fs", "-o", "s.json", "--ranks", "2"]));
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let schedule = fs_schedule::read(&at("s.json")).expect("a schedule");
    (said(Command::new(binary("fsx")).args(["run", "s.json", "--quiet", "--json"])), schedule)
}

fn error(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_limit_that_nobody_can_meet_names_sample_and_rank() {
    // Every sample is longer than a rank can hold; the first of them is named.
    let (output, schedule) = run("fixed(50)", "balance on(limit: 40 tokens)");
    assert_eq!(schedule.settings.balance.expect("balanced").limit, Some(RankLimit::Tokens(40)));
    let said = error(&output);
    assert!(said.contains("sample 0, which rank 0 reads, takes up 50, but a rank can hold 40"), "{said}");
    assert!(said.contains("; raise the limit of tokens of a rank, or use"), "{said}");
    // A smaller batch or more ranks do not make it smaller.
    assert!(said.trim_end().ends_with("or use shorter sequences"), "{said}");
    // Each fits, all together do not: 400 ids on two ranks.
    let said = error(&run("fixed(50)", "balance on(limit: 199 tokens)").0);
    assert!(said.contains("which takes up 50, fits nowhere: of the 199 that a rank can hold"), "{said}");
    assert!(said.contains("shorter sequences, a smaller batch or more ranks"), "{said}");
    assert!(run("fixed(50)", "balance on(limit: 200 tokens)").0.status.success());
    // Ids and labels, four bytes each: 400 a sample.
    let said = error(&run("fixed(50)", "balance on(limit: 399 B)").0);
    assert!(said.contains("takes up 400, but a rank can hold 399; raise the limit of bytes"), "{said}");
    assert!(run("fixed(50)", "balance on(limit: 1600 B)").0.status.success());
}

#[test]
fn a_limit_moves_what_costs_alone_would_leave() {
    // Samples cost the same, so only the limit moves any.
    let moved = |balance: &str| {
        let (output, _) = run("uniform(1, 60)", balance);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a report");
        report["balance"]["moved_samples"].as_f64().expect("a number")
    };
    assert!(moved("balance cost(1, 0, 0)") < 1e-9);
    assert!(moved("balance cost(1, 0, 0, limit: 140 tokens)") > 0.0);
    // By their lengths samples move, and with equal counts as many come back.
    assert!(moved("balance on") > 0.0);
    let exchanged = 4.0 * moved("balance on(equal_counts: on)");
    assert!(exchanged > 0.0 && exchanged % 2.0 < 1e-9, "{exchanged}");
}
