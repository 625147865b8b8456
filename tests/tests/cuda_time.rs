//! What the device enqueues takes as long as the compiler has predicted, if operations take what it expected of them: streams,
//! events and the order in which the host calls cost nothing that is not in the schedule. `FS_THOROUGH=1` tries all strategies
//! of all examples.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::sync::Arc;

use fs_compiler::Strategy;
use fs_executor::Options;
use fs_executor::device::cuda::{self, Cuda};
use fs_kernels::cuda::driver::emulated::{self, Emulated};
use fs_kernels::cuda::emulated::Emulation;
use fs_schedule::Schedule;
use fs_tests::emulated::{session, thorough};
use fs_tests::replay::Noting;
use fs_tests::small::{EXAMPLES, Small};

const STRATEGIES: [Option<Strategy>; 4] =
    [Some(Strategy::Serial), Some(Strategy::Prefetch), Some(Strategy::Pec), None];

/// Steps of a run, and those whose time is taken: the pipeline is full, and does not drain yet.
const STEPS: (u64, usize, usize) = (20, 8, 16);

/// Seconds of a step that the device would take.
fn step(kernels: &Arc<Emulation>, small: &Small, schedule: &Schedule) -> f64 {
    let schedule = Arc::new(schedule.clone());
    let driver = Emulated::new(emulated::Options::default(), Box::new(Arc::clone(kernels)));
    let driver = Arc::new(Noting::new(driver, &schedule));
    let device = cuda::Options { drivers: vec![Arc::clone(&driver)], ..cuda::Options::default() };
    let options = Options::default().schedule_file(small.folder.path().join("small.json"));
    let options = options.evaluate(false).steps(STEPS.0);
    let mut session = session::<Cuda<Noting<Emulated>>>(&schedule, options, &device).unwrap();
    session.run(&mut ()).unwrap();
    let ends = driver.replay().unwrap();
    assert_eq!(ends.len() as u64, STEPS.0);
    let mean =
        |batch: usize| ends[batch].iter().map(|end| *end as f64).sum::<f64>() / ends[batch].len() as f64;
    (mean(STEPS.2) - mean(STEPS.1)) / (STEPS.2 - STEPS.1) as f64 * 1e-9
}

fn takes(name: &str, some: &[usize]) {
    let Some(kernels) = fs_tests::emulated::kernels(env!("CARGO_TARGET_TMPDIR")) else { return };
    let small = Small::new(EXAMPLES.into_iter().find(|(own, _)| *own == name).unwrap());
    let all = if thorough() { &[0, 1, 2, 3][..] } else { some };
    for strategy in all.iter().map(|n| STRATEGIES[*n]) {
        let schedule = small.schedule(strategy, 2);
        let predicted = schedule.prediction.as_ref().unwrap().step;
        let found = step(&kernels, &small, &schedule);
        eprintln!(
            "{name}, {strategy:?}: {found:e} s, {predicted:e} predicted, ratio {:.4}",
            found / predicted
        );
        assert!(
            (found / predicted - 1.0).abs() < 0.01,
            "{name}, {strategy:?}: {found}, {predicted} predicted"
        );
    }
}

#[test]
fn movielens() {
    takes("movielens", &[2]);
}

#[test]
fn ranking() {
    takes("ranking", &[0, 3]);
}

#[test]
fn dlrm() {
    takes("dlrm", &[1]);
}

#[test]
fn histories() {
    takes("histories", &[2]);
}
