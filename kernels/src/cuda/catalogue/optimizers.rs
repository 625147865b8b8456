//! `optimizers.cu`: optimizers of tables.

use super::{In, Out, Shape, catalogue};

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
}
