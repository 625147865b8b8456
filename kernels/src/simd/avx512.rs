//! AVX-512: sixteen floats, thirty-two registers.

#[allow(clippy::wildcard_imports, reason = "intrinsics carry their own prefix")]
use std::arch::x86_64::*;

use super::{ERF, EXP_POLY, EXP_RANGE, EXP2_POLY, Kernel, LN2, Simd};

/// Proof that the machine has AVX-512 F, BW, DQ and VL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(());

/// # Safety
/// The machine has AVX-512 F, BW, DQ, VL, AVX2, FMA and POPCNT.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,popcnt")]
pub(super) unsafe fn enter<K: Kernel<f32>>(kernel: K) -> K::Output {
    kernel.run(Avx512(()))
}

#[inline(always)]
fn mask(n: usize) -> __mmask16 {
    ((1u32 << n.min(16)) - 1) as __mmask16
}

// SAFETY of every block below: an `Avx512` exists only within `enter`, so the instructions are there; memory is
// touched only by the functions whose contract covers it.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one reason for all, given above")]
impl Simd for Avx512 {
    type T = f32;
    type V = __m512;
    const LANES: usize = 16;
    const TILE_ROWS: [usize; 3] = [12, 12, 6];

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn store_past(self, p: *mut f32, v: __m512) {
        unsafe { _mm512_stream_ps(p, v) }
    }
    #[inline(always)]
    fn fence(self) {
        unsafe { _mm_sfence() }
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize) -> __m512 {
        unsafe { _mm512_maskz_loadu_ps(mask(n), p) }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize, v: __m512) {
        unsafe { _mm512_mask_storeu_ps(p, mask(n), v) }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn sqrt(self, a: __m512) -> __m512 {
        unsafe { _mm512_sqrt_ps(a) }
    }
    #[inline(always)]
    fn select_gt(self, a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 {
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b), no, yes) }
    }
    #[inline(always)]
    fn keep(self, v: __m512, n: usize, other: __m512) -> __m512 {
        unsafe { _mm512_mask_blend_ps(mask(n), other, v) }
    }
    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        self.sum4([v, v, v, v])[0]
    }
    #[inline(always)]
    fn sum4(self, v: [__m512; 4]) -> [f32; 4] {
        unsafe {
            let half = |x: __m512| _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
            let quarter = |x: __m256| _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let [a, b, c, d] =
                [quarter(half(v[0])), quarter(half(v[1])), quarter(half(v[2])), quarter(half(v[3]))];
            let ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
            let cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
            let sums = _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
            let mut out = [0.0; 4];
            _mm_storeu_ps(out.as_mut_ptr(), sums);
            out
        }
    }
    #[inline(always)]
    fn max_lane(self, v: __m512) -> f32 {
        unsafe { _mm512_reduce_max_ps(v) }
    }
    #[inline(always)]
    unsafe fn transpose(self, from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
        unsafe {
            let mut r = [_mm512_setzero_ps(); 16];
            for i in 0..16 {
                r[i] = _mm512_loadu_ps(from.add(i * from_row));
            }
            // Within quarters: pairs of rows, then pairs of pairs. Row 4 g + c of `r` then holds, in quarter q,
            // column 4 q + c of rows 4 g to 4 g + 3.
            let mut t = r;
            for i in 0..8 {
                t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
                t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
            }
            for g in 0..4 {
                r[4 * g] = _mm512_shuffle_ps::<0x44>(t[4 * g], t[4 * g + 2]);
                r[4 * g + 1] = _mm512_shuffle_ps::<0xee>(t[4 * g], t[4 * g + 2]);
                r[4 * g + 2] = _mm512_shuffle_ps::<0x44>(t[4 * g + 1], t[4 * g + 3]);
                r[4 * g + 3] = _mm512_shuffle_ps::<0xee>(t[4 * g + 1], t[4 * g + 3]);
            }
            // Then the 4 x 4 quarters themselves.
            for c in 0..4 {
                let a = _mm512_shuffle_f32x4::<0x44>(r[c], r[4 + c]);
                let b = _mm512_shuffle_f32x4::<0xee>(r[c], r[4 + c]);
                let d = _mm512_shuffle_f32x4::<0x44>(r[8 + c], r[12 + c]);
                let e = _mm512_shuffle_f32x4::<0xee>(r[8 + c], r[12 + c]);
                _mm512_storeu_ps(to.add(c * to_row), _mm512_shuffle_f32x4::<0x88>(a, d));
                _mm512_storeu_ps(to.add((4 + c) * to_row), _mm512_shuffle_f32x4::<0xdd>(a, d));
                _mm512_storeu_ps(to.add((8 + c) * to_row), _mm512_shuffle_f32x4::<0x88>(b, e));
                _mm512_storeu_ps(to.add((12 + c) * to_row), _mm512_shuffle_f32x4::<0xdd>(b, e));
            }
        }
    }
    #[inline(always)]
    fn exp(self, v: __m512) -> __m512 {
        unsafe {
            // The order of operands lets a NaN through.
            let v = _mm512_min_ps(self.splat(EXP_RANGE.1), _mm512_max_ps(self.splat(EXP_RANGE.0), v));
            let n = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(_mm512_mul_ps(
                v,
                self.splat(std::f32::consts::LOG2_E),
            ));
            let r = _mm512_fnmadd_ps(n, self.splat(LN2.0), v);
            let r = _mm512_fnmadd_ps(n, self.splat(LN2.1), r);
            let mut p = self.splat(EXP_POLY[0]);
            for c in &EXP_POLY[1..] {
                p = _mm512_fmadd_ps(p, r, self.splat(*c));
            }
            let p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r);
            _mm512_scalef_ps(_mm512_add_ps(p, self.splat(1.0)), n)
        }
    }
    #[inline(always)]
    fn sigmoid(self, v: __m512) -> __m512 {
        unsafe {
            let one = self.splat(1.0);
            // e^-v as 2^t; beyond the limit its reciprocal would not be a normal number.
            let t = _mm512_mul_ps(v, self.splat(-std::f32::consts::LOG2_E));
            let t = _mm512_min_ps(self.splat(125.0), t);
            let f = _mm512_reduce_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(t);
            let mut p = self.splat(EXP2_POLY[0]);
            for c in &EXP2_POLY[1..] {
                p = _mm512_fmadd_ps(p, f, self.splat(*c));
            }
            // The scaling takes the whole part of t.
            let d = _mm512_add_ps(one, _mm512_scalef_ps(p, t));
            // One Newton step takes the 14-bit reciprocal to full precision, at less than a division's time.
            let x = _mm512_rcp14_ps(d);
            _mm512_fmadd_ps(x, _mm512_fnmadd_ps(d, x, one), x)
        }
    }
    #[inline(always)]
    fn erf(self, v: __m512) -> __m512 {
        unsafe {
            let one = self.splat(1.0);
            let x = _mm512_abs_ps(v);
            let t = _mm512_div_ps(one, _mm512_fmadd_ps(x, self.splat(ERF.0), one));
            let mut p = self.splat(ERF.1[0]);
            for c in &ERF.1[1..] {
                p = _mm512_fmadd_ps(p, t, self.splat(*c));
            }
            let e = self.exp(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(x, x)));
            let y = _mm512_fnmadd_ps(_mm512_mul_ps(p, t), e, one);
            _mm512_or_ps(y, _mm512_and_ps(v, self.splat(-0.0)))
        }
    }
}
