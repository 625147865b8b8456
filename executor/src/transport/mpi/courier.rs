//! How frames travel as messages: in parts, the most urgent first, as fast as the link carries them.
//!
//! A frame's first message carries a header and up to [`FIRST`] of its bytes; receives for first messages are always
//! posted, for any sender. The rest follows in parts under a tag of the frame's own, received where they belong, for which
//! receives are posted as soon as the first has come. (A tag for each channel and turn would allow no more: how much a
//! rank has for another is not known before it comes.) Between parts a more urgent frame may go first. What has
//! come is acknowledged in bytes, with the time, and parts leave at the [`Pace`] at which they arrive.
//!
//! Frames with data may pass each other. Those that control a run keep their order: they are numbered and held until their
//! turn. With data goes when they were handed over, so that whoever waits for them knows who was late and how long they took.
//! A process that nothing is heard of for the timeout is lost; whoever has nothing to say says so now and then.
//! Nothing here calls MPI: [`Messages`] does.

use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::MpiError;
use super::apart::Apart;
use super::mailbox::{Outgoing, fitting};
use super::pace::Pace;
use crate::transport::wire::Sink;

/// Bytes of a header.
pub(super) const HEADER: usize = 64;
/// Bytes of a frame in its first message, and so of every receive that is always posted.
const FIRST: usize = 32 << 10;
/// Receives that are always posted: so many for each other process, within bounds.
const POSTED: (usize, usize, usize) = (4, 8, 256);
/// Bounds of a part. Above 64 KiB Open MPI asks the receiver before it sends over TCP, and both words wait behind all that
/// is on its way: three times as long as the bytes themselves.
const PARTS: (usize, usize) = (32 << 10, 60 << 10);
/// The tag of first messages; frames' own tags come behind it.
const FIRST_TAG: i32 = 1;
/// Buffers that are kept to be used again, and bytes of all of them.
const KEPT: (usize, usize) = (64, 256 << 20);
/// Control comes before all data.
pub(super) const CONTROL: i64 = i64::MAX;

/// Messages of bytes between processes, none of which is waited for.
pub(super) trait Messages {
    /// No tag is greater.
    fn greatest_tag(&self) -> i32;
    /// Begins to send a part of `bytes`.
    fn send(&mut self, to: usize, tag: i32, bytes: &Arc<Vec<u8>>, part: Range<usize>)
    -> Result<(), MpiError>;
    /// Begins to receive a message of any process, of at most the length of `bytes`.
    fn receive(&mut self, tag: i32, bytes: Vec<u8>) -> Result<(), MpiError>;
    /// Begins to receive into `bytes`, from `begin` on, messages of `part` bytes (the last may be shorter).
    fn land(
        &mut self,
        from: usize,
        tag: i32,
        bytes: Vec<u8>,
        begin: usize,
        part: usize,
    ) -> Result<(), MpiError>;
    /// Appends what is done.
    fn finished(&mut self, done: &mut Vec<Done>) -> Result<(), MpiError>;
}

/// Something that is done.
#[derive(Debug)]
pub(super) enum Done {
    /// The bytes have been sent, or a part of them.
    Sent(Arc<Vec<u8>>),
    /// A message of `len` bytes.
    Received { from: usize, bytes: Vec<u8>, len: usize },
    /// Some of what is received in parts.
    Part { from: usize, bytes: usize },
    /// All of it.
    Landed { from: usize, bytes: Vec<u8> },
}

/// What a first message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The beginning of a frame with data.
    Data = 1,
    /// The beginning of another frame.
    Control = 2,
    /// A sign of life, with what has come so far.
    Alive = 3,
    /// Nothing more will come.
    Bye = 4,
}

/// The head of a first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    kind: Kind,
    /// Of frames in parts: what their tag follows from.
    id: u64,
    /// Of frames that control: their number.
    number: u64,
    /// Bytes of the frame.
    total: u64,
    /// Bytes of its parts but the first.
    part: u64,
    /// Bytes that have come from the receiver so far.
    come: u64,
    /// When that was, in nanoseconds of the sender's clock; 0: some time ago.
    stamp: u64,
    /// Of frames with data: when they were handed over, by the same clock.
    handed: u64,
}

impl Head {
    fn write(&self, to: &mut [u8]) {
        let numbers = [
            self.kind as u64,
            self.id,
            self.number,
            self.total,
            self.part,
            self.come,
            self.stamp,
            self.handed,
        ];
        for (to, n) in to.chunks_exact_mut(8).zip(numbers) {
            to.copy_from_slice(&n.to_le_bytes());
        }
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let head = bytes.first_chunk::<HEADER>()?;
        let number = |at: usize| head[8 * at..].first_chunk::<8>().map(|n| u64::from_le_bytes(*n));
        let kind = [Kind::Data, Kind::Control, Kind::Alive, Kind::Bye];
        let kind = kind.into_iter().find(|k| Some(*k as u64) == number(0))?;
        let [id, n, total, part, come] = [number(1)?, number(2)?, number(3)?, number(4)?, number(5)?];
        Some(Self { kind, id, number: n, total, part, come, stamp: number(6)?, handed: number(7)? })
    }
}

/// A frame that waits, and what of it has left.
#[derive(Debug)]
struct Waiting {
    urgency: i64,
    order: u64,
    tag: i32,
    part: usize,
    left: usize,
    bytes: Arc<Vec<u8>>,
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.urgency.cmp(&other.urgency).then(other.order.cmp(&self.order))
    }
}
impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Waiting {}

/// What there is between this process and another.
#[derive(Debug)]
struct Peer {
    waiting: BinaryHeap<Waiting>,
    pace: Pace,
    order: u64,
    numbered: u64,
    /// Bytes that have come of it, and those that it knows of.
    come: u64,
    told: u64,
    /// The next number of a frame that controls, and those that came too early.
    next: u64,
    early: BTreeMap<u64, Vec<u8>>,
    apart: Apart,
    heard: Instant,
    spoke: Instant,
    /// Whether somebody here looks whether it lives.
    watched: bool,
    lost: bool,
    /// It has said that nothing more comes.
    bye: bool,
}

/// Carries the frames of one process.
pub(super) struct Courier<M> {
    messages: M,
    me: usize,
    peers: Vec<Peer>,
    sink: Option<Arc<dyn Sink>>,
    /// What came before there was a sink.
    held: Vec<(usize, Vec<u8>, Instant)>,
    gone: Vec<(usize, String)>,
    done: Vec<Done>,
    free: Vec<Vec<u8>>,
    timeout: Duration,
    began: Instant,
    looked: Instant,
}

/// Processes next to a process in a ring: who looks whether it lives.
fn watches(me: usize, other: usize, processes: usize) -> bool {
    let distance = (other + processes - me) % processes;
    distance <= 2 || distance + 2 >= processes
}

impl<M: Messages> Courier<M> {
    /// For process `me` of so many. Whoever says nothing for `timeout` is lost.
    pub(super) fn new(
        mut messages: M,
        (me, processes): (usize, usize),
        timeout: Duration,
        now: Instant,
    ) -> Result<Self, MpiError> {
        let peer = |other: usize| Peer {
            waiting: BinaryHeap::new(),
            pace: Pace::new(now),
            order: 0,
            numbered: 0,
            come: 0,
            told: 0,
            next: 0,
            early: BTreeMap::new(),
            apart: Apart::default(),
            heard: now,
            spoke: now,
            watched: other != me && watches(me, other, processes),
            lost: other == me,
            bye: other == me,
        };
        let posted = (POSTED.0 * (processes - 1)).clamp(POSTED.1, POSTED.2);
        (0..posted).try_for_each(|_| messages.receive(FIRST_TAG, vec![0; HEADER + FIRST]))?;
        let peers = (0..processes).map(peer).collect();
        let (held, gone, done, free) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Ok(Self { messages, me, peers, sink: None, held, gone, done, free, timeout, began: now, looked: now })
    }

    /// From now on what comes goes to `sink`, with what has come before.
    pub(super) fn listen(&mut self, sink: Arc<dyn Sink>) {
        for (process, frame, seen) in self.held.drain(..) {
            sink.frame(process, &frame, seen);
        }
        for (process, reason) in self.gone.drain(..) {
            sink.lost(process, &reason);
        }
        self.sink = Some(sink);
    }

    /// Takes a frame for another process.
    pub(super) fn take(&mut self, frame: Outgoing) {
        let control = frame.urgency == CONTROL;
        let kind = if control { Kind::Control } else { Kind::Data };
        let (to, urgency, mut bytes) = (frame.to, frame.urgency, frame.bytes);
        let handed = self.time(frame.handed);
        let tags = u64::try_from(self.messages.greatest_tag() - FIRST_TAG).unwrap_or(1);
        let peer = &mut self.peers[to];
        if peer.lost {
            return;
        }
        let part = usize::try_from(peer.pace.part()).unwrap_or(PARTS.1).clamp(PARTS.0, PARTS.1);
        let number = peer.numbered;
        peer.numbered += u64::from(kind == Kind::Control);
        let (id, total) = (peer.order, (bytes.len() - HEADER) as u64);
        peer.order += 1;
        let head = Head { kind, id, number, total, part: part as u64, come: peer.come, stamp: 0, handed };
        head.write(&mut bytes[..HEADER]);
        let tag = FIRST_TAG + 1 + i32::try_from(id % tags).unwrap_or(0);
        peer.waiting.push(Waiting { urgency, order: id, tag, part, left: 0, bytes: Arc::new(bytes) });
    }

    /// As others are told of it: in nanoseconds, and never 0.
    fn time(&self, at: Instant) -> u64 {
        1 + at.saturating_duration_since(self.began).as_nanos() as u64
    }

    /// A sign of life, or a word at the end: ahead of everything, whatever else is on its way.
    fn say(&mut self, to: usize, kind: Kind, text: &str, now: Instant) -> Result<(), MpiError> {
        let mut bytes = vec![0; HEADER];
        let text = text.as_bytes();
        bytes.extend_from_slice(&text[..text.len().min(FIRST)]);
        let peer = &mut self.peers[to];
        (peer.spoke, peer.told) = (now, peer.come);
        let (come, total) = (peer.come, text.len() as u64);
        let stamp = self.time(now);
        let head = Head { kind, id: 0, number: 0, total, part: 0, come, stamp, handed: 0 };
        head.write(&mut bytes[..HEADER]);
        let n = bytes.len();
        self.messages.send(to, FIRST_TAG, &Arc::new(bytes), 0..n)
    }

    /// Goes on with everything that can go on: whether anything could.
    pub(super) fn step(&mut self, now: Instant) -> Result<bool, MpiError> {
        let mut moved = false;
        for to in 0..self.peers.len() {
            moved |= self.pump(to, now)?;
        }
        let mut done = std::mem::take(&mut self.done);
        self.messages.finished(&mut done)?;
        for event in done.drain(..) {
            moved = true;
            match event {
                Done::Sent(bytes) => {
                    if let Some(bytes) = Arc::into_inner(bytes) {
                        self.keep(bytes);
                    }
                }
                Done::Received { from, bytes, len } => self.received(from, bytes, len, now)?,
                Done::Part { from, bytes } => {
                    let peer = &mut self.peers[from];
                    (peer.come, peer.heard) = (peer.come + bytes as u64, now);
                }
                Done::Landed { from, bytes } => self.whole(from, bytes, now),
            }
        }
        self.done = done;
        self.acknowledge(now)?;
        self.watch(now)?;
        Ok(moved)
    }

    /// Lets parts of what waits for a process leave, as fast as its link carries them.
    fn pump(&mut self, to: usize, now: Instant) -> Result<bool, MpiError> {
        let peer = &mut self.peers[to];
        let mut moved = false;
        loop {
            if peer.waiting.is_empty() {
                peer.pace.rest();
                break;
            }
            if !peer.pace.is_open(now) {
                break;
            }
            let Some(mut next) = peer.waiting.pop() else { break };
            let start = next.left;
            let first = start == 0;
            let end = (start + if first { HEADER + FIRST } else { next.part }).min(next.bytes.len());
            self.messages.send(to, if first { FIRST_TAG } else { next.tag }, &next.bytes, start..end)?;
            peer.pace.send((end - start) as u64, now);
            (peer.spoke, moved, next.left) = (now, true, end);
            if end < next.bytes.len() {
                peer.waiting.push(next);
            }
        }
        Ok(moved)
    }

    fn received(&mut self, from: usize, bytes: Vec<u8>, len: usize, now: Instant) -> Result<(), MpiError> {
        let head = Head::read(&bytes[..len]).ok_or(MpiError::Message { from })?;
        let here = self.time(now);
        let peer = &mut self.peers[from];
        peer.heard = now;
        [head.stamp, head.handed].iter().filter(|at| **at > 0).for_each(|at| peer.apart.heard(*at, here));
        let stamp = (head.stamp > 0).then(|| head.stamp as f64 / 1e9);
        peer.pace.acknowledge(head.come, stamp, now);
        match head.kind {
            Kind::Alive => {}
            Kind::Bye => {
                let text = String::from_utf8_lossy(&bytes[HEADER..len]).into_owned();
                peer.bye = true;
                self.lose(from, &text);
            }
            Kind::Data | Kind::Control => {
                peer.come += len as u64;
                let total = HEADER + usize::try_from(head.total).map_err(|_| MpiError::Message { from })?;
                if len > total || len < total.min(HEADER + FIRST) {
                    return Err(MpiError::Message { from });
                }
                if len == total {
                    self.frame(from, &head, &bytes[HEADER..len], now);
                } else {
                    let tags = u64::try_from(self.messages.greatest_tag() - FIRST_TAG).unwrap_or(1);
                    let tag = FIRST_TAG + 1 + i32::try_from(head.id % tags).unwrap_or(0);
                    let part = usize::try_from(head.part).unwrap_or(0);
                    if !(PARTS.0..=PARTS.1).contains(&part) {
                        return Err(MpiError::Message { from });
                    }
                    let mut room = self.fresh(total);
                    room[..len].copy_from_slice(&bytes[..len]);
                    self.messages.land(from, tag, room, len, part)?;
                }
            }
        }
        self.messages.receive(FIRST_TAG, bytes)
    }

    /// A frame behind its header is there.
    fn whole(&mut self, from: usize, bytes: Vec<u8>, now: Instant) {
        if let Some(head) = Head::read(&bytes) {
            self.frame(from, &head, &bytes[HEADER..], now);
        }
        self.keep(bytes);
    }

    fn frame(&mut self, from: usize, head: &Head, frame: &[u8], now: Instant) {
        if head.kind == Kind::Data {
            let handed = self.peers[from].apart.here(head.handed, self.time(now));
            return self.hand(from, frame, self.began + Duration::from_nanos(handed - 1));
        }
        let peer = &mut self.peers[from];
        if head.number != peer.next {
            peer.early.insert(head.number, frame.to_vec());
            return;
        }
        peer.next += 1;
        self.hand(from, frame, now);
        loop {
            let peer = &mut self.peers[from];
            let Some(frame) = peer.early.remove(&peer.next) else { break };
            peer.next += 1;
            self.hand(from, &frame, now);
        }
    }

    fn hand(&mut self, from: usize, frame: &[u8], now: Instant) {
        match &self.sink {
            Some(sink) => sink.frame(from, frame, now),
            None => self.held.push((from, frame.to_vec(), now)),
        }
    }

    fn lose(&mut self, process: usize, reason: &str) {
        let peer = &mut self.peers[process];
        if std::mem::replace(&mut peer.lost, true) {
            return;
        }
        peer.waiting.clear();
        match &self.sink {
            Some(sink) => sink.lost(process, reason),
            None => self.gone.push((process, reason.to_owned())),
        }
    }

    /// Nothing comes of anybody any more.
    pub(super) fn lose_all(&mut self, reason: &str) {
        (0..self.peers.len()).for_each(|process| self.lose(process, reason));
    }

    /// Tells what has come, once it is much or nothing else says it.
    fn acknowledge(&mut self, now: Instant) -> Result<(), MpiError> {
        for process in 0..self.peers.len() {
            let peer = &self.peers[process];
            if peer.come > peer.told && !peer.lost {
                self.say(process, Kind::Alive, "", now)?;
            }
        }
        Ok(())
    }

    /// Shows others that this one lives, and looks whether they do.
    fn watch(&mut self, now: Instant) -> Result<(), MpiError> {
        let every = (self.timeout / 8).clamp(Duration::from_millis(20), Duration::from_secs(1));
        if now.saturating_duration_since(self.looked) < every / 2 {
            return Ok(());
        }
        // Who was stopped itself has not listened.
        let away = now.saturating_duration_since(self.looked) > 4 * every;
        self.looked = now;
        for process in 0..self.peers.len() {
            let peer = &mut self.peers[process];
            if !peer.watched || peer.lost {
                continue;
            }
            if away {
                peer.heard = now;
            }
            let silent = now.saturating_duration_since(peer.heard);
            if silent > self.timeout {
                let seconds = self.timeout.as_secs_f64();
                self.lose(process, &format!("nothing was heard of it for {seconds} s"));
            } else if now.saturating_duration_since(peer.spoke) >= every {
                self.say(process, Kind::Alive, "", now)?;
            }
        }
        Ok(())
    }

    /// Whether everything that was taken has arrived.
    pub(super) fn is_idle(&self) -> bool {
        self.peers.iter().all(|p| p.lost || p.waiting.is_empty() && p.pace.is_empty())
    }

    /// Says that nothing more comes, and why.
    pub(super) fn bye(&mut self, reason: &str, now: Instant) -> Result<(), MpiError> {
        let me = self.me;
        (0..self.peers.len()).filter(|p| *p != me).try_for_each(|p| self.say(p, Kind::Bye, reason, now))
    }

    /// Whether all others have said so, or are lost.
    pub(super) fn all_said_bye(&self) -> bool {
        self.peers.iter().all(|p| p.bye || p.lost)
    }

    /// What carries the messages.
    pub(super) fn into_messages(self) -> M {
        self.messages
    }

    /// A buffer of this size.
    fn fresh(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = fitting(&mut self.free, len).unwrap_or_default();
        bytes.resize(len, 0);
        bytes
    }

    fn keep(&mut self, bytes: Vec<u8>) {
        let all: usize = self.free.iter().map(Vec::capacity).sum();
        if self.free.len() < KEPT.0 && all + bytes.capacity() <= KEPT.1 {
            self.free.push(bytes);
        }
    }

    /// A buffer that is not used, for what comes next.
    pub(super) fn spare(&mut self) -> Option<Vec<u8>> {
        self.free.pop()
    }
}

#[cfg(test)]
mod tests;
