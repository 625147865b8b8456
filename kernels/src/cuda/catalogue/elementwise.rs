//! `elementwise.cu`: elementwise operations, and the sum of an all-reduce.

use super::dense::packs;
use super::{In, Out, Real, Shape, catalogue};

catalogue! { "elementwise.cu":
    /// y = function(x)
    unary(function: u32, x: In<Real>, x_stride: u64, y: Out<Real>, y_stride: u64, add: u32, rows: u64, columns: u64) => packs(rows, columns);
    /// z += bias in every row, and y = function(z): what is left of a linear layer and a function of it behind the product.
    bias_unary(function: u32, bias: In<f32>, z: Out<Real>, z_stride: u64, y: Out<Real>, y_stride: u64, rows: u64, columns: u64) => packs(rows, columns);
    /// gx = function'(x) gy; relu's derivative at 0 is 0.
    unary_grad(function: u32, x: In<Real>, x_stride: u64, gy: In<Real>, gy_stride: u64, gx: Out<Real>, gx_stride: u64, add: u32, rows: u64, columns: u64) => packs(rows, columns);
    /// y = a b
    mul(a: In<Real>, a_stride: u64, b: In<Real>, b_stride: u64, y: Out<Real>, y_stride: u64, add: u32, rows: u64, columns: u64) => packs(rows, columns);
    /// ga = b gy, gb = a gy
    mul_grad(a: In<Real>, a_stride: u64, b: In<Real>, b_stride: u64, gy: In<Real>, gy_stride: u64, ga: Out<Real>, ga_stride: u64, ga_add: u32, gb: Out<Real>, gb_stride: u64, gb_add: u32, rows: u64, columns: u64) => packs(rows, columns);
    /// y = factor x
    scale(factor: f32, x: In<Real>, x_stride: u64, y: Out<Real>, y_stride: u64, add: u32, rows: u64, columns: u64) => packs(rows, columns);
    /// y = x
    copy(x: In<Real>, x_stride: u64, y: Out<Real>, y_stride: u64, add: u32, rows: u64, columns: u64) => packs(rows, columns);
    /// y = value
    fill(value: f32, y: Out<Real>, y_stride: u64, rows: u64, columns: u64) => packs(rows, columns);
    /// The same for floats.
    fill_floats(value: f32, y: Out<f32>, n: u64) => Shape::items(n);
    /// y = x0 + x1 + ..., from left to right, of the first `count` (1 to 8), rounded after each, so that a sum of three has
    /// the bits of two sums of two; more are added by more launches that begin with y.
    add(count: u32, x0: In<Real>, stride0: u64, x1: In<Real>, stride1: u64, x2: In<Real>, stride2: u64, x3: In<Real>, stride3: u64, x4: In<Real>, stride4: u64, x5: In<Real>, stride5: u64, x6: In<Real>, stride6: u64, x7: In<Real>, stride7: u64, y: Out<Real>, y_stride: u64, add: u32, rows: u64, columns: u64) => packs(rows, columns);
    /// y += bias in every row
    add_bias(bias: In<f32>, y: Out<Real>, y_stride: u64, rows: u64, columns: u64) => packs(rows, columns);
    /// y = x, rounded to activations: input features, and parameters for matrix products.
    real_from_float(x: In<f32>, x_stride: u64, y: Out<Real>, y_stride: u64, add: u32, rows: u64, columns: u64) => packs(rows, columns);
    /// The other way, exactly.
    float_from_real(x: In<Real>, x_stride: u64, y: Out<f32>, y_stride: u64, add: u32, rows: u64, columns: u64) => packs(rows, columns);
    /// out = parts[0] + parts[1] + ..., from left to right, rounded once: an all-reduce's sum over ranks. `parts` holds the
    /// addresses of `count` parts of n numbers each.
    sum_in_rank_order(parts: In<u64>, count: u32, out: Out<Real>, n: u64) => Shape::items(n.div_ceil(4));
}
