//! The verifier: what holds of every schedule that the executor is given.
//!
//! It knows nothing of the compiler and trusts nothing in the file. Each rule has a stable name, printed with the
//! operations that break it.
//!
//! Declarations ([`declarations`]):
//! - `version`: format and version are this crate's.
//! - `settings`: batch and ranks are at least 1, numbers are finite, rates and divisors are in their ranges.
//! - `tables`: tables have rows and columns, names of tables, inputs and parameters are unique.
//! - `inputs`: inputs refer to tables, length groups and sequences that exist; groups hold at least one token.
//!
//! Each program, by itself ([`program`]):
//! - `indices`: operands, dependencies and exchanges refer to what exists; column ranges lie in their buffer.
//! - `operands`: operands obey the action's signature ([`crate::signature`]).
//! - `names`: names of operations are unique.
//! - `order`: dependencies within a step point backwards, and only they do not repeat.
//! - `writes`: only buffers, gradients, parameters and tables are written, each by the actions that may; no buffer is
//!   read and written by one operation, not even in different columns.
//! - `fresh`: what an operation reads was written before by operations that it depends on, all columns of it; an
//!   addition needs something to add to.
//! - `storage`: a buffer's lifetime covers its uses; buffers of one slot do not live at once, and the first use of
//!   one depends on the last uses of the one before.
//! - `batch`: what reads the batch depends on the operation that loads it.
//! - `frame`: a step loads one batch; a table is updated once, a gradient is reduced before it updates its parameter;
//!   evaluation updates nothing.
//! - `exchange`: ids, rows and gradients of an exchange travel in that order, each at most once.
//!
//! Not yet checked: freshness across steps (rules 1 to 3 of docs/exactness.md). The only strategy so far, `serial`,
//! runs in list order, so they hold by construction.

mod declarations;
mod program;

use crate::model::Schedule;

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rule `{rule}`: {message}")]
pub struct Violation {
    /// The rule's stable name.
    pub rule: &'static str,
    /// What breaks it, naming the operations.
    pub message: String,
}

/// Collects violations.
#[derive(Debug, Default)]
struct Report(Vec<Violation>);

impl Report {
    fn fail(&mut self, rule: &'static str, message: impl Into<String>) {
        self.0.push(Violation { rule, message: message.into() });
    }
    fn check(&mut self, ok: bool, rule: &'static str, message: impl FnOnce() -> String) {
        if !ok {
            self.fail(rule, message());
        }
    }
}

/// All violations found; none for a schedule that may run.
pub fn verify(schedule: &Schedule) -> Vec<Violation> {
    let mut report = Report::default();
    declarations::check(schedule, &mut report);
    // Operands are judged against declarations, so those come first.
    if report.0.is_empty() {
        program::check(schedule, &schedule.train, false, &mut report);
        if let Some(evaluation) = &schedule.evaluation {
            program::check(schedule, evaluation, true, &mut report);
        }
    }
    report.0
}
