//! Attention within each sequence.

use super::Primitive;
use super::embedding::needs_tokens;
use crate::check::{Bound, Checker, Failed};
use crate::checked::{Op, Rows, Type, ValueId};
use crate::codes;
use crate::diagnostic::Diagnostic;
use crate::signature::{Param, ParamKind};

const Q: Param = Param::required("q", ParamKind::Value, "Queries, all heads side by side.");
const K: Param = Param::required("k", ParamKind::Value, "Keys.");
const V: Param = Param::required("v", ParamKind::Value, "Values.");
const HEADS: Param =
    Param::default("heads", ParamKind::Count { min: 1, max: 4096 }, "1", "Heads; they divide the columns.");

pub(super) const ALL: &[Primitive] = &[
    Primitive {
        name: "silu_attention",
        params: &[Q, K, V, HEADS],
        result: "the type of `q`, `k` and `v`",
        doc: "HSTU's pointwise attention: for each head `silu(q k^T / sqrt(columns per head)) v`, divided by the sequence's own length; a token sees itself and earlier ones.",
        apply: |c, b| {
            let (args, ty, heads) = operands(c, b, "silu_attention")?;
            Ok(c.node1(Op::SiluAttention { heads }, args, ty, b.span))
        },
    },
    Primitive {
        name: "softmax_attention",
        params: &[
            Q,
            K,
            V,
            HEADS,
            Param::default("causal", ParamKind::Switch, "on", "Whether later tokens are hidden."),
        ],
        result: "the type of `q`, `k` and `v`",
        doc: "For each head `softmax(q k^T / sqrt(columns per head)) v`.",
        apply: |c, b| {
            let (args, ty, heads) = operands(c, b, "softmax_attention")?;
            let causal = b.switch("causal")?;
            Ok(c.node1(Op::SoftmaxAttention { heads, causal }, args, ty, b.span))
        },
    },
];

fn operands(c: &mut Checker<'_>, b: &Bound, who: &str) -> Result<(Vec<ValueId>, Type, u32), Failed> {
    let mut args = Vec::new();
    for name in ["q", "k", "v"] {
        args.push((b.value(name)?, b.span_of(name)));
    }
    let ty = c.same_type(&args, "attended")?;
    if !matches!(ty.rows, Rows::Tokens(_)) {
        return Err(needs_tokens(c, who, ty, b.span_of("q")));
    }
    let heads = b.count("heads")? as u32;
    if ty.columns % heads != 0 {
        let d = Diagnostic::error(
            codes::NOT_DIVISIBLE,
            b.span_of("heads"),
            format!("{} columns cannot be shared by {heads} heads", ty.columns),
        )
        .label(format!("does not divide {}", ty.columns))
        .also(b.span_of("q"), format!("has {} columns", ty.columns));
        return Err(c.push(d));
    }
    Ok((args.into_iter().map(|a| a.0).collect(), ty, heads))
}
