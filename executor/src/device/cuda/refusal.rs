//! What is said where a device cannot be opened.

use crate::device::OpenError;
use crate::units::human;

pub(super) fn refused(reason: String) -> OpenError {
    OpenError { device: "CUDA".into(), reason }
}

/// What to say where there is too little memory for what ranks hold from the beginning.
pub(super) fn too_little(whose: &str, least: u64, name: &str, free: u64) -> String {
    format!(
        "the tables, parameters and optimizer states of {whose} take {} before the first batch, and {name} has {} free; use \
         fewer rows or columns",
        human(least),
        human(free)
    )
}
