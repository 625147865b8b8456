//! Whether a schedule can run on this machine's GPU, found out before anything is read or trained.

use std::path::PathBuf;

use fs_kernels::cuda::driver::Driver;
use fs_kernels::cuda::driver::real::Real;
use fs_kernels::cuda::sources::Precision;
use fs_schedule::{DenseOptimizer, Schedule};

use super::action::missing;
use crate::device::{OpenError, shards};
use crate::units::human;

fn refused(reason: String) -> OpenError {
    OpenError { device: "CUDA".into(), reason }
}

/// Bytes that the ranks of one GPU hold at least: tables, dense parameters, gradients and optimizer states.
pub(super) fn least(schedule: &Schedule, ranks: usize) -> u64 {
    let tables = schedule.tables.iter().map(|table| {
        let (values, state) = shards::table_bytes(table, ranks, size_of::<f32>());
        values.saturating_add(state)
    });
    let states = match schedule.settings.optimizer {
        DenseOptimizer::Sgd { momentum: 0.0, .. } => 2,
        DenseOptimizer::Sgd { .. } => 3,
        DenseOptimizer::Adam { .. } => 4,
    };
    let parameters =
        schedule.parameters.iter().map(|p| 4 * states * u64::from(p.rows) * u64::from(p.columns));
    let parameters = parameters.fold(0, u64::saturating_add).saturating_mul(ranks as u64);
    tables.fold(parameters, u64::saturating_add)
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
        return refused(too_little(least, &driver.facts().name, free, ranks));
    }
    let missing = missing(schedule).join(", ");
    refused(format!(
        "this version has no GPU kernels for what the schedule needs ({missing}); use `--backend cpu`"
    ))
}

fn too_little(least: u64, name: &str, free: u64, ranks: usize) -> String {
    format!(
        "the tables, parameters and optimizer states of {ranks} ranks take {} before the first batch, and {name} has {} \
         free; use fewer rows or columns",
        human(least),
        human(free)
    )
}
