//! Attention within jagged sequences.

use fs_schedule::op::Extent;
use fs_schedule::{Poly, Symbol};

use crate::ir::{Attr, Module, OpData, OpDef, OpId, ValueId, Vjp};

pub(super) const OPS: &[OpDef] = &[
    OpDef::executable(
        "model.silu_attention",
        "`q, k, v, offsets -> y` HSTU: silu(q k^T / sqrt(d)) / own length, causal, times v.",
    )
    .with_flops(causal_flops::<4>)
    .with_vjp(silu),
    OpDef::executable("train.silu_attention_grad", "`q, k, v, offsets, gy -> gq, gk, gv` Recomputes scores.")
        .with_flops(causal_flops::<10>),
    OpDef::executable(
        "model.softmax_attention",
        "`q, k, v, offsets -> y, stats` softmax(q k^T / sqrt(d)) v.",
    )
    .with_flops(causal_flops::<4>)
    .with_vjp(softmax),
    OpDef::executable("train.softmax_attention_grad", "`q, k, v, y, stats, offsets, gy -> gq, gk, gv`")
        .with_flops(causal_flops::<10>),
];

/// `C` per pair of positions and column; half of the pairs when causal (silu attention always is).
fn causal_flops<const C: u32>(m: &Module, op: &OpData) -> Poly {
    let causal = op.attrs.get("causal").is_none_or(|a| *a == Attr::Bool(true));
    match m.ty(op.operands[0]).as_real() {
        Some((Extent::Symbol(Symbol::Tokens(g)), columns)) => {
            let half = if causal { 0.5 } else { 1.0 };
            Poly::term(half * f64::from(C) * f64::from(columns), &[Symbol::Squares(g)])
        }
        _ => Poly::zero(),
    }
}

fn silu(cx: &mut Vjp<'_>, id: OpId) -> Result<(), String> {
    let op = cx.op(id).clone();
    let Some(gy) = cx.cotangent(op.results[0]) else { return Ok(()) };
    let mut operands = op.operands.clone();
    operands.push(gy);
    attention(cx, &op, "train.silu_attention_grad", operands);
    Ok(())
}

fn softmax(cx: &mut Vjp<'_>, id: OpId) -> Result<(), String> {
    let op = cx.op(id).clone();
    let Some(gy) = cx.cotangent(op.results[0]) else { return Ok(()) };
    let [q, k, v, offsets] = op.operands[..] else { return Err("needs q, k, v and offsets".into()) };
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
