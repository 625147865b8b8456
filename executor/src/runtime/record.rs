//! Every execution of every operation in a range of steps: what traces and profiles are made of.
//!
//! An engine's thread pushes one record per execution into a vector of its own, which it allocates before the first
//! step. While nothing is recorded that costs two comparisons. When an operation was *ready* follows from the records
//! of those it waits for, so it is found after the run ([`sort`]). For this, and to know what else ran at the edges, a
//! few more steps on both sides of the range are recorded.

use std::ops::Range;

use fs_schedule::Program;

use super::plan::{Plan, ring};

/// One execution of an operation on one rank; times in nanoseconds since the start of the phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Position in the program.
    pub op: u32,
    /// Position among the engines of the plan, which are those of the schedule that the program uses, rising.
    pub engine: u8,
    /// The step whose batch it worked on, counted from the first of the run.
    pub batch: u64,
    /// The last operation that it depends on had ended; its place in the queue is not counted.
    pub ready: u64,
    /// It started.
    pub start: u64,
    /// The last rank had begun (transfers; else the start).
    pub met: u64,
    /// It ended.
    pub end: u64,
}

/// What one engine's thread records.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    engine: u8,
    batches: Range<u64>,
    first_step: u64,
    records: Vec<Record>,
}

impl Recorder {
    /// For the thread of an engine; `batches` are counted from the start of the phase, whose first step is
    /// `first_step`.
    pub(crate) fn new(plan: &Plan, engine: usize, batches: &Range<u64>, first_step: u64) -> Self {
        let ops: usize = plan.queues[engine].iter().map(|q| q.ops.len()).sum();
        let steps = batches.end.saturating_sub(batches.start) as usize;
        Self {
            engine: engine as u8,
            batches: batches.clone(),
            first_step,
            records: Vec::with_capacity(ops * steps),
        }
    }

    /// One execution.
    pub(crate) fn push(&mut self, op: usize, batch: u64, start: u64, met: u64, end: u64) {
        if batch >= self.batches.start && batch < self.batches.end {
            let (op, batch) = (op as u32, self.first_step + batch);
            self.records.push(Record { op, engine: self.engine, batch, ready: start, start, met, end });
        }
    }

    /// What was recorded, in the order of ends.
    pub(crate) fn take(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.records)
    }
}

/// Steps recorded before and after those asked for: batches of which an operation may run, or be waited for, while
/// one of those runs.
pub(crate) fn margin(plan: &Plan, program: &Program) -> u64 {
    let apart = |op: &super::plan::Planned| {
        op.deps
            .iter()
            .map(|(other, distance)| offset(plan, op.stage, *other as usize, *distance).unsigned_abs())
            .max()
    };
    plan.ops.iter().filter_map(apart).max().unwrap_or(0).max(ring(program) as u64)
}

/// The batch of a dependency, relative to the batch of the operation that waits.
fn offset(plan: &Plan, stage: i64, other: usize, distance: u64) -> i64 {
    plan.ops[other].stage - stage - distance as i64
}

/// Finds out when each operation was ready, and sorts by start.
pub(crate) fn sort(plan: &Plan, mut records: Vec<Record>) -> Vec<Record> {
    let first = records.iter().map(|r| r.batch).min().unwrap_or(0);
    let batches = records.iter().map(|r| r.batch + 1 - first).max().unwrap_or(0);
    let mut ends = vec![0; batches as usize * plan.ops.len()];
    let place = |op: u32, batch: u64| {
        let batch = batch.checked_sub(first).filter(|b| *b < batches);
        batch.map(|batch| batch as usize * plan.ops.len() + op as usize)
    };
    for r in &records {
        if let Some(place) = place(r.op, r.batch) {
            ends[place] = r.end;
        }
    }
    let end_of = |op: u32, batch: u64| place(op, batch).map(|place| ends[place]);
    for record in &mut records {
        let op = &plan.ops[plan.ops[record.op as usize].launch];
        let of_dep = |(other, distance): &(u32, u64)| {
            let batch = record.batch as i64 + offset(plan, op.stage, *other as usize, *distance);
            u64::try_from(batch).ok().and_then(|batch| end_of(*other, batch))
        };
        // Nothing starts before its batch is there.
        let loaded = plan.load.filter(|load| *load != record.op as usize);
        let loaded = loaded.and_then(|load| end_of(load as u32, record.batch));
        let last = op.deps.iter().filter_map(of_dep).chain(loaded).max();
        record.ready = last.unwrap_or(0).min(record.start);
    }
    records.sort_by_key(|r| (r.start, std::cmp::Reverse(r.end), r.op));
    records
}
