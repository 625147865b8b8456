//! Ranks as threads of one process.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::event::{Event, publish};
use super::link::{Link, Links};
use super::posts::Posts;
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
    /// Threads that need a processor, and processors for them.
    awake: AtomicU64,
    processors: u64,
}

#[derive(Debug)]
struct Channel<T> {
    /// The engine whose threads wait for it.
    engine: usize,
    outboxes: Vec<[RwLock<Outbox<T>>; 2]>,
    posts: Posts,
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
            posts: Posts::new(ranks),
        };
        Self {
            ranks,
            channels: channels.iter().map(channel).collect(),
            events: (0..ranks).map(|_| (0..engines).map(|_| Event::default()).collect()).collect(),
            failed: AtomicBool::new(false),
            failure: Mutex::default(),
            links: link.filter(|_| ranks > 1).map(|link| Links::new(link, ranks)),
            started: Instant::now(),
            awake: AtomicU64::new(0),
            processors: std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
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

    /// What the threads of a rank's engines sleep on.
    pub fn events(&self, rank: usize) -> &[Event] {
        &self.events[rank]
    }

    /// The calling thread runs an engine from now on.
    pub fn enter(&self, rank: usize, engine: usize) {
        self.events[rank][engine].attach();
        self.add_awake(1);
    }

    /// The calling thread no longer runs an engine.
    pub fn leave(&self) {
        self.awake.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts threads that have been woken.
    pub fn add_awake(&self, threads: u64) {
        if threads > 0 {
            self.awake.fetch_add(threads, Ordering::Relaxed);
        }
    }

    /// Threads that need a processor: those of engines that do not sleep, and the reader while it works.
    pub fn awake(&self) -> &AtomicU64 {
        &self.awake
    }

    /// Whether every thread that is awake has a processor, so that one may look for work a little longer.
    pub fn has_room(&self) -> bool {
        self.awake.load(Ordering::Relaxed) <= self.processors
    }

    /// Wakes the thread of an engine if it sleeps; after [`publish`].
    fn wake(&self, event: &Event) {
        self.add_awake(u64::from(event.wake()));
    }

    /// Wakes the thread of an engine if it sleeps.
    pub fn call(&self, rank: usize, engine: usize) {
        publish();
        self.wake(&self.events[rank][engine]);
    }

    /// Sleeps until woken, or until `deadline`, unless `look` finds something to do.
    pub fn sleep(&self, rank: usize, engine: usize, deadline: Option<Instant>, look: impl FnOnce() -> bool) {
        // Whoever wakes the thread counts it again, from the moment at which it needs a processor.
        self.leave();
        self.add_awake(u64::from(self.events[rank][engine].sleep(deadline, look)));
    }

    /// A rank's outbox of a turn, to fill. It has room for `sections` sections, whose contents are cleared.
    pub fn outbox(
        &self,
        channel: usize,
        turn: u64,
        rank: usize,
        sections: usize,
    ) -> RwLockWriteGuard<'_, Outbox<T>> {
        let mut outbox = self.channels[channel].outboxes[rank][Posts::slot(turn)].write();
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
        self.channels[channel].outboxes[rank][Posts::slot(turn)].write()
    }

    /// Lets the others read the outbox.
    pub fn post(&self, channel: usize) {
        let channel = &self.channels[channel];
        if channel.posts.post() {
            publish();
            for events in &self.events {
                self.wake(&events[channel.engine]);
            }
        }
    }

    /// Whether all ranks have posted.
    pub fn complete(&self, channel: usize, turn: u64) -> bool {
        self.channels[channel].posts.complete(turn)
    }

    /// What a rank posted.
    pub fn inbox(&self, channel: usize, turn: u64, from: usize) -> RwLockReadGuard<'_, Outbox<T>> {
        self.channels[channel].outboxes[from][Posts::slot(turn)].read()
    }

    /// Sleeps until all ranks have posted; for the thread that [entered](Self::enter) the channel's engine.
    pub fn wait(&self, channel: usize, turn: u64, rank: usize) -> Result<(), TransportError> {
        loop {
            if let Some(failure) = self.failure() {
                return Err(failure);
            }
            if self.complete(channel, turn) {
                return Ok(());
            }
            let engine = self.channels[channel].engine;
            self.sleep(rank, engine, None, || self.has_failed() || self.complete(channel, turn));
        }
    }

    /// Tells every thread of every rank that this rank cannot go on. The first failure wins.
    pub fn fail(&self, rank: usize, op: &str, message: &str) {
        let failure = TransportError::Failed { rank, op: op.into(), message: message.into() };
        self.failure.lock().get_or_insert(failure);
        self.failed.store(true, Ordering::Release);
        publish();
        for event in self.events.iter().flatten() {
            self.wake(event);
        }
    }

    /// Whether a rank has failed.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
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
                        hub.enter(me, 0);
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

    /// Two threads hand a token to and fro; a lost wake-up would hang.
    #[test]
    fn no_wake_up_is_lost() {
        const TURNS: u64 = 20_000;
        let token = AtomicU64::new(0);
        let hub = Hub::<f32>::new(2, 1, &[], None);
        std::thread::scope(|scope| {
            for me in 0..2 {
                let (token, hub) = (&token, &hub);
                scope.spawn(move || {
                    hub.enter(me, 0);
                    let mine = |now: u64| now >= TURNS || now % 2 == me as u64;
                    loop {
                        let now = token.load(Ordering::Acquire);
                        if now >= TURNS {
                            hub.leave();
                            return hub.call(1 - me, 0);
                        }
                        if mine(now) {
                            token.store(now + 1, Ordering::Release);
                            hub.call(1 - me, 0);
                        } else {
                            hub.sleep(me, 0, None, || mine(token.load(Ordering::Acquire)));
                        }
                    }
                });
            }
        });
        assert!(token.into_inner() >= TURNS);
        assert_eq!(hub.awake.into_inner(), 0, "who sleeps and who is awake is counted");
    }

    #[test]
    fn a_deadline_ends_sleep() {
        let hub = Hub::<f32>::new(1, 1, &[], None);
        hub.enter(0, 0);
        let until = Instant::now() + std::time::Duration::from_millis(5);
        hub.sleep(0, 0, Some(until), || false);
        assert!(Instant::now() >= until);
        assert_eq!(hub.awake.into_inner(), 1);
    }

    #[test]
    fn the_first_failure_wakes_everyone() {
        let hub = Hub::<f32>::new(3, 1, &[0], None);
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..2)
                .map(|rank| {
                    let hub = &hub;
                    scope.spawn(move || {
                        hub.enter(rank, 0);
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
