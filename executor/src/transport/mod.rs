//! How ranks hand data to each other.
//!
//! Every collective of a program has a *channel* of its own, so that collectives on different engines never mix and
//! may overlap in any order. The n-th use of a channel is its turn n. A rank writes its *outbox* of a turn and posts
//! it, without waiting for anyone; once all ranks have posted, each reads from the others' outboxes. There are two
//! outboxes per channel and rank, used in turn: whoever writes one again has seen everyone's post of the turn in
//! between, and everyone posts that one only after reading.
//!
//! A rank that fails [stops](local::Hub::fail) all others: every thread that waits is woken and finds the first
//! failure.

pub mod event;
pub mod link;
pub mod local;
pub mod posts;

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

/// What a rank has for the others in one collective.
#[derive(Debug, Default)]
pub struct Outbox<T> {
    /// One per exchange of the collective.
    pub sections: Vec<Section<T>>,
    /// Bytes for each rank, as a network would carry them.
    pub wire: Vec<u64>,
    /// When this rank began, in nanoseconds of the run.
    pub began: u64,
    /// When each rank has everything, likewise.
    pub there: Vec<u64>,
}

/// The data of one exchange.
#[derive(Debug, Default)]
pub struct Section<T> {
    /// Entries for each rank, one after the other; 0 for the own rank, whose part does not travel.
    pub counts: Vec<u64>,
    /// All ranks get the same entries, which are there once.
    pub everyone: bool,
    /// Rows or gradients.
    pub reals: Vec<T>,
    /// Row numbers.
    pub indices: Vec<u32>,
    /// Classes or uses.
    pub bytes: Vec<u8>,
}

impl<T> Section<T> {
    /// The entries for rank `to`.
    pub fn entries(&self, to: usize) -> std::ops::Range<usize> {
        let start = if self.everyone { 0 } else { self.counts[..to].iter().sum::<u64>() as usize };
        start..start + self.counts[to] as usize
    }
}
