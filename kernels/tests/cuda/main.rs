//! CUDA kernels, emulated, against the CPU kernels of the same jobs.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "launches work on addresses")]

#[path = "../common/mod.rs"]
mod common;

mod attention;
mod carried;
mod catalogue;
mod dense;
mod device;
mod execution;
mod fused;
mod hot;
mod joined;
mod lists;
mod losses;
mod matrix;
mod mxint8;
mod numbers;
mod products;
mod ranking;
mod relays;
mod rows;
mod sums;
