//! `interaction.cu`: dot interaction.

use super::dense::MOST_BLOCKS;
use super::{In, Out, Real, Shape, catalogue};

/// Words of a feature in shared memory.
const PIECE_STRIDE: u32 = 33;

/// The most features whose pieces, and the gradients of whose pairs, find room in shared memory.
pub const MOST_FEATURES: u32 = 127;

fn samples_by_blocks(samples: u64, features: u32, more: u32) -> Shape {
    let shared = (features * PIECE_STRIDE + more) * 4;
    Shape { shared, ..Shape::blocks(samples.min(MOST_BLOCKS), 128) }
}

catalogue! { "interaction.cu":
    /// Column p of y is x_i . x_j for the pairs i < j in the order (0, 1), (0, 2), ..., (1, 2), ... Dynamic shared memory:
    /// features x 33 floats. A grid of as many blocks as one likes.
    dot_interaction(addresses: In<u64>, strides: In<u64>, features: u32, y: Out<Real>, y_stride: u64, add: u32, samples: u64, columns: u64) => samples_by_blocks(samples, features, 0);
    /// gx_i = sum over j, rising, of gy at the pair of i and j times x_j. `adds` has an `add` for each feature. Dynamic shared
    /// memory: features x 33 + pairs floats.
    dot_interaction_grad(addresses: In<u64>, strides: In<u64>, features: u32, gy: In<Real>, gy_stride: u64, grad_addresses: In<u64>, grad_strides: In<u64>, adds: In<u8>, samples: u64, columns: u64) => samples_by_blocks(samples, features, features * features.saturating_sub(1) / 2);
}
