//! Which rows batches use, and how soon again, counted in the data itself.
//!
//! Sources give the same batch for the same step, and negatives are drawn by keys, so the ids of any step can be had
//! without running it, and cut into any number of microbatches: a profile of one schedule tells the classes of all.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use fs_kernels::random::{RandomKey, negatives};
use fs_schedule::profile::{DISTANCES, MOST_LENGTHS, ReuseCounts, Rows};
use fs_schedule::{Action, Place, RowMap, RowPlacement, Schedule, Sharding, Site, Symbol};
use fs_workload::placement::MOST_HOT;

use crate::data::assign::{Assigner, homes};
use crate::data::samples::{Blocks, Dealt, Lists};
use crate::data::share::{Column, Share};
use crate::data::sizes::Layout;
use crate::data::{GlobalBatch, Source};
use crate::device::shards::rows_per_rank;
use crate::error::Error;
use crate::fit::median;

/// Numbers of microbatches that are counted.
const MICROBATCHES: [u32; 4] = [1, 2, 4, 8];
/// Rows up to which a table gets a list with a place for each.
const DENSE: u64 = 1 << 25;

/// Where ids come from.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Origin {
    Input(usize),
    Drawn { rows: u64, lengths: u32, count: u32, stream: u32 },
}

/// A number for each row; 0 is none.
enum Numbers {
    Dense(Vec<u32>),
    Sparse(HashMap<i64, u32>),
}

impl Numbers {
    fn new(rows: u64) -> Self {
        if rows <= DENSE { Self::Dense(vec![0; rows as usize]) } else { Self::Sparse(HashMap::new()) }
    }
    fn get(&self, row: i64) -> u32 {
        match self {
            Self::Dense(list) => usize::try_from(row).ok().and_then(|r| list.get(r)).copied().unwrap_or(0),
            Self::Sparse(map) => map.get(&row).copied().unwrap_or(0),
        }
    }
    fn set(&mut self, row: i64, number: u32) {
        match self {
            Self::Dense(list) => {
                if let Some(place) = usize::try_from(row).ok().and_then(|r| list.get_mut(r)) {
                    *place = number;
                }
            }
            Self::Sparse(map) => {
                map.insert(row, number);
            }
        }
    }
}

/// A rank's entry in a batch: its row, the first and last microbatch that use it.
#[derive(Debug, Clone, Copy)]
struct Entry {
    row: i64,
    first: u32,
    last: u32,
}

/// Entries of each rank in some consecutive batches.
type Entries = Vec<Vec<Vec<Entry>>>;

/// What counts rows.
pub struct Counter<'a> {
    /// The model.
    pub schedule: &'a Arc<Schedule>,
    /// Its data.
    pub source: &'a mut dyn Source,
    /// Seed of what is drawn.
    pub seed: u64,
    /// Ranks.
    pub ranks: usize,
}

impl Counter<'_> {
    /// The rows of every exchange in the batches of `steps`.
    pub fn count(&mut self, steps: Range<u64>) -> Result<Vec<Rows>, Error> {
        let mut found: Vec<Rows> = Vec::new();
        let schedule = Arc::clone(self.schedule);
        for (e, x) in schedule.exchanges.iter().enumerate() {
            let Some(table) = schedule.tables.get(x.table as usize) else { continue };
            if x.entries as usize != e {
                // A part sends the entries of the first.
                let of = schedule.exchanges.get(x.entries as usize);
                let first = of
                    .and_then(|o| found.iter().find(|r| r.table == table.name && r.part == o.part).cloned());
                found.extend(first.map(|rows| Rows { part: x.part, ..rows }));
                continue;
            }
            let origins = origins(&schedule, e as u32);
            let mut rows = Rows {
                table: table.name.clone(),
                part: x.part,
                sent: 0.0,
                busiest: 1.0,
                hashed: None,
                hot: Vec::new(),
                reuse: Vec::new(),
            };
            for microbatches in MICROBATCHES {
                let margin = u64::from(DISTANCES.div_ceil(microbatches)) + 1;
                let range = steps.start.saturating_sub(margin)..steps.end + margin;
                let entries = self.entries(&origins, table.rows, x.unique, microbatches, range.clone())?;
                let window = (steps.start - range.start) as usize..(steps.end - range.start) as usize;
                if microbatches == 1 {
                    let entries = &entries[window.clone()];
                    rows.sent = mean(entries.iter().flatten().map(|l| l.len() as f64));
                    if table.sharding == Sharding::RowWise {
                        let hashed = RowMap::new(&RowPlacement::Hashed, table.rows, self.ranks as u64);
                        let hashed = hashed
                            .ok()
                            .map(|map| busiest(entries, table.rows, self.ranks, |row| map.slot(row)));
                        rows.busiest = busiest(entries, table.rows, self.ranks, |row| row);
                        rows.hashed = hashed;
                        rows.hot = hot(entries, self.ranks);
                    }
                }
                rows.reuse.push(distances(&entries, window, table.rows, microbatches));
            }
            found.push(rows);
        }
        Ok(found)
    }

    /// Median seconds of a core that producing one of these batches takes.
    pub(crate) fn seconds(&mut self, steps: Range<u64>) -> Result<f64, Error> {
        let mut batch = GlobalBatch::default();
        let mut each = Vec::new();
        for step in steps {
            let start = Instant::now();
            self.source.fill(step, &mut batch)?;
            each.push(start.elapsed().as_secs_f64());
        }
        Ok(median(each))
    }

    /// Samples, tokens and sums of squared lengths of batches on ranks.
    pub(crate) fn batch_sizes(
        &mut self,
        instances: &[(u64, usize)],
    ) -> Result<Vec<BTreeMap<Symbol, f64>>, Error> {
        let (groups, microbatches) = (self.schedule.lengths.len(), self.schedule.settings.microbatches);
        let balanced = self.schedule.settings.balance.is_some();
        let (mut assigner, mut known) = (Assigner::default(), None);
        let mut all = Vec::with_capacity(instances.len());
        for (step, rank) in instances {
            if known.as_ref().is_none_or(|(of, ..): &(u64, Vec<u32>, Vec<u32>)| of != step) {
                let (samples, lengths) = self.lengths(*step)?;
                let batch = Dealt {
                    step: *step,
                    samples,
                    rank: 0,
                    ranks: self.ranks,
                    microbatches: microbatches.max(1) as usize,
                };
                let (mut lists, mut works) = (Lists::default(), Vec::new());
                homes(&Blocks, batch, &mut lists, &mut works);
                if balanced {
                    let mut plan = vec![0; 2 * samples];
                    let planned = assigner.assign(self.schedule, &Blocks, batch, &lengths, &mut plan);
                    planned.map_err(|e| Error::Settings(e.to_string()))?;
                    works = plan.iter().step_by(2).copied().collect();
                }
                known = Some((*step, lengths, works));
            }
            let Some((_, lengths, works)) = &known else { continue };
            let own = || (0..works.len()).filter(|sample| works[*sample] == *rank as u32);
            let mut sizes = BTreeMap::from([(Symbol::Samples, own().count() as f64)]);
            for g in 0..groups {
                let each = || own().map(|sample| f64::from(lengths[sample * groups + g]));
                sizes.insert(Symbol::Tokens(g as u32), each().sum());
                sizes.insert(Symbol::Squares(g as u32), each().map(|n| n * n).sum());
            }
            all.push(sizes);
        }
        Ok(all)
    }

    /// Lengths of samples of these batches, up to [`MOST_LENGTHS`]: a list for each group.
    pub(crate) fn sample_lengths(&mut self, steps: Range<u64>) -> Result<Vec<Vec<u32>>, Error> {
        let groups = self.schedule.lengths.len();
        let mut lists: Vec<Vec<u32>> = vec![Vec::new(); groups];
        for step in steps {
            let (samples, lengths) = self.lengths(step)?;
            let room = MOST_LENGTHS - lists.first().map_or(MOST_LENGTHS, Vec::len);
            for sample in lengths.chunks_exact(groups.max(1)).take(room) {
                lists.iter_mut().zip(sample).for_each(|(list, n)| list.push(*n));
            }
            if room <= samples {
                break;
            }
        }
        Ok(lists)
    }

    /// Samples of a batch, and the ids of each in every group, sample by sample.
    fn lengths(&mut self, step: u64) -> Result<(usize, Vec<u32>), Error> {
        let mut batch = GlobalBatch::default();
        self.source.fill(step, &mut batch)?;
        let of = |sample: usize, offsets: &Vec<usize>| (offsets[sample + 1] - offsets[sample]) as u32;
        let each = |sample: usize| batch.offsets.iter().map(move |offsets| of(sample, offsets));
        Ok((batch.samples, (0..batch.samples).flat_map(each).collect()))
    }

    fn entries(
        &mut self,
        origins: &[Origin],
        rows: u64,
        unique: bool,
        microbatches: u32,
        steps: Range<u64>,
    ) -> Result<Entries, Error> {
        let layout = Arc::new(Layout::default());
        let mut seen = Numbers::new(rows);
        let mut drawn: Vec<i64> = Vec::new();
        let mut all = Vec::new();
        for step in steps {
            let mut batch = GlobalBatch::default();
            self.source.fill(step, &mut batch)?;
            let batch = Arc::new(batch);
            let mut of_ranks = Vec::new();
            for rank in 0..self.ranks {
                let mut share = Share::new(&layout);
                let of = (rank, self.ranks);
                share.load(self.schedule, Arc::clone(&batch), of, microbatches as usize, &Blocks)?;
                let mut list: Vec<Entry> = Vec::new();
                for m in 0..microbatches {
                    let mut add = |ids: &[i64]| {
                        for row in ids {
                            match seen.get(*row) {
                                n if n > 0 && unique => list[n as usize - 1].last = m,
                                _ => {
                                    list.push(Entry { row: *row, first: m, last: m });
                                    seen.set(*row, list.len() as u32);
                                }
                            }
                        }
                    };
                    for origin in origins {
                        match *origin {
                            Origin::Input(i) => {
                                if let Some(Column::Ids(ids)) =
                                    share.input(self.schedule, i, Site::Home, Some(m))
                                {
                                    add(ids);
                                }
                            }
                            Origin::Drawn { rows, lengths, count, stream } => {
                                let keys = share.part(Site::Home, Some(m)).token_keys(lengths as usize);
                                drawn.clear();
                                drawn.resize(keys.len() * count as usize, 0);
                                let key = RandomKey { seed: self.seed, stream, step };
                                negatives(key, rows, keys, count as usize, &mut drawn);
                                add(&drawn);
                            }
                        }
                    }
                }
                for e in &list {
                    seen.set(e.row, 0);
                }
                of_ranks.push(list);
            }
            all.push(of_ranks);
        }
        Ok(all)
    }
}

/// The sources of an exchange's ids, each once.
fn origins(schedule: &Schedule, exchange: u32) -> Vec<Origin> {
    let ops = &schedule.train.ops;
    let mut found: Vec<Origin> = Vec::new();
    let unique = ops.iter().filter(|op| op.action == Action::Unique { exchange });
    for operand in unique.flat_map(|op| &op.reads) {
        let origin = match schedule.train.ids_of(operand) {
            Place::Input(i) => Some(Origin::Input(i as usize)),
            Place::Buffer(b) => ops.iter().find_map(|op| match op.action {
                Action::DrawNegatives { table, lengths, count, stream }
                    if op.writes.iter().any(|w| w.place == Place::Buffer(b)) =>
                {
                    let rows = schedule.tables.get(table as usize)?.rows;
                    Some(Origin::Drawn { rows, lengths, count, stream })
                }
                _ => None,
            }),
            _ => None,
        };
        found.extend(origin.filter(|o| !found.contains(o)));
    }
    found
}

/// Entries by microbatch and distance, per rank and batch.
fn distances(entries: &Entries, window: Range<usize>, rows: u64, microbatches: u32) -> ReuseCounts {
    let zeros = || vec![vec![0.0; DISTANCES as usize + 1]; microbatches as usize];
    let (mut forward, mut backward) = (zeros(), zeros());
    let place = |distance: Option<u32>| {
        distance.filter(|d| (1..=DISTANCES).contains(d)).map_or(DISTANCES as usize, |d| d as usize - 1)
    };
    let each = 1.0 / (window.len() * entries.first().map_or(1, Vec::len)).max(1) as f64;
    // Units of time are microbatches, from 1, so that 0 is never.
    let unit = |batch: usize, m: u32| batch as u32 * microbatches + m + 1;
    let mut last = Numbers::new(rows);
    for (n, ranks) in entries.iter().enumerate() {
        if window.contains(&n) {
            for e in ranks.iter().flatten() {
                let before = last.get(e.row);
                let distance = (before > 0).then(|| unit(n, e.first) - before);
                forward[e.first as usize][place(distance)] += each;
            }
        }
        for e in ranks.iter().flatten() {
            let latest = last.get(e.row).max(unit(n, e.last));
            last.set(e.row, latest);
        }
    }
    let mut next = Numbers::new(rows);
    let mut ends = Numbers::new(rows);
    for (n, ranks) in entries.iter().enumerate().rev() {
        if window.contains(&n) {
            for e in ranks.iter().flatten() {
                let end = ends.get(e.row).max(unit(n, e.last));
                ends.set(e.row, end);
            }
            for e in ranks.iter().flatten() {
                let (end, after) = (ends.get(e.row), next.get(e.row));
                let distance = (after > 0).then(|| after - end);
                backward[((end - 1) % microbatches) as usize][place(distance)] += each;
            }
        }
        // Later batches come first here: the first use of this one replaces theirs.
        for e in ranks.iter().flatten() {
            ends.set(e.row, 0);
            let (first, known) = (unit(n, e.first), next.get(e.row));
            let of_this_batch = known >= unit(n, 0) && known <= unit(n, microbatches - 1);
            next.set(e.row, if of_this_batch { known.min(first) } else { first });
        }
    }
    ReuseCounts { microbatches, forward, backward }
}

/// Rows that were asked for more than once, the most asked for of many, with how often a rank asks in a batch.
fn hot(entries: &[Vec<Vec<Entry>>], ranks: usize) -> Vec<(u64, f64)> {
    let mut counts: BTreeMap<i64, u64> = BTreeMap::new();
    for e in entries.iter().flatten().flatten() {
        *counts.entry(e.row).or_default() += 1;
    }
    let mut hot: Vec<(i64, u64)> = counts.into_iter().filter(|(_, n)| *n > 1).collect();
    hot.sort_by_key(|(row, n)| (Reverse(*n), *row));
    hot.truncate(MOST_HOT);
    hot.sort_unstable();
    let each = 1.0 / (entries.len() * ranks).max(1) as f64;
    hot.into_iter().map(|(row, n)| (row as u64, n as f64 * each)).collect()
}

/// The most that a rank sends or receives, over what it would be if rows were spread evenly; rows are in these slots.
fn busiest(entries: &[Vec<Vec<Entry>>], rows: u64, ranks: usize, slot: impl Fn(u64) -> u64) -> f64 {
    let shard = rows_per_rank(rows, ranks);
    let (mut most, mut even) = (0.0, 0.0);
    for batch in entries {
        let mut traffic = vec![[0u64; 2]; ranks];
        for (rank, list) in batch.iter().enumerate() {
            for e in list {
                let owner = ((slot(e.row as u64) / shard) as usize).min(ranks - 1);
                if owner != rank {
                    traffic[rank][0] += 1;
                    traffic[owner][1] += 1;
                }
            }
        }
        most += traffic.iter().flatten().copied().max().unwrap_or(0) as f64;
        let sent: usize = batch.iter().map(Vec::len).sum();
        even += sent as f64 / ranks as f64 * (ranks as f64 - 1.0) / ranks as f64;
    }
    if even > 0.0 { most / even } else { 1.0 }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (n, sum) = values.fold((0.0, 0.0), |(n, sum), v| (n + 1.0, sum + v));
    if n > 0.0 { sum / n } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(row: i64, first: u32, last: u32) -> Entry {
        Entry { row, first, last }
    }

    /// Two ranks, two microbatches. Row 5: batch 0 by rank 0 in 0 and by rank 1 in 1, batch 1 by rank 0 in 0, batch
    /// 3 by rank 1 in 1. Row 7: batch 1 only.
    #[test]
    fn distances_are_those_of_the_classes() {
        let entries: Entries = vec![
            vec![vec![entry(5, 0, 0)], vec![entry(5, 1, 1)]],
            vec![vec![entry(5, 0, 0), entry(7, 0, 1)], vec![]],
            vec![vec![], vec![]],
            vec![vec![], vec![entry(5, 1, 1)]],
        ];
        let counts = distances(&entries, 0..4, 10, 2);
        let far = DISTANCES as usize;
        let per = 1.0 / 8.0;
        // Batch 0 is new to both; batch 1 follows microbatch 1 at once; batch 3 five microbatches after batch 1's 0.
        assert_eq!(counts.forward[0][0], per);
        assert_eq!(counts.forward[0][far], 2.0 * per, "row 5 of batch 0 on rank 0, row 7");
        assert_eq!((counts.forward[1][far], counts.forward[1][4]), (per, per));
        // Both ranks' gradients of batch 0 are of the last use, in microbatch 1.
        assert_eq!(counts.backward[1][0], 2.0 * per);
        assert_eq!(counts.backward[0][4], per, "row 5 of batch 1 to microbatch 1 of batch 3");
        assert_eq!(counts.backward[1][far], 2.0 * per, "row 7, and row 5 of batch 3");
        let all: f64 = counts.forward.iter().chain(&counts.backward).flatten().sum();
        assert!((all - 2.0 * 5.0 * per).abs() < 1e-12);
    }

    #[test]
    fn the_busiest_rank() {
        // Four rows, two a rank: rank 0 asks for both of the other's, rank 1 for none of its.
        let entries = vec![vec![vec![entry(2, 0, 0), entry(3, 0, 0)], vec![entry(2, 0, 0), entry(3, 0, 0)]]];
        assert_eq!(busiest(&entries, 4, 2, |row| row), 2.0);
        assert_eq!(busiest(&entries, 4, 2, |row| row ^ 1), 2.0);
        // In other slots each asks the other for one.
        assert_eq!(busiest(&entries, 4, 2, |row| (row + 1) % 4), 1.0);
        assert_eq!(hot(&entries, 2), [(2, 1.0), (3, 1.0)]);
    }
}
