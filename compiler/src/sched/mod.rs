//! The modulo scheduler: in which order, how far ahead and on which engine the operations of a step run.
//!
//! Four parts: *latency* (expected sizes and times), *resources* (engines at work), *policy* (what goes first),
//! *limits* (memory, batches in flight). See docs/scheduling.md. It works on the schedule's own operations, in
//! reference order and with a buffer for every value, and gives the finished program: order, stages, priorities,
//! chunks, dependencies, storage, and for every operation the reason why it stands where it stands.

pub mod bounds;
pub mod candidate;
pub mod deps;
pub mod freeze;
pub mod graph;
pub mod latency;
pub mod limits;
pub mod play;
pub mod policy;
pub mod problem;
pub mod rows;
pub mod sizes;
pub mod storage;

use fs_schedule::Strategy;

/// Why there is no schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchedError {
    /// A defect of the compiler.
    #[error("the scheduler failed: {0}")]
    Defect(String),
}

/// What may be asked of the scheduler.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// What blocks on what.
    pub strategy: Strategy,
    /// Most batches in flight.
    pub in_flight: Option<u32>,
}
