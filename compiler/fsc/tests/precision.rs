//! What a model says of numbers on their way, from outside.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fs_schedule::Element;
use tempfile::TempDir;

fn fsc(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fsc")).args(args).output().expect("fsc starts")
}

/// A folder with `model.fs`, whose `train` says this besides.
fn folder(says: &str) -> (TempDir, PathBuf) {
    let model = format!(
        "model tiny {{
           table items {{ rows 10  dim 4  optimizer sgd(lr: 0.1) }}
           input history: ids(items) {{ max 5 }}
           input click: label like history
           loss bce_with_logits(linear(lookup(history), 1), click, normalize: tokens)
         }}
         train {{ batch 4  steps 2  {says} }}
         workload w {{ generate {{ lengths fixed(3)  ids uniform  labels bernoulli(0.5) }} }}"
    );
    let dir = TempDir::new().expect("a temporary folder");
    let path = dir.path().join("model.fs");
    fs::write(&path, model).expect("the model is written");
    (dir, path)
}

fn name(path: &Path) -> &str {
    path.to_str().expect("temporary paths are text")
}

/// Fails with a message that holds all of `parts`, and never by a panic.
fn fails(args: &[&str], parts: &[&str]) {
    let out = fsc(args);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success(), "{args:?} must fail");
    assert!(!said.contains("panicked"), "{args:?}: {said}");
    for part in parts {
        assert!(said.contains(part), "{args:?} must say `{part}`, says:\n{said}");
    }
}

#[test]
fn what_is_not_built_yet_is_refused_with_its_place() {
    for (says, word) in [
        ("precision { gradient_dist f16 }", "gradient_dist in f16 is not built yet"),
        ("precision { output_dist f16 }", "write `output_dist bf16` or `mxint8`"),
        ("precision { all_reduce f16 }", "write `all_reduce bf16`"),
        ("precision { gradient_dist mxint8 }", "expected `f32`, `f16` or `bf16`"),
        ("precision { all_reduce mxint8 }", "expected `f32`, `f16` or `bf16`"),
        (
            "unique_rows off  precision { gradient_dist bf16 }",
            "leave out `unique_rows off`, or write `gradient_dist f32`",
        ),
    ] {
        let (_dir, model) = folder(says);
        fails(&["compile", name(&model), "-o", "-"], &["model.fs:7", word]);
    }
}

#[test]
fn rows_and_gradients_travel_as_the_model_says() {
    for (word, rows) in [("bf16", Element::Bf16), ("mxint8", Element::Mxint8)] {
        let (_dir, model) = folder(&format!("precision {{ output_dist {word}  gradient_dist bf16 }}"));
        let out = model.with_extension("json");
        let compile = ["compile", name(&model), "-o", name(&out), "--ranks", "2"];
        let run = fsc(&compile);
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        let bytes = fs::read(&out).expect("a schedule");
        let schedule = fs_schedule::file::parse(&out, &bytes, true).expect("a schedule");
        let wire = schedule.settings.wire;
        assert_eq!((wire.rows, wire.gradients), (rows, Element::Bf16));
        fails(
            &[&compile[..], &["--table", "items:unique=off"]].concat(),
            &["rows of table items cannot travel once per occurrence", "gradient_dist f32"],
        );
    }
    let (_dir, model) = folder("precision { output_dist mxint8 }");
    let cut = ["compile", name(&model), "-o", "-", "--ranks", "2", "--table", "items:sharding=column_wise"];
    fails(&cut, &["table items of 4 columns cannot be column-wise", "blocks of 32 columns"]);
}
