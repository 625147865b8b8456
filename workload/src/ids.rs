//! Laws of ids: which rows of a table are asked for.
//!
//! Drawing takes constant time and memory, by rejection-inversion and a computed permutation, so it costs the same for
//! 20 rows and for 20 million.
//!
//! Expecting sums over the table. A row that one draw hits with probability p is used by n draws with probability
//! 1 - (1 - p)^n. With the rate r = -n ln(1 - p), that is 1 - e^-r, and rates of independent draws (other inputs, other
//! ranks, other batches) add up. Expected numbers of rows are sums of such terms. Rows of a Zipf law are summed in bins
//! that grow with the rank of the row, so a table of a billion rows costs as much as one of a thousand.

use crate::LawError;
use crate::permute::Permutation;
use crate::random::{RandomKey, uniform_f64, uniform_index};

/// Distribution of ids.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema))]
#[cfg_attr(feature = "schema", serde(rename_all = "snake_case"))]
pub enum IdDistribution {
    /// Uniform.
    Uniform,
    /// Zipf with this exponent, over a permutation of the table.
    Zipf(f64),
    /// Zipf with this exponent, over rows that are numbered by popularity: 0 is the most popular one.
    PopularityZipf(f64),
}

/// Zipf exponent that is assumed of ids that nobody has described.
pub const ASSUMED_EXPONENT: f64 = 1.05;

impl IdDistribution {
    /// What is assumed of ids that nobody has described.
    pub const ASSUMED: Self = Self::Zipf(ASSUMED_EXPONENT);

    /// Whether rows are asked for the more often, the lower their numbers are.
    pub fn by_popularity(self) -> bool {
        matches!(self, Self::PopularityZipf(_))
    }
}

/// Draws ids of a table.
#[derive(Debug, Clone, Copy)]
pub struct IdSampler {
    rows: u64,
    zipf: Option<Zipf>,
    /// The row of each popularity rank; `None`: of the same number.
    permutation: Option<Permutation>,
}

/// The random stream that says which rows of the first table are the popular ones; those of others follow. Far from
/// the streams that models number from 0.
const ROWS: u32 = 0xF540_0000;

/// Draws that one position may need before its counter runs into the next one's.
const TRIES: u64 = 1 << 16;

impl IdSampler {
    /// For the table with this number, of `rows` rows; it and `seed` say which rows are the popular ones.
    pub fn new(ids: IdDistribution, rows: u64, seed: u64, table: u32) -> Result<Self, LawError> {
        let zipf = match ids {
            IdDistribution::Uniform => None,
            IdDistribution::Zipf(s) | IdDistribution::PopularityZipf(s) => {
                Some(Zipf::new(rows, s).ok_or(LawError::Exponent(s))?)
            }
        };
        let permuted = !ids.by_popularity();
        let permutation = permuted.then(|| Permutation::new(rows, seed, ROWS.wrapping_add(table)));
        Ok(Self { rows, zipf, permutation })
    }

    /// The row of a popularity rank, which must be below the number of rows; rank 0 is the most popular.
    pub fn row(&self, rank: u64) -> u64 {
        self.permutation.map_or(rank, |permutation| permutation.apply(rank))
    }

    /// The id at a position of the sequence that `key` belongs to.
    pub fn draw(&self, key: RandomKey, position: usize) -> i64 {
        let mut counter = position as u64 * TRIES;
        let rank = match self.zipf {
            None => uniform_index(key, counter, self.rows),
            Some(zipf) => {
                zipf.sample(|| {
                    counter += 1;
                    uniform_f64(key, counter)
                }) - 1
            }
        };
        self.row(rank) as i64
    }
}

/// Draws Zipf-distributed ranks, by rejection-inversion (Hörmann and Derflinger, "Rejection-inversion to generate
/// variates from monotone discrete distributions", ACM TOMACS 1996).
///
/// `P(k) ~ 1 / k^exponent` for k in `1..=n`.
#[derive(Debug, Clone, Copy)]
pub struct Zipf {
    n: f64,
    exponent: f64,
    /// Integral of the density up to 1.5, less the mass of 1.
    from: f64,
    /// Integral of the density up to n + 0.5.
    to: f64,
    /// Distance from a rank within which the hat never exceeds the density.
    accept: f64,
}

impl Zipf {
    /// For `n >= 1` and a finite positive exponent; `None` otherwise.
    pub fn new(n: u64, exponent: f64) -> Option<Self> {
        if n == 0 || !exponent.is_finite() || exponent <= 0.0 {
            return None;
        }
        let n = n as f64;
        let accept = 2.0 - inverse(exponent, integral(exponent, 2.5) - 2f64.powf(-exponent));
        Some(Self {
            n,
            exponent,
            from: integral(exponent, 1.5) - 1.0,
            to: integral(exponent, n + 0.5),
            accept,
        })
    }

    /// A rank in `1..=n` from uniform numbers in `[0, 1)`, asked for one after another.
    pub fn sample(&self, mut uniform: impl FnMut() -> f64) -> u64 {
        loop {
            let u = self.to + uniform() * (self.from - self.to);
            let x = inverse(self.exponent, u);
            let k = (x + 0.5).floor().clamp(1.0, self.n);
            if k - x <= self.accept || u >= integral(self.exponent, k + 0.5) - k.powf(-self.exponent) {
                return k as u64;
            }
        }
    }
}

/// An antiderivative of `x^-s`: `(x^(1-s) - 1) / (1 - s)`, the logarithm at s = 1.
fn integral(s: f64, x: f64) -> f64 {
    let log = x.ln();
    let t = (1.0 - s) * log;
    let ratio = if t.abs() > 1e-8 { t.exp_m1() / t } else { 1.0 + t / 2.0 };
    ratio * log
}

/// The inverse of [`integral`].
fn inverse(s: f64, y: f64) -> f64 {
    let t = (y * (1.0 - s)).max(-1.0);
    let ratio = if t.abs() > 1e-8 { t.ln_1p() / t } else { 1.0 - t / 2.0 };
    (ratio * y).exp()
}

/// Rows that are listed one by one: the head of the law, where neighbours differ.
const HEAD: u64 = 64;
/// Each further bin ends this much further out.
const GROWTH: f64 = 1.15;

/// Rows with about the same probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bin {
    /// Number of rows.
    pub rows: f64,
    /// Of each of them, that a draw hits it.
    probability: f64,
}

/// The probabilities of a table's rows: what to expect of ids.
#[derive(Debug, Clone, PartialEq)]
pub struct RowLaw {
    bins: Vec<Bin>,
    rows: f64,
}

/// Draws from a table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draws {
    /// By the table's law.
    pub by_law: f64,
    /// Uniform (negatives).
    pub uniform: f64,
}

/// An antiderivative of x^-s, taken between two points.
fn mass(s: f64, from: f64, to: f64) -> f64 {
    if (s - 1.0).abs() < 1e-9 {
        (to / from).ln()
    } else {
        (to.powf(1.0 - s) - from.powf(1.0 - s)) / (1.0 - s)
    }
}

/// Probability that something of this rate happens: 1 - e^-rate, without cancellation.
pub fn used(rate: f64) -> f64 {
    -(-rate).exp_m1()
}

impl RowLaw {
    /// Of a table of `rows` rows.
    pub fn new(ids: IdDistribution, rows: u64) -> Self {
        match ids {
            IdDistribution::Uniform => Self::uniform(rows),
            IdDistribution::Zipf(exponent) | IdDistribution::PopularityZipf(exponent) => {
                Self::zipf(rows, exponent)
            }
        }
    }

    /// All rows alike.
    pub fn uniform(rows: u64) -> Self {
        let rows = rows.max(1) as f64;
        Self { bins: vec![Bin { rows, probability: 1.0 / rows }], rows }
    }

    /// Zipf's law with this exponent.
    pub fn zipf(rows: u64, exponent: f64) -> Self {
        let rows = rows.max(1);
        let mut bins: Vec<Bin> = (1..=rows.min(HEAD))
            .map(|k| Bin { rows: 1.0, probability: (k as f64).powf(-exponent) })
            .collect();
        let mut from = rows.min(HEAD) + 1;
        while from <= rows {
            let to = ((from as f64 * GROWTH) as u64).clamp(from, rows);
            let count = (to - from + 1) as f64;
            let total = mass(exponent, from as f64 - 0.5, to as f64 + 0.5);
            bins.push(Bin { rows: count, probability: total / count });
            from = to + 1;
        }
        let total: f64 = bins.iter().map(|b| b.rows * b.probability).sum();
        for b in &mut bins {
            b.probability /= total;
        }
        Self { bins, rows: rows as f64 }
    }

    /// All rows, in bins, the most popular first.
    pub fn bins(&self) -> &[Bin] {
        &self.bins
    }

    /// Rate at which draws use one row of a bin; see [`used`].
    pub fn rate(&self, bin: &Bin, draws: Draws) -> f64 {
        // Finite for the only row of a table too, which every draw hits: e^-64 is no chance to miss it.
        let per_draw = (-(-bin.probability).ln_1p()).min(64.0);
        let per_uniform = (-(-1.0 / self.rows).ln_1p()).min(64.0);
        draws.by_law * per_draw + draws.uniform * per_uniform
    }

    /// Expected number of draws that hit one row of a bin.
    pub fn occurrences(&self, bin: &Bin, draws: Draws) -> f64 {
        draws.by_law * bin.probability + draws.uniform / self.rows
    }

    /// Expected requests for one row of a bin: whether draws use it, or how often.
    pub fn requests(&self, bin: &Bin, draws: Draws, unique: bool) -> f64 {
        if unique { used(self.rate(bin, draws)) } else { self.occurrences(bin, draws) }
    }

    /// Expected number of different rows among draws.
    pub fn unique(&self, draws: Draws) -> f64 {
        let mut unique = 0.0;
        for bin in &self.bins {
            unique += bin.rows * used(self.rate(bin, draws));
        }
        unique
    }

    /// Expected number of rows that both of two lots of draws use.
    pub fn shared(&self, a: Draws, b: Draws) -> f64 {
        self.bins.iter().map(|bin| bin.rows * used(self.rate(bin, a)) * used(self.rate(bin, b))).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn close(a: f64, b: f64, tolerance: f64) {
        assert!((a - b).abs() <= tolerance * b.abs().max(1e-12), "{a} for {b}");
    }

    fn any() -> impl Strategy<Value = (IdDistribution, u64, usize)> {
        let law = prop_oneof![
            Just(IdDistribution::Uniform),
            (0.3..2.0f64).prop_map(IdDistribution::Zipf),
            (0.3..2.0f64).prop_map(IdDistribution::PopularityZipf),
        ];
        (law, 1..20_000u64, 1..3000usize)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        /// Different rows among what is drawn, and those of two lots that both use, over some lots.
        #[test]
        fn what_is_drawn_has_the_expected_rows((ids, rows, n) in any(), seed: u64) {
            let sampler = IdSampler::new(ids, rows, seed, 7).unwrap();
            let law = RowLaw::new(ids, rows);
            let lots: Vec<BTreeSet<i64>> = (0..8)
                .map(|lot| {
                    let key = RandomKey { seed, stream: 3, step: lot };
                    (0..n).map(|position| sampler.draw(key, position)).collect()
                })
                .collect();
            prop_assert!(lots.iter().flatten().all(|id| (*id as u64) < rows));
            let draws = Draws { by_law: n as f64, uniform: 0.0 };
            let unique = lots.iter().map(BTreeSet::len).sum::<usize>() as f64 / 8.0;
            let shared = lots.chunks_exact(2).map(|l| l[0].intersection(&l[1]).count()).sum::<usize>() as f64 / 4.0;
            // Uses of different rows exclude each other, if anything: the variance is at most the expected number.
            for (found, expected, lots) in [(unique, law.unique(draws), 8.0), (shared, law.shared(draws, draws), 4.0)] {
                let tolerance = 6.0 * (expected / lots).sqrt() + 0.01 * expected + 1e-6;
                prop_assert!((found - expected).abs() <= tolerance, "{ids:?} {rows} {n}: {found} for {expected}");
            }
        }
    }

    /// Popularity ranks are drawn alike, whichever rows they are.
    #[test]
    fn rows_by_popularity_are_the_ranks() {
        let permuted = IdSampler::new(IdDistribution::Zipf(1.2), 500, 3, 4).unwrap();
        let ordered = IdSampler::new(IdDistribution::PopularityZipf(1.2), 500, 3, 4).unwrap();
        let key = RandomKey { seed: 3, stream: 1, step: 0 };
        for position in 0..200 {
            let rank = ordered.draw(key, position);
            assert_eq!(permuted.row(rank as u64) as i64, permuted.draw(key, position));
        }
    }

    /// Against a sum over all rows, term by term.
    #[test]
    fn bins_agree_with_the_rows_themselves() {
        for exponent in [0.6, 1.0, 1.05, 1.5] {
            let rows = 50_000u64;
            let weights: Vec<f64> = (1..=rows).map(|k| (k as f64).powf(-exponent)).collect();
            let total: f64 = weights.iter().sum();
            for n in [10.0, 1e3, 1e5] {
                let exact: f64 = weights.iter().map(|w| used(-n * (-w / total).ln_1p())).sum();
                let draws = Draws { by_law: n, uniform: 0.0 };
                close(RowLaw::zipf(rows, exponent).unique(draws), exact, 0.01);
            }
        }
    }

    #[test]
    fn frequencies_follow_the_law() {
        for (n, exponent) in [(1u64, 1.05), (7, 0.5), (50, 1.0), (50, 1.05), (1000, 2.0)] {
            let zipf = Zipf::new(n, exponent).unwrap();
            let key = RandomKey { seed: 3, stream: 1, step: 0 };
            let (draws, mut counter, mut counts) = (200_000, 0, vec![0u32; n as usize]);
            for _ in 0..draws {
                let k = zipf.sample(|| {
                    counter += 1;
                    uniform_f64(key, counter)
                });
                counts[k as usize - 1] += 1;
            }
            let total: f64 = (1..=n).map(|k| (k as f64).powf(-exponent)).sum();
            for k in 1..=n.min(20) {
                let p = (k as f64).powf(-exponent) / total;
                let sigma = (p * (1.0 - p) / f64::from(draws)).sqrt();
                let seen = f64::from(counts[k as usize - 1]) / f64::from(draws);
                assert!((seen - p).abs() <= 5.0 * sigma + 1e-12, "n {n} s {exponent} k {k}: {seen} for {p}");
            }
        }
        assert!(
            Zipf::new(0, 1.0).is_none() && Zipf::new(5, f64::NAN).is_none() && Zipf::new(5, -1.0).is_none()
        );
    }
}
