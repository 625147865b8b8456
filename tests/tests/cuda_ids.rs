//! Ids on GPUs that are emulated: every list of ids, positions, classes and numbers that an operation makes is that of
//! the CPU, bit by bit, in every batch.

use std::sync::Arc;

use fs_compiler::{At, CompileOptions, Strategy, compile_with};
use fs_executor::device::Device;
use fs_executor::device::cpu::Cpu;
use fs_executor::device::cuda::Cuda;
use fs_executor::transport::wire::World;
use fs_executor::{Options, Session, data};
use fs_kernels::cuda::driver::emulated::Emulated;
use fs_kernels::cuda::emulated::Emulation;
use fs_schedule::Schedule;
use fs_tests::models::{Features, models, windows};
use fs_tests::pipes::joined;
use fs_tests::training::{compile, compile_at, model};
use fs_tests::witness::{self, Look, Seen, Witness, difference};
use fs_tests::{emulated, training};
use proptest::prelude::*;

/// What all lists were on the ranks of this process, and how many samples moved.
fn seen<D: Look + Device<Real = f32>>(
    world: Option<World>,
    s: &Schedule,
    own: D::Options,
) -> Result<(Seen, f64), String> {
    let schedule = Arc::new(s.clone());
    let options = Options::default().evaluate(false).world(world);
    let source = data::open(&schedule, None, None, schedule.settings.seed).map_err(|e| e.to_string())?;
    let device = witness::Options::<D> { own, seen: Arc::default(), brain_floats: false };
    let session = Session::<f32, Witness<D>>::on(schedule, options, source, &device);
    let mut session = session.map_err(|e| e.to_string())?;
    let (_, report) = training::train(&mut session, &mut ()).map_err(|e| e.to_string())?;
    let seen = std::mem::take(&mut *device.seen.lock());
    Ok((seen, report.balance.map_or(0.0, |b| b.moved_samples)))
}

fn kernels() -> Option<Arc<Emulation>> {
    emulated::kernels(env!("CARGO_TARGET_TMPDIR"))
}

/// Lists of one schedule on the CPU and on the device.
fn same(kernels: &Arc<Emulation>, schedule: &Schedule, seed: u64, what: &str) -> f64 {
    let (expected, moved) = seen::<Cpu<f32>>(None, schedule, ()).unwrap_or_else(|e| panic!("{what}: {e}"));
    let found = seen::<Cuda<Emulated>>(None, schedule, emulated::device(kernels, seed));
    let (found, _) = found.unwrap_or_else(|e| panic!("{what}: {e}"));
    let lists = found.values().flatten().filter(|list| list.as_ref().is_some_and(|l| !l.is_empty())).count();
    assert!(lists > schedule.train.ops.len(), "{what}: only {lists} lists");
    if let Some(difference) = difference(schedule, &found, &expected) {
        panic!("{what}: {difference}");
    }
    moved
}

const STRATEGIES: [(Strategy, u32); 5] = [
    (Strategy::Serial, 1),
    (Strategy::Prefetch, 1),
    (Strategy::Pec, 1),
    (Strategy::Pec, 2),
    (Strategy::Pec, 3),
];

/// On each of some numbers of ranks, with some numbers of microbatches.
fn all_same(text: &str, cases: &[(u32, u32)], strategies: &[(Strategy, u32)]) {
    let Some(kernels) = kernels() else { return };
    let some = if emulated::thorough() { cases } else { &cases[..1] };
    for (seed, (ranks, microbatches)) in (0..).zip(some) {
        let one = text.len() % strategies.len();
        let some = if emulated::thorough() { strategies } else { &strategies[one..=one] };
        for (strategy, lookahead) in some {
            let schedule = compile(text, *strategy, *ranks, *lookahead, *microbatches);
            let what =
                format!("{strategy:?}, {ranks} ranks, lookahead {lookahead}, {microbatches} parts\n{text}");
            same(&kernels, &schedule, 10 * seed + u64::from(*lookahead), &what);
        }
    }
}

/// A small model, for less work a step.
fn small(sharding: &str, rows: u32, unique: bool) -> String {
    model(sharding, "sgd(lr: 0.1)", rows, unique).replace("batch 12  steps 7", "batch 12  steps 5")
}

#[test]
fn row_wise() {
    all_same(&small("row_wise", 60, true), &[(2, 1), (3, 2)], &STRATEGIES);
    all_same(&small("row_wise", 60, true), &[(1, 1), (4, 3)], &STRATEGIES[3..4]);
}

#[test]
fn hashed_and_planned_rows() {
    all_same(&small("row_wise(placement: hashed)", 60, true), &[(3, 1), (2, 2)], &STRATEGIES[2..]);
    all_same(&small("row_wise(placement: planned)", 60, true), &[(2, 1), (4, 2)], &STRATEGIES[2..3]);
}

#[test]
fn other_shardings() {
    for sharding in ["table_wise", "column_wise", "data_parallel"] {
        all_same(&small(sharding, 60, true), &[(2, 1), (3, 3)], &STRATEGIES[2..4]);
    }
}

#[test]
fn one_row_per_occurrence() {
    for sharding in ["row_wise", "table_wise", "data_parallel"] {
        all_same(&small(sharding, 60, false), &[(2, 1), (3, 2)], &STRATEGIES[2..4]);
    }
}

/// All the same row, two of them, and more than a block of a set's groups.
#[test]
fn few_and_many_rows() {
    for rows in [1, 2, 200_000] {
        all_same(&small("row_wise", rows, true), &[(3, 2)], &STRATEGIES[2..3]);
    }
}

#[test]
fn sequences_without_ids() {
    let text = |lengths: &str| small("row_wise", 60, true).replace("uniform(0, 7)", lengths);
    for lengths in ["uniform(0, 1)", "fixed(1)"] {
        let Some(kernels) = kernels() else { return };
        let schedule = compile(&text(lengths), Strategy::Pec, 3, 2, 2);
        let (expected, _) =
            seen::<Cpu<f32>>(None, &schedule, ()).unwrap_or_else(|e| panic!("{lengths}: {e}"));
        let found = seen::<Cuda<Emulated>>(None, &schedule, emulated::device(&kernels, 5));
        let (found, _) = found.unwrap_or_else(|e| panic!("{lengths}: {e}"));
        assert_eq!(difference(&schedule, &found, &expected), None, "{lengths}");
    }
}

/// Samples that move: their ids, what is made of their rows, or rows that others ask for.
#[test]
fn balanced_samples() {
    let Some(kernels) = kernels() else { return };
    let mut moved = 0.0;
    let cases = [
        ("row_wise", true, 2, 1),
        ("column_wise", false, 3, 1),
        ("row_wise", true, 3, 2),
        ("row_wise", false, 3, 1),
        ("row_wise(placement: hashed)", true, 4, 2),
        ("table_wise", true, 2, 2),
        ("data_parallel", true, 2, 2),
    ];
    let some = if emulated::thorough() { &cases[..] } else { &cases[..2] };
    for (sharding, unique, ranks, parts) in some.iter().copied() {
        let text = small(sharding, 60, unique);
        let text = text.replace("train {", "train { balance cost(c0: 0, c1: 0, c2: 1) ");
        for (n, at) in At::ALL.into_iter().enumerate() {
            if !emulated::thorough() && n != (sharding.len() + ranks as usize) % At::ALL.len() {
                continue;
            }
            if sharding == "data_parallel" && at == At::Folded {
                continue;
            }
            let schedule = compile_at(&text, Strategy::Pec, Some(at), (ranks, 2, parts));
            let what = format!("{sharding}, unique {unique}, at {at}, {ranks} ranks, {parts} parts");
            moved += same(&kernels, &schedule, u64::from(ranks), &what);
        }
    }
    assert!(moved > 0.0, "no sample moved");
}

/// Between processes all passes through the host. Gradients of parameters do not, so there are none.
#[test]
fn between_processes() {
    let Some(kernels) = kernels() else { return };
    for (sharding, at) in [
        ("row_wise", None),
        ("data_parallel", None),
        ("row_wise", Some(At::Rows)),
        ("row_wise", Some(At::Folded)),
    ] {
        let mut text = small(sharding, 60, true)
            .replace("dim 8", "dim 1")
            .replace("let g = h + linear(layer_norm(h), 8)", "")
            .replace("linear(g, 1)", "h");
        if at.is_some() {
            text = text.replace("train {", "train { balance cost(c0: 0, c1: 0, c2: 1) ");
        }
        let schedule = compile_at(&text, Strategy::Pec, at, (3, 2, 2));
        let (expected, _) = seen::<Cpu<f32>>(None, &schedule, ()).unwrap_or_else(|e| panic!("{e}"));
        let worlds = joined(&[vec![0], vec![1, 2]]).expect("streams");
        let found: Vec<Seen> = std::thread::scope(|scope| {
            let run = |(seed, (world, _)): (u64, (World, _))| {
                let (schedule, kernels) = (&schedule, &kernels);
                scope.spawn(move || {
                    let device = emulated::device(kernels, seed);
                    let found = seen::<Cuda<Emulated>>(Some(world), schedule, device);
                    found.unwrap_or_else(|e| panic!("{sharding}, {at:?}: {e}")).0
                })
            };
            let running: Vec<_> = (0..).zip(worlds).map(run).collect();
            running.into_iter().map(|thread| thread.join().expect("it ends")).collect()
        });
        let found: Seen = found.into_iter().flatten().collect();
        assert_eq!(difference(&schedule, &found, &expected), None, "{sharding}, {at:?}");
    }
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|c| c.parse().ok()).unwrap_or(1)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_models(
        model in models(Features { shardings: true, microbatches: true, placements: true }),
        ranks in 1..5u32,
        lookahead in 1..4u32,
        seed in 0..1000u64,
        picks in prop::collection::vec(any::<u8>(), 1..4),
    ) {
        let Some(kernels) = kernels() else { return Ok(()) };
        let text = model.with_lookahead(lookahead).text();
        let loaded = fs_dsl::check_text("random.fs", &text);
        let mut program = loaded.program.expect("a random model checks");
        program.train.batch *= ranks;
        let options = CompileOptions::new(Strategy::Pec, ranks).balance_at(model.at());
        let options = options.tables(model.folds().windows(windows(&program, &picks)));
        let schedule = compile_with(&program, &options).unwrap_or_else(|e| panic!("{e}")).schedule;
        let expected = seen::<Cpu<f32>>(None, &schedule, ());
        let found = seen::<Cuda<Emulated>>(None, &schedule, emulated::device(&kernels, seed));
        let (found, expected) = (found.map_err(TestCaseError::fail)?.0, expected.map_err(TestCaseError::fail)?.0);
        prop_assert_eq!(difference(&schedule, &found, &expected), None);
    }
}
