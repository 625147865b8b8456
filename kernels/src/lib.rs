//! What runs on a device: CPU kernels for every primitive, forward and backward.
#![allow(unsafe_code, reason = "this crate is where vector instructions and strided views live")]

pub mod dropout;
pub mod elementwise;
pub mod embedding;
pub mod interaction;
pub mod loss;
pub mod mat;
pub mod matmul;
mod micro;
pub mod norm;
pub mod optimizer;
pub mod positional;
pub mod random;
pub mod real;
pub mod scratch;
pub mod simd;

pub use mat::{Mat, MatMut, Write};
pub use real::Real;
pub use scratch::Scratch;
