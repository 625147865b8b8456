//! What is told of a step that all ranks have finished.

use crate::runtime::finished::ENGINES;

/// A step that all ranks have finished.
#[derive(Debug, Clone, Default)]
pub struct StepEvent {
    /// From 0.
    pub step: u64,
    /// Each rank's contribution to the loss; their sum is the loss of the global batch.
    pub contributions: Vec<f64>,
    /// Samples of the global batch.
    pub samples: u64,
    /// Tokens of the global batch.
    pub tokens: u64,
    /// A checkpoint was being written when it ended, as far as the first process knows.
    pub checkpoint: bool,
    /// From when all ranks had ended the step before until all have ended it; of the first from when its data was
    /// there. The steps of a run add up to its time.
    pub seconds: f64,
    /// Longest wait of a rank for its batch.
    pub data_wait: f64,
    /// Mean time that compute stood still for ranks that began a transfer later.
    pub waited: f64,
    /// Mean time that compute stood still for transfers that all ranks had begun.
    pub exposed: f64,
    /// Mean time that compute stood still for the host.
    pub host: f64,
    /// Mean time that compute stood still for anything else.
    pub other: f64,
    /// Mean time that compute worked.
    pub compute: f64,
    /// Mean work of each of the program's engines.
    pub busy: [f64; ENGINES],
    /// Per rank where its time went. From the end of its step before to the end of its step; of the first from when
    /// its data was there.
    pub accounts: Vec<Account>,
}

/// Where one rank's time of a step went, in nanoseconds. The parts add up to the whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Account {
    /// The whole.
    pub time: u64,
    /// Compute worked.
    pub compute: u64,
    /// Compute stood still for transfers that all ranks had begun.
    pub exposed: u64,
    /// Compute stood still for ranks that began a transfer later.
    pub straggler: u64,
    /// Compute stood still for the host.
    pub host: u64,
    /// Compute stood still for anything else.
    pub other: u64,
}

impl StepEvent {
    /// The loss of the global batch.
    pub fn loss(&self) -> f64 {
        self.contributions.iter().sum()
    }

    /// Each rank's loss, so that their mean is the loss.
    pub(crate) fn loss_per_rank(&self) -> Vec<f64> {
        self.contributions.iter().map(|c| c * self.contributions.len() as f64).collect()
    }
}
