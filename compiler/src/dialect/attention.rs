//! Attention within jagged sequences.

use crate::ir::{OpData, OpDef, OpError, OpId, ValueId, Vjp};

pub(super) const OPS: &[OpDef] = &[
    OpDef::executable(
        "model.silu_attention",
        "`q, k, v, offsets -> y` HSTU: silu(q k^T / sqrt(d)) / own length, causal, times v.",
    )
    .with_vjp(silu),
    OpDef::executable("train.silu_attention_grad", "`q, k, v, offsets, gy -> gq, gk, gv` Recomputes scores."),
    OpDef::executable(
        "model.softmax_attention",
        "`q, k, v, offsets -> y, stats` softmax(q k^T / sqrt(d)) v.",
    )
    .with_vjp(softmax),
    OpDef::executable("train.softmax_attention_grad", "`q, k, v, y, stats, offsets, gy -> gq, gk, gv`"),
];

fn silu(cx: &mut Vjp<'_>, id: OpId) -> Result<(), OpError> {
    let op = cx.op(id).clone();
    let Some(gy) = cx.cotangent(op.results[0]) else { return Ok(()) };
    let mut operands = op.operands.clone();
    operands.push(gy);
    attention(cx, &op, "train.silu_attention_grad", operands);
    Ok(())
}

fn softmax(cx: &mut Vjp<'_>, id: OpId) -> Result<(), OpError> {
    let op = cx.op(id).clone();
    let Some(gy) = cx.cotangent(op.results[0]) else { return Ok(()) };
    let [q, k, v, offsets] = op.operands[..] else {
        return Err(OpError::relation("needs q, k, v and offsets"));
    };
    attention(
        cx,
        &op,
        "train.softmax_attention_grad",
        vec![q, k, v, op.results[0], op.results[1], offsets, gy],
    );
    Ok(())
}

fn attention(cx: &mut Vjp<'_>, op: &OpData, grad: &str, operands: Vec<ValueId>) {
    let ty = cx.module().ty(op.operands[0]);
    let grads = cx.emit(grad, operands, op.attrs.clone(), &[ty; 3], &op.scope);
    for (operand, grad) in op.operands.iter().zip(grads) {
        cx.contribute(*operand, grad);
    }
}
