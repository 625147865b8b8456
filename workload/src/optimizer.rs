//! Update rules and their settings.

/// Optimizers of dense parameters, with PyTorch's formulas.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema))]
#[cfg_attr(feature = "schema", serde(rename_all = "snake_case", deny_unknown_fields))]
pub enum DenseOptimizer {
    /// Stochastic gradient descent.
    Sgd {
        /// Learning rate.
        lr: f64,
        /// Momentum.
        momentum: f64,
        /// L2 penalty added to the gradient.
        weight_decay: f64,
    },
    /// Adam.
    Adam {
        /// Learning rate.
        lr: f64,
        /// First decay.
        beta1: f64,
        /// Second decay.
        beta2: f64,
        /// Added to the root.
        eps: f64,
        /// L2 penalty added to the gradient.
        weight_decay: f64,
    },
}

/// Optimizers of table rows.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema))]
#[cfg_attr(feature = "schema", serde(rename_all = "snake_case", deny_unknown_fields))]
pub enum SparseOptimizer {
    /// `w -= lr g`
    Sgd {
        /// Learning rate.
        lr: f64,
    },
    /// State per row: sum of the mean squared gradient.
    RowwiseAdagrad {
        /// Learning rate.
        lr: f64,
        /// Added to the root.
        eps: f64,
    },
    /// State per element.
    Adagrad {
        /// Learning rate.
        lr: f64,
        /// Added to the root.
        eps: f64,
    },
    /// Two states per element, of touched rows only.
    Adam {
        /// Learning rate.
        lr: f64,
        /// First decay.
        beta1: f64,
        /// Second decay.
        beta2: f64,
        /// Added to the root.
        eps: f64,
    },
}

impl SparseOptimizer {
    /// Numbers of state for a table of so many rows and columns.
    pub fn state(&self, rows: u64, columns: u64) -> u64 {
        match self {
            Self::Sgd { .. } => 0,
            Self::RowwiseAdagrad { .. } => rows,
            Self::Adagrad { .. } => rows.saturating_mul(columns),
            Self::Adam { .. } => rows.saturating_mul(columns).saturating_mul(2),
        }
    }
}
