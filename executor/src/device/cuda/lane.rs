//! Streams, and what orders work of several: an event for every operation and place of the ring of batches.
//!
//! Every queue of the schedule, which is an engine and a priority, has a stream, so order within a queue is the stream's.
//! When an operation is enqueued its stream waits for the events of those operations of other streams that it depends on: for those of the
//! batch that is meant. Threads of engines may be batches apart, and an event that has been recorded again stands for what came since, too.
//! All of these have been enqueued before, so nothing waits for what has yet to come. An operation that has no batch in
//! the first and last steps was never enqueued, and what would have come before it is not looked for: the stream waits
//! for all that others have.

use std::collections::BTreeMap;

use fs_kernels::cuda::driver::{Driver, DriverError, Event, Pinned, Stream};
use fs_schedule::action::Effect;
use fs_schedule::{Engine, Op, Program, Schedule};
use parking_lot::Mutex;

use super::timed::{Share, Timed};
use crate::device::Job;

/// The streams of a rank and the events of its programs.
#[derive(Debug)]
pub(super) struct Order {
    streams: BTreeMap<(Engine, i32), Stream>,
    /// What a stream had when somebody asked for all of it.
    marks: BTreeMap<Stream, Event>,
    /// Per program and operation: one for each place of the ring of batches, and the stream.
    events: [Vec<(Vec<Event>, Stream)>; 2],
    /// Greatest and least stages.
    stages: [(i64, i64); 2],
    /// The operations that load batches, and an event for each place of the ring of batches. Nothing starts before its batches
    /// are there, so what those come after is what it comes after, too. Batches that were loaded since are none of its.
    loads: [Option<(usize, Vec<Event>)>; 2],
    /// An operation whose dependencies are left out, for tests.
    pub(super) careless: Option<String>,
    pub(super) timed: Timed,
    /// Of the operations of training.
    shares: Vec<Share>,
}

/// The event of a batch in a ring.
fn place(ring: &[Event], batch: u64) -> Event {
    ring[(batch % ring.len() as u64) as usize]
}

fn position(job: &Job<'_>) -> usize {
    usize::from(!std::ptr::eq(job.program, &raw const job.env.schedule.train))
}

impl Order {
    /// Of a schedule, with so many batches at once.
    pub(super) fn new<D: Driver>(driver: &D, schedule: &Schedule, ring: usize) -> Result<Self, DriverError> {
        let mut streams = BTreeMap::new();
        let mut marks = BTreeMap::new();
        let mut program = |program: &Program| {
            let mut events = Vec::new();
            for op in &program.ops {
                let key = (op.engine, op.priority);
                if let std::collections::btree_map::Entry::Vacant(entry) = streams.entry(key) {
                    let stream = driver.stream(op.priority)?;
                    entry.insert(stream);
                    marks.insert(stream, driver.event()?);
                }
                let own = (0..ring.max(1)).map(|_| driver.event()).collect::<Result<_, _>>()?;
                events.push((own, streams[&key]));
            }
            Ok::<_, DriverError>(events)
        };
        let events = [
            program(&schedule.train)?,
            schedule.evaluation.as_ref().map_or_else(|| Ok(Vec::new()), &mut program)?,
        ];
        let stage = |p: &Program| {
            let stages = || p.ops.iter().map(|o| i64::from(o.stage));
            (stages().max().unwrap_or(0), stages().min().unwrap_or(0))
        };
        let stages = [stage(&schedule.train), schedule.evaluation.as_ref().map_or((0, 0), stage)];
        let load = |p: &Program| {
            let load = p.ops.iter().position(|o| o.action.has(Effect::LoadsBatch));
            let events = || (0..ring.max(1)).map(|_| driver.event()).collect::<Result<Vec<_>, _>>();
            load.map(|load| Ok::<_, DriverError>((load, events()?))).transpose()
        };
        let evaluation = schedule.evaluation.as_ref().map(load).transpose()?.flatten();
        let loads = [load(&schedule.train)?, evaluation];
        let shares = Share::all(&schedule.train);
        Ok(Self { streams, marks, events, stages, loads, careless: None, timed: Timed::default(), shares })
    }

    /// How many operations training has.
    pub(super) fn ops(&self) -> usize {
        self.events[0].len()
    }

    /// The share of an operation of training in what one launch starts.
    pub(super) fn share(&self, op: usize) -> &Share {
        &self.shares[op]
    }

    /// The stream of an operation.
    pub(super) fn stream(&self, job: &Job<'_>) -> Stream {
        self.events[position(job)][job.index].1
    }

    /// The stream of an operation of the schedule.
    pub(super) fn stream_of(&self, op: &Op) -> Option<Stream> {
        self.streams.get(&(op.engine, op.priority)).copied()
    }

    pub(super) fn streams(&self) -> impl Iterator<Item = Stream> {
        self.streams.values().copied()
    }

    /// What is enqueued from now on comes after all that the operation depends on.
    pub(super) fn begin<D: Driver>(&self, driver: &D, job: &Job<'_>) -> Result<Stream, DriverError> {
        let stream = self.wait(driver, job)?;
        self.timed.begin(driver, stream, job)?;
        Ok(stream)
    }

    fn wait<D: Driver>(&self, driver: &D, job: &Job<'_>) -> Result<Stream, DriverError> {
        let program = position(job);
        let (events, (last, least)) = (&self.events[program], self.stages[program]);
        let stream = events[job.index].1;
        driver.name(stream, &job.op.name);
        // What one launch starts waits where its first does.
        if let Some(careless) = &self.careless
            && let Some(first) = job.program.ops[..=job.index].iter().rfind(|op| !op.joined)
            && first.name == *careless
        {
            return Ok(stream);
        }
        if let Some((load, loaded)) = &self.loads[program]
            && events[*load].1 != stream
        {
            let operands = job.op.reads.iter().chain(&job.op.writes);
            let last = operands.filter_map(|operand| job.batch_of(*operand)).fold(job.number, u64::max);
            driver.wait(stream, place(loaded, last))?;
        }
        let step = job.number as i64 + last - i64::from(job.op.stage);
        // Where operations have no batch, or had none a little before, order passes through some that were never
        // enqueued, of this queue too.
        let distance = job.program.ops.iter().flat_map(|o| &o.deps).map(|d| i64::from(d.distance)).max();
        if step <= last - least + distance.unwrap_or(0) + 1 || !job.is_batch(step as u64) {
            return self.all(driver, stream).map(|()| stream);
        }
        for dep in &job.op.deps {
            let Some(other) = job.program.ops.get(dep.op as usize) else { continue };
            let at = step - i64::from(dep.distance);
            if at < 0 {
                continue;
            }
            let batch = at - last + i64::from(other.stage);
            if batch < 0 || !job.is_batch(batch as u64) {
                self.all(driver, stream)?;
                continue;
            }
            let (own, of) = &events[dep.op as usize];
            if *of != stream {
                driver.wait(stream, place(own, batch as u64))?;
            }
        }
        Ok(stream)
    }

    /// What is enqueued in a stream from now on comes after all that the others have now.
    pub(super) fn all<D: Driver>(&self, driver: &D, stream: Stream) -> Result<(), DriverError> {
        for (other, mark) in self.marks.iter().filter(|(other, _)| **other != stream) {
            driver.record(*other, *mark)?;
            driver.wait(stream, *mark)?;
        }
        Ok(())
    }

    /// All work of the operation has been enqueued.
    pub(super) fn end<D: Driver>(&self, driver: &D, job: &Job<'_>) -> Result<(), DriverError> {
        self.timed.end(driver, self.stream(job), job)?;
        self.mark(driver, job)
    }

    /// What waits for the operation comes after all that the stream has now.
    pub(super) fn mark<D: Driver>(&self, driver: &D, job: &Job<'_>) -> Result<(), DriverError> {
        let program = position(job);
        let (own, stream) = &self.events[program][job.index];
        let stream = *stream;
        if let Some((load, loaded)) = &self.loads[program]
            && *load == job.index
        {
            driver.record(stream, place(loaded, job.number))?;
        }
        driver.record(stream, place(own, job.number))
    }
}

/// A piece of page-locked memory, and when it may be used again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Staging {
    pub(super) pinned: Pinned,
    bytes: u64,
    pub(super) free: Event,
}

/// Page-locked memory, used again and again.
#[derive(Debug, Default)]
pub(super) struct StagingPool(Mutex<Vec<Staging>>);

impl StagingPool {
    /// A piece that nothing on the device uses.
    pub(super) fn take<D: Driver>(&self, driver: &D, bytes: u64) -> Result<Staging, DriverError> {
        let mut pool = self.0.lock();
        // The smallest that is large enough: losses and numbers must not hold what tables need.
        let mut best: Option<usize> = None;
        for n in 0..pool.len() {
            let smaller = best.is_none_or(|best| pool[n].bytes < pool[best].bytes);
            if pool[n].bytes >= bytes && smaller && driver.has_come(pool[n].free)? {
                best = Some(n);
            }
        }
        if let Some(n) = best {
            return Ok(pool.swap_remove(n));
        }
        let bytes = bytes.next_power_of_two().max(4096);
        Ok(Staging { pinned: driver.pin(bytes)?, bytes, free: driver.event()? })
    }

    /// Gives it back: it is free once the stream's present work is done.
    pub(super) fn give<D: Driver>(
        &self,
        driver: &D,
        stream: Stream,
        staging: Staging,
    ) -> Result<(), DriverError> {
        driver.record(stream, staging.free)?;
        self.0.lock().push(staging);
        Ok(())
    }

    pub(super) fn clear<D: Driver>(&self, driver: &D) {
        for staging in self.0.lock().drain(..) {
            // The device goes away, and what is page-locked with it.
            let _ = driver.unpin(staging.pinned);
        }
    }
}
