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

/// Numbers that an optimizer keeps beside the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct States {
    /// For each value.
    pub per_value: u32,
    /// For each row.
    pub per_row: u32,
}

impl SparseOptimizer {
    /// What it keeps.
    pub fn states(&self) -> States {
        match self {
            Self::Sgd { .. } => States { per_value: 0, per_row: 0 },
            Self::RowwiseAdagrad { .. } => States { per_value: 0, per_row: 1 },
            Self::Adagrad { .. } => States { per_value: 1, per_row: 0 },
            Self::Adam { .. } => States { per_value: 2, per_row: 0 },
        }
    }

    /// Numbers of state for a table of so many rows and columns.
    pub fn state(&self, rows: u64, columns: u64) -> u64 {
        let States { per_value, per_row } = self.states();
        let of_row = columns.saturating_mul(per_value.into()).saturating_add(per_row.into());
        rows.saturating_mul(of_row)
    }
}

impl DenseOptimizer {
    /// Numbers that it keeps for each value.
    pub fn states(&self) -> u32 {
        match self {
            Self::Sgd { momentum: 0.0, .. } => 0,
            Self::Sgd { .. } => 1,
            Self::Adam { .. } => 2,
        }
    }
}
