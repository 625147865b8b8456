//! `initial.cu`: initial values.

use super::dense::MOST_BLOCKS;
use super::{In, Out, Shape, catalogue};

catalogue! { "initial.cu":
    /// Random values: `scale` times a standard normal number (`normal`) or one in [0, 1), plus `shift`. Row i of `out` is row
    /// `numbers[i]` of the table, or `first_row + i` where there are no numbers; its columns are those from `first_column`.
    initial_random(key0: u32, key1: u32, normal: u32, scale: f32, shift: f32, first_row: u64, numbers: In<u64>, first_column: u32, out: Out<f32>, rows: u64, columns: u64) => Shape::blocks(rows.saturating_mul(columns).div_ceil(256).min(MOST_BLOCKS), 256);
    /// (((row 2654435761 + column 40503 + salt 97) mod 2^32) / 2^32 - 0.5) 2 scale; rows and columns as above.
    initial_hash(salt: u64, scale: f64, first_row: u64, numbers: In<u64>, first_column: u32, out: Out<f32>, rows: u64, columns: u64) => Shape::blocks(rows.saturating_mul(columns).div_ceil(256).min(MOST_BLOCKS), 256);
}
