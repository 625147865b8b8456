//! One engine of one rank: a thread that runs the queues of its priorities.
//!
//! An operation starts when the ones it depends on have done the batches that it needs: one counter each, written by
//! the thread that ran it and read by those that wait. The thread takes the first queue, by priority, whose head can
//! go on. Transfers are left while they wait for other ranks or for an emulated link, so the thread is free for
//! other queues; and between the pieces of one, queues of greater priority go first. If nothing can go on the thread
//! sleeps until somebody who may have changed that wakes it.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::Duration;

use fs_kernels::Real;
use fs_schedule::Engine;

use super::account;
use super::collectives::{drain, fill, rounds, sections};
use super::profile::Profile;
use super::rank::Rank;
use super::{Call, Context, Fault, dispatch};

/// A collective on its way.
#[derive(Debug, Clone, Copy)]
struct Active {
    op: usize,
    step: u64,
    batch: u64,
    round: usize,
    stage: Stage,
    began: u64,
    met: u64,
    /// When the link may be asked for the next piece.
    asked: u64,
    /// Ranks served by the link, and bytes sent to the next one.
    served: usize,
    sent: u64,
    /// Not before this time.
    at: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Fill,
    Wire,
    Wait,
    Drain,
}

/// Where a queue stands.
#[derive(Debug)]
struct Head {
    position: usize,
    step: u64,
    active: Option<Active>,
}

/// Runs an engine's queues to the end. The times of its operations, or nothing if the run failed.
pub fn run<T: Real>(rank: &Rank<'_, T>, engine: usize) -> Profile {
    let at = Cell::new(None);
    let mut thread = Thread::new(rank, engine, &at);
    let outcome = catch_unwind(AssertUnwindSafe(|| thread.run()));
    if let Err(panic) = outcome {
        let op = at.get().and_then(|op: usize| rank.program.ops.get(op));
        let op = op.map_or("start of a step", |op| op.name.as_str());
        rank.hub.fail(rank.env.rank, op, &panic_message(panic.as_ref()));
    }
    thread.profile
}

/// The text of a panic.
pub fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".into())
}

/// The state of an engine's thread.
struct Thread<'r, 'a, T: Real> {
    rank: &'r Rank<'a, T>,
    engine: usize,
    heads: Vec<Head>,
    /// Earliest time at which something can go on by itself.
    deadline: Option<u64>,
    profile: Profile,
    /// The operation in work, to name it if it panics.
    at: &'r Cell<Option<usize>>,
    /// This is the engine whose waits are accounted for; when it last had something to do.
    compute: bool,
    idle_since: Option<u64>,
    exposed: Vec<u64>,
    random: u64,
}

impl<'r, 'a, T: Real> Thread<'r, 'a, T> {
    fn new(rank: &'r Rank<'a, T>, engine: usize, at: &'r Cell<Option<usize>>) -> Self {
        let plan = rank.plan;
        let head = || Head { position: 0, step: 0, active: None };
        Self {
            rank,
            engine,
            heads: plan.queues[engine].iter().map(|_| head()).collect(),
            deadline: None,
            profile: Profile::new(plan.ops.len()),
            at,
            compute: plan.engines[engine] == Engine::Compute,
            idle_since: None,
            exposed: vec![0; plan.ops.len()],
            random: rank.stress.map_or(0, |seed| {
                seed ^ (rank.env.rank as u64 * 64 + engine as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            }),
        }
    }

    fn run(&mut self) {
        let event = self.rank.hub.event(self.rank.env.rank, self.engine);
        loop {
            let seen = event.read();
            if self.rank.hub.has_failed() {
                break;
            }
            self.deadline = None;
            if self.progress(self.heads.len()) {
                continue;
            }
            if self.exhausted() {
                break;
            }
            let deadline = self.deadline.map(|at| self.rank.hub.instant(at));
            event.sleep(seen, deadline);
        }
        for (op, exposed) in self.profile.ops.iter_mut().zip(&self.exposed) {
            op.exposed = Duration::from_nanos(*exposed);
        }
    }

    /// The next operation of a queue, and its step.
    fn head(&self, queue: usize) -> Option<(usize, u64)> {
        let head = &self.heads[queue];
        // Steps go on until the last operation has had the last batch.
        let (last, first) = self.rank.plan.stages;
        let steps = self.rank.end.load(Ordering::Acquire) as i64 + first - last;
        let op = self.rank.plan.queues[self.engine][queue].ops[head.position] as usize;
        ((head.step as i64) < steps).then_some((op, head.step))
    }

    fn pass(&mut self, queue: usize) {
        let head = &mut self.heads[queue];
        head.position += 1;
        if head.position == self.rank.plan.queues[self.engine][queue].ops.len() {
            head.position = 0;
            head.step += 1;
        }
    }

    fn exhausted(&self) -> bool {
        (0..self.heads.len()).all(|q| self.heads[q].active.is_none() && self.head(q).is_none())
    }

    /// Lets one of the first `queues` queues go on; false if none can.
    fn progress(&mut self, queues: usize) -> bool {
        if self.rank.hub.has_failed() {
            return false;
        }
        let reluctant = self.rank.stress.is_some() && self.chance(4);
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
        if let Some(active) = self.heads[queue].active {
            // Taken out while it is in work: a queue of greater priority may interrupt it, itself may not.
            return self.advance(queue, active);
        }
        let Some((op, step)) = self.head(queue) else { return false };
        if !self.rank.ready(op, step) {
            return false;
        }
        let Some(batch) = self.rank.batch(op, step) else {
            self.done(queue, op, step);
            return true;
        };
        if self.rank.stress.is_some() && self.chance(4) {
            let delay = self.draw() % 400;
            std::thread::sleep(Duration::from_micros(delay));
        }
        if self.rank.plan.ops[op].transfer {
            let now = self.rank.hub.now();
            self.close_gap(op, step, now);
            let active = Active {
                op,
                step,
                batch,
                round: 0,
                stage: Stage::Fill,
                began: now,
                met: now,
                asked: now,
                served: 1,
                sent: 0,
                at: 0,
            };
            self.heads[queue].active = Some(active);
            return self.advance(queue, active);
        }
        self.local(queue, op, step, batch);
        true
    }

    /// Runs an operation of this rank alone.
    fn local(&mut self, queue: usize, op: usize, step: u64, batch: u64) {
        let rank = self.rank;
        let outer = self.at.replace(Some(op));
        let start = rank.hub.now();
        self.close_gap(op, step, start);
        let cx = self.context();
        let outcome = if rank.plan.load == Some(op) {
            rank.load(&cx, batch)
        } else {
            Call::new(cx, op, batch).and_then(|call| dispatch::execute(&call)).map(|()| true)
        };
        match outcome {
            Ok(true) => self.finish(queue, (op, step, batch), start, start),
            // The last batch was the one before.
            Ok(false) => self.done(queue, op, step),
            Err(fault) => self.fail(op, &fault),
        }
        self.at.set(outer);
    }

    /// Takes a transfer as far as it can go; false if it cannot move.
    fn advance(&mut self, queue: usize, mut active: Active) -> bool {
        let rank = self.rank;
        let now = rank.hub.now();
        if now < active.at {
            self.deadline = Some(self.deadline.map_or(active.at, |d| d.min(active.at)));
            return false;
        }
        let channel = rank.plan.ops[active.op].channel.unwrap_or(0) + active.round;
        match active.stage {
            Stage::Fill => {
                if let Err(fault) = self.fill(queue, &active) {
                    self.fail(active.op, &fault);
                    return true;
                }
                (active.served, active.sent) = (1, 0);
                active.stage = Stage::Wire;
            }
            Stage::Wire => self.wire(&mut active, channel),
            Stage::Wait => {
                if !rank.hub.complete(channel, active.batch) {
                    return false;
                }
                // The slowest rank to begin, and the last data to come.
                for from in 0..rank.env.ranks {
                    let inbox = rank.hub.inbox(channel, active.batch, from);
                    active.met = active.met.max(inbox.began);
                    active.at = active.at.max(inbox.there[rank.env.rank]);
                }
                if active.round + 1 < rounds(&rank.program.ops[active.op].action) {
                    active.round += 1;
                    active.asked = active.at;
                    active.stage = Stage::Fill;
                } else {
                    active.stage = Stage::Drain;
                }
            }
            Stage::Drain => {
                self.heads[queue].active = Some(active);
                match self.drain(queue, &active) {
                    Ok(()) => {
                        self.heads[queue].active = None;
                        let instance = (active.op, active.step, active.batch);
                        self.finish(queue, instance, active.began, active.met);
                    }
                    Err(fault) => self.fail(active.op, &fault),
                }
                return true;
            }
        }
        self.heads[queue].active = Some(active);
        true
    }

    fn fill(&mut self, queue: usize, active: &Active) -> Result<(), Fault> {
        let rank = self.rank;
        let outer = self.at.replace(Some(active.op));
        let call = Call::new(self.context(), active.op, active.batch)?;
        let channel = rank.plan.ops[active.op].channel.unwrap_or(0);
        let inbox = |round: usize, from: usize| rank.hub.inbox(channel + round, active.batch, from);
        let n = sections(&call.op.action);
        let mut outbox = rank.hub.outbox(channel + active.round, active.batch, rank.env.rank, n);
        outbox.began = active.began;
        outbox.there.fill(0);
        fill(&call, active.round, &mut outbox, &inbox, &mut || while self.progress(queue) {})?;
        self.profile.ops[active.op].sent += outbox.wire.iter().sum::<u64>();
        self.at.set(outer);
        Ok(())
    }

    fn drain(&mut self, queue: usize, active: &Active) -> Result<(), Fault> {
        let rank = self.rank;
        let outer = self.at.replace(Some(active.op));
        let call = Call::new(self.context(), active.op, active.batch)?;
        let channel = rank.plan.ops[active.op].channel.unwrap_or(0);
        let inbox = |round: usize, from: usize| rank.hub.inbox(channel + round, active.batch, from);
        drain(&call, &inbox, &mut || while self.progress(queue) {})?;
        self.at.set(outer);
        Ok(())
    }

    /// Gives the emulated link a chunk, or posts.
    fn wire(&mut self, active: &mut Active, channel: usize) {
        let rank = self.rank;
        let (me, ranks) = (rank.env.rank, rank.env.ranks);
        if let Some(links) = rank.hub.links() {
            let mut outbox = rank.hub.amend(channel, active.batch, me);
            let mut budget = rank.program.ops[active.op].chunk.unwrap_or(u64::MAX).max(1);
            while active.served < ranks && budget > 0 {
                let to = (me + active.served) % ranks;
                let piece = (outbox.wire[to] - active.sent).min(budget);
                let (free, there) = links.send(me, to, piece, active.asked);
                outbox.there[to] = there;
                active.asked = free;
                active.sent += piece;
                budget -= piece;
                if active.sent == outbox.wire[to] {
                    (active.served, active.sent) = (active.served + 1, 0);
                }
            }
            active.at = active.asked;
            if active.served < ranks {
                return;
            }
        }
        rank.hub.post(channel);
        active.stage = Stage::Wait;
    }

    fn finish(&mut self, queue: usize, (op, step, batch): (usize, u64, u64), start: u64, met: u64) {
        let rank = self.rank;
        let end = rank.hub.now();
        rank.stamps[op].set(start, met, end);
        let waited = met.saturating_sub(start);
        let busy = end.saturating_sub(start);
        self.profile.record(op, busy, waited);
        account::add(&rank.totals.busy[self.engine], busy.saturating_sub(waited));
        if self.compute {
            if rank.plan.ops[op].transfer {
                account::add(&rank.totals.straggler, waited);
                account::add(&rank.totals.exposed, busy - waited.min(busy));
                self.exposed[op] += busy - waited.min(busy);
            }
            self.idle_since = Some(end);
        }
        if rank.left[rank.ring(batch)].fetch_sub(1, Ordering::AcqRel) == 1 {
            rank.report(batch, end);
        }
        self.done(queue, op, step);
    }

    /// Lets those go on that waited for an operation.
    fn done(&mut self, queue: usize, op: usize, step: u64) {
        let rank = self.rank;
        rank.done[op].store(step + 1, Ordering::Release);
        rank.hub.wake(rank.env.rank, rank.plan.ops[op].wakes);
        self.pass(queue);
    }

    /// Explains the time since the compute engine last had something to do.
    fn close_gap(&mut self, op: usize, step: u64, now: u64) {
        let Some(since) = self.idle_since.take().filter(|since| self.compute && *since < now) else { return };
        let Rank { plan, stamps, done, totals, .. } = self.rank;
        account::explain(plan, stamps, done, (op, step), (since, now), totals, &mut self.exposed);
    }

    fn fail(&mut self, op: usize, fault: &Fault) {
        // A failure that came from another rank is already known to everyone.
        let name = &self.rank.program.ops[op].name;
        self.rank.hub.fail(self.rank.env.rank, name, &fault.to_string());
    }

    fn context(&self) -> Context<'r, T> {
        let Rank { env, program, plan, hub, end, works, .. } = self.rank;
        Context { env, program, plan, hub, end, work: &works[self.engine] }
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
