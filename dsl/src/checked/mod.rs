//! What checking produces: a program whose names, types and shapes are resolved.
//!
//! User blocks are inlined, `repeat` is unrolled, every value has a type, every parameter a name that tells
//! where it came from (`layers.0.uvqk.weight`). The compiler reads nothing but this.
//! Nodes refer to earlier values only, so the list of nodes is already in a valid order.

mod settings;

pub use fs_workload::{DenseOptimizer, SparseOptimizer};

use crate::source::{SourceMap, Span};

pub use settings::{
    Balance, Balancing, Cluster, DataSource, Duration, Evaluate, IdDistribution, LabelDistribution,
    LengthDistribution, Limit, Link, Microbatches, Precision, Train, Workload,
};

/// A checked program: all blocks of a `.fs` file and of the files that it imports.
#[derive(Debug, Clone)]
pub struct Program {
    /// The texts that spans point into; the first is the file given by the user.
    pub sources: SourceMap,
    /// At most one model per program.
    pub model: Option<Model>,
    /// Training settings; defaults where the file has no `train` block.
    pub train: Train,
    /// Where samples come from.
    pub workload: Option<Workload>,
    /// Clusters declared in the files, in order. Presets are looked up with [`crate::cluster::preset`].
    pub clusters: Vec<Cluster>,
}

macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);
        impl $name {
            /// The position in the vector that this index belongs to.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}
index!(/** Index into [`Model::tables`]. */ TableId);
index!(/** Index into [`Model::inputs`]. */ InputId);
index!(/** Index into [`Model::lengths`]. */ LengthsId);
index!(/** Index into [`Model::params`]. */ ParamId);
index!(/** Index into [`Model::values`]. */ ValueId);

/// The model: tables, inputs and the dense graph down to one loss.
#[derive(Debug, Clone)]
pub struct Model {
    /// Name given in the file.
    pub name: String,
    /// Embedding tables.
    pub tables: Vec<Table>,
    /// Groups of sequences that share lengths.
    pub lengths: Vec<Lengths>,
    /// What a sample holds.
    pub inputs: Vec<Input>,
    /// Dense parameters in the order of their creation.
    pub params: Vec<Param>,
    /// Every value of the graph.
    pub values: Vec<Value>,
    /// The graph in a valid order. Nodes that the loss does not need have been reported as warnings, not dropped.
    pub nodes: Vec<Node>,
    /// The loss: a scalar value produced by one loss node.
    pub loss: ValueId,
    /// Where the `model` keyword stands.
    pub span: Span,
}

/// An embedding table.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// Unique name.
    pub name: String,
    /// Number of rows; ids are `0..rows`.
    pub rows: u64,
    /// Columns of a row.
    pub dim: u32,
    /// Values before training.
    pub init: Init,
    /// The sparse optimizer that updates its rows.
    pub optimizer: SparseOptimizer,
    /// How it is placed.
    pub sharding: Sharding,
    /// Type of the stored values.
    pub dtype: DType,
    /// The declaration.
    pub span: Span,
}

/// Placement of a table over ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharding {
    /// The compiler chooses.
    Auto,
    /// Each rank owns some rows; without a placement the compiler chooses which.
    RowWise {
        /// Which rows a rank owns.
        placement: Option<Placement>,
    },
    /// One rank owns the table.
    TableWise,
    /// Each rank owns a block of columns.
    ColumnWise,
    /// Every rank holds a copy, and every copy is updated with the gradients of all ranks, in rank order.
    DataParallel,
}

/// Which rows of a row-wise table a rank owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Those that follow each other.
    Range,
    /// Those that a fixed permutation puts there.
    Hashed,
    /// Hot rows are dealt to ranks by counted use, all others are hashed.
    Planned,
}

/// Storage and wire types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DType {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// Brain float.
    BF16,
    /// 8 bits, and a power of two for each 32 of a row (OCP Microscaling Formats 1.0): rows on their way, nothing else.
    MXINT8,
}

/// Values of a table or parameter before training, as written: some follow from the shape. Counter-based: every element depends on the seed, the
/// name of its owner, its row and its column, never on the rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// All zero.
    Zeros,
    /// All one value.
    Constant(f64),
    /// Gaussian.
    Normal {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        std: f64,
    },
    /// Uniform in `[low, high)`.
    Uniform {
        /// Lower end.
        low: f64,
        /// Upper end.
        high: f64,
    },
    /// Glorot: uniform in +-sqrt(6 / (fan_in + fan_out)).
    XavierUniform,
    /// Glorot: Gaussian with variance 2 / (fan_in + fan_out).
    XavierNormal,
    /// PyTorch's default for linear layers: uniform in +-1/sqrt(fan_in), weights and biases.
    KaimingUniform,
    /// A hash of row and column scaled to +-scale: the formula of the parity fixtures, the same in any language.
    /// The salt is the table's position among the model's tables.
    Hash {
        /// Half the width of the range.
        scale: f64,
    },
}

/// A group of sequences with the same lengths.
#[derive(Debug, Clone, PartialEq)]
pub struct Lengths {
    /// Name of the input that introduced it.
    pub name: String,
    /// Longer sequences are truncated to this.
    pub max: u32,
    /// Which end survives truncation.
    pub keep: Keep,
    /// The declaration.
    pub span: Span,
}

/// Truncation side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Keep the oldest ids.
    First,
    /// Keep the newest ids.
    Last,
}

/// Something a sample holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// Unique name.
    pub name: String,
    /// What it is.
    pub kind: InputKind,
    /// The declaration.
    pub span: Span,
}

/// Kinds of input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputKind {
    /// A jagged sequence of ids of one table.
    Ids {
        /// The table whose rows the ids name.
        table: TableId,
        /// Its lengths.
        lengths: LengthsId,
    },
    /// For every position of another id sequence the id that follows: what next-item prediction learns.
    /// A history of n + 1 ids becomes n pairs.
    Next {
        /// The sequence that it is the continuation of (an `Ids` input; same table, same lengths).
        of: InputId,
    },
    /// A fixed number of dense features per sample.
    Dense {
        /// Their number.
        width: u32,
    },
    /// One label per sample.
    SampleLabel,
    /// One label per token of a group.
    TokenLabel {
        /// The group.
        lengths: LengthsId,
    },
}

/// A dense parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct Param {
    /// Path of the layer that owns it and the parameter's role: `layers.0.uvqk.weight`.
    pub name: String,
    /// Rows and columns. Linear weights are `[out, in]`; vectors have one row.
    pub shape: [u32; 2],
    /// True for vectors (biases, norm weights), whose shape outside is `[columns]`.
    pub vector: bool,
    /// Values before training.
    pub init: Init,
    /// Where the layer stands.
    pub span: Span,
}

/// Type of a value: a matrix whose number of rows is a symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Type {
    /// What a row stands for.
    pub rows: Rows,
    /// Columns.
    pub columns: u32,
}

/// What a row of a value stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rows {
    /// One row in all: a scalar loss.
    One,
    /// One per sample.
    Samples,
    /// One per token of a group of sequences.
    Tokens(LengthsId),
}

/// A value of the graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    /// Name given by `let`, prefixed by its scope; empty for intermediate values.
    pub name: String,
    /// Its type.
    pub ty: Type,
}

/// An operation applied to values.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// What is computed.
    pub op: Op,
    /// Operands.
    pub args: Vec<ValueId>,
    /// Results (several for `split` only).
    pub results: Vec<ValueId>,
    /// The scope path, for example `layers.0`; empty at the top.
    pub scope: String,
    /// The expression.
    pub span: Span,
}

/// The primitives. Operands are in [`Node::args`]; tables, inputs and parameters are named here.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// No operands: rows of `table` for every id of `input`: `[tokens, dim]`.
    Lookup {
        /// The table.
        table: TableId,
        /// An `Ids` or `Next` input.
        input: InputId,
    },
    /// No operands: one row per sample, the sum or mean over its ids: `[samples, dim]`; empty sequences give zeros.
    Pool {
        /// The table.
        table: TableId,
        /// An `Ids` input.
        input: InputId,
        /// Sum or mean.
        mode: PoolMode,
    },
    /// No operands: dense features `[samples, width]`.
    Dense {
        /// A `Dense` input.
        input: InputId,
    },
    /// `x W^T + b`
    Linear {
        /// `[out, in]`
        weight: ParamId,
        /// `[out]`
        bias: Option<ParamId>,
    },
    /// Over the columns.
    LayerNorm {
        /// Scale.
        weight: Option<ParamId>,
        /// Shift.
        bias: Option<ParamId>,
        /// Added to the variance.
        eps: f64,
    },
    /// x * sigmoid(x)
    Silu,
    /// max(x, 0)
    Relu,
    /// x * Phi(x), the exact form
    Gelu,
    /// 1 / (1 + exp(-x))
    Sigmoid,
    /// Over the columns.
    Softmax,
    /// Sum of two or more values of one type.
    Add,
    /// Elementwise product of two values.
    Mul,
    /// Times a constant.
    Scale {
        /// The constant.
        factor: f64,
    },
    /// Into column ranges, one result each.
    Split {
        /// Columns of each result.
        sizes: Vec<u32>,
    },
    /// Of columns.
    Concat,
    /// Adds a row per position in the sequence: `x[t] + table[position(t)]`.
    Positional {
        /// `[max_len, dim]`
        weight: ParamId,
    },
    /// Off in evaluation. `stream` numbers the dropouts of the model, so that each draws its own mask.
    Dropout {
        /// Probability of zero.
        p: f64,
        /// 0, 1, ... in order of creation.
        stream: u32,
    },
    /// Rows divided by max(their length, eps).
    L2Normalize {
        /// Lower bound of the divisor (default 1e-12).
        eps: f64,
    },
    /// HSTU: operands q, k, v `[tokens, heads * head_dim]`: silu(q k^T / sqrt(head_dim)) / own length, causal, times v.
    SiluAttention {
        /// Heads.
        heads: u32,
    },
    /// Operands q, k, v: softmax(q k^T / sqrt(head_dim)) v within each sequence.
    SoftmaxAttention {
        /// Heads.
        heads: u32,
        /// Mask later positions.
        causal: bool,
    },
    /// Pairwise dot products of n operands of one type `[samples, dim]`: `[samples, n (n - 1) / 2]`,
    /// pairs (i, j), i < j, ordered by i then j.
    DotInteraction,
    /// Operand logits `[rows, 1]`: binary cross-entropy against a label input.
    BceWithLogits {
        /// A label input whose rows are those of the logits.
        labels: InputId,
        /// What the sum is divided by.
        normalize: Normalize,
    },
    /// Operand h `[tokens, dim]`: cross-entropy of the true next id against uniform negatives from the table.
    SampledSoftmax {
        /// The table whose rows are the classes.
        table: TableId,
        /// `Ids` or `Next` input with the true class of each token.
        target: InputId,
        /// Negatives per token.
        negatives: u32,
        /// Scores are divided by this.
        temperature: f64,
        /// Cosine: h and the rows are l2-normalised first.
        cosine: bool,
        /// What the sum is divided by.
        normalize: Normalize,
    },
}

/// How pooling reduces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolMode {
    /// Sum.
    Sum,
    /// Sum divided by the number of ids.
    Mean,
}

/// What a loss is divided by. All are counted over the global batch, so moving a sample to another rank
/// never changes the loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Normalize {
    /// A constant.
    Constant(f64),
    /// Samples of the global batch.
    Samples,
    /// Tokens of the global batch (of the group of the loss's operand).
    Tokens,
}
