//! The programs of the repository: they check without a warning and mean what they should.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use fs_dsl::checked::{DType, Init, InputKind, Model, Op, Program, Rows, SparseOptimizer};
use fs_dsl::{load, render};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn program(path: &str) -> Program {
    let loaded = load(&root().join(path));
    assert!(loaded.diagnostics.is_empty(), "{}", render(&loaded.diagnostics, &loaded.sources, false));
    loaded.program.unwrap()
}

fn model(path: &str) -> Model {
    program(path).model.unwrap()
}

#[test]
fn all_check_without_warnings() {
    let mut found = 0;
    for folder in ["examples", "examples/blocks", "tests/models"] {
        for entry in std::fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "fs") {
                program(path.strip_prefix(root()).unwrap().to_str().unwrap());
                found += 1;
            }
        }
    }
    assert!(found >= 8, "{found}");
}

#[test]
fn parameters_of_the_ranker_are_named_as_in_pytorch() {
    let m = model("tests/models/parity_w2_t2_sgd.fs");
    let names: Vec<&str> = m.params.iter().map(|p| p.name.as_str()).collect();
    let mut expected = Vec::new();
    for l in 0..2 {
        for layer in ["n1", "uvqk", "n2", "o"] {
            for role in ["weight", "bias"] {
                expected.push(format!("l.{l}.{layer}.{role}"));
            }
        }
    }
    expected.extend(["head.weight".to_owned(), "head.bias".to_owned()]);
    assert_eq!(names, expected);
    let shape = |name: &str| {
        let p = m.params.iter().find(|p| p.name == name).unwrap();
        (p.shape, p.vector)
    };
    assert_eq!(shape("l.1.uvqk.weight"), ([64, 16], false));
    assert_eq!(shape("l.1.uvqk.bias"), ([1, 64], true));
    assert_eq!(shape("l.0.n1.weight"), ([1, 16], true));
    assert_eq!(shape("head.weight"), ([1, 16], false));
    assert_eq!(m.tables.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["t0", "t1"]);
    assert_eq!(m.lengths.len(), 1, "f1 shares the lengths of f0");
    let p = program("tests/models/parity_w3_t2_adagrad.fs");
    assert_eq!(p.train.batch, 12);
    let m = p.model.unwrap();
    assert_eq!(m.tables[0].optimizer, SparseOptimizer::RowwiseAdagrad { lr: 0.05, eps: 1e-8 });
    assert!(matches!(m.nodes.last().unwrap().op, Op::BceWithLogits { normalize, .. }
            if normalize == fs_dsl::checked::Normalize::Constant(144.0)));
}

#[test]
fn movielens_is_the_reference_model() {
    let p = program("examples/movielens.fs");
    let m = p.model.as_ref().unwrap();
    let params: Vec<(&str, [u32; 2], Init)> =
        m.params.iter().map(|p| (p.name.as_str(), p.shape, p.init)).collect();
    let normal = Init::Normal { mean: 0.0, std: 0.02 };
    let mut expected = vec![("position.weight", [200, 64], normal)];
    for names in [
        ["layers.0.uvqk.weight", "layers.0.uvqk.bias", "layers.0.o.weight", "layers.0.o.bias"],
        ["layers.1.uvqk.weight", "layers.1.uvqk.bias", "layers.1.o.weight", "layers.1.o.bias"],
    ] {
        expected.extend([
            (names[0], [256, 64], normal),
            (names[1], [1, 256], Init::Zeros),
            (names[2], [64, 64], Init::XavierUniform),
            (names[3], [1, 64], Init::Zeros),
        ]);
    }
    assert_eq!(params, expected);
    let streams: Vec<(u32, f64)> = m
        .nodes
        .iter()
        .filter_map(|n| match n.op {
            Op::Dropout { p, stream } => Some((stream, p)),
            _ => None,
        })
        .collect();
    assert_eq!(streams, [(0, 0.2), (1, 0.2), (2, 0.2)]);
    let names: Vec<&str> = m
        .nodes
        .iter()
        .filter(|n| n.scope == "layers.1")
        .map(|n| match n.op {
            Op::LayerNorm { weight: None, bias: None, eps: 1e-6 } => "norm",
            Op::Linear { .. } => "linear",
            Op::Silu => "silu",
            Op::Split { ref sizes } if *sizes == [64; 4] => "split",
            Op::SiluAttention { heads: 2 } => "attention",
            Op::Mul => "mul",
            Op::Dropout { .. } => "dropout",
            Op::Add => "add",
            _ => "other",
        })
        .collect();
    assert_eq!(
        names,
        ["norm", "linear", "silu", "split", "attention", "norm", "mul", "dropout", "linear", "add"]
    );
    let last = m.nodes.last().unwrap();
    assert_eq!(last.results, [m.loss]);
    assert!(
        matches!(last.op, Op::SampledSoftmax { negatives: 128, temperature, cosine: true, .. } if temperature == 0.05)
    );
    assert_eq!((p.train.batch, p.train.duration), (32, fs_dsl::checked::Duration::Epochs(20)));
}

#[test]
fn dlrm_has_a_group_of_lengths_per_sequence() {
    let m = model("examples/dlrm.fs");
    assert_eq!(m.lengths.len(), 4);
    let dense = m.nodes.iter().filter(|n| matches!(n.op, Op::Dense { .. })).count();
    assert_eq!(dense, 1);
    let dots = m.nodes.iter().find(|n| matches!(n.op, Op::DotInteraction)).unwrap();
    let ty = m.values[dots.results[0].index()].ty;
    assert_eq!((ty.rows, ty.columns), (Rows::Samples, 10));
    assert_eq!(m.params.iter().filter(|p| p.name.starts_with("top.")).count(), 6);
    assert!(m.tables.iter().all(|t| t.dtype == DType::F32));
    assert!(m.inputs.iter().any(|i| i.kind == InputKind::Dense { width: 13 }));
}
