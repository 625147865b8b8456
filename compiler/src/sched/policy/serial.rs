//! One operation after the other, in the order of the model.

use fs_schedule::{Action, Engine, Strategy};

use super::Policy;

/// Everything waits for every transfer.
#[derive(Debug)]
pub(super) struct Serial;

impl Policy for Serial {
    fn strategy(&self) -> Strategy {
        Strategy::Serial
    }
    fn name(&self) -> &'static str {
        "serial"
    }
    fn summary(&self) -> &'static str {
        "Block on every collective"
    }
    fn blocks(&self, _: &Action) -> bool {
        true
    }
    fn buckets_gradients(&self) -> bool {
        false
    }
    fn reorders(&self) -> bool {
        false
    }
    fn limit(&self) -> Option<&'static str> {
        Some("strategy serial: everything waits for each transfer")
    }
    fn reason(&self, engine: Engine) -> Option<&'static str> {
        Some(match engine {
            Engine::Compute => "serial: in the order of the model",
            Engine::Host => "serial: the step starts with its batch",
            _ => "serial: everything waits for this transfer",
        })
    }
}
