//! Samples drawn from distributions: lognormal lengths, Zipf ids over a permuted table.
//!
//! Every number is a function of (seed, sample, position), so batches need no state and no tables: ids come from
//! rejection-inversion and a computed permutation, which costs the same for 20 rows and for 20 million.

use std::sync::Arc;

use fs_kernels::random::{RandomKey, normal, uniform_f64, uniform_index};
use fs_schedule::{IdDistribution, InputKind, LabelDistribution, LengthDistribution, Schedule};

use super::permute::Permutation;
use super::zipf::Zipf;
use super::{DataError, Epochs, GlobalBatch, Source};

/// Random streams of the generator; far from those that models number from 0.
const LENGTHS: u32 = 0xF510_0000;
const IDS: u32 = 0xF520_0000;
const REALS: u32 = 0xF530_0000;
const ROWS: u32 = 0xF540_0000;
/// Draws that one position may need before its counter runs into the next one's.
const TRIES: u64 = 1 << 16;

/// Draws batches.
#[derive(Debug)]
pub struct Generator {
    schedule: Arc<Schedule>,
    lengths: Vec<LengthSampler>,
    /// Per input: how its ids are drawn.
    ids: Vec<Option<IdSampler>>,
    labels: LabelDistribution,
    samples: Option<u64>,
    seed: u64,
    scratch: Vec<i64>,
}

#[derive(Debug, Clone, Copy)]
enum LengthSampler {
    Fixed(u32),
    Uniform { min: u32, max: u32 },
    Lognormal { mu: f64, sigma: f64, min: u32, max: u32 },
}

#[derive(Debug, Clone, Copy)]
struct IdSampler {
    rows: u64,
    zipf: Option<Zipf>,
    permutation: Permutation,
    group: usize,
    stream: u32,
}

impl Generator {
    /// Checks the distributions against the schedule's tables and length groups.
    pub fn new(
        schedule: &Arc<Schedule>,
        lengths: LengthDistribution,
        ids: IdDistribution,
        labels: LabelDistribution,
        samples: Option<u64>,
        seed: u64,
    ) -> Result<Self, DataError> {
        let wrong = |what, reason: String| DataError::Distribution { what, reason };
        if samples == Some(0) {
            return Err(wrong("samples", "`samples` is 0".into()));
        }
        if let LabelDistribution::Bernoulli(p) = labels
            && !(0.0..=1.0).contains(&p)
        {
            return Err(wrong("labels", format!("{p} is not a probability")));
        }
        let lengths =
            schedule.lengths.iter().map(|g| LengthSampler::new(lengths, g.max)).collect::<Result<_, _>>()?;
        let ids = schedule.inputs.iter().enumerate().map(|(i, input)| match input.kind {
            InputKind::Ids { table, lengths } => {
                let rows = schedule.tables[table as usize].rows;
                let zipf = match ids {
                    IdDistribution::Uniform => None,
                    IdDistribution::Zipf(s) => Some(Zipf::new(rows, s).ok_or_else(|| {
                        wrong("ids", format!("a Zipf law needs a positive exponent, not {s}"))
                    })?),
                };
                let permutation = Permutation::new(rows, seed, ROWS + table);
                let (group, stream) = (lengths as usize, IDS + i as u32);
                Ok(Some(IdSampler { rows, zipf, permutation, group, stream }))
            }
            _ => Ok(None),
        });
        let ids = ids.collect::<Result<_, DataError>>()?;
        Ok(Self { schedule: Arc::clone(schedule), lengths, ids, labels, samples, seed, scratch: Vec::new() })
    }

    fn key(&self, stream: u32, sample: u64) -> RandomKey {
        RandomKey { seed: self.seed, stream, step: sample }
    }
}

impl LengthSampler {
    fn new(lengths: LengthDistribution, group_max: u32) -> Result<Self, DataError> {
        let wrong = |reason: String| DataError::Distribution { what: "lengths", reason };
        match lengths {
            LengthDistribution::Fixed(n) => Ok(Self::Fixed(n.min(group_max))),
            LengthDistribution::Uniform { min, max } if min <= max => {
                Ok(Self::Uniform { min: min.min(group_max), max: max.min(group_max) })
            }
            LengthDistribution::Uniform { min, max } => {
                Err(wrong(format!("the range {min}..={max} is empty")))
            }
            LengthDistribution::Lognormal { mean, sigma, min, max } => {
                let max = max.unwrap_or(group_max).min(group_max);
                if !(sigma.is_finite() && sigma >= 0.0) {
                    return Err(wrong(format!("sigma {sigma} is not a finite number of at least 0")));
                }
                let min = min.min(max);
                // One distribution serves all groups: one that is shorter than the mean is always full.
                if mean >= f64::from(max) {
                    return Ok(Self::Fixed(max));
                }
                if mean.is_nan() || mean < f64::from(min) {
                    return Err(wrong(format!("the mean {mean} is below the minimum {min}")));
                }
                let (lo, hi) = (f64::from(min), f64::from(max));
                Ok(Self::Lognormal { mu: lognormal_mu(mean, sigma, lo, hi), sigma, min, max })
            }
        }
    }

    fn draw(self, key: RandomKey) -> usize {
        let n = match self {
            Self::Fixed(n) => n,
            Self::Uniform { min, max } => min + uniform_index(key, 0, u64::from(max - min) + 1) as u32,
            Self::Lognormal { mu, sigma, min, max } => {
                let length = (mu + sigma * normal(key, 0)).exp().round();
                length.clamp(f64::from(min), f64::from(max)) as u32
            }
        };
        n as usize
    }
}

/// The location for which a lognormal clipped to `[lo, hi]` has this mean, by bisection.
fn lognormal_mu(mean: f64, sigma: f64, lo: f64, hi: f64) -> f64 {
    let clipped_mean = |mu: f64| {
        let (mut sum, mut weight) = (0.0, 0.0);
        for i in -800..=800 {
            let z = f64::from(i) / 100.0;
            let density = (-0.5 * z * z).exp();
            sum += density * (mu + sigma * z).exp().clamp(lo, hi);
            weight += density;
        }
        sum / weight
    };
    let (mut a, mut b) = (-40.0, 40.0);
    for _ in 0..60 {
        let middle = f64::midpoint(a, b);
        if clipped_mean(middle) < mean { a = middle } else { b = middle }
    }
    f64::midpoint(a, b)
}

impl IdSampler {
    fn draw(&self, key: RandomKey, position: usize) -> i64 {
        let mut counter = position as u64 * TRIES;
        let rank = match self.zipf {
            None => uniform_index(key, counter, self.rows),
            Some(zipf) => {
                zipf.sample(|| {
                    counter += 1;
                    uniform_f64(key, counter)
                }) - 1
            }
        };
        self.permutation.apply(rank) as i64
    }
}

/// The label that a hash gives an id.
fn hash_label(id: i64) -> f32 {
    (id.wrapping_mul(2_654_435_761) >> 7 & 1) as f32
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
        batch.samples = (range.end - range.start) as usize;
        for (group, sampler) in self.lengths.iter().enumerate() {
            let offsets = &mut batch.offsets[group];
            for sample in range.clone() {
                let end = offsets.last().copied().unwrap_or(0);
                offsets.push(end + sampler.draw(self.key(LENGTHS + group as u32, sample)));
            }
        }
        // Ids and features first, since labels may hash ids.
        for (i, input) in schedule.inputs.iter().enumerate() {
            match (input.kind, self.ids[i]) {
                (InputKind::Ids { .. }, Some(sampler)) => {
                    let offsets = &batch.offsets[sampler.group];
                    let Some(ids) = batch.inputs[i].ids_mut() else { continue };
                    for (sample, span) in range.clone().zip(offsets.windows(2)) {
                        let key = self.key(sampler.stream, sample);
                        ids.extend((0..span[1] - span[0]).map(|p| sampler.draw(key, p)));
                        give_way(sample);
                    }
                }
                (InputKind::Dense { width }, _) => {
                    let Some(reals) = batch.inputs[i].reals_mut() else { continue };
                    for sample in range.clone() {
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
                InputKind::Next { of } => self.next_ids(of as usize, i, &range, batch),
                InputKind::SampleLabel | InputKind::TokenLabel { .. } => {
                    self.fill_labels(i, &range, batch)?;
                }
                InputKind::Ids { .. } | InputKind::Dense { .. } => {}
            }
        }
        Ok(())
    }
}

impl Generator {
    /// What follows each id: the sequence shifted by one, its last a further draw.
    fn next_ids(&mut self, of: usize, input: usize, range: &std::ops::Range<u64>, batch: &mut GlobalBatch) {
        let Some(sampler) = self.ids.get(of).copied().flatten() else { return };
        let offsets = &batch.offsets[sampler.group];
        self.scratch.clear();
        for (sample, span) in range.clone().zip(offsets.windows(2)) {
            let key = self.key(sampler.stream, sample);
            self.scratch.extend((1..=span[1] - span[0]).map(|p| sampler.draw(key, p)));
        }
        if let Some(next) = batch.inputs[input].ids_mut() {
            std::mem::swap(next, &mut self.scratch);
        }
    }

    fn fill_labels(
        &self,
        input: usize,
        range: &std::ops::Range<u64>,
        batch: &mut GlobalBatch,
    ) -> Result<(), DataError> {
        let kinds = &self.schedule.inputs;
        let per_token = match kinds[input].kind {
            InputKind::TokenLabel { lengths } => Some(lengths),
            _ => None,
        };
        let mut labels = batch.inputs[input].reals_mut().map(std::mem::take).unwrap_or_default();
        match self.labels {
            LabelDistribution::Bernoulli(p) => {
                for (i, sample) in range.clone().enumerate() {
                    let n = per_token.map_or(1, |g| {
                        let offsets = &batch.offsets[g as usize];
                        offsets[i + 1] - offsets[i]
                    });
                    let key = self.key(REALS + input as u32, sample);
                    labels.extend((0..n as u64).map(|c| f32::from(u8::from(uniform_f64(key, c) < p))));
                }
            }
            LabelDistribution::Hash => {
                let first =
                    kinds.iter().zip(&batch.inputs).find_map(|(kind, values)| match (kind.kind, values) {
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
                    labels.extend(ids.iter().map(|&id| hash_label(id)));
                } else {
                    let spans = batch.offsets[group as usize].windows(2);
                    labels.extend(spans.map(|s| ids[s[0]..s[1]].first().map_or(0.0, |&id| hash_label(id))));
                }
            }
        }
        if let Some(values) = batch.inputs[input].reals_mut() {
            *values = labels;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lognormal_lengths_have_the_mean_after_clipping() {
        for (mean, sigma) in [(200.0, 1.0), (12.0, 0.5), (900.0, 1.5)] {
            let lengths = LengthDistribution::Lognormal { mean, sigma, min: 1, max: None };
            let sampler = LengthSampler::new(lengths, 1024).unwrap();
            let n = 40_000u64;
            let total: usize = (0..n).map(|s| sampler.draw(RandomKey { seed: 5, stream: 9, step: s })).sum();
            let found = total as f64 / n as f64;
            assert!((found - mean).abs() < 0.03 * mean, "{found} for {mean}");
        }
    }

    #[test]
    fn impossible_distributions_are_refused() {
        for lengths in [
            LengthDistribution::Lognormal { mean: 2.0, sigma: 1.0, min: 5, max: None },
            LengthDistribution::Lognormal { mean: 10.0, sigma: f64::NAN, min: 1, max: None },
            LengthDistribution::Uniform { min: 5, max: 4 },
        ] {
            assert!(LengthSampler::new(lengths, 1024).is_err(), "{lengths:?}");
        }
    }

    #[test]
    fn labels_are_the_parity_runs_hash() {
        // (id * 2654435761 >> 7) & 1, by hand for ids 0, 1, 2: 2654435761 = 0x9E3779B1.
        assert_eq!([0, 1, 2].map(hash_label), [0.0, 1.0, 0.0]);
    }
}
