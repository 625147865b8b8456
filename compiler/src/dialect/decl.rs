//! Declarations: tables, length groups, inputs, parameters. Their attributes are the schedule's own records.

use fs_schedule::signature::OperandType;
use fs_schedule::{Exchange, Extent, Input, InputKind, Lengths, Parameter, Symbol};

use super::rules::expect_results;
use crate::ir::attr::record;
use crate::ir::{Context, Declares, OpData, OpDef, OpError, Type, table_of};

pub(super) const OPS: &[OpDef] = &[
    OpDef::new("model.table", "`-> table` An embedding table.", table).declaring(Declares::Table),
    OpDef::new("model.lengths", "`-> offsets` A group of sequences that share lengths.", lengths)
        .declaring(Declares::Lengths),
    OpDef::new("model.input", "`-> ids | dense | labels` What a sample holds.", input)
        .declaring(Declares::Input),
    OpDef::new("model.param", "`-> parameter` A dense parameter.", param).declaring(Declares::Parameter),
    OpDef::new("comm.exchange", "Who asks whom for which rows of a table.", exchange)
        .declaring(Declares::Exchange),
];

/// Most rows of a table.
const MOST_ROWS: u64 = 1 << 48;
/// Most columns of a table.
const MOST_COLUMNS: u32 = 1 << 24;

/// Position of a declaration among those of its kind.
fn position(m: &Context<'_>, op: &OpData) -> u32 {
    op.results.first().and_then(|r| m.positions.get(r)).copied().unwrap_or(u32::MAX)
}

fn table(m: &Context<'_>, op: &OpData) -> Result<(), OpError> {
    let t = table_of(op)?;
    // The schedule's own limits, below which sizes cannot overflow.
    if !(1..=MOST_ROWS).contains(&t.rows) || !(1..=MOST_COLUMNS).contains(&t.dim) {
        return Err(OpError::relation(format!(
            "a table has 1 to {MOST_ROWS} rows and 1 to {MOST_COLUMNS} columns"
        )));
    }
    expect_results(m, op, 0, &[OperandType::Table { table: position(m, op), dim: t.dim }.into()])
}

fn lengths(m: &Context<'_>, op: &OpData) -> Result<(), OpError> {
    let _: Lengths = record(&op.attrs)?;
    expect_results(m, op, 0, &[OperandType::Offsets { lengths: position(m, op) }.into()])
}

fn input(m: &Context<'_>, op: &OpData) -> Result<(), OpError> {
    let input: Input = record(&op.attrs)?;
    let shape = input_shape(&m.inputs, input.kind)?;
    expect_results(m, op, 0, &[shape.into()])
}

/// What operands see of an input.
pub(crate) fn input_shape(inputs: &[Input], kind: InputKind) -> Result<OperandType, OpError> {
    Ok(match kind {
        InputKind::Ids { table, lengths } => OperandType::Ids { table, lengths },
        InputKind::Next { of } => match inputs.get(of as usize).map(|i| i.kind) {
            Some(InputKind::Ids { table, lengths }) => OperandType::Ids { table, lengths },
            _ => return Err(OpError::relation(format!("input {of} is not a sequence of ids"))),
        },
        InputKind::Dense { width } => OperandType::Dense { width },
        InputKind::SampleLabel => OperandType::Labels { rows: Extent::Symbol(Symbol::Samples) },
        InputKind::TokenLabel { lengths } => {
            OperandType::Labels { rows: Extent::Symbol(Symbol::Tokens(lengths)) }
        }
    })
}

fn param(m: &Context<'_>, op: &OpData) -> Result<(), OpError> {
    let p: Parameter = record(&op.attrs)?;
    expect_results(m, op, 0, &[Type::Operand(OperandType::Parameter { rows: p.rows, columns: p.columns })])
}

fn exchange(m: &Context<'_>, op: &OpData) -> Result<(), OpError> {
    let e: Exchange = record(&op.attrs)?;
    if e.table as usize >= m.tables {
        return Err(OpError::relation(format!("there is no table {}", e.table)));
    }
    expect_results(m, op, 0, &[])
}
