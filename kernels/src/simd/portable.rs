//! Vectors as plain arrays: for machines without AVX2, and for `f64`, which exists for checking gradients.

use std::array;
use std::marker::PhantomData;

use super::Simd;
use super::real::{Real, erf};

/// Arrays of eight.
#[derive(Clone, Copy, Debug)]
pub struct Portable<T>(PhantomData<T>);

impl<T> Portable<T> {
    pub(crate) fn new() -> Self {
        Portable(PhantomData)
    }
}

const N: usize = 8;

impl<T: Real> Simd for Portable<T> {
    type T = T;
    type V = [T; N];
    const LANES: usize = N;
    const TILE_ROWS: [usize; 3] = [4, 2, 1];

    #[inline(always)]
    fn splat(self, x: T) -> [T; N] {
        [x; N]
    }
    #[inline(always)]
    unsafe fn load(self, p: *const T) -> [T; N] {
        // SAFETY: by contract `p` is good for `N` elements.
        unsafe { p.cast::<[T; N]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut T, v: [T; N]) {
        // SAFETY: by contract `p` is good for `N` elements.
        unsafe { p.cast::<[T; N]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn store_past(self, p: *mut T, v: [T; N]) {
        // SAFETY: the caller's. Plain stores: there are no others on every machine.
        unsafe { self.store(p, v) }
    }
    #[inline(always)]
    fn fence(self) {}
    #[inline(always)]
    unsafe fn load_part(self, p: *const T, n: usize) -> [T; N] {
        let mut v = [T::ZERO; N];
        for (i, x) in v.iter_mut().enumerate().take(n) {
            // SAFETY: by contract `p` is good for `n` elements.
            *x = unsafe { *p.add(i) };
        }
        v
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut T, n: usize, v: [T; N]) {
        for (i, x) in v.iter().enumerate().take(n) {
            // SAFETY: by contract `p` is good for `n` elements.
            unsafe { *p.add(i) = *x };
        }
    }
    #[inline(always)]
    fn add(self, a: [T; N], b: [T; N]) -> [T; N] {
        array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: [T; N], b: [T; N]) -> [T; N] {
        array::from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: [T; N], b: [T; N]) -> [T; N] {
        array::from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: [T; N], b: [T; N]) -> [T; N] {
        array::from_fn(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn fma(self, a: [T; N], b: [T; N], c: [T; N]) -> [T; N] {
        array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn max(self, a: [T; N], b: [T; N]) -> [T; N] {
        array::from_fn(|i| a[i].max(b[i]))
    }
    #[inline(always)]
    fn sqrt(self, a: [T; N]) -> [T; N] {
        a.map(T::sqrt)
    }
    #[inline(always)]
    fn select_gt(self, a: [T; N], b: [T; N], yes: [T; N], no: [T; N]) -> [T; N] {
        array::from_fn(|i| if a[i] > b[i] { yes[i] } else { no[i] })
    }
    #[inline(always)]
    fn keep(self, v: [T; N], n: usize, other: [T; N]) -> [T; N] {
        array::from_fn(|i| if i < n { v[i] } else { other[i] })
    }
    #[inline(always)]
    fn sum(self, v: [T; N]) -> T {
        let w: [T; 4] = array::from_fn(|i| v[i] + v[i + 4]);
        (w[0] + w[2]) + (w[1] + w[3])
    }
    #[inline(always)]
    fn sum4(self, v: [[T; N]; 4]) -> [T; 4] {
        v.map(|x| self.sum(x))
    }
    #[inline(always)]
    fn max_lane(self, v: [T; N]) -> T {
        v.iter().fold(v[0], |m, x| m.max(*x))
    }
    #[inline(always)]
    unsafe fn transpose(self, from: *const T, from_row: usize, to: *mut T, to_row: usize) {
        for i in 0..N {
            for j in 0..N {
                // SAFETY: by contract both are good for N rows of N elements.
                unsafe { *to.add(j * to_row + i) = *from.add(i * from_row + j) };
            }
        }
    }
    #[inline(always)]
    fn exp(self, v: [T; N]) -> [T; N] {
        v.map(T::exp)
    }
    #[inline(always)]
    fn sigmoid(self, v: [T; N]) -> [T; N] {
        v.map(|x| T::ONE / (T::ONE + (-x).exp()))
    }
    #[inline(always)]
    fn erf(self, v: [T; N]) -> [T; N] {
        v.map(|x| T::from_f64(erf(x.to_f64())))
    }
}
