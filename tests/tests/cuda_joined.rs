//! What one launch starts, on the emulated device: the same bits as one after the other, and as many launches as one has.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use fs_compiler::Strategy;
use fs_executor::device::cuda::{self, Cuda};
use fs_kernels::cuda::driver::emulated::Emulated;
use fs_kernels::cuda::emulated::Emulation;
use fs_schedule::{Action, Op, Program, Schedule};
use fs_tests::emulated::{device, thorough, train};
use fs_tests::joined::{apart, groups};
use fs_tests::small::{EXAMPLES, Small};
use fs_tests::training::{Outcome, compile_on_gpus};

/// Tables of one width, each with a list of ids of its own: pooled, or rows of tokens.
fn model(optimizers: [&str; 4], sharding: &str, unique: bool, pooled: bool) -> String {
    let mut text = String::from("model tables {\n");
    for (i, optimizer) in optimizers.iter().enumerate() {
        let (rows, like) = (30 + 7 * i, if i > 0 && !pooled { "like x0" } else { "{ max 9 }" });
        let _ = write!(
            text,
            "table t{i} {{ rows {rows}  dim 8  init hash(scale: 0.3)  optimizer {optimizer}  sharding {sharding} }}
             input x{i}: ids(t{i}) {like}\n"
        );
    }
    let (label, h, normalize) = if pooled {
        ("label", "pool(x0, sum) + pool(x1, mean) + pool(x2, sum) * pool(x3, mean)", "samples")
    } else {
        ("label like x0", "lookup(x0) + lookup(x1) + lookup(x2) * lookup(x3)", "tokens")
    };
    format!(
        "{text} input click: {label}
          loss bce_with_logits(linear({h}, 1), click, normalize: {normalize})
        }}
        train {{ batch 12  steps 6  optimizer adam(lr: 1e-2)  unique_rows {unique} }}
        workload w {{ generate {{ lengths uniform(2, 5)  ids zipf(1.05)  labels bernoulli(0.5)  samples 60 }} }}"
    )
}

/// What comes of training, and how often each kernel is launched.
fn trained(
    kernels: &Arc<Emulation>,
    schedule: &Schedule,
    seed: u64,
) -> (Outcome, BTreeMap<&'static str, u64>) {
    let options = device(kernels, seed);
    let outcome = train::<Cuda<Emulated>>(schedule, &options, &mut ());
    let outcome = outcome.unwrap_or_else(|e| panic!("{e}"));
    (outcome, options.drivers[0].launches())
}

fn kernels() -> Option<Arc<Emulation>> {
    fs_tests::emulated::kernels(env!("CARGO_TARGET_TMPDIR"))
}

const ROWWISE: &str = "rowwise_adagrad(lr: 0.05)";

/// Strategies, lookaheads and microbatches; launches as planned and one after the other.
fn equal(text: &str, ranks: &[u32]) {
    let Some(kernels) = kernels() else { return };
    let all =
        [(Strategy::Pec, 2, 1), (Strategy::Prefetch, 1, 1), (Strategy::Pec, 1, 2), (Strategy::Overlap, 1, 1)];
    let some = if thorough() { &all[..] } else { &all[..2] };
    for ranks in ranks {
        for (seed, (strategy, lookahead, microbatches)) in (0..).zip(some) {
            let planned = compile_on_gpus(text, *strategy, *ranks, *lookahead, *microbatches);
            let what =
                format!("{ranks} ranks, {strategy:?}, lookahead {lookahead}, {microbatches} microbatches");
            let (bits, launches) = trained(&kernels, &apart(&planned), seed);
            let alone = launches.values().sum::<u64>();
            let (own, launches) = trained(&kernels, &planned, seed + 10);
            assert!(own == bits, "{what}: other bits");
            let (count, launches) = (groups(&planned.train).count(), launches.values().sum::<u64>());
            eprintln!("{what}: {count} groups, {launches} launches where {alone} were");
            assert!(count > 0 && launches < alone, "{what}");
        }
    }
}

#[test]
fn one_optimizer() {
    equal(&model([ROWWISE; 4], "row_wise", true, true), &[1, 2]);
    equal(&model([ROWWISE; 4], "row_wise", true, false), &[2]);
}

#[test]
fn several_optimizers() {
    let all = [ROWWISE, "sgd(lr: 0.1)", "adam(lr: 0.01)", "adam(lr: 0.01)"];
    equal(&model(all, "row_wise", true, true), &[3]);
    equal(&model(all, "row_wise", true, false), &[2]);
}

#[test]
fn one_row_per_occurrence() {
    equal(&model(["adagrad(lr: 0.05)"; 4], "row_wise", false, true), &[2]);
}

#[test]
fn other_shardings() {
    equal(&model([ROWWISE; 4], "table_wise", true, true), &[2]);
    equal(&model(["adam(lr: 0.01)"; 4], "column_wise", true, false), &[2]);
    equal(&model(["sgd(lr: 0.1)"; 4], "data_parallel", true, true), &[2]);
}

/// Operations of a kind, and launches that start them.
fn starts(program: &Program, of: fn(&Action) -> bool) -> (u64, u64) {
    let own: Vec<&Op> = program.ops.iter().filter(|op| of(&op.action)).collect();
    (own.len() as u64, own.iter().filter(|op| !op.joined).count() as u64)
}

/// Whether an action is of a kind.
type Kind = fn(&Action) -> bool;

#[test]
fn several_take_as_many_launches_as_one() {
    let Some(kernels) = kernels() else { return };
    // None of them is ever empty.
    let schedule = compile_on_gpus(&model([ROWWISE; 4], "row_wise", true, true), Strategy::Prefetch, 1, 1, 1);
    let ((_, alone), (_, together)) =
        (trained(&kernels, &apart(&schedule), 1), trained(&kernels, &schedule, 2));
    let steps = 6;
    let kinds: [(&str, Kind); 3] = [
        ("gather", |a| matches!(a, Action::Gather { .. })),
        ("rowwise_adagrad_rows", |a| matches!(a, Action::Apply { .. })),
        ("count_by_owner", |a| matches!(a, Action::Unique { .. })),
    ];
    for (kernel, kind) in kinds {
        let (ops, launches) = starts(&schedule.train, kind);
        assert!(launches < ops, "{kernel}: {launches} launches of {ops}");
        assert_eq!((alone[kernel], together[kernel]), (steps * ops, steps * launches), "{kernel}");
    }
    // Within each of these, too: sorting, sums and sets of rows.
    let (ops, launches) = starts(&schedule.train, |a| matches!(a, Action::Apply { .. }));
    for kernel in ["received_sum", "bitmap_rank_rows", "bitmap_remove_rows"] {
        assert_eq!((alone[kernel], together[kernel]), (steps * ops, steps * launches), "{kernel}");
    }
}

/// The examples, of which dlrm has many tables.
#[test]
fn examples() {
    let Some(kernels) = kernels() else { return };
    let some = if thorough() { &EXAMPLES[..] } else { &EXAMPLES[2..3] };
    for example in some {
        let small = Small::new(*example);
        let cluster = fs_dsl::cluster::preset("dgx_h100");
        for strategy in [Strategy::Pec, Strategy::Prefetch] {
            let planned = small.schedule_on(cluster.clone(), Some(strategy), 2);
            let run = |schedule: &Schedule| {
                let device: cuda::Options<Emulated> = device(&kernels, 5);
                let options = fs_executor::Options::default()
                    .schedule_file(small.folder.path().join("small.json"))
                    .evaluate(false);
                let mut session =
                    fs_tests::emulated::session::<Cuda<Emulated>>(schedule, options, &device).unwrap();
                let (outcome, _) = fs_tests::training::train(&mut session, &mut ()).unwrap();
                (outcome, device.drivers[0].launches().values().sum::<u64>())
            };
            let ((bits, alone), (own, launches)) = (run(&apart(&planned)), run(&planned));
            let (name, count) = (example.0, groups(&planned.train).count());
            eprintln!("{name}, {strategy:?}: {count} groups, {launches} launches where {alone} were");
            assert!(own == bits, "{name}, {strategy:?}: other bits");
            assert!(count == 0 || launches < alone, "{name}, {strategy:?}");
        }
    }
}
