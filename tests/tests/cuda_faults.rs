//! A GPU that is lost, which is emulated: wherever that happens the run ends on all ranks with an error that says where, and
//! leaves nothing that is not whole. `FS_THOROUGH=1` tries many places.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use fs_compiler::Strategy;
use fs_executor::device::cpu::Cpu;
use fs_executor::device::cuda::{self, Cuda};
use fs_executor::{Error, Options};
use fs_kernels::cuda::driver::emulated::{self, Emulated, Lost};
use fs_kernels::cuda::emulated::Emulation;
use fs_schedule::Schedule;
use fs_tests::emulated::{session, thorough};
use fs_tests::small::{EXAMPLES, Small};
use fs_tests::training::{checkpoints, compile, compile_on_gpus, leaving, model, options, state};

type Gpu = Cuda<Emulated>;

fn kernels() -> Option<Arc<Emulation>> {
    fs_tests::emulated::kernels(env!("CARGO_TARGET_TMPDIR"))
}

fn device(kernels: &Arc<Emulation>, lost_after: Option<Lost>) -> cuda::Options<Emulated> {
    let options = emulated::Options { lost_after, ..emulated::Options::default() };
    let driver = Arc::new(Emulated::new(options, Box::new(Arc::clone(kernels))));
    cuda::Options { drivers: vec![driver], ..cuda::Options::default() }
}

/// Trains, leaves checkpoints, evaluates where that can be, and saves.
fn run(
    schedule: &Schedule,
    options: Options,
    device: &cuda::Options<Emulated>,
    folder: &Path,
) -> Result<(), Error> {
    let options = options.checkpoint(leaving(&folder.join("c"), 2, 9));
    let mut session = session::<Gpu>(schedule, options, device)?;
    session.run(&mut ())?;
    session.save(&folder.join("saved"))
}

/// What is said where the device is lost; nothing if it never was.
fn lost(
    kernels: &Arc<Emulation>,
    schedule: &Schedule,
    options: &(impl Fn() -> Options + Sync),
    after: Lost,
) -> Option<Error> {
    let folder = tempfile::tempdir().unwrap();
    let own = device(kernels, Some(after));
    let (done, ends) = channel();
    let outcome = std::thread::scope(|scope| {
        let path = folder.path();
        scope.spawn(move || {
            let outcome = run(schedule, options(), &own, path);
            let _ = done.send((outcome, own));
        });
        let ended = ends.recv_timeout(Duration::from_mins(2));
        let (outcome, _) = ended.unwrap_or_else(|_| {
            // The thread would be waited for.
            eprintln!("lost after {after:?}, the run has not ended");
            std::process::abort()
        });
        outcome
    });
    // Beside checkpoints and their lock there is the saved file, if there is anything.
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().map(|e| e.file_name()).collect();
    let known = |name: &std::ffi::OsString| name == "c" || name == "saved" && outcome.is_ok();
    assert!(left.iter().all(known), "lost after {after:?}, {left:?} were left");
    if left.iter().any(|name| name == "c") {
        for (step, path) in checkpoints(&folder.path().join("c")) {
            let from = options().init(path.clone());
            let started = session::<Cpu<f32>>(schedule, from, &());
            let started = started.unwrap_or_else(|e| panic!("{after:?}, step {step}: {e}"));
            let finite = |bits: &u32| f32::from_bits(*bits).is_finite();
            let all = state(&started).unwrap();
            assert!(all.iter().flatten().all(finite), "{after:?}, step {step}: poison in a checkpoint");
        }
    }
    outcome.err()
}

fn draw(random: &mut u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *random >> 33
}

/// Loses the device at some of the calls that a whole run makes.
fn everywhere(schedule: &Schedule, options: &(impl Fn() -> Options + Sync), seed: u64) {
    let Some(kernels) = kernels() else { return };
    let folder = tempfile::tempdir().unwrap();
    let whole = device(&kernels, None);
    run(schedule, options(), &whole, folder.path()).unwrap();
    let (calls, launches) = (whole.drivers[0].calls(), whole.drivers[0].launches().values().sum::<u64>());
    let ops = std::iter::once(&schedule.train).chain(&schedule.evaluation).flat_map(|p| &p.ops);
    let names: Vec<&str> = ops.map(|op| op.name.as_str()).collect();
    let (mut random, mut within) = (seed, 0);
    let tries = if thorough() { 60 } else { 6 };
    for n in 0..tries {
        // Spread over the run, with more where it begins and ends.
        let after = match n {
            0 => Lost::Calls(draw(&mut random) % 40),
            1 => Lost::Calls(calls - 1 - draw(&mut random) % (calls / 20)),
            // How many calls are made between operations is up to how long these take; launches differ less.
            n if n % 3 > 0 => Lost::Launches(draw(&mut random) % (9 * launches / 10)),
            _ => Lost::Calls(draw(&mut random) % (9 * calls / 10)),
        };
        let Some(error) = lost(&kernels, schedule, options, after) else {
            // How many calls there are differs a little from run to run.
            let late = matches!(after, Lost::Calls(n) if n > 8 * calls / 10);
            assert!(late, "{after:?} of {calls} and {launches}: nobody has noticed");
            continue;
        };
        let said = error.to_string();
        assert!(said.contains("the GPU is lost"), "{after:?} of {calls} and {launches}: {said}");
        match error {
            Error::Rank { rank, op, .. } => {
                assert!(rank < schedule.ranks as usize, "{rank}");
                let between = ["start of a run", "end of a run", "initial values", "values", "checkpoint"];
                within += usize::from(names.contains(&op.as_str()));
                assert!(names.contains(&op.as_str()) || between.contains(&op.as_str()), "`{op}`: {said}");
            }
            // It could not be opened, or what was to be written could not be had.
            Error::Device(_) | Error::Weights(_) | Error::Write { .. } => {}
            other => panic!("{after:?} of {calls} and {launches}: {other:?}"),
        }
    }
    assert!(within >= tries / 3, "{within} of {tries} were noticed in an operation");
}

#[test]
fn while_it_trains() {
    let text = model("row_wise", "adagrad(lr: 0.05)", 60, true).replace("steps 7", "steps 6");
    everywhere(&compile_on_gpus(&text, Strategy::Pec, 3, 2, 1), &options, 1);
    everywhere(&compile(&text, Strategy::Serial, 1, 1, 1), &options, 2);
}

#[test]
fn while_it_evaluates() {
    let example = EXAMPLES.into_iter().find(|(name, _)| *name == "movielens").unwrap();
    let small = Small::new(example);
    let path = small.folder.path().join("small.json");
    let from = || Options::default().schedule_file(path.clone()).steps(3);
    everywhere(&small.schedule(Some(Strategy::Prefetch), 2), &from, 3);
}
