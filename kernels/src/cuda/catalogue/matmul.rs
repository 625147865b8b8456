//! `matmul.cu`: matrix products without a library.

use super::{In, Out, Real, Shape, catalogue};

/// Rows and columns of a block's tile.
const TILE: u64 = 64;

fn tiles(m: u64, n: u64) -> Shape {
    Shape::blocks(n.div_ceil(TILE).saturating_mul(m.div_ceil(TILE)), 256)
}

catalogue! { "matmul.cu":
    /// c = a b + bias, or added into c; a is m x k and b is k x n, each with its (row, column) strides, so either may be
    /// transposed. Bias may be null. A grid of n / 64 times m / 64 blocks
    /// of 256 threads.
    matmul(a: In<Real>, a_row: u64, a_column: u64, b: In<Real>, b_row: u64, b_column: u64, bias: In<f32>, c: Out<Real>, c_stride: u64, add: u32, m: u64, n: u64, k: u64) => tiles(m, n);
    /// The same with a result in floats: gradients of parameters.
    matmul_to_float(a: In<Real>, a_row: u64, a_column: u64, b: In<Real>, b_row: u64, b_column: u64, c: Out<f32>, c_stride: u64, add: u32, m: u64, n: u64, k: u64) => tiles(m, n);
}
