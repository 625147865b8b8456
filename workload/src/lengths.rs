//! Laws of sequence lengths.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::LawError;
use crate::random::{RandomKey, normal, uniform_index};

/// Distribution of sequence lengths.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema))]
#[cfg_attr(feature = "schema", serde(rename_all = "snake_case", deny_unknown_fields))]
pub enum LengthDistribution {
    /// All equal.
    Fixed(u32),
    /// Uniform over `min..=max`.
    Uniform {
        /// Shortest.
        min: u32,
        /// Longest.
        max: u32,
    },
    /// Lognormal whose mean after clipping is `mean`.
    Lognormal {
        /// Mean after clipping.
        mean: f64,
        /// Sigma of the underlying Gaussian.
        sigma: f64,
        /// Shortest.
        min: u32,
        /// Longest (the group's maximum without it).
        max: Option<u32>,
    },
}

/// A distribution within a group's maximum: what lengths are drawn from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LengthLaw(Law);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Law {
    Fixed(u32),
    Uniform { min: u32, max: u32 },
    Lognormal { mu: f64, sigma: f64, min: u32, max: u32, moments: (f64, f64) },
}

impl LengthLaw {
    /// Of a group of sequences of at most `group_max` ids.
    pub fn new(lengths: LengthDistribution, group_max: u32) -> Result<Self, LawError> {
        Ok(Self(match lengths {
            LengthDistribution::Fixed(n) => Law::Fixed(n.min(group_max)),
            LengthDistribution::Uniform { min, max } if min <= max => {
                Law::Uniform { min: min.min(group_max), max: max.min(group_max) }
            }
            LengthDistribution::Uniform { min, max } => return Err(LawError::EmptyRange { min, max }),
            LengthDistribution::Lognormal { mean, sigma, min, max } => {
                let max = max.unwrap_or(group_max).min(group_max);
                if !(sigma.is_finite() && sigma >= 0.0) {
                    return Err(LawError::Sigma(sigma));
                }
                let min = min.min(max);
                // One distribution serves all groups: one that is shorter than the mean is always full.
                if mean >= f64::from(max) {
                    return Ok(Self(Law::Fixed(max)));
                }
                if mean.is_nan() || mean < f64::from(min) {
                    return Err(LawError::Mean { mean, min });
                }
                lognormal(mean, sigma, (min, max))
            }
        }))
    }

    /// What is assumed of lengths that nobody has described: uniform from 1 to the maximum.
    pub fn assumed(group_max: u32) -> Self {
        Self(Law::Uniform { min: 1.min(group_max), max: group_max })
    }

    /// The length of the sequence that `key` belongs to.
    pub fn draw(self, key: RandomKey) -> u32 {
        match self.0 {
            Law::Fixed(n) => n,
            Law::Uniform { min, max } => min + uniform_index(key, 0, u64::from(max - min) + 1) as u32,
            Law::Lognormal { mu, sigma, min, max, .. } => {
                let length = (mu + sigma * normal(key, 0)).exp().round();
                length.clamp(f64::from(min), f64::from(max)) as u32
            }
        }
    }

    /// Expected length and expected square of it. (Of a lognormal law before rounding to whole ids.)
    pub fn moments(self) -> (f64, f64) {
        let uniform = |a: u32, b: u32| {
            let (a, b) = (f64::from(a), f64::from(b));
            let (mean, width) = (f64::midpoint(a, b), b - a + 1.0);
            (mean, mean * mean + (width * width - 1.0) / 12.0)
        };
        match self.0 {
            Law::Fixed(n) => uniform(n, n),
            Law::Uniform { min, max } => uniform(min, max),
            Law::Lognormal { moments, .. } => moments,
        }
    }

    /// Whether two sequences may differ in length.
    pub fn varies(self) -> bool {
        match self.0 {
            Law::Fixed(_) => false,
            Law::Uniform { min, max } => min < max,
            Law::Lognormal { sigma, min, max, .. } => sigma > 0.0 && min < max,
        }
    }

    /// Expected length.
    pub fn mean(self) -> f64 {
        self.moments().0
    }
}

thread_local! {
    /// Laws that were asked for: a compiler asks for the few that it meets a thousand times, and each takes milliseconds.
    static KNOWN: RefCell<BTreeMap<(u64, u64, u32, u32), Law>> = const { RefCell::new(BTreeMap::new()) };
}
/// Laws to remember; a program has one for each maximum of its groups.
const REMEMBERED: usize = 256;

/// A lognormal with this mean once it is clipped.
fn lognormal(mean: f64, sigma: f64, (min, max): (u32, u32)) -> Law {
    let asked = (mean.to_bits(), sigma.to_bits(), min, max);
    if let Some(law) = KNOWN.with_borrow(|known| known.get(&asked).copied()) {
        return law;
    }
    let (low, high) = (f64::from(min), f64::from(max));
    let mu = location(mean, sigma, low, high);
    let moment = |power| clipped_moment(mu, sigma, low, high, power);
    let law = Law::Lognormal { mu, sigma, min, max, moments: (moment(1), moment(2)) };
    KNOWN.with_borrow_mut(|known| {
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(asked, law);
    });
    law
}

/// A moment of a lognormal clipped to `[low, high]`: a sum over the Gaussian within 8 sigma.
fn clipped_moment(mu: f64, sigma: f64, low: f64, high: f64, power: i32) -> f64 {
    let (mut sum, mut weight) = (0.0, 0.0);
    for i in -800..=800 {
        let z = f64::from(i) / 100.0;
        let density = (-0.5 * z * z).exp();
        sum += density * (mu + sigma * z).exp().clamp(low, high).powi(power);
        weight += density;
    }
    sum / weight
}

/// The location for which a lognormal clipped to `[low, high]` has this mean, by bisection.
fn location(mean: f64, sigma: f64, low: f64, high: f64) -> f64 {
    let (mut a, mut b) = (-40.0, 40.0);
    for _ in 0..60 {
        let middle = f64::midpoint(a, b);
        if clipped_moment(middle, sigma, low, high, 1) < mean { a = middle } else { b = middle }
    }
    f64::midpoint(a, b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(sample: u64) -> RandomKey {
        RandomKey { seed: 5, stream: 9, step: sample }
    }

    fn any() -> impl Strategy<Value = (LengthDistribution, u32)> {
        let law = prop_oneof![
            (0..50u32).prop_map(LengthDistribution::Fixed),
            (0..60u32, 0..60u32)
                .prop_map(|(a, b)| LengthDistribution::Uniform { min: a.min(b), max: a.max(b) }),
            (10.0..300.0f64, 0.0..1.5f64, 0..8u32, proptest::option::of(100..2000u32))
                .prop_map(|(mean, sigma, min, max)| LengthDistribution::Lognormal { mean, sigma, min, max }),
        ];
        (law, 1..1024u32)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// Mean and mean square of what is drawn, within 6 standard errors and what rounding may add.
        #[test]
        fn what_is_drawn_has_the_expected_moments((lengths, max) in any()) {
            let law = LengthLaw::new(lengths, max).unwrap();
            let n = 4000u64;
            let drawn: Vec<f64> = (0..n).map(|s| f64::from(law.draw(key(s)))).collect();
            prop_assert!(drawn.iter().all(|l| *l <= f64::from(max)));
            let (mean, square) = law.moments();
            for (power, expected, rounding) in [(1, mean, 0.02 + 0.002 * mean), (2, square, 0.1 + 0.004 * square)] {
                let powers: Vec<f64> = drawn.iter().map(|l| l.powi(power)).collect();
                let found = powers.iter().sum::<f64>() / n as f64;
                let variance = powers.iter().map(|p| (p - found).powi(2)).sum::<f64>() / n as f64;
                let tolerance = 6.0 * (variance / n as f64).sqrt() + rounding;
                prop_assert!((found - expected).abs() <= tolerance, "{lengths:?} {max} {power}: {found} {expected}");
            }
        }
    }

    #[test]
    fn lognormal_lengths_have_the_mean_after_clipping() {
        for (mean, sigma) in [(200.0, 1.0), (12.0, 0.5), (900.0, 1.5)] {
            let lengths = LengthDistribution::Lognormal { mean, sigma, min: 1, max: None };
            let law = LengthLaw::new(lengths, 1024).unwrap();
            assert!((law.mean() - mean).abs() < 1e-9 * mean);
            let n = 40_000u64;
            let total: u32 = (0..n).map(|s| law.draw(key(s))).sum();
            let found = f64::from(total) / n as f64;
            assert!((found - mean).abs() < 0.03 * mean, "{found} for {mean}");
        }
    }

    #[test]
    fn moments_of_lengths() {
        let moments = |lengths, max| LengthLaw::new(lengths, max).unwrap().moments();
        assert_eq!(moments(LengthDistribution::Fixed(9), 5), (5.0, 25.0));
        let (mean, square) = moments(LengthDistribution::Uniform { min: 1, max: 3 }, 10);
        assert!((mean - 2.0).abs() < 1e-12 && (square - 14.0 / 3.0).abs() < 1e-12);
        let law = LengthDistribution::Lognormal { mean: 200.0, sigma: 1.0, min: 1, max: None };
        let (mean, square) = moments(law, 1024);
        assert!((mean - 200.0).abs() < 0.01, "{mean}");
        assert!(square > 1.5 * mean * mean && square < mean * 1024.0, "{square}");
        // Hardly clipped: the closed form e^sigma^2.
        let law = LengthDistribution::Lognormal { mean: 50.0, sigma: 0.5, min: 0, max: None };
        let (mean, square) = moments(law, 100_000);
        assert!((square / (mean * mean) - 0.25f64.exp()).abs() < 1e-3);
    }

    #[test]
    fn impossible_distributions_are_refused() {
        for lengths in [
            LengthDistribution::Lognormal { mean: 2.0, sigma: 1.0, min: 5, max: None },
            LengthDistribution::Lognormal { mean: 10.0, sigma: f64::NAN, min: 1, max: None },
            LengthDistribution::Uniform { min: 5, max: 4 },
        ] {
            assert!(LengthLaw::new(lengths, 1024).is_err(), "{lengths:?}");
        }
    }
}
