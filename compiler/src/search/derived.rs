//! How the serial way to distribute tables became what a search ended with, by the rules of the algebra.

use std::collections::BTreeMap;

use fs_schedule::Sharding;
use fs_schedule::search::Derivation;

use super::outcome::words;
use crate::algebra::explanation::explain;
use crate::algebra::rules::Context;
use crate::distribution::Choice;

/// A table that the search has looked at.
pub(super) struct Changed<'a> {
    pub name: &'a str,
    /// What rules may know of it.
    pub context: &'a Context,
    /// How it was distributed where the search began, and is, wherever it lives.
    pub from: Choice,
    /// As said.
    pub to: Choice,
}

/// Derivations of tables that are not distributed as serially, which is as they began with nothing told apart.
pub(super) fn of<'a>(tables: impl Iterator<Item = Changed<'a>>) -> Vec<Derivation> {
    let mut found: BTreeMap<String, Option<Derivation>> = BTreeMap::new();
    let mut order = Vec::new();
    for Changed { name, context, from, to } in tables {
        let from = Choice { lookahead: None, windows: None, ..from };
        if from == to {
            continue;
        }
        let context = enough(context, &from, &to);
        let key = format!("{context:?} {from:?} {to:?}");
        let known = found.entry(key.clone()).or_insert_with(|| {
            order.push(key);
            let steps = explain(&context, &from, &to).ok().flatten()?;
            Some(Derivation { tables: Vec::new(), from: words(&from), to: words(&to), steps })
        });
        if let Some(derivation) = known {
            derivation.tables.push(name.to_owned());
        }
    }
    order.iter().filter_map(|key| found.remove(key).flatten()).collect()
}

/// What rules must know to lead from one to the other: most of what both have alike need not change on the way. Replicas have owners
/// on the way to another number of rows.
fn enough(context: &Context, from: &Choice, to: &Choice) -> Context {
    let relayed = from.relayed || to.relayed;
    let column_wise = [from, to].iter().any(|way| matches!(way.sharding, Sharding::ColumnWise { .. }));
    Context {
        lookaheads: to.lookahead.into_iter().collect(),
        windows: vec![to.windows.unwrap_or(context.microbatches)],
        repeats: from.unique != to.unique,
        cuts: if column_wise { context.cuts.clone() } else { Vec::new() },
        relays: relayed,
        folds: if from.folded == to.folded { Some(from.folded) } else { None },
        ..context.clone()
    }
}
