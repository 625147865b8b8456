//! Collectives of one group become one: fewer, larger transfers pay the latency once.
//!
//! A *group* are collectives of one function that
//!
//! - do the same (input dist, classes, output dist, gradient dist), point to point (row-, table- and column-wise
//!   tables) or to all (data-parallel tables);
//! - move the same class of rows, told apart up to the same lookahead;
//! - have their operands ready at the same place: no dense operation stands between, so neither waits for work that
//!   the other does not need;
//! - do not need each other's results, and belong to different exchanges.
//!
//! The fused one stands where the last of them stood; its exchanges rise. What is fused with what never changes a
//! bit: every exchange keeps its own counts and buffers.

use std::collections::{BTreeMap, BTreeSet};

use fs_schedule::action::Flops;
use fs_schedule::op::Extent;
use fs_schedule::signature::Shape;
use fs_schedule::{Exchange, Symbol};

use super::{PassError, Statistics};
use crate::dialect::action;
use crate::ir::{Attr, Module, OpData, OpId, ValueId, exchanges};

/// What collectives of a group have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    name: &'static str,
    /// Class and direction, as printed.
    class: String,
    lookahead: Option<u32>,
}

/// Collectives that have been found to belong together.
#[derive(Debug, Default)]
struct Group {
    members: Vec<OpId>,
    exchanges: BTreeSet<u32>,
    /// Dense operations before its operands are ready.
    place: usize,
}

/// Fuses in all functions.
pub(super) fn run(module: &mut Module, statistics: &mut Statistics) -> Result<(), PassError> {
    let declared = exchanges(module);
    for f in 0..module.funcs.len() {
        let body = module.funcs[f].body.clone();
        let mut last: BTreeMap<OpId, OpId> = BTreeMap::new();
        let mut gone = BTreeSet::new();
        for group in groups(module, &body, &declared) {
            if let (&[_, .., end], fused) = (&group.members[..], &group.members) {
                statistics.count("fused");
                last.insert(end, fuse(module, fused));
                gone.extend(fused.iter().copied());
            }
        }
        let place = |id: OpId| match last.get(&id) {
            Some(fused) => Some(*fused),
            None => (!gone.contains(&id)).then_some(id),
        };
        module.funcs[f].body = body.into_iter().filter_map(place).collect();
    }
    Ok(())
}

/// The groups of a function, in the order of their ends.
fn groups(module: &Module, body: &[OpId], declared: &[Exchange]) -> Vec<Group> {
    let mut dense = 0;
    // Dense operations before each value is ready.
    let mut ready: BTreeMap<ValueId, usize> = BTreeMap::new();
    let mut open: BTreeMap<Key, Group> = BTreeMap::new();
    // The group that makes a value.
    let mut made: BTreeMap<ValueId, Key> = BTreeMap::new();
    let mut done = Vec::new();
    for id in body {
        let op = module.op(*id);
        // Who needs a result closes its group: what follows cannot be waited for.
        for v in op.uses() {
            let group = made.get(&v).and_then(|k| open.get_key_value(k));
            if let Some((key, _)) = group.filter(|(_, g)| g.members.contains(&module.value(v).def)) {
                let key = key.clone();
                done.extend(open.remove(&key));
            }
        }
        if is_dense(module, op) {
            dense += 1;
        }
        ready.extend(op.results.iter().map(|r| (*r, dense)));
        let Some((key, own)) = key(op, declared) else { continue };
        let place = op.uses().filter_map(|v| ready.get(&v)).max().copied().unwrap_or(0);
        let group = open.entry(key.clone()).or_default();
        if !group.members.is_empty() && (group.place != place || !group.exchanges.is_disjoint(&own)) {
            done.push(std::mem::take(group));
        }
        group.place = place;
        group.members.push(*id);
        group.exchanges.extend(own);
        made.extend(op.results.iter().map(|r| (*r, key.clone())));
    }
    done.extend(open.into_values());
    done
}

/// Group and exchanges of an operation that can be fused.
fn key(op: &OpData, declared: &[Exchange]) -> Option<(Key, BTreeSet<u32>)> {
    let movable = matches!(
        op.def.name,
        "comm.all_to_all_ids"
            | "comm.all_gather_ids"
            | "comm.all_to_all_classes"
            | "comm.all_to_all_rows"
            | "comm.all_to_all_grads"
            | "comm.all_gather_grads"
    );
    let own = if movable { numbers(op) } else { Vec::new() };
    let first = own.first()?;
    let lookahead = declared.get(*first as usize)?.lookahead;
    let class = [op.attrs.get("class"), op.attrs.get("way")].map(|a| a.cloned().unwrap_or(Attr::None));
    let class = format!("{} {}", class[0], class[1]);
    let set: BTreeSet<u32> = own.iter().copied().collect();
    // Operands are cut by exchange, so they must divide.
    let divides = op.operands.len().is_multiple_of(own.len()) && op.results.len().is_multiple_of(own.len());
    (divides && set.len() == own.len()).then_some((Key { name: op.def.name, class, lookahead }, set))
}

/// The exchanges of a collective.
fn numbers(op: &OpData) -> Vec<u32> {
    op.attrs.get("exchanges").and_then(|a| a.to().ok()).unwrap_or_default()
}

/// Work on samples, tokens or parameters, as opposed to rows and their transport.
fn is_dense(module: &Module, op: &OpData) -> bool {
    let of_rows = |v: &ValueId| {
        matches!(
            module.ty(*v).shape(),
            Some(Shape::Matrix { rows: Extent::Symbol(Symbol::Sent(_) | Symbol::Received(_)), .. })
        )
    };
    let counts = || action(op).is_ok_and(|a| a.facts().flops != Flops::None);
    op.dialect() != "comm" && !op.results.iter().any(of_rows) && counts()
}

/// One collective for several; results keep their values.
fn fuse(module: &mut Module, members: &[OpId]) -> OpId {
    let mut pieces: Vec<(u32, Vec<ValueId>, Vec<ValueId>)> = Vec::new();
    for op in members.iter().map(|id| module.op(*id)) {
        let own = numbers(op);
        let (reads, writes) = (op.operands.len() / own.len(), op.results.len() / own.len());
        for (i, e) in own.iter().enumerate() {
            let cut = |l: &[ValueId], n: usize| l[i * n..(i + 1) * n].to_vec();
            pieces.push((*e, cut(&op.operands, reads), cut(&op.results, writes)));
        }
    }
    pieces.sort_unstable();
    let first = module.op(members[0]);
    let (def, mut attrs) = (first.def, first.attrs.clone());
    let scope = format!("{}+{}", first.scope.split('+').next().unwrap_or_default(), pieces.len() - 1);
    let (microbatch, site) = (first.microbatch, first.site);
    attrs.insert("exchanges".into(), Attr::List(pieces.iter().map(|p| Attr::Int(p.0.into())).collect()));
    let operands = pieces.iter().flat_map(|p| p.1.clone()).collect();
    let results: Vec<ValueId> = pieces.into_iter().flat_map(|p| p.2).collect();
    let fused = module.create(def, operands, attrs, &[], &scope);
    let data = module.op_mut(fused);
    (data.microbatch, data.site) = (microbatch, site);
    module.adopt(fused, results);
    fused
}
