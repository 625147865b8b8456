//! `dense_optimizers.cu`: optimizers of dense parameters.

use super::dense::MOST_BLOCKS;
use super::{In, Out, Real, Shape, catalogue};

catalogue! { "dense_optimizers.cu":
    /// w -= lr b with b = momentum b + g; g includes `decay w`. Without a momentum buffer (null) b = g.
    dense_sgd(w: Out<f32>, g: In<f32>, buffer: Out<f32>, rounded: Out<Real>, lr: f32, momentum: f32, decay: f32, n: u64) => Shape::blocks(n.div_ceil(256).min(MOST_BLOCKS), 256);
    /// Adam: m += keep1 (g - m), v += keep2 (g^2 - v), w -= rate m / (sqrt(v) root + eps); g includes `decay w`. With `keep` =
    /// 1 - beta, `rate` = lr / (1 - beta1^step) and `root` = 1 / sqrt(1 - beta2^step).
    dense_adam(w: Out<f32>, g: In<f32>, m: Out<f32>, v: Out<f32>, rounded: Out<Real>, rate: f32, root: f32, keep1: f32, keep2: f32, eps: f32, decay: f32, n: u64) => Shape::blocks(n.div_ceil(256).min(MOST_BLOCKS), 256);
}
