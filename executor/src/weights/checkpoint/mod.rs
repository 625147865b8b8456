//! Checkpoints: the state after a step, written while later ones are trained.
//!
//! A checkpoint is a folder of safetensors files, one for each rank, and a manifest that says what is in them
//! ([`manifest`]). How a state can be had while it changes is told in docs/checkpoints.md; the device's part of it is
//! [`Device::keep`](crate::device::Device::keep), the gate's the choice of a batch that nobody has begun.

use std::path::{Path, PathBuf};

pub(crate) mod best;
pub(crate) mod blocks;
pub(crate) mod folder;
mod hot;
mod list;
pub(crate) mod lying;
pub(crate) mod manifest;
pub(crate) mod read;
pub(crate) mod run;
pub(crate) mod shard;
pub(crate) mod throttle;
pub(crate) mod write;

pub use best::Best;
pub use list::{Listed, checkpoints};

/// Whether a path is a checkpoint, or a folder that has one, be it damaged.
pub fn has_checkpoint(path: &Path) -> bool {
    folder::is_whole(path) || folder::settled(path).is_ok_and(|found| !found.is_empty())
}

/// The checkpoint that a path is, or would be in, be it there or not: what has a manifest, and in a folder that a run writes
/// checkpoints into all that could get a checkpoint's name.
pub fn checkpoint_around(path: &Path, written: Option<&Path>) -> Option<PathBuf> {
    folder::within(path).or_else(|| folder::within_name(path, written?))
}

/// Waits a moment for a run that is about to end and still writes there: what it leaves is gone on from.
pub fn wait_for_writer(folder: &Path) {
    folder::wait_for_writer(folder);
}

/// The file that keeps other runs out of a folder of checkpoints.
pub fn lock_file(folder: &Path) -> PathBuf {
    folder.join(folder::LOCK)
}
