//! Ranks as threads of one process.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::event::Event;
use super::link::{Link, Links};
use super::{Outbox, Section, TransportError};

/// Where all ranks meet. Made anew for each run of a program.
#[derive(Debug)]
pub struct Hub<T> {
    ranks: usize,
    channels: Vec<Channel<T>>,
    /// What the thread of each rank's engines sleeps on.
    events: Vec<Vec<Event>>,
    failed: AtomicBool,
    failure: Mutex<Option<TransportError>>,
    links: Option<Links>,
    started: Instant,
}

#[derive(Debug)]
struct Channel<T> {
    /// The engine whose threads wait for it.
    engine: usize,
    outboxes: Vec<[RwLock<Outbox<T>>; 2]>,
    /// Posts of all ranks and turns. Nobody posts turn n + 1 before all have posted turn n.
    posts: AtomicU64,
}

impl<T: Default> Hub<T> {
    /// For `ranks` ranks with `engines` engines each; `channels` names the engine of each channel.
    pub fn new(ranks: usize, engines: usize, channels: &[usize], link: Option<Link>) -> Self {
        let outbox = || {
            let (wire, there) = (vec![0; ranks], vec![0; ranks]);
            RwLock::new(Outbox { sections: Vec::new(), wire, began: 0, there })
        };
        let channel = |engine: &usize| Channel {
            engine: *engine,
            outboxes: (0..ranks).map(|_| [outbox(), outbox()]).collect(),
            posts: AtomicU64::new(0),
        };
        Self {
            ranks,
            channels: channels.iter().map(channel).collect(),
            events: (0..ranks).map(|_| (0..engines).map(|_| Event::default()).collect()).collect(),
            failed: AtomicBool::new(false),
            failure: Mutex::default(),
            links: link.filter(|_| ranks > 1).map(|link| Links::new(link, ranks)),
            started: Instant::now(),
        }
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The emulated links.
    pub fn links(&self) -> Option<&Links> {
        self.links.as_ref()
    }

    /// Nanoseconds since the start of the run.
    pub fn now(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// That time as an instant.
    pub fn instant(&self, nanoseconds: u64) -> Instant {
        self.started + std::time::Duration::from_nanos(nanoseconds)
    }

    /// What the thread of an engine sleeps on.
    pub fn event(&self, rank: usize, engine: usize) -> &Event {
        &self.events[rank][engine]
    }

    /// Wakes the threads of the engines whose bits are set.
    pub fn wake(&self, rank: usize, engines: u32) {
        let mut left = engines;
        while left != 0 {
            let engine = left.trailing_zeros() as usize;
            left &= left - 1;
            if let Some(event) = self.events[rank].get(engine) {
                event.raise();
            }
        }
    }

    /// A rank's outbox of a turn, to fill. It has room for `sections` sections, whose contents are cleared.
    pub fn outbox(
        &self,
        channel: usize,
        turn: u64,
        rank: usize,
        sections: usize,
    ) -> RwLockWriteGuard<'_, Outbox<T>> {
        let mut outbox = self.channels[channel].outboxes[rank][turn as usize & 1].write();
        let sections = sections.max(outbox.sections.len());
        outbox.sections.resize_with(sections, Section::default);
        for section in &mut outbox.sections {
            section.counts.clear();
            section.everyone = false;
            section.reals.clear();
            section.indices.clear();
            section.bytes.clear();
        }
        outbox.wire.fill(0);
        outbox
    }

    /// The outbox again, to complete it.
    pub fn amend(&self, channel: usize, turn: u64, rank: usize) -> RwLockWriteGuard<'_, Outbox<T>> {
        self.channels[channel].outboxes[rank][turn as usize & 1].write()
    }

    /// Lets the others read the outbox.
    pub fn post(&self, channel: usize) {
        let channel = &self.channels[channel];
        let posts = channel.posts.fetch_add(1, Ordering::AcqRel) + 1;
        if posts.is_multiple_of(self.ranks as u64) {
            for events in &self.events {
                events[channel.engine].raise();
            }
        }
    }

    /// Whether all ranks have posted.
    pub fn complete(&self, channel: usize, turn: u64) -> bool {
        self.channels[channel].posts.load(Ordering::Acquire) >= (turn + 1) * self.ranks as u64
    }

    /// What a rank posted.
    pub fn inbox(&self, channel: usize, turn: u64, from: usize) -> RwLockReadGuard<'_, Outbox<T>> {
        self.channels[channel].outboxes[from][turn as usize & 1].read()
    }

    /// Sleeps until all ranks have posted.
    pub fn wait(&self, channel: usize, turn: u64, rank: usize) -> Result<(), TransportError> {
        let event = self.event(rank, self.channels[channel].engine);
        loop {
            let seen = event.read();
            if let Some(failure) = self.failure() {
                return Err(failure);
            }
            if self.complete(channel, turn) {
                return Ok(());
            }
            event.sleep(seen, None);
        }
    }

    /// Tells every thread of every rank that this rank cannot go on. The first failure wins.
    pub fn fail(&self, rank: usize, op: &str, message: &str) {
        let failure = TransportError::Failed { rank, op: op.into(), message: message.into() };
        self.failure.lock().get_or_insert(failure);
        self.failed.store(true, Ordering::SeqCst);
        for event in self.events.iter().flatten() {
            event.raise();
        }
    }

    /// Whether a rank has failed.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    /// The first failure.
    pub fn failure(&self) -> Option<TransportError> {
        if self.has_failed() { self.failure.lock().clone() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks post on two channels in different orders and at different speeds; every turn's data arrives.
    #[test]
    fn channels_do_not_mix() {
        const TURNS: u64 = 300;
        for ranks in 1..5 {
            let hub = Hub::<f64>::new(ranks, 1, &[0, 0], None);
            std::thread::scope(|scope| {
                for me in 0..ranks {
                    let hub = &hub;
                    scope.spawn(move || {
                        for turn in 0..TURNS {
                            let order = if me % 2 == 0 { [0, 1] } else { [1, 0] };
                            for channel in order {
                                let mut outbox = hub.outbox(channel, turn, me, 1);
                                outbox.sections[0]
                                    .indices
                                    .push((turn as u32 * 10 + me as u32) * 2 + channel as u32);
                                drop(outbox);
                                hub.post(channel);
                            }
                            for channel in [0, 1] {
                                hub.wait(channel, turn, me).unwrap();
                                for from in 0..ranks {
                                    let expected = (turn as u32 * 10 + from as u32) * 2 + channel as u32;
                                    assert_eq!(
                                        hub.inbox(channel, turn, from).sections[0].indices,
                                        [expected]
                                    );
                                }
                            }
                        }
                    });
                }
            });
        }
    }

    #[test]
    fn the_first_failure_wakes_everyone() {
        let hub = Hub::<f32>::new(3, 1, &[0], None);
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..2)
                .map(|rank| {
                    let hub = &hub;
                    scope.spawn(move || {
                        hub.post(0);
                        hub.wait(0, 0, rank)
                    })
                })
                .collect();
            hub.fail(2, "gather", "out of luck");
            hub.fail(1, "apply", "late");
            for thread in waiting {
                let error = thread.join().unwrap().unwrap_err();
                assert_eq!(error.to_string(), "rank 2 failed in `gather`: out of luck");
            }
        });
    }
}
