//! The input dist of batches to come runs ahead, as pipelined trainers do it, and sums of dense gradients behind.

use fs_schedule::action::Phase;
use fs_schedule::{Action, Strategy};

use super::Policy;

/// Everything waits for rows and their gradients, nothing for ids and dense sums.
#[derive(Debug)]
pub(super) struct Prefetch;

impl Policy for Prefetch {
    fn strategy(&self) -> Strategy {
        Strategy::Prefetch
    }
    fn name(&self) -> &'static str {
        "prefetch"
    }
    fn summary(&self) -> &'static str {
        "Move the input dist ahead"
    }
    fn blocks(&self, action: &Action) -> bool {
        !matches!(action.facts().phase, Phase::Load | Phase::Balance | Phase::InputDist | Phase::DenseUpdate)
    }
}
