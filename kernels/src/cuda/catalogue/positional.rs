//! `positional.cu`: learned positional embeddings.

use super::dense::rows_by_warps;
use super::{In, Out, Real, catalogue};

catalogue! { "positional.cu":
    /// y = x + weight[position], positions counted within each sequence. `offsets` has sequences + 1 elements. A position
    /// that `weight` (positions rows) lacks raises a fault and adds nothing.
    positional(x: In<Real>, x_stride: u64, offsets: In<u64>, sequences: u64, weight: In<f32>, positions: u64, y: Out<Real>, y_stride: u64, add: u32, tokens: u64, columns: u64, fault: Out<u32>) => rows_by_warps(tokens);
    /// gweight[position] = sum of gy over the sequences that reach the position, in their order; a warp takes a position.
    positional_grad(gy: In<Real>, gy_stride: u64, offsets: In<u64>, sequences: u64, gweight: Out<f32>, add: u32, positions: u64, columns: u64) => rows_by_warps(positions);
}
