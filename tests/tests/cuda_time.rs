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
use fs_schedule::{Action, Engine, Schedule};
use fs_tests::emulated::{session, thorough};
use fs_tests::replay::Noting;
use fs_tests::small::{EXAMPLES, Small};

const STRATEGIES: [Option<Strategy>; 4] =
    [Some(Strategy::Serial), Some(Strategy::Prefetch), Some(Strategy::Pec), None];

/// Steps of a run, and those whose time is taken: the pipeline is full, and does not drain yet. With seven batches in flight it takes
/// a dozen steps until operations no longer wait for all that was begun before, as they do while some have no batch.
const STEPS: (u64, usize, usize) = (36, 18, 26);

/// Seconds of a step that the device would take, the host learning what it must at once and after so many nanoseconds.
fn steps(kernels: &Arc<Emulation>, small: &Small, schedule: &Schedule, late: &[u64]) -> Vec<f64> {
    let schedule = Arc::new(schedule.clone());
    let driver = Emulated::new(emulated::Options::default(), Box::new(Arc::clone(kernels)));
    let driver = Arc::new(Noting::new(driver, &schedule));
    let device = cuda::Options { drivers: vec![Arc::clone(&driver)], ..cuda::Options::default() };
    let options = Options::default().schedule_file(small.folder.path().join("small.json"));
    let options = options.evaluate(false).steps(STEPS.0);
    let mut session = session::<Cuda<Noting<Emulated>>>(&schedule, options, &device).unwrap();
    session.run(&mut ()).unwrap();
    let step = |lag: &u64| {
        let ends = driver.replay_late(*lag).unwrap();
        assert_eq!(ends.len() as u64, STEPS.0);
        let mean =
            |batch: usize| ends[batch].iter().map(|end| *end as f64).sum::<f64>() / ends[batch].len() as f64;
        (mean(STEPS.2) - mean(STEPS.1)) / (STEPS.2 - STEPS.1) as f64 * 1e-9
    };
    late.iter().map(step).collect()
}

fn takes(name: &str, some: &[usize]) {
    takes_on(None, name, some);
}

fn takes_on(cluster: Option<&str>, name: &str, some: &[usize]) {
    let Some(kernels) = fs_tests::emulated::kernels(env!("CARGO_TARGET_TMPDIR")) else { return };
    let small = Small::new(EXAMPLES.into_iter().find(|(own, _)| *own == name).unwrap());
    let all = if thorough() { &[0, 1, 2, 3][..] } else { some };
    for strategy in all.iter().map(|n| STRATEGIES[*n]) {
        let schedule = small.schedule_on(cluster.and_then(fs_dsl::cluster::preset), strategy, 2);
        let predicted = schedule.prediction.as_ref().unwrap().step;
        let found = steps(&kernels, &small, &schedule, &[0])[0];
        let joined = schedule.train.ops.iter().filter(|op| op.joined).count();
        let what = format!("{name}, {strategy:?}, {joined} operations joined");
        eprintln!("{what}: {found:e} s, {predicted:e} predicted, ratio {:.4}", found / predicted);
        assert!((found / predicted - 1.0).abs() < 0.01, "{what}: {found}, {predicted} predicted");
        assert!(cluster.is_none() || joined > 0, "{what}");
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

/// On GPUs one launch starts the same of several tables: each has its share of that, and what waits for one goes on when all are done.
#[test]
fn one_launch_for_several_tables() {
    takes_on(Some("dgx_h100"), "dlrm", &[1, 2]);
}

/// The same on two nodes that are far apart: what is under way holds up its queue and what needs it, and takes no time of the
/// network.
#[test]
fn latency_is_no_time_of_the_network() {
    let Some(kernels) = fs_tests::emulated::kernels(env!("CARGO_TARGET_TMPDIR")) else { return };
    let mut apart = fs_dsl::cluster::preset("h100x256").unwrap();
    (apart.nodes, apart.gpus_per_node, apart.inter.latency) = (2, 1, 40e-6);
    let all = if thorough() { &EXAMPLES[..] } else { &EXAMPLES[..1] };
    for example in all {
        let small = Small::new(*example);
        for strategy in STRATEGIES {
            let schedule = small.schedule_on(Some(apart.clone()), strategy, 2);
            let predicted = schedule.prediction.as_ref().unwrap().step;
            let found = steps(&kernels, &small, &schedule, &[0])[0];
            let name = example.0;
            eprintln!(
                "{name}, {strategy:?}: {found:e} s, {predicted:e} predicted, ratio {:.4}",
                found / predicted
            );
            assert!(
                (found / predicted - 1.0).abs() < 0.01,
                "{name}, {strategy:?}: {found}, {predicted} predicted"
            );
            assert!(schedule.train.ops.iter().any(|op| op.lag > 10 * op.time));
        }
    }
}

/// On a GPU, where the host learns what it must a while after an operation has ended, compute does not stand still for that.
fn learns(name: &str, some: &[usize]) {
    let Some(kernels) = fs_tests::emulated::kernels(env!("CARGO_TARGET_TMPDIR")) else { return };
    let small = Small::new(EXAMPLES.into_iter().find(|(own, _)| *own == name).unwrap());
    let cluster = fs_dsl::cluster::preset("dgx_h100").unwrap();
    // What the planner leaves room for: four launches.
    let lag = (4.0 * cluster.host.latency * 1e9) as u64;
    let all = if thorough() { &[1, 2, 3][..] } else { some };
    for strategy in all.iter().map(|n| STRATEGIES[*n]) {
        let mut schedule = small.schedule_on(Some(cluster.clone()), strategy, 2);
        let found = steps(&kernels, &small, &schedule, &[0, lag]);
        eprintln!("{name}, {strategy:?}: {:.4} of the step if it learns {lag} ns late", found[1] / found[0]);
        assert!(found[1] < 1.005 * found[0], "{name}, {strategy:?}: {found:?}");
        // In one queue with what else compute does it would, where rows are told apart.
        let ops = &mut schedule.train.ops;
        ops.iter_mut().filter(|op| op.engine == Engine::Compute).for_each(|op| op.priority = 0);
        let one = steps(&kernels, &small, &schedule, &[0, lag]);
        eprintln!("{name}, {strategy:?}: {:.4} in one queue", one[1] / one[0]);
        let apart = schedule.train.ops.iter().any(|op| matches!(op.action, Action::Positions { .. }));
        assert!(
            !apart || one[1] > 1.02 * found[1],
            "{name}, {strategy:?}: {one:?} in one queue, {found:?} in two"
        );
    }
}

#[test]
fn compute_goes_on_while_the_host_learns() {
    learns("movielens", &[2]);
    learns("ranking", &[1, 2]);
    learns("dlrm", &[2]);
    learns("histories", &[3]);
}
