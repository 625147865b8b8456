//! Row-wise normalisations: layer norm, l2 normalisation, softmax.

use crate::mat::{Mat, MatMut, Write};
use crate::real::Real;
use crate::simd::{Kernel, Simd, for_lanes};

fn assert_same<T>(a: Mat<T>, b: Mat<T>) {
    assert!((a.rows(), a.cols()) == (b.rows(), b.cols()), "{a:?} and {b:?} differ in shape");
}

fn assert_len<T>(what: &str, part: Option<&[T]>, len: usize) {
    if let Some(part) = part {
        assert!(part.len() == len, "{what} has {} elements, not {len}", part.len());
    }
}

/// y = (x - mean) / sqrt(var + eps) * weight + bias over each row, var without Bessel's correction.
/// `mean_rstd` receives the mean and the reciprocal standard deviation of each row, for the gradient.
pub fn layer_norm<T: Real>(
    x: Mat<T>,
    weight: Option<&[T]>,
    bias: Option<&[T]>,
    eps: f64,
    y: MatMut<T>,
    mean_rstd: &mut [T],
) {
    assert_same(x, y.as_mat());
    assert_len("weight", weight, x.cols());
    assert_len("bias", bias, x.cols());
    assert_len("mean_rstd", Some(mean_rstd), 2 * x.rows());
    if x.cols() > 0 {
        T::dispatch(LayerNorm { x, weight, bias, eps, y, mean_rstd });
    }
}

struct LayerNorm<'a, T> {
    x: Mat<'a, T>,
    weight: Option<&'a [T]>,
    bias: Option<&'a [T]>,
    eps: f64,
    y: MatMut<'a, T>,
    mean_rstd: &'a mut [T],
}

impl<T: Real> Kernel<T> for LayerNorm<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = T>>(mut self, s: S) {
        let cols = self.x.cols();
        let count = T::from_f64(cols as f64);
        for i in 0..self.x.rows() {
            let (x, y) = (self.x.row(i).as_ptr(), self.y.row_mut(i).as_mut_ptr());
            // SAFETY: rows, weight and bias have `cols` elements.
            unsafe {
                let mut sum = s.splat(T::ZERO);
                for_lanes!(S, cols, |j, n| {
                    sum = s.add(sum, s.load_up_to(x.add(j), n));
                });
                let mean = s.sum(sum) / count;
                let mean_v = s.splat(mean);
                let mut squares = s.splat(T::ZERO);
                for_lanes!(S, cols, |j, n| {
                    let d = s.keep(s.sub(s.load_up_to(x.add(j), n), mean_v), n, s.splat(T::ZERO));
                    squares = s.fma(d, d, squares);
                });
                let rstd = T::ONE / (s.sum(squares) / count + T::from_f64(self.eps)).sqrt();
                let rstd_v = s.splat(rstd);
                for_lanes!(S, cols, |j, n| {
                    let mut v = s.mul(s.sub(s.load_up_to(x.add(j), n), mean_v), rstd_v);
                    if let Some(w) = self.weight {
                        v = s.mul(v, s.load_up_to(w.as_ptr().add(j), n));
                    }
                    if let Some(b) = self.bias {
                        v = s.add(v, s.load_up_to(b.as_ptr().add(j), n));
                    }
                    s.store_up_to(y.add(j), n, v);
                });
                self.mean_rstd[2 * i] = mean;
                self.mean_rstd[2 * i + 1] = rstd;
            }
        }
    }
}

/// Gradients of [`layer_norm`]. With xhat = (x - mean) rstd and g = gy weight:
/// gx = rstd (g - mean(g) - xhat mean(g xhat)), gw = sum of gy xhat, gb = sum of gy. gw and gb are overwritten.
pub fn layer_norm_grad<T: Real>(
    x: Mat<T>,
    weight: Option<&[T]>,
    mean_rstd: &[T],
    gy: Mat<T>,
    gx: MatMut<T>,
    mode: Write,
    mut gw: Option<&mut [T]>,
    mut gb: Option<&mut [T]>,
) {
    assert_same(x, gy);
    assert_same(x, gx.as_mat());
    assert_len("weight", weight, x.cols());
    assert_len("gw", gw.as_deref(), x.cols());
    assert_len("gb", gb.as_deref(), x.cols());
    assert_len("mean_rstd", Some(mean_rstd), 2 * x.rows());
    if let Some(gw) = gw.as_deref_mut() {
        gw.fill(T::ZERO);
    }
    if let Some(gb) = gb.as_deref_mut() {
        gb.fill(T::ZERO);
    }
    if x.cols() > 0 {
        T::dispatch(LayerNormGrad { x, weight, mean_rstd, gy, gx, mode, gw, gb });
    }
}

struct LayerNormGrad<'a, T> {
    x: Mat<'a, T>,
    weight: Option<&'a [T]>,
    mean_rstd: &'a [T],
    gy: Mat<'a, T>,
    gx: MatMut<'a, T>,
    mode: Write,
    gw: Option<&'a mut [T]>,
    gb: Option<&'a mut [T]>,
}

impl<T: Real> Kernel<T> for LayerNormGrad<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = T>>(mut self, s: S) {
        let cols = self.x.cols();
        let count = T::from_f64(cols as f64);
        let zero = s.splat(T::ZERO);
        for i in 0..self.x.rows() {
            let (mean, rstd) = (s.splat(self.mean_rstd[2 * i]), s.splat(self.mean_rstd[2 * i + 1]));
            let (x, gy) = (self.x.row(i).as_ptr(), self.gy.row(i).as_ptr());
            let gx = self.gx.row_mut(i).as_mut_ptr();
            // SAFETY: rows, weight, gw and gb have `cols` elements.
            unsafe {
                let (mut sum_g, mut sum_gx) = (zero, zero);
                for_lanes!(S, cols, |j, n| {
                    let g0 = s.load_up_to(gy.add(j), n);
                    let xhat = s.mul(s.sub(s.load_up_to(x.add(j), n), mean), rstd);
                    let g = match self.weight {
                        Some(w) => s.mul(g0, s.load_up_to(w.as_ptr().add(j), n)),
                        None => g0,
                    };
                    // Lanes past the end have g = 0 and add nothing.
                    sum_g = s.add(sum_g, g);
                    sum_gx = s.fma(g, xhat, sum_gx);
                    if let Some(gw) = self.gw.as_deref_mut() {
                        let p = gw.as_mut_ptr().add(j);
                        s.store_up_to(p, n, s.fma(g0, xhat, s.load_up_to(p, n)));
                    }
                    if let Some(gb) = self.gb.as_deref_mut() {
                        let p = gb.as_mut_ptr().add(j);
                        s.store_up_to(p, n, s.add(g0, s.load_up_to(p, n)));
                    }
                });
                let mean_g = s.splat(s.sum(sum_g) / count);
                let mean_gx = s.splat(s.sum(sum_gx) / count);
                for_lanes!(S, cols, |j, n| {
                    let mut g = s.load_up_to(gy.add(j), n);
                    let xhat = s.mul(s.sub(s.load_up_to(x.add(j), n), mean), rstd);
                    if let Some(w) = self.weight {
                        g = s.mul(g, s.load_up_to(w.as_ptr().add(j), n));
                    }
                    let mut v = s.mul(rstd, s.sub(s.sub(g, mean_g), s.mul(xhat, mean_gx)));
                    if self.mode == Write::Add {
                        v = s.add(s.load_up_to(gx.add(j), n), v);
                    }
                    s.store_up_to(gx.add(j), n, v);
                });
            }
        }
    }
}

/// y = x / max(|x|, eps) over each row; `norms` receives max(|x|, eps). eps is 1e-12 in PyTorch.
pub fn l2_normalize<T: Real>(x: Mat<T>, eps: f64, y: MatMut<T>, norms: &mut [T]) {
    assert_same(x, y.as_mat());
    assert_len("norms", Some(norms), x.rows());
    T::dispatch(Normalize { x, eps, y, norms });
}

struct Normalize<'a, T> {
    x: Mat<'a, T>,
    eps: f64,
    y: MatMut<'a, T>,
    norms: &'a mut [T],
}

impl<T: Real> Kernel<T> for Normalize<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = T>>(mut self, s: S) {
        let cols = self.x.cols();
        for i in 0..self.x.rows() {
            let (x, y) = (self.x.row(i).as_ptr(), self.y.row_mut(i).as_mut_ptr());
            // SAFETY: rows have `cols` elements.
            unsafe {
                let mut squares = s.splat(T::ZERO);
                for_lanes!(S, cols, |j, n| {
                    let v = s.load_up_to(x.add(j), n);
                    squares = s.fma(v, v, squares);
                });
                let norm = s.sum(squares).sqrt().max(T::from_f64(self.eps));
                let factor = s.splat(T::ONE / norm);
                for_lanes!(S, cols, |j, n| {
                    s.store_up_to(y.add(j), n, s.mul(s.load_up_to(x.add(j), n), factor));
                });
                self.norms[i] = norm;
            }
        }
    }
}

/// Gradient of [`l2_normalize`]: gx = (gy - y (y . gy)) / norm; where the norm was raised to eps, gy / eps.
pub fn l2_normalize_grad<T: Real>(y: Mat<T>, norms: &[T], eps: f64, gy: Mat<T>, gx: MatMut<T>, mode: Write) {
    assert_same(y, gy);
    assert_same(y, gx.as_mat());
    assert_len("norms", Some(norms), y.rows());
    T::dispatch(ProjectGrad { y, gy, gx, mode, kind: Projection::Sphere { norms, eps } });
}

/// y = e^x / sum of e^x over each row.
pub fn softmax<T: Real>(x: Mat<T>, y: MatMut<T>) {
    assert_same(x, y.as_mat());
    if x.cols() > 0 {
        T::dispatch(Softmax { x, y });
    }
}

struct Softmax<'a, T> {
    x: Mat<'a, T>,
    y: MatMut<'a, T>,
}

impl<T: Real> Kernel<T> for Softmax<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = T>>(mut self, s: S) {
        let cols = self.x.cols();
        for i in 0..self.x.rows() {
            let (x, y) = (self.x.row(i).as_ptr(), self.y.row_mut(i).as_mut_ptr());
            // SAFETY: rows have `cols` elements.
            unsafe {
                let mut top = s.splat(*x);
                for_lanes!(S, cols, |j, n| {
                    top = s.max(top, s.keep(s.load_up_to(x.add(j), n), n, top));
                });
                let top = s.splat(s.max_lane(top));
                let mut sum = s.splat(T::ZERO);
                for_lanes!(S, cols, |j, n| {
                    let e = s.exp(s.sub(s.load_up_to(x.add(j), n), top));
                    s.store_up_to(y.add(j), n, e);
                    sum = s.add(sum, s.keep(e, n, s.splat(T::ZERO)));
                });
                let factor = s.splat(T::ONE / s.sum(sum));
                for_lanes!(S, cols, |j, n| {
                    s.store_up_to(y.add(j), n, s.mul(s.load_up_to(y.add(j), n), factor));
                });
            }
        }
    }
}

/// Gradient of [`softmax`]: gx = y (gy - sum of y gy).
pub fn softmax_grad<T: Real>(y: Mat<T>, gy: Mat<T>, gx: MatMut<T>, mode: Write) {
    assert_same(y, gy);
    assert_same(y, gx.as_mat());
    T::dispatch(ProjectGrad { y, gy, gx, mode, kind: Projection::Simplex });
}

#[derive(Clone, Copy)]
enum Projection<'a, T> {
    Simplex,
    Sphere { norms: &'a [T], eps: f64 },
}

/// Both gradients subtract the part of gy along the result.
struct ProjectGrad<'a, T> {
    y: Mat<'a, T>,
    gy: Mat<'a, T>,
    gx: MatMut<'a, T>,
    mode: Write,
    kind: Projection<'a, T>,
}

impl<T: Real> Kernel<T> for ProjectGrad<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = T>>(mut self, s: S) {
        let cols = self.y.cols();
        for i in 0..self.y.rows() {
            let (y, gy) = (self.y.row(i).as_ptr(), self.gy.row(i).as_ptr());
            let gx = self.gx.row_mut(i).as_mut_ptr();
            // SAFETY: rows have `cols` elements.
            unsafe {
                let mut dot = s.splat(T::ZERO);
                for_lanes!(S, cols, |j, n| {
                    dot = s.fma(s.load_up_to(y.add(j), n), s.load_up_to(gy.add(j), n), dot);
                });
                let mut dot = s.sum(dot);
                let mut factor = T::ONE;
                if let Projection::Sphere { norms, eps } = self.kind {
                    factor = T::ONE / norms[i];
                    if norms[i] <= T::from_f64(eps) {
                        dot = T::ZERO;
                    }
                }
                let (dot, factor) = (s.splat(dot), s.splat(factor));
                for_lanes!(S, cols, |j, n| {
                    let (yv, g) = (s.load_up_to(y.add(j), n), s.load_up_to(gy.add(j), n));
                    let mut v = match self.kind {
                        Projection::Simplex => s.mul(yv, s.sub(g, dot)),
                        Projection::Sphere { .. } => s.mul(factor, s.sub(g, s.mul(yv, dot))),
                    };
                    if self.mode == Write::Add {
                        v = s.add(s.load_up_to(gx.add(j), n), v);
                    }
                    s.store_up_to(gx.add(j), n, v);
                });
            }
        }
    }
}
