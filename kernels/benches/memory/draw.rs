//! Rows drawn for measurements.

use fs_workload::random::{RandomKey, uniform_f64, uniform_index};

const KEY: RandomKey = RandomKey { seed: 1, stream: 0, step: 0 };

/// How rows are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Draw {
    /// All rows alike.
    Uniform,
    /// P(rank) ~ 1 / rank, ranks scattered over the table.
    Zipf,
}

/// `n` rows of `rows`, in the order drawn.
pub(crate) fn rows(draw: Draw, n: usize, rows: usize, salt: u64) -> Vec<u32> {
    let one = |i: usize| {
        let counter = i as u64 + (salt << 40);
        match draw {
            Draw::Uniform => uniform_index(KEY, counter, rows as u64) as u32,
            Draw::Zipf => {
                // The inverse of the distribution function ln(rank + 1) / ln(rows + 1).
                let rank = ((rows as f64 + 1.0).ln() * uniform_f64(KEY, counter)).exp() as u64 - 1;
                (rank.wrapping_mul(0x9E37_79B9_7F4A_7C15) % rows as u64) as u32
            }
        }
    };
    (0..n).map(one).collect()
}

/// The distinct ones, ascending, and the place of each drawn row among them.
pub(crate) fn unique(drawn: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let mut distinct = drawn.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let inverse = drawn.iter().map(|row| distinct.partition_point(|d| d < row) as u32).collect();
    (distinct, inverse)
}

/// The same rows in random order.
pub(crate) fn shuffled(rows: &[u32]) -> Vec<u32> {
    let mut rows = rows.to_vec();
    for i in (1..rows.len()).rev() {
        let j = uniform_index(KEY, i as u64 + (99 << 40), i as u64 + 1) as usize;
        rows.swap(i, j);
    }
    rows
}
