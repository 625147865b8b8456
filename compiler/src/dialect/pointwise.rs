//! Pointwise operations.

use crate::ir::{Attrs, OpDef, OpError, OpId, Vjp};

pub(super) const OPS: &[OpDef] = &[
    OpDef::executable("model.unary", "`x -> y` silu, relu, gelu or sigmoid.").with_vjp(unary),
    OpDef::executable("train.unary_grad", "`x, gy -> gx`").accumulating(&[0]),
    OpDef::executable("model.add", "`x... -> y` Sum.").with_vjp(add),
    OpDef::executable("model.mul", "`x, y -> z` Product.").with_vjp(mul),
    OpDef::executable("train.mul_grad", "`x, y, gz -> gx, gy`").accumulating(&[0, 1]),
    OpDef::executable("model.scale", "`x -> y` Times a constant.").with_vjp(scale).accumulating(&[0]),
    OpDef::executable(
        "model.cast",
        "`x -> y` In the other precision: f32 rounded to bf16, or bf16 as it is.",
    )
    .with_vjp(cast)
    .accumulating(&[0]),
];

fn unary(cx: &mut Vjp<'_>, id: OpId) -> Result<(), OpError> {
    let op = cx.op(id).clone();
    let Some(gy) = cx.cotangent(op.results[0]) else { return Ok(()) };
    cx.emit_unary("train.unary_grad", vec![op.operands[0], gy], &op)
}

fn add(cx: &mut Vjp<'_>, id: OpId) -> Result<(), OpError> {
    let op = cx.op(id).clone();
    let Some(gy) = cx.cotangent(op.results[0]) else { return Ok(()) };
    for x in &op.operands {
        cx.contribute(*x, gy);
    }
    Ok(())
}

fn mul(cx: &mut Vjp<'_>, id: OpId) -> Result<(), OpError> {
    let op = cx.op(id).clone();
    let Some(gz) = cx.cotangent(op.results[0]) else { return Ok(()) };
    let [x, y] = op.operands[..] else { return Err(OpError::relation("needs two operands")) };
    let ty = cx.module().ty(x);
    let grads = cx.emit("train.mul_grad", vec![x, y, gz], Attrs::new(), &[ty, ty], &op.scope);
    cx.contribute(x, grads[0]);
    cx.contribute(y, grads[1]);
    Ok(())
}

fn scale(cx: &mut Vjp<'_>, id: OpId) -> Result<(), OpError> {
    let op = cx.op(id).clone();
    let Some(gy) = cx.cotangent(op.results[0]) else { return Ok(()) };
    cx.emit_unary("model.scale", vec![gy], &op)
}

fn cast(cx: &mut Vjp<'_>, id: OpId) -> Result<(), OpError> {
    let op = cx.op(id).clone();
    let Some(gy) = cx.cotangent(op.results[0]) else { return Ok(()) };
    cx.emit_unary("model.cast", vec![gy], &op)
}
