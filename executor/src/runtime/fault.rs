//! Why an operation could not run.

use crate::transport::TransportError;

/// A defect of the schedule met at run time, or another rank's failure.
#[derive(Debug, thiserror::Error)]
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
    /// Two operands of one operation that cannot be had together.
    #[error("operand {0} overlaps with another one that is written")]
    Conflict(String),
    /// Something this executor cannot do.
    #[error("{0}")]
    Unsupported(String),
    /// A collective failed.
    #[error(transparent)]
    Transport(#[from] TransportError),
}
