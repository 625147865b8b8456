//! What a run left on its way, and what that took.

use std::path::PathBuf;

use serde::Serialize;

use super::{Evaluation, Spread};
use crate::weights::Best;

/// Checkpoints of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Checkpoints {
    /// Where they are.
    #[serde(serialize_with = "crate::report::lossy")]
    pub folder: PathBuf,
    /// How many were written.
    pub written: u64,
    /// How many were left out because the one before was still being written.
    pub left_out: u64,
    /// The step of the newest one.
    pub newest: Option<u64>,
    /// Bytes of the newest one.
    pub bytes: u64,
    /// Seconds from a cut until its checkpoint was whole, in the mean.
    pub seconds: f64,
    /// Duration of the steps beside which one was being written.
    pub step_ms: Spread,
    /// Duration of all others.
    pub others_ms: Spread,
    /// Rows that updates put aside, on the ranks of the first process.
    pub rows_aside: u64,
    /// How long updates of these ranks waited for room to put rows aside, in milliseconds.
    pub waited_ms: f64,
    /// The best one, if it is kept.
    pub best: Option<Best>,
    /// The first one that was not kept because no run could go on from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unusable: Option<Unusable>,
}

/// A checkpoint that was written and not kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unusable {
    /// Steps that were trained before.
    pub step: u64,
    /// What is wrong with it.
    pub why: String,
}

/// An evaluation on the way.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Validation {
    /// Steps that were trained before.
    pub step: u64,
    /// What came of it.
    pub evaluation: Evaluation,
}
