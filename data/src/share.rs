//! One rank's share of a global batch: lists of its samples, one for each microbatch, and the sizes that follow from
//! them.
//!
//! A share has its samples at home, where they were read, and as they are assigned to be worked on; an operation says
//! by its site which of the two it means. Samples that lie in the batch one after the other are used where they
//! lie; others are gathered, in the order of the lists, into storage of the share's own. What is assigned becomes known
//! while the batch is in flight: first the lists, from then on sizes are there, then the values that other ranks sent.

use std::ops::Range;
use std::sync::{Arc, LazyLock, OnceLock};

use fs_schedule::{InputKind, Schedule, Site, Symbol};
use parking_lot::Mutex;

use super::samples::{Deal, Dealt, Lists};
use super::sizes::{Layout, Sizes};
use super::{GlobalBatch, Values};

/// What a rank works on in a step.
#[derive(Debug, Default)]
pub struct Share {
    batch: Arc<GlobalBatch>,
    ranks: usize,
    home: Samples,
    /// The same by planned microbatch, once those are known; only if work is done on them there.
    cut: OnceLock<Samples>,
    /// Once it is known which they are.
    assigned: OnceLock<Samples>,
    /// Those of an earlier batch, whose storage is used again: as they were cut and as they were assigned.
    spare: [Mutex<Samples>; 2],
    /// Of its exchanges.
    pub sizes: Sizes,
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
    gathered: OnceLock<Vec<Values>>,
    /// The storage of an earlier batch.
    spare: Mutex<Vec<Values>>,
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
    pub fn tokens(self, group: usize) -> Range<usize> {
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
        let within = |offsets: &[usize], at: usize| {
            assert!(offsets[at] <= offsets[at + 1], "the offsets of a batch fall");
            offsets[at + 1] - offsets[at]
        };
        let held = |sample: u64| batch.held.position(sample as usize).unwrap_or(0);
        self.lay(groups, |sample, group| within(&batch.offsets[group], held(sample)));
        if run.is_none() {
            let mut gathered = self.storage();
            self.gather(schedule, batch, &mut gathered)?;
            self.gathered = OnceLock::from(gathered);
        }
        Ok(())
    }

    /// Offsets and keys of the samples in the lists, all and by microbatch.
    fn lay(&mut self, groups: usize, length: impl Fn(u64, usize) -> usize) {
        let (list, cuts) = (self.lists.samples(), self.lists.microbatches());
        self.parts.resize_with(1 + if cuts > 1 { cuts } else { 0 }, Part::default);
        self.token_keys.resize_with(groups, Vec::new);
        let [all, microbatches @ ..] = &mut self.parts[..] else { return };
        all.samples = 0..list.len();
        all.offsets.resize_with(groups, Vec::new);
        for (group, (own, keys)) in all.offsets.iter_mut().zip(&mut self.token_keys).enumerate() {
            own.clear();
            keys.clear();
            own.push(0);
            let mut end = 0;
            for sample in list {
                let n = length(*sample, group);
                end += n;
                own.push(end);
                keys.extend((0..n as u64).map(|place| sample << 32 | place));
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
    }

    /// Storage for values: that of an earlier batch, if there is one.
    fn storage(&mut self) -> Vec<Values> {
        self.gathered.take().unwrap_or_else(|| std::mem::take(self.spare.get_mut()))
    }

    /// Copies the values of all inputs, sample by sample.
    fn gather(
        &self,
        schedule: &Schedule,
        batch: &GlobalBatch,
        gathered: &mut Vec<Values>,
    ) -> Result<(), Missing> {
        gathered.resize_with(batch.inputs.len(), || Values::Ids(Vec::new()));
        for (i, (from, to)) in batch.inputs.iter().zip(gathered).enumerate() {
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
        let values = if self.run.is_some() { &batch.inputs } else { self.gathered.get()? };
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
        self.batch = batch;
        for (samples, spare) in [&mut self.cut, &mut self.assigned].into_iter().zip(&mut self.spare) {
            if let Some(mut before) = samples.take() {
                let values = before.storage();
                *before.spare.get_mut() = values;
                *spare.get_mut() = before;
            }
        }
        Ok(())
    }

    /// Says which samples are assigned to the rank, once for each batch, and how long each is in each length group.
    /// False if that was said before.
    pub fn assign(
        &self,
        fill: impl FnOnce(&mut Lists),
        groups: usize,
        length: impl Fn(u64, usize) -> usize,
    ) -> bool {
        let mut samples = std::mem::take(&mut *self.spare[1].lock());
        samples.lists.clear();
        fill(&mut samples.lists);
        samples.run = None;
        samples.lay(groups, length);
        self.assigned.set(samples).is_ok()
    }

    /// Says which of the samples at home belong to each microbatch, once for each batch. False if that was said before.
    pub fn cut(&self, schedule: &Schedule, fill: impl FnOnce(&mut Lists)) -> Result<bool, Missing> {
        let mut samples = std::mem::take(&mut *self.spare[0].lock());
        samples.lists.clear();
        fill(&mut samples.lists);
        samples.load(schedule, &self.batch)?;
        Ok(self.cut.set(samples).is_ok())
    }

    /// Stores the values of the samples that are assigned, once for each batch. False if that was done before, or nothing
    /// is assigned.
    pub fn bring(&self, fill: impl FnOnce(&mut Vec<Values>)) -> bool {
        self.assigned.get().is_some_and(|samples| {
            let mut values = std::mem::take(&mut *samples.spare.lock());
            fill(&mut values);
            samples.gathered.set(values).is_ok()
        })
    }

    /// The samples of a site in the order of their lists; none if they are not known.
    pub fn lists(&self, site: Site) -> Option<&Lists> {
        self.samples(site).map(|samples| &samples.lists)
    }

    /// The values that an input has for a sample which the batch holds.
    pub fn sample(&self, schedule: &Schedule, input: usize, sample: u64) -> Option<Column<'_>> {
        let at = self.batch.held.position(sample as usize)?;
        let range = match rows(schedule, input)? {
            Rows::Samples(width) => at * width..(at + 1) * width,
            Rows::Tokens(group) => {
                let offsets = self.batch.offsets.get(group)?;
                *offsets.get(at)?..*offsets.get(at + 1)?
            }
        };
        match self.batch.inputs.get(input)? {
            Values::Ids(ids) => ids.get(range).map(Column::Ids),
            Values::Reals(reals) => reals.get(range).map(Column::Reals),
        }
    }

    /// Ids in a length group of a sample which the batch holds.
    pub fn length(&self, group: usize, sample: u64) -> Option<usize> {
        let at = self.batch.held.position(sample as usize)?;
        let offsets = self.batch.offsets.get(group)?;
        offsets.get(at + 1)?.checked_sub(*offsets.get(at)?)
    }

    /// The whole batch, as far as it is here.
    pub fn batch(&self) -> &GlobalBatch {
        &self.batch
    }

    fn samples(&self, site: Site) -> Option<&Samples> {
        match site {
            Site::Assigned => self.assigned.get(),
            Site::Home => Some(self.cut.get().unwrap_or(&self.home)),
        }
    }

    /// The samples of a microbatch, or all; none if they are not known.
    pub fn part(&self, site: Site, microbatch: Option<u32>) -> Span<'_> {
        static NONE: LazyLock<Samples> = LazyLock::new(|| {
            let mut samples = Samples::default();
            samples.lay(0, |_, _| 0);
            samples
        });
        self.samples(site).unwrap_or(&NONE).span(microbatch)
    }

    /// Values of an input, for the samples of a microbatch.
    pub fn input(
        &self,
        schedule: &Schedule,
        input: usize,
        site: Site,
        microbatch: Option<u32>,
    ) -> Option<Column<'_>> {
        self.samples(site)?.input(schedule, &self.batch, input, microbatch)
    }

    /// A size of this share; samples and tokens are those of a microbatch.
    pub fn size(&self, symbol: Symbol, site: Site, microbatch: Option<u32>) -> usize {
        let span = || self.part(site, microbatch);
        match symbol {
            Symbol::Ranks => self.ranks,
            Symbol::Samples => span().part.samples.len(),
            Symbol::Tokens(g) => span().offsets(g as usize).last().copied().unwrap_or(0),
            Symbol::Squares(g) => span().offsets(g as usize).windows(2).map(|s| (s[1] - s[0]).pow(2)).sum(),
            Symbol::Sent(_)
            | Symbol::Received(_)
            | Symbol::Asked(_)
            | Symbol::SentClass(..)
            | Symbol::ReceivedClass(..) => self.sizes.get(symbol),
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
