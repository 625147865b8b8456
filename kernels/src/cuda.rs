//! Kernels in CUDA C: their sources, what they are called with, and a way to run them without a GPU.
//!
//! The sources (`kernels/cuda/`) are compiled for a device by NVRTC when a run starts, so they are part of this library
//! as texts. The catalogue says what each kernel is called with and how many threads that takes; calls
//! are made from it and are the same for a device and for the emulation, which is the same sources compiled as C++
//! (cargo feature `emulated`).

pub mod catalogue;
pub mod driver;
#[cfg(all(feature = "emulated", target_os = "linux"))]
pub mod emulated;
pub mod joined;
pub mod lists;
pub mod sources;

pub use catalogue::{Call, In, Kernel, Out, Shape};
