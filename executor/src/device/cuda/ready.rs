//! Whether a schedule can run on this machine's GPU, found out before anything is read or trained.

use std::path::PathBuf;
use std::sync::Arc;

use fs_kernels::cuda::driver::Driver;
use fs_kernels::cuda::driver::real::Real;
use fs_kernels::cuda::sources::Precision;
use fs_schedule::Schedule;

use super::Options;
use super::action::missing;
use super::refusal::{refused, too_little};
use super::tables::bytes;
use crate::device::OpenError;

/// Bytes that the ranks of one GPU hold at least.
fn least(schedule: &Schedule, ranks: usize) -> u64 {
    (0..ranks).map(|rank| bytes(schedule, rank, ranks)).fold(0, u64::saturating_add)
}

/// Where compiled kernels are kept: `$XDG_CACHE_HOME`, else `.cache` in the home folder, else the folder for temporary files.
fn cache() -> PathBuf {
    let own = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || std::env::home_dir().map(|home| home.join(".cache"));
    own.or_else(home).unwrap_or_else(std::env::temp_dir).join("fs-kernels")
}

/// The GPU with this number for all ranks of a schedule, or what is missing: a driver, memory, kernels for the program.
pub fn open(schedule: &Schedule, ranks: usize, ordinal: u32) -> Result<Options<Real>, OpenError> {
    let driver = Real::open(ordinal, Precision::F32, &cache()).map_err(|error| refused(error.to_string()))?;
    on(schedule, ranks, driver)
}

/// A device for all ranks of a schedule, if it has kernels for the program and memory for what they hold from the beginning.
pub fn on<D: Driver>(schedule: &Schedule, ranks: usize, driver: D) -> Result<Options<D>, OpenError> {
    let (least, free) = (least(schedule, ranks), driver.facts().free);
    if least > free {
        return Err(refused(too_little(&format!("{ranks} ranks"), least, &driver.facts().name, free)));
    }
    let missing = missing(schedule);
    if !missing.is_empty() {
        let what = missing.join(", ");
        return Err(refused(format!(
            "kernels have no room for the columns or features of {what} (heads of at most 128 columns, interactions of at most \
             127 features); use `--backend cpu`"
        )));
    }
    Ok(Options { drivers: vec![Arc::new(driver)], ..Options::default() })
}
