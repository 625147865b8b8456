//! Sums of rows by group, each result written once.
//!
//! Adding every row to its sum where it lies touches a sum as often as it has rows, and zeroes it before. Where the
//! sums outgrow the caches that is twice the traffic and more. Here positions are first sorted by group (counting
//! sort, which keeps their order), then each sum is built in registers and written once, past the caches if it is
//! large. Order and bits are those of adding one row after another.

use std::cell::RefCell;
use std::ops::Range;

use crate::mat::{Mat, MatMut, Write};
use crate::real::Real;
use crate::rows::{STREAM_FROM, ahead, prefetch, streams};
use crate::simd::{Kernel, Simd};

/// Sums of fewer bytes are added to where they lie: they stay in the second-level cache.
pub(crate) const SORT_FROM: usize = 1 << 20;

/// Positions sorted by group; workspace that grows once.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    /// Where each group's positions end.
    ends: Vec<u32>,
    positions: Vec<u32>,
}

impl Segments {
    /// Sorts the positions of `groups`, all below `n`, by group.
    pub(crate) fn sort(&mut self, groups: &[u32], n: usize) {
        let Segments { ends, positions } = self;
        ends.clear();
        ends.resize(n, 0);
        for group in groups {
            ends[*group as usize] += 1;
        }
        let mut start = 0;
        for end in ends.iter_mut() {
            (*end, start) = (start, start + *end);
        }
        // Contents are overwritten below: only growth is worth zeroing.
        if positions.len() < groups.len() {
            positions.resize(groups.len(), 0);
        }
        positions.truncate(groups.len());
        for (i, group) in groups.iter().enumerate() {
            let at = &mut ends[*group as usize];
            positions[*at as usize] = i as u32;
            *at += 1;
        }
    }

    /// Lends this thread's workspace.
    pub(crate) fn with<R>(f: impl FnOnce(&mut Segments) -> R) -> R {
        thread_local! {
            static SEGMENTS: RefCell<Segments> = const { RefCell::new(Segments { ends: Vec::new(), positions: Vec::new() }) };
        }
        SEGMENTS.with_borrow_mut(f)
    }
}

/// Where positions come from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sources<'a> {
    /// Where each source's positions end.
    pub(crate) ends: &'a [usize],
    /// So many one after the other are a node's.
    pub(crate) node: usize,
    /// A node's sum is rounded to a brain float.
    pub(crate) rounds: bool,
}

/// Vectors rounded to brain floats.
#[inline(always)]
fn rounded<S: Simd, const N: usize>(s: S, sums: &mut [S::V; N]) {
    const MOST: usize = 64;
    const { assert!(S::LANES <= MOST) };
    for sum in sums {
        let mut lanes = [S::T::ZERO; MOST];
        // SAFETY: there is room for all lanes.
        unsafe {
            s.store_up_to(lanes.as_mut_ptr(), S::LANES, *sum);
            lanes[..S::LANES].iter_mut().for_each(|x| *x = x.to_bf16());
            *sum = s.load_up_to(lanes.as_ptr(), S::LANES);
        }
    }
}

/// `y[g]` = (or += with [`Write::Add`]) the sum of the rows of `x` in group g. Positions are grouped by source: the rows of
/// one source are summed in position order from +0, the first source's are added to
/// the result one by one, then the sums of the others in turn. Sources of a node after the first are summed among themselves
/// before; where nodes' sums are rounded, that of the first is, too. Large sums are written past the caches.
pub(crate) fn sum<T: Real>(x: Mat<T>, segments: &Segments, sources: Sources<'_>, y: MatMut<T>, mode: Write) {
    let n = segments.positions.len();
    assert!(x.rows() == n && x.cols() == y.cols(), "{x:?} does not hold the rows of {n} positions of {y:?}");
    assert!(segments.ends.len() == y.rows(), "{} groups for {y:?}", segments.ends.len());
    assert!(sources.ends.last().copied().unwrap_or(0) == n, "sources {sources:?} of {n} positions");
    assert!(sources.node > 0, "a node of no source");
    assert!(!(sources.rounds && mode == Write::Add), "what is there is no node's sum");
    T::dispatch(Sum { x, segments, sources, y, mode });
}

struct Sum<'a, T> {
    x: Mat<'a, T>,
    segments: &'a Segments,
    sources: Sources<'a>,
    y: MatMut<'a, T>,
    mode: Write,
}

impl<T: Real> Kernel<T> for Sum<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = T>>(mut self, s: S) {
        let Segments { ends, positions } = self.segments;
        let (cols, ahead) = (self.x.cols(), ahead::<T>(self.x.cols()));
        let (x, xs) = (self.x.as_ptr(), self.x.stride());
        let (y, ys) = (self.y.as_mut_ptr(), self.y.stride());
        let add = self.mode == Write::Add;
        let past = !add && self.y.rows() * cols * size_of::<T>() >= STREAM_FROM && streams::<S>(y, cols, ys);
        let fetch = |at: Range<usize>| {
            let at = at.start.min(positions.len())..at.end.min(positions.len());
            positions[at].iter().for_each(|p| prefetch(x.wrapping_add(*p as usize * xs), cols));
        };
        fetch(0..ahead);
        let mut start = 0;
        for (group, end) in ends.iter().enumerate() {
            let range = start..*end as usize;
            start = range.end;
            fetch(range.start + ahead..range.end + ahead);
            if add && range.is_empty() {
                continue;
            }
            let mut rows = Rows { s, x, xs, positions: &positions[range], sources: self.sources };
            // SAFETY: positions are rows of `x`, `group` is one of `y`, both with `cols` elements; alignment was
            // checked by `streams`.
            unsafe {
                let y = y.add(group * ys);
                let mut j = 0;
                while j + 4 * S::LANES <= cols {
                    rows.sum::<4>(j, S::LANES, y.add(j), add, past);
                    j += 4 * S::LANES;
                }
                while j < cols {
                    let n = (cols - j).min(S::LANES);
                    rows.sum::<1>(j, n, y.add(j), add, past);
                    j += n;
                }
            }
        }
        if past {
            s.fence();
        }
    }
}

/// The rows of one group.
struct Rows<'a, S: Simd> {
    s: S,
    x: *const S::T,
    xs: usize,
    positions: &'a [u32],
    sources: Sources<'a>,
}

impl<S: Simd> Rows<'_, S> {
    /// Sums `N` vectors of columns from `j` on, `n` elements of each, into `y`.
    /// # Safety
    /// Positions are rows with the columns asked for, and `y` is good for as many; aligned if written `past`.
    #[inline(always)]
    unsafe fn sum<const N: usize>(&mut self, j: usize, n: usize, y: *mut S::T, add: bool, past: bool) {
        let Rows { s, x, xs, positions, sources: Sources { ends, node, rounds } } = *self;
        let zero = s.splat(S::T::ZERO);
        // SAFETY: the caller's.
        unsafe {
            let plus = |to: &mut [S::V; N], position: u32| {
                let row = x.add(position as usize * xs + j);
                for k in 0..N {
                    to[k] = s.add(to[k], s.load_up_to(row.add(k * S::LANES), n));
                }
            };
            let mut total = [zero; N];
            if add {
                for k in 0..N {
                    total[k] = s.load_up_to(y.add(k * S::LANES), n);
                }
            }
            let (mut at, mut source) = (0, 0);
            // The sum of a node after the first, and the first source behind it.
            let (mut others, mut behind) = ([zero; N], node);
            while at < positions.len() {
                while positions[at] as usize >= ends[source] {
                    source += 1;
                }
                if source >= behind {
                    if rounds {
                        rounded(s, if behind > node { &mut others } else { &mut total });
                    }
                    if behind > node {
                        for k in 0..N {
                            total[k] = s.add(total[k], others[k]);
                        }
                    }
                    others = [zero; N];
                    behind = source - source % node + node;
                }
                let end = ends[source];
                if source == 0 {
                    while at < positions.len() && (positions[at] as usize) < end {
                        plus(&mut total, positions[at]);
                        at += 1;
                    }
                    continue;
                }
                let mut part = [zero; N];
                while at < positions.len() && (positions[at] as usize) < end {
                    plus(&mut part, positions[at]);
                    at += 1;
                }
                let sum = if behind > node { &mut others } else { &mut total };
                for k in 0..N {
                    sum[k] = s.add(sum[k], part[k]);
                }
            }
            if rounds {
                rounded(s, if behind > node { &mut others } else { &mut total });
            }
            if behind > node {
                for k in 0..N {
                    total[k] = s.add(total[k], others[k]);
                }
            }
            for k in 0..N {
                let y = y.add(k * S::LANES);
                if past { s.store_past(y, total[k]) } else { s.store_up_to(y, n, total[k]) }
            }
        }
    }
}
