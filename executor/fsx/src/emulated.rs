//! A GPU that is emulated on this machine's processors, so that tests take the way of a run on a real one.

use std::path::PathBuf;
use std::time::Duration;

use fs_executor::device::OpenError;
use fs_executor::device::cuda;
use fs_kernels::cuda::driver::emulated::{Emulated, Kernels, Lost, Options};
use fs_kernels::cuda::emulated::{Build, Emulation};
use fs_kernels::cuda::sources::Precision;
use fs_schedule::Schedule;

/// Where kernels are built: `$FS_EMULATED`, or a folder for temporary files.
fn folder() -> PathBuf {
    let given = std::env::var_os("FS_EMULATED").map(PathBuf::from);
    given.unwrap_or_else(|| std::env::temp_dir().join("fs-kernels-emulated"))
}

fn failed(reason: String) -> OpenError {
    OpenError { device: "emulated CUDA".into(), reason }
}

/// After what the device is lost: `$FS_EMULATED_LOST`, if that is given.
fn lost_after() -> Result<Option<Lost>, OpenError> {
    let Some(given) = std::env::var_os("FS_EMULATED_LOST") else { return Ok(None) };
    let given = given.to_string_lossy();
    let number = given.parse().map_err(|_| {
        let given = given.escape_debug();
        failed(format!(
            "FS_EMULATED_LOST is the number of calls after which the device is lost, not `{given}`"
        ))
    });
    number.map(|calls| Some(Lost::Calls(calls)))
}

/// A device for all ranks of a schedule.
pub(crate) fn open(schedule: &Schedule, ranks: usize) -> Result<cuda::Options<Emulated>, OpenError> {
    let lost_after = lost_after()?;
    let kernels = |precision| {
        let kernels = Emulation::load(Build { precision, ..Build::default() }, &folder());
        kernels.map_err(|error| failed(error.to_string()))
    };
    let floats = kernels(Precision::F32)?;
    let kernels: Box<dyn Kernels> =
        if schedule.has_bf16() { Box::new([floats, kernels(Precision::Bf16)?]) } else { Box::new(floats) };
    let rest = Duration::from_micros(20);
    let options = Options { rest, lost_after, ..Options::default() };
    cuda::on(schedule, ranks, Emulated::new(options, kernels))
}
