//! The threads of a process: what each sleeps on, and how many are awake.
//!
//! They belong to the process and not to a transport: operations of one rank wake each other here too.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::event::{Event, publish};

/// The threads that run a process's ranks.
#[derive(Debug)]
pub(crate) struct Threads {
    /// Per rank and engine; of ranks that run elsewhere none.
    events: Vec<Vec<Event>>,
    /// Threads that need a processor, and processors for them.
    awake: AtomicU64,
    processors: u64,
}

impl Threads {
    /// `engines` for each rank of `own`, out of `ranks` ranks.
    pub(crate) fn new(ranks: usize, own: &[usize], engines: usize) -> Self {
        let of = |rank: usize| if own.contains(&rank) { engines } else { 0 };
        Self {
            events: (0..ranks).map(|rank| (0..of(rank)).map(|_| Event::default()).collect()).collect(),
            awake: AtomicU64::new(0),
            processors: std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
        }
    }

    /// What the threads of a rank's engines sleep on.
    pub(crate) fn events(&self, rank: usize) -> &[Event] {
        &self.events[rank]
    }

    /// The calling thread runs an engine from now on.
    pub(crate) fn enter(&self, rank: usize, engine: usize) {
        self.events[rank][engine].attach();
        self.add_awake(1);
    }

    /// The calling thread no longer runs an engine.
    pub(crate) fn leave(&self) {
        self.awake.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts threads that have been woken.
    pub(crate) fn add_awake(&self, threads: u64) {
        if threads > 0 {
            self.awake.fetch_add(threads, Ordering::Relaxed);
        }
    }

    /// Threads that need a processor: those of engines that do not sleep, and the reader while it works.
    pub(crate) fn awake(&self) -> &AtomicU64 {
        &self.awake
    }

    /// Whether every thread that is awake has a processor, so that one may look for work a little longer.
    pub(crate) fn has_room(&self) -> bool {
        self.awake.load(Ordering::Relaxed) <= self.processors
    }

    /// Wakes the thread of an engine if it sleeps; after [`publish`].
    pub(crate) fn wake(&self, rank: usize, engine: usize) {
        if let Some(event) = self.events[rank].get(engine) {
            self.add_awake(u64::from(event.wake()));
        }
    }

    /// Wakes the threads of an engine on all ranks, after publishing what has changed.
    pub(crate) fn call_engine(&self, engine: usize) {
        publish();
        for rank in 0..self.events.len() {
            self.wake(rank, engine);
        }
    }

    /// Wakes the thread of an engine if it sleeps, after publishing what has changed.
    pub(crate) fn call(&self, rank: usize, engine: usize) {
        publish();
        self.wake(rank, engine);
    }

    /// Wakes every thread that sleeps, after publishing what has changed.
    pub(crate) fn call_all(&self) {
        publish();
        for event in self.events.iter().flatten() {
            self.add_awake(u64::from(event.wake()));
        }
    }

    /// Sleeps until woken, or until `deadline`, unless `look` finds something to do.
    pub(crate) fn sleep(
        &self,
        rank: usize,
        engine: usize,
        deadline: Option<Instant>,
        look: impl FnOnce() -> bool,
    ) {
        // Whoever wakes the thread counts it again, from the moment at which it needs a processor.
        self.leave();
        self.add_awake(u64::from(self.events[rank][engine].sleep(deadline, look)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads hand a token to and fro; a lost wake-up would hang.
    #[test]
    fn no_wake_up_is_lost() {
        const TURNS: u64 = 20_000;
        let token = AtomicU64::new(0);
        let threads = Threads::new(2, &[0, 1], 1);
        std::thread::scope(|scope| {
            for me in 0..2 {
                let (token, threads) = (&token, &threads);
                scope.spawn(move || {
                    threads.enter(me, 0);
                    let mine = |now: u64| now >= TURNS || now % 2 == me as u64;
                    loop {
                        let now = token.load(Ordering::Acquire);
                        if now >= TURNS {
                            threads.leave();
                            return threads.call(1 - me, 0);
                        }
                        if mine(now) {
                            token.store(now + 1, Ordering::Release);
                            threads.call(1 - me, 0);
                        } else {
                            threads.sleep(me, 0, None, || mine(token.load(Ordering::Acquire)));
                        }
                    }
                });
            }
        });
        assert!(token.into_inner() >= TURNS);
        assert_eq!(threads.awake.into_inner(), 0, "who sleeps and who is awake is counted");
    }

    #[test]
    fn a_deadline_ends_sleep() {
        let threads = Threads::new(1, &[0], 1);
        threads.enter(0, 0);
        let until = Instant::now() + std::time::Duration::from_millis(5);
        threads.sleep(0, 0, Some(until), || false);
        assert!(Instant::now() >= until);
        assert_eq!(threads.awake.into_inner(), 1);
    }
}
