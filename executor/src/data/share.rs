//! One rank's share of a global batch: lists of its samples, one for each microbatch, and the sizes that follow from
//! them.
//!
//! A share has its samples at home, where they were read, and as they are assigned to be worked on; an operation says
//! by its site which of the two it means. Samples that lie in the batch one after the other are used where they
//! lie; others are gathered, in the order of the lists, into storage of the share's own.

use std::ops::Range;
use std::sync::Arc;

use fs_schedule::{InputKind, Schedule, Site, Symbol};

use super::samples::{Deal, Dealt, Lists};
use super::sizes::{Layout, Sizes};
use super::{GlobalBatch, Values};

/// What a rank works on in a step.
#[derive(Debug, Default)]
pub struct Share {
    batch: Arc<GlobalBatch>,
    ranks: usize,
    home: Samples,
    /// Where they are others than at home.
    assigned: Samples,
    moved: bool,
    /// Of its exchanges.
    pub(crate) sizes: Sizes,
}

/// A sample that a rank is to work on and that the batch does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("sample {sample} of step {step} belongs to this rank, but the batch does not hold it")]
pub struct Missing {
    /// Its index in the global batch.
    pub sample: u64,
    /// The step.
    pub step: u64,
}

/// The samples of one site, in the order of their lists.
#[derive(Debug, Default)]
struct Samples {
    lists: Lists,
    /// Position in the batch of the first, if all lie there one after the other; otherwise they are gathered.
    run: Option<usize>,
    gathered: Vec<Values>,
    /// Random keys of the tokens of each group: sample << 32 | position.
    token_keys: Vec<Vec<u64>>,
    /// All samples, then those of each microbatch (if there are several).
    parts: Vec<Part>,
}

/// Samples that follow one another in the list of a rank.
#[derive(Debug, Default)]
struct Part {
    /// Their places in the list.
    samples: Range<usize>,
    /// Per length group, rebased to the first token.
    offsets: Vec<Vec<usize>>,
}

/// The samples of a rank or of a microbatch.
#[derive(Debug, Clone, Copy)]
pub struct Span<'a> {
    all: &'a Samples,
    part: &'a Part,
}

impl<'a> Span<'a> {
    /// Offsets of a length group.
    pub fn offsets(self, group: usize) -> &'a [usize] {
        self.part.offsets.get(group).map_or(&[], Vec::as_slice)
    }

    /// Random keys for rows that are samples: their indices in the global batch.
    pub fn sample_keys(self) -> &'a [u64] {
        &self.all.lists.samples()[self.part.samples.clone()]
    }

    /// Random keys for rows that are tokens of a group.
    pub fn token_keys(self, group: usize) -> &'a [u64] {
        self.all.token_keys.get(group).map_or(&[], |keys| &keys[self.tokens(group)])
    }

    /// Where its tokens of a group lie among those of the rank.
    fn tokens(self, group: usize) -> Range<usize> {
        let offsets = self.all.parts.first().and_then(|all| all.offsets.get(group));
        offsets.map_or(0..0, |o| o[self.part.samples.start]..o[self.part.samples.end])
    }
}

impl Samples {
    /// Makes the samples of `lists` current.
    fn load(&mut self, schedule: &Schedule, batch: &GlobalBatch) -> Result<(), Missing> {
        let list = self.lists.samples();
        let position =
            |sample: u64| batch.held.position(sample as usize).ok_or(Missing { sample, step: batch.step });
        let first = list.first().map_or(Ok(0), |s| position(*s))?;
        let (mut run, groups) = (Some(first), batch.offsets.len());
        for (i, sample) in list.iter().enumerate() {
            let at = position(*sample)?;
            run = run.filter(|first| first + i == at);
        }
        self.run = run;
        let cuts = self.lists.microbatches();
        self.parts.resize_with(1 + if cuts > 1 { cuts } else { 0 }, Part::default);
        self.token_keys.resize_with(groups, Vec::new);
        let [all, microbatches @ ..] = &mut self.parts[..] else { return Ok(()) };
        all.samples = 0..list.len();
        all.offsets.resize_with(groups, Vec::new);
        for ((offsets, own), keys) in batch.offsets.iter().zip(&mut all.offsets).zip(&mut self.token_keys) {
            own.clear();
            keys.clear();
            if let Some(first) = run {
                let offsets = &offsets[first..=first + list.len()];
                assert!(offsets.is_sorted(), "the offsets of a batch fall");
                own.extend(offsets.iter().map(|o| o - offsets[0]));
            } else {
                own.push(0);
                for sample in list {
                    let at = position(*sample)?;
                    assert!(offsets[at] <= offsets[at + 1], "the offsets of a batch fall");
                    own.push(own[own.len() - 1] + offsets[at + 1] - offsets[at]);
                }
            }
            for (sample, span) in list.iter().zip(own.windows(2)) {
                keys.extend((0..(span[1] - span[0]) as u64).map(|place| sample << 32 | place));
            }
        }
        for (m, part) in microbatches.iter_mut().enumerate() {
            part.samples = self.lists.microbatch(m);
            part.offsets.resize_with(groups, Vec::new);
            for (all, own) in all.offsets.iter().zip(&mut part.offsets) {
                let all = &all[part.samples.start..=part.samples.end];
                own.clear();
                own.extend(all.iter().map(|o| o - all[0]));
            }
        }
        if run.is_none() {
            self.gather(schedule, batch)?;
        }
        Ok(())
    }

    /// Copies the values of all inputs, sample by sample.
    fn gather(&mut self, schedule: &Schedule, batch: &GlobalBatch) -> Result<(), Missing> {
        self.gathered.resize_with(batch.inputs.len(), || Values::Ids(Vec::new()));
        for (i, (from, to)) in batch.inputs.iter().zip(&mut self.gathered).enumerate() {
            to.clear_like(from);
            let Some(rows) = rows(schedule, i) else { continue };
            for sample in self.lists.samples() {
                let at = batch.held.position(*sample as usize);
                let at = at.ok_or(Missing { sample: *sample, step: batch.step })?;
                let range = match rows {
                    Rows::Samples(width) => at * width..(at + 1) * width,
                    Rows::Tokens(g) => match batch.offsets.get(g) {
                        Some(offsets) => offsets[at]..offsets[at + 1],
                        None => continue,
                    },
                };
                to.extend_from(from, range);
            }
        }
        Ok(())
    }

    fn span(&self, microbatch: Option<u32>) -> Span<'_> {
        let at = if self.parts.len() > 1 { microbatch.map_or(0, |m| 1 + m as usize) } else { 0 };
        Span { all: self, part: &self.parts[at.min(self.parts.len() - 1)] }
    }

    /// Values of an input, for the samples of a microbatch.
    fn input<'a>(
        &'a self,
        schedule: &Schedule,
        batch: &'a GlobalBatch,
        input: usize,
        microbatch: Option<u32>,
    ) -> Option<Column<'a>> {
        let span = self.span(microbatch);
        let values = if self.run.is_some() { &batch.inputs } else { &self.gathered };
        let range = match rows(schedule, input)? {
            Rows::Samples(width) => {
                let base = self.run.unwrap_or(0);
                (base + span.part.samples.start) * width..(base + span.part.samples.end) * width
            }
            Rows::Tokens(g) => {
                let base = self.run.map_or(Some(0), |first| batch.offsets.get(g).map(|o| o[first]));
                let (base, own) = (base.unwrap_or(0), span.tokens(g));
                base + own.start..base + own.end
            }
        };
        match values.get(input)? {
            Values::Ids(ids) => ids.get(range).map(Column::Ids),
            Values::Reals(reals) => reals.get(range).map(Column::Reals),
        }
    }
}

/// What the rows of an input are.
#[derive(Debug, Clone, Copy)]
enum Rows {
    /// Samples, with this many values each.
    Samples(usize),
    /// Tokens of a group.
    Tokens(usize),
}

fn rows(schedule: &Schedule, input: usize) -> Option<Rows> {
    Some(match schedule.inputs.get(input)?.kind {
        InputKind::Ids { lengths, .. } | InputKind::TokenLabel { lengths } => Rows::Tokens(lengths as usize),
        InputKind::Next { of } => match schedule.inputs.get(of as usize)?.kind {
            InputKind::Ids { lengths, .. } => Rows::Tokens(lengths as usize),
            _ => return None,
        },
        InputKind::Dense { width } => Rows::Samples(width as usize),
        InputKind::SampleLabel => Rows::Samples(1),
    })
}

impl Share {
    /// Nothing yet.
    pub fn new(layout: &Arc<Layout>) -> Self {
        Self { sizes: Sizes::new(layout), ..Self::default() }
    }

    /// Makes a rank's part of `batch` current; allocations are kept.
    pub fn load(
        &mut self,
        schedule: &Schedule,
        batch: Arc<GlobalBatch>,
        (rank, ranks): (usize, usize),
        microbatches: usize,
        deal: &dyn Deal,
    ) -> Result<(), Missing> {
        self.ranks = ranks;
        let (samples, step) = (batch.samples, batch.step);
        let dealt = Dealt { step, samples, rank, ranks, microbatches: microbatches.max(1) };
        self.home.lists.clear();
        deal.home(dealt, &mut self.home.lists);
        self.home.load(schedule, &batch)?;
        self.assigned.lists.clear();
        self.moved = deal.assigned(dealt, &mut self.assigned.lists);
        if self.moved {
            self.assigned.load(schedule, &batch)?;
        }
        self.batch = batch;
        Ok(())
    }

    /// The whole batch, as far as it is here.
    pub fn batch(&self) -> &GlobalBatch {
        &self.batch
    }

    fn samples(&self, site: Site) -> &Samples {
        match site {
            Site::Assigned if self.moved => &self.assigned,
            Site::Assigned | Site::Home => &self.home,
        }
    }

    /// The samples of a microbatch, or all.
    pub fn part(&self, site: Site, microbatch: Option<u32>) -> Span<'_> {
        self.samples(site).span(microbatch)
    }

    /// Values of an input, for the samples of a microbatch.
    pub fn input(
        &self,
        schedule: &Schedule,
        input: usize,
        site: Site,
        microbatch: Option<u32>,
    ) -> Option<Column<'_>> {
        self.samples(site).input(schedule, &self.batch, input, microbatch)
    }

    /// A size of this share; samples and tokens are those of a microbatch.
    pub fn size(&self, symbol: Symbol, site: Site, microbatch: Option<u32>) -> usize {
        let span = || self.part(site, microbatch);
        match symbol {
            Symbol::Ranks => self.ranks,
            Symbol::Samples => span().part.samples.len(),
            Symbol::Tokens(g) => span().offsets(g as usize).last().copied().unwrap_or(0),
            Symbol::Squares(g) => span().offsets(g as usize).windows(2).map(|s| (s[1] - s[0]).pow(2)).sum(),
            Symbol::Sent(_) | Symbol::Received(_) | Symbol::SentClass(..) | Symbol::ReceivedClass(..) => {
                self.sizes.get(symbol)
            }
        }
    }
}

/// A rank's part of an input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Column<'a> {
    /// Row ids.
    Ids(&'a [i64]),
    /// Features or labels.
    Reals(&'a [f32]),
}
