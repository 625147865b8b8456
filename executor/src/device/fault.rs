//! Why an operation could not run.

use std::sync::Arc;

use crate::data::DataError;
use crate::data::assign::AssignError;
use crate::data::share::Missing;
use crate::transport::TransportError;
use crate::units::human;

/// A defect of the schedule or of its data met at run time, or another rank's failure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// An operand that the operation cannot use.
    #[error("{side} operand {position} is {found}, expected {expected}")]
    Operand {
        /// `read` or `written`.
        side: &'static str,
        /// From 0.
        position: usize,
        /// As in the schedule, or `missing`.
        found: String,
        /// What it should be.
        expected: &'static str,
    },
    /// Another number of operands than the operation writes.
    #[error("an operation writes {found} operands, not {expected}")]
    Writes {
        /// As in the schedule.
        found: usize,
        /// What the action writes.
        expected: usize,
    },
    /// Two operands of one operation that cannot be had together.
    #[error("operand {0} overlaps with another one that is written")]
    Conflict(String),
    /// A GPU's driver cannot do what it is asked for.
    #[error(transparent)]
    Driver(#[from] fs_kernels::cuda::driver::DriverError),
    /// A GPU has no kernel for an operation, or none for its sizes.
    #[error("a GPU cannot do `{action}`: {reason}")]
    NoKernel {
        /// As the schedule names it.
        action: String,
        /// What is missing.
        reason: &'static str,
    },
    /// Nothing was ever written where an operation reads.
    #[error("operand {0} is read before anything was written to it")]
    Unwritten(String),
    /// Some columns stand where the operation needs all.
    #[error("operand {0} must be a whole buffer")]
    NotWhole(String),
    /// One gradient is added and the other replaced, which no kernel does.
    #[error("weight and bias gradients must both be added into or both overwritten")]
    MixedAddition,
    /// A buffer for which there is no memory.
    #[error(
        "operand {operand} takes {}, which cannot be had; use smaller batches, shorter sequences or fewer ranks, or raise the limit of memory",
        human(*.bytes)
    )]
    NoMemory {
        /// As in the schedule.
        operand: String,
        /// Its bytes.
        bytes: u64,
    },
    /// An id that its table does not have.
    #[error("id {id} is out of range for table `{table}` with {rows} rows")]
    IdOutOfRange {
        /// The id.
        id: i64,
        /// The table's name.
        table: String,
        /// Its rows.
        rows: u64,
    },
    /// A table that the schedule does not have.
    #[error("table {table} does not exist")]
    NoTable {
        /// Its number.
        table: u32,
    },
    /// An exchange that the schedule does not have, or whose table it does not have.
    #[error("exchange {exchange} or its table does not exist")]
    NoExchange {
        /// Its number.
        exchange: u32,
    },
    /// A table placed on a rank that there is not.
    #[error("table `{table}` belongs to rank {owner} of {ranks}")]
    NoOwner {
        /// The table's name.
        table: String,
        /// Its rank.
        owner: usize,
        /// Number of ranks.
        ranks: usize,
    },
    /// Classes of rows are asked for where the exchange has none.
    #[error("the rows of exchange {exchange} are not told apart")]
    Undivided {
        /// Its number.
        exchange: u32,
    },
    /// A transfer is not one operation of one rank.
    #[error("transfers run in parts")]
    InParts,
    /// Only transfers have parts.
    #[error("not a transfer")]
    NotTransfer,
    /// Ranking without users' histories.
    #[error("ranking needs data with held-out items")]
    NoHistories,
    /// An operation uses a batch that is gone, or not there yet.
    #[error("batch {batch} is needed when it is not in flight")]
    NotInFlight {
        /// From the start of the run.
        batch: u64,
    },
    /// A batch comes, or is used, while the other one in its place is in use.
    #[error("batch {batch} and the one that has its place are used at the same time")]
    Replaced {
        /// From the start of the run.
        batch: u64,
    },
    /// More batches are in flight than there are places.
    #[error(
        "batch {batch} replaces one that has not finished: more batches are in flight than the schedule says"
    )]
    Crowded {
        /// From the start of the run.
        batch: u64,
    },
    /// A batch without one of the rank's samples.
    #[error(transparent)]
    Sample(#[from] Missing),
    /// Samples that cannot be given to ranks.
    #[error(transparent)]
    Assign(#[from] AssignError),
    /// A batch is assigned twice, or brought before it is assigned.
    #[error("samples are assigned once in a batch, and then brought once")]
    Assigned,
    /// There is no more data.
    #[error(transparent)]
    Data(#[from] Arc<DataError>),
    /// The reader's thread has ended before the ranks.
    #[error("the reader stopped")]
    ReaderStopped,
    /// A collective failed.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// What only this device can say.
    #[error(transparent)]
    Device(Box<dyn std::error::Error + Send + Sync>),
}
