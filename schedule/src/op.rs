//! Operations of a schedule: what they do, what they read and write.
//!
//! Operands are short texts: `b3` is a buffer, `b3[64:128]` a range of its columns, `p`, `g`, `t`, `i`, `l` name
//! parameters, their gradients, tables, inputs of the batch and offsets of a length group. A written operand that
//! ends in `+` is added into instead of overwritten.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::{Cost, Engine};
use crate::size::{ParseError, Symbol, as_text, decimal};

/// One operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Op {
    /// Unique within its program, tells where it comes from: `layers.0.uvqk.linear`.
    pub name: String,
    /// What it does.
    pub action: Action,
    /// Operands read, in the order of [`Action`]'s documentation.
    pub reads: Vec<Operand>,
    /// Operands written, likewise.
    pub writes: Vec<Operand>,
    /// What executes it.
    pub engine: Engine,
    /// Batch offset: an operation of stage s in step n works on batch n + s.
    pub stage: i32,
    /// What must have finished.
    pub deps: Vec<Dep>,
    /// Greater goes first among the ready ones of an engine.
    pub priority: i32,
    /// Bytes after which a transfer lets an urgent one pass; `None` is one piece.
    pub chunk: Option<u64>,
    /// Expected work.
    pub cost: Cost,
    /// Why it stands here.
    pub reason: String,
}

/// A dependency on an operation of the same program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Dep {
    /// Its position in the list.
    pub op: u32,
    /// 0: the instance of the same step; d: the one of d steps before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub distance: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// Storage of intermediate values: a matrix whose rows are a symbol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Buffer {
    /// Value that it holds.
    pub name: String,
    /// Type of its elements.
    pub element: Element,
    /// Number of rows.
    pub rows: Extent,
    /// Number of columns.
    pub columns: u32,
    /// Buffers of one element type with the same slot share memory; their lifetimes do not overlap.
    pub slot: u32,
    /// First operation that uses it.
    pub first: u32,
    /// Last operation that uses it.
    pub last: u32,
}

/// Element types of buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Element {
    /// The training precision (f32).
    Real,
    /// Row ids of a whole table (i64).
    Id,
    /// Positions in another buffer, or rows of a shard (u32).
    Index,
    /// Numbers of entries per rank (u64).
    Count,
}

/// Number of rows of a buffer: a symbol or a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Extent {
    /// Known when a batch arrives.
    Symbol(Symbol),
    /// Always the same.
    Fixed(u32),
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Symbol(s) => write!(f, "{s}"),
            Self::Fixed(n) => write!(f, "{n}"),
        }
    }
}

impl FromStr for Extent {
    type Err = ParseError;
    fn from_str(s: &str) -> Result<Self, ParseError> {
        match decimal(s) {
            Some(n) => Ok(Self::Fixed(n)),
            None => s.parse().map(Self::Symbol).map_err(|_| ParseError::new(s, "number of rows")),
        }
    }
}

as_text!(Extent, "Extent", r"^([0-9]+|[WB]|[TQUR][0-9]+)$");

/// What an operation reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Operand {
    /// The thing.
    pub place: Place,
    /// A range of a buffer's columns `[start, end)`; `None` is all.
    pub columns: Option<(u32, u32)>,
    /// Written operands only: add to what is there.
    pub accumulate: bool,
}

/// Things that operands name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// `b<n>`: a buffer of the program.
    Buffer(u32),
    /// `p<n>`: a dense parameter.
    Parameter(u32),
    /// `g<n>`: its gradient.
    Gradient(u32),
    /// `t<n>`: this rank's shard of a table with its optimizer state.
    Table(u32),
    /// `i<n>`: an input of the batch.
    Input(u32),
    /// `l<n>`: offsets of a length group (samples + 1 numbers, from 0 to the tokens).
    Lengths(u32),
}

impl Operand {
    /// The whole of a place.
    pub fn new(place: Place) -> Self {
        Self { place, columns: None, accumulate: false }
    }
    /// A whole buffer.
    pub fn buffer(id: u32) -> Self {
        Self::new(Place::Buffer(id))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Buffer(n) => write!(f, "b{n}"),
            Self::Parameter(n) => write!(f, "p{n}"),
            Self::Gradient(n) => write!(f, "g{n}"),
            Self::Table(n) => write!(f, "t{n}"),
            Self::Input(n) => write!(f, "i{n}"),
            Self::Lengths(n) => write!(f, "l{n}"),
        }
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.place)?;
        if let Some((start, end)) = self.columns {
            write!(f, "[{start}:{end}]")?;
        }
        if self.accumulate { write!(f, "+") } else { Ok(()) }
    }
}

impl FromStr for Operand {
    type Err = ParseError;
    fn from_str(s: &str) -> Result<Self, ParseError> {
        let fail = || ParseError::new(s, "operand");
        let (rest, accumulate) = s.strip_suffix('+').map_or((s, false), |r| (r, true));
        let (name, columns) = match rest.strip_suffix(']') {
            None => (rest, None),
            Some(rest) => {
                let (name, range) = rest.split_once('[').ok_or_else(fail)?;
                let (start, end) = range.split_once(':').ok_or_else(fail)?;
                (name, Some((decimal(start).ok_or_else(fail)?, decimal(end).ok_or_else(fail)?)))
            }
        };
        let head = name.chars().next().ok_or_else(fail)?;
        let n = decimal(&name[head.len_utf8()..]).ok_or_else(fail)?;
        let place = match head {
            'b' => Place::Buffer(n),
            'p' => Place::Parameter(n),
            'g' => Place::Gradient(n),
            't' => Place::Table(n),
            'i' => Place::Input(n),
            'l' => Place::Lengths(n),
            _ => return Err(fail()),
        };
        Ok(Self { place, columns, accumulate })
    }
}

as_text!(Operand, "Operand", r"^[bpgtil][0-9]+(\[[0-9]+:[0-9]+\])?\+?$");

/// Pointwise functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Function {
    /// x * sigmoid(x)
    Silu,
    /// max(x, 0)
    Relu,
    /// x * Phi(x)
    Gelu,
    /// 1 / (1 + exp(-x))
    Sigmoid,
}

/// How pooling reduces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PoolMode {
    /// Sum.
    Sum,
    /// Sum divided by the number of ids; zeros for none.
    Mean,
}

/// What a loss is divided by, counted over the global batch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Normalize {
    /// A constant.
    Constant(f64),
    /// Samples.
    Samples,
    /// Tokens of a length group.
    Tokens(u32),
}

/// What an operation does. `reads -> writes` in each variant's text; `x?` is there if the flag says so.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// Makes this rank's share of the batch current. `-> `
    LoadBatch,
    /// Uniform ids per token, keyed by seed, step, sample and draw. `-> ids[tokens, count]`
    DrawNegatives {
        /// Table.
        table: u32,
        /// Length group of the tokens.
        lengths: u32,
        /// Ids per token.
        count: u32,
        /// Random stream.
        stream: u32,
    },
    /// Entries to ask for, sorted by owner, and where each id's entry stands.
    /// `ids... (inputs or id buffers) -> entries (Id, U), counts (Count, W), inverse... (Index, like each ids)`
    Unique {
        /// Exchange.
        exchange: u32,
    },
    /// Input dist. `entries, counts -> rows of the own shard (Index, R), received counts (Count, W)`
    AllToAllIds {
        /// Exchange.
        exchange: u32,
    },
    /// Lookup at the owner. `table, rows (Index, R) -> y (Real, R x dim)`
    Gather,
    /// Output dist. `y (R x dim), received counts, counts -> rows (Real, U x dim)`
    AllToAllRows {
        /// Exchange.
        exchange: u32,
    },
    /// `rows (U x dim), inverse -> y (tokens x dim)`
    Expand,
    /// Sums per entry in position order. `gy, inverse -> grows (U x dim)`
    ExpandGrad,
    /// `rows (U x dim), inverse, offsets -> y (samples x dim)`
    Pool {
        /// Sum or mean.
        mode: PoolMode,
    },
    /// `gy (samples x dim), inverse, offsets -> grows (U x dim)`
    PoolGrad {
        /// Sum or mean.
        mode: PoolMode,
    },
    /// Gradient dist. `grows (U x dim), counts, received counts -> received gradients (R x dim)`
    AllToAllGrads {
        /// Exchange.
        exchange: u32,
    },
    /// Sums received gradients per row (within a source in position order, then in rank order) and updates.
    /// `rows (Index, R), received counts, received gradients (R x dim) -> table`
    Apply,
    /// Dense input features. `input -> y (samples x width)`
    Dense,
    /// `x, weight, bias? -> y`
    Linear {
        /// With bias.
        bias: bool,
    },
    /// `gy, weight -> gx`
    LinearGradInput,
    /// `gy, x -> gweight, gbias?`
    LinearGradWeight {
        /// With bias.
        bias: bool,
    },
    /// `x, (weight, bias)? -> y, stats (rows x 2: mean, 1 / deviation)`
    LayerNorm {
        /// With weight and bias.
        affine: bool,
        /// Added to the variance.
        eps: f64,
    },
    /// `x, weight?, stats, gy -> gx, (gweight, gbias)?`
    LayerNormGrad {
        /// With weight and bias.
        affine: bool,
    },
    /// `x -> y`
    Unary {
        /// Which.
        function: Function,
    },
    /// `x, gy -> gx`
    UnaryGrad {
        /// Which.
        function: Function,
    },
    /// Over the columns. `x -> y`
    Softmax,
    /// `y, gy -> gx`
    SoftmaxGrad,
    /// `x... -> y`
    Add,
    /// `x, y -> x * y`
    Mul,
    /// `x, y, gz -> gx, gy`
    MulGrad,
    /// `x -> factor * x`
    Scale {
        /// The constant.
        factor: f64,
    },
    /// `x -> y`
    Copy,
    /// Zeros. `-> y`
    Zero,
    /// `x, offsets, weight (max length x dim) -> y`
    Positional,
    /// `gy, offsets -> gweight`
    PositionalGrad,
    /// The mask depends on seed, step, sample, position and column only. `x -> y`
    Dropout {
        /// Probability of zero.
        p: f64,
        /// Random stream.
        stream: u32,
    },
    /// The same mask. `gy -> gx`
    DropoutGrad {
        /// Probability of zero.
        p: f64,
        /// Random stream.
        stream: u32,
    },
    /// `x -> y, norms (rows x 1)`
    L2Normalize {
        /// Lower bound of the divisor.
        eps: f64,
    },
    /// `y, norms, gy -> gx`
    L2NormalizeGrad {
        /// Lower bound of the divisor.
        eps: f64,
    },
    /// `q, k, v, offsets -> y`
    SiluAttention {
        /// Heads.
        heads: u32,
    },
    /// `q, k, v, offsets, gy -> gq, gk, gv`
    SiluAttentionGrad {
        /// Heads.
        heads: u32,
    },
    /// `q, k, v, offsets -> y, stats (rows x heads: log of the sum of exponentials)`
    SoftmaxAttention {
        /// Heads.
        heads: u32,
        /// Mask later positions.
        causal: bool,
    },
    /// `q, k, v, y, stats, offsets, gy -> gq, gk, gv`
    SoftmaxAttentionGrad {
        /// Heads.
        heads: u32,
        /// Mask later positions.
        causal: bool,
    },
    /// `x... -> y (pairs)`
    DotInteraction,
    /// `x..., gy -> gx...`
    DotInteractionGrad,
    /// `logits (rows x 1), labels -> loss (1 x 1), glogits (rows x 1)`
    BceWithLogits {
        /// Divisor of the sum.
        normalize: Normalize,
    },
    /// `h, rows (U x dim), inverse of targets, inverse of negatives -> loss (1 x 1), gscores (tokens x 1 + negatives)`
    SampledSoftmax {
        /// Negatives per token.
        negatives: u32,
        /// Scores are divided by this.
        temperature: f64,
        /// Divisor of the sum.
        normalize: Normalize,
    },
    /// `h, rows, inverse of targets, inverse of negatives, gscores -> gh, grows`
    SampledSoftmaxGrad {
        /// Negatives per token.
        negatives: u32,
    },
    /// Sum over ranks in rank order. `gradients... -> the same`
    AllReduce,
    /// Optimizer of dense parameters. `gradients... -> their parameters`
    DenseUpdate,
    /// Evaluation: scores of every row of the table for each sample's last token, ranked. `h, offsets, table ->`
    RankItems {
        /// l2-normalise h and rows first.
        cosine: bool,
    },
}
