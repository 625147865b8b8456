//! What ranks tell each other: collectives behind one trait.
//!
//! All ranks call the same collectives in the same order. Reductions add in rank order, so results do not depend on
//! arrival. A rank that fails [poisons](Transport::poison) the transport, and every other rank's next or current
//! collective returns that failure instead of waiting for ever.

pub mod local;

use std::time::Duration;

use fs_kernels::Real;

/// Why a collective did not complete.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// Another rank (or this one) failed first.
    #[error("rank {rank} failed in `{op}`: {message}")]
    Failed {
        /// The rank that failed.
        rank: usize,
        /// The operation it was in.
        op: String,
        /// What happened.
        message: String,
    },
    /// Sizes that do not fit together; a defect of the schedule.
    #[error("{0}")]
    Sizes(String),
}

/// Collectives over all ranks. Counts are rows per rank.
pub trait Transport<T: Real>: Send {
    /// This rank.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn ranks(&self) -> usize;

    /// Sends `counts[r]` of `rows` to rank r, in order; receives by source rank into `received` (overwritten) with
    /// `received_counts`.
    fn all_to_all_rows(
        &mut self,
        rows: &[u32],
        counts: &[u64],
        received: &mut Vec<u32>,
        received_counts: &mut [u64],
    ) -> Result<(), TransportError>;

    /// Sends `counts[r]` rows of `width` values to rank r and receives `received_counts[r]` from it, which both
    /// sides know.
    fn all_to_all(
        &mut self,
        values: &[T],
        counts: &[u64],
        width: usize,
        received: &mut [T],
        received_counts: &[u64],
    ) -> Result<(), TransportError>;

    /// Replaces every part by its sum over ranks, added in rank order. All ranks give the same shapes.
    fn all_reduce(&mut self, parts: &mut [&mut [T]]) -> Result<(), TransportError>;

    /// Appends every rank's values to `gathered` in rank order.
    fn all_gather(&mut self, values: &[T], gathered: &mut Vec<T>) -> Result<(), TransportError>;

    /// Whether any rank says so. All ranks get the same answer; also a barrier.
    fn any(&mut self, flag: bool) -> Result<bool, TransportError>;

    /// Tells every rank that this one cannot go on. The first failure wins.
    fn poison(&self, op: &str, message: &str);

    /// Time spent waiting for other ranks so far.
    fn waited(&self) -> Duration;
}
