//! Samples move behind the output dist: ids are asked for where they are read, what is made of rows travels.
//!
//! A rank asks for the rows of its samples at home; expansion and pooling make values of them there, which go to the rank
//! that works on the sample (`dispatch_rows`); gradients of those values come back (`combine`) and are summed into rows'
//! gradients at home. Only inputs that are read as assigned travel.
//!
//! Some operations of the model use rows themselves (a sampled softmax its classes). They work as assigned, so their
//! ids are those of samples as assigned, and stand in the same list of what the rank asks for: inputs among them are
//! copied into a buffer (`copy_ids`), drawn ones are drawn there. What a rank asks for and is sent belongs to the
//! rank, not to its samples at one site, so a row that both use travels once, and its gradients are summed once.

use std::collections::{BTreeMap, BTreeSet};

use fs_schedule::action::{Action, Phase};
use fs_schedule::signature::id as ids_of;
use fs_schedule::{OperandType, Site};

use super::{declared, known, moved, of_rows_only, phase};
use crate::dialect::named;
use crate::ir::{Attrs, Module, OpId, Type, ValueId};
use crate::passes::{OptionError, PassError, Statistics};

/// Makes values of rows, or rows' gradients of values, and needs nothing of samples but their ids.
fn between(action: &Action) -> bool {
    matches!(action, Action::Expand | Action::Pool { .. } | Action::ExpandGrad | Action::PoolGrad { .. })
}

/// Says where every operation of `body` works and puts those in that bring values elsewhere. The new body, and the
/// inputs that are read as assigned.
pub(super) fn place(
    module: &mut Module,
    body: Vec<OpId>,
    plan: ValueId,
    statistics: &mut Statistics,
) -> Result<(Vec<OpId>, Vec<ValueId>), PassError> {
    let inputs = declared(module, "model.input");
    let (elsewhere, parts) = (as_assigned(module, &body), microbatches(module, &body));
    let mut new = Vec::with_capacity(body.len());
    for id in body {
        let at = site(module, id, &elsewhere);
        module.op_mut(id).site = at;
        if matches!(known(module, id), Some(Action::Unique { .. })) {
            new.extend(copies(module, id, &elsewhere, (&inputs, &parts)));
        }
        new.push(id);
    }
    let body = carry(module, new, plan, statistics);
    if !body.iter().any(|id| known(module, *id).is_some_and(|a| a.facts().carries().is_some())) {
        return Err(OptionError::NothingCarried.into());
    }
    let read: BTreeSet<ValueId> = body
        .iter()
        .map(|id| module.op(*id))
        .filter(|op| op.site == Site::Assigned)
        .flat_map(|op| op.operands.clone())
        .collect();
    Ok((body, inputs.into_iter().filter(|i| read.contains(i)).collect()))
}

/// Places of ids among the entries that are used by more than what stands between rows and values, or whose ids are drawn;
/// in all microbatches where they are in one.
fn as_assigned(module: &Module, body: &[OpId]) -> BTreeSet<ValueId> {
    let mut places = BTreeSet::new();
    for id in body {
        let Some(action) = known(module, *id) else { continue };
        let op = module.op(*id);
        if let Some(entries) = action.facts().entries.filter(|_| !between(&action)) {
            places.extend(entries.inverse.iter().filter_map(|i| op.operands.get(*i)));
        }
    }
    for id in body {
        let Some(Action::Unique { .. }) = known(module, *id) else { continue };
        let op = module.op(*id);
        let inverses = &op.results[op.results.len() - op.operands.len()..];
        let drawn =
            |v: ValueId| matches!(known(module, module.value(v).def), Some(Action::DrawNegatives { .. }));
        let there: Vec<bool> =
            op.operands.iter().zip(inverses).map(|(v, place)| drawn(*v) || places.contains(place)).collect();
        // A sequence is the same operand in every microbatch's part of the list.
        for (v, place) in op.operands.iter().zip(inverses) {
            let same = op.operands.iter().zip(&there).any(|(other, there)| other == v && *there);
            if same || drawn(*v) {
                places.insert(*place);
            }
        }
    }
    places
}

/// Where an operation works.
fn site(module: &Module, id: OpId, elsewhere: &BTreeSet<ValueId>) -> Site {
    let op = module.op(id);
    let home = match known(module, id) {
        Some(Action::DrawNegatives { .. }) => false,
        Some(action) if between(&action) => {
            op.operands.get(1).is_some_and(|place| !elsewhere.contains(place))
        }
        _ if of_rows_only(module, id) => true,
        _ => matches!(
            phase(module, id),
            Some(Phase::Load | Phase::InputDist | Phase::OutputDist | Phase::GradientDist)
        ),
    };
    if home { Site::Home } else { Site::Assigned }
}

/// Copies of the inputs in a list of ids that are those of samples as assigned, which the list then has instead.
fn copies(
    module: &mut Module,
    unique: OpId,
    elsewhere: &BTreeSet<ValueId>,
    (inputs, parts): (&[ValueId], &BTreeMap<ValueId, Option<u32>>),
) -> Vec<OpId> {
    let op = module.op(unique).clone();
    let inverses = op.results[op.results.len() - op.operands.len()..].to_vec();
    let mut made = Vec::new();
    for (n, v) in op.operands.iter().enumerate() {
        let Type::Operand(OperandType::Ids { lengths, .. }) = module.ty(*v) else { continue };
        if !inputs.contains(v) || !elsewhere.contains(&inverses[n]) {
            continue;
        }
        let rows = fs_schedule::Extent::Symbol(fs_schedule::Symbol::Tokens(lengths));
        let ty = Type::Operand(ids_of(rows, 1));
        let copy = module.create(named("train.copy_ids"), vec![*v], Attrs::new(), &[ty], &op.scope);
        let data = module.op_mut(copy);
        (data.site, data.microbatch) = (Site::Assigned, parts.get(&inverses[n]).copied().flatten());
        let copied = data.results[0];
        module.op_mut(unique).operands[n] = copied;
        made.push(copy);
    }
    made
}

/// The microbatch whose ids a list of places is of: that of those who use it.
fn microbatches(module: &Module, body: &[OpId]) -> BTreeMap<ValueId, Option<u32>> {
    let uses = |id: &OpId| {
        let op = module.op(*id);
        op.operands.iter().map(|v| (*v, op.microbatch))
    };
    body.iter().flat_map(uses).collect()
}

/// Brings values that are made of rows at home to where they are used, and their gradients back.
fn carry(module: &mut Module, body: Vec<OpId>, plan: ValueId, statistics: &mut Statistics) -> Vec<OpId> {
    let mut brought: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    let mut back: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    let mut new = Vec::with_capacity(body.len());
    // What works on samples as assigned, and what takes something from there.
    let mut there = Vec::with_capacity(body.len());
    for id in body {
        let op = module.op(id).clone();
        let action = known(module, id).filter(|action| op.site == Site::Home && between(action));
        let mut make = |module: &mut Module, name: &str, of: ValueId| {
            let ty = module.ty(of);
            let made = module.create(named(name), vec![plan, of], moved(), &[ty], &op.scope);
            module.op_mut(made).microbatch = op.microbatch;
            statistics.count("carried");
            (made, module.op(made).results[0])
        };
        match action {
            Some(Action::ExpandGrad | Action::PoolGrad { .. }) => {
                let of = op.operands[0];
                let gradient = back.get(&of).copied().unwrap_or_else(|| {
                    let (made, result) = make(module, "train.combine", of);
                    there.push(made);
                    new.push(made);
                    result
                });
                back.insert(of, gradient);
                module.op_mut(id).operands[0] = gradient;
                new.push(id);
            }
            Some(_) => {
                let (made, result) = make(module, "train.dispatch_rows", op.results[0]);
                brought.insert(op.results[0], result);
                new.extend([id, made]);
            }
            None => {
                new.push(id);
                if op.site == Site::Assigned {
                    there.push(id);
                }
            }
        }
    }
    module.replace_uses(&there, &brought);
    new
}
