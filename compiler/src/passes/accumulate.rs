//! Sums in place: `add(a, f(x))` becomes `f(x) into(a)` where `f` can add into its result.
//!
//! Allowed only if `a` is a value of this function that nothing reads at or after `f` (its storage is taken over),
//! and `f(x)` has no other use. Operands are still added from the left. A producer that itself sums (a matrix product,
//! row gradients) then starts from `a` instead of from zero, which may round differently: the pass runs in every
//! strategy's pipeline, before anything that strategies do differently.

use std::collections::{BTreeMap, BTreeSet};

use super::{PassError, Statistics};
use crate::ir::{Module, OpId, ValueId, View};

/// Fuses sums into their parts, in all functions.
pub(super) fn run(module: &mut Module, statistics: &mut Statistics) -> Result<(), PassError> {
    for f in 0..module.funcs.len() {
        // Fusing the last part of a sum may make the rest fusable.
        loop {
            let fusions = find(module, f);
            if fusions.is_empty() {
                break;
            }
            for _ in fusions.iter().flat_map(|f| &f.parts) {
                statistics.count("fused");
            }
            apply(module, f, &fusions);
        }
    }
    Ok(())
}

/// A sum whose last parts are to be computed into the rest, one after the other.
struct Fusion {
    sum: OpId,
    /// The last part first: what makes each, and which of its results it is.
    parts: Vec<(OpId, usize)>,
    /// The sum's operands before them.
    rest: Vec<ValueId>,
}

/// Uses of a value, as far as the pass asks.
#[derive(Debug, Clone, Copy, Default)]
struct Uses {
    count: u32,
    /// The last operation that uses it, and the last before that one.
    last: Option<usize>,
    earlier: Option<usize>,
}

impl Uses {
    fn add(&mut self, at: usize) {
        self.count += 1;
        if self.last != Some(at) {
            self.earlier = self.last;
            self.last = Some(at);
        }
    }
    /// Nothing but the operation at `only` uses it from `from` on.
    fn free(self, from: usize, only: usize) -> bool {
        let before = |u: Option<usize>| u.is_none_or(|u| u < from);
        if self.last == Some(only) { before(self.earlier) } else { before(self.last) }
    }
}

/// What a function's operations say about its values.
struct Facts {
    /// Where operations stand, by their number.
    position: Vec<Option<usize>>,
    /// By the values' numbers.
    uses: Vec<Uses>,
    /// Operands of concats, whose storage others see.
    shared: Vec<bool>,
}

impl Facts {
    fn new(module: &Module, body: &[OpId]) -> Self {
        let values = module.value_count();
        let operations = body.iter().map(|id| id.0 as usize + 1).max().unwrap_or(0);
        let mut facts = Self {
            position: vec![None; operations],
            uses: vec![Uses::default(); values],
            shared: vec![false; values],
        };
        // A split's results are views of its operand, a concat's operands of its result: who reads one reads the other.
        let mut viewed: Vec<Option<ValueId>> = vec![None; values];
        for (i, id) in body.iter().enumerate() {
            facts.position[id.0 as usize] = Some(i);
            let op = module.op(*id);
            for v in op.uses() {
                let mut seen = Some(v);
                while let Some(v) = seen {
                    facts.uses[v.0 as usize].add(i);
                    seen = viewed[v.0 as usize];
                }
            }
            match op.def.view {
                Some(View::Split) => {
                    op.results.iter().for_each(|r| viewed[r.0 as usize] = Some(op.operands[0]));
                }
                Some(View::Concat) => {
                    for v in &op.operands {
                        facts.shared[v.0 as usize] = true;
                        viewed[v.0 as usize].get_or_insert(op.results[0]);
                    }
                }
                None => {}
            }
        }
        // What stands in a concat by way of a view is seen by others too.
        for v in 0..values {
            let mut of = viewed[v].filter(|_| facts.shared[v]);
            while let Some(o) = of.filter(|o| !facts.shared[o.0 as usize]) {
                facts.shared[o.0 as usize] = true;
                of = viewed[o.0 as usize];
            }
        }
        facts
    }
    fn uses(&self, v: ValueId) -> Uses {
        self.uses[v.0 as usize]
    }
    fn position(&self, id: OpId) -> Option<usize> {
        self.position.get(id.0 as usize).copied().flatten()
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
        if sum.operands.len() < 2 || sum.operands.iter().chain(&sum.results).any(|v| touched.contains(v)) {
            continue;
        }
        let mut rest = &sum.operands[..];
        // Where the last of the first so many operands is made; none where one is not made here.
        let mut made_by = Some(0);
        let latest: Vec<Option<usize>> = rest
            .iter()
            .map(|v| {
                made_by = made_by.zip(facts.position(module.value(*v).def)).map(|(a, b)| a.max(b));
                made_by
            })
            .collect();
        let mut parts = Vec::new();
        while let Some((part, before)) = rest.split_last().filter(|(_, before)| !before.is_empty()) {
            let value = module.value(*part);
            let (producer, result) = (module.op(value.def), value.result as usize);
            let Some(made) = facts.position(value.def) else { break };
            let plain = producer.def.accumulates.contains(&result)
                && producer.into.get(result).is_none_or(Option::is_none)
                && facts.uses(*part).count == 1
                && !producer.results.iter().any(|r| touched.contains(r));
            let ready = latest[before.len() - 1].is_some_and(|last| last < made);
            if !plain || !ready {
                break;
            }
            // Taking over storage: nobody may read it from the producer on, nor may a split or concat share it. With more
            // operands the leading ones stay a sum of their own, whose storage is free.
            if let [only] = before {
                let unread = facts.uses(*only).free(made, at);
                if !unread || facts.shared[only.0 as usize] || !owns_storage(module, *only) {
                    break;
                }
            }
            parts.push((value.def, result));
            rest = before;
        }
        if parts.is_empty() {
            continue;
        }
        touched.extend(sum.operands.iter().chain(&sum.results));
        touched.extend(parts.iter().flat_map(|(producer, _)| &module.op(*producer).results));
        fusions.push(Fusion { sum: *id, parts, rest: rest.to_vec() });
    }
    fusions
}

fn apply(module: &mut Module, f: usize, fusions: &[Fusion]) {
    let mut map = BTreeMap::new();
    let mut gone: BTreeSet<OpId> = BTreeSet::new();
    let mut before: BTreeMap<OpId, Vec<OpId>> = BTreeMap::new();
    for fusion in fusions {
        let Some((producer, result)) = fusion.parts.first() else { continue };
        map.insert(module.op(fusion.sum).results[0], module.op(*producer).results[*result]);
        gone.insert(fusion.sum);
        if let (Some((last, _)), true) = (fusion.parts.last(), fusion.rest.len() > 1) {
            before.entry(*last).or_default().push(fusion.sum);
        }
    }
    let body = module.funcs[f].body.clone();
    module.replace_uses(&body, &map);
    for fusion in fusions {
        let mut base = if let [only] = fusion.rest[..] {
            only
        } else {
            module.op_mut(fusion.sum).operands.clone_from(&fusion.rest);
            module.op(fusion.sum).results[0]
        };
        for (producer, result) in fusion.parts.iter().rev() {
            let producer = module.op_mut(*producer);
            producer.into.resize(producer.results.len(), None);
            producer.into[*result] = Some(base);
            base = producer.results[*result];
        }
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
    let def = module.def(v).def;
    def.declares.is_none() && def.view != Some(View::Split)
}
