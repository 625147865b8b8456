//! What passes ask of collectives that concern exchanges.

use std::collections::BTreeSet;

use fs_schedule::{Exchange, Leg, Way};

use crate::dialect::action;
use crate::ir::OpData;

/// What collectives that travel as one have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Collective {
    pub name: &'static str,
    pub way: Option<Way>,
    /// Classes of reuse distance.
    pub classes: Vec<u32>,
    /// Up to which rows are told apart.
    pub lookahead: Option<u32>,
    /// By which windows of a batch.
    pub windows: Option<u32>,
    /// The whole way to owners, within nodes, or between them, by number: not on the same links.
    pub leg: u8,
}

impl Collective {
    /// An operation that moves what exchanges concern between ranks, and these exchanges; nothing for others, and for
    /// those whose operands do not divide by exchange.
    pub(super) fn of(op: &OpData, declared: &[Exchange]) -> Option<(Self, BTreeSet<u32>)> {
        if op.dialect() != "comm" {
            return None;
        }
        let action = action(op).ok()?;
        let facts = action.facts();
        facts.transfer?;
        let own = facts.of.exchanges;
        let first = declared.get(*own.first()? as usize)?;
        let set: BTreeSet<u32> = own.iter().copied().collect();
        let divides =
            op.operands.len().is_multiple_of(own.len()) && op.results.len().is_multiple_of(own.len());
        let classes = facts.of.classes.to_vec();
        let leg = match first.leg {
            Leg::Whole => 0,
            Leg::Within { .. } => 1,
            Leg::Between { .. } => 2,
        };
        let Exchange { lookahead, windows, .. } = *first;
        let this = Self { name: op.def.name, way: facts.of.way, classes, lookahead, windows, leg };
        (divides && set.len() == own.len()).then_some((this, set))
    }
}

/// The exchanges of a collective, in the order of its operands.
pub(super) fn numbers(op: &OpData) -> Vec<u32> {
    op.attrs.get("exchanges").and_then(|a| a.to().ok()).unwrap_or_default()
}
