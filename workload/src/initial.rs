//! Values before training.

/// Values before training; element (row, column) depends on the seed, `stream`, row and column only.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema))]
#[cfg_attr(feature = "schema", serde(rename_all = "snake_case", deny_unknown_fields))]
pub enum Init {
    /// One value everywhere.
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
    /// `(((i*2654435761 + j*40503 + salt*97) mod 2^32) / 2^32 - 0.5) * 2 * scale` for row i, column j.
    Hash {
        /// Half the width of the range.
        scale: f64,
        /// Tells tables apart.
        salt: u64,
    },
}
