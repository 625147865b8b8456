//! Vector instructions behind one trait.
//!
//! A hot loop is written once, generic over [`Simd`], inside a [`Kernel`]. [`Real::dispatch`] runs it with
//! AVX-512, AVX2 with FMA, or plain arrays, whichever this machine has; the choice is made once and cached.
//! Everything between a kernel and the intrinsics is `inline(always)`, so that it is compiled with the
//! instruction set of the entry function.
//!
//! Sums differ in the last bits between instruction sets (other lane counts, fused multiply-add or not); on one
//! machine every run takes the same path and gives the same bits.

use std::sync::atomic::{AtomicU8, Ordering};

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;
pub mod real;

pub use portable::Portable;

use real::Real;

/// Vectors of `LANES` elements. A value of the type proves that the machine has the instructions.
pub trait Simd: Copy + 'static {
    /// Element type.
    type T: Real;
    /// Vector type.
    type V: Copy;
    /// Elements in a vector.
    const LANES: usize;
    /// Rows of the matrix micro-kernel's tile for 1, 2 and 4 vectors of columns: as many accumulators as the
    /// registers hold.
    const TILE_ROWS: [usize; 3];

    /// All lanes `x`.
    fn splat(self, x: Self::T) -> Self::V;
    /// # Safety
    /// `p` is good for reading `LANES` elements.
    unsafe fn load(self, p: *const Self::T) -> Self::V;
    /// # Safety
    /// `p` is good for writing `LANES` elements.
    unsafe fn store(self, p: *mut Self::T, v: Self::V);
    /// [`Simd::store`] past the caches: for memory that nobody reads soon. [`Simd::fence`] must follow before other
    /// threads are told of it.
    /// # Safety
    /// `p` is good for writing `LANES` elements and aligned to the size of a vector.
    unsafe fn store_past(self, p: *mut Self::T, v: Self::V);
    /// Orders what [`Simd::store_past`] wrote before all later stores.
    fn fence(self);
    /// The first `n` lanes from memory, the others 0.
    /// # Safety
    /// `p` is good for reading `n <= LANES` elements.
    unsafe fn load_part(self, p: *const Self::T, n: usize) -> Self::V;
    /// Stores the first `n` lanes.
    /// # Safety
    /// `p` is good for writing `n <= LANES` elements.
    unsafe fn store_part(self, p: *mut Self::T, n: usize, v: Self::V);
    /// [`Simd::load`] for a full vector, [`Simd::load_part`] for less.
    /// # Safety
    /// `p` is good for reading `n <= LANES` elements.
    #[inline(always)]
    unsafe fn load_up_to(self, p: *const Self::T, n: usize) -> Self::V {
        // SAFETY: the caller's.
        unsafe { if n == Self::LANES { self.load(p) } else { self.load_part(p, n) } }
    }
    /// [`Simd::store`] for a full vector, [`Simd::store_part`] for less.
    /// # Safety
    /// `p` is good for writing `n <= LANES` elements.
    #[inline(always)]
    unsafe fn store_up_to(self, p: *mut Self::T, n: usize, v: Self::V) {
        // SAFETY: the caller's.
        unsafe { if n == Self::LANES { self.store(p, v) } else { self.store_part(p, n, v) } }
    }
    /// a + b
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// a - b
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// a b
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// a / b
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// a b + c, fused where the instruction set fuses
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger of two, lane by lane.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// Square root.
    fn sqrt(self, a: Self::V) -> Self::V;
    /// `a > b ? yes : no`
    fn select_gt(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;
    /// `v` in the first `n` lanes, `other` in the rest.
    fn keep(self, v: Self::V, n: usize, other: Self::V) -> Self::V;
    /// Sum over the lanes.
    fn sum(self, v: Self::V) -> Self::T;
    /// Sums over the lanes of four vectors.
    fn sum4(self, v: [Self::V; 4]) -> [Self::T; 4];
    /// Largest lane.
    fn max_lane(self, v: Self::V) -> Self::T;
    /// Transposes a square of `LANES` x `LANES` elements.
    /// # Safety
    /// `from` and `to` are good for `LANES` rows of `LANES` elements, the given strides apart.
    unsafe fn transpose(self, from: *const Self::T, from_row: usize, to: *mut Self::T, to_row: usize);
    /// e^v; arguments are clamped to the range of finite normal results.
    fn exp(self, v: Self::V) -> Self::V;
    /// 1 / (1 + e^-v)
    fn sigmoid(self, v: Self::V) -> Self::V;
    /// Error function.
    fn erf(self, v: Self::V) -> Self::V;
}

/// A computation to run with vector instructions.
pub trait Kernel<T: Real> {
    /// What it returns.
    type Output;
    /// The computation; implementations mark it `#[inline(always)]`.
    fn run<S: Simd<T = T>>(self, s: S) -> Self::Output;
}

/// Instruction sets, from the plainest to the widest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// What the target has by default.
    Portable = 1,
    /// AVX2 with FMA.
    Avx2 = 2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512 = 3,
}

static LEVEL: AtomicU8 = AtomicU8::new(0);

/// The instruction set in use.
#[inline]
pub fn level() -> Level {
    match LEVEL.load(Ordering::Relaxed) {
        1 => Level::Portable,
        2 => Level::Avx2,
        3 => Level::Avx512,
        _ => limit_level(Level::Avx512),
    }
}

/// Uses nothing wider than `most` from now on, in the whole process; returns what is in use. For tests and
/// comparisons: results change in the last bits.
pub fn limit_level(most: Level) -> Level {
    let level = detect().min(most);
    LEVEL.store(level as u8, Ordering::Relaxed);
    level
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Level {
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("popcnt");
    let avx512 = avx2
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (avx512, avx2) {
        (true, _) => Level::Avx512,
        (false, true) => Level::Avx2,
        (false, false) => Level::Portable,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Level {
    Level::Portable
}

#[inline]
pub(crate) fn dispatch_f32<K: Kernel<f32>>(kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    match level() {
        // SAFETY: `level` never exceeds what was detected.
        Level::Avx512 => return unsafe { avx512::enter(kernel) },
        // SAFETY: as above.
        Level::Avx2 => return unsafe { avx2::enter(kernel) },
        Level::Portable => {}
    }
    kernel.run(Portable::<f32>::new())
}

#[inline]
pub(crate) fn dispatch_f64<K: Kernel<f64>>(kernel: K) -> K::Output {
    kernel.run(Portable::<f64>::new())
}

/// Coefficients of e^r = 1 + r + r^2 P(r) on |r| <= ln(2)/2, highest power first (Cephes, expf).
#[cfg(target_arch = "x86_64")]
const EXP_POLY: [f32; 6] =
    [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
/// ln 2 in two parts; the first has few bits, so that its product with an exponent is exact.
#[cfg(target_arch = "x86_64")]
const LN2: (f32, f32) = (0.693_359_4, -2.121_944_4e-4);
/// Range in which e^x, its reciprocal and one more than it are normal numbers.
#[cfg(target_arch = "x86_64")]
const EXP_RANGE: (f32, f32) = (-87.0, 88.0);
/// Coefficients of 2^f on 0 <= f < 1, highest power first: least relative error, 7.5e-8, for the degree (Remez).
#[cfg(target_arch = "x86_64")]
const EXP2_POLY: [f32; 6] =
    [1.877_576_7e-3, 8.989_34e-3, 5.582_631_8e-2, 2.401_536_2e-1, 6.931_531e-1, 0.999_999_9];
/// Coefficients of the error function's rational form (Abramowitz and Stegun 7.1.26, |error| < 1.5e-7): the
/// argument's factor, then the polynomial, highest power first.
#[cfg(target_arch = "x86_64")]
const ERF: (f32, [f32; 5]) =
    (0.327_591_1, [1.061_405_4, -1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6]);

/// Runs `$body` for the columns `0..$cols`, vector by vector: `$j` is the first column and `$n` the number of
/// columns, the lane count but at the end.
macro_rules! for_lanes {
    ($S:ident, $cols:expr, |$j:ident, $n:ident| $body:block) => {{
        let cols: usize = $cols;
        let mut $j = 0;
        while $j < cols {
            let $n = (cols - $j).min($S::LANES);
            $body
            $j += $n;
        }
    }};
}
pub(crate) use for_lanes;
