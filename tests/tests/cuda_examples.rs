//! The examples, made small, train on a GPU that is emulated: near the CPU, and with the same bits whatever the strategy.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use fs_compiler::Strategy;
use fs_executor::device::Device;
use fs_executor::device::cpu::Cpu;
use fs_executor::device::cuda::Cuda;
use fs_executor::{Options, Report};
use fs_kernels::cuda::driver::emulated::Emulated;
use fs_schedule::Schedule;
use fs_tests::emulated::{assert_near, device, session, thorough};
use fs_tests::small::{EXAMPLES, Small};
use fs_tests::training::{self, Outcome};

const STRATEGIES: [Option<Strategy>; 4] =
    [Some(Strategy::Serial), Some(Strategy::Prefetch), Some(Strategy::Pec), None];

/// Trains and evaluates.
fn train<D: Device<Real = f32>>(
    small: &Small,
    schedule: &Schedule,
    device: &D::Options,
) -> (Outcome, Report) {
    let options = Options::default().schedule_file(small.folder.path().join("small.json"));
    let mut session = session_of::<D>(schedule, options, device);
    training::train(&mut session, &mut ()).unwrap_or_else(|e| panic!("{e}"))
}

fn session_of<D: Device<Real = f32>>(
    schedule: &Schedule,
    options: Options,
    device: &D::Options,
) -> fs_executor::Session<f32, D> {
    session::<D>(schedule, options, device).unwrap_or_else(|e| panic!("{e}"))
}

fn trains(name: &str) {
    let Some(kernels) = fs_tests::emulated::kernels(env!("CARGO_TARGET_TMPDIR")) else { return };
    let example = EXAMPLES.into_iter().find(|(own, _)| *own == name).unwrap();
    let small = Small::new(example);
    let mut first = None;
    let (ranks, mut seed) = (2, 0);
    let all = if thorough() { &STRATEGIES[..] } else { &STRATEGIES[[0, 1][name.len() % 2]..] };
    for strategy in all {
        let what = format!("{name}, {strategy:?}");
        let schedule = small.schedule(*strategy, ranks);
        let (outcome, report) = train::<Cuda<Emulated>>(&small, &schedule, &device(&kernels, seed));
        seed += 1;
        let (expected, scores) = first.get_or_insert_with(|| {
            let (cpu, of_cpu) = train::<Cpu<f32>>(&small, &schedule, &());
            assert_near(&what, &outcome, &cpu);
            assert!(outcome.losses.iter().all(|loss| f64::from_bits(*loss) > 0.0), "{what}");
            assert_eq!(report.evaluation.is_some(), of_cpu.evaluation.is_some(), "{what}");
            assert_eq!(report.evaluation.is_some(), name == "movielens", "{what}");
            (outcome.clone(), report.evaluation.map(|e| e.model))
        });
        assert!(outcome == *expected, "{what}: other bits than with the first schedule");
        assert_eq!(report.evaluation.map(|e| e.model), *scores, "{what}");
    }
}

#[test]
fn movielens() {
    trains("movielens");
}

#[test]
fn ranking() {
    trains("ranking");
}

#[test]
fn dlrm() {
    trains("dlrm");
}

#[test]
fn histories() {
    trains("histories");
}
