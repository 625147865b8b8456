//! The list of actions. A line here and an [`Entry`] in the file of its family make one; without the entry nothing
//! compiles.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Entry;
use crate::attribute::{Function, Normalize, PoolMode, Way};

/// From the list of variants to the enum, to a struct of borrowed fields for each variant, for which its family's file
/// implements [`Entry`], and to the way from one to the other.
macro_rules! actions {
    ($(#[$meta:meta])* pub enum Action { $(
        $(#[doc = $doc:literal])* $name:ident $({ $($(#[$about:meta])* $field:ident: $type:ty,)* })?
    ),* $(,)? }) => {
        $(#[$meta])*
        pub enum Action { $(
            $(#[doc = $doc])* $name $({ $($(#[$about])* $field: $type,)* })?
        ),* }

        /// The fields of each action.
        pub(super) mod entry {
            #![allow(dead_code, reason = "no entry needs all of its fields")]
            use super::{Function, Normalize, PoolMode, Way};
            $(actions!(@fields $name $({ $($field: $type,)* })?);)*
        }

        impl Action {
            /// Its line of the table.
            pub(super) fn entry<'a, T>(&'a self, ask: impl FnOnce(&dyn Entry<'a>) -> T) -> T {
                match self { $(
                    Self::$name $({ $($field),* })? => ask(&entry::$name $({ $($field),* })?)
                ),* }
            }

            /// One of each, with some value in every field.
            pub fn samples() -> Vec<Self> {
                vec![$(Self::$name $({ $($field: Sample::sample(),)* })?),*]
            }

            /// What each does, in the order of [`samples`](Self::samples).
            pub(super) fn summaries() -> Vec<&'static str> {
                vec![$(concat!($($doc),*).trim_ascii()),*]
            }
        }
    };
    (@fields $name:ident { $($field:ident: $type:ty,)* }) => {
        #[derive(Debug)]
        pub(crate) struct $name<'a> { $(pub $field: &'a $type,)* }
    };
    (@fields $name:ident) => {
        #[derive(Debug)]
        pub(crate) struct $name;
    };
}

/// Some value of a field.
trait Sample {
    fn sample() -> Self;
}

macro_rules! samples {
    ($($type:ty: $value:expr,)*) => { $(
        impl Sample for $type {
            fn sample() -> Self {
                $value
            }
        }
    )* };
}

samples! {
    u32: 1,
    bool: true,
    f64: 0.5,
    Vec<u32>: vec![0],
    Option<u32>: None,
    Function: Function::Silu,
    Normalize: Normalize::Samples,
    PoolMode: PoolMode::Sum,
    Way: Way::Forward,
}

actions! {
    /// What an operation does. `reads -> writes` in each variant's text; `x?` is there if the flag says so.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case", deny_unknown_fields)]
    pub enum Action {
        /// Makes this rank's share of the batch current. `-> `
        LoadBatch,
        /// All ranks learn the lengths of all samples. `offsets of each group... -> lengths (Index, batch x groups)`
        ShareLengths,
        /// Gives each sample to a rank and a microbatch, such that all have about as much to do; every rank finds the
        /// same. `lengths -> rank and microbatch (Index, batch x 2)`
        Assign,
        /// Inputs of samples go to the ranks that work on them, where they are current from then on: all that is read
        /// there, in rising order. `rank and microbatch, inputs... -> `
        Dispatch {
            /// Share of the tokens that is expected to move.
            moved: f64,
        },
        /// Values of samples at home go to the ranks that work on them.
        /// `rank and microbatch, x (samples or tokens at home x columns) -> x (those as assigned x columns)`
        DispatchRows {
            /// Share of the tokens that is expected to move.
            moved: f64,
        },
        /// Gradients of samples as assigned go back to the ranks that read them.
        /// `rank and microbatch, gx (samples or tokens as assigned x columns) -> gx (those at home x columns)`
        Combine {
            /// Share of the tokens that is expected to move.
            moved: f64,
        },
        /// Ids of an input in a buffer, so that `unique` can ask for them together with ids of samples elsewhere.
        /// `ids (an input) -> ids (Id, tokens x 1)`
        CopyIds,
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
        /// Entries to ask for, sorted by owner, and where each id's entry stands. With microbatches the ids of the first
        /// come first, then those of the second, ...; if rows travel by reuse distance and there are several, `uses`
        /// tells in which window an entry is used first and last.
        /// `ids... (inputs or id buffers) -> entries (Id, U), counts (Count, W), uses? (Byte, U x 2), inverse... (Index,
        /// like each ids)`
        /// Of a table with hot rows all entries, those of hot rows last, and then what is above of each share, of which the one
        /// of hot rows has their numbers among these: `entries (Id, U), (entries, counts, uses?) of rows with owners,
        /// (entries, counts, uses?) of hot rows, inverse...`.
        Unique {
            /// Exchange.
            exchange: u32,
        },
        /// Entries that samples at home need where they are worked on: sorted by owner, then by the rank that works on
        /// them, each with that rank. With microbatches the ids of the first come first, then those of the second, ...
        /// `rank and microbatch, ids... (inputs or id buffers, at home) -> entries (Id, A), counts (Count, W), for whom
        /// (Index, A), uses? (Byte, A x 2)`
        UniqueFor {
            /// Exchange.
            exchange: u32,
        },
        /// Input dist of row-, table- and column-wise tables. For each exchange
        /// `entries, counts, uses? -> rows of the own shard (Index, R), received counts (Count, W), received uses? (Byte,
        /// R x 2)`
        AllToAllIds {
            /// Exchanges that travel together.
            exchanges: Vec<u32>,
        },
        /// Input dist on behalf of the ranks that work on samples. What several ask for one is one list, ascending, as that
        /// rank's own `unique` finds it. For each exchange
        /// `entries, counts, for whom, uses? -> rows of the own shard (Index, R), counts of each rank's list (Count, W), uses
        /// of these? (Byte, R x 2)`
        AllToAllIdsFor {
            /// Exchanges that travel together.
            exchanges: Vec<u32>,
        },
        /// Input dist of data-parallel tables: all ranks learn all entries. For each exchange
        /// `entries, counts, uses? -> rows (Index, R), received counts (Count, W), own rows (Index, U), received uses?
        /// (Byte, R x 2)`
        AllGatherIds {
            /// Exchanges that travel together.
            exchanges: Vec<u32>,
        },
        /// The class of reuse distance of each row, from its uses in this batch and, for lookups, the batches before it
        /// ([`Reuse::history`](crate::reuse::Reuse::history)), for gradients those after it.
        /// `rows (Index, U or R), uses?, then per other batch, nearest first: all received rows (Index, R@-1...), uses?
        /// -> classes (Byte, U or R)`
        /// A rank's own rows (U) of a replicated table take the last use by any rank from the gathered entries of the
        /// batch, which every rank holds.
        Partition {
            /// Exchange.
            exchange: u32,
            /// Lookups or gradients.
            way: Way,
        },
        /// Owners tell who asked for a row which class it has. For each exchange
        /// `classes (Byte, R), received counts, counts -> classes (Byte, U)`
        AllToAllClasses {
            /// Exchanges that travel together.
            exchanges: Vec<u32>,
            /// Of lookups or gradients.
            way: Way,
        },
        /// Positions of the entries of each class, in order, and their number per rank.
        /// `classes (Byte, U or R), counts or received counts -> for each class: positions (Index), counts (Count, W)`
        Positions {
            /// Exchange.
            exchange: u32,
            /// Of lookups or gradients.
            way: Way,
        },
        /// Lookup at the owner, of all rows or those of a class.
        /// `table, rows (Index, R or U), positions? (Index) -> y (as rows travel, as many x columns of the part)`
        Gather {
            /// Exchange.
            exchange: u32,
            /// Class of lookups.
            class: Option<u32>,
        },
        /// What a relay asks the owners for: each row once that its node asks it for, with the first and last of their
        /// uses, sorted by owner. `rows that the node asks for (Index, R of the exchange within the node), received counts,
        /// uses? -> entries (Id, U), counts (Count, W), uses? (Byte, U x 2), where each row stands (Index, R of that)`
        UniqueAsked {
            /// Exchange between relays and owners.
            exchange: u32,
        },
        /// A relay's classes of what its node asks it for.
        /// `classes (Byte, U of the exchange between nodes), where each row stands (Index, R) -> classes (Byte, R)`
        PassClasses {
            /// Exchange within the node.
            exchange: u32,
            /// Of lookups or gradients.
            way: Way,
        },
        /// Rows that a relay was sent, for each that its node asks it for: all, or those of a class.
        /// `rows (U of the exchange between nodes x columns), where each row stands (Index, R), (positions there, positions
        /// among R)? -> y (as many as of the class x columns)`
        PassRows {
            /// Exchange within the node.
            exchange: u32,
            /// Class of lookups.
            class: Option<u32>,
        },
        /// A node's gradients of the rows that its relay asks for: sums within a rank in position order, then in rank order.
        /// `where each row stands (Index, R), received counts, received gradients (R x columns), (positions among R, positions
        /// among the entries between nodes)? -> grows (U of that exchange x columns)`, of the class's sizes if one is given.
        SumAsked {
            /// Exchange within the node.
            exchange: u32,
            /// Class of gradients.
            class: Option<u32>,
        },
        /// Output dist. For each exchange
        /// `y (R x columns), received counts, counts -> rows (as they travel, U x columns)`, of the class's sizes if one is given.
        AllToAllRows {
            /// Exchanges that travel together.
            exchanges: Vec<u32>,
            /// Class of lookups.
            class: Option<u32>,
        },
        /// Rows that arrived by class in the order of the entries; an addition puts them among those that are there,
        /// without one the rest becomes zero. Without classes all rows, which are f32 from then on, where they travel as
        /// something else. `for each class: rows, positions; or rows -> rows (U x columns)`
        /// An exchange with a share of entries puts its rows among all that are listed, and the first of its merges those of hot
        /// rows behind them: `..., hot rows (U of their exchange x columns) -> rows (U of the list x columns)`.
        Merge {
            /// Exchange.
            exchange: u32,
            /// Classes of lookups, rising; none: rows that travel together.
            classes: Vec<u32>,
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
        /// The gradients of a class, or all, as they travel. `grows (U x columns), positions? -> those (as many x columns)`
        /// Those of a share are cut out of all that are listed (U of the list).
        Split {
            /// Exchange.
            exchange: u32,
            /// Class of gradients; none: all, where they travel as something else than f32 or are a share.
            class: Option<u32>,
        },
        /// Gradient dist. For each exchange
        /// `grows (U x columns), counts, received counts -> received gradients (R x columns)`, of the class's sizes.
        AllToAllGrads {
            /// Exchanges that travel together.
            exchanges: Vec<u32>,
            /// Class of gradients.
            class: Option<u32>,
        },
        /// Gradient dist of data-parallel tables: all ranks get all gradients. Operands as of `all_to_all_grads`.
        AllGatherGrads {
            /// Exchanges that travel together.
            exchanges: Vec<u32>,
            /// Class of gradients.
            class: Option<u32>,
        },
        /// Sums received gradients per row (within a source in position order, then in rank order, node by node) and updates.
        /// `rows (Index, R), positions? (Index), received counts, received gradients -> table`, the latter two of the
        /// class's sizes.
        Apply {
            /// Exchange.
            exchange: u32,
            /// Class of gradients.
            class: Option<u32>,
        },
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
        /// `linear` and a function of what it gives. `x, weight, bias -> z, y`
        LinearUnary {
            /// Which.
            function: Function,
        },
        /// `add` of two and the norm of the sum. `a, b, (weight, bias)? -> sum, y, stats`
        AddLayerNorm {
            /// With weight and bias.
            affine: bool,
            /// Added to the variance.
            eps: f64,
        },
        /// `layer_norm` and its product with something. `x, (weight, bias)?, gate -> z, y, stats`
        LayerNormMul {
            /// With weight and bias.
            affine: bool,
            /// Added to the variance.
            eps: f64,
        },
        /// `x -> y`
        Copy,
        /// The same in the other precision: an f32 rounded to the nearest bf16, to the even one of two, or a bf16 as it
        /// is. `x -> y`
        Cast,
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
        /// Sum over ranks in rank order, of several nodes within each first. `gradients... -> the same`
        AllReduce,
        /// Optimizer of dense parameters. `gradients... -> their parameters`
        DenseUpdate,
        /// Evaluation: scores of every row of the table for each sample's last token, ranked. `h, offsets, table ->`
        RankItems {
            /// l2-normalise h and rows first.
            cosine: bool,
        },
    }
}
