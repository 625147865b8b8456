//! One rank's share of a global batch: a contiguous block of its samples, cut into microbatches, and the sizes that
//! follow from it.

use std::ops::Range;
use std::sync::Arc;

use fs_schedule::{InputKind, Schedule, Symbol};

use super::sizes::{Layout, Sizes};
use super::{GlobalBatch, Values};

/// What a rank works on in a step.
#[derive(Debug, Default)]
pub struct Share {
    batch: Arc<GlobalBatch>,
    ranks: usize,
    /// All of the rank's samples, then those of each microbatch (if there are several).
    parts: Vec<Span>,
    /// Of its exchanges.
    pub sizes: Sizes,
}

/// Consecutive samples of a batch.
#[derive(Debug, Default)]
pub struct Span {
    samples: Range<usize>,
    /// Per length group, rebased to the first token.
    offsets: Vec<Vec<usize>>,
    /// Random keys of the samples: their index in the global batch.
    sample_keys: Vec<u64>,
    /// Random keys of the tokens of each group: sample << 32 | position.
    token_keys: Vec<Vec<u64>>,
}

/// The samples of a rank: blocks whose sizes differ by at most one.
pub fn block(samples: usize, rank: usize, ranks: usize) -> Range<usize> {
    rank * samples / ranks..(rank + 1) * samples / ranks
}

impl Span {
    fn load(&mut self, batch: &GlobalBatch, samples: Range<usize>) {
        self.samples = samples;
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
}

impl Share {
    /// Nothing yet.
    pub fn new(layout: &Arc<Layout>) -> Self {
        Self { sizes: Sizes::new(layout), ..Self::default() }
    }

    /// Makes a rank's part of `batch` current; allocations are kept.
    pub fn load(&mut self, batch: Arc<GlobalBatch>, rank: usize, ranks: usize, microbatches: usize) {
        self.ranks = ranks;
        let own = block(batch.samples, rank, ranks);
        let cuts = if microbatches > 1 { microbatches } else { 0 };
        self.parts.resize_with(1 + cuts, Span::default);
        for (i, part) in self.parts.iter_mut().enumerate() {
            let samples = if i == 0 {
                own.clone()
            } else {
                let cut = block(own.len(), i - 1, cuts);
                own.start + cut.start..own.start + cut.end
            };
            part.load(&batch, samples);
        }
        self.batch = batch;
    }

    /// The whole batch.
    pub fn batch(&self) -> &GlobalBatch {
        &self.batch
    }

    /// The samples of a microbatch, or all.
    pub fn part(&self, microbatch: Option<u32>) -> &Span {
        let at = if self.parts.len() > 1 { microbatch.map_or(0, |m| 1 + m as usize) } else { 0 };
        &self.parts[at.min(self.parts.len() - 1)]
    }

    /// Values of an input, for the samples of a microbatch.
    pub fn input(&self, schedule: &Schedule, input: usize, microbatch: Option<u32>) -> Option<Part<'_>> {
        let samples = &self.part(microbatch).samples;
        let tokens = |group: u32| {
            let offsets = self.batch.offsets.get(group as usize);
            offsets.map_or(0..0, |o| o[samples.start]..o[samples.end])
        };
        let range = match schedule.inputs.get(input)?.kind {
            InputKind::Ids { lengths, .. } | InputKind::TokenLabel { lengths } => tokens(lengths),
            InputKind::Next { of } => match schedule.inputs.get(of as usize)?.kind {
                InputKind::Ids { lengths, .. } => tokens(lengths),
                _ => return None,
            },
            InputKind::Dense { width } => samples.start * width as usize..samples.end * width as usize,
            InputKind::SampleLabel => samples.clone(),
        };
        match self.batch.inputs.get(input)? {
            Values::Ids(ids) => ids.get(range).map(Part::Ids),
            Values::Reals(reals) => reals.get(range).map(Part::Reals),
        }
    }

    /// A size of this share; samples and tokens are those of a microbatch.
    pub fn size(&self, symbol: Symbol, microbatch: Option<u32>) -> usize {
        match symbol {
            Symbol::Ranks => self.ranks,
            Symbol::Samples => self.part(microbatch).samples.len(),
            Symbol::Tokens(g) => self.part(microbatch).offsets(g as usize).last().copied().unwrap_or(0),
            Symbol::Squares(g) => {
                let offsets = self.part(microbatch).offsets(g as usize);
                offsets.windows(2).map(|s| (s[1] - s[0]).pow(2)).sum()
            }
            Symbol::Sent(_) | Symbol::Received(_) | Symbol::SentClass(..) | Symbol::ReceivedClass(..) => {
                self.sizes.get(symbol)
            }
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
