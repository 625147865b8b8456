//! MXINT8: rows as numbers of 8 bits, with a power of two for each 32 of a row.
//!
//! The format of the OCP Microscaling Formats specification 1.0 (section 5.3.4): an element is a multiple of `2^(X - 6)` from -127
//! to 127, and the 32 elements of a block, the last one's perhaps fewer, share `X`, which is kept as `X + 127` in a byte. `X` is that
//! of the greatest element's own exponent, so it takes 64 to 127 multiples, and elements are rounded to the nearest, to the even
//! one of two; what would become 128 becomes 127. A block with what is no finite number has the byte 255 and is none when it is read.
//! `X` is at least -119: what is no normal float becomes 0 then, and no machine's way with such numbers matters.
//!
//! A block that is rounded again stays as it is: its greatest element still takes 64 multiples at least.

use crate::{Mat, MatMut, Real};

/// Elements that share a power of two.
pub const BLOCK: usize = 32;

/// The byte of a block that holds no numbers.
const NONE: u8 = u8::MAX;

/// The least `X`, as it is kept.
const LEAST: u8 = 127 - 119;

/// Bytes of a row: its elements', then its blocks'.
pub const fn row_bytes(columns: usize) -> usize {
    columns.saturating_add(columns.div_ceil(BLOCK))
}

/// A block's power of two, as it is kept.
fn scale<T: Real>(block: &[T]) -> u8 {
    let greatest = block.iter().map(|x| single(*x).to_bits() & 0x7fff_ffff).max().unwrap_or(0);
    let exponent = (greatest >> 23) as u8;
    exponent.max(LEAST)
}

fn single<T: Real>(x: T) -> f32 {
    x.to_f64() as f32
}

/// Sums of small numbers with 1.5 2^23 are whole ones, to the even of two.
const WHOLE: f32 = 12_582_912.0;

/// What a block's numbers are multiplied by, and what whole multiples are after.
fn units(scale: u8) -> (f32, f32) {
    match scale {
        NONE => (0.0, f32::NAN),
        _ => (f32::from_bits((260 - u32::from(scale)) << 23), f32::from_bits((u32::from(scale) - 6) << 23)),
    }
}

/// A number in whole multiples; of a block that holds no numbers it may be anything.
#[inline(always)]
fn multiples<T: Real>(x: T, inverse: f32) -> f32 {
    let nearest = (single(x) * inverse + WHOLE) - WHOLE;
    // What is no number becomes one.
    let most = if nearest < 127.0 { nearest } else { 127.0 };
    if most > -127.0 { most } else { -127.0 }
}

/// Every row becomes what arrives where it is sent.
pub fn round<T: Real>(mut y: MatMut<T>) {
    for i in 0..y.rows() {
        for block in y.row_mut(i).chunks_mut(BLOCK) {
            let (inverse, unit) = units(scale(block));
            // Zeros are positive.
            for x in block {
                *x = T::from_f64(f64::from(multiples(*x, inverse) * unit + 0.0));
            }
        }
    }
}

/// Appends rows as they travel.
pub fn write<T: Real>(rows: Mat<T>, bytes: &mut Vec<u8>) {
    bytes.reserve(rows.rows() * row_bytes(rows.cols()));
    for i in 0..rows.rows() {
        let row = rows.row(i);
        for block in row.chunks(BLOCK) {
            let (inverse, unit) = units(scale(block));
            let number =
                |x: &T| if unit.is_nan() { 0 } else { (multiples(*x, inverse) as i8).cast_unsigned() };
            bytes.extend(block.iter().map(number));
        }
        bytes.extend(row.chunks(BLOCK).map(scale));
    }
}

/// Appends the numbers of rows of so many columns; what is too short for a row at the end is left out.
pub fn read<T: Real>(bytes: &[u8], columns: usize, values: &mut Vec<T>) {
    if columns == 0 {
        return;
    }
    for row in bytes.chunks_exact(row_bytes(columns)) {
        let (elements, scales) = row.split_at(columns);
        for (block, scale) in elements.chunks(BLOCK).zip(scales) {
            let (_, unit) = units((*scale).max(LEAST));
            let number = |x: &u8| T::from_f64(f64::from(f32::from(x.cast_signed()) * unit));
            values.extend(block.iter().map(number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A block as the specification says it, in double precision.
    fn expected(block: &[f32]) -> Vec<f32> {
        if !block.iter().all(|x| x.is_finite()) {
            return vec![f32::NAN; block.len()];
        }
        let greatest = block.iter().map(|x| f64::from(x.abs())).fold(0.0, f64::max);
        let x = if greatest > 0.0 { greatest.log2().floor().max(-119.0) } else { -119.0 };
        let unit = (x - 6.0).exp2();
        let number = |x: &f32| ((f64::from(*x) / unit).round_ties_even().clamp(-127.0, 127.0) * unit) as f32;
        block.iter().map(number).collect()
    }

    fn rounded(row: &[f32]) -> Vec<f32> {
        let mut row = row.to_vec();
        let n = row.len();
        round(MatMut::new(&mut row, 1, n));
        row
    }

    /// Any bits of a float, or one near others.
    fn numbers() -> impl Strategy<Value = f32> {
        let near = (-200.0f32..200.0, -130i32..120).prop_map(|(x, e)| x * (e as f32).exp2());
        prop_oneof![4 => -2.0f32..2.0, 1 => near, 1 => any::<u32>().prop_map(f32::from_bits), 1 => Just(0.0)]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Rows become what the specification says, stay so, and arrive so.
        #[test]
        fn rows_arrive_as_they_are_rounded(row in prop::collection::vec(numbers(), 1..100)) {
            let mine = rounded(&row);
            let theirs: Vec<f32> = row.chunks(BLOCK).flat_map(expected).collect();
            prop_assert!(mine.iter().zip(&theirs).all(|(a, b)| a == b || a.is_nan() && b.is_nan()), "{mine:?} {theirs:?}");
            let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&rounded(&mine)), bits(&mine));
            for row in [&row, &mine] {
                let mut bytes = Vec::new();
                write(Mat::new(row, 1, row.len()), &mut bytes);
                prop_assert_eq!(bytes.len(), row_bytes(row.len()));
                let mut arrived: Vec<f32> = Vec::new();
                read(&bytes, row.len(), &mut arrived);
                prop_assert_eq!(bits(&arrived), bits(&mine));
            }
        }

        /// Whatever bytes come, there are as many numbers as rows have.
        #[test]
        fn any_bytes_are_rows(bytes in prop::collection::vec(any::<u8>(), 0..300), columns in 0..70usize) {
            let mut values: Vec<f64> = Vec::new();
            read(&bytes, columns, &mut values);
            let rows = if columns == 0 { 0 } else { bytes.len() / row_bytes(columns) };
            prop_assert_eq!(values.len(), rows * columns);
        }
    }

    /// By hand: greatest 1.99 of exponent 0 is 127 of 64ths, not 128; half of one is even; an own block has its own power.
    #[test]
    fn a_block_by_hand() {
        let mut row = vec![0.0; 33];
        row[..5].copy_from_slice(&[1.999, -1.0, 1.5 / 64.0, 2.5 / 64.0, -0.001]);
        row[32] = 1e-3;
        let mine = rounded(&row);
        assert_eq!(mine[..5], [127.0 / 64.0, -1.0, 2.0 / 64.0, 2.0 / 64.0, 0.0]);
        assert!(mine[4].is_sign_positive());
        assert!((mine[32] - 1e-3).abs() < 1e-5);
        let mut bytes = Vec::new();
        write(Mat::new(&row, 1, 33), &mut bytes);
        assert_eq!((bytes[0], bytes[1], bytes[33], bytes[34]), (127, 192, 127, 117));
        row[7] = f32::INFINITY;
        let mine = rounded(&row);
        assert!(mine[..32].iter().all(|x| x.is_nan()) && mine[32] > 0.0);
    }
}
