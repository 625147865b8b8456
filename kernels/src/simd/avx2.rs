//! AVX2 with FMA: eight floats, sixteen registers.

#[allow(clippy::wildcard_imports, reason = "intrinsics carry their own prefix")]
use std::arch::x86_64::*;

use super::{ERF, EXP_POLY, EXP_RANGE, Kernel, LN2, Simd};

/// Proof that the machine has AVX2 and FMA.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

/// # Safety
/// The machine has AVX2, FMA and POPCNT.
#[target_feature(enable = "avx2,fma,popcnt")]
pub(super) unsafe fn enter<K: Kernel<f32>>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

/// Eight set lanes, then eight clear ones: a window of it masks any number of first lanes.
static MASK: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

#[inline(always)]
fn mask(n: usize) -> __m256i {
    // SAFETY: the window lies in the array for every `n`, and AVX is there as below.
    unsafe { _mm256_loadu_si256(MASK.as_ptr().add(8 - n.min(8)).cast()) }
}

// SAFETY of every block below: an `Avx2` exists only within `enter`, so the instructions are there; memory is
// touched only by the functions whose contract covers it.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one reason for all, given above")]
impl Simd for Avx2 {
    type T = f32;
    type V = __m256;
    const LANES: usize = 8;
    const TILE_ROWS: [usize; 3] = [8, 6, 3];

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m256) {
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn store_past(self, p: *mut f32, v: __m256) {
        unsafe { _mm256_stream_ps(p, v) }
    }
    #[inline(always)]
    fn fence(self) {
        unsafe { _mm_sfence() }
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize) -> __m256 {
        unsafe { _mm256_maskload_ps(p, mask(n)) }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize, v: __m256) {
        unsafe { _mm256_maskstore_ps(p, mask(n), v) }
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    fn sqrt(self, a: __m256) -> __m256 {
        unsafe { _mm256_sqrt_ps(a) }
    }
    #[inline(always)]
    fn select_gt(self, a: __m256, b: __m256, yes: __m256, no: __m256) -> __m256 {
        unsafe { _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_GT_OQ>(a, b)) }
    }
    #[inline(always)]
    fn keep(self, v: __m256, n: usize, other: __m256) -> __m256 {
        unsafe { _mm256_blendv_ps(other, v, _mm256_castsi256_ps(mask(n))) }
    }
    #[inline(always)]
    fn sum(self, v: __m256) -> f32 {
        self.sum4([v, v, v, v])[0]
    }
    #[inline(always)]
    fn sum4(self, v: [__m256; 4]) -> [f32; 4] {
        unsafe {
            let half = |x: __m256| _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let [a, b, c, d] = [half(v[0]), half(v[1]), half(v[2]), half(v[3])];
            let ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
            let cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
            let sums = _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
            let mut out = [0.0; 4];
            _mm_storeu_ps(out.as_mut_ptr(), sums);
            out
        }
    }
    #[inline(always)]
    fn max_lane(self, v: __m256) -> f32 {
        let mut lanes = [0.0f32; 8];
        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), v) };
        lanes.iter().fold(lanes[0], |m, x| if *x > m { *x } else { m })
    }
    #[inline(always)]
    unsafe fn transpose(self, from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
        unsafe {
            let mut r = [_mm256_setzero_ps(); 8];
            for i in 0..8 {
                r[i] = _mm256_loadu_ps(from.add(i * from_row));
            }
            // Pairs of rows, then pairs of pairs, then halves.
            let mut t = r;
            for i in 0..4 {
                t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
                t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
            }
            for h in 0..2 {
                r[4 * h] = _mm256_shuffle_ps::<0x44>(t[4 * h], t[4 * h + 2]);
                r[4 * h + 1] = _mm256_shuffle_ps::<0xee>(t[4 * h], t[4 * h + 2]);
                r[4 * h + 2] = _mm256_shuffle_ps::<0x44>(t[4 * h + 1], t[4 * h + 3]);
                r[4 * h + 3] = _mm256_shuffle_ps::<0xee>(t[4 * h + 1], t[4 * h + 3]);
            }
            for j in 0..4 {
                _mm256_storeu_ps(to.add(j * to_row), _mm256_permute2f128_ps::<0x20>(r[j], r[j + 4]));
                _mm256_storeu_ps(to.add((j + 4) * to_row), _mm256_permute2f128_ps::<0x31>(r[j], r[j + 4]));
            }
        }
    }
    #[inline(always)]
    fn exp(self, v: __m256) -> __m256 {
        unsafe {
            // The order of operands lets a NaN through.
            let v = _mm256_min_ps(self.splat(EXP_RANGE.1), _mm256_max_ps(self.splat(EXP_RANGE.0), v));
            let n = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(_mm256_mul_ps(
                v,
                self.splat(std::f32::consts::LOG2_E),
            ));
            let r = _mm256_fnmadd_ps(n, self.splat(LN2.0), v);
            let r = _mm256_fnmadd_ps(n, self.splat(LN2.1), r);
            let mut p = self.splat(EXP_POLY[0]);
            for c in &EXP_POLY[1..] {
                p = _mm256_fmadd_ps(p, r, self.splat(*c));
            }
            let p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r);
            let p = _mm256_add_ps(p, self.splat(1.0));
            // 2^n by its exponent field; |n| <= 127 after the clamp.
            let bits =
                _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)));
            _mm256_mul_ps(p, _mm256_castsi256_ps(bits))
        }
    }
    #[inline(always)]
    fn sigmoid(self, v: __m256) -> __m256 {
        unsafe {
            let one = self.splat(1.0);
            _mm256_div_ps(one, _mm256_add_ps(one, self.exp(_mm256_sub_ps(_mm256_setzero_ps(), v))))
        }
    }
    #[inline(always)]
    fn erf(self, v: __m256) -> __m256 {
        unsafe {
            let (one, sign) = (self.splat(1.0), self.splat(-0.0));
            let x = _mm256_andnot_ps(sign, v);
            let t = _mm256_div_ps(one, _mm256_fmadd_ps(x, self.splat(ERF.0), one));
            let mut p = self.splat(ERF.1[0]);
            for c in &ERF.1[1..] {
                p = _mm256_fmadd_ps(p, t, self.splat(*c));
            }
            let e = self.exp(_mm256_sub_ps(_mm256_setzero_ps(), _mm256_mul_ps(x, x)));
            let y = _mm256_fnmadd_ps(_mm256_mul_ps(p, t), e, one);
            _mm256_or_ps(y, _mm256_and_ps(v, sign))
        }
    }
}
