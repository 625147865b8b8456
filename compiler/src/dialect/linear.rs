//! Linear layers: `y = x W^T + b`, with `W` of shape `[out, in]`.

use crate::ir::attr::boolean;
use crate::ir::{Attr, Attrs, OpDef, OpError, OpId, Vjp};

pub(super) const OPS: &[OpDef] = &[
    OpDef::executable("model.linear", "`x, weight, bias? -> y` x W^T + b.").with_vjp(vjp),
    OpDef::executable("train.linear_grad_input", "`gy, weight -> gx` gy W.").accumulating(&[0]),
    OpDef::executable("train.linear_grad_weight", "`gy, x -> gweight, gbias?` gy^T x and column sums of gy.")
        .accumulating(&[0, 1]),
];

fn vjp(cx: &mut Vjp<'_>, id: OpId) -> Result<(), OpError> {
    let op = cx.op(id).clone();
    let Some(gy) = cx.cotangent(op.results[0]) else { return Ok(()) };
    let [x, weight, ..] = op.operands[..] else { return Err(OpError::relation("needs x and a weight")) };
    let bias = boolean(&op.attrs, "bias")?;
    let mut types = vec![cx.gradient_type(weight)?];
    if bias {
        types.push(cx.gradient_type(op.operands[2])?);
    }
    let attrs = Attrs::from([("bias".into(), Attr::Bool(bias))]);
    let grads = cx.emit("train.linear_grad_weight", vec![gy, x], attrs, &types, &op.scope);
    for (param, grad) in op.operands[1..].iter().zip(grads) {
        cx.contribute(*param, grad);
    }
    // Last, so that nothing reads gy afterwards and a sum with it can be made in place.
    if cx.needs(x) {
        let ty = cx.module().ty(x);
        let gx = cx.emit("train.linear_grad_input", vec![gy, weight], Attrs::new(), &[ty], &op.scope);
        cx.contribute(x, gx[0]);
    }
    Ok(())
}
