//! Prioritised embedding communication: rows travel by reuse distance, and nothing waits but for data.

use fs_schedule::{Action, Strategy};

use super::Policy;

/// Nothing waits but for data.
#[derive(Debug)]
pub(super) struct Pec;

impl Policy for Pec {
    fn strategy(&self) -> Strategy {
        Strategy::Pec
    }
    fn name(&self) -> &'static str {
        "pec"
    }
    fn summary(&self) -> &'static str {
        "Prioritised embedding communication"
    }
    fn blocks(&self, _: &Action) -> bool {
        false
    }
    fn tells_rows_apart(&self) -> bool {
        true
    }
}
