//! Laws that cannot be.

/// What is wrong with a distribution.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LawError {
    /// Nothing lies in the range.
    #[error("the range {min}..={max} is empty")]
    EmptyRange {
        /// Lower end.
        min: u32,
        /// Upper end.
        max: u32,
    },
    /// A lognormal's sigma.
    #[error("sigma {0} is not a finite number of at least 0")]
    Sigma(f64),
    /// A mean that no clipping can reach.
    #[error("the mean {mean} is below the minimum {min}")]
    Mean {
        /// The mean asked for.
        mean: f64,
        /// The shortest length.
        min: u32,
    },
    /// A Zipf law's exponent.
    #[error("a Zipf law needs a positive exponent, not {0}")]
    Exponent(f64),
    /// A probability.
    #[error("{0} is not a probability")]
    Probability(f64),
}
