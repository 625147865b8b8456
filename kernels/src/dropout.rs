//! Dropout whose mask depends on the sample, never on the rank.

use crate::mat::{Mat, MatMut};
use crate::random::{RandomKey, WORDS, words_of_row};
use crate::real::Real;
use crate::simd::{Kernel, Simd};

/// y = x / (1 - p) where kept, 0 where dropped. Element c of row i is dropped with probability `p` by a random
/// number that depends on `(key, row_keys[i], c)` only.
pub fn dropout<T: Real>(x: Mat<T>, p: f64, key: RandomKey, row_keys: &[u64], y: MatMut<T>) {
    assert!(
        (x.rows(), x.cols()) == (y.rows(), y.cols()) && x.rows() == row_keys.len(),
        "{x:?} with {} row keys does not fit {y:?}",
        row_keys.len()
    );
    T::dispatch(Dropout { x, p, key: key.mixed(), row_keys, y });
}

/// Gradient of [`dropout`]: the same mask and factor, applied to gy.
pub fn dropout_grad<T: Real>(gy: Mat<T>, p: f64, key: RandomKey, row_keys: &[u64], gx: MatMut<T>) {
    dropout(gy, p, key, row_keys, gx);
}

struct Dropout<'a, T> {
    x: Mat<'a, T>,
    p: f64,
    key: [u32; 2],
    row_keys: &'a [u64],
    y: MatMut<'a, T>,
}

impl<T: Real> Kernel<T> for Dropout<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = T>>(mut self, _s: S) {
        let all = 4_294_967_296.0;
        let threshold = (self.p * all).clamp(0.0, all) as u64;
        if threshold == 1 << 32 {
            self.y.fill(T::ZERO);
            return;
        }
        let threshold = threshold as u32;
        let factor = T::from_f64(1.0 / (1.0 - self.p));
        for (i, row_key) in self.row_keys.iter().enumerate() {
            let (x, y) = (self.x.row(i), self.y.row_mut(i));
            for (group, (x, y)) in x.chunks(WORDS).zip(y.chunks_mut(WORDS)).enumerate() {
                let words = words_of_row(self.key, *row_key, group);
                let words = words.as_flattened();
                for ((x, y), word) in x.iter().zip(y).zip(words) {
                    *y = if *word >= threshold { *x * factor } else { T::ZERO };
                }
            }
        }
    }
}
