//! Rows of a batch travel together, and nothing waits but for data: what prioritising buys is the difference from this.

use fs_schedule::{Action, Strategy};

use super::Policy;

/// Nothing waits but for data, and all rows of a table travel as one.
#[derive(Debug)]
pub(super) struct Overlap;

impl Policy for Overlap {
    fn strategy(&self) -> Strategy {
        Strategy::Overlap
    }
    fn name(&self) -> &'static str {
        "overlap"
    }
    fn summary(&self) -> &'static str {
        "Wait for data only, with all rows together"
    }
    fn blocks(&self, _: &Action) -> bool {
        false
    }
}
