//! A session's state to a file, and what it started from.

use std::io;
use std::path::Path;

use fs_kernels::Real;
use fs_schedule::profile::shape;

use super::Session;
use super::phase::rank_error;
use crate::data::Vocabulary;
use crate::device::Device;
use crate::error::Error;
use crate::runtime::tables::Field;
use crate::transport::TransportError;
use crate::weights::layout::{About, ITEMS, VERSION, looked_up};
use crate::weights::{Taken, save};

impl<T: Real, D: Device<Real = T>> Session<T, D> {
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
            save::save(&self.schedule, &self.devices[0], path, (&about, vocabulary), &rows)
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
        }
    }

    /// The failure that another process has told of.
    fn broken(&self) -> Error {
        let unknown = || TransportError::Sizes("another process has failed".into());
        rank_error(self.control.failure().unwrap_or_else(unknown))
    }
}
