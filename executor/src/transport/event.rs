//! Sleeping until something may have changed.
//!
//! A thread that has nothing to do first announces that it will sleep, then looks once more whether it can go on, and
//! only then sleeps. Whoever changes something first publishes the change and then looks whether the thread has
//! announced itself. Between the two halves of either side stands a fence, so at least one of the two sees the other:
//! no change is slept through. While nobody sleeps, a change costs a fence and a load.

use std::sync::OnceLock;
use std::time::Instant;

use crate::sync::{AtomicBool, Ordering, Thread, current, fence, park};

/// What one thread sleeps on.
#[derive(Debug, Default)]
pub struct Event {
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Event {
    /// Makes the calling thread the one that sleeps. Only the first call counts.
    pub fn attach(&self) {
        self.thread.get_or_init(current);
    }

    /// Announces that the thread will sleep: it must look once more whether it can go on.
    pub fn announce(&self) {
        // What the thread wrote before is seen by those that see this.
        self.asleep.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Takes the announcement back: whether it still stood, so that nobody has woken the thread.
    pub fn retract(&self) -> bool {
        self.asleep.swap(false, Ordering::AcqRel)
    }

    /// Sleeps until somebody takes the announcement back, or until `deadline`.
    pub fn sleep(&self, deadline: Option<Instant>) {
        while self.asleep.load(Ordering::Acquire) {
            if !park(deadline) {
                return;
            }
        }
    }

    /// Whether the thread sleeps, or is about to; after [`publish`].
    pub fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Acquire)
    }

    /// Wakes the thread if it sleeps: whether it did. After [`publish`].
    pub fn wake(&self) -> bool {
        let slept = self.is_asleep() && self.retract();
        if slept && let Some(thread) = self.thread.get() {
            thread.unpark();
        }
        slept
    }
}

/// Stands between a change and the question who sleeps.
pub fn publish() {
    fence(Ordering::SeqCst);
}
