//! Values of an operation's fields. They know nothing of operations, sizes or operands.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

/// Lookups or gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Lookups: by the last use before.
    Forward,
    /// Gradients: by the next use after.
    Backward,
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

/// Where samples are worked on. A rank has some samples at home, which it reads, and some assigned to it, so that all
/// ranks have about as much to do; either way over all ranks they are the samples of the batch.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Site {
    /// On the rank that reads them.
    #[default]
    Home,
    /// On the rank that they are assigned to.
    Assigned,
}

impl Site {
    /// Whether samples are where they are read.
    pub fn is_home(&self) -> bool {
        *self == Self::Home
    }
    /// For messages: where a step's samples are worked on.
    pub(crate) fn works(self) -> &'static str {
        match self {
            Self::Home => "nothing assigns them to other ranks",
            Self::Assigned => "which the step assigns to ranks",
        }
    }
    /// For messages: `at home`.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Home => "at home",
            Self::Assigned => "as assigned",
        }
    }
}
