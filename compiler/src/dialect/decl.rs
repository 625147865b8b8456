//! Declarations: tables, length groups, inputs, parameters. Their attributes are the schedule's own records.

use fs_schedule::op::Extent;
use fs_schedule::signature::Shape;
use fs_schedule::{Exchange, Input, InputKind, Lengths, Parameter, Symbol, Table};

use super::{OpDef, expect_results, from_attrs, no_flops};
use crate::ir::{Module, OpData, Type};

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
    verify: fn(&Module, &OpData) -> Result<(), String>,
) -> OpDef {
    OpDef { name, summary, verify, vjp: None, flops: no_flops, accumulates: &[] }
}

/// Position of a declaration among those of its kind.
fn position(m: &Module, op: &OpData) -> u32 {
    let same = m.decls.iter().map(|id| m.op(*id)).filter(|d| d.def.name == op.def.name);
    same.take_while(|d| d.results != op.results).count() as u32
}

fn table(m: &Module, op: &OpData) -> Result<(), String> {
    let t: Table = from_attrs(&op.attrs)?;
    if t.rows == 0 || t.dim == 0 {
        return Err("a table has at least one row and one column".into());
    }
    expect_results(m, op, 0, &[Shape::Table { table: position(m, op), dim: t.dim }.into()])
}

fn lengths(m: &Module, op: &OpData) -> Result<(), String> {
    let _: Lengths = from_attrs(&op.attrs)?;
    expect_results(m, op, 0, &[Shape::Offsets { lengths: position(m, op) }.into()])
}

fn input(m: &Module, op: &OpData) -> Result<(), String> {
    let input: Input = from_attrs(&op.attrs)?;
    let inputs: Vec<Input> = m.decls_of("model.input").filter_map(|d| from_attrs(&d.attrs).ok()).collect();
    let shape = input_shape(&inputs, input.kind)?;
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

fn param(m: &Module, op: &OpData) -> Result<(), String> {
    let p: Parameter = from_attrs(&op.attrs)?;
    expect_results(m, op, 0, &[Type::Shape(Shape::Parameter { rows: p.rows, columns: p.columns })])
}

fn exchange(m: &Module, op: &OpData) -> Result<(), String> {
    let e: Exchange = from_attrs(&op.attrs)?;
    if m.decls_of("model.table").nth(e.table as usize).is_none() {
        return Err(format!("there is no table {}", e.table));
    }
    expect_results(m, op, 0, &[])
}
