//! Schedules on a device that ends operations late and in another order ([`fs_tests::mock`]): the same bits as on the
//! CPU, and nothing used before it is there. A schedule that lacks order is noticed.

use std::sync::Arc;

use fs_compiler::{CompileOptions, Strategy, compile_with};
use fs_dsl::checked::DType;
use fs_executor::device::Device;
use fs_executor::device::cpu::Cpu;
use fs_executor::transport::wire::World;
use fs_executor::{Observer, Options, Session, StepEvent, data};
use fs_schedule::{
    Data, DenseOptimizer, Duration, IdDistribution, Init, LabelDistribution, LengthDistribution, Schedule,
    Sharding,
};
use fs_tests::mock::{self, Mock};
use fs_tests::models::{Features, models};
use fs_tests::mutations::{Mutation, mutations};
use fs_tests::on_all_cores;
use fs_tests::pipes::joined;
use fs_tests::schedules::{Recipe, build};
use fs_tests::training::{self, Outcome, compile, model};
use proptest::prelude::*;

/// Wherever operations end, the time of a step is accounted for to the nanosecond.
struct Accounts;

impl Observer for Accounts {
    fn step(&mut self, event: &StepEvent) {
        for a in &event.accounts {
            assert_eq!(a.time, a.compute + a.exposed + a.straggler + a.host + a.other, "step {}", event.step);
        }
    }
}

fn train<D: Device<Real = f32>>(s: &Schedule, device: &D::Options) -> Result<Outcome, String> {
    train_in::<D>(None, s, device)
}

/// The same as one process of a world.
fn train_in<D: Device<Real = f32>>(
    world: Option<World>,
    s: &Schedule,
    device: &D::Options,
) -> Result<Outcome, String> {
    let schedule = Arc::new(s.clone());
    let options = Options::default().evaluate(false).world(world);
    let source = data::open(&schedule, None, None, schedule.settings.seed).map_err(|e| e.to_string())?;
    let session = Session::<f32, D>::on(schedule, options, source, device);
    let mut session = session.map_err(|e| e.to_string())?;
    let trained = training::train(&mut session, &mut Accounts);
    trained.map(|(outcome, _)| outcome).map_err(|e| e.to_string())
}

/// What was noticed on the late device, and the outcome.
fn late(s: &Schedule, seed: u64) -> (Vec<String>, Result<Outcome, String>) {
    let options = mock::Options { seed, polls: 3, slow: 3 + seed % 7, ..mock::Options::default() };
    let outcome = train::<Mock>(s, &options);
    let reports = std::mem::take(&mut *options.reports.lock());
    (reports, outcome)
}

/// Every strategy, lookahead and number of microbatches on so many ranks, all as the serial schedule on the CPU.
fn equal(sharding: &str, optimizer: &str, unique: bool, ranks: &[u32]) {
    let text = model(sharding, optimizer, 60, unique);
    for (n, ranks) in (0..).zip(ranks) {
        for microbatches in [1, 2, 4] {
            let serial = compile(&text, Strategy::Serial, *ranks, 1, microbatches);
            let expected = train::<Cpu<f32>>(&serial, &()).unwrap_or_else(|e| panic!("{e}"));
            let mut all = vec![serial, compile(&text, Strategy::Prefetch, *ranks, 1, microbatches)];
            all.extend((1..=3).map(|k| compile(&text, Strategy::Pec, *ranks, k, microbatches)));
            let numbered: Vec<_> = (0..).zip(&all).collect();
            // Late ones wait much.
            on_all_cores(&numbered, |(i, schedule)| {
                let seed = 100 * n + 10 * u64::from(microbatches) + *i;
                let (reports, outcome) = late(schedule, seed);
                let what = format!(
                    "{sharding}, {ranks} ranks, {microbatches} microbatches, {:?} (schedule {i}), seed {seed}",
                    schedule.strategy
                );
                assert!(reports.is_empty(), "{what}: {reports:#?}");
                let outcome = outcome.unwrap_or_else(|e| panic!("{what}: {e}"));
                assert!(outcome == expected, "{what}: other bits than on the CPU");
            });
        }
    }
}

#[test]
fn row_wise() {
    equal("row_wise", "rowwise_adagrad(lr: 0.05)", true, &[1, 2, 3]);
}

#[test]
fn one_row_per_occurrence() {
    equal("row_wise", "adam(lr: 0.05)", false, &[2]);
}

#[test]
fn hashed_rows() {
    equal("row_wise(placement: hashed)", "adagrad(lr: 0.05)", true, &[2, 3]);
}

#[test]
fn table_wise() {
    equal("table_wise", "adagrad(lr: 0.05)", true, &[1, 2, 3]);
}

#[test]
fn column_wise() {
    equal("column_wise", "adam(lr: 0.05)", true, &[1, 2, 3]);
}

#[test]
fn data_parallel() {
    equal("data_parallel", "sgd(lr: 0.1)", true, &[1, 2, 3]);
}

/// Outboxes of a late device, as bytes to other processes and where they are within one.
#[test]
fn late_outboxes_travel_as_bytes() {
    for sharding in ["row_wise", "data_parallel"] {
        let text = model(sharding, "adagrad(lr: 0.05)", 60, true);
        let schedule = compile(&text, Strategy::Pec, 3, 2, 2);
        let expected = train::<Cpu<f32>>(&schedule, &()).unwrap_or_else(|e| panic!("{e}"));
        let worlds = joined(&[vec![0], vec![1, 2]]).expect("streams");
        std::thread::scope(|scope| {
            for (seed, (world, _)) in (0..).zip(worlds) {
                let (schedule, expected) = (&schedule, &expected);
                scope.spawn(move || {
                    let options = mock::Options { seed, polls: 3, ..mock::Options::default() };
                    let outcome = train_in::<Mock>(Some(world), schedule, &options);
                    assert!(options.reports.lock().is_empty(), "{:#?}", options.reports.lock());
                    assert!(outcome.as_ref() == Ok(expected), "{sharding}: other bits than on the CPU");
                });
            }
        });
    }
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|c| c.parse().ok()).unwrap_or(12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_models(
        model in models(Features { shardings: true, microbatches: true, placements: true }),
        ranks in 1..4u32,
        lookahead in 1..4u32,
        seed in 0..1000u64,
        compute in prop::sample::select(&[DType::F32, DType::BF16][..]),
    ) {
        let text = model.with_lookahead(lookahead).text();
        let loaded = fs_dsl::check_text("random.fs", &text);
        let mut program = loaded.program.expect("a random model checks");
        program.train.precision.compute = compute;
        program.train.batch *= ranks;
        let compiled = |strategy| {
            let options = CompileOptions::new(strategy, ranks).balance_at(model.at()).tables(model.folds());
            let compiled = compile_with(&program, &options);
            compiled.unwrap_or_else(|e| panic!("{strategy:?}: {e}")).schedule
        };
        let expected = train::<Cpu<f32>>(&compiled(Strategy::Serial), &());
        for strategy in [Strategy::Serial, Strategy::Prefetch, Strategy::Pec] {
            let (reports, outcome) = late(&compiled(strategy), seed);
            prop_assert!(reports.is_empty(), "{:?}: {:#?}", strategy, reports);
            prop_assert!(outcome == expected, "{:?}: other bits than on the CPU", strategy);
        }
    }
}

/// Kinds of missing order that the device must notice, each in at least half of the schedules that have a place for it.
/// Not among them: an operation before its batch is loaded, which engines wait for without being told, and an update
/// that is deferred by a whole step, which is through long before.
const NOTICED: &[&str] = &[
    "a dependency on the writer of an operand dropped",
    "rows of another batch compared before they arrive",
    "additions in no certain order",
    "an addition while an earlier reader runs",
    "a slot taken over before its last reader is done",
    "too few copies",
    "a copy written again while it is read",
    "a gradient reduced before it is complete",
    "a gradient written again before its update",
    "a parameter read before its update",
    "a parameter updated while it is read",
    "a lookup of the next batch before the update",
    "a distance off by one between update and lookup",
    "an update before its own batch's lookup",
    "updates of one row in no certain order",
];

/// A schedule made by hand, whose lookups and updates have queues of their own.
fn by_hand(lookahead: u32, microbatches: u32, sharding: Sharding) -> Schedule {
    let plan = Recipe::new(fs_schedule::Strategy::Pec, Some(lookahead), microbatches);
    let mut s = build(&plan.tables(vec![sharding]));
    s.settings.duration = Duration::Steps(7);
    s.settings.optimizer = DenseOptimizer::Sgd { lr: 0.01, momentum: 0.0, weight_decay: 0.0 };
    s.tables.iter_mut().for_each(|t| t.init = Init::Hash { scale: 0.1, salt: 0 });
    s.data = Some(Data::Generate {
        lengths: LengthDistribution::Uniform { min: 0, max: 4 },
        ids: IdDistribution::Uniform,
        labels: LabelDistribution::Hash,
        samples: None,
    });
    s
}

/// Whether all is tried, or as much as decides.
fn thorough() -> bool {
    std::env::var_os("FS_THOROUGH").is_some()
}

/// In how many of so many schedules a kind of missing order was noticed; no more are tried than half of all.
fn noticed(mutation: &Mutation, bases: &[(Schedule, Outcome)]) -> (u32, u32) {
    let (mut found, mut tried) = (0, 0);
    for (base, expected) in bases {
        if 2 * found as usize >= bases.len() && !thorough() {
            break;
        }
        let mut broken = base.clone();
        if (mutation.corrupt)(&mut broken).is_none() {
            continue;
        }
        // An operation moved to another step may wait for itself, on any device.
        let stages = |s: &Schedule| s.train.ops.iter().map(|op| op.stage).collect::<Vec<_>>();
        if stages(&broken) != stages(base) {
            continue;
        }
        tried += 1;
        found += u32::from((0..12).any(|seed| {
            let (reports, outcome) = late(&broken, 17 * seed + 3);
            !reports.is_empty() || outcome.as_ref() != Ok(expected)
        }));
    }
    (found, tried)
}

#[test]
fn missing_order_is_noticed() {
    let mut bases = Vec::new();
    for (sharding, lookahead, microbatches) in
        [("row_wise", 1, 1), ("row_wise", 2, 2), ("data_parallel", 1, 2), ("column_wise", 2, 1)]
    {
        let text = model(sharding, "adagrad(lr: 0.05)", 60, true);
        let schedule = compile(&text, Strategy::Pec, 2, lookahead, microbatches);
        let expected = train::<Cpu<f32>>(&schedule, &()).unwrap_or_else(|e| panic!("{e}"));
        bases.push((schedule, expected));
    }
    for (lookahead, microbatches, sharding) in [
        (1, 1, Sharding::RowWise),
        (2, 1, Sharding::RowWise),
        (3, 1, Sharding::RowWise),
        (2, 2, Sharding::DataParallel),
    ] {
        let schedule = by_hand(lookahead, microbatches, sharding);
        let expected = train::<Cpu<f32>>(&schedule, &()).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(late(&schedule, 1), (Vec::new(), Ok(expected.clone())), "made by hand");
        bases.push((schedule, expected));
    }
    // With too few places for batches the reader waits for one of them to come back, on any device.
    let asked = |m: &&Mutation| thorough() || NOTICED.contains(&m.name);
    let all: Vec<_> = mutations().filter(|m| m.order && m.rule != "in-flight").filter(asked).collect();
    let table = on_all_cores(&all, |mutation| {
        let (found, tried) = noticed(mutation, &bases);
        eprintln!("{found} of {tried}: {}", mutation.name);
        (mutation.name, (found, tried))
    });
    for name in NOTICED {
        let (found, tried) = table.iter().find(|(n, _)| n == name).expect("a kind").1;
        assert!(found > 0 && 2 * found >= tried, "{name}: noticed in {found} of {tried}");
    }
}
