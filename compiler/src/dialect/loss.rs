//! Losses. Each computes its own gradient in the forward pass, scaled as the whole training loss needs it:
//! a model has one loss, so its cotangent is one.

use fs_schedule::{Extent, Normalize};

use super::embedding::{ids_of, table_of};
use super::rules::{expect_results, real, require};
use crate::ir::attr::{boolean, float, int};
use crate::ir::{Attr, Attrs, Context, Module, OpData, OpDef, OpError, OpId, Resource, Type, Vjp};

pub(super) const OPS: &[OpDef] = &[
    OpDef::executable("model.bce_with_logits", "`logits, labels -> loss, glogits` Binary cross-entropy.")
        .with_vjp(bce_vjp)
        .writing(Resource::Report),
    OpDef::executable(
        "model.sampled_softmax",
        "`h, table, target ids, negative ids -> loss, gscores` Cross-entropy of the target row against sampled rows.",
    )
    .with_verify(sampled_softmax)
    .with_vjp(sampled_softmax_vjp)
    .reading(Resource::Table)
    .writing(Resource::Report),
    OpDef::executable("train.sampled_softmax_grad", "`h, table, target ids, negative ids, gscores -> gh, sparse`")
        .with_verify(sampled_softmax_grad)
        .reading(Resource::Table),
    OpDef::executable("comm.sampled_softmax", "`h, rows, targets, negatives -> loss, gscores` Over exchanged rows.")
        .writing(Resource::Report),
    OpDef::executable("comm.sampled_softmax_grad", "`h, rows, targets, negatives, gscores -> gh, grows`")
        .accumulating(&[0, 1]),
    OpDef::executable("model.rank_items", "`h, offsets, table ->` Evaluation: ranks every row for each last token.")
        .reading(Resource::Table)
        .writing(Resource::Evaluation),
];

fn bce_vjp(cx: &mut Vjp<'_>, id: OpId) -> Result<(), OpError> {
    let op = cx.op(id).clone();
    cx.contribute(op.operands[0], op.results[1]);
    Ok(())
}

/// Table, columns of h, rows of h and number of negatives, checked.
fn operands(m: &Module, op: &OpData) -> Result<(u32, u32, Extent, u32), OpError> {
    let (rows, columns) = real(m, op, 0)?;
    let (table, dim) = table_of(m, op, 1)?;
    let negatives = int(&op.attrs, "negatives")?;
    if columns != dim {
        return Err(OpError::relation(format!("h has {columns} columns, the table {dim}")));
    }
    if ids_of(m, op, 2, table)? != (rows, 1) || ids_of(m, op, 3, table)? != (rows, negatives) {
        return Err(OpError::relation("targets and negatives must have a row per token"));
    }
    Ok((table, dim, rows, negatives))
}

fn sampled_softmax(m: &Context<'_>, op: &OpData) -> Result<(), OpError> {
    let (_, _, rows, negatives) = operands(m, op)?;
    let _: Normalize = require(op, "normalize")?;
    let temperature = float(&op.attrs, "temperature")?;
    if temperature.is_nan() || temperature <= 0.0 {
        return Err(OpError::relation("the temperature must be positive"));
    }
    boolean(&op.attrs, "cosine")?;
    expect_results(m, op, 4, &[Type::real(Extent::Fixed(1), 1), Type::real(rows, 1 + negatives)])
}

fn sampled_softmax_grad(m: &Context<'_>, op: &OpData) -> Result<(), OpError> {
    let (table, dim, rows, negatives) = operands(m, op)?;
    if real(m, op, 4)? != (rows, 1 + negatives) {
        return Err(OpError::relation("gscores must have a column per score"));
    }
    expect_results(m, op, 5, &[Type::real(rows, dim), Type::Sparse { table }])
}

fn sampled_softmax_vjp(cx: &mut Vjp<'_>, id: OpId) -> Result<(), OpError> {
    let op = cx.op(id).clone();
    let (table, ..) = operands(cx.module(), &op)?;
    let ty = cx.module().ty(op.operands[0]);
    let mut inputs = op.operands.clone();
    inputs.push(op.results[1]);
    let attrs = Attrs::from([("negatives".into(), op.attrs.get("negatives").cloned().unwrap_or(Attr::None))]);
    let grads =
        cx.emit("train.sampled_softmax_grad", inputs, attrs, &[ty, Type::Sparse { table }], &op.scope);
    cx.contribute(op.operands[0], grads[0]);
    cx.contribute(op.operands[1], grads[1]);
    Ok(())
}
