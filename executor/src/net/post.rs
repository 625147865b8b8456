//! Frames of a measurement: who sent them, what they are, and waiting for them.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::NetError;
use crate::transport::wire::{Sink, Wire, World};

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    /// To be answered.
    Ask,
    Answer,
    /// One of a series; its number says how many follow.
    Frame,
    /// The pair has measured.
    Enough,
    /// A process is at the meeting, and all are.
    Here,
    Go,
    /// A process's part of what is gathered.
    Part,
}

impl Tag {
    const ALL: [Self; 7] =
        [Self::Ask, Self::Answer, Self::Frame, Self::Enough, Self::Here, Self::Go, Self::Part];
}

/// What no frame of a run begins with.
const MARK: u8 = 0xfe;
/// The mark, a tag and a number.
const HEADER: usize = 10;

type Heard = (Tag, u64, Vec<u8>);

#[derive(Debug, Default)]
struct State {
    /// Per process, in the order of their arrival. Of frames of a series only that they have come.
    heard: Vec<VecDeque<Heard>>,
    lost: Vec<Option<String>>,
    /// Who has sent nonsense.
    unasked: Option<usize>,
}

#[derive(Debug)]
struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink for Inbox {
    fn frame(&self, process: usize, frame: &[u8], _: Instant) {
        let mut state = self.lock();
        let header = frame.split_first_chunk::<HEADER>();
        let known = header.and_then(|([mark, tag, number @ ..], rest)| {
            let tag = Tag::ALL.get(usize::from(*tag)).filter(|_| *mark == MARK)?;
            Some((*tag, u64::from_le_bytes(*number), rest))
        });
        match known {
            Some((tag, number, rest)) => {
                let rest = if tag == Tag::Part { rest.to_vec() } else { Vec::new() };
                state.heard[process].push_back((tag, number, rest));
            }
            None => state.unasked = Some(process),
        }
        drop(state);
        self.changed.notify_all();
    }

    fn lost(&self, process: usize, reason: &str) {
        self.lock().lost[process].get_or_insert_with(|| reason.to_owned());
        self.changed.notify_all();
    }
}

/// Sends to the others and hears of them.
pub(super) struct Post {
    process: usize,
    wire: Arc<dyn Wire>,
    heard: Arc<Inbox>,
    timeout: Duration,
    processes: usize,
    frame: Mutex<Vec<u8>>,
}

impl Post {
    pub(super) fn new(world: &World, timeout: Duration) -> Self {
        let processes = world.processes.len();
        let (heard, lost) = (vec![VecDeque::new(); processes], vec![None; processes]);
        let state = Mutex::new(State { heard, lost, unasked: None });
        let heard = Arc::new(Inbox { state, changed: Condvar::new() });
        world.wire.start(Arc::clone(&heard) as Arc<dyn Sink>);
        let (wire, frame) = (Arc::clone(&world.wire), Mutex::default());
        Self { process: world.process, wire, heard, timeout, processes, frame }
    }

    pub(super) fn process(&self) -> usize {
        self.process
    }

    pub(super) fn processes(&self) -> usize {
        self.processes
    }

    /// Sends a frame with so many bytes of no meaning. Series travel as data do.
    pub(super) fn send(&self, to: usize, tag: Tag, number: u64, bytes: usize) {
        let mut frame = self.frame.lock().unwrap_or_else(PoisonError::into_inner);
        let write = &mut |frame: &mut Vec<u8>| {
            let begin = frame.len();
            frame.resize(begin + HEADER + bytes, 0);
            head(&mut frame[begin..], tag, number);
        };
        if tag == Tag::Frame {
            return self.wire.send_data(to, (0, HEADER + bytes), &mut frame, write);
        }
        frame.clear();
        write(&mut frame);
        self.wire.send(to, &frame);
    }

    /// The first frame of a process with one of these tags: what is not data may overtake what is.
    pub(super) fn next(&self, from: usize, tags: &[Tag]) -> Result<Heard, NetError> {
        let until = Instant::now() + self.timeout;
        let mut state = self.heard.lock();
        loop {
            let heard = &mut state.heard[from];
            let found = heard.iter().position(|(tag, ..)| tags.contains(tag)).and_then(|at| heard.remove(at));
            if let Some(found) = found {
                return Ok(found);
            }
            if let Some(process) = state.unasked {
                return Err(NetError::Unasked { process });
            }
            // Of others that are lost the first process hears, which ends then.
            if let Some(reason) = state.lost[from].clone() {
                return Err(NetError::Lost { process: from, reason });
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(NetError::Timeout { process: from, seconds: self.timeout.as_secs_f64() });
            }
            let waited = self.heard.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The first frame of this kind of a process: its number and what is in it.
    pub(super) fn take(&self, from: usize, tag: Tag) -> Result<(u64, Vec<u8>), NetError> {
        self.next(from, &[tag]).map(|(_, number, rest)| (number, rest))
    }

    /// Goes on once all are here; the first process's number.
    pub(super) fn meet(&self, number: u64) -> Result<u64, NetError> {
        if self.process != 0 {
            self.send(0, Tag::Here, 0, 0);
            return Ok(self.take(0, Tag::Go)?.0);
        }
        for other in 1..self.processes {
            self.take(other, Tag::Here)?;
        }
        for other in 1..self.processes {
            self.send(other, Tag::Go, number, 0);
        }
        Ok(number)
    }

    /// What each process has, at the first; elsewhere nothing.
    pub(super) fn gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, NetError> {
        if self.process == 0 {
            let others = (1..self.processes).map(|other| Ok(self.take(other, Tag::Part)?.1));
            return std::iter::once(Ok(own.to_vec())).chain(others).collect();
        }
        let mut frame = vec![0; HEADER];
        frame.extend_from_slice(own);
        head(&mut frame, Tag::Part, 0);
        self.wire.send(0, &frame);
        Ok(Vec::new())
    }
}

fn head(frame: &mut [u8], tag: Tag, number: u64) {
    let at = Tag::ALL.iter().position(|t| *t == tag).unwrap_or(0);
    (frame[0], frame[1]) = (MARK, at as u8);
    frame[2..HEADER].copy_from_slice(&number.to_le_bytes());
}
