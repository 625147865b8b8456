//! GPUs that are emulated, and training on them beside the CPU.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fs_executor::device::Device;
use fs_executor::device::cuda;
use fs_executor::{Error, Observer, Options, Session, data};
use fs_kernels::cuda::driver::emulated::{self, Emulated, Kernels};
use fs_kernels::cuda::emulated::{Build, Emulation};
use fs_kernels::cuda::sources::Precision;
use fs_schedule::Schedule;

use crate::training::{self, Outcome};

/// The kernels for activations in f32, built in a folder below this one, unless there is nothing to compile them with.
pub fn kernels(folder: &str) -> Option<Arc<Emulation>> {
    kernels_for(folder, Precision::F32)
}

/// Those for activations of a precision.
pub fn kernels_for(folder: &str, precision: Precision) -> Option<Arc<Emulation>> {
    if std::process::Command::new("g++").arg("--version").output().is_err() {
        eprintln!("skipped: g++ is not installed, and compiles the kernels");
        return None;
    }
    let folder = Path::new(folder).join("emulated");
    let build = Build { precision, ..Build::default() };
    Some(Emulation::load(build, &folder).unwrap_or_else(|e| panic!("{e}")))
}

/// Whether all cases are tried (`FS_THOROUGH` is set), which takes many minutes: without it some of each kind are.
pub fn thorough() -> bool {
    std::env::var_os("FS_THOROUGH").is_some()
}

/// All ranks on one emulated device.
pub fn device<K: Kernels + Clone + 'static>(kernels: &K, seed: u64) -> cuda::Options<Emulated> {
    let options =
        emulated::Options { seed, rest: Duration::from_micros(100), ..emulated::Options::default() };
    let driver = Arc::new(Emulated::new(options, Box::new(kernels.clone())));
    cuda::Options { drivers: vec![driver], ..cuda::Options::default() }
}

/// A session on such devices, with generated data unless the options name some.
pub fn session<D: Device<Real = f32>>(
    schedule: &Schedule,
    options: Options,
    device: &D::Options,
) -> Result<Session<f32, D>, Error> {
    let schedule = Arc::new(schedule.clone());
    let source = data::open(&schedule, options.data.as_deref(), None, schedule.settings.seed)?;
    Session::on(schedule, options, source, device)
}

/// Trains all steps without evaluation.
pub fn train<D: Device<Real = f32>>(
    schedule: &Schedule,
    device: &D::Options,
    observer: &mut dyn Observer,
) -> Result<Outcome, String> {
    let mut session = session::<D>(schedule, training::options(), device).map_err(|e| e.to_string())?;
    let trained = training::train(&mut session, observer);
    trained.map(|(outcome, _)| outcome).map_err(|e| e.to_string())
}

/// Waits until it is so; whether it ever is.
pub fn comes(mut so: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + Duration::from_mins(1);
    while !so() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    so()
}

/// Lets work go on that was held back, whatever happens: who waits for it would do so for ever.
pub struct Hold<'a>(pub &'a Emulated);

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.hold(None);
    }
}

/// Waits until nothing has been done under a name for a while, or all of it is; how much was.
pub fn stands_still(driver: &Emulated, name: &str, all: u64) -> u64 {
    let (mut done, mut since) = (driver.done(name), Instant::now());
    while done < all && since.elapsed() < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(5));
        let now = driver.done(name);
        if now != done {
            (done, since) = (now, Instant::now());
        }
    }
    done
}

/// Whether two lists are the same to 1e-4 of the norm of the second: products and exponentials round otherwise than the CPU's.
pub fn assert_list_near(what: &str, found: &[f32], expected: &[f32]) {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let both = || found.iter().zip(expected).map(|(a, b)| (f64::from(*a), f64::from(*b)));
    let (apart, whole) = (norm(&mut both().map(|(a, b)| a - b)), norm(&mut both().map(|(_, b)| b)));
    assert!(
        found.len() == expected.len() && apart <= 1e-4 * whole,
        "{what}: {apart} off of {whole}, {} numbers for {}",
        found.len(),
        expected.len()
    );
}

/// Of each list whether both are the same to 1e-4 of its norm, and of losses to 1e-4.
pub fn assert_near(what: &str, found: &Outcome, expected: &Outcome) {
    assert_eq!(found.losses.len(), expected.losses.len(), "{what}");
    for (step, (a, b)) in found.losses.iter().zip(&expected.losses).enumerate() {
        let (a, b) = (f64::from_bits(*a), f64::from_bits(*b));
        assert!((a - b).abs() <= 1e-4 * b.abs(), "{what}: a loss of {a} in step {step}, {b} on the CPU");
    }
    assert_eq!(found.state.len(), expected.state.len(), "{what}");
    let values = |bits: &[u32]| -> Vec<f32> { bits.iter().map(|x| f32::from_bits(*x)).collect() };
    for (n, (a, b)) in found.state.iter().zip(&expected.state).enumerate() {
        assert_list_near(&format!("{what}: list {n}"), &values(a), &values(b));
    }
}
