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

use fs_executor::data::{DataError, GlobalBatch, Source, Values};
use fs_schedule::{InputKind, Schedule};
use fs_workload::ids::Zipf;
use fs_workload::permute::Permutation;
use fs_workload::random::{RandomKey, uniform_f64};

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

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    const MODEL: &str = "model m {
      table items { rows 200_000 dim 4 optimizer sgd(lr: 0.1) sharding row_wise }
      input history: ids(items) { max 20 }
      input click: label like history
      loss bce_with_logits(linear(lookup(history), 1), click, normalize: tokens)
    }
    train { batch 24 steps 4 optimizer sgd(lr: 0.1) }";

    fn overlap(share: f64, returning: Returning) -> Overlap {
        Overlap { share, returning, exponent: 1.05, length: 20, ranks: 3, seed: 9 }
    }

    fn recorded(what: Overlap, steps: u64) -> Recorded {
        let schedule = Arc::new(crate::compile_text(MODEL));
        OverlapSource::new(&schedule, what).unwrap().record(steps).unwrap()
    }

    fn ids(batch: &GlobalBatch) -> &[i64] {
        batch
            .inputs
            .iter()
            .find_map(|v| if let Values::Ids(ids) = v { Some(&ids[..]) } else { None })
            .unwrap()
    }

    /// What each of 3 ranks asks for: its third of the samples.
    fn asked(batch: &GlobalBatch) -> Vec<BTreeSet<i64>> {
        ids(batch).chunks(8 * 20).map(|part| part.iter().copied().collect()).collect()
    }

    #[test]
    fn as_many_rows_return_as_asked_for() {
        for returning in [Returning::Popular, Returning::Any] {
            for share in [0.0, 0.15, 0.5, 0.9, 1.0] {
                let data = recorded(overlap(share, returning), 12);
                for pair in data.batches().windows(2) {
                    let before: BTreeSet<i64> = ids(&pair[0]).iter().copied().collect();
                    let entries = asked(&pair[1]);
                    let all: usize = entries.iter().map(BTreeSet::len).sum();
                    let found: usize =
                        entries.iter().map(|e| e.iter().filter(|r| before.contains(r)).count()).sum();
                    // A row that three ranks ask for is three entries; a batch may have fewer rows than the next
                    // one would take from it.
                    let wanted = share * all as f64;
                    assert!(found as f64 <= wanted + 0.5, "{returning:?} {share}: {found} for {wanted}");
                    let least = if share == 1.0 { 0.9 * wanted } else { wanted - 3.0 };
                    assert!(found as f64 >= least, "{returning:?} {share}: {found} for {wanted}");
                }
            }
        }
    }

    #[test]
    fn other_rows_have_rested() {
        let data = recorded(overlap(0.3, Returning::Popular), 30);
        let mut last: BTreeMap<i64, usize> = BTreeMap::new();
        for (n, batch) in data.batches().iter().enumerate() {
            for row in ids(batch) {
                if let Some(before) = last.insert(*row, n) {
                    let distance = n - before;
                    assert!(distance <= 1 || distance > REST as usize, "row {row} after {distance} batches");
                }
            }
        }
    }

    #[test]
    fn batches_follow_from_the_seed_alone() {
        let schedule = Arc::new(crate::compile_text(MODEL));
        let what = overlap(0.45, Returning::Popular);
        let data = recorded(what, 6);
        let mut source = OverlapSource::new(&schedule, what).unwrap();
        let mut batch = GlobalBatch::default();
        for step in [4, 1, 2, 5, 0] {
            source.fill(step, &mut batch).unwrap();
            assert_eq!(batch, data.batches()[step as usize]);
        }
        assert_ne!(recorded(Overlap { seed: 10, ..what }, 1).batches(), &data.batches()[..1]);
    }

    /// Multiplicities are those of the law: about half of the rows occur once, and the greatest very often.
    #[test]
    fn few_rows_occur_often() {
        let data = recorded(overlap(0.3, Returning::Popular), 3);
        let mut counts: BTreeMap<i64, usize> = BTreeMap::new();
        for row in ids(&data.batches()[2]) {
            *counts.entry(*row).or_default() += 1;
        }
        let once = counts.values().filter(|n| **n == 1).count();
        assert!(2 * once > counts.len() && counts.values().any(|n| *n > 20), "{counts:?}");
    }

    #[test]
    fn the_executor_counts_the_same_share() {
        let program = fs_dsl::check_text("m.fs", MODEL).program.unwrap();
        let schedule = fs_compiler::compile(&program, fs_schedule::Strategy::Pec, 3).unwrap().schedule;
        let steps = 10;
        let data = recorded(overlap(0.4, Returning::Popular), steps);
        let options = fs_executor::Options::default().steps(steps);
        let mut session =
            fs_executor::Session::<f32>::with_source(Arc::new(schedule), options, Box::new(data)).unwrap();
        let report = session.run(&mut ()).unwrap();
        let rows = report.accounting.rows;
        let found: f64 = rows.iter().filter(|r| r.distance == Some(1)).map(|r| r.share).sum();
        // The first batch has none before it.
        let found = found * steps as f64 / (steps - 1) as f64;
        assert!((found - 0.4).abs() < 0.01, "{found}");
    }

    #[test]
    fn what_cannot_be_drawn_is_refused() {
        let schedule = Arc::new(crate::compile_text(MODEL));
        for share in [-0.1, 1.1, f64::NAN] {
            assert!(OverlapSource::new(&schedule, overlap(share, Returning::Popular)).is_err());
        }
        let small = crate::compile_text(&MODEL.replace("200_000", "1_000"));
        assert!(OverlapSource::new(&Arc::new(small), overlap(0.1, Returning::Popular)).is_err());
    }
}
