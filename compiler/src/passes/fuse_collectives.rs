//! Collectives of a group become one: fewer, larger transfers pay the latency once.
//!
//! A group are the collectives of a function with the same number (`group-collectives`, or who writes IR). The fused
//! one stands where the last of them stood; its exchanges rise. What is fused with what never changes a bit: every
//! exchange keeps its own counts and buffers.

use std::collections::{BTreeMap, BTreeSet};

use fs_schedule::Exchange;

use super::collective::{Collective, numbers};
use super::{PassError, Statistics};
use crate::ir::{Attr, Module, OpId, ValueId, exchanges};

/// A group whose members cannot travel as one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// A member is nothing that can be fused.
    #[error("group {group}: {member} is not a collective of exchanges whose operands divide")]
    NoCollective {
        /// The group.
        group: u32,
        /// The operation.
        member: &'static str,
    },
    /// Members move different things.
    #[error("group {group}: {member} cannot travel with {first}: another {what}")]
    Unlike {
        /// The group.
        group: u32,
        /// The first member.
        first: &'static str,
        /// The other.
        member: &'static str,
        /// What differs.
        what: &'static str,
    },
    /// A result is needed before all members can run.
    #[error(
        "group {group}: the result of exchange {exchange} is needed by {user}, which stands before the last member"
    )]
    Needed {
        /// The group.
        group: u32,
        /// The member's first exchange.
        exchange: u32,
        /// Who needs it.
        user: &'static str,
    },
}

/// Fuses in all functions.
pub(super) fn run(module: &mut Module, statistics: &mut Statistics) -> Result<(), PassError> {
    let declared = exchanges(module);
    for f in 0..module.funcs.len() {
        let body = module.funcs[f].body.clone();
        let mut groups: BTreeMap<u32, Vec<OpId>> = BTreeMap::new();
        for id in &body {
            if let Some(group) = module.op(*id).group {
                groups.entry(group).or_default().push(*id);
            }
        }
        let mut last: BTreeMap<OpId, OpId> = BTreeMap::new();
        let mut gone = BTreeSet::new();
        for (group, members) in &groups {
            check(module, &body, *group, members, &declared)?;
            if let [_, .., end] = members[..] {
                statistics.count("fused");
                last.insert(end, fuse(module, members));
                gone.extend(members.iter().copied());
            }
        }
        let place = |id: OpId| match last.get(&id) {
            Some(fused) => Some(*fused),
            None => (!gone.contains(&id)).then_some(id),
        };
        module.funcs[f].body = body.into_iter().filter_map(place).collect();
        for id in module.funcs[f].body.clone() {
            module.op_mut(id).group = None;
        }
    }
    Ok(())
}

/// Refuses members that do not belong together.
fn check(
    module: &Module,
    body: &[OpId],
    group: u32,
    members: &[OpId],
    declared: &[Exchange],
) -> Result<(), GroupError> {
    let mut first: Option<(Collective, Option<u32>)> = None;
    let mut taken = BTreeSet::new();
    for op in members.iter().map(|id| module.op(*id)) {
        let member = op.def.name;
        let (what, own) = Collective::of(op, declared).ok_or(GroupError::NoCollective { group, member })?;
        let (alike, microbatch) = first.get_or_insert_with(|| (what.clone(), op.microbatch));
        let differs = [
            ("action", alike.name != what.name),
            ("class of rows", (alike.way, &alike.classes) != (what.way, &what.classes)),
            ("lookahead", alike.lookahead != what.lookahead),
            ("number of windows", alike.windows != what.windows),
            ("leg of the way", alike.leg != what.leg),
            ("microbatch", *microbatch != op.microbatch),
            ("transfer of the same exchange", !taken.is_disjoint(&own)),
        ];
        if let Some((what, _)) = differs.iter().find(|(_, differs)| *differs) {
            return Err(GroupError::Unlike { group, first: alike.name, member, what });
        }
        taken.extend(own);
    }
    // Where the last member stands, all of them will: nobody may need a result before.
    let Some(end) = members.last().and_then(|last| body.iter().position(|id| id == last)) else {
        return Ok(());
    };
    let results: BTreeMap<ValueId, OpId> =
        members.iter().flat_map(|id| module.op(*id).results.iter().map(move |r| (*r, *id))).collect();
    for op in body[..=end].iter().map(|id| module.op(*id)) {
        if let Some(member) = op.uses().find_map(|v| results.get(&v)) {
            let exchange = numbers(module.op(*member)).first().copied().unwrap_or_default();
            return Err(GroupError::Needed { group, exchange, user: op.def.name });
        }
    }
    Ok(())
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
