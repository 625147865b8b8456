//! Reading rows of a table, and adding gradients to rows.
//!
//! Sums run in position order and every product is rounded before it is added, so that a row summed here has the same bits as the same
//! contributions summed later at the row's owner.

use crate::mat::{Mat, MatMut, Write, check_offsets};
use crate::real::Real;
use crate::rows::{Fetch, ahead, assert_rows, copy_rows, prefetch};
use crate::segments::{self, SORT_FROM, Segments, Sources};
use crate::simd::{Kernel, Simd, for_lanes};

/// How a bag of rows becomes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
}

/// `y[i] = table[rows[i]]`
pub fn gather<T: Real>(table: Mat<T>, rows: &[u32], y: MatMut<T>) {
    assert!(
        (y.rows(), y.cols()) == (rows.len(), table.cols()),
        "{y:?} cannot hold {} rows of {table:?}",
        rows.len()
    );
    copy_rows(rows.len(), table, |i| rows[i], y, |i| i as u32, Fetch::Source);
}

/// `y[i] = rows[inverse[i]]`: from unique rows to one row per position.
pub fn expand<T: Real>(rows: Mat<T>, inverse: &[u32], y: MatMut<T>) {
    gather(rows, inverse, y);
}

/// Gradient of [`expand`] and [`gather`]: `grows[inverse[i]] += gy[i]`, in position order.
pub fn expand_grad<T: Real>(gy: Mat<T>, inverse: &[u32], mut grows: MatMut<T>, mode: Write) {
    assert!(
        gy.rows() == inverse.len() && gy.cols() == grows.cols(),
        "gradients {gy:?} of {} positions do not fit rows {grows:?}",
        inverse.len()
    );
    assert_rows(inverse.iter().copied(), grows.rows());
    if grows.rows() * grows.cols() * size_of::<T>() >= SORT_FROM {
        Segments::with(|work| {
            work.sort(inverse, grows.rows());
            segments::sum(gy, work, Sources { ends: &[inverse.len()], node: 1, rounds: false }, grows, mode);
        });
        return;
    }
    if mode == Write::Set {
        grows.fill(T::ZERO);
    }
    T::dispatch(AddRows { gy, to: inverse, grows });
}

struct AddRows<'a, T> {
    gy: Mat<'a, T>,
    to: &'a [u32],
    grows: MatMut<'a, T>,
}

impl<T: Real> Kernel<T> for AddRows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = T>>(mut self, s: S) {
        let (cols, stride) = (self.gy.cols(), self.grows.stride());
        let out = self.grows.as_mut_ptr();
        let ahead = ahead::<T>(cols);
        for (i, row) in self.to.iter().enumerate() {
            if let Some(next) = self.to.get(i + ahead) {
                prefetch(out.wrapping_add(*next as usize * stride), cols);
            }
            let g = self.gy.row(i).as_ptr();
            // SAFETY: rows have `cols` elements, and indices were checked.
            unsafe {
                let out = out.add(*row as usize * stride);
                for_lanes!(S, cols, |j, n| {
                    let p = out.add(j);
                    s.store_up_to(p, n, s.add(s.load_up_to(p, n), s.load_up_to(g.add(j), n)));
                });
            }
        }
    }
}

/// `y[b]` = sum or mean of `rows[inverse[p]]` over the positions p of bag b; an empty bag gives zeros.
pub fn pool<T: Real>(rows: Mat<T>, inverse: &[u32], offsets: &[usize], kind: Pool, y: MatMut<T>) {
    check_offsets(offsets, inverse.len());
    assert!(
        y.rows() + 1 == offsets.len().max(1) && y.cols() == rows.cols(),
        "{y:?} cannot hold the pooled rows of {rows:?}"
    );
    assert_rows(inverse.iter().copied(), rows.rows());
    T::dispatch(PoolRows { rows, inverse, offsets, kind, y });
}

struct PoolRows<'a, T> {
    rows: Mat<'a, T>,
    inverse: &'a [u32],
    offsets: &'a [usize],
    kind: Pool,
    y: MatMut<'a, T>,
}

impl<T: Real> Kernel<T> for PoolRows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = T>>(mut self, s: S) {
        let (cols, stride, rows) = (self.rows.cols(), self.rows.stride(), self.rows.as_ptr());
        for b in 0..self.y.rows() {
            let bag = self.offsets[b]..self.offsets[b + 1];
            let factor = s.splat(weight(self.kind, bag.len()));
            let y = self.y.row_mut(b).as_mut_ptr();
            for next in self.inverse.iter().skip(bag.end).take(bag.len()) {
                prefetch(rows.wrapping_add(*next as usize * stride), cols);
            }
            // SAFETY: rows have `cols` elements, and indices were checked.
            unsafe {
                for_lanes!(S, cols, |j, n| {
                    let mut sum = s.splat(T::ZERO);
                    for row in &self.inverse[bag.clone()] {
                        sum = s.add(sum, s.load_up_to(rows.add(*row as usize * stride + j), n));
                    }
                    if self.kind == Pool::Mean {
                        sum = s.mul(sum, factor);
                    }
                    s.store_up_to(y.add(j), n, sum);
                });
            }
        }
    }
}

fn weight<T: Real>(kind: Pool, len: usize) -> T {
    match kind {
        Pool::Sum => T::ONE,
        Pool::Mean => T::ONE / T::from_f64(len.max(1) as f64),
    }
}

/// Gradient of [`pool`]: `grows[inverse[p]] += gy[b]` (divided by the bag's length for a mean), in position order.
pub fn pool_grad<T: Real>(
    gy: Mat<T>,
    inverse: &[u32],
    offsets: &[usize],
    kind: Pool,
    mut grows: MatMut<T>,
    mode: Write,
) {
    check_offsets(offsets, inverse.len());
    assert!(
        gy.rows() + 1 == offsets.len().max(1) && gy.cols() == grows.cols(),
        "gradients {gy:?} of {} bags do not fit rows {grows:?}",
        offsets.len().max(1) - 1
    );
    assert_rows(inverse.iter().copied(), grows.rows());
    if mode == Write::Set {
        grows.fill(T::ZERO);
    }
    T::dispatch(PoolGrad { gy, inverse, offsets, kind, grows });
}

struct PoolGrad<'a, T> {
    gy: Mat<'a, T>,
    inverse: &'a [u32],
    offsets: &'a [usize],
    kind: Pool,
    grows: MatMut<'a, T>,
}

impl<T: Real> Kernel<T> for PoolGrad<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = T>>(mut self, s: S) {
        let (cols, stride) = (self.gy.cols(), self.grows.stride());
        let out = self.grows.as_mut_ptr();
        let ahead = ahead::<T>(cols);
        for b in 0..self.gy.rows() {
            let bag = self.offsets[b]..self.offsets[b + 1];
            let factor = s.splat(weight(self.kind, bag.len()));
            let g = self.gy.row(b).as_ptr();
            for p in bag {
                if let Some(next) = self.inverse.get(p + ahead) {
                    prefetch(out.wrapping_add(*next as usize * stride), cols);
                }
                // SAFETY: rows have `cols` elements, and indices were checked.
                unsafe {
                    let out = out.add(self.inverse[p] as usize * stride);
                    for_lanes!(S, cols, |j, n| {
                        let g = s.mul(s.load_up_to(g.add(j), n), factor);
                        s.store_up_to(out.add(j), n, s.add(s.load_up_to(out.add(j), n), g));
                    });
                }
            }
        }
    }
}
