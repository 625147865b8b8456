//! What giving samples to ranks bought, and what it cost.
//!
//! The plans know what every rank would have had to do without them, so a run says what it gained without a second run.
//! Shares are those of a step in which the mean rank waits for the slowest, if a step took what its samples cost.

use serde::Serialize;

use crate::data::assign::Totals;

/// Means over the batches of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Balance {
    /// Batches that were planned.
    pub batches: u64,
    /// Share of waiting, if every sample had stayed on the rank that read it.
    pub waiting_at_home: f64,
    /// Share of waiting as planned.
    pub waiting: f64,
    /// Share of waiting that no plan avoids: of the dearest samples.
    pub waiting_at_least: f64,
    /// Share of waiting where ranks meet in every microbatch.
    pub waiting_in_microbatches: f64,
    /// Samples that moved, in a batch.
    pub moved_samples: f64,
    /// Their share.
    pub moved_share: f64,
    /// Bytes that moved, in a batch, of all ranks together.
    pub moved_bytes: f64,
    /// Planning a batch, in milliseconds.
    pub planning_ms: f64,
    /// Batches in which one sample cost more than the mean of the ranks.
    pub bounded_batches: u64,
    /// The longest of these samples.
    pub longest: Option<Longest>,
}

/// A sample that bounds a step alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Longest {
    /// The step.
    pub step: u64,
    /// Its number in the batch.
    pub sample: u64,
    /// Its ids.
    pub tokens: u64,
}

impl Balance {
    /// Of what plans came to; nothing if there were none.
    pub(crate) fn of(t: &Totals) -> Option<Self> {
        let batches = t.batches as f64;
        let waiting = |most: f64| if most > 0.0 { 1.0 - t.mean / most } else { 0.0 };
        (t.batches > 0).then(|| Self {
            batches: t.batches,
            waiting_at_home: waiting(t.at_home),
            waiting: waiting(t.planned),
            waiting_at_least: waiting(t.bound),
            waiting_in_microbatches: waiting(t.in_turns),
            moved_samples: t.moved as f64 / batches,
            moved_share: t.moved as f64 / t.samples.max(1) as f64,
            moved_bytes: t.moved_bytes as f64 / batches,
            planning_ms: t.time.as_secs_f64() * 1e3 / batches,
            bounded_batches: t.bounded,
            longest: t.longest.map(|(step, sample, tokens)| Longest { step, sample, tokens }),
        })
    }
}
