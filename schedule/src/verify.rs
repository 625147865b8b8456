//! The verifier.

use crate::model::Schedule;

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{rule}: {message}")]
pub struct Violation {
    /// The rule's stable name.
    pub rule: &'static str,
    /// What breaks it, naming the operations.
    pub message: String,
}

/// All violations found, none for a schedule that may run.
pub fn verify(_schedule: &Schedule) -> Vec<Violation> {
    Vec::new()
}
