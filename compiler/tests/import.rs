//! Programs that check but cannot be compiled: all that stands against them is reported, with places and codes.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use fs_compiler::import::{ImportError, import};

fn refused(text: &str) -> ImportError {
    let loaded = fs_dsl::check_text("m.fs", text);
    let said = fs_dsl::render(&loaded.diagnostics, &loaded.sources, false);
    let program = loaded.program.unwrap_or_else(|| panic!("{said}"));
    import(&program).expect_err("cannot be compiled")
}

fn codes(e: &ImportError) -> Vec<String> {
    e.diagnostics.iter().map(|d| d.code.to_string()).collect()
}

const BODY: &str = "
  input history: ids(items) { max 5 }
  input click: label like history
  loss bce_with_logits(linear(lookup(history), 1), click, normalize: tokens)
}
";

#[test]
fn everything_is_reported_at_once() {
    let e = refused(&format!(
        "model m {{
  table items {{ rows 10  dim 4  sharding column_wise  optimizer rowwise_adagrad(lr: 0.1)  dtype f16 }}{BODY}
train {{ lookahead 64  microbatches 32  precision {{ output_dist f16  gradient_dist f16 }} }}"
    ));
    assert_eq!(codes(&e), ["FS0070", "FS0071", "FS0072", "FS0070", "FS0070"]);
    let text = e.to_string();
    for part in [
        "m.fs:2:9",
        "table `items` is not f32",
        "cannot be column-wise with rowwise_adagrad",
        "mean over a whole row",
        "gradient_dist in f16 is not built yet",
        "lookahead 64 with 32 microbatches makes more than 255 classes of rows",
        "output_dist in f16 is not built yet",
        "5 errors",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
}

#[test]
fn a_program_without_model() {
    let e = refused("train { batch 4 }");
    assert_eq!(codes(&e), ["FS0065"]);
    assert!(e.to_string().contains("m.fs has no `model` block to compile"), "{e}");
}

/// Placements are read as they are written; ranks are found by a pass.
#[test]
fn placements() {
    for (asked, attr) in [
        ("auto", "\"auto\""),
        ("row_wise", "\"row_wise\""),
        ("table_wise", "\"table_wise\""),
        ("column_wise", "\"column_wise\""),
        ("data_parallel", "\"data_parallel\""),
    ] {
        let text = format!(
            "model m {{ table items {{ rows 10  dim 4  optimizer sgd(lr: 0.1)  sharding {asked} }}{BODY}"
        );
        let loaded = fs_dsl::check_text("m.fs", &text);
        let module = import(&loaded.program.unwrap()).unwrap();
        assert!(module.to_string().contains(&format!("sharding = {attr}")), "{asked}");
    }
}
