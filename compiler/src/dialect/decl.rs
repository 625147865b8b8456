//! Declarations: tables, length groups, inputs, parameters. Their attributes are the schedule's own records.

use fs_schedule::op::Extent;
use fs_schedule::signature::Shape;
use fs_schedule::{Exchange, Input, InputKind, Lengths, Parameter, Symbol, Table};

use super::{Context, OpDef, expect_results, from_attrs, no_flops};
use crate::ir::{Attr, OpData, Type};

pub(super) const OPS: &[OpDef] = &[
    decl("model.table", "`-> table` An embedding table.", table),
    decl("model.lengths", "`-> offsets` A group of sequences that share lengths.", lengths),
    decl("model.input", "`-> ids | dense | labels` What a sample holds.", input),
    decl("model.param", "`-> parameter` A dense parameter.", param),
    decl("comm.exchange", "Who asks whom for which rows of a table.", exchange),
];

const fn decl(
    name: &'static str,
    summary: &'static str,
    verify: fn(&Context<'_>, &OpData) -> Result<(), String>,
) -> OpDef {
    OpDef { name, summary, verify, vjp: None, flops: no_flops, accumulates: &[] }
}

/// Most rows of a table.
const MOST_ROWS: u64 = 1 << 48;
/// Most columns of a table.
const MOST_COLUMNS: u32 = 1 << 24;

/// Position of a declaration among those of its kind.
fn position(m: &Context<'_>, op: &OpData) -> u32 {
    op.results.first().and_then(|r| m.positions.get(r)).copied().unwrap_or(u32::MAX)
}

/// The record of a table. Placements that are only asked for (`auto`, `table_wise`, `column_wise`) read as row-wise
/// until `plan-sharding` has decided.
pub fn table_of(op: &OpData) -> Result<Table, String> {
    let mut attrs = op.attrs.clone();
    if let Some(Attr::Str(s)) = attrs.get("sharding")
        && matches!(s.as_str(), "auto" | "table_wise" | "column_wise")
    {
        attrs.insert("sharding".into(), Attr::Str("row_wise".into()));
    }
    from_attrs(&attrs)
}

fn table(m: &Context<'_>, op: &OpData) -> Result<(), String> {
    let t = table_of(op)?;
    // The schedule's own limits, below which sizes cannot overflow.
    if !(1..=MOST_ROWS).contains(&t.rows) || !(1..=MOST_COLUMNS).contains(&t.dim) {
        return Err(format!("a table has 1 to {MOST_ROWS} rows and 1 to {MOST_COLUMNS} columns"));
    }
    expect_results(m, op, 0, &[Shape::Table { table: position(m, op), dim: t.dim }.into()])
}

fn lengths(m: &Context<'_>, op: &OpData) -> Result<(), String> {
    let _: Lengths = from_attrs(&op.attrs)?;
    expect_results(m, op, 0, &[Shape::Offsets { lengths: position(m, op) }.into()])
}

fn input(m: &Context<'_>, op: &OpData) -> Result<(), String> {
    let input: Input = from_attrs(&op.attrs)?;
    let shape = input_shape(&m.inputs, input.kind)?;
    expect_results(m, op, 0, &[shape.into()])
}

/// What operands see of an input.
pub(crate) fn input_shape(inputs: &[Input], kind: InputKind) -> Result<Shape, String> {
    Ok(match kind {
        InputKind::Ids { table, lengths } => Shape::Ids { table, lengths },
        InputKind::Next { of } => match inputs.get(of as usize).map(|i| i.kind) {
            Some(InputKind::Ids { table, lengths }) => Shape::Ids { table, lengths },
            _ => return Err(format!("input {of} is not a sequence of ids")),
        },
        InputKind::Dense { width } => Shape::Dense { width },
        InputKind::SampleLabel => Shape::Labels { rows: Extent::Symbol(Symbol::Samples) },
        InputKind::TokenLabel { lengths } => Shape::Labels { rows: Extent::Symbol(Symbol::Tokens(lengths)) },
    })
}

fn param(m: &Context<'_>, op: &OpData) -> Result<(), String> {
    let p: Parameter = from_attrs(&op.attrs)?;
    expect_results(m, op, 0, &[Type::Shape(Shape::Parameter { rows: p.rows, columns: p.columns })])
}

fn exchange(m: &Context<'_>, op: &OpData) -> Result<(), String> {
    let e: Exchange = from_attrs(&op.attrs)?;
    if e.table as usize >= m.tables {
        return Err(format!("there is no table {}", e.table));
    }
    expect_results(m, op, 0, &[])
}
