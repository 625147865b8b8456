//! Linear layers: `y = x W^T + b`, with `W` of shape `[out, in]`.

use fs_schedule::Poly;
use fs_schedule::signature::Shape;

use super::work::{elements, extent};
use crate::ir::attr::boolean;
use crate::ir::{Attr, Attrs, Module, OpData, OpDef, OpId, Type, Vjp};

pub(super) const OPS: &[OpDef] = &[
    OpDef::executable("model.linear", "`x, weight, bias? -> y` x W^T + b.").with_flops(flops).with_vjp(vjp),
    OpDef::executable("train.linear_grad_input", "`gy, weight -> gx` gy W.")
        .with_flops(flops)
        .accumulating(&[0]),
    OpDef::executable("train.linear_grad_weight", "`gy, x -> gweight, gbias?` gy^T x and column sums of gy.")
        .with_flops(weight_flops)
        .accumulating(&[0, 1]),
];

/// Two per row and weight.
fn flops(m: &Module, op: &OpData) -> Poly {
    match (m.ty(op.operands[0]).as_real(), m.ty(op.operands[1])) {
        (Some((rows, _)), Type::Shape(Shape::Parameter { rows: out, columns })) => {
            extent(rows).times(2.0 * f64::from(out) * f64::from(columns))
        }
        _ => Poly::zero(),
    }
}

fn weight_flops(m: &Module, op: &OpData) -> Poly {
    let columns = m.ty(op.operands[1]).as_real().map_or(0, |(_, c)| c);
    elements(m, op.operands[0]).times(2.0 * f64::from(columns))
}

fn vjp(cx: &mut Vjp<'_>, id: OpId) -> Result<(), String> {
    let op = cx.op(id).clone();
    let Some(gy) = cx.cotangent(op.results[0]) else { return Ok(()) };
    let [x, weight, ..] = op.operands[..] else { return Err("needs x and a weight".into()) };
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
