//! One head of one sequence, copied to where the micro-kernel reads it best, and back.

use std::ops::Range;

use super::weigh::clear_rest;
use super::{PAD, PANEL};
use crate::mat::{Mat, MatMut};
use crate::real::Real;
use crate::simd::{Kernel, Simd, for_lanes};

/// One head's columns of one sequence's rows in a token matrix.
#[derive(Clone)]
pub(super) struct Part {
    pub(super) tokens: Range<usize>,
    pub(super) columns: Range<usize>,
}

/// Copies a head's rows without gaps, times `factor`, padded with zeros to whole vectors; optionally also
/// transposed into panels: element c of row j goes to `(j / PANEL * wide + c) * PANEL + j % PANEL`, and columns up
/// to the end of the last panel are zero.
pub(super) struct Pack<'a, T> {
    pub(super) x: Mat<'a, T>,
    pub(super) part: Part,
    pub(super) factor: T,
    pub(super) wide: usize,
    pub(super) rows: &'a mut [T],
    pub(super) panels: Option<&'a mut [T]>,
}

impl<T: Real> Kernel<T> for Pack<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = T>>(self, s: S) {
        let (len, wide, dim) = (self.part.tokens.len(), self.wide, self.part.columns.len());
        let padded = if self.panels.is_some() { len.next_multiple_of(PAD) } else { len };
        let (factor, zero) = (s.splat(self.factor), s.splat(T::ZERO));
        let rows = &mut self.rows[..padded * wide];
        for (i, out) in rows.chunks_exact_mut(wide).enumerate() {
            let out = out.as_mut_ptr();
            // SAFETY: rows of x have `dim` elements from the head's first column on, those of `out` have `wide`,
            // which is whole vectors.
            unsafe {
                let mut filled = 0;
                if i < len {
                    let x = self.x.row(self.part.tokens.start + i)[self.part.columns.clone()].as_ptr();
                    for_lanes!(S, dim, |j, n| {
                        s.store(out.add(j), s.mul(factor, s.load_up_to(x.add(j), n)));
                        filled = j + S::LANES;
                    });
                }
                clear_rest(s, out, filled, wide);
            }
        }
        let Some(panels) = self.panels else { return };
        assert!(panels.len() >= len.next_multiple_of(PANEL) * wide);
        for first in (0..len.next_multiple_of(PANEL)).step_by(S::LANES) {
            for column in (0..wide).step_by(S::LANES) {
                // SAFETY: both squares lie in their buffers by the lengths checked; `padded` and `wide` are whole
                // vectors.
                unsafe {
                    let to = panels.as_mut_ptr().add((first / PANEL * wide + column) * PANEL + first % PANEL);
                    if first < padded {
                        s.transpose(rows.as_ptr().add(first * wide + column), wide, to, PANEL);
                    } else {
                        for c in 0..S::LANES {
                            s.store(to.add(c * PANEL), zero);
                        }
                    }
                }
            }
        }
    }
}

pub(super) fn pack<T: Real>(
    x: Mat<T>,
    part: &Part,
    factor: T,
    wide: usize,
    rows: &mut [T],
    panels: Option<&mut [T]>,
) {
    T::dispatch(Pack { x, part: part.clone(), factor, wide, rows, panels });
}

/// Writes packed rows, times `factor`, to a head's columns.
pub(super) struct Unpack<'a, T> {
    pub(super) packed: &'a [T],
    pub(super) part: Part,
    pub(super) factor: T,
    /// Divisors of each row, second of each pair.
    pub(super) sums: Option<&'a [(T, T)]>,
    pub(super) wide: usize,
    pub(super) y: MatMut<'a, T>,
}

impl<T: Real> Kernel<T> for Unpack<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = T>>(mut self, s: S) {
        let mut factor = s.splat(self.factor);
        for (i, packed) in self.packed.chunks_exact(self.wide).take(self.part.tokens.len()).enumerate() {
            let token = self.part.tokens.start + i;
            if let Some(sums) = self.sums {
                factor = s.splat(self.factor / sums[i].1);
            }
            let y = &mut self.y.row_mut(token)[self.part.columns.clone()];
            let (y, len, packed) = (y.as_mut_ptr(), y.len(), packed.as_ptr());
            // SAFETY: a packed row is whole vectors and at least as long as the row of y.
            unsafe {
                for_lanes!(S, len, |j, n| {
                    s.store_up_to(y.add(j), n, s.mul(factor, s.load(packed.add(j))));
                });
            }
        }
    }
}

pub(super) fn unpack<T: Real>(packed: &[T], part: Part, factor: T, wide: usize, y: MatMut<T>) {
    T::dispatch(Unpack { packed, part, factor, sums: None, wide, y });
}
