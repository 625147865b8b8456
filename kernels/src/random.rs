//! Random numbers on a device, by counter: rows of negatives and of initial values.
//!
//! Which number belongs to what is said by [`fs_workload::random`]; here are the loops that make many at once.

use fs_workload::random::{below, philox_lanes};

pub use fs_workload::Init;
pub use fs_workload::random::RandomKey;

use crate::real::Real;
use crate::simd::{Kernel, Simd};

/// Counters worked on at once.
pub(crate) const LANES: usize = 16;
/// Numbers of one pass: four words for each counter.
pub(crate) const WORDS: usize = 4 * LANES;

/// The words of row `row` numbered `group * WORDS ..`, as 4 x 16.
#[inline(always)]
pub(crate) fn words_of_row(key: [u32; 2], row: u64, group: usize) -> [[u32; LANES]; 4] {
    let first = (group * LANES) as u32;
    let mut block = [first; LANES];
    for (i, b) in block.iter_mut().enumerate() {
        *b += i as u32;
    }
    philox_lanes([[row as u32; LANES], [(row >> 32) as u32; LANES], block, [0; LANES]], key)
}

/// `count` row numbers in 0..table_rows for each row key; draw d of a row depends on (key, row key, d) only.
/// `out` is [row_keys, count].
pub fn negatives(key: RandomKey, table_rows: u64, row_keys: &[u64], count: usize, out: &mut [i64]) {
    assert!(out.len() == row_keys.len() * count, "{} negatives for {} rows", out.len(), row_keys.len());
    if count > 0 {
        f32::dispatch(Negatives { key: key.mixed(), table_rows, row_keys, count, out });
    }
}

struct Negatives<'a> {
    key: [u32; 2],
    table_rows: u64,
    row_keys: &'a [u64],
    count: usize,
    out: &'a mut [i64],
}

impl Kernel<f32> for Negatives<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = f32>>(self, _s: S) {
        for (row_key, out) in self.row_keys.iter().zip(self.out.chunks_exact_mut(self.count)) {
            for (group, out) in out.chunks_mut(2 * LANES).enumerate() {
                let [a, b, c, d] = words_of_row(self.key, *row_key, group);
                let mut words = [0u64; 2 * LANES];
                for i in 0..LANES {
                    words[i] = u64::from(a[i]) | u64::from(b[i]) << 32;
                    words[i + LANES] = u64::from(c[i]) | u64::from(d[i]) << 32;
                }
                for (out, word) in out.iter_mut().zip(words) {
                    *out = below(word, self.table_rows) as i64;
                }
            }
        }
    }
}

/// Fills `out`, rows of `cols` elements of which the first is global row `first_row`.
pub fn fill<T: Real>(init: Init, key: RandomKey, first_row: u64, cols: usize, out: &mut [T]) {
    if out.is_empty() {
        return;
    }
    assert!(cols > 0 && out.len().is_multiple_of(cols), "{} elements are not rows of {cols}", out.len());
    match init {
        // Zero has no sign.
        Init::Constant(0.0) => out.fill(T::ZERO),
        Init::Constant(c) => out.fill(T::from_f64(c)),
        Init::Hash { scale, salt } => {
            for (i, row) in out.chunks_exact_mut(cols).enumerate() {
                let base =
                    (first_row + i as u64).wrapping_mul(2_654_435_761).wrapping_add(salt.wrapping_mul(97));
                for (j, x) in row.iter_mut().enumerate() {
                    let h = base.wrapping_add(j as u64 * 40_503) as u32;
                    *x = T::from_f64((f64::from(h) / 4_294_967_296.0 - 0.5) * 2.0 * scale);
                }
            }
        }
        Init::Normal { mean, std } => {
            T::dispatch(Fill {
                key: key.mixed(),
                first_row,
                cols,
                scale: std,
                shift: mean,
                normal: true,
                out,
            });
        }
        Init::Uniform { low, high } => T::dispatch(Fill {
            key: key.mixed(),
            first_row,
            cols,
            scale: high - low,
            shift: low,
            normal: false,
            out,
        }),
    }
}

struct Fill<'a, T> {
    key: [u32; 2],
    first_row: u64,
    cols: usize,
    scale: f64,
    shift: f64,
    normal: bool,
    out: &'a mut [T],
}

impl<T: Real> Kernel<T> for Fill<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = T>>(self, _s: S) {
        let (scale, shift) = (self.scale as f32, self.shift as f32);
        for (i, row) in self.out.chunks_exact_mut(self.cols).enumerate() {
            for (group, part) in row.chunks_mut(WORDS).enumerate() {
                let [a, b, c, d] = words_of_row(self.key, self.first_row + i as u64, group);
                let mut values = [0.0f32; WORDS];
                let (left, right) = values.split_at_mut(2 * LANES);
                if self.normal {
                    box_muller(&a, &b, left);
                    if part.len() > 2 * LANES {
                        box_muller(&c, &d, right);
                    }
                } else {
                    for (words, out) in [a, b].iter().zip(left.chunks_exact_mut(LANES)) {
                        unit(words, out);
                    }
                    for (words, out) in [c, d].iter().zip(right.chunks_exact_mut(LANES)) {
                        unit(words, out);
                    }
                }
                for v in &mut values {
                    *v = *v * scale + shift;
                }
                for (x, v) in part.iter_mut().zip(values) {
                    *x = T::from_f64(f64::from(v));
                }
            }
        }
    }
}

/// Numbers in [0, 1) with 24 random bits.
#[inline(always)]
fn unit(words: &[u32; LANES], out: &mut [f32]) {
    for (out, word) in out.iter_mut().zip(words) {
        *out = (*word >> 8) as i32 as f32 * (1.0 / 16_777_216.0);
    }
}

/// Pairs of standard normal numbers from pairs of words: sqrt(-2 ln u) (cos, sin)(2 pi v). Written without
/// branches for the vectoriser; logarithm, sine and cosine are Cephes' single precision polynomials.
#[inline(always)]
fn box_muller(a: &[u32; LANES], b: &[u32; LANES], out: &mut [f32]) {
    let (cosines, sines) = out.split_at_mut(LANES);
    for i in 0..LANES {
        // u in (0, 1), never an end.
        let u = ((a[i] >> 9) as i32 as f32 + 0.5) * (1.0 / 8_388_608.0);
        let radius = (-2.0 * ln(u)).sqrt();
        // A quarter turn's number and what is left of the angle, within an eighth of a turn.
        let turn = b[i].wrapping_add(1 << 29);
        let quarter = turn >> 30;
        let rest = ((turn & 0x3fff_ffff) as i32 - (1 << 29)) as f32;
        let x = rest * (std::f32::consts::FRAC_PI_2 / 1_073_741_824.0);
        let z = x * x;
        let sin = ((-1.951_529_6e-4 * z + 8.332_161e-3) * z - 1.666_665_5e-1) * z * x + x;
        let cos = ((2.443_315_7e-5 * z - 1.388_731_6e-3) * z + 4.166_664_6e-2) * z * z - 0.5 * z + 1.0;
        let (s, c) = if quarter & 1 == 0 { (sin, cos) } else { (cos, sin) };
        let s_sign = (quarter & 2) << 30;
        let c_sign = (quarter.wrapping_add(1) & 2) << 30;
        cosines[i] = radius * f32::from_bits(c.to_bits() ^ c_sign);
        sines[i] = radius * f32::from_bits(s.to_bits() ^ s_sign);
    }
}

/// Natural logarithm of a normal positive number.
#[inline(always)]
fn ln(x: f32) -> f32 {
    let bits = x.to_bits();
    // Mantissa in [sqrt(1/2), sqrt(2)).
    let shifted = bits.wrapping_sub(0x3f35_04f3);
    let e = (shifted as i32 >> 23) as f32;
    let m = f32::from_bits((shifted & 0x007f_ffff) + 0x3f35_04f3) - 1.0;
    let z = m * m;
    let mut p = 7.037_684e-2;
    for c in [
        -1.151_461e-1,
        1.167_699_9e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_8e-1,
        2.000_071_5e-1,
        -2.499_999_4e-1,
        3.333_333e-1,
    ] {
        p = p * m + c;
    }
    let y = p * m * z + e * -2.121_944_4e-4 - 0.5 * z;
    m + y + e * 0.693_359_4
}
