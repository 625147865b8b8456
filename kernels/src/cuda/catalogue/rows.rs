//! `rows.cu`: moving rows.

use super::{In, Out, Real, Shape, catalogue};

/// Rows that a thread moves.
const ROWS_AT_ONCE: u64 = 4;

fn tiles(n: u32, cols: u32) -> Shape {
    Shape::tiles(u64::from(n), u64::from(cols), ROWS_AT_ONCE)
}

catalogue! { "rows.cu":
    /// `y[i] = table[rows[at[i]]]` for i below n, or `table[rows[i]]` without `at`; `rows` has `entries`.
    gather(
        n: u32, cols: u32, table: In<f32>, table_rows: u32, table_stride: u64, rows: In<u32>, entries: u32, at: In<u32>,
        y: Out<Real>, y_stride: u64, add: u32, fault: Out<u32>,
    ) => tiles(n, cols);
    /// `y[at[i]] = x[i]` for i below n; `at` holds no position twice.
    scatter(
        n: u32, cols: u32, x: In<Real>, x_stride: u64, at: In<u32>, y: Out<Real>, y_rows: u32, y_stride: u64,
        fault: Out<u32>,
    ) => tiles(n, cols);
    /// `y[i] = x[at[i]]` for i below n: from unique rows to one row per position.
    expand(
        n: u32, cols: u32, x: In<Real>, x_rows: u32, x_stride: u64, at: In<u32>, y: Out<Real>, y_stride: u64, add: u32,
        fault: Out<u32>,
    ) => tiles(n, cols);
    /// `y[i] = x[at[i]]` for i below n: the gradients of a class.
    split(
        n: u32, cols: u32, x: In<f32>, x_rows: u32, x_stride: u64, at: In<u32>, y: Out<f32>, y_stride: u64, add: u32,
        fault: Out<u32>,
    ) => tiles(n, cols);
}
