//! Moving rows between matrices, bound by memory and written for it.
//!
//! Three things decide the speed with which rows anywhere in a large table are copied. Rows are prefetched into the
//! second-level cache: a core keeps about twice as many lines in flight there as its first-level cache has fill
//! buffers. A destination larger than the caches is written past them, which saves reading it first, where rows are
//! read and written nearly in order: beside reads at random such stores were measured to be slower than plain ones.
//! And tables lie on cache lines and huge pages ([`crate::memory`]).

use crate::mat::{Mat, MatMut};
use crate::real::Real;
use crate::simd::{Kernel, Simd, for_lanes};

/// Bytes that are asked for ahead of the row in use: twice what memory can have in flight for one core, 48 lines.
const AHEAD: usize = 8 << 10;
/// Bytes of one row that are asked for; the hardware follows longer rows by itself.
const LONGEST: usize = 2 << 10;
/// Outputs of at least this many bytes are written past the caches, where their reader would not find them anyway.
pub(crate) const STREAM_FROM: usize = 16 << 20;

/// How many rows of `cols` elements to prefetch ahead.
#[inline(always)]
pub(crate) fn ahead<T>(cols: usize) -> usize {
    (AHEAD / (cols * size_of::<T>()).clamp(128, LONGEST)).max(1)
}

/// Asks for the lines of `len` elements at `p`, the first of a long row. Any address will do.
#[inline(always)]
pub(crate) fn prefetch<T>(p: *const T, len: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        let within = p.addr() % 64;
        let (first, bytes) =
            (p.cast::<i8>().wrapping_sub(within), within + (len * size_of::<T>()).min(LONGEST));
        let mut at = 0;
        while at < bytes {
            // SAFETY: a prefetch of any address is harmless.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(first.wrapping_add(at)) };
            at += 64;
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (p, len);
}

/// Panics unless every index is below `rows`.
pub(crate) fn assert_rows(indices: impl Iterator<Item = u32>, rows: usize) {
    let top = indices.map(u64::from).map(|i| i + 1).max().unwrap_or(0);
    assert!(top <= rows as u64, "row {} of a matrix of {rows} rows", top.wrapping_sub(1));
}

/// Whether vectors of a matrix may be written past the caches: all start at multiples of their size.
#[inline(always)]
pub(crate) fn streams<S: Simd>(y: *const S::T, cols: usize, stride: usize) -> bool {
    y.addr().is_multiple_of(size_of::<S::V>())
        && stride.is_multiple_of(S::LANES)
        && cols.is_multiple_of(S::LANES)
}

/// Which side of a copy lies anywhere. The hardware follows the other one, and asking for that too costs more than
/// half of the speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fetch {
    /// Rows are read anywhere: they are prefetched.
    Source,
    /// Rows are written anywhere: they are prefetched.
    Target,
    /// Both sides are nearly in order; large results are written past the caches.
    Past,
}

/// `y[to(i)] = x[from(i)]` for i below `n`. The maps are asked several times, and must be pure.
pub(crate) fn copy_rows<T: Real>(
    n: usize,
    x: Mat<T>,
    from: impl Fn(usize) -> u32,
    y: MatMut<T>,
    to: impl Fn(usize) -> u32,
    fetch: Fetch,
) {
    assert!(x.cols() == y.cols(), "{x:?} and {y:?} have rows of different lengths");
    // Before anything is written, so that nothing is left half done.
    assert_rows((0..n).map(&from), x.rows());
    assert_rows((0..n).map(&to), y.rows());
    T::dispatch(CopyRows { n, x, from, y, to, fetch });
}

struct CopyRows<'a, T, F, G> {
    n: usize,
    x: Mat<'a, T>,
    from: F,
    y: MatMut<'a, T>,
    to: G,
    fetch: Fetch,
}

impl<T: Real, F: Fn(usize) -> u32, G: Fn(usize) -> u32> Kernel<T> for CopyRows<'_, T, F, G> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = T>>(mut self, s: S) {
        let (n, cols) = (self.n, self.x.cols());
        let (x, xs, x_rows) = (self.x.as_ptr(), self.x.stride(), self.x.rows());
        let (y, ys, y_rows) = (self.y.as_mut_ptr(), self.y.stride(), self.y.rows());
        let ahead = ahead::<T>(cols);
        let source = |i: usize| x.wrapping_add((self.from)(i) as usize * xs);
        let target = |i: usize| y.wrapping_add((self.to)(i) as usize * ys);
        if self.fetch == Fetch::Past && n * cols * size_of::<T>() >= STREAM_FROM && streams::<S>(y, cols, ys)
        {
            for i in 0..n {
                let (from, to) = (source(i), target(i));
                debug_assert!(((self.from)(i) as usize) < x_rows && ((self.to)(i) as usize) < y_rows);
                // SAFETY: rows have `cols` elements, a multiple of the lanes, and indices were checked; rows of
                // `y` are aligned by `streams`.
                unsafe {
                    for_lanes!(S, cols, |j, _n| {
                        s.store_past(to.add(j), s.load(from.add(j)));
                    });
                }
            }
            s.fence();
            return;
        }
        for i in 0..n {
            if i + ahead < n {
                match self.fetch {
                    Fetch::Source => prefetch(source(i + ahead), cols),
                    Fetch::Target => prefetch(target(i + ahead), cols),
                    Fetch::Past => {}
                }
            }
            let (from, to) = (source(i), target(i));
            debug_assert!(((self.from)(i) as usize) < x_rows && ((self.to)(i) as usize) < y_rows);
            // SAFETY: rows have `cols` elements, and indices were checked.
            unsafe {
                for_lanes!(S, cols, |j, n| {
                    s.store_up_to(to.add(j), n, s.load_up_to(from.add(j), n));
                });
            }
        }
    }
}
