//! One engine of one rank: a thread that runs the queues of its priorities.
//!
//! An operation starts when the ones it depends on have done the batches that it needs ([`super::progress`]). The
//! thread takes the first queue, by priority, whose head can go on. A device may say later that an operation has ended;
//! until then its queue is asked again and again and all others go on. Transfers are left while they wait for other ranks
//! or for an emulated link, so the thread is free for other queues; and between the pieces of one, queues of greater
//! priority go first. If nothing can go on the thread looks a few microseconds longer, if there is a processor to
//! spare, and then sleeps until somebody who has changed that wakes it.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::account::{Gap, Kind, Ledger, Times, add};
use super::profile::Profile;
use super::rank::Rank;
use super::record::{Record, Recorder};
use super::transfer::Active;
use crate::device::{Device, Fault, Progress};

/// How long a thread looks for something to do before it sleeps, in nanoseconds: about as long as it takes to fall
/// asleep and to be woken again. It does so while it usually waits for less than four times as long, which is what
/// two engines in turns wait for each other when both sleep.
const PATIENCE: u64 = 20_000;
/// Waits that are longer tell no more than that.
const LONG: u64 = 8 * PATIENCE;
/// Looks between two readings of the clock.
const LOOKS: usize = 16;

/// An operation that the device has started and not ended.
#[derive(Debug)]
pub(super) struct Running<Ticket> {
    ticket: Ticket,
    op: usize,
    step: u64,
    batch: u64,
    start: u64,
    /// When to ask again.
    again: u64,
}

/// Where a queue stands.
#[derive(Debug)]
pub(super) struct Head<Ticket, Cursor> {
    position: usize,
    step: u64,
    pub(super) active: Option<Active<Cursor>>,
    running: Option<Running<Ticket>>,
}

/// Runs an engine's queues to the end. The times of its operations, or nothing if the run failed, and the records of
/// the steps that are recorded.
pub fn run<D: Device>(rank: &Rank<'_, D>, engine: usize) -> (Profile, Vec<Record>) {
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
pub fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".into())
}

/// The state of an engine's thread.
pub(super) struct Thread<'r, 'a, D: Device> {
    pub(super) rank: &'r Rank<'a, D>,
    pub(super) engine: usize,
    pub(super) heads: Vec<Head<D::Ticket, D::Cursor>>,
    /// Earliest time at which something can go on by itself.
    pub(super) deadline: Option<u64>,
    pub(super) profile: Profile,
    /// Per operation, how often its channel has been used.
    pub(super) turns: Vec<u64>,
    recorder: Recorder,
    /// The operation in work, to name it if it panics.
    pub(super) at: &'r Cell<Option<usize>>,
    /// Of the engine whose time is accounted for.
    ledger: Option<Ledger>,
    /// Batches accounted for.
    told: u64,
    /// How long it waited lately, in nanoseconds.
    usual_wait: u64,
    random: u64,
}

impl<'r, 'a, D: Device> Thread<'r, 'a, D> {
    fn new(rank: &'r Rank<'a, D>, engine: usize, at: &'r Cell<Option<usize>>) -> Self {
        let plan = rank.plan;
        let head = || Head { position: 0, step: 0, active: None, running: None };
        Self {
            rank,
            engine,
            heads: plan.queues[engine].iter().map(|_| head()).collect(),
            deadline: None,
            profile: Profile::new(plan.ops.len()),
            turns: vec![0; plan.ops.len()],
            recorder: Recorder::new(plan, engine, &rank.settings.record, rank.settings.first_step),
            at,
            ledger: (engine == plan.accounted).then(|| Ledger::new(plan.ops.len())),
            told: 0,
            usual_wait: 0,
            random: rank.settings.stress.map_or(0, |seed| {
                seed ^ (rank.env.rank as u64 * 64 + engine as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            }),
        }
    }

    fn run(&mut self) {
        let Rank { process, env, .. } = self.rank;
        warm_locks();
        process.threads.enter(env.rank, self.engine);
        while !process.failures.has_failed() {
            self.deadline = None;
            if self.progress(self.heads.len()) {
                continue;
            }
            if self.exhausted() && self.settled() {
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
        all_passed && (self.is_settled() || !self.rank.open.is_empty())
    }

    /// Whether a queue can go on; `None` if it has come to its end.
    pub(super) fn queue_can_go_on(&self, queue: usize) -> Option<bool> {
        let head = &self.heads[queue];
        if let Some(running) = &head.running {
            return Some(self.rank.process.clock.now() >= running.again);
        }
        if let Some(active) = &head.active {
            return Some(self.can_move(active));
        }
        let (op, step) = self.head(queue)?;
        Some(self.rank.progress.ready(self.rank.plan, op, step))
    }

    /// The next operation of a queue, and its step.
    fn head(&self, queue: usize) -> Option<(usize, u64)> {
        let head = &self.heads[queue];
        let op = self.rank.plan.queues[self.engine][queue].ops[head.position] as usize;
        self.rank.progress.exists(self.rank.plan, head.step).then_some((op, head.step))
    }

    fn pass(&mut self, queue: usize) {
        let len = self.rank.plan.queues[self.engine][queue].ops.len();
        let head = &mut self.heads[queue];
        head.position += 1;
        if head.position == len {
            head.position = 0;
            head.step += 1;
        }
        let passed = head.step * len as u64 + head.position as u64;
        self.rank.progress.publish(self.engine, queue, Some(passed));
    }

    fn exhausted(&self) -> bool {
        let idle = |q: usize| self.heads[q].active.is_none() && self.heads[q].running.is_none();
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
        if let Some(running) = self.heads[queue].running.take() {
            return self.ask(queue, running);
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

    /// Runs an operation of this rank alone.
    fn local(&mut self, queue: usize, op: usize, step: u64, batch: u64) {
        let rank = self.rank;
        let outer = self.at.replace(Some(op));
        let start = rank.process.clock.now();
        self.close_gap(Gap::Before(op, step), start);
        self.obey(op, batch);
        let loaded = if rank.plan.load == Some(op) { rank.load(batch) } else { Ok(true) };
        let outcome = loaded.and_then(|loaded| {
            if !loaded {
                return Ok(None);
            }
            rank.device.start(&rank.lanes[self.engine], &rank.job(op, batch)?).map(Some)
        });
        match outcome {
            Ok(Some(progress)) => self.follow(queue, progress, (op, step, batch), start),
            // The last batch was the one before.
            Ok(None) => self.skip(queue, op, step),
            Err(fault) => self.fail(op, &fault),
        }
        self.at.set(outer);
    }

    /// Ends an operation if the device has, or remembers to ask again.
    fn follow(
        &mut self,
        queue: usize,
        progress: Progress<D::Ticket>,
        (op, step, batch): (usize, u64, u64),
        start: u64,
    ) {
        let rank = self.rank;
        match progress {
            Progress::Done => {
                self.finish(queue, (op, step, batch), start, start);
                if rank.plan.load == Some(op) {
                    rank.batches.resume();
                }
            }
            Progress::Running(ticket, wait) => {
                let again = rank.process.clock.now() + wait.as_nanos() as u64;
                self.heads[queue].running = Some(Running { ticket, op, step, batch, start, again });
                rank.progress.publish(self.engine, queue, None);
            }
        }
    }

    /// Asks the device after an operation; false if it is too early.
    fn ask(&mut self, queue: usize, running: Running<D::Ticket>) -> bool {
        let rank = self.rank;
        if rank.process.clock.now() < running.again {
            self.deadline = Some(self.deadline.map_or(running.again, |d| d.min(running.again)));
            self.heads[queue].running = Some(running);
            return false;
        }
        let Running { ticket, op, step, batch, start, .. } = running;
        let outer = self.at.replace(Some(op));
        let progress =
            rank.job(op, batch).and_then(|job| rank.device.poll(&rank.lanes[self.engine], &job, ticket));
        match progress {
            Ok(progress) => self.follow(queue, progress, (op, step, batch), start),
            Err(fault) => self.fail(op, &fault),
        }
        self.at.set(outer);
        true
    }

    pub(super) fn finish(
        &mut self,
        queue: usize,
        (op, step, batch): (usize, u64, u64),
        start: u64,
        met: u64,
    ) {
        let rank = self.rank;
        let end = rank.process.clock.now();
        rank.stamps.set(op, step, Times { start, met, end });
        let waited = met.saturating_sub(start);
        let busy = end.saturating_sub(start);
        self.profile.record(op, busy, waited);
        self.recorder.push(op, batch, start, met, end);
        add(&rank.busy[self.engine], busy.saturating_sub(waited));
        if rank.plan.ops[op].transfer {
            self.cover(met.min(end), Kind::Straggler, Some(op));
            self.cover(end, Kind::Exposed, Some(op));
        } else {
            self.cover(end, Kind::Compute, Some(op));
        }
        if rank.count((op, step, batch), end) {
            if self.ledger.is_some() {
                self.cover(end, Kind::Other, None);
            } else {
                rank.process.threads.call(rank.env.rank, rank.plan.accounted);
            }
        }
        self.done(queue, op, step);
    }

    /// Passes an operation that has no batch in a step.
    fn skip(&mut self, queue: usize, op: usize, step: u64) {
        let now = self.rank.process.clock.now();
        self.rank.stamps.set(op, step, Times { start: now, met: now, end: now });
        self.done(queue, op, step);
    }

    /// Lets those go on that waited for an operation.
    fn done(&mut self, queue: usize, op: usize, step: u64) {
        let Rank { process, env, plan, progress, .. } = self.rank;
        process.threads.add_awake(progress.complete(plan, op, step, process.threads.events(env.rank)));
        self.pass(queue);
    }

    /// Accounts for the time up to `until`, if this is the engine to do so: it went to `kind`.
    fn cover(&mut self, until: u64, kind: Kind, op: Option<usize>) {
        let rank = self.rank;
        let Some(ledger) = &mut self.ledger else { return };
        let begun = rank.begun.load(Ordering::Acquire);
        if begun <= until {
            ledger.begin(begun);
        }
        // Batches that other engines have ended are cut off where they ended.
        while let Some(done) = rank.open.first().filter(|done| done.at <= until) {
            ledger.cover(done.at, kind, op);
            rank.open.pop();
            rank.report(&done, ledger.cut());
            self.told += 1;
        }
        ledger.cover(until, kind, op);
    }

    /// Explains the time up to `until`, in which this engine stood still.
    pub(super) fn close_gap(&mut self, gap: Gap, until: u64) {
        let Rank { plan, stamps, .. } = self.rank;
        // While the device works for this engine there is nothing to explain.
        if let Some(op) = self.heads.iter().find_map(|head| head.running.as_ref().map(|r| r.op)) {
            return self.cover(until, Kind::Compute, Some(op));
        }
        let Some(ledger) = self.ledger.as_mut().filter(|ledger| ledger.at() < until) else { return };
        let segments = ledger.explain(plan, stamps, gap, until);
        for segment in segments.iter().rev() {
            self.cover(segment.until, segment.kind, segment.op);
        }
        if let Some(ledger) = &mut self.ledger {
            ledger.give_back(segments);
        }
    }

    /// Accounts for batches that other engines have ended since this one has nothing more to do: whether all are.
    fn settled(&mut self) -> bool {
        while let Some(done) = self.rank.open.first().filter(|_| self.ledger.is_some()) {
            self.close_gap(Gap::During(done.last.0, done.last.1), done.at);
            self.cover(done.at, Kind::Other, None);
        }
        self.is_settled()
    }

    fn is_settled(&self) -> bool {
        self.ledger.is_none() || self.told >= self.rank.progress.end.load(Ordering::Acquire)
    }

    /// Panics if told to.
    pub(super) fn obey(&self, op: usize, batch: u64) {
        let Rank { settings, env, .. } = self.rank;
        assert!(settings.panic_at != Some((env.rank, op, batch)), "told to panic");
    }

    pub(super) fn fail(&mut self, op: usize, fault: &Fault) {
        // A failure that came from another rank is already known to everyone.
        let name = &self.rank.program.ops[op].name;
        self.rank.process.fail(self.rank.env.rank, name, &fault.to_string());
    }

    fn draw(&mut self) -> u64 {
        // xorshift64*
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.draw().is_multiple_of(one_in)
    }
}
