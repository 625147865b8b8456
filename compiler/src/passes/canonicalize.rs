//! Exact identities only: nothing here may change a bit of any result.

use std::collections::{BTreeMap, BTreeSet};

use super::{PassError, Statistics};
use crate::ir::attr::float;
use crate::ir::{Module, OpId, ValueId};

/// Folds operations that do nothing and flattens sums.
pub(super) fn run(module: &mut Module, statistics: &mut Statistics) -> Result<(), PassError> {
    for f in 0..module.funcs.len() {
        let body = module.funcs[f].body.clone();
        let mut map = BTreeMap::new();
        for id in &body {
            if let Some((result, operand)) = identity(module, *id) {
                map.insert(result, operand);
                statistics.count("folded");
            }
        }
        module.replace_uses(&body, &map);
        let kept: Vec<OpId> = body
            .iter()
            .copied()
            .filter(|id| !module.op(*id).results.iter().any(|r| map.contains_key(r)))
            .collect();
        flatten_sums(module, &kept, statistics);
        module.funcs[f].body = kept;
    }
    eliminate_dead(module, &mut Statistics::default())
}

/// The result of an operation that equals its operand, bit by bit.
fn identity(module: &Module, id: OpId) -> Option<(ValueId, ValueId)> {
    let op = module.op(id);
    let same = match op.def.name {
        "model.scale" => float(&op.attrs, "factor") == Ok(1.0),
        "model.dropout" => float(&op.attrs, "p") == Ok(0.0),
        "model.split" | "model.concat" | "model.add" => op.results.len() == 1 && op.operands.len() == 1,
        _ => false,
    };
    // An operation that adds into a value is no identity.
    (same && op.into.is_empty()).then(|| (op.results[0], op.operands[0]))
}

/// `add(add(a, b), c)` becomes `add(a, b, c)`: sums go from left to right, so only a leading operand may be merged.
fn flatten_sums(module: &mut Module, body: &[OpId], statistics: &mut Statistics) {
    let uses = module.use_counts(body);
    let within: BTreeSet<OpId> = body.iter().copied().collect();
    for id in body {
        loop {
            let op = module.op(*id);
            if op.def.name != "model.add" || !op.into.is_empty() {
                break;
            }
            let first = op.operands[0];
            let inner = module.def(first);
            let mergeable =
                inner.def.name == "model.add" && inner.into.is_empty() && uses.get(&first) == Some(&1);
            let inner = module.value(first).def;
            if !mergeable || !within.contains(&inner) {
                break;
            }
            // Nobody else uses the inner sum: it is dead from here on, and what it added moves rather than being copied
            // once for every sum around it.
            let mut operands = std::mem::take(&mut module.op_mut(inner).operands);
            operands.extend(&module.op(*id).operands[1..]);
            module.op_mut(*id).operands = operands;
            statistics.count("flattened");
        }
    }
}

/// Removes operations without effect whose results nobody uses.
pub(super) fn eliminate_dead(module: &mut Module, statistics: &mut Statistics) -> Result<(), PassError> {
    for f in 0..module.funcs.len() {
        let body = &module.funcs[f].body;
        let mut live: BTreeSet<ValueId> = BTreeSet::new();
        let mut kept = Vec::with_capacity(body.len());
        let last = body.last().copied();
        for id in body.iter().rev() {
            let op = module.op(*id);
            // The last one is what a function is for, where nothing else says so.
            let root = op.def.effects.acts() || Some(*id) == last;
            if root || op.results.iter().any(|r| live.contains(r)) {
                live.extend(op.uses());
                kept.push(*id);
            } else {
                statistics.count("removed");
            }
        }
        kept.reverse();
        module.funcs[f].body = kept;
    }
    Ok(())
}
