//! One engine of one rank: a thread that runs the queues of its priorities.
//!
//! An operation starts when the ones it depends on have done the batches that it needs ([`super::progress`]). The
//! thread takes the first queue, by priority, whose head can go on. A device may say later that an operation has ended;
//! until then its queue is asked again and again and all others go on. Where a device works in order and the host has only to
//! learn sizes of an operation, what needs none of them is started behind it; for others it ends after it all the same. Transfers are left while they wait for other ranks
//! or for an emulated link, so the thread is free for other queues; and between the pieces of one, queues of greater
//! priority go first. If nothing can go on the thread looks a few microseconds longer, if there is a processor to
//! spare, and then sleeps until somebody who has changed that wakes it.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::account::{Gap, TimeUse};
use super::place::Doing;
use super::profile::Profile;
use super::rank::Rank;
use super::record::Record;
use super::thread::{Running, Thread};
use crate::device::{Device, Fault, Progress};

/// How long a thread looks for something to do before it sleeps, in nanoseconds: about as long as it takes to fall
/// asleep and to be woken again. It does so while it usually waits for less than four times as long, which is what
/// two engines in turns wait for each other when both sleep.
const PATIENCE: u64 = 20_000;
/// Waits that are longer tell no more than that.
const LONG: u64 = 8 * PATIENCE;
/// Looks between two readings of the clock.
const LOOKS: usize = 16;

/// When an operation was started, and what came of it; nothing if it has no batch.
type Started<D> = (u64, Result<Option<Progress<<D as Device>::Ticket>>, Fault>);

/// Runs an engine's queues to the end. The times of its operations, or nothing if the run failed, and the records of
/// the steps that are recorded.
pub(crate) fn run<D: Device>(rank: &Rank<'_, D>, engine: usize) -> (Profile, Vec<Record>) {
    let at = Cell::new(None);
    let mut thread = Thread::new(rank, engine, &at);
    let outcome = catch_unwind(AssertUnwindSafe(|| thread.run()));
    if let Err(panic) = outcome {
        let op = at.get().and_then(|op: usize| rank.program.ops.get(op));
        let op = op.map_or("start of a step", |op| op.name.as_str());
        rank.process.fail(rank.env.rank, op, &panic_message(panic.as_ref()));
    }
    let records = thread.recorder.take();
    (thread.profile, records)
}

/// Makes the calling thread known to the locks, so that waiting for one later allocates nothing.
fn warm_locks() {
    let (lock, never) = (parking_lot::Mutex::new(()), parking_lot::Condvar::new());
    never.wait_for(&mut lock.lock(), Duration::ZERO);
}

/// The text of a panic.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".into())
}

impl<D: Device> Thread<'_, '_, D> {
    fn run(&mut self) {
        let Rank { process, env, .. } = self.rank;
        warm_locks();
        process.threads.enter(env.rank, self.engine);
        while !process.failures.has_failed() {
            self.deadline = None;
            self.tell_late();
            if self.progress(self.heads.len()) {
                continue;
            }
            if self.exhausted() && self.settled() && self.late.is_empty() {
                break;
            }
            let asked = process.clock.now();
            self.check_waits(asked);
            if !self.look(asked) {
                let deadline = self.deadline.map(|at| process.clock.instant(at));
                process.threads.sleep(env.rank, self.engine, deadline, || {
                    process.failures.has_failed() || self.can_go_on()
                });
            }
            let waited = (process.clock.now() - asked).min(LONG);
            self.usual_wait = (7 * self.usual_wait + waited) / 8;
        }
        process.threads.leave();
        if let Some(ledger) = &self.ledger {
            for (op, exposed) in self.profile.ops.iter_mut().zip(ledger.exposed()) {
                op.exposed = Duration::from_nanos(*exposed);
            }
        }
    }

    /// Looks a little longer for something to do, while there is a processor to spare and waits are usually short.
    fn look(&self, asked: u64) -> bool {
        let process = self.rank.process;
        // Time that is known to pass is slept through.
        if self.deadline.is_some() || self.usual_wait > 4 * PATIENCE {
            return false;
        }
        let until = asked + PATIENCE;
        while process.threads.has_room() && !process.failures.has_failed() {
            for _ in 0..LOOKS {
                if self.can_go_on() {
                    return true;
                }
                std::hint::spin_loop();
            }
            if process.clock.now() > until {
                break;
            }
        }
        false
    }

    /// Whether a queue can go on, or the end has come.
    fn can_go_on(&self) -> bool {
        let mut all_passed = true;
        for queue in 0..self.heads.len() {
            match self.queue_can_go_on(queue) {
                Some(true) => return true,
                Some(false) => all_passed = false,
                None => {}
            }
        }
        all_passed && (self.is_settled() && self.late.is_empty() || !self.rank.open.is_empty())
    }

    fn exhausted(&self) -> bool {
        let idle = |q: usize| self.heads[q].active.is_none() && self.heads[q].running.is_empty();
        (0..self.heads.len()).all(|q| idle(q) && self.head(q).is_none())
    }

    /// Lets one of the first `queues` queues go on; false if none can.
    pub(super) fn progress(&mut self, queues: usize) -> bool {
        if self.rank.process.failures.has_failed() {
            return false;
        }
        let reluctant = self.rank.settings.stress.is_some() && self.chance(4);
        for queue in 0..queues {
            if reluctant && queue + 1 < queues && self.chance(2) {
                continue;
            }
            if self.try_queue(queue) {
                return true;
            }
        }
        reluctant && (0..queues).any(|queue| self.try_queue(queue))
    }

    fn try_queue(&mut self, queue: usize) -> bool {
        if let Some(running) = self.heads[queue].running.pop_front() {
            if self.ask(queue, running) {
                return true;
            }
            let Some((op, step, batch)) = self.behind(queue) else { return false };
            self.local(queue, op, step, batch);
            return true;
        }
        if let Some(active) = self.heads[queue].active {
            // Taken out while it is in work: a queue of greater priority may interrupt it, itself may not.
            return self.advance(queue, active);
        }
        let Some((op, step)) = self.head(queue) else { return false };
        let Rank { plan, progress, .. } = self.rank;
        if !progress.ready(plan, op, step) {
            return false;
        }
        let Some(batch) = progress.batch(plan, op, step) else {
            self.skip(queue, op, step);
            return true;
        };
        if self.rank.settings.stress.is_some() && self.chance(4) {
            let delay = self.draw() % 400;
            std::thread::sleep(Duration::from_micros(delay));
        }
        if plan.ops[op].channel.is_some() {
            self.begin(queue, (op, step, batch));
            return true;
        }
        self.local(queue, op, step, batch);
        true
    }

    /// Runs an operation of this rank alone, and where a device works in order all that one launch starts with it.
    fn local(&mut self, queue: usize, op: usize, step: u64, batch: u64) {
        let last = self.rank.plan.ops[op].last;
        if !D::IN_ORDER || last == op {
            let started = self.start(queue, (op, step, batch), true);
            return self.started(queue, (op, step, batch), started);
        }
        // Whoever waits for one of them goes on once all are started.
        let all: Vec<_> =
            (op..=last).map(|member| self.start(queue, (member, step, batch), member == op)).collect();
        for (member, started) in (op..).zip(all) {
            self.started(queue, (member, step, batch), started);
        }
    }

    /// Starts an operation; when that was. `first`: of what one launch starts.
    fn start(&mut self, queue: usize, (op, step, batch): (usize, u64, u64), first: bool) -> Started<D> {
        let rank = self.rank;
        let outer = self.at.replace(Some(op));
        let start = rank.process.clock.now();
        self.close_gap(Gap::Before(op, step), start);
        // A queue stands where its first operation does that has not ended.
        let alone = first && self.heads[queue].running.is_empty();
        let note = |doing: Doing| {
            if alone {
                rank.places.set((self.engine, queue), (op, step), doing);
            }
        };
        note(Doing::Runs);
        self.obey(op, batch);
        let loaded = if rank.plan.load == Some(op) { rank.load(batch, note) } else { Ok(true) };
        let outcome = loaded.and_then(|loaded| {
            if !loaded {
                return Ok(None);
            }
            rank.device.start(&rank.lanes[self.engine], &rank.job(op, batch)?).map(Some)
        });
        if D::HAS_CLOCK && rank.plan.load != Some(op) {
            self.profile.ops[op].issued += Duration::from_nanos(rank.process.clock.now() - start);
        }
        self.at.set(outer);
        (start, outcome)
    }

    /// Goes on with an operation that was started.
    fn started(&mut self, queue: usize, (op, step, batch): (usize, u64, u64), (start, outcome): Started<D>) {
        let outer = self.at.replace(Some(op));
        match outcome {
            Ok(Some(progress)) => self.follow(queue, progress, (op, step, batch), start, false),
            // The last batch was the one before.
            Ok(None) => self.skip(queue, op, step),
            Err(fault) => self.fail(op, &fault),
        }
        self.at.set(outer);
    }

    /// Ends an operation if the device has, and those before it in its queue have ended, or remembers to ask again. `first`: it was
    /// the first that is under way; else it is the last.
    fn follow(
        &mut self,
        queue: usize,
        progress: Progress<D::Ticket>,
        (op, step, batch): (usize, u64, u64),
        start: u64,
        first: bool,
    ) {
        let rank = self.rank;
        let alone = first || self.heads[queue].running.is_empty();
        let running = match progress {
            Progress::Done if alone => {
                self.finish(queue, (op, step, batch), start, start);
                if rank.plan.load == Some(op) {
                    rank.batches.resume();
                }
                return;
            }
            Progress::Done => Running { ticket: None, op, step, batch, start, again: start },
            Progress::Running(ticket, wait) => {
                let again = rank.process.clock.now() + wait.as_nanos() as u64;
                Running { ticket: Some(ticket), op, step, batch, start, again }
            }
        };
        let under_way = &mut self.heads[queue].running;
        if first {
            under_way.push_front(running);
        } else {
            under_way.push_back(running);
        }
        rank.progress.publish(self.engine, queue, None);
    }

    /// Asks the device after an operation; false if it is too early.
    fn ask(&mut self, queue: usize, running: Running<D::Ticket>) -> bool {
        let rank = self.rank;
        let Running { ticket, op, step, batch, start, again } = running;
        let Some(ticket) = ticket else {
            if let Err(fault) = rank.job(op, batch).and_then(|job| rank.device.end_behind(&job)) {
                self.fail(op, &fault);
                return true;
            }
            self.follow(queue, Progress::Done, (op, step, batch), start, true);
            return true;
        };
        if rank.process.clock.now() < again {
            self.deadline = Some(self.deadline.map_or(again, |d| d.min(again)));
            self.heads[queue].running.push_front(Running {
                ticket: Some(ticket),
                op,
                step,
                batch,
                start,
                again,
            });
            return false;
        }
        let outer = self.at.replace(Some(op));
        let progress =
            rank.job(op, batch).and_then(|job| rank.device.poll(&rank.lanes[self.engine], &job, ticket));
        match progress {
            Ok(progress) => self.follow(queue, progress, (op, step, batch), start, true),
            Err(fault) => self.fail(op, &fault),
        }
        self.at.set(outer);
        true
    }

    /// Accounts for batches that other engines have ended since this one has nothing more to do: whether all are.
    fn settled(&mut self) -> bool {
        while let Some(done) = self.rank.open.first().filter(|_| self.ledger.is_some()) {
            self.close_gap(Gap::During(done.last.0, done.last.1), done.at);
            self.cover(done.at, TimeUse::Other, None);
        }
        self.is_settled()
    }
}
