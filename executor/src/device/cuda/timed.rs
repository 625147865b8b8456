//! When work of some batches begins and ends on the device: a timer on either side of it, read once all is done.
//!
//! What has been waited for has come before the first one. An operation of which the host must learn something ends with what tells
//! it. What it enqueues once the host knows comes behind what was begun since, and is not shown: operations of a queue are one
//! after the other. Of operations that one launch starts each has its planned share of the time of all.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use fs_kernels::cuda::driver::{Driver, DriverError, Event, Stream};
use fs_schedule::{Engine, Program};
use parking_lot::RwLock;

use crate::device::Job;

/// Its timers have been recorded: that of the beginning, and that of the end.
const BEGUN: u8 = 1;
const ENDED: u8 = 2;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Timed(RwLock<Window>);

#[derive(Debug, Default)]
struct Window {
    batches: Range<u64>,
    ops: usize,
    base: Option<Arc<Base>>,
    /// Per batch and operation; more than that if more were asked for before.
    timers: Vec<[Event; 2]>,
    recorded: Vec<AtomicU8>,
}

/// Since when times count, on all ranks of a GPU.
#[derive(Debug)]
struct Base {
    event: Event,
    /// A timer in the midst of what is noted, and when that was: the longer a time, the less exactly CUDA tells it, and times of
    /// operations are to be compared with each other.
    near: OnceLock<(Event, i64)>,
}

/// An operation's share of the time of what one launch starts with it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Share {
    pub(super) group: Range<usize>,
    /// Where it begins and ends, of the whole.
    part: [f64; 2],
}

impl Share {
    /// Those of all operations of a program.
    pub(super) fn all(program: &Program) -> Vec<Self> {
        let ops = &program.ops;
        let mut all = Vec::with_capacity(ops.len());
        while all.len() < ops.len() {
            let first = all.len();
            let joined = ops[first + 1..].iter().take_while(|op| op.joined).count();
            let group = first..first + 1 + joined;
            // Planned times may all be nothing.
            let weight = |op: usize| ops[op].time.max(1) as f64;
            let whole: f64 = group.clone().map(weight).sum();
            let mut from = 0.0;
            for op in group.clone() {
                let to = from + weight(op) / whole;
                all.push(Self { group: group.clone(), part: [from, to] });
                from = to;
            }
        }
        all
    }

    /// The time of an operation from those that were noted of all that one launch may have started, if it did.
    pub(super) fn of(&self, own: Option<[i64; 2]>, all: &[Option<[i64; 2]>]) -> Option<[i64; 2]> {
        let all: Option<Vec<[i64; 2]>> = all.iter().copied().collect();
        let (own, Some(all)) = (own?, all) else { return own };
        if all.windows(2).all(|pair| pair[0][1] <= pair[1][0]) {
            return Some(own);
        }
        // All have begun before any work of them does.
        let from = all.iter().map(|[from, _]| *from).max()?;
        let to = all.iter().map(|[_, to]| *to).max()?;
        Some(self.part.map(|part| from + (part * (to - from) as f64).round() as i64))
    }
}

impl Window {
    fn place(&self, op: usize, batch: u64) -> Option<usize> {
        self.batches.contains(&batch).then(|| (batch - self.batches.start) as usize * self.ops + op)
    }
}

impl Timed {
    /// From now on these batches of training count, and times count from now, or from when those of another rank of the GPU do. The
    /// stream has no other work.
    pub(super) fn note<D: Driver>(
        &self,
        driver: &D,
        stream: Stream,
        (ops, batches): (usize, Range<u64>),
        first: Option<&Self>,
    ) -> Result<(), DriverError> {
        let mut window = self.0.write();
        let places = batches.end.saturating_sub(batches.start) as usize * ops;
        while window.timers.len() < places {
            window.timers.push([driver.timer()?, driver.timer()?]);
        }
        window.recorded = (0..places).map(|_| AtomicU8::new(0)).collect();
        (window.batches, window.ops) = (batches, ops);
        let first = first.map(|first| first.0.read().base.clone());
        window.base = match first {
            _ if places == 0 => None,
            Some(first) => first,
            None => {
                let event = driver.timer()?;
                driver.record(stream, event)?;
                driver.synchronize(stream)?;
                Some(Arc::new(Base { event, near: OnceLock::new() }))
            }
        };
        Ok(())
    }

    /// Work of the operation follows.
    pub(super) fn begin<D: Driver>(
        &self,
        driver: &D,
        stream: Stream,
        job: &Job<'_>,
    ) -> Result<(), DriverError> {
        self.record(driver, stream, job, BEGUN)
    }

    /// It has none left, or none until the host has learned something.
    pub(super) fn end<D: Driver>(
        &self,
        driver: &D,
        stream: Stream,
        job: &Job<'_>,
    ) -> Result<(), DriverError> {
        self.record(driver, stream, job, ENDED)
    }

    fn record<D: Driver>(
        &self,
        driver: &D,
        stream: Stream,
        job: &Job<'_>,
        what: u8,
    ) -> Result<(), DriverError> {
        let window = self.0.read();
        let training = std::ptr::eq(job.program, &raw const job.env.schedule.train);
        // What the host does, it does in its own time.
        let place = window.place(job.index, job.number).filter(|_| training && job.op.engine != Engine::Host);
        let Some(place) = place else { return Ok(()) };
        if window.recorded[place].load(Ordering::Relaxed) & what != 0 {
            return Ok(());
        }
        driver.record(stream, window.timers[place][usize::from(what == ENDED)])?;
        window.recorded[place].fetch_or(what, Ordering::Relaxed);
        Ok(())
    }

    /// When an operation of a batch began and ended, in nanoseconds since [`note`](Self::note). All streams have been waited for.
    pub(super) fn of<D: Driver>(
        &self,
        driver: &D,
        op: usize,
        batch: u64,
    ) -> Result<Option<[i64; 2]>, DriverError> {
        let window = self.0.read();
        let done = |place: &usize| window.recorded[*place].load(Ordering::Relaxed) == BEGUN | ENDED;
        let (Some(place), Some(base)) = (window.place(op, batch).filter(done), &window.base) else {
            return Ok(None);
        };
        let [from, to] = window.timers[place];
        let (near, since) = if let Some(near) = base.near.get() {
            *near
        } else {
            let since = driver.elapsed(base.event, from)?;
            *base.near.get_or_init(|| (from, since))
        };
        Ok(Some([since + driver.elapsed(near, from)?, since + driver.elapsed(near, to)?]))
    }
}

#[cfg(test)]
mod tests {
    use fs_schedule::{Action, Op};

    use super::*;

    #[test]
    fn what_one_launch_starts_shares_its_time() {
        let op = |time, joined| Op { time, joined, ..Op::new("op", Action::Zero, Engine::Compute) };
        let ops = vec![op(5, false), op(10, false), op(30, true), op(0, false)];
        let shares = Share::all(&Program { in_flight: 1, buffers: vec![], ops });
        let groups: Vec<_> = shares.iter().map(|share| share.group.clone()).collect();
        assert_eq!(groups, [0..1, 1..3, 1..3, 3..4]);
        let noted = [Some([99, 290]), Some([100, 300])];
        assert_eq!(shares[1].of(noted[0], &noted), Some([100, 150]));
        assert_eq!(shares[2].of(noted[1], &noted), Some([150, 300]));
        // One after the other, or not noted.
        let apart = [Some([100, 200]), Some([200, 300])];
        assert_eq!(shares[2].of(apart[1], &apart), apart[1]);
        assert_eq!(shares[2].of(None, &[apart[0], None]), None);
    }
}
