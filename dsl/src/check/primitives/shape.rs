//! Arithmetic and changes of shape.

use super::embedding::no_loss;
use super::{Primitive, X};
use crate::check::{Bound, Checker, Failed, Given, Val};
use crate::checked::{Op, Rows, Type, ValueId};
use crate::codes;
use crate::diagnostic::Diagnostic;
use crate::signature::{Param, ParamKind};
use crate::source::Span;

const VALUES: Param = Param::required("values", ParamKind::Values, "Two or more operands.");

pub(super) const ALL: &[Primitive] = &[
    Primitive {
        name: "add",
        params: &[VALUES],
        result: "the type of the operands",
        doc: "The sum of values of one type, as `a + b`.",
        apply: |c, b| {
            let values = several(c, b, "add")?;
            c.elementwise(Op::Add, &values, b.span)
        },
    },
    Primitive {
        name: "mul",
        params: &[
            Param::required("a", ParamKind::Value, "An operand."),
            Param::required("b", ParamKind::Value, "An operand."),
        ],
        result: "the type of the operands",
        doc: "The elementwise product of two values of one type, as `a * b`.",
        apply: |c, b| {
            let values = [(b.value("a")?, b.span_of("a")), (b.value("b")?, b.span_of("b"))];
            c.elementwise(Op::Mul, &values, b.span)
        },
    },
    Primitive {
        name: "scale",
        params: &[X, Param::required("factor", ParamKind::ANY, "A constant.")],
        result: "the type of `x`",
        doc: "`x` times a constant, as `2 * x`; `x / 2` and `-x` are other ways to write it.",
        apply: |c, b| {
            let x = b.value("x")?;
            let ty = c.ty(x);
            no_loss(c, "scale", ty, b.span_of("x"))?;
            Ok(c.node1(Op::Scale { factor: b.number("factor")? }, vec![x], ty, b.span))
        },
    },
    Primitive {
        name: "split",
        params: &[X, Param::required("parts", ParamKind::Parts, "How to cut the columns.")],
        result: "several values with the rows of `x`",
        doc: "Ranges of columns, from left to right: `let u, v = split(x, 2)`.",
        apply: split,
    },
    Primitive {
        name: "concat",
        params: &[VALUES],
        result: "the columns of all operands side by side",
        doc: "Values with the same rows, side by side.",
        apply: |c, b| {
            let values = several(c, b, "concat")?;
            let rows = c.same_rows(&values, "concatenated")?;
            let columns = values.iter().map(|v| u64::from(c.ty(v.0).columns)).sum();
            let ty = c.columns(rows, columns, b.span)?;
            Ok(c.node1(Op::Concat, values.into_iter().map(|v| v.0).collect(), ty, b.span))
        },
    },
    Primitive {
        name: "dot_interaction",
        params: &[VALUES],
        result: "`[samples, n (n - 1) / 2]` for n operands",
        doc: "The dot products of all pairs of operands (i, j) with i < j, ordered by i, then by j.",
        apply: |c, b| {
            let values = several(c, b, "dot_interaction")?;
            let ty = c.same_type(&values, "combined")?;
            if ty.rows != Rows::Samples {
                let words = c.type_words(ty);
                let d = Diagnostic::error(
                    codes::WRONG_ROWS,
                    b.span,
                    "`dot_interaction` works on values with a row per sample",
                )
                .label(format!("its operands are `{words}`"));
                return Err(c.push(d));
            }
            let n = values.len() as u64;
            let ty = c.columns(Rows::Samples, n * (n - 1) / 2, b.span)?;
            Ok(c.node1(Op::DotInteraction, values.into_iter().map(|v| v.0).collect(), ty, b.span))
        },
    },
];

fn several(c: &mut Checker<'_>, b: &Bound, who: &str) -> Result<Vec<(ValueId, Span)>, Failed> {
    let values = b.values("values")?;
    if values.len() >= 2 {
        return Ok(values);
    }
    Err(c.push(
        Diagnostic::error(codes::MISSING_ARGUMENT, b.span, format!("`{who}` needs two operands or more"))
            .label(format!("has {}", values.len())),
    ))
}

fn split(c: &mut Checker<'_>, b: &Bound) -> Result<Val, Failed> {
    let x = b.value("x")?;
    let Type { rows, columns } = c.ty(x);
    no_loss(c, "split", c.ty(x), b.span_of("x"))?;
    let sizes = match (b.count("parts"), b.widths("parts")) {
        (Ok(n), _) if u64::from(columns).is_multiple_of(n) => vec![columns / n as u32; n as usize],
        (Ok(n), _) => {
            let d = Diagnostic::error(
                codes::NOT_DIVISIBLE,
                b.span_of("parts"),
                format!("{columns} columns cannot be cut into {n} equal parts"),
            )
            .label(format!("does not divide {columns}"))
            .also(b.span_of("x"), format!("has {columns} columns"));
            return Err(c.push(d));
        }
        (_, Ok(sizes)) => sizes,
        _ => return Err(Failed),
    };
    let total: u64 = sizes.iter().map(|&s| u64::from(s)).sum();
    if total != u64::from(columns) {
        let d = Diagnostic::error(
            codes::NOT_DIVISIBLE,
            b.span_of("parts"),
            format!("the parts have {total} columns together, the operand has {columns}"),
        )
        .label(format!("adds up to {total}"))
        .also(b.span_of("x"), format!("has {columns} columns"));
        return Err(c.push(d));
    }
    let types: Vec<Type> = sizes.iter().map(|&columns| Type { rows, columns }).collect();
    let results = c.node(Op::Split { sizes }, vec![x], &types, b.span);
    Ok(Val::Results(results.into_iter().map(|v| Given { val: Val::Tensor(v), span: b.span }).collect()))
}
