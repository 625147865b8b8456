//! Control over other processes, by frames.
//!
//! What comes for the run under way goes to its listener; what comes for a later one, because its sender is ahead,
//! waits until that begins. A gathering has a number, by which processes that are apart do not mix two.
//!
//! Of a failure every process says one thing to all others: what it has noticed by itself, or, if it has heard of one
//! before, that. Both name the process that noticed it. So everyone learns the same set of failures, and takes that of
//! the first process in it. Where the failure is that nothing was heard for too long, a process says to the first one,
//! before that, where its ranks are.
//!
//! Whoever wants to know where all ranks are asks the first process, which asks all others. They answer on the wire's
//! thread, whatever their ranks wait for.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::control::{Control, Listener};
use super::failure::{read_failure, write_failure};
use super::frame::{BadFrame, FrameKind, Reader, Writer};
use super::wire::{Sink, Wire, World};
use super::witness::{Answers, Witness};
use super::{CONNECTION, TransportError};

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
    /// The first rank of each process.
    ranks: Vec<usize>,
    /// Not held, because it may hold this.
    witness: Option<Weak<dyn Witness>>,
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
    /// What is gathered here, and the ranks that are waited for.
    gathering: Option<(String, Vec<usize>)>,
    /// How often the first process has asked, and how often this one was asked.
    inquiries: u64,
    asked: u64,
    /// Where each process has said last that its ranks are, and the inquiry that it has answered.
    places: Vec<Option<(u64, Vec<u8>)>>,
}

/// The inquiry that is answered with a failure.
const LAST_WORDS: u64 = u64::MAX;

impl State {
    /// That of the first process that noticed one.
    fn failure(&self) -> Option<&TransportError> {
        self.failures.iter().flatten().min_by_key(|(noticed, _)| *noticed).map(|(_, failure)| failure)
    }
}

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
        let (listener, repeat, counts) = {
            let mut state = self.lock();
            state.failures[process].get_or_insert_with(|| (noticed, failure.clone()));
            let silent = state.failures[self.process].is_none();
            if silent {
                state.failures[self.process] = Some((noticed, failure.clone()));
            }
            let counts = state.failure().cloned();
            (state.listener.clone(), silent || process == self.process, counts)
        };
        self.changed.notify_all();
        if let Some(wire) = self.wire.upgrade().filter(|_| repeat) {
            let mut frame = Vec::new();
            if let Some(witness) = witness.filter(|_| self.process != 0) {
                write_places(&mut frame, LAST_WORDS, witness.as_ref());
                wire.send(0, &frame);
            }
            write_failure(&mut frame, noticed, failure);
            let others = (0..self.ranks.len()).filter(|other| *other != self.process);
            others.for_each(|other| wire.send(other, &frame));
        }
        if let (Some(listener), Some(counts)) = (listener, counts) {
            listener.failed(&counts);
        }
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
            FrameKind::Gather => {
                let what = reader.text()?.to_owned();
                self.lock().parts.push((run, process, what, reader.rest().to_vec()));
                self.changed.notify_all();
            }
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
        let processes = world.processes.len();
        let (lost, failures, places) = (vec![None; processes], vec![None; processes], vec![None; processes]);
        let state = Mutex::new(State { lost, failures, places, ..State::default() });
        let (process, wire) = (world.process, Arc::downgrade(&world.wire));
        let shared = Arc::new(Shared { process, wire, ranks, witness, state, changed: Condvar::new() });
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
        let until = Instant::now() + self.timeout;
        let mut found: Vec<Option<Vec<u8>>> = vec![None; self.world.processes.len()];
        let mut state = self.shared.lock();
        loop {
            if let Some(failure) = state.failure() {
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
            let left = until.saturating_duration_since(Instant::now());
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

    fn send_data(&self, process: usize, frame: &[u8], priority: i32) {
        self.world.wire.send_data(process, frame, priority);
    }

    fn fail(&self, failure: &TransportError) {
        self.shared.notice(failure);
    }

    fn failure(&self) -> Option<TransportError> {
        self.shared.lock().failure().cloned()
    }

    fn settle(&self) -> Option<TransportError> {
        let until = Instant::now() + SETTLING.0.min(self.timeout / SETTLING.1);
        let mut state = self.shared.lock();
        loop {
            let failure = state.failure().cloned()?;
            let silent = (0..state.failures.len())
                .any(|process| state.failures[process].is_none() && state.lost[process].is_none());
            let left = until.saturating_duration_since(Instant::now());
            if !silent || left.is_zero() {
                return Some(failure);
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
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
        let failure = state.failure().cloned();
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// What processes of this one send each other, until it is delivered.
    #[derive(Default)]
    struct Post {
        sinks: Mutex<Vec<Option<Arc<dyn Sink>>>>,
        frames: Mutex<VecDeque<(usize, usize, Vec<u8>)>>,
    }

    impl Post {
        /// Delivers what was sent, and what is sent because of that.
        fn deliver(&self) {
            self.deliver_but(usize::MAX);
        }

        /// The same, but for what is for one of them.
        fn deliver_but(&self, deaf: usize) {
            loop {
                let next = self.frames.lock().unwrap().pop_front();
                let Some((from, to, frame)) = next else { return };
                if to == deaf {
                    continue;
                }
                let sink = self.sinks.lock().unwrap()[to].clone();
                sink.unwrap().frame(from, &frame, Instant::now());
            }
        }
    }

    struct Bus(usize, Arc<Post>);

    impl std::fmt::Debug for Bus {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "the bus of process {}", self.0)
        }
    }

    impl Wire for Bus {
        fn start(&self, sink: Arc<dyn Sink>) {
            self.1.sinks.lock().unwrap()[self.0] = Some(sink);
        }
        fn send(&self, process: usize, frame: &[u8]) {
            self.1.frames.lock().unwrap().push_back((self.0, process, frame.to_vec()));
        }
    }

    /// Says its number, and counts how often it is asked.
    struct Here(u8, AtomicU64);

    impl Witness for Here {
        fn testify(&self) -> Vec<u8> {
            vec![self.0]
        }
        fn freeze(&self) {}
        fn asked(self: Arc<Self>) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn peers(processes: usize) -> (Vec<Peers>, Arc<Post>) {
        let (peers, post, _) = witnessed(processes);
        (peers, post)
    }

    fn witnessed(processes: usize) -> (Vec<Peers>, Arc<Post>, Vec<Arc<Here>>) {
        let here: Vec<_> = (0..processes).map(|p| Arc::new(Here(p as u8 + 10, AtomicU64::new(0)))).collect();
        let post = Arc::new(Post { sinks: Mutex::new(vec![None; processes]), ..Post::default() });
        let world = |process: usize| World {
            processes: (0..processes).map(|rank| vec![rank]).collect(),
            process,
            wire: Arc::new(Bus(process, Arc::clone(&post))),
        };
        let peer = |process: usize| {
            let witness: Weak<Here> = Arc::downgrade(&here[process]);
            Peers::new(world(process), Duration::from_secs(20), Some(witness))
        };
        ((0..processes).map(peer).collect(), post, here)
    }

    /// Three notice a failure of their own before they hear of the others', a fourth none.
    #[test]
    fn failures_that_cross_are_settled_alike() {
        let (peers, post) = peers(4);
        let of = |op: &str, rank: usize| TransportError::Timeout {
            op: op.into(),
            batch: Some(1),
            ranks: vec![rank],
            seconds: 1.0,
        };
        peers[2].fail(&of("rows", 3));
        peers[1].fail(&of("ids", 0));
        peers[3].fail(&of("gradients", 1));
        assert_eq!(peers[3].failure(), Some(of("gradients", 1)), "that is all that it knows");
        post.deliver();
        for peer in &peers {
            assert_eq!(peer.settle(), Some(of("ids", 0)), "process {}", peer.process());
        }
        peers[0].fail(&of("too late", 2));
        post.deliver();
        assert_eq!(peers[0].settle(), Some(of("ids", 0)));
    }

    /// The first process gathers what all say, at once or until its patience ends.
    #[test]
    fn where_ranks_are_is_gathered() {
        let (peers, post, here) = witnessed(3);
        let inquire = |process: usize, patience: u64, deliver: bool| {
            std::thread::scope(|scope| {
                let asking = scope.spawn(|| peers[process].inquire(Duration::from_millis(patience)));
                while !asking.is_finished() {
                    if deliver {
                        post.deliver();
                    }
                    std::thread::yield_now();
                }
                asking.join().unwrap()
            })
        };
        let all = Answers::All([10, 11, 12].map(|n| Ok(vec![n])).to_vec());
        assert_eq!(inquire(0, 20_000, true), all);
        assert_eq!(inquire(2, 20_000, true), Answers::Elsewhere);
        assert_eq!(here[0].1.load(Ordering::Relaxed), 1, "the first process is asked");
        // Nothing arrives.
        let began = Instant::now();
        assert_eq!(inquire(2, 50, false), Answers::Own(vec![12]));
        post.frames.lock().unwrap().clear();
        let silent = || Err("its process says nothing".to_owned());
        assert_eq!(inquire(0, 50, false), Answers::All(vec![Ok(vec![10]), silent(), silent()]));
        assert!(began.elapsed() < Duration::from_secs(5));
        post.frames.lock().unwrap().clear();
        peers[0].shared.lost(1, "it was killed");
        let gone = Err("its process is gone: it was killed".to_owned());
        assert_eq!(inquire(0, 50, false), Answers::All(vec![Ok(vec![10]), gone, silent()]));
    }

    /// Who says that it has waited too long says before that where its ranks are.
    #[test]
    fn last_words_come_before_the_failure() {
        let (peers, post, _here) = witnessed(3);
        let stall =
            TransportError::Timeout { op: "rows".into(), batch: Some(1), ranks: vec![1], seconds: 1.0 };
        peers[2].fail(&stall);
        assert_eq!(peers[2].last_words(), Answers::Own(vec![12]), "nothing was heard of the first process");
        post.deliver_but(1);
        assert_eq!(peers[0].failure(), Some(stall));
        let silent = Err("its process says nothing".to_owned());
        assert_eq!(peers[0].last_words(), Answers::All(vec![Ok(vec![10]), silent, Ok(vec![12])]));
        assert_eq!(peers[2].last_words(), Answers::Elsewhere);
    }

    #[test]
    fn one_gathers_from_all() {
        let (peers, post) = peers(3);
        let found: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = peers
                .iter()
                .map(|p| scope.spawn(|| p.gather_at(1, "numbers", &[p.process() as u8 + 5])))
                .collect();
            while !threads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                post.deliver();
                std::thread::yield_now();
            }
            threads.into_iter().map(|t| t.join().unwrap().unwrap()).collect()
        });
        assert_eq!(found, [None, Some(vec![vec![5], vec![6], vec![7]]), None]);
    }
}
