//! Constructors: initial values, optimizers, distributions. One line each in a table.

use crate::check::{Bound, Failed};
use crate::checked::{
    Balance, Balancing, DenseOptimizer, IdDistribution, Init, LabelDistribution, LengthDistribution,
    Placement, Sharding, SparseOptimizer,
};
use crate::signature::{Param, ParamKind};

/// Arguments that do not fit together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Misfit {
    #[error("`low` must be below `high`")]
    LowNotBelowHigh,
    #[error("`min` must not be above `max`")]
    MinAboveMax,
    #[error("`mean` must lie between `min` and `max`")]
    MeanOutside,
}

/// A constructor. The inner error is of arguments that are each what they should be.
pub(crate) struct Maker<T: 'static> {
    /// As written.
    pub(crate) name: &'static str,
    /// Its parameters.
    pub(crate) params: &'static [Param],
    /// One sentence.
    pub(crate) doc: &'static str,
    /// Builds it.
    pub(crate) make: fn(&Bound) -> Result<Result<T, Misfit>, Failed>,
}

/// Initial values of tables and dense parameters.
pub(crate) const INITS: &[Maker<Init>] = &[
    Maker { name: "zeros", params: &[], doc: "All zero.", make: |_| Ok(Ok(Init::Zeros)) },
    Maker { name: "ones", params: &[], doc: "All one.", make: |_| Ok(Ok(Init::Constant(1.0))) },
    Maker {
        name: "constant",
        params: &[Param::required("value", ParamKind::ANY, "The value.")],
        doc: "All one value.",
        make: |b| Ok(Ok(Init::Constant(b.number("value")?))),
    },
    Maker {
        name: "normal",
        params: &[
            Param::required("mean", ParamKind::ANY, "Mean."),
            Param::required("std", ParamKind::NOT_NEGATIVE, "Standard deviation."),
        ],
        doc: "Gaussian.",
        make: |b| Ok(Ok(Init::Normal { mean: b.number("mean")?, std: b.number("std")? })),
    },
    Maker {
        name: "uniform",
        params: &[
            Param::required("low", ParamKind::ANY, "Lower end."),
            Param::required("high", ParamKind::ANY, "Upper end, above the lower one."),
        ],
        doc: "Uniform from `low` up to, but without, `high`.",
        make: |b| {
            let (low, high) = (b.number("low")?, b.number("high")?);
            Ok(if low < high { Ok(Init::Uniform { low, high }) } else { Err(Misfit::LowNotBelowHigh) })
        },
    },
    Maker {
        name: "xavier_uniform",
        params: &[],
        doc: "Uniform in +-sqrt(6 / (fan_in + fan_out)) (Glorot).",
        make: |_| Ok(Ok(Init::XavierUniform)),
    },
    Maker {
        name: "xavier_normal",
        params: &[],
        doc: "Gaussian with variance 2 / (fan_in + fan_out) (Glorot).",
        make: |_| Ok(Ok(Init::XavierNormal)),
    },
    Maker {
        name: "kaiming_uniform",
        params: &[],
        doc: "Uniform in +-1 / sqrt(fan_in): PyTorch's default for linear layers, biases included.",
        make: |_| Ok(Ok(Init::KaimingUniform)),
    },
    Maker {
        name: "hash",
        params: &[Param::required("scale", ParamKind::ABOVE_ZERO, "Half the width of the range.")],
        doc: "A hash of row, column and table in +-scale: the same values in any language.",
        make: |b| Ok(Ok(Init::Hash { scale: b.number("scale")? })),
    },
];

const LR: Param = Param::required("lr", ParamKind::ABOVE_ZERO, "Learning rate.");
const DECAY: ParamKind = ParamKind::Number { min: 0.0, max: 1.0, open: false };
const BETA1: Param = Param::default("beta1", DECAY, "0.9", "Decay of the first moment.");
const BETA2: Param = Param::default("beta2", DECAY, "0.999", "Decay of the second moment.");
const EPS8: Param = Param::default("eps", ParamKind::NOT_NEGATIVE, "1e-8", "Added to the root.");
const WEIGHT_DECAY: Param =
    Param::default("weight_decay", ParamKind::NOT_NEGATIVE, "0", "L2 penalty added to the gradient.");

/// Optimizers of tables.
pub(crate) const SPARSE: &[Maker<SparseOptimizer>] = &[
    Maker {
        name: "sgd",
        params: &[LR],
        doc: "`w -= lr * g`.",
        make: |b| Ok(Ok(SparseOptimizer::Sgd { lr: b.number("lr")? })),
    },
    Maker {
        name: "rowwise_adagrad",
        params: &[LR, EPS8],
        doc: "One state value per row: the running sum of the row's mean squared gradient.",
        make: |b| Ok(Ok(SparseOptimizer::RowwiseAdagrad { lr: b.number("lr")?, eps: b.number("eps")? })),
    },
    Maker {
        name: "adagrad",
        params: &[LR, Param::default("eps", ParamKind::NOT_NEGATIVE, "1e-10", "Added to the root.")],
        doc: "One state value per element.",
        make: |b| Ok(Ok(SparseOptimizer::Adagrad { lr: b.number("lr")?, eps: b.number("eps")? })),
    },
    Maker {
        name: "adam",
        params: &[LR, BETA1, BETA2, EPS8],
        doc: "Moments of the touched rows only, as PyTorch's SparseAdam.",
        make: |b| {
            Ok(Ok(SparseOptimizer::Adam {
                lr: b.number("lr")?,
                beta1: b.number("beta1")?,
                beta2: b.number("beta2")?,
                eps: b.number("eps")?,
            }))
        },
    },
];

/// Optimizers of dense parameters.
pub(crate) const DENSE: &[Maker<DenseOptimizer>] = &[
    Maker {
        name: "sgd",
        params: &[LR, Param::default("momentum", DECAY, "0", "Momentum as in PyTorch."), WEIGHT_DECAY],
        doc: "`w -= lr * g`, with momentum.",
        make: |b| {
            Ok(Ok(DenseOptimizer::Sgd {
                lr: b.number("lr")?,
                momentum: b.number("momentum")?,
                weight_decay: b.number("weight_decay")?,
            }))
        },
    },
    Maker {
        name: "adam",
        params: &[LR, BETA1, BETA2, EPS8, WEIGHT_DECAY],
        doc: "PyTorch's Adam.",
        make: |b| {
            Ok(Ok(DenseOptimizer::Adam {
                lr: b.number("lr")?,
                beta1: b.number("beta1")?,
                beta2: b.number("beta2")?,
                eps: b.number("eps")?,
                weight_decay: b.number("weight_decay")?,
            }))
        },
    },
];

const LENGTH: ParamKind = ParamKind::Count { min: 0, max: 1 << 20 };
/// Beyond it nearly every length is the shortest or the longest.
const SIGMA: ParamKind = ParamKind::Number { min: 0.0, max: 10.0, open: false };
/// Beyond it nearly every id is the first; 0 is `uniform`.
const EXPONENT: ParamKind = ParamKind::Number { min: 0.0, max: 10.0, open: true };

/// Distributions of lengths.
pub(crate) const LENGTHS: &[Maker<LengthDistribution>] = &[
    Maker {
        name: "fixed",
        params: &[Param::required("length", ParamKind::POSITIVE, "The length.")],
        doc: "All equal.",
        make: |b| Ok(Ok(LengthDistribution::Fixed(b.count("length")? as u32))),
    },
    Maker {
        name: "uniform",
        params: &[
            Param::required("min", LENGTH, "Shortest."),
            Param::required("max", ParamKind::POSITIVE, "Longest, itself possible."),
        ],
        doc: "Uniform from `min` to `max`, both included.",
        make: |b| {
            let (min, max) = (b.count("min")? as u32, b.count("max")? as u32);
            Ok(if min <= max {
                Ok(LengthDistribution::Uniform { min, max })
            } else {
                Err(Misfit::MinAboveMax)
            })
        },
    },
    Maker {
        name: "lognormal",
        params: &[
            Param::required("mean", ParamKind::ABOVE_ZERO, "Mean after clipping."),
            Param::required("sigma", SIGMA, "Standard deviation of the logarithm."),
            Param::default("min", LENGTH, "1", "Shortest."),
            Param::optional("max", ParamKind::POSITIVE, "Longest; without it the input's own maximum."),
        ],
        doc: "Lognormal, clipped to `min` and `max`, with the given mean after clipping.",
        make: |b| {
            let min = b.count("min")? as u32;
            let max = if b.has("max") { Some(b.count("max")? as u32) } else { None };
            let mean = b.number("mean")?;
            Ok(if f64::from(min) > mean || max.is_some_and(|m| f64::from(m) < mean) {
                Err(Misfit::MeanOutside)
            } else {
                Ok(LengthDistribution::Lognormal { mean, sigma: b.number("sigma")?, min, max })
            })
        },
    },
];

/// Distributions of ids.
pub(crate) const IDS: &[Maker<IdDistribution>] = &[
    Maker {
        name: "uniform",
        params: &[],
        doc: "Uniform over the table.",
        make: |_| Ok(Ok(IdDistribution::Uniform)),
    },
    Maker {
        name: "zipf",
        params: &[
            Param::required("exponent", EXPONENT, "Exponent of the law."),
            Param::default(
                "numbered",
                ParamKind::Choice(&["at_random", "by_popularity"]),
                "at_random",
                "Which rows are popular: those of a permutation, or those with low numbers.",
            ),
        ],
        doc: "Zipf's law over a permutation of the table, or over its rows in their order.",
        make: |b| {
            let exponent = b.number("exponent")?;
            Ok(Ok(match b.choice("numbered")? {
                "by_popularity" => IdDistribution::PopularityZipf(exponent),
                _ => IdDistribution::Zipf(exponent),
            }))
        },
    },
];

/// Distributions of labels.
pub(crate) const LABELS: &[Maker<LabelDistribution>] = &[
    Maker {
        name: "hash",
        params: &[],
        doc: "A hash bit of the first id sequence's id: learnable.",
        make: |_| Ok(Ok(LabelDistribution::Hash)),
    },
    Maker {
        name: "bernoulli",
        params: &[Param::required("p", DECAY, "Probability of 1.")],
        doc: "1 with the given probability.",
        make: |b| Ok(Ok(LabelDistribution::Bernoulli(b.number("p")?))),
    },
];

const FIT: Param = Param::default(
    "fit",
    ParamKind::Switch,
    "off",
    "While training, costs follow the times that ranks measure. Two runs then plan otherwise and differ in the last bits.",
);

const LIMIT: Param = Param::optional(
    "limit",
    ParamKind::Limit,
    "What the samples of a rank may take up together: ids of all sequences, or bytes of ids, features and labels (4 a number). A batch for which that cannot be kept ends the run and is named.",
);
const EQUAL_COUNTS: Param = Param::default(
    "equal_counts",
    ParamKind::Switch,
    "off",
    "Every rank works on as many samples as it reads.",
);

/// Samples go to the ranks that have least to do.
fn balance(b: &Bound, cost: Option<[f64; 3]>) -> Result<Balancing, Failed> {
    let limit = if b.has("limit") { Some(b.limit("limit")?) } else { None };
    Ok(Balancing::On(Balance { cost, limit, equal_counts: b.switch("equal_counts")?, fit: b.switch("fit")? }))
}

/// Sample balancing.
pub(crate) const BALANCE: &[Maker<Balancing>] = &[
    Maker {
        name: "auto",
        params: &[],
        doc: "As `on`, where lengths are known to differ and a step is expected to be shorter by 1% at least; else as `off`.",
        make: |_| Ok(Ok(Balancing::Auto)),
    },
    Maker { name: "off", params: &[], doc: "Samples stay where they are.", make: |_| Ok(Ok(Balancing::Off)) },
    Maker {
        name: "on",
        params: &[LIMIT, EQUAL_COUNTS, FIT],
        doc: "Costs of samples are derived from the model.",
        make: |b| Ok(Ok(balance(b, None)?)),
    },
    Maker {
        name: "cost",
        params: &[
            Param::required("c0", ParamKind::NOT_NEGATIVE, "Per sample."),
            Param::required("c1", ParamKind::NOT_NEGATIVE, "Per token."),
            Param::required("c2", ParamKind::NOT_NEGATIVE, "Per pair of tokens."),
            LIMIT,
            EQUAL_COUNTS,
            FIT,
        ],
        doc: "A sample of length L costs `c0 + c1 L + c2 L^2`.",
        make: |b| {
            let cost = [b.number("c0")?, b.number("c1")?, b.number("c2")?];
            Ok(Ok(balance(b, Some(cost))?))
        },
    },
];

/// Placements of a table.
pub(crate) const SHARDINGS: &[Maker<Sharding>] = &[
    Maker {
        name: "auto",
        params: &[],
        doc: "The compiler chooses by memory, lookups and communication.",
        make: |_| Ok(Ok(Sharding::Auto)),
    },
    Maker {
        name: "row_wise",
        params: &[Param::optional(
            "placement",
            ParamKind::Choice(&["range", "hashed", "planned"]),
            "Which rows a rank owns: those that follow each other, those that a fixed permutation puts there, or the same with hot rows dealt out by counted use. Without it the compiler chooses `range` or `hashed`.",
        )],
        doc: "Each rank owns some rows.",
        make: |b| {
            let placement = if b.has("placement") {
                Some(match b.choice("placement")? {
                    "hashed" => Placement::Hashed,
                    "planned" => Placement::Planned,
                    _ => Placement::Range,
                })
            } else {
                None
            };
            Ok(Ok(Sharding::RowWise { placement }))
        },
    },
    Maker {
        name: "table_wise",
        params: &[],
        doc: "One rank owns the table.",
        make: |_| Ok(Ok(Sharding::TableWise)),
    },
    Maker {
        name: "column_wise",
        params: &[],
        doc: "Each rank owns some columns.",
        make: |_| Ok(Ok(Sharding::ColumnWise)),
    },
    Maker {
        name: "data_parallel",
        params: &[],
        doc: "Every rank holds a copy.",
        make: |_| Ok(Ok(Sharding::DataParallel)),
    },
];

/// Name, parameters and description of a constructor.
pub(crate) type Row = (&'static str, &'static [Param], &'static str);

fn rows<T>(makers: &'static [Maker<T>]) -> Vec<Row> {
    makers.iter().map(|m| (m.name, m.params, m.doc)).collect()
}

/// All constructors: the heading of each family, and its members.
pub(crate) fn families() -> [(&'static str, Vec<Row>); 8] {
    [
        ("Initial values", rows(INITS)),
        ("Sparse optimizers", rows(SPARSE)),
        ("Dense optimizers", rows(DENSE)),
        ("Distributions of lengths", rows(LENGTHS)),
        ("Distributions of ids", rows(IDS)),
        ("Distributions of labels", rows(LABELS)),
        ("Balancing", rows(BALANCE)),
        ("Shardings", rows(SHARDINGS)),
    ]
}

/// Names of all constructors; some stand in several families.
pub(crate) fn names() -> Vec<&'static str> {
    families().into_iter().flat_map(|f| f.1).map(|r| r.0).collect()
}

/// Whether a name is a constructor's.
pub(crate) fn is_maker(name: &str) -> bool {
    fn has<T>(makers: &[Maker<T>], name: &str) -> bool {
        makers.iter().any(|m| m.name == name)
    }
    has(INITS, name)
        || has(SPARSE, name)
        || has(DENSE, name)
        || has(LENGTHS, name)
        || has(IDS, name)
        || has(LABELS, name)
        || has(BALANCE, name)
        || has(SHARDINGS, name)
}
