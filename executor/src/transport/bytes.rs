//! A transport that hands other processes nothing but bytes.
//!
//! Ranks of this process read each other's outboxes where they are. What a rank has for one of another process is
//! written as a [frame](super::frame) when it is posted, and read into an inbox of the receiver when it comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::{Mutex, RwLock};

use super::clock::Clock;
use super::control::Control;
use super::frame::{BadFrame, Header, Reader, read_header};
use super::posts::Posts;
use super::threads::Threads;
use super::{Arrival, Channel, Envelope, Message, Outbox, Transport, Turn};

/// The outboxes of this process's ranks, and inboxes for what comes from others.
pub(crate) struct Bytes<O> {
    /// The process of each rank.
    processes: Vec<usize>,
    channels: Vec<Lane<O>>,
    threads: Arc<Threads>,
    clock: Clock,
    control: Arc<dyn Control>,
    run: AtomicU64,
}

struct Lane<O> {
    /// The engine whose threads wait for it.
    engine: usize,
    priority: i32,
    /// Per rank of this process, else none.
    ranks: Vec<Option<Own<O>>>,
}

/// What a rank of this process has of a channel.
struct Own<O> {
    outboxes: [RwLock<Envelope<O>>; 2],
    /// Bytes on their way out.
    frame: Mutex<Vec<u8>>,
    /// Per sender.
    from: Vec<Inbox<O>>,
    /// Posts of even and of odd turns. A fast rank's post may be here before a slow one's of the turn before, but
    /// not of the one before that.
    posts: [Posts; 2],
}

/// What one rank got of another one.
struct Inbox<O> {
    /// Of a rank of another process; made by the receiver.
    messages: Option<[RwLock<Envelope<O>>; 2]>,
    /// When it began, by this process's clock.
    began: [AtomicU64; 2],
    /// Turns that it has posted.
    posted: AtomicU64,
}

impl<O: Outbox> Bytes<O> {
    /// For the ranks that `control` speaks for, each of which `make` makes outboxes for; `channels` are the
    /// channels.
    pub(crate) fn new(
        control: &Arc<dyn Control>,
        channels: &[Channel],
        threads: &Arc<Threads>,
        clock: Clock,
        make: impl Fn(usize) -> O,
    ) -> Self {
        let mut processes = vec![0; control.processes().iter().map(Vec::len).sum()];
        for (process, own) in control.processes().iter().enumerate() {
            for rank in own {
                processes[*rank] = process;
            }
        }
        let ranks = processes.len();
        let me = control.process();
        let two = |rank: usize| [(); 2].map(|()| RwLock::new(Envelope::new(make(rank))));
        let inbox = |rank: usize, from: usize| Inbox {
            messages: (processes[from] != me).then(|| two(rank)),
            began: [(); 2].map(|()| AtomicU64::new(0)),
            posted: AtomicU64::new(0),
        };
        let own = |rank: usize| Own {
            outboxes: two(rank),
            frame: Mutex::default(),
            from: (0..ranks).map(|from| inbox(rank, from)).collect(),
            posts: [(); 2].map(|()| Posts::new(ranks)),
        };
        let channel = |channel: &Channel| Lane {
            engine: channel.engine,
            priority: channel.priority,
            ranks: (0..ranks).map(|rank| (processes[rank] == me).then(|| own(rank))).collect(),
        };
        Self {
            channels: channels.iter().map(channel).collect(),
            processes,
            threads: Arc::clone(threads),
            clock,
            control: Arc::clone(control),
            run: AtomicU64::new(0),
        }
    }

    /// The clock of messages.
    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// The number of the run, once it is known; before anything is posted.
    pub(crate) fn set_run(&self, run: u64) {
        self.run.store(run, Ordering::Release);
    }

    /// Takes a message of another process, first seen at `seen`; `reader` stands behind the frame's kind and run.
    pub(crate) fn deliver(
        &self,
        process: usize,
        mut reader: Reader<'_>,
        seen: Instant,
    ) -> Result<(), BadFrame> {
        let head = read_header(&mut reader)?;
        let nowhere = BadFrame::Nowhere { from: head.from, to: head.to, channel: head.channel };
        let channel = self.channels.get(head.channel).ok_or_else(|| nowhere.clone())?;
        let own = channel.ranks.get(head.to).and_then(Option::as_ref).ok_or_else(|| nowhere.clone())?;
        if self.processes.get(head.from) != Some(&process) {
            return Err(nowhere);
        }
        let Some(messages) = &own.from[head.from].messages else { return Err(nowhere) };
        let seen = self.clock.at(seen);
        messages[Posts::slot(head.turn)].write().read(reader, head, seen)?;
        self.posted(channel.engine, own, head, seen.saturating_sub(head.since));
        Ok(())
    }

    /// Counts a post to a rank of this process.
    fn posted(&self, engine: usize, to: &Own<O>, head: Header, began: u64) {
        let slot = Posts::slot(head.turn);
        let inbox = &to.from[head.from];
        // Both are published by the post.
        inbox.began[slot].store(began, Ordering::Relaxed);
        inbox.posted.store(head.turn + 1, Ordering::Relaxed);
        if to.posts[slot].post() {
            self.threads.call(head.to, engine);
        }
    }

    fn own(&self, at: Turn) -> &Own<O> {
        let own = self.channels[at.channel].ranks[at.rank].as_ref();
        own.unwrap_or_else(|| unreachable!("rank {} runs in another process", at.rank))
    }
}

impl<O: Outbox> Transport<O> for Bytes<O> {
    fn outbox(&self, at: Turn, sections: usize, write: &mut dyn FnMut(&mut O)) {
        self.amend(at, &mut |envelope| {
            envelope.clear(sections);
            write(&mut envelope.outbox);
        });
    }

    fn amend(&self, at: Turn, write: &mut dyn FnMut(&mut Envelope<O>)) {
        write(&mut self.own(at).outboxes[Posts::slot(at.turn)].write());
    }

    fn post(&self, at: Turn, began: u64) {
        let (now, run) = (self.clock.now(), self.run.load(Ordering::Acquire));
        let own = self.own(at);
        let channel = &self.channels[at.channel];
        let head = |to: usize| Header {
            channel: at.channel,
            turn: at.turn,
            from: at.rank,
            to,
            since: now.saturating_sub(began),
        };
        let envelope = own.outboxes[Posts::slot(at.turn)].read();
        let mut frame = own.frame.lock();
        for step in 1..self.processes.len() {
            let to = (at.rank + step) % self.processes.len();
            if channel.ranks[to].is_none() {
                let write = &mut |bytes: &mut Vec<u8>| envelope.write(bytes, run, head(to), now);
                let about = (channel.priority, envelope.about(to));
                self.control.send_data(self.processes[to], about, &mut frame, write);
            }
        }
        drop((envelope, frame));
        for (to, rank) in channel.ranks.iter().enumerate() {
            if let Some(rank) = rank {
                self.posted(channel.engine, rank, head(to), began);
            }
        }
    }

    fn poll(&self, at: Turn) -> bool {
        // Every other turn is counted.
        self.own(at).posts[Posts::slot(at.turn)].complete(at.turn / 2)
    }

    fn arrival(&self, at: Turn) -> Arrival {
        let began = self.own(at).from.iter().map(|i| i.began[Posts::slot(at.turn)].load(Ordering::Relaxed));
        Arrival { met: began.max().unwrap_or(0), at: 0 }
    }

    fn inbox(&self, at: Turn, from: usize, read: &mut dyn FnMut(Message<'_, O>)) {
        let slot = Posts::slot(at.turn);
        let here = self.channels[at.channel].ranks[from].as_ref().map(|own| &own.outboxes);
        let Some(sent) = here.or(self.own(at).from[from].messages.as_ref()) else { return };
        read(sent[slot].read().message(at.rank));
    }

    fn missing(&self, at: Turn) -> Vec<usize> {
        let from = self.own(at).from.iter().enumerate();
        from.filter(|(_, i)| i.posted.load(Ordering::Relaxed) <= at.turn).map(|(rank, _)| rank).collect()
    }
}
