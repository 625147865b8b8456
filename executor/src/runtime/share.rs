//! One rank's share of a global batch: a contiguous block of its samples, and the sizes that follow from it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fs_schedule::{InputKind, Schedule, Symbol};

use crate::data::{GlobalBatch, Values};

/// What a rank works on in a step.
#[derive(Debug, Default)]
pub struct Share {
    batch: Arc<GlobalBatch>,
    ranks: usize,
    samples: Range<usize>,
    /// Per length group, rebased to this rank's first token.
    offsets: Vec<Vec<usize>>,
    /// Random keys of the samples: their index in the global batch.
    sample_keys: Vec<u64>,
    /// Random keys of the tokens of each group: sample << 32 | position.
    token_keys: Vec<Vec<u64>>,
    /// Entries sent and received by each exchange, known once it has run.
    sent: Vec<AtomicUsize>,
    received: Vec<AtomicUsize>,
}

/// The samples of a rank: blocks whose sizes differ by at most one.
pub fn block(samples: usize, rank: usize, ranks: usize) -> Range<usize> {
    rank * samples / ranks..(rank + 1) * samples / ranks
}

impl Share {
    /// Makes a rank's part of `batch` current; allocations are kept.
    pub fn load(&mut self, schedule: &Schedule, batch: Arc<GlobalBatch>, rank: usize, ranks: usize) {
        self.ranks = ranks;
        self.samples = block(batch.samples, rank, ranks);
        self.sample_keys.clear();
        self.sample_keys.extend(self.samples.clone().map(|s| s as u64));
        self.offsets.resize_with(batch.offsets.len(), Vec::new);
        self.token_keys.resize_with(batch.offsets.len(), Vec::new);
        for ((all, own), keys) in batch.offsets.iter().zip(&mut self.offsets).zip(&mut self.token_keys) {
            let all = &all[self.samples.start..=self.samples.end];
            assert!(all.is_sorted(), "the offsets of a batch fall");
            own.clear();
            own.extend(all.iter().map(|o| o - all[0]));
            keys.clear();
            for (sample, span) in self.samples.clone().zip(own.windows(2)) {
                keys.extend((0..(span[1] - span[0]) as u64).map(|position| (sample as u64) << 32 | position));
            }
        }
        self.sent.resize_with(schedule.exchanges.len(), AtomicUsize::default);
        self.received.resize_with(schedule.exchanges.len(), AtomicUsize::default);
        self.batch = batch;
    }

    /// The whole batch.
    pub fn batch(&self) -> &GlobalBatch {
        &self.batch
    }

    /// This rank's samples in it.
    pub fn samples(&self) -> Range<usize> {
        self.samples.clone()
    }

    /// Offsets of a length group.
    pub fn offsets(&self, group: usize) -> &[usize] {
        self.offsets.get(group).map_or(&[], Vec::as_slice)
    }

    /// Random keys for rows that are samples.
    pub fn sample_keys(&self) -> &[u64] {
        &self.sample_keys
    }

    /// Random keys for rows that are tokens of a group.
    pub fn token_keys(&self, group: usize) -> &[u64] {
        self.token_keys.get(group).map_or(&[], Vec::as_slice)
    }

    /// Values of an input, for this rank's samples.
    pub fn input(&self, schedule: &Schedule, input: usize) -> Option<Part<'_>> {
        let range = match schedule.inputs.get(input)?.kind {
            InputKind::Ids { lengths, .. } | InputKind::TokenLabel { lengths } => {
                self.tokens(lengths as usize)
            }
            InputKind::Next { of } => match schedule.inputs.get(of as usize)?.kind {
                InputKind::Ids { lengths, .. } => self.tokens(lengths as usize),
                _ => return None,
            },
            InputKind::Dense { width } => {
                self.samples.start * width as usize..self.samples.end * width as usize
            }
            InputKind::SampleLabel => self.samples.clone(),
        };
        match self.batch.inputs.get(input)? {
            Values::Ids(ids) => ids.get(range).map(Part::Ids),
            Values::Reals(reals) => reals.get(range).map(Part::Reals),
        }
    }

    /// Where this rank's tokens of a group lie in the batch.
    fn tokens(&self, group: usize) -> Range<usize> {
        self.batch.offsets.get(group).map_or(0..0, |o| o[self.samples.start]..o[self.samples.end])
    }

    /// A size of this share.
    pub fn size(&self, symbol: Symbol) -> usize {
        let loaded =
            |sizes: &[AtomicUsize], e: u32| sizes.get(e as usize).map_or(0, |n| n.load(Ordering::Relaxed));
        match symbol {
            Symbol::Ranks => self.ranks,
            Symbol::Samples => self.samples.len(),
            Symbol::Tokens(g) => self.offsets(g as usize).last().copied().unwrap_or(0),
            Symbol::Squares(g) => self.offsets(g as usize).windows(2).map(|s| (s[1] - s[0]).pow(2)).sum(),
            Symbol::Sent(e) => loaded(&self.sent, e),
            Symbol::Received(e) => loaded(&self.received, e),
            // Rows are not told apart by reuse distance in the schedules that this version runs.
            Symbol::SentClass(..) | Symbol::ReceivedClass(..) => 0,
        }
    }

    /// States how many entries an exchange sends.
    pub fn set_sent(&self, exchange: u32, n: usize) {
        if let Some(size) = self.sent.get(exchange as usize) {
            size.store(n, Ordering::Relaxed);
        }
    }

    /// States how many entries an exchange receives.
    pub fn set_received(&self, exchange: u32, n: usize) {
        if let Some(size) = self.received.get(exchange as usize) {
            size.store(n, Ordering::Relaxed);
        }
    }
}

/// A rank's part of an input.
#[derive(Debug, Clone, Copy)]
pub enum Part<'a> {
    /// Row ids.
    Ids(&'a [i64]),
    /// Features or labels.
    Reals(&'a [f32]),
}

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
    }
}
