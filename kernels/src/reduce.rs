//! Sums across ranks with a fixed order, so that the bits of a result do not depend on how it travelled.
//!
//! The gradients of one row are summed first within each source rank in position order, starting from +0, then
//! across source ranks in rank order. A source that sends one gradient an occurrence and one that has summed its
//! occurrences already therefore give the same bits.

use crate::idset::IdSet;
use crate::mat::Mat;
use crate::real::Real;
use crate::simd::{Kernel, Simd, for_lanes};

/// Summed gradients of an owner's rows, and the workspace for summing, which grows once.
#[derive(Debug, Default)]
pub struct ReducedRows<T> {
    /// Local row numbers, ascending and distinct.
    pub rows: Vec<u32>,
    /// Their gradients, [rows, dim].
    pub grads: Vec<T>,
    set: IdSet,
    partial: Vec<T>,
    /// The source whose partial sum a row of `partial` holds.
    holder: Vec<u32>,
    touched: Vec<u32>,
}

impl<T: Real> ReducedRows<T> {
    /// An empty result.
    pub fn new() -> Self {
        Self::default()
    }
}

/// Sums received gradients by row. `recv_rows[i]` is the local row of `grads` row i; entries are concatenated by
/// source rank, `recv_counts` of each.
pub fn sum_received<T: Real>(
    recv_rows: &[u32],
    recv_counts: &[usize],
    grads: Mat<T>,
    out: &mut ReducedRows<T>,
) {
    assert!(
        recv_rows.len() == grads.rows() && recv_rows.len() == recv_counts.iter().sum::<usize>(),
        "{} rows from {} entries for {grads:?}",
        recv_rows.len(),
        recv_counts.iter().sum::<usize>()
    );
    out.rows.clear();
    out.grads.clear();
    let Some(top) = recv_rows.iter().max() else { return };
    out.set.reserve(*top as usize + 1);
    for row in recv_rows {
        out.set.insert(*row as usize);
    }
    let rows = &mut out.rows;
    out.set.number(|row| rows.push(row as u32));
    out.grads.resize(out.rows.len() * grads.cols(), T::ZERO);
    T::dispatch(SumReceived { recv_rows, recv_counts, grads, out });
    out.set.clear();
}

struct SumReceived<'a, T> {
    recv_rows: &'a [u32],
    recv_counts: &'a [usize],
    grads: Mat<'a, T>,
    out: &'a mut ReducedRows<T>,
}

impl<T: Real> Kernel<T> for SumReceived<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = T>>(self, s: S) {
        let dim = self.grads.cols();
        let ReducedRows { rows, grads: sums, set, partial, holder, touched } = self.out;
        holder.clear();
        let mut start = 0;
        for (source, count) in self.recv_counts.iter().enumerate() {
            let entries = start..start + count;
            start += count;
            let own = &self.recv_rows[entries.clone()];
            // Nothing to keep apart: this source has one gradient a row, or no other came before it.
            if source == 0 || own.is_sorted_by(|a, b| a < b) {
                for (row, i) in own.iter().zip(entries) {
                    let at = set.rank(*row as usize) as usize * dim;
                    add(s, &mut sums[at..at + dim], self.grads.row(i));
                }
                continue;
            }
            if holder.is_empty() {
                holder.resize(rows.len(), 0);
                partial.clear();
                partial.resize(rows.len() * dim, T::ZERO);
            }
            touched.clear();
            for (row, i) in own.iter().zip(entries) {
                let slot = set.rank(*row as usize);
                let part = &mut partial[slot as usize * dim..][..dim];
                if holder[slot as usize] != source as u32 {
                    holder[slot as usize] = source as u32;
                    touched.push(slot);
                    part.fill(T::ZERO);
                }
                add(s, part, self.grads.row(i));
            }
            for slot in touched.iter() {
                let at = *slot as usize * dim;
                add(s, &mut sums[at..at + dim], &partial[at..at + dim]);
            }
        }
    }
}

/// y += x; both have the same length.
#[inline(always)]
fn add<S: Simd>(s: S, y: &mut [S::T], x: &[S::T]) {
    let (y, x, len) = (y.as_mut_ptr(), x.as_ptr(), y.len().min(x.len()));
    // SAFETY: both have `len` elements.
    unsafe {
        for_lanes!(S, len, |j, n| {
            s.store_up_to(y.add(j), n, s.add(s.load_up_to(y.add(j), n), s.load_up_to(x.add(j), n)));
        });
    }
}

/// `out = parts[0] + parts[1] + ...`, added in rank order from +0.
pub fn sum_in_rank_order<T: Real>(parts: &[&[T]], out: &mut [T]) {
    for part in parts {
        assert!(part.len() == out.len(), "a part of {} elements for a sum of {}", part.len(), out.len());
    }
    T::dispatch(SumParts { parts, out });
}

struct SumParts<'a, T> {
    parts: &'a [&'a [T]],
    out: &'a mut [T],
}

impl<T: Real> Kernel<T> for SumParts<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = T>>(self, s: S) {
        let out = self.out.as_mut_ptr();
        // SAFETY: all parts are as long as `out`.
        unsafe {
            for_lanes!(S, self.out.len(), |j, n| {
                let mut sum = s.splat(T::ZERO);
                for part in self.parts {
                    sum = s.add(sum, s.load_up_to(part.as_ptr().add(j), n));
                }
                s.store_up_to(out.add(j), n, sum);
            });
        }
    }
}
