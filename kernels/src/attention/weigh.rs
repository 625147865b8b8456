//! Scores to weights, block by block, and the gradients of weights to those of scores.

use std::ops::Range;

use super::{BLOCK, HeadShape, STEP, Score};
use crate::real::Real;
use crate::simd::{Kernel, Simd, for_lanes};

/// Turns a block's scores into weights, with zeros past the mask.
pub(super) struct Weigh<'a, T> {
    pub(super) shape: HeadShape,
    pub(super) block: Range<usize>,
    pub(super) chunk: Range<usize>,
    pub(super) scores: &'a mut [T],
    /// For a softmax: each row's maximum, and its sum of exponentials.
    pub(super) stats: &'a mut [(T, T); BLOCK],
}

/// Keys of the chunk that a query row sees.
#[inline(always)]
pub(super) fn visible(shape: HeadShape, chunk: &Range<usize>, row: usize) -> usize {
    let end = if shape.score.causal() { chunk.end.min(row + 1) } else { chunk.end };
    end.saturating_sub(chunk.start)
}

/// Keys of the chunk for which scores exist in a row: the same for all rows of a step, so that loops over them
/// are predictable. At least the visible ones.
#[inline(always)]
pub(super) fn computed(shape: HeadShape, chunk: &Range<usize>, row: usize) -> usize {
    visible(shape, chunk, row | (STEP - 1))
}

/// Zeros from the first whole vector past `valid` up to `len`.
///
/// # Safety
/// `row` is good for `len` elements, rounded up to whole vectors.
#[inline(always)]
pub(super) unsafe fn clear_rest<S: Simd>(s: S, row: *mut S::T, valid: usize, len: usize) {
    let mut j = valid.next_multiple_of(S::LANES);
    while j < len {
        // SAFETY: the caller's.
        unsafe { s.store(row.add(j), s.splat(S::T::ZERO)) };
        j += S::LANES;
    }
}

impl<T: Real> Kernel<T> for Weigh<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = T>>(self, s: S) {
        let stride = self.shape.chunk;
        let zero = s.splat(T::ZERO);
        assert!(self.scores.len() >= self.block.len() * stride);
        for (i, row) in self.block.clone().enumerate() {
            let valid = visible(self.shape, &self.chunk, row);
            // SAFETY: rows lie `stride` apart, which is whole vectors and at least the chunk.
            unsafe {
                let p = self.scores.as_mut_ptr().add(i * stride);
                if self.shape.score == Score::Silu {
                    let mut j = 0;
                    while j < computed(self.shape, &self.chunk, row) {
                        let x = s.load(p.add(j));
                        let a = s.mul(x, s.sigmoid(x));
                        s.store(p.add(j), s.keep(a, valid.saturating_sub(j), zero));
                        j += S::LANES;
                    }
                } else {
                    let mut top = s.splat(*p);
                    for_lanes!(S, valid, |j, n| {
                        top = s.max(top, s.keep(s.load(p.add(j)), n, top));
                    });
                    let top = s.max_lane(top);
                    let mut sum = zero;
                    for_lanes!(S, valid, |j, n| {
                        let e = s.keep(s.exp(s.sub(s.load(p.add(j)), s.splat(top))), n, zero);
                        s.store(p.add(j), e);
                        sum = s.add(sum, e);
                    });
                    self.stats[i] = (top, s.sum(sum));
                }
                clear_rest(s, p, valid, self.chunk.len());
            }
        }
    }
}

/// Turns a block's scores into weights, and the gradients of its weights into those of its scores.
pub(super) struct WeighGrad<'a, T> {
    pub(super) shape: HeadShape,
    pub(super) block: Range<usize>,
    pub(super) chunk: Range<usize>,
    pub(super) weights: &'a mut [T],
    pub(super) grads: &'a mut [T],
    pub(super) lse: &'a [T; BLOCK],
}

impl<T: Real> Kernel<T> for WeighGrad<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = T>>(self, s: S) {
        let stride = self.shape.chunk;
        let (zero, one) = (s.splat(T::ZERO), s.splat(T::ONE));
        assert!(self.weights.len().min(self.grads.len()) >= self.block.len() * stride);
        for (i, row) in self.block.clone().enumerate() {
            let valid = visible(self.shape, &self.chunk, row);
            // SAFETY: rows lie `stride` apart, which is whole vectors and at least the chunk.
            unsafe {
                let w = self.weights.as_mut_ptr().add(i * stride);
                let g = self.grads.as_mut_ptr().add(i * stride);
                if self.shape.score == Score::Silu {
                    let mut j = 0;
                    while j < computed(self.shape, &self.chunk, row) {
                        let x = s.load(w.add(j));
                        let sig = s.sigmoid(x);
                        let a = s.mul(x, sig);
                        // silu'(x) = sig + x sig (1 - sig)
                        let slope = s.fma(a, s.sub(one, sig), sig);
                        let gs = s.mul(s.load(g.add(j)), slope);
                        let n = valid.saturating_sub(j);
                        s.store(w.add(j), s.keep(a, n, zero));
                        s.store(g.add(j), s.keep(gs, n, zero));
                        j += S::LANES;
                    }
                } else {
                    // gs = p (gp - sum of p gp), p from the stored logarithm of the sum.
                    let lse = s.splat(self.lse[i]);
                    let mut dot = zero;
                    for_lanes!(S, valid, |j, n| {
                        let p = s.keep(s.exp(s.sub(s.load(w.add(j)), lse)), n, zero);
                        s.store(w.add(j), p);
                        dot = s.fma(p, s.keep(s.load(g.add(j)), n, zero), dot);
                    });
                    let dot = s.splat(s.sum(dot));
                    for_lanes!(S, valid, |j, n| {
                        let gs = s.mul(s.load(w.add(j)), s.sub(s.load(g.add(j)), dot));
                        s.store(g.add(j), s.keep(gs, n, zero));
                    });
                }
                clear_rest(s, w, valid, self.chunk.len());
                clear_rest(s, g, valid, self.chunk.len());
            }
        }
    }
}
