//! Samples drawn from the laws of a workload ([`fs_workload`]).
//!
//! Every number is a function of (seed, sample, position), so batches need no state and no tables.

use std::sync::Arc;

use fs_schedule::{IdDistribution, InputKind, LabelDistribution, LengthDistribution, Schedule};
use fs_workload::ids::IdSampler;
use fs_workload::labels;
use fs_workload::lengths::LengthLaw;
use fs_workload::random::{RandomKey, normal};

use super::{DataError, Epochs, GlobalBatch, Source};

/// Random streams of the generator; far from those that models number from 0.
const LENGTHS: u32 = 0xF510_0000;
const IDS: u32 = 0xF520_0000;
const REALS: u32 = 0xF530_0000;

/// Draws batches.
#[derive(Debug)]
pub(crate) struct Generator {
    schedule: Arc<Schedule>,
    lengths: Vec<LengthLaw>,
    /// Per input: how its ids are drawn.
    ids: Vec<Option<Ids>>,
    labels: LabelDistribution,
    samples: Option<u64>,
    seed: u64,
    /// The laws, for those who must draw the same.
    laws: String,
    /// Numbers, over all steps, of the samples that a batch holds.
    here: Vec<u64>,
    scratch: Vec<i64>,
}

#[derive(Debug, Clone, Copy)]
struct Ids {
    sampler: IdSampler,
    group: usize,
    stream: u32,
}

impl Generator {
    /// Checks the distributions against the schedule's tables and length groups.
    pub(crate) fn new(
        schedule: &Arc<Schedule>,
        lengths: LengthDistribution,
        ids: IdDistribution,
        labels: LabelDistribution,
        samples: Option<u64>,
        seed: u64,
    ) -> Result<Self, DataError> {
        let wrong = |what| move |law| DataError::Law { what, law };
        let laws = format!("lengths {lengths:?}, ids {ids:?}, labels {labels:?}, samples {samples:?}");
        if samples == Some(0) {
            return Err(DataError::Distribution { what: "samples", reason: "`samples` is 0".into() });
        }
        labels.check().map_err(wrong("labels"))?;
        let lengths = schedule.lengths.iter().map(|g| LengthLaw::new(lengths, g.max));
        let lengths = lengths.collect::<Result<_, _>>().map_err(wrong("lengths"))?;
        let ids = schedule.inputs.iter().enumerate().map(|(i, input)| match input.kind {
            InputKind::Ids { table, lengths } => {
                let rows = schedule.tables[table as usize].rows;
                let sampler = IdSampler::new(ids, rows, seed, table)?;
                Ok(Some(Ids { sampler, group: lengths as usize, stream: IDS + i as u32 }))
            }
            _ => Ok(None),
        });
        let ids = ids.collect::<Result<_, _>>().map_err(wrong("ids"))?;
        let (here, scratch) = (Vec::new(), Vec::new());
        Ok(Self { schedule: Arc::clone(schedule), lengths, ids, labels, samples, seed, laws, here, scratch })
    }

    fn key(&self, stream: u32, sample: u64) -> RandomKey {
        RandomKey { seed: self.seed, stream, step: sample }
    }
}

/// Lets a thread go first that waits for this processor. Samples are drawn ahead of their use, but an engine that wakes
/// up here would otherwise wait for the end of a time slice, which is as long as a small step.
fn give_way(sample: u64) {
    if sample.is_multiple_of(16) {
        std::thread::yield_now();
    }
}

impl Source for Generator {
    fn describe(&self) -> String {
        "generated data".into()
    }

    fn digest(&self) -> Result<String, DataError> {
        Ok(format!("of generated data, {}", self.laws))
    }

    fn epoch_steps(&self) -> Option<u64> {
        self.samples
            .map(|samples| Epochs { samples, batch: u64::from(self.schedule.settings.batch).max(1) }.steps())
    }

    fn fill(&mut self, step: u64, batch: &mut GlobalBatch) -> Result<(), DataError> {
        let schedule = Arc::clone(&self.schedule);
        batch.reset(&schedule, step);
        let size = u64::from(schedule.settings.batch).max(1);
        let range = match self.samples {
            Some(samples) => Epochs { samples, batch: size }.locate(step).1,
            None => step * size..(step + 1) * size,
        };
        batch.begin((range.end - range.start) as usize);
        // The lengths of all, so that everybody knows what losses are divided by.
        for (group, law) in self.lengths.iter().enumerate() {
            let offsets = &mut batch.offsets[group];
            for (i, sample) in range.clone().enumerate() {
                let length = law.draw(self.key(LENGTHS + group as u32, sample)) as usize;
                if batch.held.position(i).is_some() {
                    offsets.push(offsets.last().copied().unwrap_or(0) + length);
                } else {
                    batch.elsewhere[group] += length;
                }
            }
        }
        self.here.clear();
        self.here
            .extend(range.enumerate().filter(|(i, _)| batch.held.position(*i).is_some()).map(|(_, s)| s));
        // Ids and features first, since labels may hash ids.
        for (i, input) in schedule.inputs.iter().enumerate() {
            match (input.kind, self.ids[i]) {
                (InputKind::Ids { .. }, Some(drawn)) => {
                    let offsets = &batch.offsets[drawn.group];
                    let Some(ids) = batch.inputs[i].ids_mut() else { continue };
                    for (&sample, span) in self.here.iter().zip(offsets.windows(2)) {
                        let key = self.key(drawn.stream, sample);
                        ids.extend((0..span[1] - span[0]).map(|p| drawn.sampler.draw(key, p)));
                        give_way(sample);
                    }
                }
                (InputKind::Dense { width }, _) => {
                    let Some(reals) = batch.inputs[i].reals_mut() else { continue };
                    for &sample in &self.here {
                        let key = self.key(REALS + i as u32, sample);
                        reals.extend((0..u64::from(width)).map(|c| normal(key, c) as f32));
                        give_way(sample);
                    }
                }
                _ => {}
            }
        }
        for (i, input) in schedule.inputs.iter().enumerate() {
            match input.kind {
                InputKind::Next { of } => self.next_ids(of as usize, i, batch),
                InputKind::SampleLabel | InputKind::TokenLabel { .. } => {
                    self.fill_labels(i, batch)?;
                }
                InputKind::Ids { .. } | InputKind::Dense { .. } => {}
            }
        }
        Ok(())
    }
}

impl Generator {
    /// What follows each id: the sequence shifted by one, its last a further draw.
    fn next_ids(&mut self, of: usize, input: usize, batch: &mut GlobalBatch) {
        let Some(drawn) = self.ids.get(of).copied().flatten() else { return };
        let offsets = &batch.offsets[drawn.group];
        self.scratch.clear();
        for (&sample, span) in self.here.iter().zip(offsets.windows(2)) {
            let key = self.key(drawn.stream, sample);
            self.scratch.extend((1..=span[1] - span[0]).map(|p| drawn.sampler.draw(key, p)));
        }
        if let Some(next) = batch.inputs[input].ids_mut() {
            std::mem::swap(next, &mut self.scratch);
        }
    }

    fn fill_labels(&self, input: usize, batch: &mut GlobalBatch) -> Result<(), DataError> {
        let kinds = &self.schedule.inputs;
        let per_token = match kinds[input].kind {
            InputKind::TokenLabel { lengths } => Some(lengths),
            _ => None,
        };
        let mut values = batch.inputs[input].reals_mut().map(std::mem::take).unwrap_or_default();
        match self.labels {
            LabelDistribution::Bernoulli(p) => {
                for (i, &sample) in self.here.iter().enumerate() {
                    let n = per_token.map_or(1, |g| {
                        let offsets = &batch.offsets[g as usize];
                        offsets[i + 1] - offsets[i]
                    });
                    let key = self.key(REALS + input as u32, sample);
                    values.extend((0..n as u64).map(|c| labels::bernoulli(p, key, c)));
                }
            }
            LabelDistribution::Hash => {
                let first = kinds.iter().zip(&batch.inputs).find_map(|(kind, ids)| match (kind.kind, ids) {
                    (InputKind::Ids { lengths, .. }, super::Values::Ids(ids))
                        if per_token.is_none_or(|g| g == lengths) =>
                    {
                        Some((lengths, ids))
                    }
                    _ => None,
                });
                let Some((group, ids)) = first else {
                    return Err(DataError::Unsupported {
                        input: kinds[input].name.clone(),
                        from: "generated data".into(),
                        reason: "labels by hash need an id sequence of the same lengths; use `bernoulli`"
                            .into(),
                    });
                };
                if per_token.is_some() {
                    values.extend(ids.iter().map(|&id| labels::hash(id)));
                } else {
                    let spans = batch.offsets[group as usize].windows(2);
                    values.extend(spans.map(|s| ids[s[0]..s[1]].first().map_or(0.0, |&id| labels::hash(id))));
                }
            }
        }
        if let Some(labels) = batch.inputs[input].reals_mut() {
            *labels = values;
        }
        Ok(())
    }
}
