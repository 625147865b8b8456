//! What giving samples to ranks bought, and what it cost.
//!
//! The plans know what every rank would have had to do without them, so a run says what it gained without a second run.
//! Shares are those of a step in which the mean rank waits for the slowest, if a step took what its samples cost.

use fs_schedule::action::Payload;
use fs_schedule::{CostModel, Schedule, Strategy};
use serde::Serialize;

use crate::data::assign::{FittedTotals, Totals};
use crate::runtime::profile::Profile;

/// After what ranks wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Meeting {
    /// A batch.
    Batch,
    /// Every microbatch: where every transfer is waited for before compute goes on.
    Microbatch,
}

/// Means over the batches of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Balance {
    /// Batches that were planned.
    pub batches: u64,
    /// Microbatches of a batch.
    pub microbatches: u32,
    /// After what ranks of this schedule wait for each other: which of the shares below are those of its step.
    pub meeting: Meeting,
    /// Share of waiting, if every sample had stayed on the rank that read it.
    pub waiting_at_home: f64,
    /// Share of waiting as planned.
    pub waiting: f64,
    /// Share of waiting that no plan avoids: of the dearest samples. It bounds both ways to meet, because microbatches
    /// together take no less than their batch.
    pub waiting_at_least: f64,
    /// Share of waiting where ranks meet in every microbatch.
    pub waiting_in_microbatches: f64,
    /// The same, if every sample had stayed on the rank that read it, in the microbatch that it has there.
    pub waiting_in_microbatches_at_home: f64,
    /// Samples that moved, in a batch.
    pub moved_samples: f64,
    /// Their share.
    pub moved_share: f64,
    /// Bytes that ranks sent to each other because samples moved, in a batch, of all ranks together: inputs, what is made of
    /// rows and its gradients, and what asking on behalf of others takes more than asking for oneself.
    pub moved_bytes: f64,
    /// The part of it for asking on behalf of others.
    pub asked_bytes: f64,
    /// Bytes that moving was planned to take, by lengths alone: all but that part, in single precision.
    pub planned_bytes: f64,
    /// Bytes for lengths, which are sent to everyone whatever moves.
    pub lengths_bytes: f64,
    /// Planning a batch, in milliseconds.
    pub planning_ms: f64,
    /// Batches in which one sample cost more than the mean of the ranks.
    pub bounded_batches: u64,
    /// The longest of these samples.
    pub longest: Option<Longest>,
    /// Costs fitted to measured times; none where they are given, or too few steps were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fitted: Option<FittedCosts>,
}

/// Costs by measured times, and what they are worth. Times are of the compute engine's work, without waits.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FittedCosts {
    /// Nanoseconds of a rank's step whatever it works on.
    pub step_ns: f64,
    /// What samples cost, in nanoseconds.
    pub cost: CostModel,
    /// Batches that were planned by fitted costs and measured.
    pub batches: u64,
    /// Share of the slowest rank's work for which the mean rank has nothing to do, as measured in batches planned by the costs
    /// given.
    pub waiting_given: Option<f64>,
    /// The same of batches planned by fitted costs.
    pub waiting_fitted: Option<f64>,
    /// Mean time of each rank by fitted costs, in milliseconds.
    pub expected_ms: Vec<f64>,
    /// Mean time of each rank as measured.
    pub measured_ms: Vec<f64>,
    /// Mean difference of the two, batch by batch, in parts of what was measured.
    pub off: f64,
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

/// What ranks sent to each other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent<'a> {
    /// Of all ranks.
    pub profiles: &'a [Profile],
    /// Batches of the run.
    pub batches: u64,
    /// Bytes that were not sent because others asked on behalf of the rank.
    pub spared: u64,
}

impl Sent<'_> {
    /// Bytes of all ranks in a batch, in operations that carry something.
    fn of(self, schedule: &Schedule, payload: Payload) -> f64 {
        let ops = schedule.train.ops.iter().enumerate();
        let carry = ops.filter(|(_, op)| op.action.facts().transfer.is_some_and(|t| t.payload == payload));
        let ranks = carry.flat_map(|(i, _)| self.profiles.iter().map(move |p| &p.ops[i]));
        // The sum of nothing would be -0.
        ranks.map(|op| each(op.sent, op.count)).fold(0.0, |sum, bytes| sum + bytes)
    }

    /// The same that was not sent.
    fn spared(self, schedule: &Schedule) -> f64 {
        let asks =
            |op: &fs_schedule::Op| op.action.facts().transfer.is_some_and(|t| t.payload == Payload::Asked);
        // Profiles may be of fewer.
        if schedule.train.ops.iter().any(asks) { each(self.spared, self.batches) } else { 0.0 }
    }
}

fn each(bytes: u64, times: u64) -> f64 {
    bytes as f64 / times.max(1) as f64
}

impl Balance {
    /// Of what plans came to; nothing if there were none.
    pub(crate) fn of(schedule: &Schedule, t: &Totals, sent: Sent<'_>) -> Option<Self> {
        let batches = t.batches as f64;
        let waiting = |most: f64| if most > 0.0 { 1.0 - t.mean / most } else { 0.0 };
        let microbatches = schedule.settings.microbatches.max(1);
        let asked = sent.of(schedule, Payload::Asked) - sent.spared(schedule);
        (t.batches > 0).then(|| Self {
            batches: t.batches,
            microbatches,
            meeting: if microbatches > 1 && schedule.strategy == Strategy::Serial {
                Meeting::Microbatch
            } else {
                Meeting::Batch
            },
            waiting_at_home: waiting(t.at_home),
            waiting: waiting(t.planned),
            waiting_at_least: waiting(t.bound),
            waiting_in_microbatches: waiting(t.in_turns),
            waiting_in_microbatches_at_home: waiting(t.in_turns_at_home),
            moved_samples: t.moved as f64 / batches,
            moved_share: t.moved as f64 / t.samples.max(1) as f64,
            moved_bytes: sent.of(schedule, Payload::Samples) + sent.of(schedule, Payload::Values) + asked,
            asked_bytes: asked,
            planned_bytes: t.moved_bytes as f64 / batches,
            lengths_bytes: sent.of(schedule, Payload::Lengths),
            planning_ms: t.time.as_secs_f64() * 1e3 / batches,
            bounded_batches: t.bounded,
            longest: t.longest.map(|(step, sample, tokens)| Longest { step, sample, tokens }),
            fitted: t.fitted.as_ref().map(FittedCosts::of),
        })
    }
}

impl FittedCosts {
    fn of(t: &FittedTotals) -> Self {
        let ms = |times: &[f64]| times.iter().map(|ns| ns * 1e-6).collect();
        Self {
            step_ns: t.step_ns,
            cost: t.cost.clone(),
            batches: t.batches,
            waiting_given: t.waiting[0],
            waiting_fitted: t.waiting[1],
            expected_ms: ms(&t.expected_ns),
            measured_ms: ms(&t.measured_ns),
            off: t.off,
        }
    }
}
