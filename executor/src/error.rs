//! Everything that can stop a run.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use fs_schedule::terminal::shown;

use crate::data::DataError;
use crate::data::count::CountError;
use crate::transport::TransportError;
use crate::transport::wire::BadWorld;
use crate::units::human;

/// Why a run did not start or did not finish.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The schedule cannot be loaded.
    #[error(transparent)]
    Schedule(#[from] fs_schedule::LoadError),
    /// The data cannot be used.
    #[error(transparent)]
    Data(Arc<DataError>),
    /// There is no such device, or it cannot be used.
    #[error(transparent)]
    Device(#[from] crate::device::OpenError),
    /// A batch without a sample that is needed.
    #[error(transparent)]
    Sample(#[from] crate::data::share::Missing),
    /// Processes cannot be joined, or what joins them broke.
    #[cfg(feature = "mpi")]
    #[error(transparent)]
    Mpi(#[from] crate::transport::mpi::MpiError),
    /// Links cannot be measured.
    #[error(transparent)]
    Net(#[from] crate::net::NetError),
    /// No ranks.
    #[error("--ranks 0: at least one rank is needed")]
    NoRanks,
    /// A batch that the ranks cannot share evenly.
    #[error("a batch of {batch} samples does not divide over {ranks} ranks; {advice}")]
    BadBatch {
        /// Samples of a global batch.
        batch: u32,
        /// Ranks asked for.
        ranks: usize,
        /// What would work.
        advice: String,
    },
    /// More than the machine holds.
    #[error(
        "table `{table}` is too large: it takes {} with its optimizer state, all tables take {}, and {} are available; use fewer rows or columns, or a rule with less state such as rowwise_adagrad",
        human(*.bytes), human(*.needed), human(*.available)
    )]
    TableTooLarge {
        /// Name of the largest table.
        table: String,
        /// Its bytes with optimizer state.
        bytes: u64,
        /// Bytes of all tables.
        needed: u64,
        /// Bytes that may be taken.
        available: u64,
    },
    /// More than the machine holds.
    #[error(
        "buffers of a fixed size take {}, and {} are available beside the tables; compile the model for fewer microbatches or a shorter lookahead",
        human(*.bytes), human(*.available)
    )]
    BuffersTooLarge {
        /// Bytes of all ranks' buffers whose size no batch decides.
        bytes: u64,
        /// Bytes that tables leave.
        available: u64,
    },
    /// More threads than may be started.
    #[error(
        "{ranks} ranks need {threads} threads, and {available} more can be started here; use fewer ranks, or raise the limit of threads"
    )]
    TooManyThreads {
        /// Ranks of this process.
        ranks: usize,
        /// Threads for them.
        threads: u64,
        /// Threads that may be started.
        available: u64,
    },
    /// Settings that contradict each other.
    #[error("{0}")]
    Settings(String),
    /// A rank stopped.
    #[error("rank {rank} failed in `{op}`: {message}")]
    Rank {
        /// The rank.
        rank: usize,
        /// The operation.
        op: String,
        /// What happened.
        message: String,
    },
    /// Ranks that did not come, or do not fit together.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// A world of processes that cannot be.
    #[error(transparent)]
    World(#[from] BadWorld),
    /// A file that cannot be written.
    #[error("cannot write {what} {path}: {source}", path = shown(.path))]
    Write {
        /// What it is.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Initial values that do not fit the model.
    #[error("{0}")]
    Weights(String),
}

impl From<CountError> for Error {
    fn from(error: CountError) -> Self {
        match error {
            CountError::Data(error) => error.into(),
            CountError::Sample(error) => error.into(),
            CountError::Assign(error) => Self::Settings(error.to_string()),
        }
    }
}

impl From<DataError> for Error {
    fn from(error: DataError) -> Self {
        Self::Data(Arc::new(error))
    }
}
