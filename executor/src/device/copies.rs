//! What carried out the copies of a run, for its report.

use serde::Serialize;

/// What a device has for copies, and what it used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CopyUse {
    /// Name of the device.
    pub device: String,
    /// Engines that it has for copies.
    pub copy_engines: u32,
    /// Multiprocessors, which copies may take from kernels.
    pub multiprocessors: u32,
    /// By operation, way and what carried them out.
    pub transfers: Vec<TransferCopies>,
}

/// Copies of an operation that went one way by one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TransferCopies {
    /// The operation's name in the schedule, or what else they belong to.
    pub operation: String,
    /// `to the device`, `to the host`, `within the device` or `other`.
    pub way: &'static str,
    /// `a copy engine (channel N)`, `multiprocessors` or `unknown`: which engine a channel leads to is not known.
    pub by: String,
    /// How many.
    pub copies: u64,
    /// Bytes of them all.
    pub bytes: u64,
    /// How long they took, one after the other.
    pub nanoseconds: u64,
}
