//! How frames travel as messages: in parts, the most urgent first, no more at once than a window.
//!
//! A frame's first message carries a header and up to [`FIRST`] of its bytes; receives for first messages are always
//! posted, for any sender. The rest follows in parts under a tag of the frame's own, received where they belong, for which
//! receives are posted as soon as the first has come. (A tag for each channel and turn would allow no more: how much a
//! rank has for another is not known before it comes.) Between parts a more urgent frame may go first. What has
//! come is acknowledged in bytes, and no more than a [`Window`] is on its way to a process.
//!
//! Frames with data may pass each other. Those that control a run keep their order: they are numbered and held until their
//! turn. A process that nothing is heard of for the timeout is lost; whoever has nothing to say says so now and then.
//! Nothing here calls MPI: [`Messages`] does.

use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::MpiError;
use super::window::Window;
use crate::transport::wire::Sink;

/// Bytes of a header.
pub(super) const HEADER: usize = 48;
/// Bytes of a frame in its first message, and so of every receive that is always posted.
const FIRST: usize = 32 << 10;
/// Receives that are always posted: so many for each other process, within bounds.
const POSTED: (usize, usize, usize) = (4, 8, 256);
/// Bounds of a part.
const PARTS: (usize, usize) = (32 << 10, 4 << 20);
/// The tag of first messages; frames' own tags come behind it.
const FIRST_TAG: i32 = 1;
/// Buffers that are kept to be used again, and the size of the largest of them.
const KEPT: (usize, usize) = (64, 8 << 20);
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
}

impl Head {
    fn write(&self, to: &mut [u8]) {
        let numbers = [self.kind as u64, self.id, self.number, self.total, self.part, self.come];
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
        Some(Self { kind, id, number: n, total, part, come })
    }
}

/// A frame on its way out, behind room for a header.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) to: usize,
    pub(super) urgency: i64,
    pub(super) bytes: Vec<u8>,
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
    window: Window,
    order: u64,
    numbered: u64,
    /// Bytes that have come of it, and those that it knows of.
    come: u64,
    told: u64,
    /// The next number of a frame that controls, and those that came too early.
    next: u64,
    early: BTreeMap<u64, Vec<u8>>,
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
            window: Window::new(),
            order: 0,
            numbered: 0,
            come: 0,
            told: 0,
            next: 0,
            early: BTreeMap::new(),
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
        Ok(Self { messages, me, peers, sink: None, held, gone, done, free, timeout, looked: now })
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
        self.queue(frame.to, kind, frame.urgency, frame.bytes);
    }

    fn queue(&mut self, to: usize, kind: Kind, urgency: i64, mut bytes: Vec<u8>) {
        let tags = u64::try_from(self.messages.greatest_tag() - FIRST_TAG).unwrap_or(1);
        let peer = &mut self.peers[to];
        if peer.lost {
            return;
        }
        let part = usize::try_from(peer.window.size() / 4).unwrap_or(PARTS.1).clamp(PARTS.0, PARTS.1);
        let number = peer.numbered;
        peer.numbered += u64::from(kind == Kind::Control);
        let (id, total) = (peer.order, (bytes.len() - HEADER) as u64);
        peer.order += 1;
        let head = Head { kind, id, number, total, part: part as u64, come: peer.come };
        head.write(&mut bytes[..HEADER]);
        let tag = FIRST_TAG + 1 + i32::try_from(id % tags).unwrap_or(0);
        peer.waiting.push(Waiting { urgency, order: id, tag, part, left: 0, bytes: Arc::new(bytes) });
    }

    /// A sign of life, or a word at the end: ahead of everything and without regard to the window.
    fn say(&mut self, to: usize, kind: Kind, text: &str, now: Instant) -> Result<(), MpiError> {
        let mut bytes = vec![0; HEADER];
        let text = text.as_bytes();
        bytes.extend_from_slice(&text[..text.len().min(FIRST)]);
        let peer = &mut self.peers[to];
        (peer.spoke, peer.told) = (now, peer.come);
        let head = Head { kind, id: 0, number: 0, total: text.len() as u64, part: 0, come: peer.come };
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
                Done::Landed { from, bytes } => self.whole(from, bytes, HEADER, now),
            }
        }
        self.done = done;
        self.acknowledge(now)?;
        self.watch(now)?;
        Ok(moved)
    }

    /// Lets parts of what waits for a process leave while its window is open.
    fn pump(&mut self, to: usize, now: Instant) -> Result<bool, MpiError> {
        let peer = &mut self.peers[to];
        let mut moved = false;
        while peer.window.is_open() {
            let Some(mut next) = peer.waiting.pop() else { break };
            let start = next.left;
            let first = start == 0;
            let end = (start + if first { HEADER + FIRST } else { next.part }).min(next.bytes.len());
            self.messages.send(to, if first { FIRST_TAG } else { next.tag }, &next.bytes, start..end)?;
            peer.window.send((end - start) as u64, now);
            (peer.spoke, moved, next.left) = (now, true, end);
            if end < next.bytes.len() {
                peer.waiting.push(next);
            }
        }
        Ok(moved)
    }

    fn received(&mut self, from: usize, bytes: Vec<u8>, len: usize, now: Instant) -> Result<(), MpiError> {
        let head = Head::read(&bytes[..len]).ok_or(MpiError::Message { from })?;
        let peer = &mut self.peers[from];
        peer.heard = now;
        peer.window.acknowledge(head.come, now);
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
                    self.frame(from, head.kind, head.number, &bytes[HEADER..len], now);
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
    fn whole(&mut self, from: usize, bytes: Vec<u8>, begin: usize, now: Instant) {
        if let Some(head) = Head::read(&bytes) {
            self.frame(from, head.kind, head.number, &bytes[begin..], now);
        }
        self.keep(bytes);
    }

    fn frame(&mut self, from: usize, kind: Kind, number: u64, frame: &[u8], now: Instant) {
        if kind == Kind::Data {
            return self.hand(from, frame, now);
        }
        let peer = &mut self.peers[from];
        if number != peer.next {
            peer.early.insert(number, frame.to_vec());
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
        self.peers.iter().all(|p| p.lost || p.waiting.is_empty() && p.window.is_empty())
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
        let mut bytes = self.free.pop().unwrap_or_default();
        bytes.resize(len, 0);
        bytes
    }

    fn keep(&mut self, bytes: Vec<u8>) {
        if self.free.len() < KEPT.0 && bytes.capacity() <= KEPT.1 {
            self.free.push(bytes);
        }
    }

    /// A buffer that is not used, for what comes next.
    pub(super) fn spare(&mut self) -> Option<Vec<u8>> {
        self.free.pop()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::rc::Rc;

    use parking_lot::Mutex;

    use super::*;

    /// A message under way: from, tag, bytes.
    type Message = (usize, i32, Vec<u8>);

    /// What several processes have sent each other. Messages of two processes with one tag keep their order, all others
    /// arrive in any order.
    #[derive(Default)]
    struct Net {
        state: u64,
        /// Per receiver.
        under_way: Vec<VecDeque<Message>>,
        cut: Vec<bool>,
    }

    impl Net {
        fn random(&mut self, n: usize) -> usize {
            self.state = self.state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.state >> 33) as usize % n.max(1)
        }
    }

    struct End {
        net: Rc<RefCell<Net>>,
        me: usize,
        first: Vec<Vec<u8>>,
        landings: Vec<(usize, i32, Vec<u8>, usize, usize)>,
        sent: Vec<Arc<Vec<u8>>>,
        /// First messages begun, in order: what left, for whom and how urgent it can be told from its bytes.
        left: Vec<Vec<u8>>,
    }

    impl Messages for End {
        fn greatest_tag(&self) -> i32 {
            // Few, so that they are used again.
            5
        }
        fn send(
            &mut self,
            to: usize,
            tag: i32,
            bytes: &Arc<Vec<u8>>,
            part: Range<usize>,
        ) -> Result<(), MpiError> {
            let mut net = self.net.borrow_mut();
            if tag == FIRST_TAG {
                self.left.push(bytes[part.clone()].to_vec());
            }
            if !net.cut[to] && !net.cut[self.me] {
                net.under_way[to].push_back((self.me, tag, bytes[part].to_vec()));
            }
            self.sent.push(Arc::clone(bytes));
            Ok(())
        }
        fn receive(&mut self, tag: i32, bytes: Vec<u8>) -> Result<(), MpiError> {
            assert_eq!(tag, FIRST_TAG);
            self.first.push(bytes);
            Ok(())
        }
        fn land(
            &mut self,
            from: usize,
            tag: i32,
            bytes: Vec<u8>,
            begin: usize,
            part: usize,
        ) -> Result<(), MpiError> {
            self.landings.push((from, tag, bytes, begin, part));
            Ok(())
        }
        fn finished(&mut self, done: &mut Vec<Done>) -> Result<(), MpiError> {
            done.extend(self.sent.drain(..).map(Done::Sent));
            let mut net = self.net.borrow_mut();
            let count = net.under_way[self.me].len();
            let at = net.random(count);
            let Some((from, tag, _)) = net.under_way[self.me].get(at).cloned() else { return Ok(()) };
            // The first of this sender and tag.
            let at = net.under_way[self.me].iter().position(|m| (m.0, m.1) == (from, tag)).unwrap();
            if tag == FIRST_TAG {
                let Some(mut bytes) = self.first.pop() else { return Ok(()) };
                let (_, _, message) = net.under_way[self.me].remove(at).unwrap();
                bytes[..message.len()].copy_from_slice(&message);
                done.push(Done::Received { from, bytes, len: message.len() });
                return Ok(());
            }
            let Some(landing) = self.landings.iter().position(|l| (l.0, l.1) == (from, tag)) else {
                return Ok(());
            };
            let (_, _, message) = net.under_way[self.me].remove(at).unwrap();
            let (_, _, bytes, begin, part) = &mut self.landings[landing];
            assert!(message.len() == *part || *begin + message.len() == bytes.len());
            bytes[*begin..*begin + message.len()].copy_from_slice(&message);
            *begin += message.len();
            done.push(Done::Part { from, bytes: message.len() });
            if *begin == bytes.len() {
                let (_, _, bytes, ..) = self.landings.remove(landing);
                done.push(Done::Landed { from, bytes });
            }
            Ok(())
        }
    }

    #[derive(Default)]
    struct Heard(Mutex<Vec<(usize, Vec<u8>)>>, Mutex<Vec<(usize, String)>>);

    impl Sink for Heard {
        fn frame(&self, process: usize, frame: &[u8], _: Instant) {
            self.0.lock().push((process, frame.to_vec()));
        }
        fn lost(&self, process: usize, reason: &str) {
            self.1.lock().push((process, reason.into()));
        }
    }

    const TIMEOUT: Duration = Duration::from_secs(2);

    fn world(n: usize, seed: u64, now: Instant) -> (Vec<Courier<End>>, Vec<Arc<Heard>>, Rc<RefCell<Net>>) {
        let net = Net { state: seed, under_way: vec![VecDeque::new(); n], cut: vec![false; n] };
        let net = Rc::new(RefCell::new(net));
        let end = |me: usize| End {
            net: Rc::clone(&net),
            me,
            first: Vec::new(),
            landings: Vec::new(),
            sent: Vec::new(),
            left: Vec::new(),
        };
        let couriers = (0..n).map(|me| Courier::new(end(me), (me, n), TIMEOUT, now).unwrap()).collect();
        (couriers, (0..n).map(|_| Arc::default()).collect(), net)
    }

    fn outgoing(to: usize, urgency: i64, frame: &[u8]) -> Outgoing {
        Outgoing { to, urgency, bytes: [&[0; HEADER][..], frame].concat() }
    }

    /// Frames of any size arrive whole and once; those that control in order. Tags are used again and again.
    #[test]
    fn frames_arrive() {
        for seed in 0..20 {
            let mut now = Instant::now();
            let (mut couriers, heard, net) = world(3, seed, now);
            let mut sent: Vec<Vec<(usize, bool, Vec<u8>)>> = vec![Vec::new(); 3];
            for n in 0..60_u64 {
                let mut random = |n| net.borrow_mut().random(n);
                let (from, step) = (random(3), 1 + random(2));
                let size = [0, 9, FIRST - 1, FIRST, FIRST + 1, 3 * PARTS.0 + 77, 400_000][random(7)];
                let control = random(3) == 0;
                let mut frame: Vec<u8> = (0..size).map(|k| (k as u64 * 7 + n) as u8).collect();
                frame.extend_from_slice(&n.to_le_bytes());
                let (to, urgency) = ((from + step) % 3, if control { CONTROL } else { n as i64 % 3 });
                couriers[from].take(outgoing(to, urgency, &frame));
                sent[to].push((from, control, frame));
            }
            for (n, heard) in heard.iter().enumerate().take(2) {
                couriers[n].listen(Arc::clone(heard) as Arc<dyn Sink>);
            }
            for round in 0..4000 {
                now += Duration::from_micros(50);
                for courier in &mut couriers {
                    courier.step(now).unwrap();
                }
                // What comes before there is a sink is kept.
                if round == 2000 {
                    couriers[2].listen(Arc::clone(&heard[2]) as Arc<dyn Sink>);
                }
            }
            assert!(couriers.iter().all(Courier::is_idle), "seed {seed}");
            for (to, want) in sent.iter_mut().enumerate() {
                let mut got = heard[to].0.lock().clone();
                for from in 0..3 {
                    let control = |(f, control, frame): &(usize, bool, Vec<u8>)| {
                        (*f == from && *control).then(|| frame.clone())
                    };
                    let ordered: Vec<Vec<u8>> = want.iter().filter_map(control).collect();
                    let arrived: Vec<Vec<u8>> = got
                        .iter()
                        .filter(|(f, g)| *f == from && ordered.contains(g))
                        .map(|(_, g)| g.clone())
                        .collect();
                    assert!(ordered == arrived, "seed {seed}: {from} to {to} out of order");
                }
                let mut all: Vec<(usize, Vec<u8>)> = want.drain(..).map(|(f, _, frame)| (f, frame)).collect();
                all.sort();
                got.sort();
                assert!(all == got, "seed {seed}: to {to}: {} of {}", got.len(), all.len());
            }
        }
    }

    /// What is urgent leaves before what has waited longer, once the window opens, also between parts of a frame.
    #[test]
    fn urgent_frames_pass() {
        let mut now = Instant::now();
        let (mut couriers, heard, _) = world(2, 1, now);
        couriers[1].listen(Arc::clone(&heard[1]) as Arc<dyn Sink>);
        for n in 0..40_u8 {
            couriers[0].take(outgoing(1, 0, &vec![n; 200_000]));
        }
        couriers[0].step(now).unwrap();
        couriers[0].take(outgoing(1, 3, &[99; 1000]));
        couriers[0].take(outgoing(1, CONTROL, &[100; 10]));
        for _ in 0..3000 {
            now += Duration::from_micros(100);
            couriers.iter_mut().for_each(|c| drop(c.step(now)));
        }
        let order: Vec<u8> = heard[1].0.lock().iter().map(|(_, frame)| frame[0]).collect();
        assert_eq!(order.len(), 42);
        let at = |n: u8| order.iter().position(|m| *m == n).unwrap();
        assert!(at(100) < 12 && at(99) < 12 && at(39) > 30, "{order:?}");
    }

    /// Who says nothing is lost, once, after the timeout; who only has nothing to say is not.
    #[test]
    fn silence_is_noticed() {
        let mut now = Instant::now();
        let (mut couriers, heard, net) = world(4, 3, now);
        for (courier, heard) in couriers.iter_mut().zip(&heard) {
            courier.listen(Arc::clone(heard) as Arc<dyn Sink>);
        }
        let mut run = |couriers: &mut Vec<Courier<End>>, time: Duration| {
            let until = now + time;
            while now < until {
                now += Duration::from_millis(5);
                couriers.iter_mut().for_each(|c| drop(c.step(now)));
            }
        };
        run(&mut couriers, 4 * TIMEOUT);
        assert!(heard.iter().all(|h| h.1.lock().is_empty()), "all live");
        net.borrow_mut().cut[2] = true;
        run(&mut couriers, TIMEOUT / 2);
        assert!(heard.iter().all(|h| h.1.lock().is_empty()), "not yet");
        run(&mut couriers, TIMEOUT);
        for n in [0, 1, 3] {
            let lost = heard[n].1.lock().clone();
            assert_eq!(lost, [(2, "nothing was heard of it for 2 s".to_owned())]);
        }
    }

    /// The last word arrives, with its reason.
    #[test]
    fn the_last_word_is_heard() {
        let mut now = Instant::now();
        let (mut couriers, heard, _) = world(2, 5, now);
        couriers[1].listen(Arc::clone(&heard[1]) as Arc<dyn Sink>);
        couriers[0].bye("no such file", now).unwrap();
        for _ in 0..100 {
            now += Duration::from_millis(1);
            couriers.iter_mut().for_each(|c| drop(c.step(now)));
        }
        assert_eq!(*heard[1].1.lock(), [(0, "no such file".to_owned())]);
        assert!(couriers[1].all_said_bye() && !couriers[0].all_said_bye());
    }

    /// Bytes of another version end it.
    #[test]
    fn other_messages_are_refused() {
        let now = Instant::now();
        for message in [vec![], vec![0; 10], vec![0xff; HEADER]] {
            let (mut couriers, _, net) = world(2, 7, now);
            net.borrow_mut().under_way[1].push_back((0, FIRST_TAG, message));
            assert_eq!(couriers[1].step(now), Err(MpiError::Message { from: 0 }));
        }
    }
}
