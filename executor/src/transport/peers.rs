//! Control over other processes, by frames.
//!
//! What comes for the run under way goes to its listener; what comes for a later one, because its sender is ahead,
//! waits until that begins. A gathering has a number, by which processes that are apart do not mix two.
//!
//! Of a failure every process says one thing to all others: what it has noticed by itself, or, if it has heard of one
//! before, that. Both name the process that noticed it. A process for which others have waited too long, and which
//! has itself waited for most of that time, says for whom. Which of all these [counts](that_counts) the first
//! process decides that has said anything ([`settle`]). Where the failure is that nothing was heard for too long, a process says to the first one,
//! before that, where its ranks are.
//!
//! Whoever wants to know where all ranks are asks the first process, which asks all others. They answer on the wire's
//! thread, whatever their ranks wait for.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::control::{Control, Listener};
use super::failure::{blamed, read_failure, that_counts, write_failure};
use super::frame::{BadFrame, FrameKind, Reader, Writer};
use super::tick::Reading;
use super::wire::{Sink, Wire, World};
use super::witness::{Answers, Witness};
use super::{CONNECTION, TransportError};

pub(crate) use working::at_work;

/// Speaks to the other processes of a world.
pub(crate) struct Peers {
    world: World,
    timeout: Duration,
    shared: Arc<Shared>,
}

/// How long at most, and which part of the timeout, processes wait for what others say of a failure.
const SETTLING: (Duration, u32) = (Duration::from_secs(2), 4);

struct Shared {
    process: usize,
    /// Not held, because the wire may hold this.
    wire: Weak<dyn Wire>,
    /// The first rank of each process, and the process of each rank.
    ranks: Vec<usize>,
    process_of: Vec<usize>,
    /// Who has waited for so long is not why others wait.
    overdue: Duration,
    /// Not held, because it may hold this.
    witness: Option<Weak<dyn Witness>>,
    /// What its times count from.
    epoch: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Runs begun.
    runs: u64,
    listener: Option<Arc<dyn Listener>>,
    /// The listener of the present run is being told what came early.
    entering: bool,
    /// Frames of runs to come, with their sender.
    early: VecDeque<(u64, usize, Vec<u8>, Instant)>,
    /// Gatherings done.
    gathered: u64,
    /// Contributions: number, process, what for, bytes.
    parts: Vec<(u64, usize, String, Vec<u8>)>,
    /// Why nothing more comes of a process.
    lost: Vec<Option<String>>,
    /// What each process has said of a failure: which process noticed it, and what it is.
    failures: Vec<Option<(usize, TransportError)>>,
    /// The failure that counts, as the process says that decides.
    verdict: Option<TransportError>,
    /// When each process was heard to be at work that takes long.
    working: Vec<Option<Instant>>,
    /// What is gathered here, and the ranks that are waited for.
    gathering: Option<(String, Vec<usize>)>,
    /// How often the first process has asked, and how often this one was asked.
    inquiries: u64,
    asked: u64,
    /// Where each process has said last that its ranks are, and the inquiry that it has answered.
    places: Vec<Option<(u64, Vec<u8>)>>,
    /// The number of the last question for the time, and its answer: when it came, and the time.
    ticks: u64,
    tock: Option<(u64, Instant, i64)>,
}

/// The inquiry that is answered with a failure.
const LAST_WORDS: u64 = u64::MAX;

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("runs", &self.runs)
            .field("failures", &self.failures)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what a process says of a failure that `noticed` has noticed, and says it to all if this one has said
    /// nothing yet. The failure that counts so far is told to the listener.
    fn fail(&self, process: usize, noticed: usize, failure: &TransportError) {
        let witness = self.witness().filter(|_| failure.is_stall());
        if let Some(witness) = &witness {
            witness.freeze();
        }
        // Who is waited for waits for somebody, too, perhaps; a rank of this process that waits for another one knows more.
        let blames_own = |failure: &TransportError| {
            blamed(failure).iter().any(|rank| self.process_of.get(*rank) == Some(&self.process))
        };
        let overdue = witness.as_ref().filter(|_| blames_own(failure)).and_then(|w| w.overdue(self.overdue));
        let overdue = overdue.filter(|other| process != self.process || !blames_own(other));
        let heard = (noticed, failure.clone());
        let own = overdue.map_or_else(|| heard.clone(), |overdue| (self.process, overdue));
        let (listener, repeat, counts) = {
            let mut state = self.lock();
            let silent = state.failures[self.process].is_none();
            state.failures[self.process].get_or_insert_with(|| own.clone());
            state.failures[process].get_or_insert(heard);
            let counts = self.that_counts(&state);
            (state.listener.clone(), silent || process == self.process, counts)
        };
        self.changed.notify_all();
        if let Some(wire) = self.wire.upgrade().filter(|_| repeat) {
            let mut frame = Vec::new();
            if let Some(witness) = witness.filter(|_| self.process != 0) {
                write_places(&mut frame, LAST_WORDS, witness.as_ref());
                wire.send(0, &frame);
            }
            write_failure(&mut frame, FrameKind::Failure, own.0, &own.1);
            let others = (0..self.ranks.len()).filter(|other| *other != self.process);
            others.for_each(|other| wire.send(other, &frame));
        }
        if let (Some(listener), Some(counts)) = (listener, counts) {
            listener.failed(&counts);
        }
    }

    fn that_counts(&self, state: &State) -> Option<TransportError> {
        that_counts(&state.failures, &self.process_of).cloned()
    }

    fn witness(&self) -> Option<Arc<dyn Witness>> {
        self.witness.as_ref().and_then(Weak::upgrade)
    }

    /// Takes note of where another process's ranks are, or says where this one's are.
    fn inquired(&self, process: usize, kind: FrameKind, number: u64, bytes: &[u8]) {
        if kind == FrameKind::Where {
            self.lock().places[process] = Some((number, bytes.to_vec()));
            return self.changed.notify_all();
        }
        let (Some(witness), Some(wire)) = (self.witness(), self.wire.upgrade()) else { return };
        let mut frame = Vec::new();
        if self.process == 0 {
            // So that the other one knows that it is heard.
            Writer::new(&mut frame, FrameKind::Ask, self.lock().inquiries);
            wire.send(process, &frame);
            witness.asked();
        } else {
            self.lock().asked += 1;
            self.changed.notify_all();
            write_places(&mut frame, number, witness.as_ref());
            wire.send(process, &frame);
        }
    }

    fn time(&self, at: Instant) -> i64 {
        at.saturating_duration_since(self.epoch).as_nanos() as i64
    }

    /// Of each process what it said in an inquiry, or why nothing was heard of it; `own` is what this one says.
    fn answers(&self, state: &State, number: u64, own: &[u8]) -> Vec<Result<Vec<u8>, String>> {
        let of = |process: usize| match (&state.places[process], &state.lost[process]) {
            _ if process == self.process => Ok(own.to_vec()),
            (Some((answered, bytes)), _) if *answered == number => Ok(bytes.clone()),
            (_, Some(reason)) => Err(format!("its process is gone: {reason}")),
            (_, None) => Err("its process says nothing".into()),
        };
        (0..self.ranks.len()).map(of).collect()
    }

    /// Waits until `there` says so, at most until `until`.
    fn wait_until(&self, until: Instant, there: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || there(&state) {
                return state;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The same of what this process notices, if it has said nothing yet.
    fn notice(&self, failure: &TransportError) {
        if self.lock().failures[self.process].is_none() {
            self.fail(self.process, self.process, failure);
        }
    }

    fn gone(&self, process: usize, reason: &str) -> TransportError {
        TransportError::Failed {
            rank: self.ranks[process],
            op: CONNECTION.into(),
            message: format!("its process is gone: {reason}"),
        }
    }

    fn take(&self, process: usize, frame: &[u8], seen: Instant) -> Result<(), BadFrame> {
        let (kind, run, mut reader) = Reader::new(frame)?;
        match kind {
            FrameKind::Failure => {
                let (noticed, failure) = read_failure(&mut reader)?;
                self.fail(process, noticed, &failure);
            }
            FrameKind::Verdict => {
                let (_, failure) = read_failure(&mut reader)?;
                self.lock().verdict.get_or_insert(failure);
                self.changed.notify_all();
            }
            FrameKind::Gather => {
                let what = reader.text()?.to_owned();
                self.lock().parts.push((run, process, what, reader.rest().to_vec()));
                self.changed.notify_all();
            }
            FrameKind::Working => self.heard_working(process, seen),
            FrameKind::Tick | FrameKind::Tock => self.ticked(process, kind, run, reader, seen)?,
            FrameKind::Ask | FrameKind::Where => self.inquired(process, kind, run, reader.rest()),
            FrameKind::Data | FrameKind::Report | FrameKind::Ended | FrameKind::Grant | FrameKind::Stop => {
                let listener = {
                    let mut state = self.lock();
                    if run > state.runs || run == state.runs && state.entering {
                        state.early.push_back((run, process, frame.to_vec(), seen));
                        return Ok(());
                    }
                    // Of a run that is over, after a failure.
                    state.listener.clone().filter(|_| run == state.runs)
                };
                if let Some(listener) = listener {
                    listener.frame(process, frame, seen);
                }
            }
        }
        Ok(())
    }
}

impl Sink for Shared {
    fn frame(&self, process: usize, frame: &[u8], seen: Instant) {
        if let Err(error) = self.take(process, frame, seen) {
            self.notice(&TransportError::Failed {
                rank: self.ranks[process],
                op: CONNECTION.into(),
                message: error.to_string(),
            });
        }
    }

    fn lost(&self, process: usize, reason: &str) {
        let listener = {
            let mut state = self.lock();
            state.lost[process].get_or_insert_with(|| reason.to_owned());
            state.listener.clone()
        };
        self.changed.notify_all();
        // Who has come to the end may go.
        if listener.is_some_and(|l| l.waits_for(process)) {
            self.notice(&self.gone(process, reason));
        }
    }
}

impl Peers {
    /// Speaks to the others of `world`; `timeout` is how long anything is waited for.
    /// `witness` knows where the ranks of this process are.
    pub(crate) fn new(world: World, timeout: Duration, witness: Option<Weak<dyn Witness>>) -> Self {
        let ranks = world.processes.iter().map(|own| own[0]).collect();
        let mut process_of = vec![0; world.ranks()];
        for (process, own) in world.processes.iter().enumerate() {
            for rank in own {
                process_of[*rank] = process;
            }
        }
        let processes = world.processes.len();
        let (lost, failures, places) = (vec![None; processes], vec![None; processes], vec![None; processes]);
        let working = vec![None; processes];
        let state = Mutex::new(State { lost, failures, working, places, ..State::default() });
        let (process, wire) = (world.process, Arc::downgrade(&world.wire));
        let shared = Arc::new(Shared {
            process,
            wire,
            ranks,
            process_of,
            overdue: timeout / 2,
            witness,
            epoch: Instant::now(),
            state,
            changed: Condvar::new(),
        });
        world.wire.start(Arc::clone(&shared) as Arc<dyn Sink>);
        Self { world, timeout, shared }
    }

    /// Gives `to` this process's part of a gathering, and waits for those of `from`; the failure that counts otherwise.
    fn exchange(
        &self,
        number: u64,
        what: &str,
        own: &[u8],
        (to, from): (&[usize], &[usize]),
    ) -> Result<Vec<Option<Vec<u8>>>, TransportError> {
        self.give(number, what, own, to);
        let found = self.wait(number, what, from);
        self.shared.lock().gathering = None;
        found.map_err(|failure| {
            self.shared.notice(&failure);
            self.settle().unwrap_or(failure)
        })
    }

    fn give(&self, number: u64, what: &str, own: &[u8], to: &[usize]) {
        let mut frame = Vec::new();
        Writer::new(&mut frame, FrameKind::Gather, number).text(what).bytes(own);
        for process in to {
            self.send(*process, &frame);
        }
    }

    fn next_number(&self) -> u64 {
        let mut state = self.shared.lock();
        state.gathered += 1;
        state.gathered
    }

    fn others(&self) -> Vec<usize> {
        (0..self.world.processes.len()).filter(|p| *p != self.world.process).collect()
    }

    fn wait(&self, number: u64, what: &str, from: &[usize]) -> Result<Vec<Option<Vec<u8>>>, TransportError> {
        let began = Instant::now();
        let mut found: Vec<Option<Vec<u8>>> = vec![None; self.world.processes.len()];
        let mut state = self.shared.lock();
        loop {
            if let Some(failure) = self.shared.that_counts(&state) {
                return Err(failure.clone());
            }
            let mut at = 0;
            while at < state.parts.len() {
                if state.parts[at].0 != number {
                    at += 1;
                    continue;
                }
                let (_, process, of, bytes) = state.parts.swap_remove(at);
                if of != what {
                    return Err(TransportError::Differ {
                        name: "what is gathered".into(),
                        rank: self.shared.ranks[self.world.process],
                        own: what.into(),
                        other_rank: self.shared.ranks[process],
                        other: of,
                    });
                }
                found[process] = Some(bytes);
            }
            let missing: Vec<usize> = from.iter().copied().filter(|p| found[*p].is_none()).collect();
            if missing.is_empty() {
                return Ok(found);
            }
            let ranks = || missing.iter().flat_map(|p| self.world.processes[*p].clone()).collect();
            state.gathering = Some((what.to_owned(), ranks()));
            let gone = missing.iter().find_map(|p| Some((*p, state.lost[*p].clone()?)));
            let since = state.working.iter().flatten().fold(began, |since, heard| since.max(*heard));
            let left = (since + self.timeout).saturating_duration_since(Instant::now());
            if let Some((process, reason)) = gone {
                return Err(self.shared.gone(process, &reason));
            }
            if left.is_zero() {
                return Err(TransportError::Timeout {
                    op: what.into(),
                    batch: None,
                    ranks: ranks(),
                    seconds: self.timeout.as_secs_f64(),
                });
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Control for Peers {
    fn processes(&self) -> &[Vec<usize>] {
        &self.world.processes
    }

    fn process(&self) -> usize {
        self.world.process
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn gather(&self, what: &str, own: &[u8]) -> Result<Vec<Vec<u8>>, TransportError> {
        let others = self.others();
        let mut found = self.exchange(self.next_number(), what, own, (&others, &others))?;
        found[self.world.process] = Some(own.to_vec());
        Ok(found.into_iter().flatten().collect())
    }

    fn gather_at(
        &self,
        process: usize,
        what: &str,
        own: &[u8],
    ) -> Result<Option<Vec<Vec<u8>>>, TransportError> {
        let number = self.next_number();
        if process != self.world.process {
            return self.exchange(number, what, own, (&[process], &[process])).map(|_| None);
        }
        let others = self.others();
        let mut found = self.exchange(number, what, &[], (&[], &others))?;
        found[process] = Some(own.to_vec());
        self.give(number, what, &[], &others);
        Ok(Some(found.into_iter().flatten().collect()))
    }

    fn send(&self, process: usize, frame: &[u8]) {
        self.world.wire.send(process, frame);
    }

    fn send_data(
        &self,
        process: usize,
        (priority, bytes): (i32, usize),
        buffer: &mut Vec<u8>,
        write: &mut dyn FnMut(&mut Vec<u8>),
    ) {
        self.world.wire.send_data(process, (priority, bytes), buffer, write);
    }

    fn working(&self) {
        self.say_working();
    }

    fn heard_working(&self) -> Option<Instant> {
        self.shared.lock().working.iter().flatten().max().copied()
    }

    fn fail(&self, failure: &TransportError) {
        self.shared.notice(failure);
    }

    fn failure(&self) -> Option<TransportError> {
        self.shared.that_counts(&self.shared.lock())
    }

    fn settle(&self) -> Option<TransportError> {
        self.shared.settle(SETTLING.0.min(self.timeout / SETTLING.1))
    }

    fn inquire(&self, patience: Duration) -> Answers {
        let Some(witness) = self.shared.witness() else { return Answers::Elsewhere };
        let until = Instant::now() + patience;
        let mut frame = Vec::new();
        if self.world.process != 0 {
            let asked = self.shared.lock().asked;
            Writer::new(&mut frame, FrameKind::Ask, 0);
            self.send(0, &frame);
            let heard =
                self.shared.wait_until(until, |s| s.asked > asked || s.lost[0].is_some()).asked > asked;
            return if heard { Answers::Elsewhere } else { Answers::Own(witness.testify()) };
        }
        let number = {
            let mut state = self.shared.lock();
            state.inquiries += 1;
            state.inquiries
        };
        Writer::new(&mut frame, FrameKind::Ask, number);
        self.tell(&frame);
        let others = self.others();
        let there = |state: &State, process: &usize| {
            state.lost[*process].is_some() || state.places[*process].as_ref().is_some_and(|p| p.0 == number)
        };
        drop(self.shared.wait_until(until, |state| others.iter().all(|p| there(state, p))));
        // Now: those that wait for somebody who is silent have come to that.
        let own = witness.testify();
        let state = self.shared.lock();
        Answers::All(self.shared.answers(&state, number, &own))
    }

    fn last_words(&self) -> Answers {
        let Some(witness) = self.shared.witness() else { return Answers::Elsewhere };
        let own = witness.testify();
        let state = self.shared.lock();
        match self.world.process {
            0 => Answers::All(self.shared.answers(&state, LAST_WORDS, &own)),
            _ if state.failures[0].is_some() => Answers::Elsewhere,
            _ => Answers::Own(own),
        }
    }

    fn freeze(&self) {
        if let Some(witness) = self.shared.witness() {
            witness.freeze();
        }
    }

    fn epoch(&self) -> Instant {
        self.shared.epoch
    }

    fn read_clocks(&self) -> Vec<Option<Reading>> {
        let read = |process: usize| (process != 0).then(|| self.read_clock(process)).flatten();
        if self.world.process == 0 { (0..self.world.processes.len()).map(read).collect() } else { Vec::new() }
    }

    fn gathering(&self) -> Option<(String, Vec<usize>)> {
        self.shared.lock().gathering.clone()
    }

    fn enter(&self, listener: Arc<dyn Listener>) -> u64 {
        let mut state = self.shared.lock();
        state.runs += 1;
        state.entering = true;
        let run = state.runs;
        // In order: nothing that comes now may pass what came before.
        while let Some(at) = state.early.iter().position(|(of, ..)| *of == run) {
            let Some((_, process, frame, seen)) = state.early.remove(at) else { break };
            drop(state);
            listener.frame(process, &frame, seen);
            state = self.shared.lock();
        }
        state.entering = false;
        state.listener = Some(Arc::clone(&listener));
        let failure = self.shared.that_counts(&state);
        let lost: Vec<(usize, String)> =
            state.lost.iter().enumerate().filter_map(|(p, lost)| Some((p, lost.clone()?))).collect();
        drop(state);
        if let Some(failure) = failure {
            listener.failed(&failure);
        }
        for (process, reason) in lost.iter().filter(|(process, _)| listener.waits_for(*process)) {
            self.shared.notice(&self.shared.gone(*process, reason));
        }
        run
    }

    fn leave(&self) {
        self.shared.lock().listener = None;
    }
}

fn write_places(frame: &mut Vec<u8>, number: u64, witness: &dyn Witness) {
    let bytes = witness.testify();
    Writer::new(frame, FrameKind::Where, number).bytes(&bytes);
}

mod clocks;
mod settle;
#[cfg(test)]
mod tests;
mod working;
