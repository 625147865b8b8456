//! Gradient accumulation: the step runs its batch in parts, and updates once.
//!
//! Everything between loading the batch and the updates is there M times, forward and backward of microbatch 0, then
//! of microbatch 1, and so on. Gradients of parameters are added into those of the microbatch before; sparse
//! gradients are handed to the updates microbatch by microbatch, to be summed in this order.

use std::collections::BTreeMap;

use fs_schedule::Settings;
use fs_schedule::signature::OperandType;

use super::{OptionError, Options, PassError, Statistics, option};
use crate::ir::attr::typed;
use crate::ir::{Attr, Module, OpId, Resource, Type, ValueId};

/// Unrolls `@train`.
pub(super) fn run(
    module: &mut Module,
    options: &Options,
    statistics: &mut Statistics,
) -> Result<(), PassError> {
    let mut settings: Option<Settings> = match module.attrs.get("settings") {
        None => None,
        Some(_) => Some(typed(&module.attrs, "settings")?),
    };
    let microbatches = match (option::<u32>(options, "microbatches")?, &mut settings) {
        (Some(n), Some(s)) => {
            s.microbatches = n;
            module.attrs.insert("settings".into(), Attr::from(&*s));
            n
        }
        (Some(1) | None, None) => 1,
        (Some(_), None) => return Err(PassError::new("the module has no settings to change")),
        (None, Some(s)) => s.microbatches,
    };
    let batch = settings.as_ref().map_or(1, |s| s.batch);
    if microbatches == 0 || !batch.is_multiple_of(microbatches) {
        return Err(OptionError::Microbatches { batch, microbatches }.into());
    }
    if microbatches == 1 {
        return Ok(());
    }
    let body = module.func("train").ok_or_else(|| PassError::missing("train"))?.body.clone();
    if body.iter().any(|id| module.op(*id).microbatch.is_some()) {
        return Err(PassError::new("the step is already cut into microbatches"));
    }
    // What acts on more than values does so once a batch; losses are reported by every part.
    let whole = |m: &Module, id: OpId| {
        use Resource::{Batch, Gradient, Parameter, Table};
        [Batch, Table, Gradient, Parameter].into_iter().any(|r| m.op(id).def.effects.writes(r))
    };
    let (frame, inner): (Vec<OpId>, Vec<OpId>) = body.into_iter().partition(|id| whole(module, *id));
    let (before, after): (Vec<OpId>, Vec<OpId>) =
        frame.into_iter().partition(|id| module.op(*id).def.effects.writes(Resource::Batch));
    let mut new = before;
    for id in &inner {
        module.op_mut(*id).microbatch = Some(0);
    }
    new.extend(&inner);
    // Values of each microbatch by those of the first.
    let mut maps: Vec<BTreeMap<ValueId, ValueId>> = vec![BTreeMap::new()];
    for m in 1..microbatches {
        let mut map = BTreeMap::new();
        for id in &inner {
            new.push(copy(module, *id, m, &mut map, &maps[m as usize - 1])?);
            statistics.count("copied");
        }
        maps.push(map);
    }
    let of = |m: usize, v: ValueId| maps[m].get(&v).copied().unwrap_or(v);
    for id in &after {
        let op = module.op(*id);
        // Sparse gradients of all parts, in their order; dense ones have been added into those of the last.
        let operands: Vec<ValueId> = if op.def.effects.writes(Resource::Table) {
            let (table, parts) = op.operands.split_at(1);
            let parts = (0..maps.len()).flat_map(|m| parts.iter().map(move |v| of(m, *v)));
            table.iter().copied().chain(parts).collect()
        } else {
            op.operands.iter().map(|v| of(maps.len() - 1, *v)).collect()
        };
        module.op_mut(*id).operands = operands;
    }
    new.extend(after);
    if let Some(func) = module.func_mut("train") {
        func.body = new;
    }
    Ok(())
}

/// An operation for microbatch `m`; gradients of parameters are added into those of the one `before`.
fn copy(
    module: &mut Module,
    id: OpId,
    m: u32,
    map: &mut BTreeMap<ValueId, ValueId>,
    before: &BTreeMap<ValueId, ValueId>,
) -> Result<OpId, PassError> {
    let op = module.op(id).clone();
    let operands = op.operands.iter().map(|v| map.get(v).copied().unwrap_or(*v)).collect();
    let types: Vec<Type> = op.results.iter().map(|r| module.ty(*r)).collect();
    let new = module.create(op.def, operands, op.attrs, &types, &op.scope);
    let mut into: Vec<Option<ValueId>> =
        op.into.iter().map(|v| v.map(|v| map.get(&v).copied().unwrap_or(v))).collect();
    for (i, ty) in types.iter().enumerate() {
        if !matches!(ty, Type::Operand(OperandType::Gradient { .. })) {
            continue;
        }
        if !op.def.accumulates.contains(&i) {
            return Err(PassError::new(format!("{} cannot add to gradients", op.def.name)));
        }
        into.resize(types.len(), None);
        let first = op.results[i];
        into[i] = Some(before.get(&first).copied().unwrap_or(first));
    }
    let data = module.op_mut(new);
    (data.microbatch, data.site, data.into, data.offsets) = (Some(m), op.site, into, op.offsets);
    map.extend(op.results.iter().copied().zip(module.op(new).results.clone()));
    Ok(new)
}
