//! Operations that know positions or draw random numbers: positional embedding, dropout.

use crate::ir::{Attrs, OpDef, OpError, OpId, Resource, Vjp};

pub(super) const OPS: &[OpDef] = &[
    OpDef::executable("model.positional", "`x, offsets, weight -> y` Adds a row per position.")
        .with_vjp(positional),
    OpDef::executable("train.positional_grad", "`gy, offsets -> gweight` Sums per position.")
        .accumulating(&[0]),
    OpDef::executable(
        "model.dropout",
        "`x -> y` Zeroes elements with probability p, scales the rest; off in evaluation.",
    )
    .with_vjp(dropout)
    .reading(Resource::Random)
    .only_training(),
    OpDef::executable("train.dropout_grad", "`gy -> gx` The same mask.")
        .reading(Resource::Random)
        .accumulating(&[0]),
    OpDef::executable(
        "model.draw_negatives",
        "`-> ids [tokens, count]` Uniform ids, keyed by sample and position.",
    )
    .reading(Resource::Random),
];

fn positional(cx: &mut Vjp<'_>, id: OpId) -> Result<(), OpError> {
    let op = cx.op(id).clone();
    let Some(gy) = cx.cotangent(op.results[0]) else { return Ok(()) };
    let [x, offsets, weight] = op.operands[..] else {
        return Err(OpError::relation("needs x, offsets and a weight"));
    };
    cx.contribute(x, gy);
    let ty = cx.gradient_type(weight)?;
    let grad = cx.emit("train.positional_grad", vec![gy, offsets], Attrs::new(), &[ty], &op.scope);
    cx.contribute(weight, grad[0]);
    Ok(())
}

fn dropout(cx: &mut Vjp<'_>, id: OpId) -> Result<(), OpError> {
    let op = cx.op(id).clone();
    let Some(gy) = cx.cotangent(op.results[0]) else { return Ok(()) };
    cx.emit_unary("train.dropout_grad", vec![gy], &op)
}
