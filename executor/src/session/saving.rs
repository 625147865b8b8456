//! A session's state to a file, and what it started from.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fs_kernels::Real;
use fs_schedule::Schedule;
use fs_schedule::profile::shape;
use parking_lot::Mutex;

use super::phase::rank_error;
use super::{Checkpoint, Session};
use crate::data::Vocabulary;
use crate::device::{Device, Env};
use crate::error::Error;
use crate::evaluate::Scores;
use crate::evaluate::metric::Metric;
use crate::report::{Checkpoints, Spread, Unusable};
use crate::runtime::pace::{Every, Pace};
use crate::runtime::tables::Field;
use crate::step::StepEvent;
use crate::transport::TransportError;
use crate::transport::control::Control;
use crate::transport::peers::at_work;
use crate::weights::checkpoint::folder::Folder;
use crate::weights::checkpoint::run::{Totals, Writing};
use crate::weights::checkpoint::throttle::Throttle;
use crate::weights::checkpoint::write::State;
use crate::weights::layout::{About, ITEMS, VERSION, looked_up};
use crate::weights::{Taken, save};

/// Checkpoints of a session.
pub(super) struct Leaving {
    folder: Folder,
    keep: (usize, Option<Metric>),
    /// Digest of the data as they are read.
    data: String,
    pub(super) pace: Arc<Pace>,
    pub(super) written: Arc<Mutex<Totals>>,
}

/// What a checkpoint says beside values.
pub(super) struct Parts {
    about: About,
    vocabulary: Option<Arc<Vocabulary>>,
    data: (String, String),
}

impl Leaving {
    /// For a run from a step on, of data with this digest, that goes on from a checkpoint or begins; `writes` in the process
    /// that owns the folder. Nothing stays of what it makes there if no checkpoint comes to be.
    pub(super) fn new(
        of: &Checkpoint,
        (first, data): (u64, String),
        goes_on: Option<&Path>,
        writes: bool,
    ) -> Result<Self, Error> {
        let folder = Folder::open(&of.folder, writes)?;
        if writes {
            folder.check(first, goes_on)?;
        }
        // By paths alone, so that all processes know the same.
        let there = goes_on.filter(|path| folder.has(path)).map(|_| first);
        Ok(Self {
            folder,
            keep: (of.keep, of.best),
            data,
            pace: Arc::new(Pace::new(of.every)),
            written: Arc::new(Mutex::new(Totals::new(there))),
        })
    }

    /// Ready to write.
    pub(super) fn writing<'a, D: Device>(
        &'a self,
        parts: &'a Parts,
        (schedule, ranks, devices): (&'a Schedule, &'a [Env], &'a [D]),
        control: &'a dyn Control,
    ) -> Writing<'a, D> {
        Writing {
            folder: &self.folder,
            keep: self.keep,
            state: State { schedule, ranks, devices, vocabulary: parts.vocabulary.as_deref() },
            about: parts.about.clone(),
            data: parts.data.clone(),
            control,
        }
    }
}

impl<T: Real, D: Device<Real = T>> Session<T, D> {
    /// What checkpoints say beside values, if there are to be any.
    pub(super) fn parts(&self) -> Option<Parts> {
        let leaving = self.leaving.as_ref()?;
        let vocabulary = self.source.vocabulary().or_else(|| self.kept.clone());
        let about = self.about(vocabulary.is_some());
        let data = (self.source.describe(), leaving.data.clone());
        Some(Parts { about, vocabulary, data })
    }

    /// What was left, and what that took; `None` if nothing was to be.
    pub(super) fn checkpoints(&self, steps: &[StepEvent]) -> Option<Checkpoints> {
        let leaving = self.leaving.as_ref()?;
        let written = leaving.written.lock();
        let times = |beside: bool| {
            let own = steps.iter().filter(|step| step.checkpoint == beside);
            Spread::of(own.map(|step| step.seconds * 1e3).collect())
        };
        let aside = self.devices.iter().map(Device::aside);
        let (rows, waited) =
            aside.fold((0, Duration::ZERO), |(rows, waited), own| (rows + own.rows, waited + own.waited));
        Some(Checkpoints {
            folder: leaving.folder.path().into(),
            written: written.number,
            left_out: leaving.pace.left_out(),
            newest: written.newest.filter(|_| written.number > 0),
            bytes: written.bytes,
            seconds: written.time.as_secs_f64() / written.number.max(1) as f64,
            step_ms: times(true),
            others_ms: times(false),
            rows_aside: rows,
            waited_ms: waited.as_secs_f64() * 1e3,
            best: leaving.keep.1.and_then(|metric| leaving.folder.best(metric)),
            unusable: written.unusable.clone().map(|(step, why)| Unusable { step, why }),
        })
    }

    /// By which metric the best checkpoint is kept, and after how many steps each is evaluated.
    pub(super) fn validates(&self) -> Option<u64> {
        match self.options.checkpoint {
            Some(Checkpoint { every: Every::Steps(steps), best: Some(_), .. }) => Some(steps),
            _ => None,
        }
    }

    /// Leaves a checkpoint of where training has ended, if there is none yet and anything was trained, now or before. Of several
    /// processes all must call it.
    pub(super) fn leave_last(&self, scores: Option<Scores>) -> Result<(), Error> {
        let Some((leaving, parts)) = self.leaving.as_ref().zip(self.parts()) else { return Ok(()) };
        if self.next_step == 0 || leaving.written.lock().last == Some(self.next_step) {
            return Ok(());
        }
        let held = (&*self.schedule, &self.ranks[..], &self.devices[..]);
        let control = &*self.control;
        let ended = || control.failure().is_some();
        let written =
            leaving.writing(&parts, held, control).write(self.next_step, scores, &Throttle::none(&ended));
        if let Err(error) = &written {
            let (rank, op) = (self.own_ranks()[0], "checkpoint".into());
            self.control.fail(&TransportError::Failed { rank, op, message: error.to_string() });
        }
        leaving.written.lock().add(written.map_err(|error| Error::Weights(error.to_string()))?);
        // Nobody goes on before it is whole.
        self.control.gather("the end of a checkpoint", &[]).map(drop).map_err(rank_error)
    }

    /// What was taken from the file of [`Options::init`](super::Options::init), and what was not.
    pub fn taken(&self) -> Option<&Taken> {
        self.taken.as_ref()
    }

    /// Writes the model with its optimizers' states and the rows of the data's ids to a safetensors file; see
    /// [`save::save`]. Of several processes all must call it, and the first writes.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        let rows = |field: &Field, take: &mut dyn FnMut(&[T]) -> io::Result<()>| {
            let mut failed = None;
            let done = self.gather().pieces(field, Some(0), |piece| {
                take(piece).map_err(|error| {
                    let message = error.to_string();
                    failed = Some(error);
                    Error::Weights(message)
                })
            });
            failed.map_or_else(|| done.map_err(io::Error::other), Err)
        };
        let outcome = if self.control.process() == 0 {
            let own = self.source.vocabulary();
            let vocabulary: Option<&Vocabulary> = own.as_deref().or(self.kept.as_deref());
            let about = self.about(vocabulary.is_some());
            at_work(&*self.control, || {
                save::save(&self.schedule, &self.devices[0], path, (&about, vocabulary), &rows)
            })
        } else {
            let fields = save::fields(&self.schedule);
            fields.iter().try_for_each(|f| rows(f, &mut |_: &[T]| Ok(()))).map_err(|_| self.broken())
        };
        if let Err(error) = &outcome {
            let (rank, op) = (self.own_ranks()[0], "save".into());
            self.control.fail(&TransportError::Failed { rank, op, message: error.to_string() });
        }
        // Nobody says that it is done before it is.
        outcome.and_then(|()| self.control.gather("the end of saving", &[]).map(drop).map_err(rank_error))
    }

    fn about(&self, vocabulary: bool) -> About {
        let tables = looked_up(&self.schedule).into_iter().filter(|_| vocabulary);
        About {
            version: VERSION,
            program: format!("fsx {}", env!("CARGO_PKG_VERSION")),
            model: self.schedule.model.clone(),
            shape: shape(&self.schedule),
            seed: self.seed,
            step: self.next_step,
            vocabulary: tables.map(|table| (table.to_owned(), ITEMS.to_owned())).collect(),
            run: None,
        }
    }

    /// The failure that another process has told of.
    fn broken(&self) -> Error {
        let unknown = || TransportError::Sizes("another process has failed".into());
        rank_error(self.control.failure().unwrap_or_else(unknown))
    }
}
