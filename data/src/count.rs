//! What batches hold, counted in the data itself: lengths, which rows are used, and how soon again.
//!
//! Sources give the same batch for the same step, and negatives are drawn by keys, so the ids of any step can be had
//! without running it, and cut into any number of microbatches: a profile of one schedule tells the classes of all, and
//! a model can be planned by its data before it has run.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use fs_kernels::random::negatives;
use fs_schedule::counts::{Counted, Counts, GroupCounts, TableCounts};
use fs_schedule::profile::{DISTANCES, MOST_LENGTHS, Relayed, ReuseCounts, Rows};
use fs_schedule::{Action, Nodes, Place, RowMap, RowPlacement, Schedule, Site, Symbol};
use fs_workload::placement::MOST_HOT;
use fs_workload::random::RandomKey;

use super::assign::{AssignError, Assigner, homes};
use super::entries::{Entries, Entry, Numbers, asked, distances, hot, mean, of_nodes};
use super::samples::{Blocks, Dealt, Lists};
use super::share::{Column, Missing, Share};
use super::sizes::Layout;
use super::{DataError, GlobalBatch, Source, Values};

/// Numbers of microbatches that a profile counts.
const MICROBATCHES: [u32; 4] = [1, 2, 4, 8];
/// Reuse distances that are told apart where nobody says how many, at most.
const LOOKAHEADS: u64 = 3;
/// Batches that counts before a run are of, at most.
const MOST_BATCHES: u64 = 64;
/// Numbers (ids, features, labels, what is drawn) that are read and drawn for them, at most.
const MOST_NUMBERS: usize = 1 << 24;
/// Rows that all tables list together as asked for most.
const ALL_HOT: usize = 1 << 14;

/// Why batches cannot be counted.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum CountError {
    /// They cannot be had.
    Data(#[from] DataError),
    /// They lack samples.
    Sample(#[from] Missing),
    /// Samples cannot be given to ranks.
    Assign(#[from] AssignError),
}

/// Where ids come from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Origin {
    Input(usize),
    Drawn { rows: u64, lengths: u32, count: u32, stream: u32 },
}

/// What counts.
pub struct Counter<'a> {
    /// The model.
    pub schedule: &'a Arc<Schedule>,
    /// Its data.
    pub source: &'a mut dyn Source,
    /// Seed of what is drawn.
    pub seed: u64,
    /// Ranks.
    pub ranks: usize,
    /// Ranks' shares of batches, by batch and number of microbatches, if they are to be kept.
    kept: Option<BTreeMap<(u64, u32), Vec<Share>>>,
}

/// How rows are counted.
#[derive(Debug, Clone, Copy)]
struct Way<'a> {
    /// Each once per rank and batch, or once per occurrence.
    unique: bool,
    /// Numbers of microbatches.
    cuts: &'a [u32],
    /// Batches before and after those that are counted which may be looked at; `None`: as many as distances reach.
    edge: Option<u64>,
    /// Rows that are listed, at most.
    hot: usize,
}

impl Way<'_> {
    /// Distances that are told apart with so many microbatches.
    fn reach(&self, microbatches: u32) -> u32 {
        let most = |edge: u64| u64::from(DISTANCES).min(edge * u64::from(microbatches)) as u32;
        self.edge.map_or(DISTANCES, most)
    }
}

/// Batches before and after one in which distances of so many microbatches lie.
fn margin(reach: u32, microbatches: u32) -> u64 {
    u64::from(reach.div_ceil(microbatches))
}

impl<'a> Counter<'a> {
    /// For a model on so many ranks.
    pub fn new(schedule: &'a Arc<Schedule>, source: &'a mut dyn Source, seed: u64, ranks: usize) -> Self {
        Self { schedule, source, seed, ranks, kept: None }
    }

    /// The rows of every exchange in the batches of `steps`, each once or once per occurrence as the schedule has them.
    pub fn count(&mut self, steps: Range<u64>) -> Result<Vec<Rows>, CountError> {
        let mut found: Vec<Rows> = Vec::new();
        let schedule = Arc::clone(self.schedule);
        for (e, x) in schedule.exchanges.iter().enumerate() {
            let Some(table) = schedule.tables.get(x.table as usize) else { continue };
            // What relays ask for is counted with what ranks ask them for.
            // Hot rows and others are counted with the list that they are a share of.
            let hot = schedule.tables.get(x.table as usize).is_some_and(|t| t.is_hot(x.part));
            if x.leg.within().is_some() || hot || (x.of.is_some() && x.part == 0) {
                continue;
            }
            if x.entries as usize != e {
                // A part sends the entries of the first.
                let of = schedule.exchanges.get(x.entries as usize);
                let first = of
                    .and_then(|o| found.iter().find(|r| r.table == table.name && r.part == o.part).cloned());
                found.extend(first.map(|rows| Rows { part: x.part, ..rows }));
                continue;
            }
            let way = Way { unique: x.unique, cuts: &MICROBATCHES, edge: None, hot: MOST_HOT };
            found.push(self.rows(e, way, steps.clone())?);
        }
        Ok(found)
    }

    /// What a plan of the schedule's model needs to know, whichever tables send rows once and where they live: of up to
    /// 64 batches, fewer where these hold more than some millions of numbers. `None` where so few batches are that many
    /// that none has one before and one after it; `digest` tells the data apart.
    ///
    /// Batches before the first that counts are looked at only: at the start of a run every row is new.
    pub fn counts(&mut self, digest: String) -> Result<Option<Counts>, CountError> {
        let schedule = Arc::clone(self.schedule);
        let microbatches = schedule.settings.microbatches.max(1);
        let looked_up: Vec<usize> = schedule
            .exchanges
            .iter()
            .enumerate()
            .filter(|(e, x)| x.entries as usize == *e && x.leg.within().is_none() && x.of.is_none())
            .filter(|(_, x)| (x.table as usize) < schedule.tables.len())
            .map(|(e, _)| e)
            .collect();
        // In one window the lookaheads that a search tries are as many batches.
        let full = margin(DISTANCES, microbatches).max(LOOKAHEADS);
        let most = MOST_BATCHES + 2 * full;
        let read = self.batches_within(&looked_up, most)?;
        if read < 3 {
            return Ok(None);
        }
        let edge = if read == most { full } else { full.min((read - 1) / 3).max(1) };
        let steps = edge..read - edge;
        let hot = MOST_HOT.min(ALL_HOT / looked_up.len().max(1));
        self.kept = Some(BTreeMap::new());
        let mut tables = Vec::with_capacity(looked_up.len());
        for e in looked_up {
            // As many windows as rows are told apart by where nobody says how many.
            let cuts: &[u32] = if microbatches > 1 { &[1, microbatches] } else { &[1] };
            let way = |unique| Way { unique, cuts, edge: Some(edge), hot };
            tables.push(TableCounts {
                occurrences: self.rows(e, way(false), steps.clone())?,
                unique: self.rows(e, way(true), steps.clone())?,
            });
        }
        self.kept = None;
        let (samples, groups) = self.group_counts(steps.clone())?;
        Ok(Some(Counts {
            of: Counted { digest, first: steps.start, batches: steps.end - steps.start },
            ranks: self.ranks as u32,
            microbatches,
            samples,
            groups,
            tables,
        }))
    }

    /// How many batches from the first hold no more numbers than are read at most.
    fn batches_within(&mut self, exchanges: &[usize], most: u64) -> Result<u64, CountError> {
        let drawn: Vec<(usize, usize)> = exchanges
            .iter()
            .flat_map(|e| origins(self.schedule, *e as u32))
            .filter_map(|origin| match origin {
                Origin::Drawn { lengths, count, .. } => Some((lengths as usize, count as usize)),
                Origin::Input(_) => None,
            })
            .collect();
        let mut batch = GlobalBatch::default();
        let mut numbers = 0usize;
        for step in 0..most {
            self.source.fill(step, &mut batch)?;
            let read = batch.inputs.iter().map(|values| match values {
                Values::Ids(ids) => ids.len(),
                Values::Reals(reals) => reals.len(),
            });
            let drawn = drawn.iter().map(|(group, count)| batch.tokens_of(*group).saturating_mul(*count));
            numbers = read.chain(drawn).fold(numbers, usize::saturating_add);
            if numbers > MOST_NUMBERS {
                return Ok(step);
            }
        }
        Ok(most)
    }

    /// Mean samples of a rank and lengths of each group.
    fn group_counts(&mut self, steps: Range<u64>) -> Result<(f64, Vec<GroupCounts>), CountError> {
        let count = self.schedule.lengths.len();
        let (mut all, mut sums) = (0u64, vec![(0u64, 0u64); count]);
        for step in steps.clone() {
            let (samples, lengths) = self.lengths(step)?;
            all += samples as u64;
            for sample in lengths.chunks_exact(count.max(1)) {
                for ((tokens, squares), n) in sums.iter_mut().zip(sample) {
                    *tokens += u64::from(*n);
                    *squares += u64::from(*n) * u64::from(*n);
                }
            }
        }
        let of = ((steps.end - steps.start) * self.ranks as u64) as f64;
        let lists = self.sample_lengths(steps)?;
        let groups = sums.into_iter().zip(lists).map(|((tokens, squares), lengths)| GroupCounts {
            tokens: tokens as f64 / of,
            squares: squares as f64 / of,
            lengths,
        });
        Ok((all as f64 / of, groups.collect()))
    }

    /// The rows of an exchange in the batches of `steps`.
    fn rows(&mut self, exchange: usize, way: Way<'_>, steps: Range<u64>) -> Result<Rows, CountError> {
        let schedule = Arc::clone(self.schedule);
        let x = &schedule.exchanges[exchange];
        let table = &schedule.tables[x.table as usize];
        let origins = origins(&schedule, exchange as u32);
        let mut rows = Rows {
            table: table.name.clone(),
            part: x.part,
            sent: 0.0,
            busiest: 1.0,
            hashed: None,
            asking: None,
            owners: Vec::new(),
            hashed_owners: Vec::new(),
            hot: Vec::new(),
            reuse: Vec::new(),
            relayed: None,
        };
        let nodes = Nodes::new(self.ranks as u32, schedule.settings.node);
        let mut relayed = Relayed { node: nodes.each(), sent: 0.0, reuse: Vec::new() };
        for (n, microbatches) in way.cuts.iter().enumerate() {
            let reach = way.reach(*microbatches);
            let margin = margin(reach, *microbatches);
            let range = steps.start.saturating_sub(margin)..steps.end + margin;
            let entries = self.entries(&origins, table.rows, way.unique, *microbatches, range.clone())?;
            let window = (steps.start - range.start) as usize..(steps.end - range.start) as usize;
            if n == 0 {
                let entries = &entries[window.clone()];
                rows.sent = mean(entries.iter().flatten().map(|l| l.len() as f64));
                let of = |slot: &dyn Fn(u64) -> u64| asked(entries, table.rows, self.ranks, slot);
                let range = of(&|row| row);
                (rows.busiest, rows.asking, rows.owners) = (range.busiest, Some(range.asking), range.owners);
                if let Ok(map) = RowMap::new(&RowPlacement::Hashed, table.rows, self.ranks as u64) {
                    let hashed = of(&|row| map.slot(row));
                    (rows.hashed, rows.hashed_owners) = (Some(hashed.busiest), hashed.owners);
                }
                rows.hot = hot(entries, self.ranks, way.hot);
            }
            if nodes.count() > 1 {
                // A node asks as one of as many ranks as there are nodes, and its relays share what it asks for.
                let of_nodes = of_nodes(&entries, nodes, table.rows);
                let share = 1.0 / f64::from(nodes.each());
                if n == 0 {
                    let asked = of_nodes[window.clone()].iter().flatten().map(|l| l.len() as f64);
                    relayed.sent = mean(asked) * share;
                }
                let counts = distances(&of_nodes, window.clone(), table.rows, (*microbatches, reach));
                relayed.reuse.push(scaled(counts, share));
            }
            rows.reuse.push(distances(&entries, window, table.rows, (*microbatches, reach)));
        }
        rows.relayed = (nodes.count() > 1).then_some(relayed);
        Ok(rows)
    }

    /// Samples, tokens and sums of squared lengths of batches on ranks.
    pub fn batch_sizes(
        &mut self,
        instances: &[(u64, usize)],
    ) -> Result<Vec<BTreeMap<Symbol, f64>>, CountError> {
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
                    assigner.assign(self.schedule, &Blocks, batch, &lengths, &mut plan)?;
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
    pub fn sample_lengths(&mut self, steps: Range<u64>) -> Result<Vec<Vec<u32>>, CountError> {
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
    fn lengths(&mut self, step: u64) -> Result<(usize, Vec<u32>), CountError> {
        let mut batch = GlobalBatch::default();
        self.source.fill(step, &mut batch)?;
        let of = |sample: usize, offsets: &Vec<usize>| (offsets[sample + 1] - offsets[sample]) as u32;
        let each = |sample: usize| batch.offsets.iter().map(move |offsets| of(sample, offsets));
        Ok((batch.samples, (0..batch.samples).flat_map(each).collect()))
    }

    /// Ranks' shares of a batch.
    fn shares(&mut self, step: u64, microbatches: u32) -> Result<Vec<Share>, CountError> {
        if let Some(shares) = self.kept.as_mut().and_then(|kept| kept.remove(&(step, microbatches))) {
            return Ok(shares);
        }
        let layout = Arc::new(Layout::default());
        let mut batch = GlobalBatch::default();
        self.source.fill(step, &mut batch)?;
        let batch = Arc::new(batch);
        let mut shares = Vec::with_capacity(self.ranks);
        for rank in 0..self.ranks {
            let mut share = Share::new(&layout);
            let of = (rank, self.ranks);
            share.load(self.schedule, Arc::clone(&batch), of, microbatches as usize, &Blocks)?;
            shares.push(share);
        }
        Ok(shares)
    }

    fn entries(
        &mut self,
        origins: &[Origin],
        rows: u64,
        unique: bool,
        microbatches: u32,
        steps: Range<u64>,
    ) -> Result<Entries, CountError> {
        let mut seen = Numbers::new(if unique { rows } else { 0 });
        let mut drawn: Vec<i64> = Vec::new();
        let mut all = Vec::new();
        for step in steps {
            let shares = self.shares(step, microbatches)?;
            let mut of_ranks = Vec::new();
            for share in &shares {
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
            if let Some(kept) = &mut self.kept {
                kept.insert((step, microbatches), shares);
            }
            all.push(of_ranks);
        }
        Ok(all)
    }
}

/// So many times as many.
fn scaled(mut counts: ReuseCounts, factor: f64) -> ReuseCounts {
    let all = counts.forward.iter_mut().chain(&mut counts.backward).flatten();
    all.for_each(|n| *n *= factor);
    counts
}

/// The sources of an exchange's ids, each once.
pub(crate) fn origins(schedule: &Schedule, exchange: u32) -> Vec<Origin> {
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
