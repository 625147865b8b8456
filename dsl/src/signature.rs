//! Signatures: what primitives, settings and constructors such as `normal(0, 0.02)` take.
//!
//! One description serves checking, suggestions and documentation.

use crate::units::Dimension;

/// A parameter of a primitive or constructor, or a setting of a keyword.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Param {
    /// As written in front of the colon, or as a setting.
    pub name: &'static str,
    /// What it takes.
    pub kind: ParamKind,
    /// What happens without it.
    pub need: Need,
    /// One sentence.
    pub doc: &'static str,
}

/// What happens if a parameter is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// An error.
    Required,
    /// Something that the description explains.
    Optional,
    /// This value is taken.
    Default(&'static str),
}

/// What a parameter takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ParamKind {
    /// A value of the graph.
    Value,
    /// Any number of values, all remaining arguments without a name.
    Values,
    /// A table.
    Table,
    /// An `ids` input.
    Ids,
    /// An `ids` or `next` input.
    Sequence,
    /// A `dense` input.
    DenseInput,
    /// A `label` input.
    Label,
    /// A whole number.
    Count {
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
    },
    /// A whole number, or `auto`.
    CountOrAuto {
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
    },
    /// A number in a range.
    Number {
        /// Lower end.
        min: f64,
        /// Upper end.
        max: f64,
        /// Whether the ends are left out.
        open: bool,
    },
    /// A number with a unit.
    Quantity(Dimension),
    /// `on` or `off`, `true` or `false`.
    Switch,
    /// One of some words.
    Choice(&'static [&'static str]),
    /// A string.
    Text,
    /// The name of a layer, as a string.
    LayerName,
    /// A number of equal parts, or a list of sizes.
    Parts,
    /// A list of widths.
    Widths,
    /// What a loss is divided by: `tokens`, `samples` or a number.
    Normalize,
    /// Initial values.
    Init,
    /// A sparse optimizer.
    SparseOptimizer,
    /// A dense optimizer.
    DenseOptimizer,
    /// A distribution of lengths.
    Lengths,
    /// A distribution of ids.
    IdDistribution,
    /// A distribution of labels.
    LabelDistribution,
    /// `auto`, `on`, `off` or `cost(c0, c1, c2)`.
    Balance,
    /// A number of tokens, or an amount of memory.
    Limit,
    /// A placement of a table.
    Sharding,
}

impl ParamKind {
    /// A whole number from 1.
    pub(crate) const POSITIVE: ParamKind = ParamKind::Count { min: 1, max: 1 << 20 };
    /// A number above 0.
    pub(crate) const ABOVE_ZERO: ParamKind = ParamKind::Number { min: 0.0, max: f64::INFINITY, open: true };
    /// A number from 0.
    pub(crate) const NOT_NEGATIVE: ParamKind =
        ParamKind::Number { min: 0.0, max: f64::INFINITY, open: false };
    /// Any finite number.
    pub(crate) const ANY: ParamKind =
        ParamKind::Number { min: f64::NEG_INFINITY, max: f64::INFINITY, open: true };

    /// Words for messages and documentation.
    pub(crate) fn words(self) -> String {
        match self {
            ParamKind::Value => "a value of the graph".into(),
            ParamKind::Values => "values of the graph".into(),
            ParamKind::Table => "a table".into(),
            ParamKind::Ids => "an `ids` input".into(),
            ParamKind::Sequence => "an `ids` or `next` input".into(),
            ParamKind::DenseInput => "a `dense` input".into(),
            ParamKind::Label => "a `label` input".into(),
            ParamKind::Count { min, max } if max == u64::MAX || max >= 1 << 40 => {
                format!("a whole number from {min}")
            }
            ParamKind::Count { min, max } => format!("a whole number from {min} to {max}"),
            ParamKind::CountOrAuto { min, max } => {
                format!("{}, or `auto`", ParamKind::Count { min, max }.words())
            }
            ParamKind::Number { min, max, open } => number_words(min, max, open),
            ParamKind::Quantity(d) => d.words().into(),
            ParamKind::Switch => "`on` or `off`".into(),
            ParamKind::Choice(words) => crate::diagnostic::alternatives(words.iter().copied()),
            ParamKind::Text => "a string in quotes".into(),
            ParamKind::LayerName => "a name in quotes".into(),
            ParamKind::Parts => "a number of equal parts, or a list of sizes such as `[64, 32]`".into(),
            ParamKind::Widths => "a list of widths such as `[512, 256, 64]`".into(),
            ParamKind::Normalize => "`tokens`, `samples` or a number".into(),
            ParamKind::Init => "initial values, such as `normal(0, 0.02)`".into(),
            ParamKind::SparseOptimizer => "a sparse optimizer, such as `rowwise_adagrad(lr: 0.05)`".into(),
            ParamKind::DenseOptimizer => "a dense optimizer, such as `adam(lr: 1e-3)`".into(),
            ParamKind::Lengths => {
                "a distribution of lengths, such as `lognormal(mean: 200, sigma: 1)`".into()
            }
            ParamKind::IdDistribution => "a distribution of ids, such as `zipf(1.05)`".into(),
            ParamKind::LabelDistribution => "a distribution of labels, such as `hash`".into(),
            ParamKind::Balance => "`auto`, `on`, `off` or `cost(c0, c1, c2)`".into(),
            ParamKind::Limit => "an amount of tokens or memory, such as `4096 tokens` or `64 KiB`".into(),
            ParamKind::Sharding => {
                "`auto`, `row_wise`, `row_wise(placement: hashed)`, `table_wise`, `column_wise` or `data_parallel`".into()
            }
        }
    }
}

fn number_words(min: f64, max: f64, open: bool) -> String {
    match (min.is_finite(), max.is_finite(), open) {
        (false, _, _) => "a number".into(),
        (true, false, true) => format!("a number above {min}"),
        (true, false, false) => format!("a number from {min}"),
        (true, true, true) => format!("a number between {min} and {max}"),
        (true, true, false) => format!("a number from {min}, below {max}"),
    }
}

impl Param {
    /// A required parameter.
    pub(crate) const fn required(name: &'static str, kind: ParamKind, doc: &'static str) -> Self {
        Self { name, kind, need: Need::Required, doc }
    }

    /// A parameter that may be left out.
    pub(crate) const fn optional(name: &'static str, kind: ParamKind, doc: &'static str) -> Self {
        Self { name, kind, need: Need::Optional, doc }
    }

    /// A parameter with a default.
    pub(crate) const fn default(
        name: &'static str,
        kind: ParamKind,
        default: &'static str,
        doc: &'static str,
    ) -> Self {
        Self { name, kind, need: Need::Default(default), doc }
    }
}
