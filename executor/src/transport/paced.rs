//! Emulated links around any transport.
//!
//! Each rank has one link with two directions, shared by all its engines, like a NIC. A piece of a message first
//! takes its sender's outgoing side, which serves pieces one after the other, in the order in which they were given;
//! then, a latency later, it takes its receiver's incoming side as soon as that is free. Only times are computed;
//! whoever waits for them sleeps. The sender reckons its side and sends along when pieces started, the receiver
//! reckons its own, each on its own clock.

use std::sync::Arc;

use parking_lot::Mutex;

use super::envelope::Piece;
use super::link::EmulatedLink;
use super::{Arrival, Envelope, Message, Outbox, Sent, Transport, Turn};

/// A transport whose messages take as long as over links.
pub(crate) struct Paced<O> {
    inner: Arc<dyn Transport<O>>,
    ranks: usize,
    links: Links,
    /// Per channel and rank.
    sending: Vec<Mutex<Sending>>,
}

/// How far a message is that is being sent.
#[derive(Debug)]
struct Sending {
    /// 1 + the turn of the message.
    turn: u64,
    /// When the link may be asked for the next piece.
    asked: u64,
    /// Ranks served, and bytes sent to the next one.
    served: usize,
    sent: u64,
}

impl<O> Paced<O> {
    /// The same transport over `link`s, for `channels` channels of `ranks` ranks.
    pub(crate) fn new(
        inner: Arc<dyn Transport<O>>,
        link: EmulatedLink,
        ranks: usize,
        channels: usize,
    ) -> Self {
        let sending = || Mutex::new(Sending { turn: 0, asked: 0, served: 0, sent: 0 });
        Self {
            inner,
            ranks,
            links: Links::new(link, ranks),
            sending: (0..channels * ranks).map(|_| sending()).collect(),
        }
    }
}

impl<O: Outbox> Transport<O> for Paced<O> {
    fn outbox(&self, at: Turn, sections: usize, write: &mut dyn FnMut(&mut O)) {
        self.inner.outbox(at, sections, write);
    }

    fn amend(&self, at: Turn, write: &mut dyn FnMut(&mut Envelope<O>)) {
        self.inner.amend(at, write);
    }

    fn send(&self, at: Turn, asked: u64, piece: u64) -> Sent {
        let (me, ranks) = (at.rank, self.ranks);
        let mut state = self.sending[at.channel * ranks + me].lock();
        if state.turn != at.turn + 1 {
            *state = Sending { turn: at.turn + 1, asked, served: 1, sent: 0 };
        }
        self.inner.amend(at, &mut |Envelope { outbox, pieces }| {
            let mut budget = piece.max(1);
            while state.served < ranks && budget > 0 {
                let to = (me + state.served) % ranks;
                let wire = outbox.wire(to);
                let bytes = (wire - state.sent).min(budget);
                let (start, end) = self.links.send(me, bytes, state.asked);
                match pieces.last_mut() {
                    Some(last) if last.to == to && last.end == start => last.end = end,
                    _ => pieces.push(Piece { to, start, end }),
                }
                state.asked = end;
                state.sent += bytes;
                budget -= bytes;
                if state.sent == wire {
                    (state.served, state.sent) = (state.served + 1, 0);
                }
            }
        });
        let all = state.served >= ranks;
        // The rest of the way belongs to the transport within.
        if all {
            Sent { at: state.asked, ..self.inner.send(at, asked, piece) }
        } else {
            Sent { at: state.asked, all }
        }
    }

    fn post(&self, at: Turn, began: u64) {
        self.inner.post(at, began);
    }

    fn poll(&self, at: Turn) -> bool {
        self.inner.poll(at)
    }

    fn arrival(&self, at: Turn) -> Arrival {
        let mut arrival = self.inner.arrival(at);
        for from in (0..self.ranks).filter(|from| *from != at.rank) {
            self.inner.inbox(at, from, &mut |message| {
                for piece in message.pieces() {
                    arrival.at = arrival.at.max(self.links.receive(at.rank, piece));
                }
            });
        }
        arrival
    }

    fn inbox(&self, at: Turn, from: usize, read: &mut dyn FnMut(Message<'_, O>)) {
        self.inner.inbox(at, from, read);
    }

    fn missing(&self, at: Turn) -> Vec<usize> {
        self.inner.missing(at)
    }
}

/// The links of all ranks.
#[derive(Debug)]
pub(crate) struct Links {
    link: EmulatedLink,
    /// When each rank's outgoing side is free.
    out: Vec<Mutex<u64>>,
    /// When each rank's incoming side is taken.
    incoming: Vec<Mutex<Side>>,
}

impl Links {
    pub(crate) fn new(link: EmulatedLink, ranks: usize) -> Self {
        Self {
            link,
            out: (0..ranks).map(|_| Mutex::default()).collect(),
            incoming: (0..ranks).map(|_| Mutex::default()).collect(),
        }
    }

    /// Gives `bytes` to a rank's outgoing side, from `asked` on: when they start and when the side is free again.
    fn send(&self, from: usize, bytes: u64, asked: u64) -> (u64, u64) {
        let time = (bytes as f64 / self.link.bandwidth * 1e9) as u64;
        let mut free = self.out[from].lock();
        let start = (*free).max(asked);
        *free = start + time;
        (start, start + time)
    }

    /// Sends `bytes` from one rank to another from `asked` on, as two ranks of one process would see it: when the
    /// sender's side is free again, and when the receiver has everything.
    #[cfg(test)]
    pub(crate) fn carry(&self, from: usize, to: usize, bytes: u64, asked: u64) -> (u64, u64) {
        let (start, end) = self.send(from, bytes, asked);
        (end, self.receive(to, Piece { to, start, end }))
    }

    /// When a piece has gone through its receiver's incoming side.
    fn receive(&self, to: usize, piece: Piece) -> u64 {
        let latency = (self.link.latency * 1e9) as u64;
        self.incoming[to].lock().take(piece.start + latency, piece.end - piece.start)
    }
}

/// When a side is taken. Messages are reckoned when they are complete, so one may come late that was sent early: it
/// takes what has been left free.
#[derive(Debug)]
struct Side {
    /// Ascending and apart.
    taken: Vec<(u64, u64)>,
}

/// Intervals that are remembered.
const REMEMBERED: usize = 64;

impl Default for Side {
    fn default() -> Self {
        Self { taken: Vec::with_capacity(REMEMBERED + 1) }
    }
}

impl Side {
    /// Takes the first `time` that is free from `from` on: when that ends.
    fn take(&mut self, from: u64, time: u64) -> u64 {
        let (mut at, mut left) = (from, time);
        let mut next = self.taken.partition_point(|(_, end)| *end <= at);
        let first = next;
        while let Some((start, end)) = self.taken.get(next).copied() {
            let free = start.saturating_sub(at);
            if free > 0 && free >= left {
                break;
            }
            left -= free.min(left);
            at = at.max(end);
            next += 1;
        }
        let end = at + left;
        if time == 0 {
            return end;
        }
        // With what it touches, everything from its start to its end is taken now.
        let (mut first, mut whole) = (first, (from, end));
        if first < next {
            whole.0 = whole.0.min(self.taken[first].0);
        }
        if first > 0 && self.taken[first - 1].1 == whole.0 {
            first -= 1;
            whole.0 = self.taken[first].0;
        }
        if self.taken.get(next).is_some_and(|(start, _)| *start == end) {
            whole.1 = self.taken[next].1;
            next += 1;
        }
        self.taken.drain(first..next);
        self.taken.insert(first, whole);
        if self.taken.len() > REMEMBERED {
            self.taken.remove(0);
        }
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sides_are_shared() {
        // 1 byte a nanosecond, latency 100.
        let links = Links::new(EmulatedLink { bandwidth: 1e9, latency: 100e-9 }, 3);
        let send = |from, to, bytes, asked| links.carry(from, to, bytes, asked);
        assert_eq!(send(0, 1, 1000, 0), (1000, 1100));
        assert_eq!(send(0, 2, 500, 0), (1500, 1600), "the sender's side is busy");
        assert_eq!(send(2, 1, 300, 0), (300, 1400), "the receiver's side is busy");
        assert_eq!(send(1, 0, 10, 5000), (5010, 5110), "directions are apart");
    }

    #[test]
    fn who_was_early_and_is_reckoned_late_takes_what_is_free() {
        let mut side = Side::default();
        assert_eq!(side.take(500, 10), 510);
        assert_eq!(side.take(0, 1000), 1010, "around what is taken");
        assert_eq!(side.take(100, 0), 1010);
        assert_eq!(side.taken, [(0, 1010)]);
        assert_eq!(side.take(2000, 5), 2005);
        assert_eq!(side.take(1500, 0), 1500, "nothing takes no time");
        assert_eq!(side.take(1900, 100), 2000);
        assert_eq!(side.taken, [(0, 1010), (1900, 2005)]);
    }

    proptest! {
        #[test]
        fn a_side_is_never_taken_twice(asked in prop::collection::vec((0..1000u64, 0..60u64), 1..50)) {
            let mut side = Side::default();
            let mut taken = vec![false; 8000];
            for (from, time) in asked {
                let end = side.take(from, time);
                let mut left = time;
                let mut at = from;
                while left > 0 || taken[at as usize] && time == 0 {
                    if !taken[at as usize] {
                        taken[at as usize] = true;
                        left -= 1;
                    }
                    at += 1;
                }
                prop_assert_eq!(end, at);
                prop_assert!(side.taken.windows(2).all(|w| w[0].1 < w[1].0));
            }
        }
    }
}
