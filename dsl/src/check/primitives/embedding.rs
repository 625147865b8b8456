//! From ids and features to values.

use super::{NAME, Primitive, X};
use crate::check::{Checker, Failed};
use crate::checked::{Op, PoolMode, Rows, Type};
use crate::codes;
use crate::diagnostic::Diagnostic;
use crate::signature::{Param, ParamKind};
use crate::source::Span;

pub(super) const ALL: &[Primitive] = &[
    Primitive {
        name: "lookup",
        params: &[Param::required("input", ParamKind::Sequence, "The ids; their table is the input's.")],
        result: "`[tokens of input, dim]`",
        doc: "The table's row of every id.",
        apply: |c, b| {
            let input = b.input("input")?;
            let (Some(table), Some(group)) = (c.table_of(input), c.group_of(input)) else {
                return Err(Failed);
            };
            let ty = Type { rows: Rows::Tokens(group), columns: c.model.tables[table.index()].dim };
            Ok(c.node1(Op::Lookup { table, input }, Vec::new(), ty, b.span))
        },
    },
    Primitive {
        name: "pool",
        params: &[
            Param::required("input", ParamKind::Ids, "The ids; their table is the input's."),
            Param::default("mode", ParamKind::Choice(&["sum", "mean"]), "sum", "How rows are combined."),
        ],
        result: "`[samples, dim]`",
        doc: "The sum or mean of the rows of a sample's ids; zeros for a sample without ids.",
        apply: |c, b| {
            let input = b.input("input")?;
            let Some(table) = c.table_of(input) else { return Err(Failed) };
            let mode = if b.choice("mode")? == "mean" { PoolMode::Mean } else { PoolMode::Sum };
            let ty = Type { rows: Rows::Samples, columns: c.model.tables[table.index()].dim };
            Ok(c.node1(Op::Pool { table, input, mode }, Vec::new(), ty, b.span))
        },
    },
    Primitive {
        name: "positional",
        params: &[
            X,
            Param::default(
                "init",
                ParamKind::Init,
                "normal(0, 0.02)",
                "Values of the position rows before training.",
            ),
            NAME,
        ],
        result: "the type of `x`",
        doc: "Adds a learned row per position in the sequence, counted from 0 at its start. Parameter: `weight`, `[max, columns]`, where `max` is the input's.",
        apply: |c, b| {
            let x = b.value("x")?;
            let ty = c.ty(x);
            let Rows::Tokens(group) = ty.rows else {
                return Err(needs_tokens(c, "positional", ty, b.span_of("x")));
            };
            let path = c.layer(b, "positional")?;
            let shape = [c.model.lengths[group.index()].max, ty.columns];
            let weight = c.param(format!("{path}.weight"), shape, false, b.init("init")?, b.span);
            Ok(c.node1(Op::Positional { weight }, vec![x], ty, b.span))
        },
    },
];

/// Refuses a value that has no row per token.
pub(super) fn needs_tokens(c: &mut Checker<'_>, who: &str, ty: Type, span: Span) -> Failed {
    let words = c.type_words(ty);
    c.push(
        Diagnostic::error(codes::WRONG_ROWS, span, format!("`{who}` works on the tokens of sequences"))
            .label(format!("this is `{words}`")),
    )
}

/// Refuses a loss where a matrix is needed.
pub(super) fn no_loss(c: &mut Checker<'_>, who: &str, ty: Type, span: Span) -> Result<(), Failed> {
    if ty.rows != Rows::One {
        return Ok(());
    }
    Err(c.push(
        Diagnostic::error(codes::WRONG_ROWS, span, format!("`{who}` works on values with rows"))
            .label("this is a loss"),
    ))
}
