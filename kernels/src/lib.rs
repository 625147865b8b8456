//! What runs on a device: CPU kernels for every primitive, forward and backward.
//!
//! Kernels are functions over strided views ([`Mat`], [`MatMut`]) of `f32`, or of `f64` so that gradients can be
//! held against differences. They are single-threaded: a rank has one compute thread. Workspace is passed in or
//! kept per thread, and grows once. Hot loops are written once over vector types and compiled for AVX-512, AVX2
//! and plain arrays ([`simd`]); which runs is found out at run time.
#![allow(unsafe_code, reason = "this crate is where vector instructions and strided views live")]
#![allow(clippy::needless_range_loop, reason = "fixed-size register arrays are indexed together")]

pub mod allocator;
pub mod asked;
pub mod attention;
pub mod cuda;
pub mod dropout;
pub mod elementwise;
pub mod embedding;
mod idset;
pub mod interaction;
pub mod loss;
mod mat;
pub mod matmul;
pub mod memory;
mod micro;
pub mod mxint8;
pub mod norm;
pub mod optimizer;
pub mod partition;
pub mod positional;
pub mod random;
pub mod reduce;
mod rows;
mod scratch;
mod segments;
pub mod simd;
pub mod unique;

pub use mat::{Mat, MatMut, Write};
pub use scratch::Scratch;
pub use simd::real::{self, Real};
