//! Losses of (emulated) GPUs come late: nothing waits for them, and every step's is told, in order.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fs_compiler::Strategy;
use fs_executor::device::cpu::Cpu;
use fs_executor::device::cuda::{Cuda, LATE_LOSS};
use fs_executor::{Observer, StepEvent};
use fs_kernels::cuda::driver::emulated::Emulated;
use fs_kernels::cuda::emulated::Emulation;
use fs_schedule::Action;
use fs_schedule::action::Effect;
use fs_tests::emulated::{Hold, comes, device, session, stands_still, train};
use fs_tests::training::{self, compile, model, options};

type Gpu = Cuda<Emulated>;

fn kernels() -> Option<Arc<Emulation>> {
    fs_tests::emulated::kernels(env!("CARGO_TARGET_TMPDIR"))
}

fn small() -> String {
    model("row_wise", "adagrad(lr: 0.05)", 60, true).replace("batch 12  steps 7", "batch 6  steps 10")
}

/// Steps that were told of, which must be told in order.
#[derive(Default)]
struct Told {
    steps: AtomicU64,
}

impl Observer for &Told {
    fn step(&mut self, event: &StepEvent) {
        assert_eq!(event.step, self.steps.fetch_add(1, Ordering::SeqCst));
    }
}

/// While no loss comes down the queue of the loss goes on, into later steps, but not for ever; and when they do all steps are
/// told of with the losses of a run in which nothing was held.
#[test]
fn no_queue_waits_for_a_loss() {
    let Some(kernels) = kernels() else { return };
    for (seed, (strategy, ranks, parts)) in
        [(Strategy::Serial, 1, 1), (Strategy::Pec, 2, 2)].into_iter().enumerate()
    {
        let schedule = compile(&small(), strategy, ranks, 1, parts);
        let free = device(&kernels, seed as u64);
        let expected = train::<Gpu>(&schedule, &free, &mut ()).unwrap();
        // What comes after the loss in its queue.
        let ops = &schedule.train.ops;
        let loss = ops.iter().rposition(|op| op.action.has(Effect::AddsLoss)).unwrap();
        let queue = (ops[loss].engine, ops[loss].priority);
        let after = ops[loss + 1..].iter().find(|op| (op.engine, op.priority) == queue).unwrap();
        let update = ops.iter().find(|op| op.action == Action::DenseUpdate).unwrap();
        let each = free.drivers[0].done(&update.name) / 10;
        let held = device(&kernels, 10 + seed as u64);
        let driver = Arc::clone(&held.drivers[0]);
        driver.hold(Some(LATE_LOSS));
        let told = Told::default();
        std::thread::scope(|scope| {
            let hold = Hold(&driver);
            let run = scope.spawn(|| train::<Gpu>(&schedule, &held, &mut &told));
            assert!(comes(|| driver.done(&after.name) > 0), "`{}` is never done", after.name);
            assert!(each > 0 && comes(|| driver.done(&update.name) >= 2 * each), "no second step is trained");
            // It stops ahead of the losses: all that there is would be loaded otherwise.
            let done = stands_still(&driver, &update.name, 10 * each);
            assert!(done < 10 * each, "nothing bounds how far it goes");
            assert_eq!(told.steps.load(Ordering::SeqCst), 0, "a step is told of without its loss");
            drop(hold);
            let outcome = run.join().unwrap().unwrap();
            assert!(outcome == expected, "{strategy:?}: other bits");
        });
        assert_eq!(told.steps.load(Ordering::SeqCst), 10);
    }
}

/// The last step is told of before its updates are done, but the run ends after them: what they meet is its error.
#[test]
fn a_run_ends_after_its_work() {
    let Some(kernels) = kernels() else { return };
    let schedule = compile(&small(), Strategy::Serial, 1, 1, 1);
    let update = schedule.train.ops.iter().find(|op| op.action == Action::DenseUpdate).unwrap();
    let device = device(&kernels, 7);
    let driver = Arc::clone(&device.drivers[0]);
    let told = Told::default();
    let mut own = session::<Gpu>(&schedule, options(), &device).unwrap();
    driver.hold(Some(&update.name));
    std::thread::scope(|scope| {
        let hold = Hold(&driver);
        let run = scope.spawn(|| own.advance(1, &mut &told).map(|events| events.len()));
        assert!(comes(|| told.steps.load(Ordering::SeqCst) == 1), "the step is never told of");
        std::thread::sleep(Duration::from_millis(300));
        assert!(!run.is_finished(), "the run has ended before its work");
        drop(hold);
        assert_eq!(run.join().unwrap().unwrap(), 1);
    });
}

/// Parts of a step's loss are added up as on the CPU, and each run begins anew.
#[test]
fn every_run_has_its_losses() {
    let Some(kernels) = kernels() else { return };
    let schedule = compile(&small(), Strategy::Pec, 2, 1, 3);
    let mut own = session::<Gpu>(&schedule, options(), &device(&kernels, 3)).unwrap();
    let mut cpu = session::<Cpu<f32>>(&schedule, options(), &()).unwrap();
    for steps in [1, 4, 2] {
        let losses = |events: Vec<StepEvent>| -> Vec<f64> { events.iter().map(StepEvent::loss).collect() };
        let found = losses(own.advance(steps, &mut ()).unwrap());
        let expected = losses(cpu.advance(steps, &mut ()).unwrap());
        assert_eq!(found.len(), expected.len());
        assert!(found.iter().any(|loss| f64::from(*loss as f32) != *loss), "none needs double precision");
        for (a, b) in found.iter().zip(&expected) {
            assert!((a - b).abs() <= 1e-4 * b.abs(), "{found:?}, {expected:?} on the CPU");
        }
        let next = own.next_step();
        let (a, b) = (own.loss_and_gradients(next).unwrap().loss, cpu.loss_and_gradients(next).unwrap().loss);
        assert!((a - b).abs() <= 1e-4 * b.abs(), "{a}, {b} on the CPU");
    }
}

/// A loss that is no number is told like any other.
#[test]
fn a_loss_that_is_no_number() {
    let Some(kernels) = kernels() else { return };
    let text = small().replace("optimizer adam(lr: 1e-2)", "optimizer sgd(lr: 1e30)");
    let schedule = compile(&text, Strategy::Prefetch, 2, 1, 1);
    let run = |outcome: training::Outcome| -> Vec<f64> {
        outcome.losses.iter().map(|loss| f64::from_bits(*loss)).collect()
    };
    let found = run(train::<Gpu>(&schedule, &device(&kernels, 4), &mut ()).unwrap());
    let expected = run(train::<Cpu<f32>>(&schedule, &(), &mut ()).unwrap());
    assert!(found.iter().any(|loss| loss.is_nan()), "{found:?}");
    assert_eq!(found.len(), expected.len());
    for (a, b) in found.iter().zip(&expected) {
        assert!(a.is_finite() == b.is_finite(), "{found:?}, {expected:?} on the CPU");
    }
}
