//! What a timeline is made of: operations, lanes, pieces of work and idle times. Times are in nanoseconds.

use fs_schedule::{Engine, Op, Place};
use serde::Serialize;

use super::palette::Purpose;

/// An operation.
#[derive(Debug, Clone, Serialize)]
pub struct OpView {
    /// Unique name.
    pub name: String,
    /// What it does, as the schedule's actions are called.
    pub action: String,
    /// What it is for.
    pub kind: Purpose,
    /// Class of reuse distance, for people, if it works on rows of one.
    pub class: Option<String>,
    /// Position of its engine's lane.
    pub lane: u32,
    /// Batch offset: in step n it works on batch n + stage.
    pub stage: i32,
    /// Microbatch.
    pub microbatch: Option<u32>,
    /// Priority: greater goes first.
    pub priority: i32,
    /// Bytes of a chunk.
    pub chunk: Option<u64>,
    /// Planned start in its step.
    pub start: u64,
    /// Planned work.
    pub time: u64,
    /// Planned time after that until what waits for it may start.
    pub lag: u64,
    /// When that is, as drawn: later than `start + time + lag` if urgent ones pass it.
    pub end: f64,
    /// Expected work.
    pub size: Size,
    /// What it needs, by falling end.
    pub deps: Vec<Predecessor>,
    /// Why it stands where it stands.
    pub reason: String,
    /// On the longest cycle.
    pub on_cycle: bool,
}

/// Work in symbols and expected.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Size {
    /// Floating-point operations: polynomial and expected value.
    pub flops: (String, f64),
    /// Bytes of device memory.
    pub bytes: (String, f64),
    /// Bytes that leave the rank.
    pub wire: (String, f64),
}

/// Why an operation comes after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Reads what it wrote (or overwrites what it read).
    Data,
    /// Looks up rows that it may have updated, or the other way round.
    Rows,
    /// Dense parameters that it updates or reads.
    Parameter,
    /// The batch that it loads.
    Batch,
    /// The schedule says so for another reason: memory, batches in flight, the strategy's order.
    Order,
    /// Stands before it in the queue of its engine.
    Queue,
}

/// An operation that another needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Predecessor {
    /// Position of the operation that must end first.
    pub op: u32,
    /// Steps before: 0 is the instance of the same step.
    pub distance: u32,
    /// Why.
    pub reason: Reason,
    /// The schedule states it as a dependency; else a queue or other dependencies imply it.
    pub stated: bool,
}

/// An operation of the longest cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CycleLink {
    /// The operation.
    pub op: u32,
    /// Steps from the instance of the operation before it in the cycle.
    pub distance: i32,
    /// Batches from it.
    pub batches: u32,
}

/// What an engine does in the steady state.
#[derive(Debug, Clone, Serialize)]
pub struct Lane {
    /// Which.
    pub engine: Engine,
    /// Its name for people.
    pub name: &'static str,
    /// Work of one period by start; starts lie in `[0, step)`.
    pub pieces: Vec<Piece>,
    /// Idle times of one period by end; ends lie in `[0, step)` or at its end if nothing runs at all.
    pub gaps: Vec<Gap>,
    /// Work per step.
    pub busy: f64,
}

/// Uninterrupted work on an operation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Piece {
    /// The operation.
    pub op: u32,
    /// Its step relative to the period's: 0, or negative if it began in an earlier step's frame.
    pub step: i32,
    /// From here.
    pub start: f64,
    /// To here; may lie in the next period.
    pub end: f64,
    /// The instance begins here.
    pub first: bool,
    /// The instance ends here.
    pub last: bool,
}

/// Idle time of an engine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gap {
    /// From here; negative if it begins in the period before.
    pub start: f64,
    /// To here.
    pub end: f64,
    /// The operation that ends it, and its step.
    pub op: Option<(u32, i32)>,
    /// What that operation waited for.
    pub waits_for: Option<Predecessor>,
    /// For people: `waits for x of the step before`.
    pub text: String,
}

/// A piece of a certain step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Instance {
    /// The operation.
    pub op: u32,
    /// Step of the instance.
    pub step: i64,
    /// Batch that it works on.
    pub batch: i64,
    /// From here, since the start of step 0.
    pub start: f64,
    /// To here.
    pub end: f64,
    /// The instance begins here.
    pub first: bool,
    /// The instance ends here.
    pub last: bool,
}

/// The buffers that an operation means: position and batch offset.
pub(super) fn buffers(op: &Op) -> impl Iterator<Item = (u32, i32)> + '_ {
    op.reads.iter().chain(&op.writes).filter_map(|o| match o.place {
        Place::Buffer(b) => Some((b, o.batch)),
        _ => None,
    })
}
