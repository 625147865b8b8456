//! Neighbours as one operation: the same bits as one after the other, in all models, and on an emulated device.

use fs_compiler::{CompileOptions, Strategy, compile_with};
use fs_dsl::checked::Cluster;
use fs_executor::Session;
use fs_executor::device::cuda::Cuda;
use fs_kernels::cuda::driver::emulated::Emulated;
use fs_kernels::cuda::sources::Precision;
use fs_schedule::Schedule;
use fs_schedule::verify::verify;
use fs_tests::emulated;
use fs_tests::models::{Features, models};
use fs_tests::training::{self, Outcome};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// A machine on which a launch takes so many seconds.
fn machine(latency: f64) -> Cluster {
    let mut local = fs_dsl::cluster::preset("local").expect("a preset");
    local.gpus_per_node = 8;
    local.host.latency = latency;
    local
}

fn compile(text: &str, strategy: Strategy, ranks: u32, launch: f64) -> Schedule {
    let loaded = fs_dsl::check_text("model.fs", text);
    let program = loaded.program.unwrap_or_else(|| panic!("{:?}\n{text}", loaded.diagnostics));
    let program = fs_tests::dividing(program, ranks);
    let options = CompileOptions::new(strategy, ranks).balance(false).cluster(machine(launch));
    compile_with(&program, &options).unwrap_or_else(|e| panic!("{e}\n{text}")).schedule
}

/// Its fused operations.
fn fused(s: &Schedule) -> Vec<String> {
    let ops = s.train.ops.iter().chain(s.evaluation.iter().flat_map(|p| &p.ops));
    ops.filter(|op| op.action.is_fused()).map(|op| op.action.name()).collect()
}

fn train(schedule: &Schedule, ranks: u32) -> Outcome {
    let options = training::options().ranks(ranks as usize);
    let mut session = Session::<f32>::new(schedule.clone(), options).unwrap_or_else(|e| panic!("{e}"));
    training::train(&mut session, &mut ()).unwrap_or_else(|e| panic!("{e}")).0
}

/// A model that computes in bf16: what is used on within an operation is rounded, too.
fn in_bf16(text: &str) -> String {
    assert!(text.contains("train {"), "{text}");
    text.replace("train {", "train { precision { compute bf16 } ")
}

/// Whatever the model, strategy and number of ranks: fused or not, the reference is the same and so is every bit.
#[test]
fn random_models_have_the_same_bits() {
    let mut seen = std::collections::BTreeMap::<String, usize>::new();
    let features = Features { shardings: true, microbatches: true, placements: true };
    let cases = if emulated::thorough() { 400 } else { 40 };
    let strategies = [Strategy::Serial, Strategy::Prefetch, Strategy::Pec];
    let mut runner =
        TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) });
    let all = (models(features), 0..strategies.len(), 1u32..4, proptest::bool::ANY);
    let seen_in = std::cell::RefCell::new(&mut seen);
    let outcome = runner.run(&all, |(model, strategy, ranks, brain)| {
        let (text, strategy) = (model.text(), strategies[strategy]);
        let text = if brain { in_bf16(&text) } else { text };
        let (apart, together) = (compile(&text, strategy, ranks, 0.0), compile(&text, strategy, ranks, 1.0));
        prop_assert_eq!(fused(&apart), Vec::<String>::new());
        prop_assert_eq!(&apart.reference, &together.reference);
        prop_assert_eq!(verify(&together), vec![]);
        for name in fused(&together) {
            *seen_in.borrow_mut().entry(name).or_insert(0) += 1;
        }
        prop_assert!(train(&apart, ranks) == train(&together, ranks), "{text}");
        Ok(())
    });
    outcome.unwrap_or_else(|e| panic!("{e}"));
    for name in ["linear_unary", "add_layer_norm"] {
        assert!(seen.contains_key(name), "{name} was not tried: {seen:?}");
    }
}

const MODEL: &str = "
model gated {
  table items { rows 40  dim 8  init normal(0, 0.3)  optimizer adagrad(lr: 0.1)  sharding row_wise }
  input history: ids(items) { max 9 }
  input click: label like history
  let x = lookup(history)
  let f = gelu(linear(layer_norm(x), 8))
  let y = f + x
  let z = layer_norm(y)
  let g = layer_norm(f, affine: off) * silu(linear(z, 8))
  loss bce_with_logits(linear(g + y, 1), click, normalize: samples)
}
train { batch 12  steps 5  optimizer adam(lr: 1e-2) }
workload w { generate { lengths uniform(0, 9)  ids zipf(1.05)  labels bernoulli(0.5)  samples 48 } }
";

/// Of all kinds, under every strategy, in microbatches too.
#[test]
fn all_kinds_have_the_same_bits() {
    for strategy in [Strategy::Serial, Strategy::Prefetch, Strategy::Pec] {
        for ranks in [1, 2, 3] {
            for microbatches in [1, 2] {
                let text = MODEL.replace("train {", &format!("train {{ microbatches {microbatches} "));
                let text = if ranks == 2 { in_bf16(&text) } else { text };
                let (apart, together) =
                    (compile(&text, strategy, ranks, 0.0), compile(&text, strategy, ranks, 1.0));
                assert_eq!(
                    KINDS.map(|kind| fused(&together).iter().filter(|f| *f == kind).count()),
                    [microbatches, microbatches, 2 * microbatches]
                );
                assert!(train(&apart, ranks) == train(&together, ranks), "{strategy:?}, {ranks} ranks");
            }
        }
    }
}

const KINDS: [&str; 3] = ["add_layer_norm", "layer_norm_mul", "linear_unary"];

/// On a device as on the CPU: one launch for two, and the bits of one after the other.
#[test]
fn a_device_has_the_same_bits() {
    let folder = env!("CARGO_TARGET_TMPDIR");
    let Some(wide) = emulated::kernels(folder) else { return };
    let Some(brains) = emulated::kernels_for(folder, Precision::Bf16) else { return };
    let kernels = [wide, brains];
    let brain = in_bf16(MODEL);
    for (strategy, text) in [
        (Strategy::Serial, MODEL),
        (Strategy::Pec, MODEL),
        (Strategy::Serial, &brain),
        (Strategy::Pec, &brain),
    ] {
        let (apart, together) = (compile(text, strategy, 2, 0.0), compile(text, strategy, 2, 1.0));
        let mut names = fused(&together);
        names.sort();
        names.dedup();
        assert_eq!(names, KINDS);
        let on = |schedule: &Schedule| {
            let device = emulated::device(&kernels, 7);
            emulated::train::<Cuda<Emulated>>(schedule, &device, &mut ()).unwrap_or_else(|e| panic!("{e}"))
        };
        let found = on(&together);
        assert!(found == on(&apart), "{strategy:?}");
        emulated::assert_near("fused", &found, &train(&together, 2));
    }
}

/// What the verifier takes for its parts is nothing else: other functions, constants, orders and operands are refused.
#[test]
fn other_parts_are_refused() {
    let schedule = compile(MODEL, Strategy::Serial, 2, 1.0);
    assert_eq!(verify(&schedule), vec![]);
    let at =
        |name: &str| schedule.train.ops.iter().position(|op| op.action.name() == name).expect("it is there");
    let refused = |change: &dyn Fn(&mut Schedule)| {
        let mut changed = schedule.clone();
        change(&mut changed);
        assert_ne!(changed, schedule);
        let found = verify(&changed);
        assert!(found.iter().any(|v| v.rule == "model"), "{found:?}");
    };
    let (unary, sum, gate) = (at("linear_unary"), at("add_layer_norm"), at("layer_norm_mul"));
    refused(&|s| {
        s.train.ops[unary].action =
            fs_schedule::Action::LinearUnary { function: fs_schedule::Function::Relu };
    });
    refused(&|s| s.train.ops[unary].writes.swap(0, 1));
    refused(&|s| s.train.ops[sum].reads.swap(0, 1));
    refused(&|s| s.train.ops[sum].reads.swap(2, 3));
    refused(&|s| s.train.ops[sum].writes.swap(0, 1));
    refused(&|s| s.train.ops[gate].reads.swap(0, 1));
    refused(&|s| s.train.ops[gate].writes.swap(0, 1));
    for (op, affine) in [(sum, true), (gate, false)] {
        refused(&|s| {
            let action = &mut s.train.ops[op].action;
            *action = match action {
                fs_schedule::Action::AddLayerNorm { .. } => {
                    fs_schedule::Action::AddLayerNorm { affine, eps: 0.25 }
                }
                _ => fs_schedule::Action::LayerNormMul { affine, eps: 0.25 },
            };
        });
    }
}
