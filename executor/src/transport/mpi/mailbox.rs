//! What ranks' threads hand to the thread that speaks MPI.
//!
//! Whoever hands something over holds the lock for as long as it takes to put it there, never while bytes are copied, and
//! wakes the thread behind it. The thread takes all that is there at once. Before it sleeps it looks once more, as
//! [`event`](super::super::event) has it, so nothing lies here while it sleeps; `tests/tests/signalling.rs` runs through the
//! interleavings.

use std::time::Instant;

use crate::sync::Mutex;
use crate::transport::event::{Event, publish};

/// A frame on its way out, behind room for a header.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Outgoing {
    pub(super) to: usize,
    pub(super) urgency: i64,
    pub(super) bytes: Vec<u8>,
    /// When it was handed over.
    pub(super) handed: Instant,
}

/// How the job ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// In order.
    Finish,
    /// For this reason, with this status.
    Abort(String, i32),
}

/// Buffers that are kept to be used again.
const KEPT: usize = 16;

/// Takes the smallest buffer that holds so many bytes, else the largest: what grows is copied.
pub(super) fn fitting(free: &mut Vec<Vec<u8>>, bytes: usize) -> Option<Vec<u8>> {
    let rank = |buffer: &Vec<u8>| match buffer.capacity() {
        enough if enough >= bytes => (0, enough),
        less => (1, usize::MAX - less),
    };
    let best = (0..free.len()).min_by_key(|at| rank(&free[*at]))?;
    Some(free.swap_remove(best))
}

/// What is handed over; `S` is who is told of what comes.
#[derive(Debug)]
pub(super) struct Mailbox<S> {
    /// Bytes before each frame.
    room: usize,
    state: Mutex<Handed<S>>,
    event: Event,
}

#[derive(Debug)]
struct Handed<S> {
    frames: Vec<Outgoing>,
    free: Vec<Vec<u8>>,
    sink: Option<S>,
    end: Option<End>,
    /// The thread takes nothing more.
    closed: bool,
}

impl<S> Mailbox<S> {
    /// Frames get `room` bytes before them.
    pub(super) fn new(room: usize) -> Self {
        let state = Handed { frames: Vec::new(), free: Vec::new(), sink: None, end: None, closed: false };
        Self { room, state: Mutex::new(state), event: Event::default() }
    }

    /// Hands over a frame for a process, which `write` appends to what it is given; it will be of about `expected` bytes.
    pub(super) fn hand(
        &self,
        process: usize,
        urgency: i64,
        expected: usize,
        write: &mut dyn FnMut(&mut Vec<u8>),
    ) {
        if self.put(process, urgency, expected, write) {
            self.wake();
        }
    }

    /// Puts a frame there: whether somebody takes it.
    pub(super) fn put(
        &self,
        process: usize,
        urgency: i64,
        expected: usize,
        write: &mut dyn FnMut(&mut Vec<u8>),
    ) -> bool {
        let handed = Instant::now();
        let mut state = self.state.lock();
        if state.closed {
            return false;
        }
        let mut bytes = fitting(&mut state.free, self.room + expected).unwrap_or_default();
        drop(state);
        bytes.clear();
        bytes.resize(self.room, 0);
        write(&mut bytes);
        self.state.lock().frames.push(Outgoing { to: process, urgency, bytes, handed });
        true
    }

    /// Who is told of what comes from now on.
    pub(super) fn listen(&self, sink: S) {
        self.state.lock().sink = Some(sink);
        self.wake();
    }

    /// How the job ends, once all that was handed over before has left.
    pub(super) fn end(&self, end: End) {
        self.state.lock().end = Some(end);
        self.wake();
    }

    /// Wakes the thread for what was put there before.
    pub(super) fn wake(&self) {
        publish();
        self.event.wake();
    }

    /// The calling thread is the one that takes.
    pub(super) fn attach(&self) {
        self.event.attach();
    }

    /// Takes all that is there, and leaves buffers to be used again.
    pub(super) fn take(
        &self,
        frames: &mut Vec<Outgoing>,
        mut spare: impl FnMut() -> Option<Vec<u8>>,
    ) -> (Option<S>, Option<End>) {
        let mut state = self.state.lock();
        frames.append(&mut state.frames);
        while state.free.len() < KEPT {
            let Some(bytes) = spare() else { break };
            state.free.push(bytes);
        }
        (state.sink.take(), state.end.take())
    }

    /// Whether the end has been said and not been taken.
    pub(super) fn is_ended(&self) -> bool {
        self.state.lock().end.is_some()
    }

    /// Nothing more is taken.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
    }

    /// Sleeps until something is there, or until `deadline`.
    pub(super) fn sleep(&self, deadline: Option<Instant>) {
        self.event.sleep(deadline, || {
            let state = self.state.lock();
            !state.frames.is_empty() || state.sink.is_some() || state.end.is_some()
        });
    }
}
