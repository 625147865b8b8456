//! Losses: one number for the global batch.

use super::Primitive;
use super::embedding::needs_tokens;
use crate::check::{Bound, Checker, Failed, Val};
use crate::checked::{Normalize, Op, Rows, Type};
use crate::codes;
use crate::diagnostic::Diagnostic;
use crate::signature::{Param, ParamKind};

const SCALAR: Type = Type { rows: Rows::One, columns: 1 };
const NORMALIZE: Param = Param::required(
    "normalize",
    ParamKind::Normalize,
    "What the sum over rows is divided by; tokens and samples are those of the global batch.",
);

pub(super) const ALL: &[Primitive] = &[
    Primitive {
        name: "bce_with_logits",
        params: &[
            Param::required("logits", ParamKind::Value, "One column."),
            Param::required("labels", ParamKind::Label, "A label for each of its rows."),
            NORMALIZE,
        ],
        result: "a loss",
        doc: "Binary cross-entropy of the logits against labels between 0 and 1, summed over rows and divided by `normalize`.",
        apply: bce,
    },
    Primitive {
        name: "sampled_softmax",
        params: &[
            Param::required(
                "x",
                ParamKind::Value,
                "What is scored against rows of the table; as wide as they are.",
            ),
            Param::required("table", ParamKind::Table, "The table whose rows are the classes."),
            Param::required("target", ParamKind::Sequence, "The true class of each token."),
            Param::required(
                "negatives",
                ParamKind::POSITIVE,
                "Negatives per token, drawn uniformly with replacement; one that equals the target is left out.",
            ),
            Param::default("temperature", ParamKind::ABOVE_ZERO, "1", "Scores are divided by this."),
            Param::default(
                "similarity",
                ParamKind::Choice(&["dot", "cosine"]),
                "dot",
                "Score: the dot product, or that of l2-normalised rows.",
            ),
            NORMALIZE,
        ],
        result: "a loss",
        doc: "Cross-entropy of the true class against sampled others, summed over tokens and divided by `normalize`.",
        apply: sampled_softmax,
    },
];

fn bce(c: &mut Checker<'_>, b: &Bound) -> Result<Val, Failed> {
    let (logits, labels) = (b.value("logits")?, b.input("labels")?);
    let ty = c.ty(logits);
    let at = b.span_of("logits");
    if ty.columns != 1 || ty.rows == Rows::One {
        let words = c.type_words(ty);
        let d = Diagnostic::error(codes::COLUMNS_DIFFER, at, "logits have one column")
            .label(format!("this is `{words}`"))
            .help("`linear(x, 1)` makes one");
        return Err(c.push(d));
    }
    let rows = c.group_of(labels).map_or(Rows::Samples, Rows::Tokens);
    if rows != ty.rows {
        let words = c.type_words(ty);
        let wanted = c.type_words(Type { rows, columns: 1 });
        let d = Diagnostic::error(
            codes::ROWS_DIFFER,
            b.span_of("labels"),
            "there is not one label for each logit",
        )
        .label(format!("`{wanted}`"))
        .also(at, format!("`{words}`"));
        return Err(c.push(d));
    }
    let normalize = normalize(c, b, ty)?;
    Ok(c.node1(Op::BceWithLogits { labels, normalize }, vec![logits], SCALAR, b.span))
}

fn normalize(c: &mut Checker<'_>, b: &Bound, ty: Type) -> Result<Normalize, Failed> {
    let n = b.normalize("normalize")?;
    if n == Normalize::Tokens && ty.rows == Rows::Samples {
        let d =
            Diagnostic::error(codes::WRONG_ROWS, b.span_of("normalize"), "this loss has no tokens to count")
                .label("it has a row per sample")
                .help("divide by `samples`");
        return Err(c.push(d));
    }
    Ok(n)
}

fn sampled_softmax(c: &mut Checker<'_>, b: &Bound) -> Result<Val, Failed> {
    let (x, table, target) = (b.value("x")?, b.table("table")?, b.input("target")?);
    let ty = c.ty(x);
    let Rows::Tokens(group) = ty.rows else {
        return Err(needs_tokens(c, "sampled_softmax", ty, b.span_of("x")));
    };
    let words = c.type_words(ty);
    let (name, dim) = {
        let t = &c.model.tables[table.index()];
        (t.name.clone(), t.dim)
    };
    if ty.columns != dim {
        let d = Diagnostic::error(
            codes::COLUMNS_DIFFER,
            b.span_of("x"),
            format!("rows of `{name}` have {dim} columns"),
        )
        .label(format!("this is `{words}`"));
        return Err(c.push(d));
    }
    if c.table_of(target) != Some(table) {
        let other = c.table_of(target).map_or(String::new(), |t| c.model.tables[t.index()].name.clone());
        let d = Diagnostic::error(
            codes::TABLE_MISMATCH,
            b.span_of("target"),
            format!("the targets are rows of `{other}`, the classes rows of `{name}`"),
        )
        .label(format!("rows of `{other}`"))
        .also(b.span_of("table"), "the classes");
        return Err(c.push(d));
    }
    if c.group_of(target) != Some(group) {
        let rows = c.group_of(target).map_or(Rows::Samples, Rows::Tokens);
        let wanted = c.type_words(Type { rows, columns: 1 });
        let d = Diagnostic::error(
            codes::ROWS_DIFFER,
            b.span_of("target"),
            "there is not one target for each token",
        )
        .label(format!("`{wanted}`"))
        .also(b.span_of("x"), format!("`{words}`"));
        return Err(c.push(d));
    }
    let op = Op::SampledSoftmax {
        table,
        target,
        negatives: b.count("negatives")? as u32,
        temperature: b.number("temperature")?,
        cosine: b.choice("similarity")? == "cosine",
        normalize: normalize(c, b, ty)?,
    };
    Ok(c.node1(op, vec![x], SCALAR, b.span))
}
