//! Which samples of a batch a rank works on: every rank plans all of them, from the same lengths, and finds the same.
//!
//! What plans cost and what they buy is added up over batches. All of it follows from lengths and the settings, so every
//! rank has the same sums, but for the time that planning took. Where the settings ask for it, costs follow measured times
//! ([`measured`](super::measured)), which all ranks hear of.

use std::time::{Duration, Instant};

use fs_schedule::{CostModel, RankLimit, Schedule, Travel};
use fs_workload::balance::{Fitted, Limit, Overflow, PlanError, Planner, Problem};

pub use super::measured::FittedTotals;
use super::measured::Measured;
use super::samples::{Deal, Dealt, Lists};

/// Samples cannot be given to ranks.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AssignError {
    /// By what the settings say.
    #[error("step {step}: {reason}{}", hint(reason, *limit))]
    Plan {
        /// The step.
        step: u64,
        /// What a rank can hold.
        limit: Option<RankLimit>,
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

fn hint(reason: &PlanError, limit: Option<RankLimit>) -> String {
    match (reason, limit) {
        // One sample is as large in any batch and on any number of ranks.
        (PlanError::Sample { .. }, Some(limit)) => {
            format!("; raise the limit of {} of a rank, or use shorter sequences", limit.unit())
        }
        (PlanError::Full { .. }, Some(limit)) => format!(
            "; raise the limit of {} of a rank, or use shorter sequences, a smaller batch or more ranks",
            limit.unit()
        ),
        _ => String::new(),
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
    /// The same, if samples had stayed at home and in the microbatches that they have there.
    pub in_turns_at_home: f64,
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
    /// Costs by measured times, where they are fitted.
    pub fitted: Option<FittedTotals>,
}

/// Plans batches of one schedule.
#[derive(Debug, Default)]
pub struct Assigner {
    planner: Planner,
    home: Vec<u32>,
    costs: Vec<f64>,
    scaled: Vec<u64>,
    bytes: Vec<u64>,
    tokens: Vec<u64>,
    limited: Vec<u64>,
    lists: Lists,
    /// The greatest cost of each microbatch at home.
    longest: Vec<u64>,
    measured: Option<Measured>,
    /// Fitted costs to begin with.
    known: Option<Fitted>,
    /// Of the schedule: what a sample takes on its way, and of the limit, if there is one.
    takes: Option<(Travel, Option<Travel>)>,
    totals: Totals,
}

/// The rank that reads each sample, into `home`.
pub fn homes(deal: &dyn Deal, batch: Dealt, lists: &mut Lists, home: &mut Vec<u32>) {
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

/// The greatest cost of a microbatch of a rank, added up over microbatches, where samples are worked on as they are read.
fn in_turns_at_home(
    deal: &dyn Deal,
    batch: Dealt,
    costs: &[u64],
    (lists, longest): (&mut Lists, &mut Vec<u64>),
) -> u64 {
    longest.clear();
    longest.resize(batch.microbatches, 0);
    for rank in 0..batch.ranks {
        lists.clear();
        deal.home(Dealt { rank, ..batch }, lists);
        for (m, most) in longest.iter_mut().enumerate().take(lists.microbatches()) {
            let own = &lists.samples()[lists.microbatch(m)];
            *most = (*most).max(own.iter().map(|sample| costs[*sample as usize]).sum());
        }
    }
    longest.iter().sum()
}

impl Assigner {
    /// What plans came to since the last call.
    pub fn take_totals(&mut self) -> Totals {
        let fitted = self.measured.as_mut().and_then(Measured::take_totals);
        Totals { fitted, ..std::mem::take(&mut self.totals) }
    }

    /// Fitted costs, if there are any: of a rank's step and of samples.
    pub fn fitted(&self) -> Option<(f64, CostModel)> {
        let known = self.measured.as_ref().and_then(Measured::fitted).or(self.known.as_ref());
        known.map(|fitted| (fitted.step, fitted.cost.clone()))
    }

    /// Begins with costs that an earlier run has fitted, until there are times to fit.
    pub fn begin_with(&mut self, (step, cost): (f64, CostModel)) {
        self.known = Some(Fitted { step, cost });
    }

    /// A rank says with the lengths of a batch for how many nanoseconds its compute engine worked for the one `before` it,
    /// or 0 if it does not know. To be told before the batch is planned.
    pub fn hear(&mut self, schedule: &Schedule, batch: Dealt, before: usize, time: u64) {
        let known = &mut self.known;
        let measured = self.measured.get_or_insert_with(|| {
            let fresh = Measured::new(batch.ranks, schedule.lengths.len(), before);
            match known.take() {
                Some(known) => fresh.knowing(known),
                None => fresh,
            }
        });
        measured.hear(batch.step, batch.rank, time);
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
        let room = || balance.limit.map(|limit| schedule.sample_size(limit));
        let (travel, room) = self.takes.get_or_insert_with(|| (schedule.travel(), room()));
        homes(deal, batch, &mut self.lists, &mut self.home);
        let columns = lengths.len() / (out.len() / 2).max(1);
        let of = |sample: usize| &lengths[sample * columns..sample * columns + groups];
        let measured = self.measured.as_mut().filter(|_| balance.fit);
        let longest = || schedule.lengths.iter().map(|l| l.max);
        let fitted = measured.and_then(|m| {
            m.plan(step);
            m.cost(longest())
        });
        let cost = fitted.unwrap_or(&balance.cost);
        // Of what is given and what is fitted, in the unit of the given.
        let mut given = 0.0;
        self.costs.clear();
        self.bytes.clear();
        self.tokens.clear();
        self.limited.clear();
        for sample in 0..batch.samples {
            self.costs.push(cost.of(of(sample).iter().copied()));
            given += if fitted.is_some() { balance.cost.of(of(sample).iter().copied()) } else { 0.0 };
            self.bytes.push(travel.bytes(of(sample)));
            self.tokens.push(of(sample).iter().map(|n| u64::from(*n)).sum());
            self.limited.extend(room.as_ref().map(|room| room.bytes(of(sample))));
        }
        let unit = CostModel::scaled(cost, &self.costs, &mut self.scaled);
        let mut unit = unit.map_err(|reason| AssignError::Cost { step, reason })?;
        let by_fit = fitted.is_some();
        let total: f64 = self.costs.iter().sum();
        if by_fit && given > 0.0 && total > 0.0 {
            unit *= given / total;
        }
        let problem = Problem {
            ranks: batch.ranks,
            home: &self.home,
            costs: &self.scaled,
            bytes: &self.bytes,
            limit: balance.limit.map(|limit| Limit { sizes: &self.limited, most: limit.most() }),
            equal_counts: balance.equal_counts,
            microbatches: batch.microbatches,
            slack: balance.slack,
        };
        let plan = self.planner.plan(&problem).map_err(|reason| AssignError::Plan {
            step,
            limit: balance.limit,
            reason,
        })?;
        for rank in 0..batch.ranks {
            for m in 0..batch.microbatches {
                for sample in plan.samples(rank, m) {
                    out[2 * *sample as usize] = rank as u32;
                    out[2 * *sample as usize + 1] = m as u32;
                }
            }
        }
        if let Some(measured) = self.measured.as_mut().filter(|_| balance.fit) {
            measured.planned(step, plan, by_fit, of);
        }
        let t = &mut self.totals;
        t.batches += 1;
        t.mean += plan.total as f64 * unit / batch.ranks as f64;
        t.at_home += plan.most_at_home as f64 * unit;
        t.planned += plan.most as f64 * unit;
        t.bound += plan.bound as f64 * unit;
        t.in_turns += plan.most_in_turns as f64 * unit;
        let at_home = if batch.microbatches > 1 {
            in_turns_at_home(deal, batch, &self.scaled, (&mut self.lists, &mut self.longest))
        } else {
            plan.most_at_home
        };
        t.in_turns_at_home += at_home as f64 * unit;
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
