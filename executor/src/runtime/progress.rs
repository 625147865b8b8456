//! How far the operations of one rank are, and whom that wakes.
//!
//! Every operation has one counter, the steps that it has done, written by the thread that runs it. Another one is
//! ready when the counters of those that it waits for are far enough. Every thread publishes where its queues stand
//! before it sleeps, so whoever completes an operation can see whether that lets a sleeping thread go on, and wakes it
//! only then. Of several that complete its last dependencies at once, at least one sees that all are done.

use super::plan::Plan;
use crate::sync::{AtomicU64, Ordering};
use crate::transport::event::{Event, publish};

/// A queue whose head waits for something else than operations of this rank.
const BUSY: u64 = u64::MAX;

/// How far the operations of one rank are.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Batches that exist: those below it.
    pub end: AtomicU64,
    /// Steps that each operation has done.
    done: Vec<AtomicU64>,
    /// Per engine and queue: operations that it has passed, or [`BUSY`].
    heads: Vec<Vec<AtomicU64>>,
}

impl Progress {
    /// At the start of up to `batches` batches.
    pub(crate) fn new(plan: &Plan, batches: u64) -> Self {
        Self {
            end: AtomicU64::new(batches),
            done: plan.ops.iter().map(|_| AtomicU64::new(0)).collect(),
            heads: plan.queues.iter().map(|own| own.iter().map(|_| AtomicU64::new(0)).collect()).collect(),
        }
    }

    /// The batch of an operation in a step, counted from the plan's first; `None` if there is none.
    pub(crate) fn batch(&self, plan: &Plan, op: usize, step: u64) -> Option<u64> {
        let batch = step as i64 - plan.stages.1 + plan.ops[op].stage;
        (batch >= 0 && (batch as u64) < self.end.load(Ordering::Acquire)).then_some(batch as u64)
    }

    /// Whether an operation has done a step.
    pub(crate) fn has_done(&self, op: usize, step: u64) -> bool {
        self.done[op].load(Ordering::Acquire) > step
    }

    /// Whether everything that an operation waits for is done.
    pub(crate) fn ready(&self, plan: &Plan, op: usize, step: u64) -> bool {
        // Whether there is a batch, and what is in it, is known once it is loaded.
        let loaded = plan
            .load_of(op, step)
            .is_none_or(|(load, at)| self.has_done(load, at) || self.batch(plan, op, step).is_none());
        let deps = &plan.ops[op].deps;
        loaded
            && deps
                .iter()
                .all(|(other, distance)| step < *distance || self.has_done(*other as usize, step - distance))
    }

    /// The operation after `passed` of a queue, and its step; `None` at the end of the run.
    pub(crate) fn head(&self, plan: &Plan, engine: usize, queue: usize, passed: u64) -> Option<(usize, u64)> {
        let ops = &plan.queues[engine][queue].ops;
        let (step, position) = (passed / ops.len() as u64, passed % ops.len() as u64);
        self.exists(plan, step).then(|| (ops[position as usize] as usize, step))
    }

    /// Whether there is such a step: steps go on until the last operation has had the last batch.
    pub(crate) fn exists(&self, plan: &Plan, step: u64) -> bool {
        let (last, first) = plan.stages;
        (step as i64) < self.end.load(Ordering::Acquire) as i64 + first - last
    }

    /// States where a queue stands; `None` while its head waits for other ranks or for time to pass.
    pub(crate) fn publish(&self, engine: usize, queue: usize, passed: Option<u64>) {
        self.heads[engine][queue].store(passed.unwrap_or(BUSY), Ordering::Relaxed);
    }

    /// Operations that a queue has passed; `None` while its head waits for other ranks or for time to pass.
    pub(crate) fn passed(&self, engine: usize, queue: usize) -> Option<u64> {
        let passed = self.heads[engine][queue].load(Ordering::Relaxed);
        (passed != BUSY).then_some(passed)
    }

    /// Batches that exist, as far as it is known.
    pub(crate) fn batches(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Steps that an operation has done.
    pub(crate) fn steps(&self, op: usize) -> u64 {
        self.done[op].load(Ordering::Acquire)
    }

    /// Counts a step of an operation as done and wakes the threads that this lets go on: how many.
    pub(crate) fn complete(&self, plan: &Plan, op: usize, step: u64, events: &[Event]) -> u64 {
        self.done[op].store(step + 1, Ordering::Release);
        let mut left = plan.ops[op].wakes;
        if left == 0 {
            return 0;
        }
        publish();
        let mut woken = 0;
        while left != 0 {
            let engine = left.trailing_zeros() as usize;
            left &= left - 1;
            // The batch that was loaded may be one that does not exist: then everything may come to its end.
            if events[engine].is_asleep() && (plan.load == Some(op) || self.waits_for_nothing(plan, engine)) {
                woken += u64::from(events[engine].wake());
            }
        }
        woken
    }

    /// Whether a queue of an engine, as its thread has left it, can go on.
    fn waits_for_nothing(&self, plan: &Plan, engine: usize) -> bool {
        self.heads[engine].iter().enumerate().any(|(queue, passed)| {
            let passed = passed.load(Ordering::Relaxed);
            let head = if passed == BUSY { None } else { self.head(plan, engine, queue, passed) };
            head.is_some_and(|(op, step)| self.ready(plan, op, step))
        })
    }
}
