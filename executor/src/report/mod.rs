//! What a run says at its end.

pub(crate) mod accounting;
pub(crate) mod balance;
mod checkpoints;
mod json;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use fs_schedule::{Program, Schedule, Strategy};
use serde::Serialize;

use crate::data::Truncation;
use crate::device::CopyUse;
use crate::error::Error;
use crate::evaluate::Scores;
use crate::memory::{self, Memory};
use crate::runtime::profile::Profile;
use crate::step::StepEvent;
use crate::trace::Traced;
use crate::weights::Taken;

pub use accounting::{Accounting, Clock, EngineTime, Exposed, Predicted, RowShare};
pub use balance::{Balance, FittedCosts, Longest, Meeting};
pub use checkpoints::{Checkpoints, Unusable, Validation};

/// Everything measured in a run; `--report` writes it as JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Name of the model.
    pub model: String,
    /// Digest of the schedule.
    pub schedule: String,
    /// How its operations were ordered.
    pub strategy: Strategy,
    /// What the data was.
    pub data: String,
    /// Ranks of this run.
    pub ranks: usize,
    /// Ranks that the schedule was planned for.
    pub planned_ranks: usize,
    /// Seed of everything random.
    pub seed: u64,
    /// What training started from; `None` if from initial values alone.
    pub init: Option<Taken>,
    /// The number of the first step: above 0 where a saved run goes on.
    pub first_step: u64,
    /// Steps done.
    pub steps: u64,
    /// Steps asked for.
    pub planned_steps: u64,
    /// Stopped before the end.
    pub interrupted: bool,
    /// Samples trained on.
    pub samples: u64,
    /// Tokens trained on.
    pub tokens: u64,
    /// What truncation to the inputs' `max` leaves out.
    pub truncation: Truncations,
    /// Duration of training.
    pub seconds: f64,
    /// Loss of each step's global batch.
    pub loss: Vec<f64>,
    /// Loss of each step and rank; the mean over ranks is the loss.
    pub loss_per_rank: Vec<Vec<f64>>,
    /// Duration of a step on the slowest rank.
    pub step_ms: Spread,
    /// Wait for the next batch.
    pub data_wait_ms: Spread,
    /// Mean wait of a rank for other ranks, per step.
    pub straggler_ms: Spread,
    /// Tokens over the duration of training.
    pub tokens_per_second: f64,
    /// Samples over the duration of training.
    pub samples_per_second: f64,
    /// Peak resident memory of the process.
    pub peak_memory_bytes: u64,
    /// What the memory holds.
    pub memory: Memory,
    /// Where the time of a step went, beside what the schedule expected.
    pub accounting: Accounting,
    /// Time of each operation of the training step.
    pub ops: Vec<OpTotal>,
    /// The steps that were traced, as trace tools see them.
    pub traced: Option<Traced>,
    /// What giving samples to ranks bought; nothing if all stayed where they were read.
    pub balance: Option<Balance>,
    /// Checkpoints that were left; nothing if none were asked for.
    pub checkpoints: Option<Checkpoints>,
    /// What carried out copies, if that was asked for.
    pub copies: Option<CopyUse>,
    /// Evaluations at checkpoints, where the best one is kept.
    pub validations: Vec<Validation>,
    /// Evaluation after training.
    pub evaluation: Option<Evaluation>,
}

/// What truncation leaves out of one pass over the data, where that is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Truncations {
    /// Of what may be trained on.
    pub training: Option<Truncation>,
    /// Of what evaluation shows the model.
    pub evaluation: Option<Truncation>,
}

/// Evaluation beside its baseline.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Evaluation {
    /// Users asked about.
    pub users: usize,
    /// The trained model.
    pub model: Scores,
    /// The most frequent items for everyone.
    pub popularity: Scores,
    /// Duration.
    pub seconds: f64,
}

/// A distribution.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Middle value.
    pub median: f64,
    /// 10th percentile.
    pub p10: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

impl Spread {
    /// Percentiles with linear interpolation; zeros for no values.
    pub fn of(mut values: Vec<f64>) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        values.sort_by(f64::total_cmp);
        let last = values.len() - 1;
        let at = |share: f64| {
            let place = share * last as f64;
            let (low, part) = (place.floor() as usize, place.fract());
            values[low] + part * (values[(low + 1).min(last)] - values[low])
        };
        Self { median: at(0.5), p10: at(0.1), p90: at(0.9), p99: at(0.99), min: at(0.0), max: at(1.0) }
    }
}

/// Time of one operation, as the mean over ranks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OpTotal {
    /// Its name.
    pub name: String,
    /// What it does.
    pub action: String,
    /// Executions on each rank.
    pub count: u64,
    /// Milliseconds in all executions.
    pub ms: f64,
    /// The part of it spent waiting for other ranks.
    pub waited_ms: f64,
    /// Time that compute stood still for it after all ranks had begun.
    pub exposed_ms: f64,
    /// Bytes sent to other ranks.
    pub sent_bytes: f64,
}

/// Means over ranks.
pub(crate) fn op_totals(program: &Program, profiles: &[Profile]) -> Vec<OpTotal> {
    let ranks = profiles.len().max(1) as f64;
    let total = |i: usize, op: &fs_schedule::Op| {
        let times = profiles.iter().filter_map(|p| p.ops.get(i));
        OpTotal {
            name: op.name.clone(),
            action: op.action.name(),
            count: times.clone().map(|t| t.count).max().unwrap_or(0),
            ms: times.clone().map(|t| t.busy.as_secs_f64()).sum::<f64>() * 1e3 / ranks,
            exposed_ms: times.clone().map(|t| t.exposed.as_secs_f64()).sum::<f64>() * 1e3 / ranks,
            sent_bytes: times.clone().map(|t| t.sent as f64).sum::<f64>() / ranks,
            waited_ms: times.map(|t| t.waited.as_secs_f64()).sum::<f64>() * 1e3 / ranks,
        }
    };
    program.ops.iter().enumerate().map(|(i, op)| total(i, op)).collect()
}

/// A path as text, whatever is in it.
pub(crate) fn lossy<S: serde::Serializer>(path: &std::path::Path, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&path.to_string_lossy())
}

/// Totals per kind of operation, largest first: kind, milliseconds, of which waiting.
pub fn by_action(ops: &[OpTotal]) -> Vec<(String, f64, f64)> {
    let mut sums: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for op in ops {
        let sum = sums.entry(&op.action).or_default();
        sum.0 += op.ms;
        sum.1 += op.waited_ms;
    }
    let mut sums: Vec<_> =
        sums.into_iter().map(|(name, (ms, waited))| (name.to_owned(), ms, waited)).collect();
    sums.sort_by(|a, b| b.1.total_cmp(&a.1));
    sums
}

impl Report {
    /// Of a run that has not trained a step.
    pub fn begun(schedule: &Schedule, ranks: usize, seed: u64) -> Self {
        Self {
            model: schedule.model.clone(),
            schedule: schedule.digest.clone(),
            strategy: schedule.strategy,
            data: String::new(),
            ranks,
            planned_ranks: schedule.ranks as usize,
            seed,
            steps: 0,
            planned_steps: 0,
            interrupted: false,
            samples: 0,
            tokens: 0,
            seconds: 0.0,
            loss: Vec::new(),
            loss_per_rank: Vec::new(),
            step_ms: Spread::default(),
            data_wait_ms: Spread::default(),
            straggler_ms: Spread::default(),
            tokens_per_second: 0.0,
            samples_per_second: 0.0,
            peak_memory_bytes: memory::peak(),
            memory: Memory::default(),
            accounting: Accounting::default(),
            ops: Vec::new(),
            first_step: 0,
            init: None,
            truncation: Truncations::default(),
            traced: None,
            balance: None,
            checkpoints: None,
            copies: None,
            validations: Vec::new(),
            evaluation: None,
        }
    }

    /// Takes in the losses and sizes of some steps more; all steps so far took `seconds`.
    pub fn count(&mut self, steps: &[StepEvent], seconds: f64) {
        self.steps += steps.len() as u64;
        self.samples += steps.iter().map(|s| s.samples).sum::<u64>();
        self.tokens += steps.iter().map(|s| s.tokens).sum::<u64>();
        self.loss.extend(steps.iter().map(StepEvent::loss));
        self.loss_per_rank.extend(steps.iter().map(StepEvent::loss_per_rank));
        let rate = |n: u64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        self.seconds = seconds;
        self.tokens_per_second = rate(self.tokens);
        self.samples_per_second = rate(self.samples);
    }

    /// As JSON with a final line break.
    pub fn to_json(&self) -> String {
        let mut text = Vec::new();
        // Plain data into memory has no way to fail.
        let _ = self.write_json(&mut text);
        String::from_utf8(text).unwrap_or_default()
    }

    /// Writes the same piece by piece, and takes no memory for it.
    pub fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        json::write(&mut *out, self)?;
        out.write_all(b"\n")
    }

    /// Writes the JSON, whole or not at all.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let failed = |source| Error::Write { what: "the report", path: path.into(), source };
        fs_schedule::file::write_atomically(path, self.to_json().as_bytes()).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_interpolate() {
        let spread = Spread::of((0..=10).rev().map(f64::from).collect());
        assert_eq!(
            (spread.min, spread.p10, spread.median, spread.p90, spread.max),
            (0.0, 1.0, 5.0, 9.0, 10.0)
        );
        assert!((spread.p99 - 9.9).abs() < 1e-12);
        assert_eq!(Spread::of(vec![3.0, 1.0]).median, 2.0);
    }
}
