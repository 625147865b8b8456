//! Zipf-distributed ranks in constant time and memory, by rejection-inversion (Hörmann and Derflinger,
//! "Rejection-inversion to generate variates from monotone discrete distributions", ACM TOMACS 1996).

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

#[cfg(test)]
mod tests {
    use super::*;
    use fs_kernels::random::{RandomKey, uniform_f64};

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
