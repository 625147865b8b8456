//! Who has posted in which turn of a channel.
//!
//! One number counts the posts of all ranks over all turns. Nobody posts turn n + 1 before all have posted turn n, so
//! the number alone says whether a turn is complete. Outboxes are two per rank, for even and odd turns: who writes
//! one again has seen everyone's post of the turn in between, and everyone posts that one only after reading.

use crate::sync::{AtomicU64, Ordering};

/// The posts of one channel.
#[derive(Debug)]
pub(crate) struct Posts {
    ranks: u64,
    count: AtomicU64,
}

impl Posts {
    /// None yet.
    pub(crate) fn new(ranks: usize) -> Self {
        Self { ranks: ranks as u64, count: AtomicU64::new(0) }
    }

    /// The outbox of a turn.
    pub(crate) fn slot(turn: u64) -> usize {
        turn as usize & 1
    }

    /// Adds a rank's post of its next turn: whether it was the last one of the turn.
    pub(crate) fn post(&self) -> bool {
        (self.count.fetch_add(1, Ordering::AcqRel) + 1).is_multiple_of(self.ranks)
    }

    /// Whether all ranks have posted a turn.
    pub(crate) fn complete(&self, turn: u64) -> bool {
        self.count.load(Ordering::Acquire) >= (turn + 1) * self.ranks
    }
}
