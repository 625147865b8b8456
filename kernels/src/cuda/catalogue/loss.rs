//! `loss.cu`: losses.

use super::dense::rows_by_warps;
use super::{In, Out, Real, Shape, catalogue};

catalogue! { "loss.cu":
    /// loss = factor times the sum of the terms, as a float and, if wanted (not null), in double precision.
    sum_terms(terms: In<f64>, factor: f64, loss: Out<f32>, total: Out<f64>, n: u64) => Shape::blocks(1, 256);
    /// Binary cross-entropy with logits: terms max(x, 0) - x y + ln(1 + e^-|x|), and, if wanted (not null), glogits =
    /// (sigmoid(x) - y) norm.
    bce_with_logits(logits: In<Real>, logits_stride: u64, labels: In<f32>, norm: f64, terms: Out<f64>, glogits: Out<Real>, glogits_stride: u64, add: u32, n: u64) => Shape::items(n);
    /// Sampled softmax: the cross-entropy of each target among itself and `count` negatives, with logits h . row times
    /// `cold` (1 / temperature); a negative that is its own target does not count. `scale` is norm / temperature. Writes a
    /// term a token, and the gradients with respect to the dot products (tokens x (1 + count), target first), which also hold
    /// the logits meanwhile. An entry of `target` or `negatives` that is no row raises a fault and stands for row 0. A warp
    /// takes a token.
    sampled_softmax(h: In<Real>, h_stride: u64, rows: In<Real>, rows_stride: u64, row_count: u64, target: In<u32>, negatives: In<u32>, count: u32, cold: f32, scale: f64, terms: Out<f64>, dlogits: Out<f32>, tokens: u64, columns: u64, fault: Out<u32>) => rows_by_warps(tokens);
    /// gh[t] = sum of dlogits times rows, target first, then negatives in their order. A warp takes a token.
    sampled_softmax_grad(rows: In<Real>, rows_stride: u64, row_count: u64, target: In<u32>, negatives: In<u32>, count: u32, dlogits: In<f32>, gh: Out<Real>, gh_stride: u64, add: u32, tokens: u64, columns: u64, fault: Out<u32>) => rows_by_warps(tokens);
    /// grows[row] = sum of dlogits times h over all that ask for the row: first targets in order, then negatives in order. `starts`
    /// (row_count + 1) and `positions` list for each row where it stands in targets (0 .. tokens) followed by negatives
    /// (tokens ..), ascending. A warp takes a row and sums it whole.
    sampled_softmax_grad_rows(h: In<Real>, h_stride: u64, starts: In<u32>, positions: In<u32>, count: u32, dlogits: In<f32>, grows: Out<f32>, grows_stride: u64, add: u32, tokens: u64, row_count: u64, columns: u64) => rows_by_warps(row_count);
}
