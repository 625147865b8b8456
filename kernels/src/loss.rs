//! Losses, each with the gradient of what it is computed from.

use crate::mat::{Mat, MatMut, Write};
use crate::real::Real;
use crate::rows::{assert_rows, prefetch};
use crate::simd::{Kernel, Simd, for_lanes};

/// Binary cross-entropy with logits: returns norm times the sum of max(x, 0) - x y + ln(1 + e^-|x|), and writes
/// the gradient (sigmoid(x) - y) norm. `logits` is [n, 1].
pub fn bce_with_logits<T: Real>(
    logits: Mat<T>,
    labels: &[f32],
    norm: f64,
    mut glogits: Option<MatMut<T>>,
) -> f64 {
    assert!(
        logits.cols() == 1 && logits.rows() == labels.len(),
        "{logits:?} for {} labels is not one column",
        labels.len()
    );
    let mut sum = 0.0;
    for (i, label) in labels.iter().enumerate() {
        let (x, y) = (logits.row(i)[0].to_f64(), f64::from(*label));
        let e = (-x.abs()).exp();
        sum += x.max(0.0) - x * y + e.ln_1p();
        if let Some(g) = glogits.as_mut() {
            let sigmoid = if x >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) };
            g.row_mut(i)[0] = T::from_f64((sigmoid - y) * norm);
        }
    }
    sum * norm
}

fn assert_sampled<T>(
    h: Mat<T>,
    rows: Mat<T>,
    target: &[u32],
    negatives: &[u32],
    count: usize,
    dlogits: &[T],
) {
    assert!(
        h.cols() == rows.cols()
            && target.len() == h.rows()
            && negatives.len() == h.rows() * count
            && dlogits.len() == h.rows() * (count + 1),
        "{h:?} and {rows:?} with {} targets, {} negatives and {} logits for {count} negatives each",
        target.len(),
        negatives.len(),
        dlogits.len()
    );
    assert_rows(target.iter().copied(), rows.rows());
    assert_rows(negatives.iter().copied(), rows.rows());
}

/// Sampled softmax: the cross-entropy of each target among itself and `count` negatives, with logits
/// h . row / temperature; a negative that is its own target does not count. Returns norm times the sum, and
/// writes the gradient with respect to the dot products h . row into `dlogits` ([n, 1 + count], target first).
///
/// `h` is [n, d]; `target` (n) and `negatives` ([n, count]) are rows of `rows`.
pub fn sampled_softmax<T: Real>(
    h: Mat<T>,
    rows: Mat<T>,
    target: &[u32],
    negatives: &[u32],
    count: usize,
    temperature: f64,
    norm: f64,
    dlogits: &mut [T],
) -> f64 {
    assert_sampled(h, rows, target, negatives, count, dlogits);
    T::dispatch(Sampled { h, rows, target, negatives, count, temperature, norm, dlogits })
}

struct Sampled<'a, T> {
    h: Mat<'a, T>,
    rows: Mat<'a, T>,
    target: &'a [u32],
    negatives: &'a [u32],
    count: usize,
    temperature: f64,
    norm: f64,
    dlogits: &'a mut [T],
}

impl<T: Real> Kernel<T> for Sampled<'_, T> {
    type Output = f64;

    #[inline(always)]
    fn run<S: Simd<T = T>>(self, s: S) -> f64 {
        let (count, dim, stride) = (self.count, self.h.cols(), self.rows.stride());
        let rows = self.rows.as_ptr();
        let cold = T::from_f64(1.0 / self.temperature);
        let scale = self.norm / self.temperature;
        let mut total = 0.0;
        for t in 0..self.h.rows() {
            let h = self.h.row(t).as_ptr();
            let target = self.target[t];
            let negatives = &self.negatives[t * count..][..count];
            let logits = &mut self.dlogits[t * (count + 1)..][..=count];
            if let Some(next) = self.negatives.get((t + 1) * count..(t + 2) * count) {
                for row in next {
                    prefetch(rows.wrapping_add(*row as usize * stride), dim);
                }
            }
            // SAFETY: row indices were checked, and rows have `dim` elements.
            unsafe {
                logits[0] = dot4(s, dim, h, [rows.add(target as usize * stride); 4])[0] * cold;
                let (fours, rest) = negatives.as_chunks::<4>();
                for (four, out) in fours.iter().zip(logits[1..].chunks_exact_mut(4)) {
                    let at = four.map(|row| rows.wrapping_add(row as usize * stride));
                    let dots = dot4(s, dim, h, at);
                    for k in 0..4 {
                        out[k] = dots[k] * cold;
                    }
                }
                for (row, out) in rest.iter().zip(&mut logits[1 + 4 * fours.len()..]) {
                    *out = dot4(s, dim, h, [rows.add(*row as usize * stride); 4])[0] * cold;
                }
            }
            let positive = logits[0];
            let mut top = positive;
            for (x, row) in logits[1..].iter_mut().zip(negatives) {
                if *row == target {
                    *x = T::from_f64(f64::NEG_INFINITY);
                }
                top = top.max(*x);
            }
            // SAFETY: `logits` has `count + 1` elements.
            let sum = unsafe {
                let (p, top) = (logits.as_mut_ptr(), s.splat(top));
                let mut sum = s.splat(T::ZERO);
                for_lanes!(S, count + 1, |j, n| {
                    let e = s.keep(s.exp(s.sub(s.load_up_to(p.add(j), n), top)), n, s.splat(T::ZERO));
                    s.store_up_to(p.add(j), n, e);
                    sum = s.add(sum, e);
                });
                s.sum(sum)
            };
            total += sum.to_f64().ln() + (top - positive).to_f64();
            let factor = T::from_f64(scale / sum.to_f64());
            for x in logits.iter_mut() {
                *x *= factor;
            }
            // p - 1 as minus the sum of the others would be exact near 1, but costs a pass; p is within an ulp.
            logits[0] -= T::from_f64(scale);
            for (x, row) in logits[1..].iter_mut().zip(negatives) {
                if *row == target {
                    *x = T::ZERO;
                }
            }
        }
        total * self.norm
    }
}

/// Dot products of `h` with four rows of `dim` elements.
#[inline(always)]
unsafe fn dot4<S: Simd>(s: S, dim: usize, h: *const S::T, rows: [*const S::T; 4]) -> [S::T; 4] {
    let mut sums = [s.splat(S::T::ZERO); 4];
    // SAFETY: the caller's.
    unsafe {
        for_lanes!(S, dim, |j, n| {
            let v = s.load_up_to(h.add(j), n);
            for k in 0..4 {
                sums[k] = s.fma(v, s.load_up_to(rows[k].add(j), n), sums[k]);
            }
        });
    }
    s.sum4(sums)
}

/// Gradients of [`sampled_softmax`] from its `dlogits`: `gh[t]` = sum of dlogits times row, and `grows[row]` += dlogits times h:
/// first of all targets in order, then of all negatives in order, as if targets and negatives were two inputs.
pub fn sampled_softmax_grad<T: Real>(
    h: Mat<T>,
    rows: Mat<T>,
    target: &[u32],
    negatives: &[u32],
    count: usize,
    dlogits: &[T],
    gh: MatMut<T>,
    gh_mode: Write,
    mut grows: MatMut<T>,
    grows_mode: Write,
) {
    assert_sampled(h, rows, target, negatives, count, dlogits);
    assert!(
        (gh.rows(), gh.cols()) == (h.rows(), h.cols())
            && (grows.rows(), grows.cols()) == (rows.rows(), rows.cols()),
        "gradients {gh:?} and {grows:?} do not fit {h:?} and {rows:?}"
    );
    if grows_mode == Write::Set {
        grows.fill(T::ZERO);
    }
    T::dispatch(SampledGrad { h, rows, target, negatives, count, dlogits, gh, gh_mode, grows });
}

struct SampledGrad<'a, T> {
    h: Mat<'a, T>,
    rows: Mat<'a, T>,
    target: &'a [u32],
    negatives: &'a [u32],
    count: usize,
    dlogits: &'a [T],
    gh: MatMut<'a, T>,
    gh_mode: Write,
    grows: MatMut<'a, T>,
}

impl<T: Real> Kernel<T> for SampledGrad<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = T>>(mut self, s: S) {
        let (count, dim) = (self.count, self.h.cols());
        // Targets first; they also start the sums of gh.
        for t in 0..self.h.rows() {
            // SAFETY: row indices were checked, and all rows have `dim` elements.
            unsafe {
                let row = self.target[t] as usize;
                let d = s.splat(self.dlogits[t * (count + 1)]);
                let (h, x) = (self.h.row(t).as_ptr(), self.rows.row(row).as_ptr());
                let gh = self.gh.row_mut(t).as_mut_ptr();
                let gx = self.grows.row_mut(row).as_mut_ptr();
                for_lanes!(S, dim, |j, n| {
                    let mut g = s.mul(d, s.load_up_to(x.add(j), n));
                    if self.gh_mode == Write::Add {
                        g = s.add(s.load_up_to(gh.add(j), n), g);
                    }
                    s.store_up_to(gh.add(j), n, g);
                    let g = s.mul(d, s.load_up_to(h.add(j), n));
                    s.store_up_to(gx.add(j), n, s.add(s.load_up_to(gx.add(j), n), g));
                });
            }
        }
        let mut j = 0;
        // SAFETY: columns j.. of all rows; row indices were checked.
        unsafe {
            while dim - j >= 4 * S::LANES {
                negatives_grad::<S, 4>(s, &mut self, j, S::LANES);
                j += 4 * S::LANES;
            }
            while dim - j >= 2 * S::LANES {
                negatives_grad::<S, 2>(s, &mut self, j, S::LANES);
                j += 2 * S::LANES;
            }
            while j < dim {
                let n = (dim - j).min(S::LANES);
                negatives_grad::<S, 1>(s, &mut self, j, n);
                j += n;
            }
        }
    }
}

/// The negatives' part for `NV` vectors of columns from `j`; `n` columns in the last.
#[inline(always)]
unsafe fn negatives_grad<S: Simd, const NV: usize>(
    s: S,
    task: &mut SampledGrad<'_, S::T>,
    j: usize,
    n: usize,
) {
    let count = task.count;
    let (stride, grad_stride) = (task.rows.stride(), task.grows.stride());
    // SAFETY: the caller's.
    unsafe {
        let (rows, grows) = (task.rows.as_ptr().add(j), task.grows.as_mut_ptr().add(j));
        for t in 0..task.h.rows() {
            let h0 = task.h.row(t).as_ptr().add(j);
            let gh0 = task.gh.row_mut(t).as_mut_ptr().add(j);
            let mut h = [s.splat(S::T::ZERO); NV];
            let mut gh = h;
            for v in 0..NV {
                h[v] = s.load_up_to(h0.add(v * S::LANES), n);
                gh[v] = s.load_up_to(gh0.add(v * S::LANES), n);
            }
            let negatives = &task.negatives[t * count..][..count];
            let dlogits = &task.dlogits[t * (count + 1) + 1..][..count];
            for (row, d) in negatives.iter().zip(dlogits) {
                let d = s.splat(*d);
                let x = rows.add(*row as usize * stride);
                let gx = grows.add(*row as usize * grad_stride);
                for v in 0..NV {
                    let at = v * S::LANES;
                    gh[v] = s.fma(d, s.load_up_to(x.add(at), n), gh[v]);
                    let sum = s.add(s.load_up_to(gx.add(at), n), s.mul(d, h[v]));
                    s.store_up_to(gx.add(at), n, sum);
                }
            }
            for v in 0..NV {
                s.store_up_to(gh0.add(v * S::LANES), n, gh[v]);
            }
        }
    }
}
