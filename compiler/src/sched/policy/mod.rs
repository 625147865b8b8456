//! What waits for what beyond the data, as values: one policy per strategy.
//!
//! A policy says which operations *block*: in reference order each of them waits for the one before, around the step.
//! Everything else about it follows from that or is a switch of the passes before: whether rows travel by reuse
//! distance, whether sums of dense gradients are cut into buckets. The scheduler asks the policy and never for its name,
//! so adding one is a file with an `impl Policy` and a line in [`POLICIES`].

mod overlap;
mod pec;
mod prefetch;
mod serial;

use std::fmt::Debug;

use fs_schedule::{Action, Engine, Strategy};

use super::graph::{Edge, Graph, Why};

/// What a strategy lets wait, and what it needs of the passes.
pub trait Policy: Debug + Send + Sync {
    /// Its label in schedules.
    fn strategy(&self) -> Strategy;
    /// Its name on the command line and in pictures.
    fn name(&self) -> &'static str;
    /// What it does, in a few words.
    fn summary(&self) -> &'static str;
    /// Whether an operation waits for the blocking one before it, and the next blocking one for it.
    fn blocks(&self, action: &Action) -> bool;
    /// Whether rows are told apart by reuse distance, so that classes travel by themselves.
    fn tells_rows_apart(&self) -> bool {
        false
    }
    /// Whether sums of dense gradients are cut into buckets.
    fn buckets_gradients(&self) -> bool {
        true
    }
    /// Whether an order is searched for; otherwise the reference order is the order.
    fn reorders(&self) -> bool {
        true
    }
    /// What every schedule of it says of its limits.
    fn limit(&self) -> Option<&'static str> {
        None
    }
    /// Why an operation of an engine stands where it does, if that is all there is to say.
    fn reason(&self, _engine: Engine) -> Option<&'static str> {
        None
    }
}

/// Every policy, the simplest first.
pub static POLICIES: &[&dyn Policy] = &[&serial::Serial, &prefetch::Prefetch, &overlap::Overlap, &pec::Pec];

/// The policy behind a label.
pub fn of(strategy: Strategy) -> &'static dyn Policy {
    POLICIES.iter().copied().find(|p| p.strategy() == strategy).unwrap_or(&serial::Serial)
}

/// The policy of a name.
pub fn find(name: &str) -> Option<&'static dyn Policy> {
    POLICIES.iter().copied().find(|p| p.name() == name)
}

/// Names of all policies, for messages: `a, b or c`.
pub(crate) fn names() -> String {
    let names: Vec<&str> = POLICIES.iter().map(|p| p.name()).collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

/// The dependencies under a policy: those of the data, and what blocks.
pub(super) fn graph<'a>(
    policy: &dyn Policy,
    actions: impl Iterator<Item = &'a Action>,
    data: &Graph,
) -> Graph {
    let blocks = actions.enumerate().filter(|(_, action)| policy.blocks(action));
    let chain: Vec<u32> = blocks.map(|(i, _)| i as u32).collect();
    let blocking = |from: u32, to: u32, distance: i32| Edge { from, to, distance, why: Why::Blocking };
    let around = chain.first().zip(chain.last()).map(|(first, last)| blocking(*last, *first, 1));
    data.with(chain.windows(2).map(|w| blocking(w[0], w[1], 0)).chain(around))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_label_has_its_own_policy() {
        for strategy in [Strategy::Serial, Strategy::Prefetch, Strategy::Overlap, Strategy::Pec] {
            assert_eq!(of(strategy).strategy(), strategy);
            assert_eq!(find(of(strategy).name()).map(Policy::strategy), Some(strategy));
        }
        assert_eq!(names(), "serial, prefetch, overlap or pec");
    }
}
