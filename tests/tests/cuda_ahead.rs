//! What the host must learn of an (emulated) GPU holds up nothing that does not need it.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fs_compiler::{CompileOptions, Strategy, compile_with};
use fs_executor::device::cuda::{self, Cuda};
use fs_executor::{Observer, Record, StepEvent};
use fs_kernels::cuda::driver::emulated::Emulated;
use fs_schedule::action::{Phase, Runs};
use fs_schedule::{Action, Engine, Op, Program, Schedule, Way};
use fs_tests::emulated::{Hold, comes, device, session, stands_still, thorough, train};
use fs_tests::on_all_cores;
use fs_tests::training::{self, Outcome, compile, model};

type Gpu = Cuda<Emulated>;

/// Does something at the end of a step.
struct At<'a> {
    step: u64,
    act: &'a (dyn Fn() + Sync),
    told: AtomicU64,
}

impl Observer for &At<'_> {
    fn step(&mut self, event: &StepEvent) {
        if event.step == self.step {
            (self.act)();
        }
        self.told.store(event.step, Ordering::SeqCst);
    }
}

/// Shows it again, whatever happens.
struct Shown<'a>(&'a Emulated);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        self.0.hide(None);
    }
}

/// Nanoseconds that the planner leaves the host to learn: four launches of the preset `local`.
const ROOM: f64 = 4_000.0;

/// Steps that are looked at.
const STEPS: usize = 8;

/// What of which step is not begun, and what does not end for the host, while an operation of the second step does not end, by the
/// rules of queues and dependencies: by step, then operation.
fn held_up(program: &Program, held: usize) -> [Vec<Vec<bool>>; 2] {
    let ops = &program.ops;
    let mut stands = vec![vec![false; ops.len()]; STEPS];
    let mut lasts = stands.clone();
    lasts[1][held] = true;
    let queue = |op: &Op| (op.engine, op.priority);
    for step in 1..STEPS {
        for (i, op) in ops.iter().enumerate() {
            let depends = op.deps.iter().any(|d| {
                step.checked_sub(d.distance as usize).is_some_and(|step| lasts[step][d.op as usize])
            });
            let own = ops.iter().enumerate().filter(|(_, other)| queue(other) == queue(op));
            let mut before = (1..=step).flat_map(|at| own.clone().map(move |own| (at, own)));
            // In order, so nothing begins before what comes before it has, and ends before that has.
            let before = before.by_ref().take_while(|(at, (j, _))| (*at, *j) < (step, i));
            let (mut behind, mut after) = (false, false);
            for (at, (j, other)) in before {
                let learns = other.action.facts().learns.host_sync;
                behind |= stands[at][j] || lasts[at][j] && (!learns || program.needs(op, other));
                after |= lasts[at][j];
            }
            stands[step][i] = depends || behind;
            lasts[step][i] |= stands[step][i] || after;
        }
    }
    [stands, lasts]
}

/// Trains, and what was recorded of each rank.
fn traced(
    schedule: &Schedule,
    device: &cuda::Options<Emulated>,
    observer: &mut dyn Observer,
) -> (Outcome, Vec<Vec<Record>>) {
    let mut session = session::<Gpu>(schedule, training::options(), device).unwrap();
    session.record(Some(0..u64::MAX));
    let (outcome, _) = training::train(&mut session, observer).unwrap();
    (outcome, session.take_records())
}

/// While a device is not through with what tells how many rows a batch needs of which class, compute goes on with the batch before,
/// as far as its queue does not need them, and what came of it is what comes if nothing is held.
#[test]
fn compute_goes_on_with_the_batch_before() {
    let Some(kernels) = fs_tests::emulated::kernels(env!("CARGO_TARGET_TMPDIR")) else { return };
    let steps = 12;
    // Every batch is as much work as others.
    let text = model("row_wise", "adagrad(lr: 0.05)", 60, true)
        .replace("batch 12  steps 7", &format!("batch 6  steps {steps}"))
        .replace("uniform(0, 7)", "uniform(1, 7)")
        .replace("samples 31", "samples 36");
    on_all_cores(&[(0, 1, 1), (1, 2, 2)], |&(seed, ranks, lookahead)| {
        let schedule = compile(&text, Strategy::Pec, ranks, lookahead, 1);
        let free = device(&kernels, seed);
        let expected = train::<Gpu>(&schedule, &free, &mut ()).unwrap();
        let ops = &schedule.train.ops;
        let forward = |op: &Op| matches!(op.action, Action::Positions { way: Way::Forward, .. });
        let told = ops.iter().position(forward).unwrap();
        // It stands in a queue with nothing but work on ids.
        let queue = |op: &Op| (op.engine, op.priority);
        for other in ops.iter().filter(|other| queue(other) == queue(&ops[told])) {
            let facts = other.action.facts();
            assert!(facts.phase == Phase::InputDist && facts.runs == Runs::Compute, "{}", other.name);
        }
        // The last that compute begins of its other queue.
        let [stands, _] = held_up(&schedule.train, told);
        let dense = |op: &Op| op.engine == Engine::Compute && op.action.facts().phase != Phase::InputDist;
        let all = (1..STEPS).flat_map(|step| (0..ops.len()).map(move |i| (step, i)));
        let queued: Vec<(usize, usize)> = all.filter(|(_, i)| dense(&ops[*i])).collect();
        let first = queued.iter().position(|(step, i)| stands[*step][*i]).expect("something needs it");
        let (needs, user) = queued[first];
        // Of those before it the last that is as much work in each batch.
        let even = |i: usize| free.drivers[0].done(&ops[i].name).checked_rem(steps) == Some(0);
        let (step, last) = *queued[..first].iter().rfind(|(_, i)| even(*i)).unwrap();
        let batches = step as i64 - 1 + i64::from(ops[last].stage) - i64::from(ops[told].stage);
        // There is room for the host to learn it.
        let prediction = schedule.prediction.as_ref().unwrap();
        let begins = (needs - 1) as f64 * prediction.step * 1e9 + ops[user].start as f64;
        let left = begins - (ops[told].start + ops[told].time) as f64;
        assert!(left >= ROOM, "`{}` is planned {left} ns after `{}`", ops[user].name, ops[told].name);
        // How often each name is worked on in a batch, by all ranks.
        let (told_at, last_at, stage) = (told, last, ops[told].stage);
        let (told, last) = (&ops[told].name, &ops[last].name);
        let each = |name: &str| free.drivers[0].done(name) / steps;
        let (of_told, of_last) = (each(told), each(last));
        assert!(of_told > 0 && of_last > 0 && even(ops.iter().position(|op| op.name == *told).unwrap()));
        let held = device(&kernels, 10 + seed);
        let driver = Arc::clone(&held.drivers[0]);
        let hold = || driver.hold(Some(told));
        let holds = At { step: 3, act: &hold, told: AtomicU64::new(0) };
        std::thread::scope(|scope| {
            let hold = Hold(&driver);
            let run = scope.spawn(|| traced(&schedule, &held, &mut &holds));
            assert!(comes(|| holds.told.load(Ordering::SeqCst) >= 3), "no third step is trained");
            let done = stands_still(&driver, last, of_last * steps) / of_last;
            // Work on the name that was under way may have been done for some ranks. The next batch is held.
            let known = driver.done(told) / of_told;
            assert!(known < steps, "nothing was held");
            let expected_of_last = (known as i64 + batches + 1) as u64;
            assert_eq!(done, expected_of_last, "`{last}`, while `{told}` of batch {known} is held");
            drop(hold);
            let (outcome, records) = run.join().unwrap();
            assert!(outcome == expected, "other bits");
            // The trace shows it, by the device's clock: of a rank that was held compute had done all this seconds before.
            let of = |records: &[Record], i: usize, batch: u64| {
                *records.iter().find(|r| r.op as usize == i && r.batch == batch).unwrap()
            };
            let needed = known + (needs as u64 - 1);
            let needed = needed.checked_add_signed(i64::from(ops[user].stage) - i64::from(stage)).unwrap();
            let mut stood = 0;
            for own in &records {
                let (late, before) = (of(own, told_at, known), of(own, last_at, done - 1));
                if before.end + 1_000_000_000 < late.start {
                    stood += 1;
                    let user = of(own, user, needed);
                    assert!(user.start >= late.end, "{user:?} needs what {late:?} tells");
                }
            }
            assert!(stood > 0, "{records:?}");
        });
    });
}

/// While the host does not see that what it must learn is there, the device goes on with what stands behind in that queue and needs
/// none of it, though nothing was enqueued of it before.
#[test]
fn a_queue_goes_on_behind_what_the_host_has_yet_to_learn() {
    let Some(kernels) = fs_tests::emulated::kernels(env!("CARGO_TARGET_TMPDIR")) else { return };
    let steps = 12;
    let text = model("row_wise", "adagrad(lr: 0.05)", 60, true)
        .replace("batch 12  steps 7", &format!("batch 6  steps {steps}"))
        .replace("uniform(0, 7)", "uniform(1, 7)")
        .replace("samples 31", "samples 36");
    on_all_cores(&[(0, 1), (1, 2)], |&(seed, ranks)| {
        let schedule = compile(&text, Strategy::Pec, ranks, 1, 1);
        let (program, ops) = (&schedule.train, &schedule.train.ops);
        let free = device(&kernels, seed);
        let expected = train::<Gpu>(&schedule, &free, &mut ()).unwrap();
        // Two neighbours of a queue of which the second needs nothing of the first, and which are as much work in each batch.
        let queue = |op: &Op| (op.engine, op.priority);
        let even = |op: &Op| {
            let done = free.drivers[0].done(&op.name);
            done > 0 && done.is_multiple_of(steps)
        };
        let learns = |op: &Op| op.action.facts().learns.host_sync && op.engine == Engine::Compute;
        let pairs = ops.iter().enumerate().filter(|(_, first)| learns(first)).filter_map(|(i, first)| {
            let (n, next) = ops.iter().enumerate().skip(i + 1).find(|(_, op)| queue(op) == queue(first))?;
            let [stands, _] = held_up(program, i);
            (!stands[1][n] && even(first) && even(next)).then_some((first, next))
        });
        let pairs: Vec<(&Op, &Op)> = pairs.collect();
        assert!(!pairs.is_empty(), "no two that are to be tried");
        let tried = if thorough() { pairs.len() } else { 2 };
        for (first, next) in pairs.into_iter().take(tried) {
            let each = |op: &Op| free.drivers[0].done(&op.name) / steps;
            let held = device(&kernels, 20 + seed);
            let driver = Arc::clone(&held.drivers[0]);
            let hide = || driver.hide(Some(&first.name));
            let hides = At { step: 3, act: &hide, told: AtomicU64::new(0) };
            std::thread::scope(|scope| {
                let shown = Shown(&driver);
                let run = scope.spawn(|| train::<Gpu>(&schedule, &held, &mut &hides));
                assert!(comes(|| hides.told.load(Ordering::SeqCst) >= 3), "no third step is trained");
                stands_still(&driver, &first.name, each(first) * steps);
                let done = stands_still(&driver, &next.name, each(next) * steps);
                // A rank may have learned of the last one just before it was hidden, and is one batch ahead of the others.
                let batches = driver.done(&first.name).div_ceil(each(first));
                assert!(batches < steps, "nothing was hidden");
                let batch = |op: &Op| batches as i64 + i64::from(op.stage) - i64::from(first.stage);
                assert_eq!(
                    done.div_ceil(each(next)) as i64,
                    batch(next),
                    "`{}`, while the host does not know what `{}` tells",
                    next.name,
                    first.name
                );
                drop(shown);
                assert!(run.join().unwrap().unwrap() == expected, "other bits");
            });
        }
    });
}

/// Who waits for an operation that was enqueued behind another waits for what that one enqueues when the host has learned of it, too.
#[test]
fn what_is_learned_late_comes_before_what_ends_behind_it() {
    let Some(kernels) = fs_tests::emulated::kernels(env!("CARGO_TARGET_TMPDIR")) else { return };
    let text = "model m {
      table t0 { rows 53  dim 8  init normal(0, 0.5)  optimizer adagrad(lr: 0.1)  sharding column_wise }
      table t1 { rows 36  dim 8  init normal(0, 0.5)  optimizer adagrad(lr: 0.1)  sharding row_wise }
      input x0: ids(t0) { max 9 }
      input x1: ids(t1) like x0
      input x2: ids(t0) like x0
      input x3: ids(t0) like x0
      input click: label like x0
      let h = lookup(x0) + scale(lookup(x1), 0.5) + lookup(x2) + scale(lookup(x3), 0.5)
      let g0 = h + linear(layer_norm(h), 8)
      let g1 = g0 + relu(linear(layer_norm(g0), 8))
      let g2 = g1 + relu(linear(layer_norm(g1), 8))
      loss bce_with_logits(linear(g2, 1), click, normalize: tokens)
    }
    train { batch 12  steps 8  optimizer adam(lr: 1e-2)  unique_rows true }
    workload w { generate { lengths uniform(0, 7)  ids zipf(1.05)  labels hash  samples 31 } }";
    let program = fs_dsl::check_text("m.fs", text).program.expect("the model checks");
    let options = CompileOptions::new(Strategy::Pec, 3).lookahead(1).microbatches(1).in_flight(3);
    let schedule = compile_with(&program, &options).unwrap().schedule;
    for seed in 0..3 {
        if let Err(error) = train::<Gpu>(&schedule, &device(&kernels, seed), &mut ()) {
            panic!("seed {seed}: {error}");
        }
    }
}
