//! The state of an engine's thread: where its queues stand, what is under way, where its time goes.
//!
//! [`engine`](super::engine) takes the queues on, [`transfer`](super::transfer) those whose head is a transfer. What both
//! need of each other is here: whether a queue can go on, and what follows from the end of an operation.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::account::{Gap, Ledger, TimeUse, Times, add};
use super::finished::Finished;
use super::profile::Profile;
use super::rank::Rank;
use super::record::Recorder;
use crate::device::{Device, Fault};
use crate::transport::Turn;

/// How long to wait before asking after a loss again, in nanoseconds.
const LATE: u64 = 100_000;

/// An operation that the device has started and that has not ended for others.
#[derive(Debug)]
pub(super) struct Running<Ticket> {
    /// None if the device has ended it, and others before it in its queue have not ended.
    pub(super) ticket: Option<Ticket>,
    pub(super) op: usize,
    pub(super) step: u64,
    pub(super) batch: u64,
    pub(super) start: u64,
    /// When to ask again.
    pub(super) again: u64,
}

/// A collective on its way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Active<Cursor> {
    pub(super) op: usize,
    pub(super) step: u64,
    pub(super) batch: u64,
    /// The channel's turn of the first round.
    pub(super) first: u64,
    pub(super) round: u64,
    pub(super) rounds: u64,
    pub(super) stage: Stage,
    /// How far the device is with filling or draining.
    pub(super) cursor: Option<Cursor>,
    pub(super) began: u64,
    pub(super) met: u64,
    /// When the transport may be asked for the next piece.
    pub(super) asked: u64,
    /// Not before this time.
    pub(super) at: u64,
    /// Since when it waits for others.
    pub(super) since: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Fill,
    Send,
    Wait,
    Drain,
}

/// Most operations of a queue that are under way.
const UNDER_WAY: usize = 32;

/// Where a queue stands.
#[derive(Debug)]
pub(super) struct Head<Ticket, Cursor> {
    /// Of the first operation that has not ended.
    pub(super) position: usize,
    pub(super) step: u64,
    pub(super) active: Option<Active<Cursor>>,
    /// What is under way, in order: of all but the last the host has only to learn sizes, or they have ended.
    pub(super) running: VecDeque<Running<Ticket>>,
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
    pub(super) recorder: Recorder,
    /// The operation in work, to name it if it panics.
    pub(super) at: &'r Cell<Option<usize>>,
    /// Of the engine whose time is accounted for.
    pub(super) ledger: Option<Ledger>,
    /// Batches accounted for.
    pub(super) told: u64,
    /// Those of them whose losses have not come, in order.
    pub(super) late: VecDeque<Finished>,
    /// How long it waited lately, in nanoseconds.
    pub(super) usual_wait: u64,
    pub(super) random: u64,
}

impl<'r, 'a, D: Device> Thread<'r, 'a, D> {
    pub(super) fn new(rank: &'r Rank<'a, D>, engine: usize, at: &'r Cell<Option<usize>>) -> Self {
        let plan = rank.plan;
        let head = || Head { position: 0, step: 0, active: None, running: VecDeque::new() };
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
            late: VecDeque::with_capacity(if D::LATE_LOSSES { 2 * rank.left.len() } else { 0 }),
            usual_wait: 0,
            random: rank.settings.stress.map_or(0, |seed| {
                seed ^ (rank.env.rank as u64 * 64 + engine as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            }),
        }
    }

    /// Whether a queue can go on; `None` if it has come to its end.
    pub(super) fn queue_can_go_on(&self, queue: usize) -> Option<bool> {
        let head = &self.heads[queue];
        if let Some(running) = head.running.front() {
            let again = running.ticket.is_none() || self.rank.process.clock.now() >= running.again;
            return Some(again || self.behind(queue).is_some());
        }
        if let Some(active) = &head.active {
            return Some(self.can_move(active));
        }
        let (op, step) = self.head(queue)?;
        Some(self.rank.progress.ready(self.rank.plan, op, step))
    }

    /// Whether a transfer can go on.
    pub(super) fn can_move(&self, active: &Active<D::Cursor>) -> bool {
        let process = self.rank.process;
        let waits = active.stage == Stage::Wait && !process.transport.poll(self.turn(active, active.round));
        !waits && process.clock.now() >= active.at
    }

    /// The first operation of a queue that has not ended, and its step.
    pub(super) fn head(&self, queue: usize) -> Option<(usize, u64)> {
        self.after(queue, 0)
    }

    /// The one so many after it.
    fn after(&self, queue: usize, many: usize) -> Option<(usize, u64)> {
        let (head, ops) = (&self.heads[queue], &self.rank.plan.queues[self.engine][queue].ops);
        let (position, step) = (head.position + many, head.step);
        let (op, step) = (ops[position % ops.len()] as usize, step + (position / ops.len()) as u64);
        self.rank.progress.exists(self.rank.plan, step).then_some((op, step))
    }

    /// The next operation of a queue, with step and batch, if it can be started behind those that are under way: it needs
    /// nothing of which the host knows too little.
    pub(super) fn behind(&self, queue: usize) -> Option<(usize, u64, u64)> {
        let Rank { plan, progress, program, .. } = self.rank;
        let running = &self.heads[queue].running;
        if !D::IN_ORDER || running.len() >= UNDER_WAY {
            return None;
        }
        let (op, step) = self.after(queue, running.len())?;
        // All that one launch starts with it is started with it.
        let free = |other: &Running<D::Ticket>| {
            let needs = |op: usize| other.op == op || program.needs(&program.ops[op], &program.ops[other.op]);
            (other.ticket.is_none() || plan.ops[other.op].learns) && !(op..=plan.ops[op].last).any(needs)
        };
        if plan.ops[op].channel.is_some() || plan.load == Some(op) || !running.iter().all(free) {
            return None;
        }
        let batch = progress.ready(plan, op, step).then(|| progress.batch(plan, op, step)).flatten()?;
        Some((op, step, batch))
    }

    /// A round's turn of the collective's channel.
    pub(super) fn turn(&self, active: &Active<D::Cursor>, round: u64) -> Turn {
        Turn {
            channel: self.rank.plan.ops[active.op].channel.unwrap_or(0),
            turn: active.first + round,
            rank: self.rank.env.rank,
        }
    }

    pub(super) fn pass(&mut self, queue: usize) {
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
            self.cover(met.min(end), TimeUse::Straggler, Some(op));
            self.cover(end, TimeUse::Exposed, Some(op));
        } else {
            self.cover(end, TimeUse::Compute, Some(op));
        }
        if rank.count((op, step, batch), end) {
            if self.ledger.is_some() {
                self.cover(end, TimeUse::Other, None);
            } else {
                rank.process.threads.call(rank.env.rank, rank.plan.accounted);
            }
        }
        self.done(queue, op, step);
    }

    /// Passes an operation that has no batch in a step.
    pub(super) fn skip(&mut self, queue: usize, op: usize, step: u64) {
        let now = self.rank.process.clock.now();
        self.rank.stamps.set(op, step, Times { start: now, met: now, end: now });
        self.done(queue, op, step);
    }

    /// Lets those go on that waited for an operation.
    pub(super) fn done(&mut self, queue: usize, op: usize, step: u64) {
        let Rank { process, env, plan, progress, .. } = self.rank;
        process.threads.add_awake(progress.complete(plan, op, step, process.threads.events(env.rank)));
        self.pass(queue);
    }

    /// Accounts for the time up to `until`, if this is the engine to do so: it went to `kind`.
    pub(super) fn cover(&mut self, until: u64, kind: TimeUse, op: Option<usize>) {
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
            let finished = rank.accounted(&done, ledger.cut());
            if D::LATE_LOSSES {
                self.late.push_back(finished);
            } else {
                rank.report(finished);
            }
            self.told += 1;
        }
        ledger.cover(until, kind, op);
    }

    /// Explains the time up to `until`, in which this engine stood still.
    pub(super) fn close_gap(&mut self, gap: Gap, until: u64) {
        let Rank { plan, stamps, .. } = self.rank;
        // While the device works for this engine there is nothing to explain.
        if let Some(op) = self.heads.iter().find_map(|head| head.running.front().map(|r| r.op)) {
            return self.cover(until, TimeUse::Compute, Some(op));
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

    /// Tells of batches whose losses have come since, in the order in which they were accounted for, and asks again soon after
    /// the others.
    pub(super) fn tell_late(&mut self) {
        while let Some(finished) = self.late.front() {
            match self.rank.late_loss(finished) {
                Ok(Some(contribution)) => self.rank.report(Finished { contribution, ..*finished }),
                Ok(None) => {
                    self.deadline = Some(self.rank.process.clock.now() + LATE);
                    return;
                }
                Err(fault) => {
                    let loss = self.rank.plan.ops.iter().position(|op| op.loss.is_some());
                    return self.fail(loss.unwrap_or(0), &fault);
                }
            }
            self.late.pop_front();
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        self.ledger.is_none() || self.told >= self.rank.progress.end.load(Ordering::Acquire)
    }

    /// Panics if told to.
    pub(super) fn obey(&self, op: usize, batch: u64) {
        let Rank { settings, env, .. } = self.rank;
        assert!(settings.panic_at != Some((env.rank, op, batch)), "told to panic");
    }

    pub(super) fn fail(&mut self, op: usize, fault: &Fault) {
        // Who has waited too long says so and names those that were waited for, not itself.
        if let Fault::Transport(stall) = fault
            && stall.is_stall()
        {
            return self.rank.process.fail_with(stall);
        }
        // A failure that came from another rank is already known to everyone.
        let name = &self.rank.program.ops[op].name;
        self.rank.process.fail(self.rank.env.rank, name, &fault.to_string());
    }

    pub(super) fn draw(&mut self) -> u64 {
        // xorshift64*
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }

    pub(super) fn chance(&mut self, one_in: u64) -> bool {
        self.draw().is_multiple_of(one_in)
    }
}
