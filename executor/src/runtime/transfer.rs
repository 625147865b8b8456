//! A transfer on its way: fill an outbox, send it, wait for the others', drain what they sent; round after round.
//!
//! Each call of [`Thread::advance`] takes one step and returns; while a transfer waits, its thread runs other queues.

use super::account::Gap;
use super::place::Doing;
use super::thread::{Active, Stage, Thread};
use crate::device::{Device, Fault, Progress};
use crate::transport::{Message, Outbox, TransportError, Turn};

impl<D: Device> Thread<'_, '_, D> {
    /// Begins a collective.
    pub(super) fn begin(&mut self, queue: usize, (op, step, batch): (usize, u64, u64)) {
        let rank = self.rank;
        let now = rank.process.clock.now();
        self.close_gap(Gap::Before(op, step), now);
        let active = Active {
            op,
            step,
            batch,
            first: self.turns[op],
            round: 0,
            rounds: 1,
            stage: Stage::Fill,
            cursor: None,
            began: now,
            met: now,
            asked: now,
            at: 0,
            since: now,
        };
        self.heads[queue].active = Some(active);
        self.note(queue, &active, Doing::Fills);
        rank.progress.publish(self.engine, queue, None);
        self.advance(queue, active);
    }

    /// Fails if a transfer has waited too long for other ranks.
    pub(super) fn check_waits(&self, now: u64) {
        let rank = self.rank;
        for active in self.heads.iter().filter_map(|head| head.active) {
            if active.stage != Stage::Wait || now.saturating_sub(active.since) <= rank.process.timeout {
                continue;
            }
            let turn = self.turn(&active, active.round);
            let ranks = rank.process.transport.missing(turn);
            if !ranks.is_empty() {
                rank.process.fail_with(&TransportError::Timeout {
                    op: rank.program.ops[active.op].name.clone(),
                    batch: Some(rank.settings.first_step + active.batch),
                    ranks,
                    seconds: rank.process.timeout as f64 * 1e-9,
                });
            }
        }
    }

    /// Takes a transfer as far as it can go; false if it cannot move.
    pub(super) fn advance(&mut self, queue: usize, mut active: Active<D::Cursor>) -> bool {
        let rank = self.rank;
        let (clock, transport) = (rank.process.clock, &*rank.process.transport);
        let now = clock.now();
        if now < active.at {
            self.deadline = Some(self.deadline.map_or(active.at, |d| d.min(active.at)));
            return false;
        }
        let turn = self.turn(&active, active.round);
        match active.stage {
            Stage::Fill => {
                let progress = self.fill(queue, &mut active);
                if self.has_ended(&mut active, progress) {
                    active.stage = Stage::Send;
                    self.note(queue, &active, Doing::Sends);
                }
            }
            Stage::Send => {
                let piece = rank.program.ops[active.op].chunk.unwrap_or(u64::MAX);
                let sent = transport.send(turn, active.asked, piece);
                active.at = sent.at;
                if sent.all {
                    rank.places.meet((self.engine, queue), (active.op, active.step), (turn.turn, now));
                    transport.post(turn, active.began);
                    active.since = now;
                    active.stage = Stage::Wait;
                }
            }
            Stage::Wait => {
                if !transport.poll(turn) {
                    return false;
                }
                // The slowest rank to begin, and the last data to come.
                let arrival = transport.arrival(turn);
                active.met = active.met.max(arrival.met);
                active.at = active.at.max(arrival.at);
                if active.round + 1 < active.rounds {
                    active.round += 1;
                    active.asked = active.at.max(active.asked);
                    active.stage = Stage::Fill;
                    self.note(queue, &active, Doing::Fills);
                } else {
                    active.stage = Stage::Drain;
                    self.note(queue, &active, Doing::Drains);
                }
            }
            Stage::Drain => {
                let progress = self.drain(queue, &active);
                if self.has_ended(&mut active, progress) {
                    self.heads[queue].active = None;
                    self.turns[active.op] = active.first + active.rounds;
                    self.finish(queue, (active.op, active.step, active.batch), active.began, active.met);
                    return true;
                }
            }
        }
        self.heads[queue].active = Some(active);
        true
    }

    fn note(&self, queue: usize, active: &Active<D::Cursor>, doing: Doing) {
        self.rank.places.set((self.engine, queue), (active.op, active.step), doing);
    }

    /// Whether the device has filled or drained all; otherwise remembers how far it is.
    fn has_ended(
        &mut self,
        active: &mut Active<D::Cursor>,
        progress: Result<Progress<D::Cursor>, Fault>,
    ) -> bool {
        match progress {
            Ok(Progress::Done) => active.cursor = None,
            Ok(Progress::Running(cursor, wait)) => {
                active.cursor = Some(cursor);
                if !wait.is_zero() {
                    active.at = self.rank.process.clock.now() + wait.as_nanos() as u64;
                }
                return false;
            }
            Err(fault) => {
                self.fail(active.op, &fault);
                return false;
            }
        }
        true
    }

    fn fill(&mut self, queue: usize, active: &mut Active<D::Cursor>) -> Result<Progress<D::Cursor>, Fault> {
        let rank = self.rank;
        let transport = &*rank.process.transport;
        let outer = self.at.replace(Some(active.op));
        self.obey(active.op, active.batch);
        let job = rank.job(active.op, active.batch)?;
        let lane = &rank.lanes[self.engine];
        if active.round == 0 && active.cursor.is_none() {
            active.rounds = rank.device.rounds(lane, &job)?;
        }
        let turn = self.turn(active, active.round);
        let before = Turn { turn: turn.turn.wrapping_sub(1), ..turn };
        let inbox =
            |from: usize, read: &mut dyn FnMut(Message<'_, D::Outbox>)| transport.inbox(before, from, read);
        let mut done = Ok(Progress::Done);
        let mut sent = 0;
        let write = &mut |outbox: &mut D::Outbox| {
            let urgent = &mut || self.has_more_urgent(queue);
            done = rank.device.fill(lane, &job, (active.round, active.cursor), outbox, &inbox, urgent);
            if let Ok(Progress::Done) = done {
                sent = (0..rank.env.ranks).filter(|to| *to != turn.rank).map(|to| outbox.wire(to)).sum();
            }
        };
        if active.cursor.is_some() {
            transport.amend(turn, &mut |envelope| write(&mut envelope.outbox));
        } else {
            transport.outbox(turn, job.op.sections(), write);
        }
        if let Ok(Progress::Done) = done {
            self.profile.ops[active.op].sent += sent;
        }
        self.at.set(outer);
        done
    }

    fn drain(&self, queue: usize, active: &Active<D::Cursor>) -> Result<Progress<D::Cursor>, Fault> {
        let rank = self.rank;
        let transport = &*rank.process.transport;
        let outer = self.at.replace(Some(active.op));
        let job = rank.job(active.op, active.batch)?;
        let turn = self.turn(active, active.round);
        let inbox =
            |from: usize, read: &mut dyn FnMut(Message<'_, D::Outbox>)| transport.inbox(turn, from, read);
        let lane = &rank.lanes[self.engine];
        let urgent = &mut || self.has_more_urgent(queue);
        let done = rank.device.drain(lane, &job, active.cursor, &inbox, urgent);
        self.at.set(outer);
        done
    }

    /// Whether a queue of greater priority can go on.
    fn has_more_urgent(&self, queue: usize) -> bool {
        (0..queue).any(|queue| self.queue_can_go_on(queue).unwrap_or(false))
    }
}
