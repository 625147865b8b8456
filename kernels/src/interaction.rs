//! Dot interaction of feature vectors, as in DLRM.

use crate::mat::{Mat, MatMut, Write};
use crate::real::Real;
use crate::simd::{Kernel, Simd, for_lanes};

fn assert_features<T>(xs: &[Mat<T>], rows: usize, pairs: usize) {
    let cols = xs.first().map_or(0, Mat::cols);
    for x in xs {
        assert!((x.rows(), x.cols()) == (rows, cols), "feature {x:?} is not {rows} x {cols}");
    }
    let expect = xs.len() * xs.len().saturating_sub(1) / 2;
    assert!(pairs == expect, "{pairs} columns for the {expect} pairs of {} features", xs.len());
}

/// Column p of y is `xs[i] . xs[j]` for the pairs i < j, in the order (0,1), (0,2), ..., (1,2), ...; y has F (F-1) / 2
/// columns for F features.
pub fn dot_interaction<T: Real>(xs: &[Mat<T>], y: MatMut<T>) {
    assert_features(xs, y.rows(), y.cols());
    T::dispatch(Forward { xs, y });
}

struct Forward<'a, T> {
    xs: &'a [Mat<'a, T>],
    y: MatMut<'a, T>,
}

impl<T: Real> Kernel<T> for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = T>>(mut self, s: S) {
        let xs = self.xs;
        let dim = xs.first().map_or(0, Mat::cols);
        for b in 0..self.y.rows() {
            let y = self.y.row_mut(b);
            let mut pair = 0;
            for i in 0..xs.len() {
                let a = xs[i].row(b).as_ptr();
                let mut j = i + 1;
                while j < xs.len() {
                    // Four partners at a time; the last group repeats its first.
                    let some = (xs.len() - j).min(4);
                    let mut partner = [xs[j].row(b).as_ptr(); 4];
                    for (k, p) in partner.iter_mut().enumerate().take(some) {
                        *p = xs[j + k].row(b).as_ptr();
                    }
                    let mut sums = [s.splat(T::ZERO); 4];
                    // SAFETY: every feature row has `dim` elements.
                    unsafe {
                        for_lanes!(S, dim, |c, n| {
                            let v = s.load_up_to(a.add(c), n);
                            for k in 0..4 {
                                sums[k] = s.fma(v, s.load_up_to(partner[k].add(c), n), sums[k]);
                            }
                        });
                    }
                    let sums = s.sum4(sums);
                    y[pair..pair + some].copy_from_slice(&sums[..some]);
                    pair += some;
                    j += some;
                }
            }
        }
    }
}

/// Gradient of [`dot_interaction`]: `gxs[i]` = sum over j of gy at the pair of i and j times `xs[j]`, written by `modes[i]`.
pub fn dot_interaction_grad<T: Real>(xs: &[Mat<T>], gy: Mat<T>, gxs: &mut [MatMut<T>], modes: &[Write]) {
    assert_features(xs, gy.rows(), gy.cols());
    assert!(gxs.len() == xs.len() && modes.len() == xs.len(), "one gradient and mode for each feature");
    for (gx, x) in gxs.iter().zip(xs) {
        assert!((gx.rows(), gx.cols()) == (x.rows(), x.cols()), "gradient {gx:?} of feature {x:?}");
    }
    T::dispatch(Backward { xs, gy, gxs, modes });
}

struct Backward<'a, 'b, T> {
    xs: &'a [Mat<'a, T>],
    gy: Mat<'a, T>,
    gxs: &'a mut [MatMut<'b, T>],
    modes: &'a [Write],
}

impl<T: Real> Kernel<T> for Backward<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = T>>(self, s: S) {
        let xs = self.xs;
        let (count, dim) = (xs.len(), xs.first().map_or(0, Mat::cols));
        for b in 0..self.gy.rows() {
            let gy = self.gy.row(b);
            for i in 0..count {
                let gx = self.gxs[i].row_mut(b).as_mut_ptr();
                // SAFETY: every feature and gradient row has `dim` elements.
                unsafe {
                    for_lanes!(S, dim, |c, n| {
                        let mut sum = match self.modes[i] {
                            Write::Set => s.splat(T::ZERO),
                            Write::Add => s.load_up_to(gx.add(c), n),
                        };
                        // Pair (i, j) is column i (2 count - i - 1) / 2 + j - i - 1.
                        for j in 0..count {
                            if i != j {
                                let (lo, hi) = (i.min(j), i.max(j));
                                let g = gy[lo * (2 * count - lo - 1) / 2 + hi - lo - 1];
                                let x = s.load_up_to(xs[j].row(b).as_ptr().add(c), n);
                                sum = s.fma(s.splat(g), x, sum);
                            }
                        }
                        s.store_up_to(gx.add(c), n, sum);
                    });
                }
            }
        }
    }
}
