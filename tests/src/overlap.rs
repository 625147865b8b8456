//! Batches of which a chosen share of rows was also used by the batch before.
//!
//! Real overlap follows from how often ids occur: popular rows come back, others do not. Here both are kept, but the
//! share is chosen:
//!
//! - Every position of a batch draws a *place* in a Zipf law, so a batch has the multiplicities of Zipf ids: a few
//!   places occur very often, most of them once. Draws are independent, so rows of every kind are spread over samples
//!   (and so over ranks and microbatches) as random samples would spread them.
//! - The places of a batch are ordered by popularity. The most popular ones have the rows of the most popular places
//!   of the batch before, so many that they are the chosen share. All other places get rows that no batch has used
//!   for a while: their reuse distance is greater than any lookahead.
//!
//! That the popular rows are those that come back is the hard case, and the real one: with microbatches they are used
//! in the last of one batch and in the first of the next. Counted by occurrence the overlap is therefore much greater
//! than the chosen share.
//!
//! The share is counted as the executor counts it: a row that several ranks ask for counts once for each. Batches
//! follow from seed, share and the number of ranks that is counted for.

use std::sync::Arc;

use fs_executor::data::permute::Permutation;
use fs_executor::data::zipf::Zipf;
use fs_executor::data::{DataError, GlobalBatch, Source, Values};
use fs_kernels::random::{RandomKey, uniform_f64};
use fs_schedule::{InputKind, Schedule};

/// Batches for which a row is not taken again after its last use.
const REST: u32 = 16;
/// Random streams, far from those of models and of other sources.
const PLACES: u32 = 0xF610_0000;
const ROWS: u32 = 0xF620_0000;

/// Which places have rows of the batch before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returning {
    /// The most popular.
    Popular,
    /// Any, however often they occur.
    Any,
}

/// What is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Overlap {
    /// Of a batch's rows: those that the batch before used; in `[0, 1]`.
    pub share: f64,
    /// Which those are.
    pub returning: Returning,
    /// Exponent of the law.
    pub exponent: f64,
    /// Ids of each sample.
    pub length: usize,
    /// Ranks that the share is counted for.
    pub ranks: usize,
    /// Of everything random.
    pub seed: u64,
}

/// Draws batches one after the other.
#[derive(Debug)]
pub struct OverlapSource {
    schedule: Arc<Schedule>,
    what: Overlap,
    law: Zipf,
    order: Permutation,
    rows: u64,
    /// Positions of the ids and of the labels among the inputs.
    inputs: (usize, Option<usize>),
    /// The batch that comes next.
    next: u64,
    /// Rows of the batch before, by popularity of their places.
    before: Vec<i64>,
    /// Rows taken so far.
    taken: u64,
    /// Per row: one more than the batch that used it last.
    used: Vec<u32>,
}

impl OverlapSource {
    /// For a model with one id sequence, and labels for its tokens or none.
    pub fn new(schedule: &Arc<Schedule>, what: Overlap) -> Result<Self, DataError> {
        let wrong = |what, reason: &str| DataError::Distribution { what, reason: reason.into() };
        if !(0.0..=1.0).contains(&what.share) {
            return Err(wrong("overlap", "the share must be in 0..=1"));
        }
        let mut ids = None;
        let mut labels = None;
        for (i, input) in schedule.inputs.iter().enumerate() {
            match input.kind {
                InputKind::Ids { table, .. } if ids.is_none() => ids = Some((i, table)),
                InputKind::TokenLabel { .. } if labels.is_none() => labels = Some(i),
                _ => return Err(wrong("overlap", "one id sequence and labels of its tokens can be drawn")),
            }
        }
        let (input, table) = ids.ok_or_else(|| wrong("overlap", "there is no id sequence"))?;
        let rows = schedule.tables.get(table as usize).map_or(0, |t| t.rows);
        let law = Zipf::new(rows, what.exponent)
            .ok_or_else(|| wrong("ids", "a Zipf law needs a positive exponent"))?;
        let tokens = u64::from(schedule.settings.batch) * what.length as u64;
        if rows < (u64::from(REST) + 2) * tokens {
            return Err(wrong("overlap", "the table has too few rows to take unused ones for each batch"));
        }
        Ok(Self {
            schedule: Arc::clone(schedule),
            what,
            law,
            order: Permutation::new(rows, what.seed, ROWS),
            rows,
            inputs: (input, labels),
            next: 0,
            before: Vec::new(),
            taken: 0,
            used: vec![0; rows as usize],
        })
    }

    /// Draws `steps` batches beforehand.
    pub fn record(mut self, steps: u64) -> Result<Recorded, DataError> {
        let mut draw = |step| {
            let mut batch = GlobalBatch::default();
            self.fill(step, &mut batch).map(|()| batch)
        };
        Ok(Recorded { batches: (0..steps).map(&mut draw).collect::<Result<Vec<_>, _>>()?.into() })
    }

    /// A row that no batch has used for a while.
    fn unused(&mut self) -> i64 {
        loop {
            let row = self.order.apply(self.taken % self.rows);
            self.taken += 1;
            let last = u64::from(self.used[row as usize]);
            if last == 0 || last + u64::from(REST) < self.next {
                return row as i64;
            }
        }
    }

    /// The next batch's ids.
    fn draw(&mut self) -> Vec<i64> {
        let (samples, length) = (u64::from(self.schedule.settings.batch), self.what.length);
        let mut places = Vec::with_capacity(samples as usize * length);
        for sample in 0..samples {
            let key = RandomKey { seed: self.what.seed, stream: PLACES, step: self.next * samples + sample };
            let mut counter = 0;
            for _ in 0..length {
                places.push(self.law.sample(|| {
                    counter += 1;
                    uniform_f64(key, counter)
                }));
            }
        }
        // (place, rank) without repetition: what ranks ask for.
        let rank = |position: usize| {
            let (sample, ranks) = (position / length, self.what.ranks);
            (0..ranks).find(|r| sample < (r + 1) * samples as usize / ranks).unwrap_or(0)
        };
        let mut asked: Vec<(u64, usize)> = places.iter().enumerate().map(|(p, k)| (*k, rank(p))).collect();
        asked.sort_unstable();
        asked.dedup();
        let mut distinct: Vec<(u64, usize)> = Vec::new();
        for (place, _) in &asked {
            match distinct.last_mut() {
                Some((last, n)) if last == place => *n += 1,
                _ => distinct.push((*place, 1)),
            }
        }
        let sorted: Vec<u64> = distinct.iter().map(|d| d.0).collect();
        if self.what.returning == Returning::Any {
            let key = RandomKey { seed: self.what.seed, stream: PLACES + 1, step: self.next };
            distinct.sort_by(|a, b| uniform_f64(key, a.0).total_cmp(&uniform_f64(key, b.0)));
        }
        let wanted = (self.what.share * asked.len() as f64).round() as usize;
        let mut row_of = vec![0; sorted.len()];
        let mut rows = Vec::with_capacity(distinct.len());
        let mut returned = 0;
        let before = std::mem::take(&mut self.before);
        for (i, (place, asks)) in distinct.iter().enumerate() {
            let row = match before.get(i) {
                Some(row) if returned + asks <= wanted => {
                    returned += asks;
                    *row
                }
                // So that the prefix ends here.
                _ => {
                    returned = wanted;
                    self.unused()
                }
            };
            rows.push(row);
            row_of[sorted.partition_point(|p| p < place)] = row;
        }
        for row in &rows {
            self.used[*row as usize] = self.next as u32 + 1;
        }
        if self.what.returning == Returning::Any {
            // Not the same rows for ever.
            let key = RandomKey { seed: self.what.seed, stream: PLACES + 2, step: self.next };
            rows.sort_by(|a, b| uniform_f64(key, *a as u64).total_cmp(&uniform_f64(key, *b as u64)));
        }
        self.before = rows;
        self.next += 1;
        places.iter().map(|p| row_of[sorted.partition_point(|q| q < p)]).collect()
    }
}

impl Source for OverlapSource {
    fn describe(&self) -> String {
        format!("Zipf ids, {:.0}% of the rows also in the batch before", 100.0 * self.what.share)
    }

    fn epoch_steps(&self) -> Option<u64> {
        None
    }

    fn fill(&mut self, step: u64, batch: &mut GlobalBatch) -> Result<(), DataError> {
        if step < self.next {
            (self.next, self.taken) = (0, 0);
            self.before.clear();
            self.used.fill(0);
        }
        while self.next < step {
            self.draw();
        }
        let ids = self.draw();
        let schedule = Arc::clone(&self.schedule);
        batch.reset(&schedule, step);
        batch.samples = schedule.settings.batch as usize;
        for offsets in &mut batch.offsets {
            offsets.extend((1..=batch.samples).map(|s| s * self.what.length));
        }
        if let Some(labels) = self.inputs.1
            && let Some(labels) = batch.inputs[labels].reals_mut()
        {
            labels.extend(ids.iter().map(|id| (id & 1) as f32));
        }
        batch.inputs[self.inputs.0] = Values::Ids(ids);
        Ok(())
    }
}

/// Batches that were drawn beforehand, so that drawing them takes no time from what is measured.
#[derive(Debug, Clone)]
pub struct Recorded {
    batches: Arc<[GlobalBatch]>,
}

impl Recorded {
    /// The batches.
    pub fn batches(&self) -> &[GlobalBatch] {
        &self.batches
    }
}

impl Source for Recorded {
    fn describe(&self) -> String {
        format!("{} batches drawn beforehand", self.batches.len())
    }

    fn epoch_steps(&self) -> Option<u64> {
        None
    }

    fn fill(&mut self, step: u64, batch: &mut GlobalBatch) -> Result<(), DataError> {
        let found = self.batches.get(step as usize).ok_or_else(|| DataError::Distribution {
            what: "overlap",
            reason: format!("{} batches were drawn, step {step} needs another", self.batches.len()),
        })?;
        batch.clone_from(found);
        Ok(())
    }
}
