//! Time of each operation, added up over steps.

use std::time::Duration;

/// Totals of one program on one rank.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    /// Per operation.
    pub ops: Vec<OpTime>,
}

/// Totals of one operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpTime {
    /// From start to end.
    pub busy: Duration,
    /// The part of it spent waiting for other ranks.
    pub waited: Duration,
    /// Executions.
    pub count: u64,
}

impl Profile {
    /// Nothing yet, for a program of `ops` operations.
    pub fn new(ops: usize) -> Self {
        Self { ops: vec![OpTime::default(); ops] }
    }

    /// Adds one execution.
    pub fn record(&mut self, op: usize, busy: Duration, waited: Duration) {
        if let Some(total) = self.ops.get_mut(op) {
            total.busy += busy;
            total.waited += waited;
            total.count += 1;
        }
    }
}
