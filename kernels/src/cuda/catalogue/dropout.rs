//! `dropout.cu`: dropout.

use super::dense::MOST_BLOCKS;
use super::{In, Out, Real, Shape, catalogue};

catalogue! { "dropout.cu":
    /// y = factor x where the column's word is at least `threshold`, else 0; `all`: everything is dropped. Key and row keys
    /// are those of the CPU's kernel, the key mixed. Its own gradient.
    dropout(key0: u32, key1: u32, threshold: u32, all: u32, factor: f32, row_keys: In<u64>, x: In<Real>, x_stride: u64, y: Out<Real>, y_stride: u64, add: u32, rows: u64, columns: u64) => Shape::blocks(rows.saturating_mul(columns.div_ceil(64) * 4).div_ceil(256).min(MOST_BLOCKS), 256);
}
