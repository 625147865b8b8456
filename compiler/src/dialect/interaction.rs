//! Pairwise interactions of features.

use crate::ir::{Attrs, OpDef, OpError, OpId, Resource, Type, Vjp};

pub(super) const OPS: &[OpDef] = &[
    OpDef::executable("model.dense", "`input -> y` Dense features of the batch.").reading(Resource::Batch),
    OpDef::executable("model.dot_interaction", "`x... -> y` Dot products of all pairs.").with_vjp(vjp),
    OpDef::executable("train.dot_interaction_grad", "`x..., gy -> gx...`"),
];

fn vjp(cx: &mut Vjp<'_>, id: OpId) -> Result<(), OpError> {
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
