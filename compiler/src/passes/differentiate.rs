//! Reverse-mode differentiation: `@forward` becomes `@train`, the whole training step.
//!
//! The operations of the forward function are walked backwards; each one's vector-Jacobian rule turns the
//! cotangents of its results into cotangents of its operands. A value used several times sums its cotangents in
//! the order in which they arise. What arrives at parameters and tables goes to the optimizers.

use std::collections::BTreeSet;

use fs_schedule::signature::OperandType;

use super::{PassError, Statistics};
use crate::dialect::named;
use crate::ir::{Attrs, Declares, Func, Module, OpId, Type, ValueId, Vjp};

/// Makes `@train` of `@forward`.
pub(super) fn run(module: &mut Module, statistics: &mut Statistics) -> Result<(), PassError> {
    let forward = module.func("forward").ok_or_else(|| PassError::missing("forward"))?.body.clone();
    let needed = trained_values(module, &forward);
    let loss = *forward.last().ok_or_else(|| PassError::new("`@forward` is empty"))?;
    let frame = module.create(named("train.load_batch"), vec![], Attrs::new(), &[], "");
    let mut body = vec![frame];
    body.extend(&forward);
    let mut cx = Vjp::new(module, body, needed, named);
    for id in forward.iter().rev() {
        let op = cx.op(*id);
        let reached = *id == loss || op.results.iter().any(|r| !cx.contributions(*r).is_empty());
        if !reached {
            continue;
        }
        let (name, rule) = (op.def.name, op.def.vjp);
        if let Some(rule) = rule {
            rule(&mut cx, *id).map_err(|broken| PassError::Derivative { of: name, broken })?;
            statistics.count("derivatives");
        } else if op.operands.iter().any(|v| cx.needs(*v)) {
            return Err(PassError::new(format!("{name} has no derivative")));
        }
    }
    finish(&mut cx)?;
    let body = cx.into_body();
    // The step holds the forward operations from here on.
    module.funcs.retain(|f| f.name != "forward");
    module.funcs.push(Func { name: "train".into(), body });
    Ok(())
}

/// Hands the cotangents of tables and parameters to the optimizers.
fn finish(cx: &mut Vjp<'_>) -> Result<(), PassError> {
    let decls: Vec<ValueId> = {
        let m = cx.module();
        m.decls.iter().flat_map(|d| m.op(*d).results.clone()).collect()
    };
    for v in &decls {
        let parts = cx.contributions(*v);
        if matches!(cx.module().ty(*v), Type::Operand(OperandType::Table { .. })) && !parts.is_empty() {
            let operands = std::iter::once(*v).chain(parts.iter().copied()).collect();
            cx.emit("train.apply", operands, Attrs::new(), &[], "");
        }
    }
    let (mut gradients, mut params) = (Vec::new(), Vec::new());
    for v in &decls {
        if !matches!(cx.module().ty(*v), Type::Operand(OperandType::Parameter { .. })) {
            continue;
        }
        match cx.contributions(*v) {
            [] => {}
            [one] => {
                gradients.push(*one);
                params.push(*v);
            }
            _ => return Err(PassError::new("a parameter is used by two layers")),
        }
    }
    if !gradients.is_empty() {
        let types: Vec<Type> = gradients.iter().map(|g| cx.module().ty(*g)).collect();
        let reduced = cx.emit("comm.all_reduce", gradients, Attrs::new(), &types, "");
        let operands = reduced.into_iter().chain(params).collect();
        cx.emit("train.dense_update", operands, Attrs::new(), &[], "");
    }
    Ok(())
}

/// Values through which the loss depends on something that is trained.
fn trained_values(module: &Module, body: &[OpId]) -> BTreeSet<ValueId> {
    let mut needed = BTreeSet::new();
    for id in &module.decls {
        let op = module.op(*id);
        if matches!(op.def.declares, Some(Declares::Table | Declares::Parameter)) {
            needed.extend(&op.results);
        }
    }
    for id in body {
        let op = module.op(*id);
        if op.operands.iter().any(|v| needed.contains(v)) {
            needed.extend(&op.results);
        }
    }
    needed
}
