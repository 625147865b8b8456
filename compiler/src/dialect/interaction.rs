//! Pairwise interactions of features.

use fs_schedule::Poly;

use super::work::elements;
use crate::ir::{Attrs, Module, OpData, OpDef, OpId, Resource, Type, Vjp};

pub(super) const OPS: &[OpDef] = &[
    OpDef::executable("model.dense", "`input -> y` Dense features of the batch.").reading(Resource::Batch),
    OpDef::executable("model.dot_interaction", "`x... -> y` Dot products of all pairs.")
        .with_flops(flops)
        .with_vjp(vjp),
    OpDef::executable("train.dot_interaction_grad", "`x..., gy -> gx...`").with_flops(flops),
];

/// Two per pair and column (twice that for the gradient, which reads one operand more).
fn flops(m: &Module, op: &OpData) -> Poly {
    let n = op.operands.len() as f64;
    elements(m, op.operands[0]).times(n * (n - 1.0))
}

fn vjp(cx: &mut Vjp<'_>, id: OpId) -> Result<(), String> {
    let op = cx.op(id).clone();
    let Some(gy) = cx.cotangent(op.results[0]) else { return Ok(()) };
    let types: Vec<Type> = op.operands.iter().map(|x| cx.module().ty(*x)).collect();
    let mut operands = op.operands.clone();
    operands.push(gy);
    let grads = cx.emit("train.dot_interaction_grad", operands, Attrs::new(), &types, &op.scope);
    for (x, g) in op.operands.iter().zip(grads) {
        cx.contribute(*x, g);
    }
    Ok(())
}
