//! Whether a schedule can run on this machine's GPU, found out before anything is read or trained.

use std::path::PathBuf;

use fs_kernels::cuda::driver::Driver;
use fs_kernels::cuda::driver::real::Real;
use fs_kernels::cuda::sources::Precision;
use fs_schedule::Schedule;

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

/// Why a schedule cannot train on the GPU with this number: what is missing here, or else in this program.
pub fn why_not(schedule: &Schedule, ranks: usize, ordinal: u32) -> OpenError {
    let driver = match Real::open(ordinal, Precision::F32, &cache()) {
        Ok(driver) => driver,
        Err(error) => return refused(error.to_string()),
    };
    let (least, free) = (least(schedule, ranks), driver.facts().free);
    if least > free {
        return refused(too_little(&format!("{ranks} ranks"), least, &driver.facts().name, free));
    }
    let missing = missing(schedule).join(", ");
    refused(format!(
        "this version has no GPU kernels for what the schedule needs ({missing}); use `--backend cpu`"
    ))
}
