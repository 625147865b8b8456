//! `rows.cu`: moving rows, and pools of rows.

use super::{In, Out, Real, Shape, catalogue};

/// Rows that a thread moves.
const ROWS_AT_ONCE: u64 = 4;

fn tiles(n: u32, cols: u32) -> Shape {
    Shape::tiles(u64::from(n), u64::from(cols), ROWS_AT_ONCE)
}

fn items(n: u32) -> Shape {
    Shape::items(u64::from(n))
}

catalogue! { "rows.cu":
    /// `y[i] = table[rows[at[i]]]`, or `table[rows[i]]` without `at`, rounded to what rows are on their way.
    gather(
        n: u32, cols: u32, table: In<f32>, table_rows: u32, table_stride: u64, rows: In<u32>, entries: u32,
        at: In<u32>, y: Out<Real>, y_stride: u64, add: u32, fault: Out<u32>,
    ) => tiles(n, cols);
    /// `y[at[i]] = x[i]`. `at` holds no position twice.
    scatter(
        n: u32, cols: u32, x: In<Real>, x_stride: u64, at: In<u32>, y: Out<Real>, y_rows: u32, y_stride: u64,
        fault: Out<u32>,
    ) => tiles(n, cols);
    /// `y[i] = x[at[i]]`: activations, from unique rows to one row per position.
    expand(
        n: u32, cols: u32, x: In<Real>, x_rows: u32, x_stride: u64, at: In<u32>, y: Out<Real>, y_stride: u64,
        add: u32, fault: Out<u32>,
    ) => tiles(n, cols);
    /// `y[at[i]] = x[i]`, exactly: rows that arrived, as they are used. `at` holds no position twice.
    merge(
        n: u32, cols: u32, x: In<Real>, x_stride: u64, at: In<u32>, y: Out<f32>, y_rows: u32, y_stride: u64,
        fault: Out<u32>,
    ) => tiles(n, cols);
    /// `y[i] = x[at[i]]`, rounded: gradients of rows, those of a class, as they travel.
    split(
        n: u32, cols: u32, x: In<f32>, x_rows: u32, x_stride: u64, at: In<u32>, y: Out<Real>, y_stride: u64, add: u32,
        fault: Out<u32>,
    ) => tiles(n, cols);
    /// `y[at[i]] = x[i]`: gradients of rows.
    scatter_floats(
        n: u32, cols: u32, x: In<f32>, x_stride: u64, at: In<u32>, y: Out<f32>, y_rows: u32, y_stride: u64,
        fault: Out<u32>,
    ) => tiles(n, cols);
    /// `y[b]` (+)= the sum of `x[at[p]]` over the positions p of bag b, or their mean. Empty bags give zeros.
    pool(
        bags: u32, cols: u32, x: In<Real>, x_rows: u32, x_stride: u64, at: In<u32>, offsets: In<u32>, mean: u32,
        y: Out<Real>, y_stride: u64, add: u32, fault: Out<u32>,
    ) => Shape::tiles(u64::from(bags), u64::from(cols), 1);
    /// `bags[p]` = the bag of position p.
    bags_of_positions(
        n: u32, bags: u32, offsets: In<u32>, out: Out<u32>, fault: Out<u32>,
    ) => items(n);
}
