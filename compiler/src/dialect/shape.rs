//! Column ranges: split and concat. Neither moves data where the storage allows views.

use super::rules::{expect_results, floats, require};
use crate::ir::{Attr, Attrs, Context, OpData, OpDef, OpError, OpId, Type, ValueId, View, Vjp};

pub(super) const OPS: &[OpDef] = &[
    OpDef::executable("model.split", "`x -> y...` Column ranges.")
        .with_verify(split)
        .with_vjp(split_vjp)
        .viewing(View::Split),
    OpDef::executable("model.concat", "`x... -> y` Columns side by side.")
        .with_verify(concat)
        .with_vjp(concat_vjp)
        .viewing(View::Concat),
    OpDef::executable("train.zero", "`-> y` Zeros: the gradient of an unused column range."),
];

fn split(m: &Context<'_>, op: &OpData) -> Result<(), OpError> {
    let (element, rows, columns) = floats(m, op, 0)?;
    let sizes: Vec<u32> = require(op, "sizes")?;
    if sizes.iter().map(|s| u64::from(*s)).sum::<u64>() != u64::from(columns) || sizes.contains(&0) {
        return Err(OpError::relation(format!("sizes {sizes:?} do not add up to {columns} columns")));
    }
    expect_results(m, op, 1, &sizes.iter().map(|c| Type::floats(element, rows, *c)).collect::<Vec<_>>())
}

fn concat(m: &Context<'_>, op: &OpData) -> Result<(), OpError> {
    let (element, rows, _) = floats(m, op, 0)?;
    let mut columns = 0u32;
    for i in 0..op.operands.len() {
        let (e, r, c) = floats(m, op, i)?;
        if r != rows {
            return Err(OpError::relation(format!("operand {i} has other rows than the first")));
        }
        if e != element {
            return Err(OpError::relation(format!("operand {i} has another precision than the first")));
        }
        columns = columns
            .checked_add(c)
            .ok_or_else(|| OpError::relation("the columns of the operands are too many"))?;
    }
    expect_results(m, op, op.operands.len(), &[Type::floats(element, rows, columns)])
}

fn split_vjp(cx: &mut Vjp<'_>, id: OpId) -> Result<(), OpError> {
    let op = cx.op(id).clone();
    let parts: Vec<Option<ValueId>> = op.results.iter().map(|r| cx.cotangent(*r)).collect();
    if parts.iter().all(Option::is_none) {
        return Ok(());
    }
    let parts: Vec<ValueId> = parts
        .iter()
        .zip(&op.results)
        .map(|(part, result)| {
            part.unwrap_or_else(|| {
                let ty = cx.module().ty(*result);
                cx.emit("train.zero", Vec::new(), Attrs::new(), &[ty], &op.scope)[0]
            })
        })
        .collect();
    let ty = cx.module().ty(op.operands[0]);
    let gx = cx.emit("model.concat", parts, Attrs::new(), &[ty], &op.scope);
    cx.contribute(op.operands[0], gx[0]);
    Ok(())
}

fn concat_vjp(cx: &mut Vjp<'_>, id: OpId) -> Result<(), OpError> {
    let op = cx.op(id).clone();
    let Some(gy) = cx.cotangent(op.results[0]) else { return Ok(()) };
    let types: Vec<Type> = op.operands.iter().map(|x| cx.module().ty(*x)).collect();
    let sizes: Vec<u32> = types.iter().filter_map(|t| t.as_floats().map(|(_, _, c)| c)).collect();
    let attrs = Attrs::from([("sizes".into(), Attr::from(&sizes))]);
    let parts = cx.emit("model.split", vec![gy], attrs, &types, &op.scope);
    for (x, g) in op.operands.iter().zip(parts) {
        cx.contribute(*x, g);
    }
    Ok(())
}
