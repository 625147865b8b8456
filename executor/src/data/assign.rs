//! Which samples of a batch a rank works on: every rank plans all of them, from the same lengths, and finds the same.
//!
//! What plans cost and what they buy is added up over batches. All of it follows from lengths and the settings, so every
//! rank has the same sums, but for the time that planning took.

use std::time::{Duration, Instant};

use fs_schedule::{CostModel, Schedule};
use fs_workload::balance::{Limit, Overflow, PlanError, Planner, Problem};

use super::samples::{Deal, Dealt, Lists};

/// Samples cannot be given to ranks.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AssignError {
    /// By what the settings say.
    #[error("step {step}: {reason}{}", hint(reason))]
    Plan {
        /// The step.
        step: u64,
        /// Why not.
        reason: PlanError,
    },
    /// Costs are no numbers.
    #[error("step {step}: {reason}")]
    Cost {
        /// The step.
        step: u64,
        /// Why not.
        reason: Overflow,
    },
}

fn hint(reason: &PlanError) -> &'static str {
    match reason {
        PlanError::Overflow { .. } => "",
        PlanError::Sample { .. } | PlanError::Full { .. } => {
            "; raise the limit of tokens of a rank, or use shorter sequences, a smaller batch or more ranks"
        }
    }
}

/// What plans came to, over some batches. Costs are in the unit of the settings.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Totals {
    /// Batches.
    pub batches: u64,
    /// The mean over ranks.
    pub mean: f64,
    /// The greatest of a rank, if samples had stayed at home.
    pub at_home: f64,
    /// The greatest of a rank, as planned.
    pub planned: f64,
    /// What no plan is below.
    pub bound: f64,
    /// The greatest of a microbatch of a rank, over microbatches, as planned.
    pub in_turns: f64,
    /// Samples.
    pub samples: u64,
    /// Those that moved.
    pub moved: u64,
    /// Bytes of samples.
    pub bytes: u64,
    /// Those that moved.
    pub moved_bytes: u64,
    /// Batches whose dearest sample cost more than the mean of a rank.
    pub bounded: u64,
    /// The dearest of these samples: step, its number in the batch, its tokens.
    pub longest: Option<(u64, u64, u64)>,
    /// Planning.
    pub time: Duration,
}

/// Plans batches.
#[derive(Debug, Default)]
pub struct Assigner {
    planner: Planner,
    home: Vec<u32>,
    costs: Vec<f64>,
    scaled: Vec<u64>,
    bytes: Vec<u64>,
    tokens: Vec<u64>,
    lists: Lists,
    totals: Totals,
}

/// The rank that reads each sample, into `home`.
pub(crate) fn homes(deal: &dyn Deal, batch: Dealt, lists: &mut Lists, home: &mut Vec<u32>) {
    home.clear();
    home.resize(batch.samples, 0);
    for rank in 0..batch.ranks {
        lists.clear();
        deal.home(Dealt { rank, ..batch }, lists);
        for sample in lists.samples() {
            home[*sample as usize] = rank as u32;
        }
    }
}

impl Assigner {
    /// What plans came to since the last call.
    pub fn take_totals(&mut self) -> Totals {
        std::mem::take(&mut self.totals)
    }

    /// Writes rank and microbatch of each sample of a batch into `out`. `lengths` has a row per sample, a number for each
    /// length group.
    pub fn assign(
        &mut self,
        schedule: &Schedule,
        deal: &dyn Deal,
        batch: Dealt,
        lengths: &[u32],
        out: &mut [u32],
    ) -> Result<(), AssignError> {
        let Some(balance) = &schedule.settings.balance else { return Ok(()) };
        out.fill(0);
        if self.dealt(deal, batch, out) {
            return Ok(());
        }
        let begun = Instant::now();
        let (groups, step) = (schedule.lengths.len(), batch.step);
        homes(deal, batch, &mut self.lists, &mut self.home);
        let columns = lengths.len() / (out.len() / 2).max(1);
        let of = |sample: usize| &lengths[sample * columns..sample * columns + groups];
        self.costs.clear();
        self.bytes.clear();
        self.tokens.clear();
        for sample in 0..batch.samples {
            self.costs.push(balance.cost.of(of(sample).iter().copied()));
            self.bytes.push(schedule.sample_bytes(of(sample)));
            self.tokens.push(of(sample).iter().map(|n| u64::from(*n)).sum());
        }
        let unit = CostModel::scaled(&balance.cost, &self.costs, &mut self.scaled);
        let unit = unit.map_err(|reason| AssignError::Cost { step, reason })?;
        let problem = Problem {
            ranks: batch.ranks,
            home: &self.home,
            costs: &self.scaled,
            bytes: &self.bytes,
            limit: balance.tokens.map(|most| Limit { sizes: &self.tokens, most }),
            equal_counts: balance.equal_counts,
            microbatches: batch.microbatches,
            slack: balance.slack,
        };
        let plan = self.planner.plan(&problem).map_err(|reason| AssignError::Plan { step, reason })?;
        for rank in 0..batch.ranks {
            for m in 0..batch.microbatches {
                for sample in plan.samples(rank, m) {
                    out[2 * *sample as usize] = rank as u32;
                    out[2 * *sample as usize + 1] = m as u32;
                }
            }
        }
        let t = &mut self.totals;
        t.batches += 1;
        t.mean += plan.total as f64 * unit / batch.ranks as f64;
        t.at_home += plan.most_at_home as f64 * unit;
        t.planned += plan.most as f64 * unit;
        t.bound += plan.bound as f64 * unit;
        t.in_turns += plan.most_in_turns as f64 * unit;
        t.samples += batch.samples as u64;
        t.moved += plan.moved as u64;
        t.bytes += self.bytes.iter().sum::<u64>();
        t.moved_bytes += plan.moved_bytes;
        if let Some(sample) = plan.bounded_by {
            t.bounded += 1;
            let found = (step, sample as u64, self.tokens[sample]);
            if t.longest.is_none_or(|(.., tokens)| found.2 > tokens) {
                t.longest = Some(found);
            }
        }
        t.time += begun.elapsed();
        Ok(())
    }

    /// What the deal says, where it says anything.
    fn dealt(&mut self, deal: &dyn Deal, batch: Dealt, out: &mut [u32]) -> bool {
        for rank in 0..batch.ranks {
            self.lists.clear();
            if !deal.assigned(Dealt { rank, ..batch }, &mut self.lists) {
                return false;
            }
            for m in 0..self.lists.microbatches() {
                for sample in &self.lists.samples()[self.lists.microbatch(m)] {
                    out[2 * *sample as usize] = rank as u32;
                    out[2 * *sample as usize + 1] = m as u32;
                }
            }
        }
        true
    }
}
