//! Where values come from: one file, or the files of a checkpoint.

use std::path::Path;

use fs_schedule::terminal::shown;

use super::checkpoint::blocks::Blocks;
use super::checkpoint::folder::bad;
use super::checkpoint::lying::{Lying, Which};
use super::checkpoint::read::{Checkpoint, find};
use super::layout::{About, KEY, Run};
use crate::data::DataError;
use crate::data::error::cut;
use crate::data::tensorfile::{Element, TensorFile, TensorInfo};
use crate::error::Error;

/// Something that holds a model.
#[derive(Debug)]
pub(super) enum Origin {
    File(TensorFile),
    Checkpoint(Box<Checkpoint>),
}

impl Origin {
    /// Opens a checkpoint, if it is a folder, or a file of values.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        if path.is_dir() {
            return Ok(Self::Checkpoint(Box::new(Checkpoint::open(&find(path)?)?)));
        }
        // What is said of data files would lead elsewhere.
        let at = shown(path);
        TensorFile::open(path).map(Self::File).map_err(|error| match error {
            DataError::Io { source, .. } => {
                Error::Weights(format!("cannot read the initial values {at}: {source}"))
            }
            DataError::Empty { .. } => Error::Weights(format!("the file of initial values {at} is empty")),
            DataError::NotTensors { reason, .. } => {
                Error::Weights(format!("the file of initial values {at} is not a safetensors file: {reason}"))
            }
            other => other.into(),
        })
    }

    /// The run that left a checkpoint.
    pub(super) fn run(&self) -> Option<&Run> {
        match self {
            Self::File(_) => None,
            Self::Checkpoint(checkpoint) => Some(&checkpoint.manifest.run),
        }
    }

    /// What tells it from others: of a checkpoint its manifest, of a file what data files are told apart by.
    pub(super) fn digest(&self) -> Result<String, Error> {
        match self {
            Self::File(file) => Ok(file.digest()?),
            Self::Checkpoint(checkpoint) => Ok(checkpoint.manifest.digest.clone()),
        }
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::File(file) => file.path(),
            Self::Checkpoint(checkpoint) => &checkpoint.path,
        }
    }

    pub(super) fn names(&self) -> Vec<String> {
        match self {
            Self::File(file) => file.names(),
            Self::Checkpoint(checkpoint) => checkpoint.names(),
        }
    }

    /// A tensor's type and shape.
    pub(super) fn get(&self, name: &str) -> Option<TensorInfo> {
        match self {
            Self::File(file) => file.get(name).cloned(),
            Self::Checkpoint(checkpoint) => checkpoint.get(name),
        }
    }

    /// What it says of itself, if it does; the reason why that cannot be read.
    pub(super) fn about(&self) -> Result<Option<About>, String> {
        match self {
            Self::File(file) => {
                let read = |text| serde_json::from_str(text).map_err(|e: serde_json::Error| e.to_string());
                file.metadata(KEY).map(read).transpose()
            }
            Self::Checkpoint(checkpoint) => Ok(Some(checkpoint.manifest.about.clone())),
        }
    }

    /// Where a tensor lies.
    pub(super) fn lying(&self, name: &str) -> Vec<Lying<'_>> {
        match self {
            Self::File(file) => file
                .get(name)
                .map(|info| Lying::new(file, (info, None), Which::From(0), 0))
                .into_iter()
                .collect(),
            Self::Checkpoint(checkpoint) => {
                checkpoint.pieces(name).iter().filter_map(|piece| checkpoint.lying(piece)).collect()
            }
        }
    }

    /// A tensor that must be there, whole in one file, with this element type.
    pub(super) fn expect<E: Element>(&self, name: &str, shape: &str) -> Result<Blocks<'_>, DataError> {
        match self {
            Self::File(file) => Ok(Blocks::new(file, file.expect::<E>(name, shape)?, None)),
            Self::Checkpoint(_) => {
                let lying = self.lying(name);
                match lying.first() {
                    Some(own) if lying.len() == 1 && own.info.dtype == E::DTYPE => Ok(own.values()),
                    Some(own) => {
                        Err(self.mismatch(name, own.info, &format!("{:?} {shape} in one file", E::DTYPE)))
                    }
                    None => Err(DataError::MissingTensor {
                        path: self.path().into(),
                        name: name.into(),
                        names: self.names(),
                    }),
                }
            }
        }
    }

    /// What is amiss with what a checkpoint's files hold is said of the checkpoint, with the others that there are.
    pub(super) fn blame(&self, error: Error) -> Error {
        let (Self::Checkpoint(own), Error::Data(found)) = (self, &error) else { return error };
        match &**found {
            DataError::Content { reason, .. } => bad(&own.path, reason),
            DataError::Io { path, source } => {
                let file = path.file_name().unwrap_or_default().to_string_lossy();
                bad(&own.path, &format!("its file `{}` cannot be read: {source}", cut(&file)))
            }
            _ => error,
        }
    }

    /// The error that `info` is not what was expected.
    pub(super) fn mismatch(&self, name: &str, info: &TensorInfo, expected: &str) -> DataError {
        DataError::Tensor {
            path: self.path().into(),
            name: name.into(),
            found: info.describe(),
            expected: expected.into(),
        }
    }
}
