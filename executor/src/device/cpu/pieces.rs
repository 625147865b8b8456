//! A fill or drain in pieces, between which something more urgent may go first.

use super::Fault;
use crate::device::Urgent;
use crate::transport::TransportError;

/// Why a fill or drain stops.
#[derive(Debug)]
pub(super) enum Stop {
    /// Something more urgent can go on.
    Paused,
    /// It cannot go on.
    Fault(Fault),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Counts the pieces of a fill or drain, between which it may stop and be called again.
pub(super) struct Pieces<'u> {
    /// Pieces of earlier calls that are still to be passed.
    skip: u64,
    /// Pieces done, with those of earlier calls.
    pub(super) done: u64,
    /// Whether this call has done one.
    moved: bool,
    urgent: Urgent<'u>,
}

impl<'u> Pieces<'u> {
    /// After `done` pieces.
    pub(super) fn new(done: u64, urgent: Urgent<'u>) -> Self {
        Self { skip: done, done, moved: false, urgent }
    }

    /// Whether the next piece is still to be done; it then counts as done.
    pub(super) fn next(&mut self) -> Result<bool, Stop> {
        if self.skip > 0 {
            self.skip -= 1;
            return Ok(false);
        }
        if self.moved && (self.urgent)() {
            return Err(Stop::Paused);
        }
        (self.moved, self.done) = (true, self.done + 1);
        Ok(true)
    }
}

/// Two numbers that ranks must agree about.
pub(super) fn check(what: &str, found: usize, expected: usize) -> Result<(), Fault> {
    if found == expected {
        return Ok(());
    }
    Err(TransportError::Sizes(format!("{what}: {found} where {expected} are expected")).into())
}
