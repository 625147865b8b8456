//! Sums in place: `add(a, f(x))` becomes `f(x) into(a)` where `f` can add into its result.
//!
//! Allowed only if `a` is a value of this function that nothing reads at or after `f` (its storage is taken over),
//! and `f(x)` has no other use. Operands are still added from the left. A producer that itself sums (a matrix product,
//! row gradients) then starts from `a` instead of from zero, which may round differently: the pass runs in every
//! strategy's pipeline, before anything that strategies do differently.

use std::collections::BTreeMap;

use super::{PassError, Statistics};
use crate::ir::{Module, OpId, ValueId};

/// Fuses sums into their parts, in all functions.
pub(super) fn run(module: &mut Module, statistics: &mut Statistics) -> Result<(), PassError> {
    for f in 0..module.funcs.len() {
        // Fusing the last part of a sum may make the rest fusable.
        while fuse_one(module, f) {
            statistics.count("fused");
        }
    }
    Ok(())
}

fn fuse_one(module: &mut Module, f: usize) -> bool {
    let body = module.funcs[f].body.clone();
    let position: BTreeMap<OpId, usize> = body.iter().enumerate().map(|(i, id)| (*id, i)).collect();
    let uses = module.use_counts(&body);
    let mut last_use: BTreeMap<ValueId, usize> = BTreeMap::new();
    for (i, id) in body.iter().enumerate() {
        last_use.extend(module.op(*id).uses().map(|v| (v, i)));
    }
    for (at, id) in body.iter().enumerate() {
        let sum = module.op(*id);
        if sum.def.name != "model.add" || !sum.into.is_empty() || sum.operands.len() < 2 {
            continue;
        }
        let part = sum.operands[sum.operands.len() - 1];
        let rest = sum.operands[..sum.operands.len() - 1].to_vec();
        let (Some(&made), producer) = (position.get(&module.value(part).def), module.def(part)) else {
            continue;
        };
        let result = module.value(part).result as usize;
        let plain = producer.def.accumulates.contains(&result)
            && producer.into.get(result).is_none_or(Option::is_none)
            && uses.get(&part) == Some(&1);
        if !plain {
            continue;
        }
        // With more than two operands the leading ones stay a sum, placed before the producer.
        let ready = |v: &ValueId| position.get(&module.value(*v).def).is_some_and(|p| *p < made);
        if !rest.iter().all(ready) {
            continue;
        }
        let sum_result = sum.results[0];
        let producer_id = module.value(part).def;
        let base = if let [only] = rest[..] {
            // Taking over storage: nobody else may read it from here on, nor may a split or concat share it.
            let free = last_use.get(&only) == Some(&at) && uses.get(&only).copied().unwrap_or(0) >= 1;
            let readers_before = body[made..at].iter().all(|o| !module.op(*o).uses().any(|v| v == only));
            let viewed = body.iter().any(|o| {
                let op = module.op(*o);
                matches!(op.def.name, "model.split" | "model.concat") && op.operands.contains(&only)
            });
            if !free || !readers_before || viewed || !owns_storage(module, only) {
                continue;
            }
            module.funcs[f].body.retain(|o| o != id);
            only
        } else {
            module.op_mut(*id).operands = rest;
            let moved = *id;
            let list = &mut module.funcs[f].body;
            list.retain(|o| *o != moved);
            list.insert(made, moved);
            sum_result
        };
        let producer = module.op_mut(producer_id);
        let count = producer.results.len();
        producer.into.resize(count, None);
        producer.into[result] = Some(base);
        let users = module.funcs[f].body.clone();
        if base == sum_result {
            // Users of the sum now use the producer's result; the sum itself feeds the producer.
            let map = BTreeMap::from([(sum_result, part)]);
            let others: Vec<OpId> = users.into_iter().filter(|o| *o != producer_id).collect();
            module.replace_uses(&others, &map);
        } else {
            module.replace_uses(&users, &BTreeMap::from([(sum_result, part)]));
        }
        return true;
    }
    false
}

/// True for values that are computed here into storage of their own: not views, not declarations.
fn owns_storage(module: &Module, v: ValueId) -> bool {
    !matches!(
        module.def(v).def.name,
        "model.split" | "model.table" | "model.param" | "model.input" | "model.lengths"
    )
}
