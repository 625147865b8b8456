//! Time of each operation, added up over steps.

use std::time::Duration;

/// Totals of one program on one rank.
#[derive(Debug, Clone, Default)]
pub(crate) struct Profile {
    /// Per operation.
    pub ops: Vec<OpTime>,
}

/// Totals of one operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OpTime {
    /// From start to end.
    pub busy: Duration,
    /// The part of it spent waiting for other ranks to begin.
    pub waited: Duration,
    /// Time that compute stood still for it after all ranks had begun.
    pub exposed: Duration,
    /// Time in which the host enqueued it, where a device has a clock of its own and it is no transfer.
    pub issued: Duration,
    /// Bytes sent to other ranks.
    pub sent: u64,
    /// Executions.
    pub count: u64,
}

impl Profile {
    /// Nothing yet, for a program of `ops` operations.
    pub(crate) fn new(ops: usize) -> Self {
        Self { ops: vec![OpTime::default(); ops] }
    }

    /// Adds one execution; times in nanoseconds.
    pub(crate) fn record(&mut self, op: usize, busy: u64, waited: u64) {
        if let Some(total) = self.ops.get_mut(op) {
            total.busy += Duration::from_nanos(busy);
            total.waited += Duration::from_nanos(waited);
            total.count += 1;
        }
    }

    /// Adds another thread's totals.
    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, more) in self.ops.iter_mut().zip(&other.ops) {
            sum.busy += more.busy;
            sum.waited += more.waited;
            sum.exposed += more.exposed;
            sum.issued += more.issued;
            sum.sent += more.sent;
            sum.count += more.count;
        }
    }
}
