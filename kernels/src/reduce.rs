//! Sums across ranks with a fixed order, so that the bits of a result do not depend on how it travelled.
//!
//! The gradients of one row are summed first within each source rank in position order, starting from +0, then
//! across source ranks in rank order; where ranks are of several nodes, those of a node are summed before nodes are, in
//! the nodes' order. A source that sends one gradient an occurrence and one that has summed its
//! occurrences already therefore give the same bits, and so does a relay that has summed its node's.

use crate::idset::IdSet;
use crate::mat::{Mat, MatMut, Write};
use crate::memory::Block;
use crate::real::Real;
use crate::segments::{self, Segments, Sources};
use crate::simd::{Kernel, Simd, for_lanes};

/// Summed gradients of an owner's rows, and the workspace for summing, which grows once.
#[derive(Debug)]
pub struct ReducedRows<T> {
    /// Local row numbers, ascending and distinct.
    pub rows: Vec<u32>,
    /// Their gradients, [rows, dim].
    pub grads: Block<T>,
    set: IdSet,
    /// Which of `rows` each entry belongs to.
    slots: Vec<u32>,
    segments: Segments,
    /// Where each source's entries end.
    sources: Vec<usize>,
}

impl<T: Real> ReducedRows<T> {
    /// An empty result.
    pub fn new() -> Self {
        ReducedRows {
            rows: Vec::new(),
            grads: Block::default(),
            set: IdSet::default(),
            slots: Vec::new(),
            segments: Segments::default(),
            sources: Vec::new(),
        }
    }
}

impl<T: Real> Default for ReducedRows<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Ranks one after the other that are a node's, and whether the node's sum is rounded to brain floats, as a relay would send
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// Ranks of a node.
    pub ranks: usize,
    /// Its sums are rounded.
    pub rounds: bool,
}

/// Sums received gradients by row. `recv_rows[i]` is the local row of `grads` row i; entries are concatenated by
/// source rank, `recv_counts` of each.
pub fn sum_received<T: Real>(
    recv_rows: &[u32],
    recv_counts: &[usize],
    node: Node,
    grads: Mat<T>,
    out: &mut ReducedRows<T>,
) {
    assert!(
        recv_rows.len() == grads.rows() && recv_rows.len() == recv_counts.iter().sum::<usize>(),
        "{} rows from {} entries for {grads:?}",
        recv_rows.len(),
        recv_counts.iter().sum::<usize>()
    );
    let ReducedRows { rows, grads: sums, set, slots, segments, sources } = out;
    rows.clear();
    sums.resize(0);
    let Some(top) = recv_rows.iter().max() else { return };
    set.reserve(*top as usize + 1);
    f32::dispatch(Number { recv_rows, rows, set, slots });
    set.clear();
    ends_of(recv_counts, sources);
    segments.sort(slots, rows.len());
    sums.resize(rows.len() * grads.cols());
    let y = MatMut::new(sums, rows.len(), grads.cols());
    let Node { ranks: node, rounds } = node;
    segments::sum(grads, segments, Sources { ends: sources, node, rounds }, y, Write::Set);
}

/// `y[g]` = the sum of the gradients whose group is g, all groups below the rows of `y`: as [`sum_received`] sums those of a
/// row on one node. `work` lends its workspace.
pub fn sum_by_group<T: Real>(
    groups: &[u32],
    recv_counts: &[usize],
    grads: Mat<T>,
    y: MatMut<T>,
    work: &mut ReducedRows<T>,
) {
    assert!(groups.len() == grads.rows(), "{} groups for {grads:?}", groups.len());
    let ReducedRows { segments, sources, .. } = work;
    ends_of(recv_counts, sources);
    segments.sort(groups, y.rows());
    let node = sources.len().max(1);
    segments::sum(grads, segments, Sources { ends: sources, node, rounds: false }, y, Write::Set);
}

fn ends_of(counts: &[usize], ends: &mut Vec<usize>) {
    ends.clear();
    ends.extend(counts.iter().scan(0, |end, count| {
        *end += count;
        Some(*end)
    }));
}

/// Lists the distinct rows, and which of them each entry is.
struct Number<'a> {
    recv_rows: &'a [u32],
    rows: &'a mut Vec<u32>,
    set: &'a mut IdSet,
    slots: &'a mut Vec<u32>,
}

impl Kernel<f32> for Number<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = f32>>(self, _s: S) {
        for row in self.recv_rows {
            self.set.insert(*row as usize);
        }
        self.set.number(|row| self.rows.push(row as u32));
        self.slots.clear();
        self.slots.extend(self.recv_rows.iter().map(|row| self.set.rank(*row as usize)));
    }
}

/// `out = parts[0] + parts[1] + ...`, added in rank order; zeros of none. The sum begins with the first part, whose zeros
/// keep their signs.
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
                let mut parts = self.parts.iter().map(|part| s.load_up_to(part.as_ptr().add(j), n));
                let first = parts.next().unwrap_or(s.splat(T::ZERO));
                let sum = parts.fold(first, |sum, part| s.add(sum, part));
                s.store_up_to(out.add(j), n, sum);
            });
        }
    }
}
