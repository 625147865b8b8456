//! Where samples come from.
//!
//! A [`Source`] yields *global* batches: lists of samples that depend on the data, the settings and the seed only,
//! never on the number of ranks. Each rank then works on a list of every batch's samples ([`samples`]); a batch may
//! hold those of some ranks only. Sources are read ahead on a thread of their own ([`reader::Reader`]).
//!
//! A new kind of source is one file here and one line in [`open`].

pub mod assign;
mod cache;
pub mod count;
mod csv;
mod digest;
mod entries;
pub mod error;
mod generate;
mod histories;
mod measured;
pub mod planning;
pub mod reader;
pub mod samples;
pub mod share;
pub mod sizes;
pub mod tensorfile;
mod tensors;
pub mod units;
mod vocabulary;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fs_schedule::{Data, Evaluate, InputKind, Keep, Schedule};
use serde::Serialize;

pub use error::DataError;
pub use histories::Histories;
pub use samples::Held;
pub use samples::Wanted;
pub use vocabulary::Vocabulary;

/// The samples of one step, for all ranks together, or those of them that somebody wants here.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GlobalBatch {
    /// The step, from 0.
    pub step: u64,
    /// Number of samples of all ranks, here or not.
    pub samples: usize,
    /// Asked of the source: which samples to put here.
    pub wanted: Wanted,
    /// Which samples are here, in the order of their values.
    pub held: Held,
    /// Per length group: one more offset of the tokens than samples are here.
    pub offsets: Vec<Vec<usize>>,
    /// Per length group: tokens of the samples that are not here.
    pub elsewhere: Vec<usize>,
    /// Per input of the schedule.
    pub inputs: Vec<Values>,
    /// What evaluation asks about each sample, here or not; empty in training.
    pub questions: Vec<Question>,
}

/// Evaluation: what happened after a sample's history.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Question {
    /// Position of the user in [`Histories`].
    pub user: usize,
    /// The item that followed.
    pub target: i64,
}

/// Values of one input over the samples of a batch that are here.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// Row ids, one per token.
    Ids(Vec<i64>),
    /// Features (`samples x width`) or labels (one per sample or token).
    Reals(Vec<f32>),
}

impl GlobalBatch {
    /// An empty one for these samples of every step.
    pub fn wanting(wanted: Wanted) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// Says how many samples the batch has; from then on `held` says which of them to put here.
    pub fn begin(&mut self, samples: usize) {
        self.samples = samples;
        self.wanted.of(samples, &mut self.held);
    }

    /// Empties the batch for `step`, with room for the schedule's groups and inputs; keeps allocations.
    pub fn reset(&mut self, schedule: &Schedule, step: u64) {
        self.step = step;
        self.samples = 0;
        self.held.clear();
        self.questions.clear();
        self.elsewhere.clear();
        self.elsewhere.resize(schedule.lengths.len(), 0);
        self.offsets.resize(schedule.lengths.len(), Vec::new());
        for offsets in &mut self.offsets {
            offsets.clear();
            offsets.push(0);
        }
        let inputs = &schedule.inputs;
        if self.inputs.len() != inputs.len() {
            self.inputs = inputs.iter().map(|i| Values::empty(i.kind)).collect();
        }
        for (values, input) in self.inputs.iter_mut().zip(inputs) {
            match (values, input.kind) {
                (Values::Ids(v), InputKind::Ids { .. } | InputKind::Next { .. }) => v.clear(),
                (
                    Values::Reals(v),
                    InputKind::Dense { .. } | InputKind::SampleLabel | InputKind::TokenLabel { .. },
                ) => {
                    v.clear();
                }
                (values, kind) => *values = Values::empty(kind),
            }
        }
    }

    /// Tokens of all samples, here or not, in all length groups.
    pub fn tokens(&self) -> usize {
        (0..self.offsets.len()).map(|group| self.tokens_of(group)).sum()
    }

    /// Tokens of all samples, here or not, in a length group.
    pub fn tokens_of(&self, group: usize) -> usize {
        let here = self.offsets.get(group).and_then(|o| o.last()).copied().unwrap_or(0);
        here + self.elsewhere.get(group).copied().unwrap_or(0)
    }

    /// Raises `largest`, one number per vector, to the sizes of this batch.
    pub fn measure(&self, largest: &mut Vec<usize>) {
        let inputs = self.inputs.iter().map(|v| match v {
            Values::Ids(v) => v.len(),
            Values::Reals(v) => v.len(),
        });
        let sizes = self.offsets.iter().map(Vec::len).chain(inputs).chain([self.questions.len()]);
        for (i, n) in sizes.enumerate() {
            match largest.get_mut(i) {
                Some(most) => *most = n.max(*most),
                None => largest.push(n),
            }
        }
    }

    /// Makes room for what [`measure`](Self::measure) has found.
    pub fn reserve(&mut self, largest: &[usize]) {
        if largest.len() != self.offsets.len() + self.inputs.len() + 1 {
            return;
        }
        let (offsets, rest) = largest.split_at(self.offsets.len());
        for (own, most) in self.offsets.iter_mut().zip(offsets) {
            own.reserve(most.saturating_sub(own.len()));
        }
        for (own, most) in self.inputs.iter_mut().zip(rest) {
            match own {
                Values::Ids(v) => v.reserve(most.saturating_sub(v.len())),
                Values::Reals(v) => v.reserve(most.saturating_sub(v.len())),
            }
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let inputs = self.inputs.iter().map(|v| match v {
            Values::Ids(v) => v.capacity() * size_of::<i64>(),
            Values::Reals(v) => v.capacity() * size_of::<f32>(),
        });
        let offsets = self.offsets.iter().map(|o| o.capacity() * size_of::<usize>());
        inputs.sum::<usize>() + offsets.sum::<usize>()
    }
}

impl Values {
    fn empty(kind: InputKind) -> Self {
        match kind {
            InputKind::Ids { .. } | InputKind::Next { .. } => Self::Ids(Vec::new()),
            InputKind::Dense { .. } | InputKind::SampleLabel | InputKind::TokenLabel { .. } => {
                Self::Reals(Vec::new())
            }
        }
    }

    /// The ids, to fill; `None` for real inputs.
    pub fn ids_mut(&mut self) -> Option<&mut Vec<i64>> {
        match self {
            Self::Ids(v) => Some(v),
            Self::Reals(_) => None,
        }
    }

    /// Makes it a list of so many ids or reals, whose values are those of an earlier batch or zero.
    pub fn resize_as(&mut self, ids: bool, n: usize) {
        match (&mut *self, ids) {
            (Self::Ids(own), true) => own.resize(n, 0),
            (Self::Reals(own), false) => own.resize(n, 0.0),
            (own, true) => *own = Self::Ids(vec![0; n]),
            (own, false) => *own = Self::Reals(vec![0.0; n]),
        }
    }

    /// Empties it, as a list of what another one holds.
    pub fn clear_like(&mut self, other: &Self) {
        match (&mut *self, other) {
            (Self::Ids(own), Self::Ids(_)) => own.clear(),
            (Self::Reals(own), Self::Reals(_)) => own.clear(),
            (own, Self::Ids(_)) => *own = Self::Ids(Vec::new()),
            (own, Self::Reals(_)) => *own = Self::Reals(Vec::new()),
        }
    }

    /// Appends a part of another one of the same kind.
    pub fn extend_from(&mut self, other: &Self, range: std::ops::Range<usize>) {
        match (self, other) {
            (Self::Ids(own), Self::Ids(ids)) => own.extend_from_slice(&ids[range]),
            (Self::Reals(own), Self::Reals(reals)) => own.extend_from_slice(&reals[range]),
            _ => {}
        }
    }

    /// The reals, to fill; `None` for id inputs.
    pub fn reals_mut(&mut self) -> Option<&mut Vec<f32>> {
        match self {
            Self::Reals(v) => Some(v),
            Self::Ids(_) => None,
        }
    }
}

/// A sequence of global batches.
pub trait Source: Send {
    /// What it is, for messages.
    fn describe(&self) -> String;

    /// Steps of one pass over the data; `None` if it never ends.
    fn epoch_steps(&self) -> Option<u64>;

    /// Fills the batch of `step` (which may lie in any epoch): the samples that it wants, or all. Same step, same
    /// samples, and a sample's values don't depend on which others are wanted.
    fn fill(&mut self, step: u64, batch: &mut GlobalBatch) -> Result<(), DataError>;

    /// Tells data apart from other data: processes that train together must read the same. Cheap to have; of large
    /// files it may be of samples.
    fn digest(&self) -> Result<String, DataError> {
        Ok(self.describe())
    }

    /// Users' histories with held-out items, where the source has them.
    fn histories(&self) -> Option<Arc<Histories>> {
        None
    }

    /// Which rows the data's ids have, where the data does not number rows itself.
    fn vocabulary(&self) -> Option<Arc<Vocabulary>> {
        None
    }

    /// From now on ids have the rows that `known` says; those that it lacks get the rows after its last, in the order in
    /// which the data has them. Only for sources with a vocabulary, before anything is read.
    fn adopt(&mut self, _known: Vocabulary) -> Result<(), DataError> {
        Ok(())
    }

    /// What truncation leaves out of one pass over the data: of training and of evaluation, where that is known.
    fn truncation(&self) -> (Option<Truncation>, Option<Truncation>) {
        (None, None)
    }
}

/// What truncation leaves out of sequences.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Truncation {
    /// Tokens of the data.
    pub tokens: u64,
    /// Those that lie outside of the inputs' `max`.
    pub left_out: u64,
}

impl Truncation {
    /// Counts a sequence of which at most `max` tokens are kept.
    pub fn add(&mut self, length: usize, max: u32) {
        self.tokens += length as u64;
        self.left_out += (length as u64).saturating_sub(u64::from(max));
    }

    /// Share of what is left out.
    pub fn share(&self) -> f64 {
        self.left_out as f64 / self.tokens.max(1) as f64
    }
}

/// Passes over `samples` samples in batches of `batch`; the last one of a pass may be smaller.
#[derive(Debug, Clone, Copy)]
pub struct Epochs {
    /// Samples of one pass.
    pub samples: u64,
    /// Samples of a full batch.
    pub batch: u64,
}

impl Epochs {
    /// Steps of one pass.
    pub fn steps(self) -> u64 {
        self.samples.div_ceil(self.batch)
    }

    /// The epoch of a step and the positions of its samples in that epoch's order.
    pub fn locate(self, step: u64) -> (u64, std::ops::Range<u64>) {
        let (epoch, index) = (step / self.steps(), step % self.steps());
        let start = index * self.batch;
        (epoch, start..(start + self.batch).min(self.samples))
    }
}

/// The part of a sequence that truncation to `max` keeps.
pub fn truncate<V>(sequence: &[V], max: usize, keep: Keep) -> &[V] {
    let n = sequence.len().min(max);
    match keep {
        Keep::First => &sequence[..n],
        Keep::Last => &sequence[sequence.len() - n..],
    }
}

/// Opens the schedule's data, or the file given instead of it.
pub fn open(
    schedule: &Arc<Schedule>,
    file: Option<&Path>,
    schedule_file: Option<&Path>,
    seed: u64,
) -> Result<Box<dyn Source>, DataError> {
    let data = with_file(schedule.data.clone(), file)?;
    // A file given now is where the user says.
    let beside = if file.is_none() { schedule_file } else { None };
    let find = |path: &str| find(Path::new(path), beside);
    Ok(match data {
        Data::Csv { path, user, item, time, rating, min_interactions } => {
            let columns = csv::Columns { user, item, time, rating };
            let hold_out = schedule.evaluate == Some(Evaluate::LeaveLastOut);
            Box::new(csv::Csv::open(schedule, &find(&path), &columns, min_interactions, hold_out, seed)?)
        }
        Data::Safetensors { path } => Box::new(tensors::Tensors::open(schedule, &find(&path))?),
        Data::Generate { lengths, ids, labels, samples } => {
            Box::new(generate::Generator::new(schedule, lengths, ids, labels, samples, seed)?)
        }
    })
}

/// The file that a schedule's data are in, if they are in one.
pub fn file(schedule: &Schedule, schedule_file: Option<&Path>) -> Option<PathBuf> {
    match schedule.data.as_ref()? {
        Data::Csv { path, .. } | Data::Safetensors { path } => Some(find(Path::new(path), schedule_file)),
        Data::Generate { .. } => None,
    }
}

/// The data description with its file replaced.
fn with_file(data: Option<Data>, file: Option<&Path>) -> Result<Data, DataError> {
    let Some(file) = file else {
        return data.ok_or(DataError::NoData);
    };
    let path = file.to_string_lossy().into_owned();
    match data {
        Some(Data::Csv { user, item, time, rating, min_interactions, .. }) if !is_tensors(file) => {
            Ok(Data::Csv { path, user, item, time, rating, min_interactions })
        }
        _ if is_tensors(file) => Ok(Data::Safetensors { path }),
        Some(Data::Safetensors { .. }) => Ok(Data::Safetensors { path }),
        _ => Err(DataError::UnknownFormat { path: file.into() }),
    }
}

fn is_tensors(file: &Path) -> bool {
    file.extension().is_some_and(|e| e == "safetensors")
}

/// A relative path is relative to the schedule's folder (as named, or where a link to the schedule leads), else to the
/// working directory.
fn find(path: &Path, schedule_file: Option<&Path>) -> PathBuf {
    let real = schedule_file.and_then(|file| std::fs::canonicalize(file).ok());
    let folders = [schedule_file, real.as_deref()].into_iter().flatten().filter_map(Path::parent);
    let beside = folders.map(|folder| folder.join(path)).find(|beside| beside.exists());
    beside.unwrap_or_else(|| path.to_path_buf())
}
