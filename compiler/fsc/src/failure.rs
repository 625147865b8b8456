//! Why a command failed: what is printed behind `error:`.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use fs_compiler::CompileError;
use fs_compiler::import::ImportError;
use fs_compiler::passes::manager::PipelineError;
use fs_schedule::file::LoadError;
use fs_schedule::profile::ProfileError;
use fs_schedule::terminal::shown;
use fs_schedule::trace::TraceError;

/// A command that failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// Arguments that do not go together, or name what is not there.
    #[error("{0}")]
    Usage(String),
    /// What was checked is not as it should be; the message says what.
    #[error("{0}")]
    Found(String),
    /// A file cannot be read.
    #[error("cannot read {}: {source}", shown(path))]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {source}", shown(path))]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Standard output cannot be written.
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
    /// The summary cannot be written as JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// Something about a file.
    #[error("{}: {source}", shown(path))]
    Of {
        /// The file.
        path: PathBuf,
        /// What.
        source: Box<dyn Error>,
    },
    /// A model that has no schedule.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A model that has no IR.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A pipeline that is not one.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// A schedule that cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A profile that cannot be read.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A trace that cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

impl Failure {
    /// A file that cannot be read.
    pub(super) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Read { path: path.into(), source }
    }

    /// A file that cannot be written.
    pub(super) fn write(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Write { path: path.into(), source }
    }

    /// Something about a file.
    pub(super) fn of<E: Into<Box<dyn Error>>>(path: &Path) -> impl FnOnce(E) -> Self {
        move |source| Self::Of { path: path.into(), source: source.into() }
    }

    /// Arguments that do not go together.
    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self::Usage(message.into())
    }
}
