//! Lookups before it is decided how rows travel: tables and ids in, rows out, sparse gradients back.

use fs_schedule::signature::OperandType;
use fs_schedule::{Extent, PoolMode, Symbol};

use super::rules::{expect_results, real, require};
use crate::ir::{Context, Module, OpData, OpDef, OpError, OpId, Resource, Type, ValueId, Vjp};

pub(super) const OPS: &[OpDef] = &[
    OpDef::executable("model.lookup", "`table, ids -> y [tokens, dim]` Rows of the ids.")
        .with_verify(lookup)
        .reading(Resource::Table)
        .with_vjp(lookup_vjp),
    OpDef::executable(
        "model.pool",
        "`table, ids, offsets -> y [samples, dim]` Sum or mean of a sample's rows.",
    )
    .with_verify(pool)
    .reading(Resource::Table)
    .with_vjp(pool_vjp),
    OpDef::executable("train.lookup_grad", "`table, ids, gy -> sparse` Gradients of the rows of the ids.")
        .with_verify(lookup_grad),
    OpDef::executable("train.pool_grad", "`table, ids, offsets, gy -> sparse` Gradients of pooled rows.")
        .with_verify(pool_grad),
    OpDef::executable("train.apply", "`table, sparse... ->` The sparse optimizer's update.")
        .with_verify(apply)
        .reading(Resource::Table)
        .writing(Resource::Table),
];

/// Table and its columns, from operand `i`.
pub(super) fn table_of(m: &Module, op: &OpData, i: usize) -> Result<(u32, u32), OpError> {
    match op.operands.get(i).map(|v| m.ty(*v)) {
        Some(Type::Operand(OperandType::Table { table, dim })) => Ok((table, dim)),
        _ => Err(OpError::operand(i, "a table")),
    }
}

/// Rows and columns of ids of a table, from operand `i`.
pub(super) fn ids_of(m: &Module, op: &OpData, i: usize, table: u32) -> Result<(Extent, u32), OpError> {
    match op.operands.get(i).map(|v| m.ty(*v)) {
        Some(Type::Operand(OperandType::Ids { table: t, lengths })) if t == table => {
            Ok((Extent::Symbol(Symbol::Tokens(lengths)), 1))
        }
        Some(Type::Operand(OperandType::Matrix { element: fs_schedule::Element::Id, rows, columns })) => {
            Ok((rows, columns))
        }
        _ => Err(OpError::operand(i, format!("ids of table {table}"))),
    }
}

fn lookup(m: &Context<'_>, op: &OpData) -> Result<(), OpError> {
    let (table, dim) = table_of(m, op, 0)?;
    let (rows, _) = ids_of(m, op, 1, table)?;
    expect_results(m, op, 2, &[Type::real(rows, dim)])
}

fn pooled(m: &Module, op: &OpData) -> Result<(u32, u32), OpError> {
    let (table, dim) = table_of(m, op, 0)?;
    let (rows, _) = ids_of(m, op, 1, table)?;
    let _: PoolMode = require(op, "mode")?;
    match op.operands.get(2).map(|v| m.ty(*v)) {
        Some(Type::Operand(OperandType::Offsets { lengths }))
            if rows == Extent::Symbol(Symbol::Tokens(lengths)) =>
        {
            Ok((table, dim))
        }
        _ => Err(OpError::relation("operand 2 must be the offsets of the ids")),
    }
}

fn pool(m: &Context<'_>, op: &OpData) -> Result<(), OpError> {
    let (_, dim) = pooled(m, op)?;
    expect_results(m, op, 3, &[Type::real(Extent::Symbol(Symbol::Samples), dim)])
}

fn lookup_grad(m: &Context<'_>, op: &OpData) -> Result<(), OpError> {
    let (table, dim) = table_of(m, op, 0)?;
    let (rows, _) = ids_of(m, op, 1, table)?;
    if real(m, op, 2)? != (rows, dim) {
        return Err(OpError::relation("the gradient must have a row per id"));
    }
    expect_results(m, op, 3, &[Type::Sparse { table }])
}

fn pool_grad(m: &Context<'_>, op: &OpData) -> Result<(), OpError> {
    let (table, dim) = pooled(m, op)?;
    if real(m, op, 3)? != (Extent::Symbol(Symbol::Samples), dim) {
        return Err(OpError::relation("the gradient must have a row per sample"));
    }
    expect_results(m, op, 4, &[Type::Sparse { table }])
}

fn apply(m: &Context<'_>, op: &OpData) -> Result<(), OpError> {
    let (table, _) = table_of(m, op, 0)?;
    if op.operands.len() < 2 || op.operands[1..].iter().any(|v| m.ty(*v) != Type::Sparse { table }) {
        return Err(OpError::relation("needs sparse gradients of its table"));
    }
    expect_results(m, op, op.operands.len(), &[])
}

fn lookup_vjp(cx: &mut Vjp<'_>, id: OpId) -> Result<(), OpError> {
    sparse_vjp(cx, id, "train.lookup_grad")
}

fn pool_vjp(cx: &mut Vjp<'_>, id: OpId) -> Result<(), OpError> {
    sparse_vjp(cx, id, "train.pool_grad")
}

/// The operands and the result's cotangent give the table's cotangent.
fn sparse_vjp(cx: &mut Vjp<'_>, id: OpId, grad: &str) -> Result<(), OpError> {
    let op = cx.op(id).clone();
    let Some(gy) = cx.cotangent(op.results[0]) else { return Ok(()) };
    let (table, _) = table_of(cx.module(), &op, 0)?;
    let operands: Vec<ValueId> = op.operands.iter().copied().chain([gy]).collect();
    let grads = cx.emit(grad, operands, op.attrs.clone(), &[Type::Sparse { table }], &op.scope);
    cx.contribute(op.operands[0], grads[0]);
    Ok(())
}
