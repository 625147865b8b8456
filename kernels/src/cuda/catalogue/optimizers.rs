//! `optimizers.cu`: optimizers of tables.
//!
//! Rows are distinct, and the list may end with some that are [`NO_ROW`]: these are passed over.

use super::{In, Out, Shape, catalogue};

/// A row that there is not.
pub const NO_ROW: u32 = u32::MAX;

catalogue! { "optimizers.cu":
    /// Stochastic gradient descent: w -= rate g.
    sgd_rows(
        n: u32, cols: u32, rate: f32, decay: f32, rows: In<u32>, grads: In<f32>, grads_stride: u64, table: Out<f32>,
        table_rows: u32, table_stride: u64, fault: Out<u32>,
    ) => Shape::tiles(u64::from(n), u64::from(cols), 1);
    /// Row-wise Adagrad: a state for each row.
    rowwise_adagrad_rows(
        n: u32, cols: u32, rate: f32, eps: f32, decay: f32, rows: In<u32>, grads: In<f32>, grads_stride: u64,
        table: Out<f32>, table_rows: u32, table_stride: u64, state: Out<f32>, fault: Out<u32>,
    ) => Shape::tiles(u64::from(n), u64::from(cols), 1);
    /// Adagrad: a state for each element.
    adagrad_rows(
        n: u32, cols: u32, rate: f32, eps: f32, decay: f32, rows: In<u32>, grads: In<f32>, grads_stride: u64,
        table: Out<f32>, table_rows: u32, table_stride: u64, state: Out<f32>, fault: Out<u32>,
    ) => Shape::tiles(u64::from(n), u64::from(cols), 1);
    /// Adam whose moments move for touched rows only; `rate` has the corrections for the step, `keep1` and `keep2` are
    /// one less the betas.
    adam_rows(
        n: u32, cols: u32, rate: f32, eps: f32, decay: f32, keep1: f32, keep2: f32, rows: In<u32>, grads: In<f32>,
        grads_stride: u64, table: Out<f32>, table_rows: u32, table_stride: u64, first: Out<f32>, second: Out<f32>,
        fault: Out<u32>,
    ) => Shape::tiles(u64::from(n), u64::from(cols), 1);
    /// Keeps gradients instead: `captured[rows[i]] += grads[i]`.
    capture_rows(
        n: u32, cols: u32, rows: In<u32>, grads: In<f32>, grads_stride: u64, captured: Out<f32>, table_rows: u32,
        fault: Out<u32>,
    ) => Shape::tiles(u64::from(n), u64::from(cols), 1);
    /// `kept[i] = from[rows[i]]`: what rows hold before they are updated.
    keep_rows(
        n: u32, cols: u32, rows: In<u32>, from: In<f32>, table_rows: u32, kept: Out<f32>, fault: Out<u32>,
    ) => Shape::tiles(u64::from(n), u64::from(cols), 1);
}
