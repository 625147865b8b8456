//! Batches from a safetensors file, laid out as parity runs write them.
//!
//! `lengths` i32 `[steps, world, batch]`; `ids` i64 `[sequences, tokens]`, one row per id sequence in the order of
//! the schedule's inputs; `labels` f32, one per token or per sample; `dense` f32 `[samples, width]`. Everything is in
//! step, rank, sample order; all `world * batch` samples of a step are one global batch, whatever the number of
//! ranks that train on it.

use std::path::Path;
use std::sync::Arc;

use fs_schedule::terminal::shown;
use fs_schedule::{InputKind, Keep, Schedule, Table};

use super::tensorfile::{TensorFile, TensorInfo};
use super::{DataError, GlobalBatch, Source, Truncation};

/// Batches in a file.
#[derive(Debug)]
pub(crate) struct Tensors {
    schedule: Arc<Schedule>,
    file: TensorFile,
    steps: usize,
    samples: usize,
    /// Length of each sample of each step, as in the file.
    lengths: Vec<i32>,
    /// First token of each step.
    starts: Vec<usize>,
    ids: Option<TensorInfo>,
    labels: Option<TensorInfo>,
    dense: Option<TensorInfo>,
    bytes: Vec<u8>,
    wide: Vec<i64>,
    reals: Vec<f32>,
}

impl Tensors {
    /// Opens the file and checks shapes, types and sums; values are checked as they are read.
    pub(crate) fn open(schedule: &Arc<Schedule>, path: &Path) -> Result<Self, DataError> {
        let file = TensorFile::open(path)?;
        let content = |reason: String| DataError::Content { path: path.into(), reason };
        let info = file.expect::<i32>("lengths", "[steps, world, batch]")?.clone();
        let [steps, world, batch] = info.shape[..] else {
            return Err(file.mismatch("lengths", &info, "I32 [steps, world, batch]"));
        };
        let samples = world * batch;
        if steps == 0 || samples == 0 {
            return Err(content(format!("it has no samples: `lengths` is {}", info.describe())));
        }
        if samples != schedule.settings.batch as usize {
            return Err(content(format!(
                "its global batch is world {world} x batch {batch} = {samples} samples, but the schedule was compiled \
                 for a batch of {}; write `batch {samples}` in the train block and compile again",
                schedule.settings.batch
            )));
        }
        let (mut bytes, mut lengths) = (Vec::new(), Vec::new());
        file.read(&info, 0, info.elements(), &mut bytes, &mut lengths)?;
        let mut starts = vec![0];
        let mut tokens = 0;
        for (step, lengths) in lengths.chunks_exact(samples).enumerate() {
            if let Some(i) = lengths.iter().position(|&n| n < 0) {
                return Err(content(format!(
                    "`lengths` of step {step}, sample {i} is {}, below 0",
                    lengths[i]
                )));
            }
            tokens += lengths.iter().map(|&n| n as usize).sum::<usize>();
            starts.push(tokens);
        }
        let (ids, labels, dense) = check(schedule, &file, steps * samples, tokens)?;
        Ok(Self {
            schedule: Arc::clone(schedule),
            file,
            steps,
            samples,
            lengths,
            starts,
            ids,
            labels,
            dense,
            bytes,
            wide: Vec::new(),
            reals: Vec::new(),
        })
    }
}

type Found = (Option<TensorInfo>, Option<TensorInfo>, Option<TensorInfo>);

/// The tensors that the schedule's inputs need, with their shapes checked.
fn check(schedule: &Schedule, file: &TensorFile, samples: usize, tokens: usize) -> Result<Found, DataError> {
    let (mut ids, mut labels, mut dense) = (None, None, None);
    let sequences = schedule.inputs.iter().filter(|i| matches!(i.kind, InputKind::Ids { .. })).count();
    if schedule.lengths.len() > 1 {
        return Err(DataError::Unsupported {
            input: schedule.lengths[1].name.clone(),
            from: shown(file.path()),
            reason:
                "the file has one set of lengths, the model has several; give its sequences the same lengths"
                    .into(),
        });
    }
    for input in &schedule.inputs {
        match input.kind {
            InputKind::Ids { .. } => {
                let info = file.expect::<i64>("ids", "[sequences, tokens]")?;
                if info.shape.len() != 2 || info.shape[0] != sequences {
                    let expected =
                        format!("I64 [{sequences}, {tokens}]: one row per id sequence of the model");
                    return Err(file.mismatch("ids", info, &expected));
                }
                if info.shape[1] != tokens {
                    return Err(DataError::Content {
                        path: file.path().into(),
                        reason: format!(
                            "`lengths` sum up to {tokens} tokens, but `ids` has {} for each sequence",
                            info.shape[1]
                        ),
                    });
                }
                ids = Some(info.clone());
            }
            InputKind::SampleLabel | InputKind::TokenLabel { .. } => {
                let need = if input.kind == InputKind::SampleLabel { samples } else { tokens };
                let info = file.expect::<f32>("labels", &format!("[{need}]"))?;
                if info.elements() != need {
                    let per = if input.kind == InputKind::SampleLabel { "sample" } else { "token" };
                    return Err(file.mismatch("labels", info, &format!("F32 [{need}]: one per {per}")));
                }
                labels = Some(info.clone());
            }
            InputKind::Dense { width } => {
                let info = file.expect::<f32>("dense", &format!("[{samples}, {width}]"))?;
                if info.shape != [samples, width as usize] {
                    return Err(file.mismatch("dense", info, &format!("F32 [{samples}, {width}]")));
                }
                dense = Some(info.clone());
            }
            InputKind::Next { .. } => {
                return Err(DataError::Unsupported {
                    input: input.name.clone(),
                    from: shown(file.path()),
                    reason:
                        "safetensors batches hold ids and labels, not what follows each id; use a CSV file"
                            .into(),
                });
            }
        }
    }
    Ok((ids, labels, dense))
}

impl Source for Tensors {
    fn describe(&self) -> String {
        format!("{} ({} steps of {} samples)", shown(self.file.path()), self.steps, self.samples)
    }

    fn digest(&self) -> Result<String, DataError> {
        self.file.digest()
    }

    fn epoch_steps(&self) -> Option<u64> {
        Some(self.steps as u64)
    }

    fn truncation(&self) -> (Option<Truncation>, Option<Truncation>) {
        let mut window = Truncation::default();
        for group in &self.schedule.lengths {
            self.lengths.iter().for_each(|length| window.add(*length as usize, group.max));
        }
        (Some(window), None)
    }

    fn fill(&mut self, step: u64, batch: &mut GlobalBatch) -> Result<(), DataError> {
        let schedule = Arc::clone(&self.schedule);
        batch.reset(&schedule, step);
        let index = (step % self.steps as u64) as usize;
        let lengths = &self.lengths[index * self.samples..(index + 1) * self.samples];
        batch.begin(self.samples);
        // Which of the file's tokens stay after truncation.
        let limit = schedule.lengths.first().map(|g| (g.max as usize, g.keep));
        let kept = |length: i32| {
            let length = length as usize;
            match limit {
                Some((max, Keep::First)) => 0..length.min(max),
                Some((max, Keep::Last)) => length.saturating_sub(max)..length,
                None => 0..length,
            }
        };
        if let (Some(offsets), Some(elsewhere)) = (batch.offsets.first_mut(), batch.elsewhere.first_mut()) {
            for (sample, &length) in lengths.iter().enumerate() {
                if batch.held.position(sample).is_some() {
                    offsets.push(offsets.last().copied().unwrap_or(0) + kept(length).len());
                } else {
                    *elsewhere += kept(length).len();
                }
            }
        }
        let tokens_of = |lengths: &[i32]| lengths.iter().map(|&n| n as usize).sum::<usize>();
        for run in batch.held.runs(self.samples) {
            let start = self.starts[index] + tokens_of(&lengths[..run.start]);
            let (lengths, first) = (&lengths[run.clone()], index * self.samples + run.start);
            let tokens = tokens_of(lengths);
            let mut row = 0;
            for (input, values) in schedule.inputs.iter().zip(&mut batch.inputs) {
                match (input.kind, &self.ids, &self.labels, &self.dense) {
                    (InputKind::Ids { table, .. }, Some(info), ..) => {
                        let table = &schedule.tables[table as usize];
                        let Some(out) = values.ids_mut() else { continue };
                        self.wide.clear();
                        let at = row * info.shape[1] + start;
                        self.file.read(info, at, tokens, &mut self.bytes, &mut self.wide)?;
                        in_range(&self.file, table, row, start, &self.wide)?;
                        cut(&self.wide, lengths, kept, out);
                        row += 1;
                    }
                    (InputKind::TokenLabel { .. }, _, Some(info), _) => {
                        let Some(out) = values.reals_mut() else { continue };
                        self.reals.clear();
                        self.file.read(info, start, tokens, &mut self.bytes, &mut self.reals)?;
                        finite(&self.file, "labels", start, &self.reals)?;
                        cut(&self.reals, lengths, kept, out);
                    }
                    (InputKind::SampleLabel, _, Some(info), _) => {
                        let Some(out) = values.reals_mut() else { continue };
                        let before = out.len();
                        self.file.read(info, first, run.len(), &mut self.bytes, out)?;
                        finite(&self.file, "labels", first, &out[before..])?;
                    }
                    (InputKind::Dense { width }, _, _, Some(info)) => {
                        let Some(out) = values.reals_mut() else { continue };
                        let (before, width) = (out.len(), width as usize);
                        self.file.read(info, first * width, run.len() * width, &mut self.bytes, out)?;
                        finite(&self.file, "dense", first * width, &out[before..])?;
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// Ids that the table has; `column` is where in the file they begin.
fn in_range(
    file: &TensorFile,
    table: &Table,
    row: usize,
    column: usize,
    ids: &[i64],
) -> Result<(), DataError> {
    let Some(i) = ids.iter().position(|&id| id < 0 || id as u64 >= table.rows) else { return Ok(()) };
    let id = ids[i];
    Err(DataError::IdOutOfRange {
        path: file.path().into(),
        id,
        row,
        column: column + i,
        table: table.name.clone(),
        rows: table.rows,
        advice: if id < 0 {
            "ids count from 0".into()
        } else {
            format!("at least {} rows are needed", id as i128 + 1)
        },
    })
}

/// Appends the kept part of each sample's values.
fn cut<V: Copy>(
    values: &[V],
    lengths: &[i32],
    kept: impl Fn(i32) -> std::ops::Range<usize>,
    out: &mut Vec<V>,
) {
    let mut rest = values;
    for &length in lengths {
        let (sample, tail) = rest.split_at(length as usize);
        out.extend_from_slice(&sample[kept(length)]);
        rest = tail;
    }
}

fn finite(file: &TensorFile, tensor: &str, first: usize, values: &[f32]) -> Result<(), DataError> {
    match values.iter().position(|v| !v.is_finite()) {
        None => Ok(()),
        Some(i) => Err(DataError::Content {
            path: file.path().into(),
            reason: format!("element {} of `{tensor}` is {}, not a finite number", first + i, values[i]),
        }),
    }
}
