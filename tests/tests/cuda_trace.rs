//! What is recorded of an (emulated) GPU is when it did things: times of its own clock obey all that orders work there.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fs_compiler::Strategy;
use fs_executor::device::cuda::Cuda;
use fs_executor::report::Clock;
use fs_executor::{Observer, Record, StepEvent};
use fs_kernels::cuda::driver::emulated::Emulated;
use fs_schedule::{Engine, Schedule};
use fs_tests::emulated::{device, session, thorough};
use fs_tests::training::{self, compile, compile_on_gpus, model};

type Gpu = Cuda<Emulated>;

/// Checks a rank's records against dependencies and the order of queues; how many pairs that were.
fn check(schedule: &Schedule, records: &[Record]) -> [usize; 2] {
    let ops = &schedule.train.ops;
    let of: BTreeMap<(usize, i64), &Record> =
        records.iter().map(|r| ((r.op as usize, r.batch as i64), r)).collect();
    assert_eq!(of.len(), records.len(), "one record of each");
    let mut pairs = [0; 2];
    for r in records {
        let own = &ops[r.op as usize];
        assert!(r.ready <= r.start && r.start <= r.met && r.met <= r.end, "{r:?}");
        for dep in &own.deps {
            let other = &ops[dep.op as usize];
            let batch =
                r.batch as i64 - i64::from(own.stage) + i64::from(other.stage) - i64::from(dep.distance);
            let Some(before) = of.get(&(dep.op as usize, batch)) else { continue };
            // What the host does for the device goes on there when the host's part is done: it was begun before.
            if other.engine == Engine::Host {
                assert!(before.start <= r.start, "`{}` after `{}`: {before:?}, {r:?}", own.name, other.name);
            }
            if other.engine != Engine::Host && own.engine != Engine::Host {
                pairs[0] += 1;
                assert!(before.end <= r.start, "`{}` after `{}`: {before:?}, {r:?}", own.name, other.name);
            }
        }
    }
    let queues: BTreeSet<_> = ops.iter().map(|op| (op.engine, op.priority)).collect();
    for queue in queues {
        let within = |r: &&Record| (ops[r.op as usize].engine, ops[r.op as usize].priority) == queue;
        let mut own: Vec<&Record> = records.iter().filter(within).collect();
        own.sort_by_key(|r| (r.batch as i64 - i64::from(ops[r.op as usize].stage), r.op));
        for (a, b) in own.iter().zip(&own[1..]) {
            pairs[1] += 1;
            assert!(a.end <= b.start, "{queue:?}: {a:?}, {b:?}");
        }
    }
    pairs
}

#[test]
fn times_of_the_device_obey_what_orders_its_work() {
    let Some(kernels) = fs_tests::emulated::kernels(env!("CARGO_TARGET_TMPDIR")) else { return };
    let text = model("row_wise", "adagrad(lr: 0.05)", 60, true);
    let settings = [
        (Strategy::Serial, 1, 1, 1),
        (Strategy::Prefetch, 2, 1, 1),
        (Strategy::Pec, 3, 1, 1),
        (Strategy::Pec, 2, 2, 2),
    ];
    for (seed, (strategy, ranks, lookahead, microbatches)) in settings.into_iter().enumerate() {
        // On GPUs one launch starts several operations.
        let compile = if strategy == Strategy::Pec { compile_on_gpus } else { compile };
        let schedule = compile(&text, strategy, ranks, lookahead, microbatches);
        for seed in (0..if thorough() { 10 } else { 1 }).map(|n| seed as u64 + 10 * n) {
            let device = device(&kernels, seed);
            let mut session = session::<Gpu>(&schedule, training::options(), &device).unwrap();
            // Those in the middle, then all of a run that goes on from there.
            session.record(Some(2..4));
            session.advance(4, &mut ()).unwrap();
            let middle = session.take_records();
            session.record(Some(0..u64::MAX));
            session.advance(3, &mut ()).unwrap();
            let all = session.take_records();
            for (records, steps) in [(&middle, 2..4), (&all, 4..7)] {
                assert_eq!(records.len(), ranks as usize);
                for own in records {
                    let batches: BTreeSet<u64> = own.iter().map(|r| r.batch).collect();
                    assert!(batches.into_iter().eq(steps.clone()), "{steps:?}");
                    assert_eq!(own.len(), schedule.train.ops.len() * (steps.end - steps.start) as usize);
                    let [deps, queues] = check(&schedule, own);
                    assert!(deps > own.len() / 8 && queues > own.len() / 2, "{deps}, {queues}");
                }
                // No rank has all of a transfer before the last one has begun.
                for r in records.iter().flatten() {
                    let op = &schedule.train.ops[r.op as usize];
                    if !op.action.is_transfer() {
                        continue;
                    }
                    let same = |o: &&Record| (o.op, o.batch) == (r.op, r.batch);
                    let last = records.iter().flatten().filter(same).map(|o| o.start).max().unwrap();
                    assert!(
                        r.met == last && last <= r.end,
                        "`{}`: {r:?}, the last begins at {last}",
                        op.name
                    );
                }
            }
        }
    }
}

/// The time in which something of a kind runs, from `begin` to `end`, found by looking at every moment at which anything changes.
fn covered(schedule: &Schedule, records: &[Record], (begin, end): (u64, u64)) -> u64 {
    let ops = &schedule.train.ops;
    let compute: Vec<&Record> =
        records.iter().filter(|r| ops[r.op as usize].engine == Engine::Compute).collect();
    let changes = compute.iter().flat_map(|r| [r.start, r.end]).chain([begin, end]);
    let changes: Vec<u64> =
        changes.filter(|at| (begin..=end).contains(at)).collect::<BTreeSet<_>>().into_iter().collect();
    let works = |at: u64| compute.iter().any(|r| (r.start..r.end).contains(&at));
    changes.windows(2).filter(|pair| works(pair[0])).map(|pair| pair[1] - pair[0]).sum()
}

#[test]
fn accounts_are_by_the_clock_of_the_device() {
    let Some(kernels) = fs_tests::emulated::kernels(env!("CARGO_TARGET_TMPDIR")) else { return };
    let text = model("row_wise", "adagrad(lr: 0.05)", 60, true);
    for (strategy, ranks) in [(Strategy::Pec, 2), (Strategy::Serial, 3)] {
        let schedule = compile(&text, strategy, ranks, 1, 1);
        let device = device(&kernels, u64::from(ranks));
        let mut session = session::<Gpu>(&schedule, training::options(), &device).unwrap();
        // To the run's end: a batch after those recorded would compute in their time unseen.
        session.record(Some(2..7));
        let report = session.run(&mut ()).unwrap();
        assert_eq!(report.steps, 7);
        let records = session.take_records();
        // All was over when the host had waited for the device.
        let end = records.iter().flatten().map(|r| r.end).max().unwrap();
        assert!(end as f64 * 1e-9 < report.seconds, "{end} ns of {} s", report.seconds);
        let accounting = &report.accounting;
        assert_eq!((accounting.clock, accounting.steps), (Clock::Device, 5));
        // Of a rank the time from the end of its batch before to that of the batch.
        let ends = |own: &[Record], batch: u64| own.iter().filter(|r| r.batch == batch).map(|r| r.end).max();
        let mut computed = Vec::new();
        for step in 3..7 {
            let mean = |f: &dyn Fn(&[Record]) -> u64| {
                records.iter().map(|own| f(own) as f64).sum::<f64>() * 1e-6 / f64::from(ranks)
            };
            let bounds = |own: &[Record]| (ends(own, step - 1).unwrap(), ends(own, step).unwrap());
            computed.push(mean(&|own| covered(&schedule, own, bounds(own))));
        }
        // The median of five lies between those of four of them.
        let [least, most] = [f64::min, f64::max].map(|f| computed.iter().copied().reduce(f).unwrap());
        let slack = 1e-6;
        assert!(
            (least - slack..=most + slack).contains(&accounting.compute_ms),
            "{} of {computed:?}",
            accounting.compute_ms
        );
        let traced = report.traced.unwrap();
        for rank in &traced.ranks {
            let whole = rank.accounted_compute + rank.accounted_bubble;
            assert!((whole - 1.0).abs() < 1e-9, "{rank:?}");
            // Compute runs as long for trace tools as for the accounts, but for what crosses the ends of the window.
            assert!((rank.compute - rank.accounted_compute).abs() < 0.1, "{rank:?}");
        }
        // Operations are those of these steps.
        assert!(report.ops.iter().all(|op| op.count == 5), "{:?}", report.ops);
        let by_op: f64 = accounting.exposed.iter().map(|e| e.ms).sum();
        assert!(by_op > 0.0, "{accounting:?}");
        if strategy == Strategy::Serial {
            // In turns compute stands still for every collective until it is done, but for sums that come after its last work.
            for op in report.ops.iter().filter(|op| op.action.starts_with("all_to_all_rows")) {
                let exposed = accounting.exposed.iter().find(|e| e.op == op.name).unwrap().ms;
                let whole = (op.ms - op.waited_ms) / 5.0;
                assert!(exposed > 0.99 * whole && exposed < 1.01 * whole, "{op:?}: {exposed} of {whole}");
            }
        }
    }
}

/// Without a wish some steps of a run are timed, whatever else is asked for; their number and what they are made of is said.
#[test]
fn accounts_need_no_trace() {
    let Some(kernels) = fs_tests::emulated::kernels(env!("CARGO_TARGET_TMPDIR")) else { return };
    let schedule = compile(&model("row_wise", "adagrad(lr: 0.05)", 60, true), Strategy::Pec, 2, 1, 1);
    let mut session = session::<Gpu>(&schedule, training::options(), &device(&kernels, 3)).unwrap();
    // Then it goes on from there.
    for first in [0, 7] {
        let report = session.run(&mut ()).unwrap();
        assert_eq!(report.first_step, first);
        assert!(session.take_records().is_empty() && report.traced.is_none());
        let accounting = &report.accounting;
        assert!(accounting.steps > 0 && accounting.compute_ms > 0.0 && accounting.clock == Clock::Device);
        assert!(
            accounting.step_ms > 0.0 && accounting.compute_ms <= accounting.step_ms * 1.5,
            "{accounting:?}"
        );
        assert!(report.ops.iter().all(|op| op.count == accounting.steps as u64), "{:?}", report.ops);
        // Enqueuing is the host's work, of which the emulated device's takes far more here.
        let device: f64 = report.ops.iter().map(|op| op.ms).sum::<f64>() / accounting.steps as f64;
        assert!(accounting.issue_ms > 0.0 && accounting.issue_ms < device, "{accounting:?}, {device}");
    }
}

/// Of a run that ends before there is anything to account for nothing is said: not what the host took to enqueue it.
#[test]
fn what_is_not_timed_is_not_told() {
    let Some(kernels) = fs_tests::emulated::kernels(env!("CARGO_TARGET_TMPDIR")) else { return };
    let text = model("row_wise", "adagrad(lr: 0.05)", 60, true).replace("steps 7", "steps 60");
    let schedule = compile(&text, Strategy::Pec, 2, 1, 1);
    let stop = Arc::new(AtomicBool::new(false));
    let options = training::options().stop(Arc::clone(&stop));
    let mut session = session::<Gpu>(&schedule, options, &device(&kernels, 4)).unwrap();
    let report = session.run(&mut Stops(&stop)).unwrap();
    assert!(report.interrupted && report.steps < 10, "{}", report.steps);
    assert_eq!((report.accounting.clock, report.accounting.steps), (Clock::Device, 0));
    assert!(report.ops.iter().all(|op| op.count > 0 && op.ms == 0.0), "{:?}", report.ops);
}

/// Stops a run after its first step.
struct Stops<'a>(&'a AtomicBool);

impl Observer for Stops<'_> {
    fn step(&mut self, _: &StepEvent) {
        self.0.store(true, Ordering::SeqCst);
    }
}
