//! Normalisations of rows: layer norm, l2 normalisation, softmax.

use crate::ir::attr::boolean;
use crate::ir::{Attr, Attrs, OpDef, OpError, OpId, Vjp};

pub(super) const OPS: &[OpDef] = &[
    OpDef::executable(
        "model.layer_norm",
        "`x, (weight, bias)? -> y, stats` Over the columns; keeps mean and 1/deviation.",
    )
    .with_vjp(layer_norm),
    OpDef::executable("train.layer_norm_grad", "`x, weight?, stats, gy -> gx, (gweight, gbias)?`")
        .accumulating(&[0, 1, 2]),
    OpDef::executable("model.l2_normalize", "`x -> y, norms` Rows divided by max(length, eps).")
        .with_vjp(l2_normalize),
    OpDef::executable("train.l2_normalize_grad", "`y, norms, gy -> gx`").accumulating(&[0]),
    OpDef::executable("model.softmax", "`x -> y` Over the columns.").with_vjp(softmax),
    OpDef::executable("train.softmax_grad", "`y, gy -> gx`").accumulating(&[0]),
];

fn layer_norm(cx: &mut Vjp<'_>, id: OpId) -> Result<(), OpError> {
    let op = cx.op(id).clone();
    let Some(gy) = cx.cotangent(op.results[0]) else { return Ok(()) };
    let affine = boolean(&op.attrs, "affine")?;
    let x = op.operands[0];
    let mut operands = vec![x];
    let mut types = vec![cx.module().ty(x)];
    if affine {
        operands.push(op.operands[1]);
        types.push(cx.gradient_type(op.operands[1])?);
        types.push(cx.gradient_type(op.operands[2])?);
    }
    operands.extend([op.results[1], gy]);
    let attrs = Attrs::from([("affine".into(), Attr::Bool(affine))]);
    let grads = cx.emit("train.layer_norm_grad", operands, attrs, &types, &op.scope);
    for (operand, grad) in op.operands.iter().zip(grads) {
        cx.contribute(*operand, grad);
    }
    Ok(())
}

fn l2_normalize(cx: &mut Vjp<'_>, id: OpId) -> Result<(), OpError> {
    let op = cx.op(id).clone();
    let Some(gy) = cx.cotangent(op.results[0]) else { return Ok(()) };
    let operands = vec![op.results[0], op.results[1], gy];
    cx.emit_unary("train.l2_normalize_grad", operands, &op)
}

fn softmax(cx: &mut Vjp<'_>, id: OpId) -> Result<(), OpError> {
    let op = cx.op(id).clone();
    let Some(gy) = cx.cotangent(op.results[0]) else { return Ok(()) };
    cx.emit_unary("train.softmax_grad", vec![op.results[0], gy], &op)
}
