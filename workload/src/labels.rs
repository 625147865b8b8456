//! Laws of labels.

use crate::LawError;
use crate::random::{RandomKey, uniform_f64};

/// Distribution of labels.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema))]
#[cfg_attr(feature = "schema", serde(rename_all = "snake_case"))]
pub enum LabelDistribution {
    /// `(id * 2654435761 >> 7) & 1` of the first sequence's id.
    Hash,
    /// 1 with this probability.
    Bernoulli(f64),
}

impl LabelDistribution {
    /// Whether labels can be drawn from it.
    pub fn check(self) -> Result<(), LawError> {
        match self {
            Self::Bernoulli(p) if !(0.0..=1.0).contains(&p) => Err(LawError::Probability(p)),
            Self::Bernoulli(_) | Self::Hash => Ok(()),
        }
    }
}

/// The label that a hash gives an id.
pub fn hash(id: i64) -> f32 {
    (id.wrapping_mul(2_654_435_761) >> 7 & 1) as f32
}

/// Draw `counter` of a label that is 1 with probability `p`.
pub fn bernoulli(p: f64, key: RandomKey, counter: u64) -> f32 {
    f32::from(u8::from(uniform_f64(key, counter) < p))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_the_parity_runs() {
        // (id * 2654435761 >> 7) & 1, by hand for ids 0, 1, 2: 2654435761 = 0x9E3779B1.
        assert_eq!([0, 1, 2].map(hash), [0.0, 1.0, 0.0]);
    }

    #[test]
    fn labels_have_their_probability() {
        for p in [0.0, 0.1, 0.5, 1.0] {
            let key = RandomKey { seed: 1, stream: 2, step: 3 };
            let n = 20_000;
            let mean = (0..n).map(|i| f64::from(bernoulli(p, key, i))).sum::<f64>() / n as f64;
            assert!((mean - p).abs() <= 5.0 * (p * (1.0 - p) / n as f64).sqrt(), "{mean} for {p}");
        }
        assert!(LabelDistribution::Bernoulli(1.5).check().is_err());
    }
}
