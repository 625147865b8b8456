//! Ranks as threads of one process: the others read a rank's outbox where it was written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use super::posts::Posts;
use super::threads::Threads;
use super::{Arrival, Channel, Envelope, Message, Outbox, Transport, Turn};

/// The outboxes of all ranks. Made anew for each run of a program.
#[derive(Debug)]
pub(crate) struct Local<O> {
    channels: Vec<Lane<O>>,
    threads: Arc<Threads>,
}

#[derive(Debug)]
struct Lane<O> {
    /// The engine whose threads wait for it.
    engine: usize,
    ranks: Vec<Own<O>>,
    posts: Posts,
}

/// What one rank writes.
#[derive(Debug)]
struct Own<O> {
    outboxes: [RwLock<Envelope<O>>; 2],
    /// When it began each.
    began: [AtomicU64; 2],
    /// Turns that it has posted.
    posted: AtomicU64,
}

impl<O> Local<O> {
    /// For `ranks` ranks, each of which `make` makes outboxes for; `channels` are the channels.
    pub(crate) fn new(
        ranks: usize,
        channels: &[Channel],
        threads: &Arc<Threads>,
        make: impl Fn(usize) -> O,
    ) -> Self {
        let own = |rank: usize| Own {
            outboxes: [(); 2].map(|()| RwLock::new(Envelope::new(make(rank)))),
            began: [(); 2].map(|()| AtomicU64::new(0)),
            posted: AtomicU64::new(0),
        };
        let channel = |channel: &Channel| Lane {
            engine: channel.engine,
            ranks: (0..ranks).map(own).collect(),
            posts: Posts::new(ranks),
        };
        Self { channels: channels.iter().map(channel).collect(), threads: Arc::clone(threads) }
    }
}

impl<O: Outbox> Transport<O> for Local<O> {
    fn outbox(&self, at: Turn, sections: usize, write: &mut dyn FnMut(&mut O)) {
        self.amend(at, &mut |envelope| {
            envelope.clear(sections);
            write(&mut envelope.outbox);
        });
    }

    fn amend(&self, at: Turn, write: &mut dyn FnMut(&mut Envelope<O>)) {
        let own = &self.channels[at.channel].ranks[at.rank];
        write(&mut own.outboxes[Posts::slot(at.turn)].write());
    }

    fn post(&self, at: Turn, began: u64) {
        let channel = &self.channels[at.channel];
        let own = &channel.ranks[at.rank];
        // Both are published by the post.
        own.began[Posts::slot(at.turn)].store(began, Ordering::Relaxed);
        own.posted.store(at.turn + 1, Ordering::Relaxed);
        if channel.posts.post() {
            self.threads.call_engine(channel.engine);
        }
    }

    fn poll(&self, at: Turn) -> bool {
        self.channels[at.channel].posts.complete(at.turn)
    }

    fn arrival(&self, at: Turn) -> Arrival {
        let ranks = self.channels[at.channel].ranks.iter();
        let began = ranks.map(|own| own.began[Posts::slot(at.turn)].load(Ordering::Relaxed));
        Arrival { met: began.max().unwrap_or(0), at: 0 }
    }

    fn inbox(&self, at: Turn, from: usize, read: &mut dyn FnMut(Message<'_, O>)) {
        let sent = self.channels[at.channel].ranks[from].outboxes[Posts::slot(at.turn)].read();
        read(sent.message(at.rank));
    }

    fn missing(&self, at: Turn) -> Vec<usize> {
        let ranks = self.channels[at.channel].ranks.iter().enumerate();
        ranks.filter(|(_, own)| own.posted.load(Ordering::Relaxed) <= at.turn).map(|(rank, _)| rank).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::HostOutbox;

    /// Ranks post on two channels in different orders and at different speeds; every turn's data arrives.
    #[test]
    fn channels_do_not_mix() {
        const TURNS: u64 = 300;
        for ranks in 1..5 {
            let own: Vec<usize> = (0..ranks).collect();
            let threads = Arc::new(Threads::new(ranks, &own, 1));
            let local = Local::new(ranks, &[Channel { engine: 0, priority: 0 }; 2], &threads, |_| {
                HostOutbox::<f64>::default()
            });
            std::thread::scope(|scope| {
                for me in 0..ranks {
                    let (local, threads) = (&local, &threads);
                    scope.spawn(move || {
                        threads.enter(me, 0);
                        let value = |turn: u64, rank: usize, channel: usize| {
                            (turn as u32 * 10 + rank as u32) * 2 + channel as u32
                        };
                        for turn in 0..TURNS {
                            let order = if me % 2 == 0 { [0, 1] } else { [1, 0] };
                            for channel in order {
                                let at = Turn { channel, turn, rank: me };
                                local.outbox(at, 1, &mut |outbox| {
                                    let section = &mut outbox.sections[0];
                                    section.everyone = true;
                                    section.counts.resize(ranks, 1);
                                    section.widths.indices = 1;
                                    section.indices.push(value(turn, me, channel));
                                });
                                local.post(at, turn);
                            }
                            for channel in [0, 1] {
                                let at = Turn { channel, turn, rank: me };
                                while !local.poll(at) {
                                    threads.sleep(me, 0, None, || local.poll(at));
                                }
                                assert!(local.missing(at).is_empty());
                                assert_eq!(local.arrival(at).met, turn);
                                for from in 0..ranks {
                                    local.inbox(at, from, &mut |message| {
                                        let part = message.part(0).unwrap();
                                        assert_eq!(part.indices, [value(turn, from, channel)]);
                                    });
                                }
                            }
                        }
                    });
                }
            });
        }
    }

    #[test]
    fn who_has_not_posted_is_known() {
        let local = Local::new(
            3,
            &[Channel { engine: 0, priority: 0 }],
            &Arc::new(Threads::new(3, &[0, 1, 2], 1)),
            |_| HostOutbox::<f32>::default(),
        );
        let at = |rank| Turn { channel: 0, turn: 0, rank };
        local.post(at(1), 0);
        assert_eq!(local.missing(at(1)), [0, 2]);
        assert!(!local.poll(at(1)));
    }
}
