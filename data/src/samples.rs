//! Samples by their index in the global batch: which a batch holds, and which lists of them ranks work on.
//!
//! A global batch numbers its samples from 0, the same on every rank; everything random about a sample is keyed by
//! that number. Where a sample is worked on is said by lists of numbers, in any order: one for each microbatch of a
//! rank, one after the other. Nothing about a sample's value follows from its place in a list.

use std::fmt;
use std::ops::Range;

/// Consecutive samples of each rank: blocks whose sizes differ by at most one.
pub fn block(samples: usize, rank: usize, ranks: usize) -> Range<usize> {
    rank * samples / ranks..(rank + 1) * samples / ranks
}

/// Which samples of every batch somebody needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Wanted {
    /// All.
    #[default]
    All,
    /// Those that are at home on some ranks: their [`block`]s.
    Ranks {
        /// The ranks, ascending.
        ranks: Vec<usize>,
        /// Ranks of the world.
        world: usize,
    },
}

impl Wanted {
    /// Puts what is wanted of a batch of this many samples into `held`.
    pub fn of(&self, samples: usize, held: &mut Held) {
        held.clear();
        if let Self::Ranks { ranks, world } = self {
            held.all = false;
            for rank in ranks {
                held.push(block(samples, *rank, *world));
            }
            held.all = held.len() == samples;
        }
    }
}

/// The samples of a batch that are here, ascending; their values lie in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// All samples: the runs don't matter.
    all: bool,
    runs: Vec<Run>,
}

/// Consecutive samples.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    samples: Range<usize>,
    /// Position of the first.
    at: usize,
}

impl Default for Held {
    fn default() -> Self {
        Self { all: true, runs: Vec::new() }
    }
}

impl Held {
    /// All samples, as long as nothing else is said.
    pub(super) fn clear(&mut self) {
        self.all = true;
        self.runs.clear();
    }

    fn push(&mut self, samples: Range<usize>) {
        let at = self.len();
        match self.runs.last_mut() {
            Some(last) if last.samples.end == samples.start => last.samples.end = samples.end,
            _ if samples.is_empty() => {}
            _ => self.runs.push(Run { samples, at }),
        }
    }

    fn len(&self) -> usize {
        self.runs.last().map_or(0, |run| run.at + run.samples.len())
    }

    /// Where a sample's values lie among those held.
    pub fn position(&self, sample: usize) -> Option<usize> {
        if self.all {
            return Some(sample);
        }
        let after = self.runs.partition_point(|run| run.samples.start <= sample);
        let run = &self.runs[after.checked_sub(1)?];
        run.samples.contains(&sample).then(|| run.at + sample - run.samples.start)
    }

    /// Consecutive samples that are here, of a batch of so many.
    pub fn runs(&self, samples: usize) -> impl Iterator<Item = Range<usize>> {
        let all = self.all.then_some(0..samples);
        let some = if self.all { &[][..] } else { &self.runs[..] };
        all.into_iter().chain(some.iter().map(|run| run.samples.clone()))
    }

    /// Whether all samples of a batch are here.
    #[cfg(test)]
    fn all(&self) -> bool {
        self.all
    }
}

/// The samples that a rank works on in a batch, microbatch by microbatch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lists {
    samples: Vec<u64>,
    /// Where each microbatch ends.
    ends: Vec<usize>,
}

impl Lists {
    /// No microbatch.
    pub fn clear(&mut self) {
        self.samples.clear();
        self.ends.clear();
    }

    /// Appends a microbatch.
    pub fn push(&mut self, samples: impl IntoIterator<Item = usize>) {
        self.samples.extend(samples.into_iter().map(|sample| sample as u64));
        self.ends.push(self.samples.len());
    }

    /// The rank's block of a batch, cut into blocks.
    pub fn blocks(&mut self, samples: usize, rank: usize, ranks: usize, microbatches: usize) {
        self.clear();
        let own = block(samples, rank, ranks);
        for m in 0..microbatches {
            let cut = block(own.len(), m, microbatches);
            self.push(own.start + cut.start..own.start + cut.end);
        }
    }

    /// All samples of the rank.
    pub fn samples(&self) -> &[u64] {
        &self.samples
    }

    /// Number of microbatches.
    pub fn microbatches(&self) -> usize {
        self.ends.len()
    }

    /// Places of a microbatch's samples among those of the rank.
    pub fn microbatch(&self, m: usize) -> Range<usize> {
        let start = if m == 0 { 0 } else { self.ends[m - 1] };
        start..self.ends[m]
    }
}

/// A batch whose samples are given to ranks.
#[derive(Debug, Clone, Copy)]
pub struct Dealt {
    /// The step that it trains.
    pub step: u64,
    /// Samples of the global batch.
    pub samples: usize,
    /// The rank asked about.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Number of microbatches.
    pub microbatches: usize,
}

/// Gives samples to ranks and microbatches. Every rank must find the same: over all ranks each sample of a batch is
/// listed once.
pub trait Deal: fmt::Debug + Send + Sync {
    /// The samples that are read on a rank, into `lists` (which is empty).
    fn home(&self, batch: Dealt, lists: &mut Lists) {
        lists.blocks(batch.samples, batch.rank, batch.ranks, batch.microbatches);
    }

    /// The samples that a rank works on where an operation says `assigned`, into `lists` (which is empty); false if
    /// they are those of home.
    fn assigned(&self, _batch: Dealt, _lists: &mut Lists) -> bool {
        false
    }
}

/// Every rank works on the consecutive samples that it reads.
#[derive(Debug, Clone, Copy, Default)]
pub struct Blocks;

impl Deal for Blocks {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_cover_the_batch_evenly(samples in 0..100usize, ranks in 1..9usize) {
            let blocks: Vec<_> = (0..ranks).map(|r| block(samples, r, ranks)).collect();
            prop_assert_eq!(blocks.iter().cloned().flatten().collect::<Vec<_>>(), (0..samples).collect::<Vec<_>>());
            let sizes = blocks.iter().map(Range::len);
            prop_assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1);
        }

        #[test]
        fn held_samples_lie_one_after_the_other(samples in 0..60usize, world in 1..9usize, chosen: u16) {
            let ranks: Vec<usize> = (0..world).filter(|r| chosen >> r & 1 == 1).collect();
            let mut held = Held::default();
            Wanted::Ranks { ranks: ranks.clone(), world }.of(samples, &mut held);
            let expected: Vec<usize> = ranks.iter().flat_map(|r| block(samples, *r, world)).collect();
            prop_assert_eq!(held.all(), expected.len() == samples);
            for sample in 0..samples {
                prop_assert_eq!(held.position(sample), expected.iter().position(|s| *s == sample));
            }
        }

        #[test]
        fn microbatches_are_blocks_of_the_block(samples in 0..60usize, ranks in 1..5usize, cuts in 1..5usize) {
            let mut lists = Lists::default();
            for rank in 0..ranks {
                lists.blocks(samples, rank, ranks, cuts);
                let own = block(samples, rank, ranks);
                prop_assert_eq!(lists.samples(), &own.clone().map(|s| s as u64).collect::<Vec<_>>()[..]);
                prop_assert_eq!(lists.microbatches(), cuts);
                for m in 0..cuts {
                    prop_assert_eq!(lists.microbatch(m), block(own.len(), m, cuts));
                }
            }
        }
    }
}
