//! The number type of a kernel: `f32` for training, `f64` so that gradients can be held against differences.

use std::cell::RefCell;
use std::fmt::Debug;
use std::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Neg, Sub, SubAssign};

use super::Kernel;
use crate::scratch::Scratch;

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// A floating point type that the kernels exist for.
pub trait Real:
    sealed::Sealed
    + Copy
    + Default
    + PartialOrd
    + Debug
    + Send
    + Sync
    + 'static
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
    + DivAssign
{
    /// 0
    const ZERO: Self;
    /// 1
    const ONE: Self;

    /// The nearest value to `x`.
    fn from_f64(x: f64) -> Self;
    /// The same value in double precision.
    fn to_f64(self) -> f64;
    /// The nearest brain float, the even one of two; what is no number stays none.
    #[must_use]
    fn to_bf16(self) -> Self;
    /// Square root.
    #[must_use]
    fn sqrt(self) -> Self;
    /// Natural exponential.
    #[must_use]
    fn exp(self) -> Self;
    /// Natural logarithm.
    #[must_use]
    fn ln(self) -> Self;
    /// The larger of two.
    #[must_use]
    fn max(self, other: Self) -> Self;
    /// The smaller of two.
    #[must_use]
    fn min(self, other: Self) -> Self;

    /// Appends values as little-endian bytes.
    fn write_le(values: &[Self], bytes: &mut Vec<u8>);
    /// Appends the values of little-endian bytes; what is too short for a value at the end is left out.
    fn read_le(bytes: &[u8], values: &mut Vec<Self>);
    /// Appends brain floats as little-endian bytes, of numbers that are some.
    fn write_bf16(values: &[Self], bytes: &mut Vec<u8>);
    /// Appends the brain floats of little-endian bytes.
    fn read_bf16(bytes: &[u8], values: &mut Vec<Self>);

    /// Runs `kernel` with the widest vector instructions of this machine.
    fn dispatch<K: Kernel<Self>>(kernel: K) -> K::Output;
    /// Lends this thread's workspace, for packed operands.
    fn with_workspace<R>(f: impl FnOnce(&mut Scratch<Self>) -> R) -> R;
}

macro_rules! real {
    ($t:ident, $dispatch:path) => {
        impl Real for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;

            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as $t
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn to_bf16(self) -> Self {
                #[allow(clippy::unnecessary_cast, reason = "the macro is for both types")]
                let x = self as f32;
                let bits = x.to_bits();
                let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
                $t::from(f32::from_bits(if x.is_nan() { 0x7fff_0000 } else { nearest }))
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                $t::sqrt(self)
            }
            #[inline(always)]
            fn exp(self) -> Self {
                $t::exp(self)
            }
            #[inline(always)]
            fn ln(self) -> Self {
                $t::ln(self)
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                if self > other { self } else { other }
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                if self < other { self } else { other }
            }
            fn write_le(values: &[Self], bytes: &mut Vec<u8>) {
                bytes.reserve(size_of_val(values));
                for x in values {
                    bytes.extend_from_slice(&x.to_le_bytes());
                }
            }
            fn read_le(bytes: &[u8], values: &mut Vec<Self>) {
                let (whole, _) = bytes.as_chunks();
                values.extend(whole.iter().map(|x| $t::from_le_bytes(*x)));
            }
            fn write_bf16(values: &[Self], bytes: &mut Vec<u8>) {
                bytes.reserve(2 * values.len());
                for x in values {
                    #[allow(clippy::unnecessary_cast, reason = "the macro is for both types")]
                    let bits = (*x as f32).to_bits() >> 16;
                    bytes.extend_from_slice(&(bits as u16).to_le_bytes());
                }
            }
            fn read_bf16(bytes: &[u8], values: &mut Vec<Self>) {
                let (whole, _) = bytes.as_chunks();
                let number = |x: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*x)) << 16);
                values.extend(whole.iter().map(|x| $t::from(number(x))));
            }
            fn dispatch<K: Kernel<Self>>(kernel: K) -> K::Output {
                $dispatch(kernel)
            }
            fn with_workspace<R>(f: impl FnOnce(&mut Scratch<Self>) -> R) -> R {
                thread_local! {
                    static WORKSPACE: RefCell<Scratch<$t>> = const { RefCell::new(Scratch::empty()) };
                }
                WORKSPACE.with_borrow_mut(f)
            }
        }
    };
}

real!(f32, super::dispatch_f32);
real!(f64, super::dispatch_f64);

/// The error function in double precision, from the series with positive terms only
/// (Abramowitz and Stegun 7.1.6): erf x = 2/sqrt(pi) e^(-x^2) sum 2^n x^(2n+1) / (1 3 5 ... (2n+1)).
pub(crate) fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > f64::EPSILON * 0.25 * sum.abs() {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}
