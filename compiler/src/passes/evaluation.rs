//! The evaluation function: what of the forward function ranks items for a history.

use std::collections::BTreeMap;

use super::{PassError, Statistics};
use crate::dialect::named;
use crate::ir::attr::boolean;
use crate::ir::{Attr, Attrs, Declares, Func, Module, OpId, Type, ValueId};
use fs_schedule::signature::OperandType;
use fs_schedule::{Extent, Symbol};

/// Makes `@evaluate`, if the loss is a sampled softmax.
pub(super) fn run(module: &mut Module, statistics: &mut Statistics) -> Result<(), PassError> {
    let forward = module.func("forward").ok_or_else(|| PassError::missing("forward"))?.body.clone();
    let Some(loss) =
        forward.iter().map(|id| module.op(*id)).find(|op| op.def.name == "model.sampled_softmax")
    else {
        return Ok(());
    };
    let (h, table) = (loss.operands[0], loss.operands[1]);
    let cosine = boolean(&loss.attrs, "cosine")?;
    let Some((Extent::Symbol(Symbol::Tokens(group)), _)) = module.ty(h).as_real() else {
        return Err(PassError::new("the sampled softmax's h has no tokens"));
    };
    let is_offsets = |v: &ValueId| module.ty(*v) == Type::Operand(OperandType::Offsets { lengths: group });
    let offsets = module.decls.iter().flat_map(|d| module.op(*d).results.clone()).find(is_offsets);
    let offsets = offsets.ok_or_else(|| PassError::new("the length group of h is not declared"))?;

    let needed = backward_slice(module, &forward, h);
    let is_next = |v: &ValueId| {
        let input = module.def(*v);
        input.def.declares == Some(Declares::Input)
            && matches!(input.attrs.get("kind"), Some(Attr::Dict(d)) if d.contains_key("next"))
    };
    if needed.iter().any(|id| module.op(*id).operands.iter().any(is_next)) {
        // What follows is what evaluation asks for, so such a model has no evaluation.
        return match module.attrs.get("evaluate") {
            None | Some(Attr::None) => Ok(()),
            Some(_) => Err(PassError::ScoresNext),
        };
    }
    let mut map: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    let mut body: Vec<OpId> = vec![module.create(named("train.load_batch"), vec![], Attrs::new(), &[], "")];
    for id in needed {
        let op = module.op(id).clone();
        let operands: Vec<ValueId> = op.operands.iter().map(|v| *map.get(v).unwrap_or(v)).collect();
        if op.def.only_trains {
            map.insert(op.results[0], operands[0]);
            continue;
        }
        let types: Vec<Type> = op.results.iter().map(|r| module.ty(*r)).collect();
        let copy = module.create(op.def, operands, op.attrs, &types, &op.scope);
        map.extend(op.results.iter().copied().zip(module.op(copy).results.clone()));
        body.push(copy);
    }
    let h = *map.get(&h).unwrap_or(&h);
    let attrs = Attrs::from([("cosine".into(), Attr::Bool(cosine))]);
    body.push(module.create(named("model.rank_items"), vec![h, offsets, table], attrs, &[], ""));
    module.funcs.push(Func { name: "evaluate".into(), body });
    statistics.count("functions");
    Ok(())
}

/// Operations of a list that a value depends on, in order.
fn backward_slice(module: &Module, body: &[OpId], value: ValueId) -> Vec<OpId> {
    let mut live = std::collections::BTreeSet::from([value]);
    let mut slice: Vec<OpId> = Vec::new();
    for id in body.iter().rev() {
        if module.op(*id).results.iter().any(|r| live.contains(r)) {
            live.extend(module.op(*id).uses());
            slice.push(*id);
        }
    }
    slice.reverse();
    slice
}
