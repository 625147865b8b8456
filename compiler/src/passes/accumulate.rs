//! Sums in place: `add(a, f(x))` becomes `f(x) into(a)` where `f` can add into its result.
//!
//! Allowed only if `a` is a value of this function that nothing reads at or after `f` (its storage is taken over),
//! and `f(x)` has no other use. Operands are still added from the left. A producer that itself sums (a matrix product,
//! row gradients) then starts from `a` instead of from zero, which may round differently: the pass runs in every
//! strategy's pipeline, before anything that strategies do differently.

use std::collections::{BTreeMap, BTreeSet};

use super::{PassError, Statistics};
use crate::ir::{Module, OpId, ValueId};

/// Fuses sums into their parts, in all functions.
pub(super) fn run(module: &mut Module, statistics: &mut Statistics) -> Result<(), PassError> {
    for f in 0..module.funcs.len() {
        // Fusing the last part of a sum may make the rest fusable.
        loop {
            let fusions = find(module, f);
            if fusions.is_empty() {
                break;
            }
            for _ in &fusions {
                statistics.count("fused");
            }
            apply(module, f, &fusions);
        }
    }
    Ok(())
}

/// A sum whose last part is to be computed into the rest.
struct Fusion {
    sum: OpId,
    producer: OpId,
    /// Which of the producer's results.
    result: usize,
    /// The sum's operands before the part.
    rest: Vec<ValueId>,
}

/// What a function's operations say about its values.
struct Facts {
    position: BTreeMap<OpId, usize>,
    uses: BTreeMap<ValueId, Vec<usize>>,
    /// Operands of concats, whose storage others see.
    shared: BTreeSet<ValueId>,
}

impl Facts {
    fn new(module: &Module, body: &[OpId]) -> Self {
        let mut facts = Self {
            position: body.iter().enumerate().map(|(i, id)| (*id, i)).collect(),
            uses: BTreeMap::new(),
            shared: BTreeSet::new(),
        };
        // A split's results are views of its operand, a concat's operands of its result: who reads one reads the other.
        let mut viewed: BTreeMap<ValueId, ValueId> = BTreeMap::new();
        for (i, id) in body.iter().enumerate() {
            let op = module.op(*id);
            for v in op.uses() {
                let mut seen = Some(v);
                while let Some(v) = seen {
                    facts.uses.entry(v).or_default().push(i);
                    seen = viewed.get(&v).copied();
                }
            }
            match op.def.name {
                "model.split" => viewed.extend(op.results.iter().map(|r| (*r, op.operands[0]))),
                "model.concat" => {
                    facts.shared.extend(&op.operands);
                    for v in &op.operands {
                        viewed.entry(*v).or_insert(op.results[0]);
                    }
                }
                _ => {}
            }
        }
        // What stands in a concat by way of a view is seen by others too.
        for view in facts.shared.clone() {
            let mut of = viewed.get(&view).copied();
            while let Some(v) = of.filter(|v| facts.shared.insert(*v)) {
                of = viewed.get(&v).copied();
            }
        }
        facts
    }
    fn uses(&self, v: ValueId) -> &[usize] {
        self.uses.get(&v).map_or(&[], Vec::as_slice)
    }
}

/// Fusions of one function that do not touch each other's values.
fn find(module: &Module, f: usize) -> Vec<Fusion> {
    let body = &module.funcs[f].body;
    let facts = Facts::new(module, body);
    let mut touched: BTreeSet<ValueId> = BTreeSet::new();
    let mut fusions = Vec::new();
    for (at, id) in body.iter().enumerate() {
        let sum = module.op(*id);
        if sum.def.name != "model.add" || !sum.into.is_empty() {
            continue;
        }
        let Some((part, rest)) = sum.operands.split_last() else { continue };
        if rest.is_empty() || sum.operands.iter().chain(&sum.results).any(|v| touched.contains(v)) {
            continue;
        }
        let value = module.value(*part);
        let (producer, result) = (module.op(value.def), value.result as usize);
        let Some(&made) = facts.position.get(&value.def) else { continue };
        let plain = producer.def.accumulates.contains(&result)
            && producer.into.get(result).is_none_or(Option::is_none)
            && facts.uses(*part).len() == 1
            && !producer.results.iter().any(|r| touched.contains(r));
        let ready = |v: &ValueId| facts.position.get(&module.value(*v).def).is_some_and(|p| *p < made);
        if !plain || !rest.iter().all(ready) {
            continue;
        }
        // Taking over storage: nobody may read it from the producer on, nor may a split or concat share it. With more
        // operands the leading ones stay a sum of their own, whose storage is free.
        if let [only] = rest {
            let unread = facts.uses(*only).iter().all(|u| *u < made || *u == at);
            if !unread || facts.shared.contains(only) || !owns_storage(module, *only) {
                continue;
            }
        }
        touched.extend(sum.operands.iter().chain(&sum.results).chain(&producer.results));
        fusions.push(Fusion { sum: *id, producer: value.def, result, rest: rest.to_vec() });
    }
    fusions
}

fn apply(module: &mut Module, f: usize, fusions: &[Fusion]) {
    let mut map = BTreeMap::new();
    let mut gone: BTreeSet<OpId> = BTreeSet::new();
    let mut before: BTreeMap<OpId, Vec<OpId>> = BTreeMap::new();
    for fusion in fusions {
        let part = module.op(fusion.producer).results[fusion.result];
        map.insert(module.op(fusion.sum).results[0], part);
        gone.insert(fusion.sum);
        if fusion.rest.len() > 1 {
            before.entry(fusion.producer).or_default().push(fusion.sum);
        }
    }
    let body = module.funcs[f].body.clone();
    module.replace_uses(&body, &map);
    for fusion in fusions {
        let base = if let [only] = fusion.rest[..] {
            only
        } else {
            module.op_mut(fusion.sum).operands.clone_from(&fusion.rest);
            module.op(fusion.sum).results[0]
        };
        let producer = module.op_mut(fusion.producer);
        producer.into.resize(producer.results.len(), None);
        producer.into[fusion.result] = Some(base);
    }
    let mut new = Vec::with_capacity(body.len());
    for id in body {
        new.extend(before.get(&id).into_iter().flatten());
        if !gone.contains(&id) {
            new.push(id);
        }
    }
    module.funcs[f].body = new;
}

/// True for values that are computed here into storage of their own: not views, not declarations.
fn owns_storage(module: &Module, v: ValueId) -> bool {
    !matches!(
        module.def(v).def.name,
        "model.split" | "model.table" | "model.param" | "model.input" | "model.lengths"
    )
}
