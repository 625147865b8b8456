//! Sleeping until something may have changed.
//!
//! A thread that has nothing to do first announces that it will sleep, then looks once more whether it can go on, and
//! only then sleeps. Whoever changes something first publishes the change and then looks whether the thread has
//! announced itself. Between the two halves of either side stands a fence, so at least one of the two sees the other:
//! no change is slept through. While nobody sleeps, a change costs a fence and a load.

use std::time::Instant;

use crate::sync::{AtomicBool, Ordering, Parker, fence};

/// What one thread sleeps on.
#[derive(Debug, Default)]
pub(crate) struct Event {
    asleep: AtomicBool,
    parker: Parker,
}

impl Event {
    /// Makes the calling thread the one that sleeps. Only the first call counts.
    pub(crate) fn attach(&self) {
        self.parker.attach();
    }

    /// Sleeps until woken, or until `deadline`, unless `look` finds something to do: whether nobody has woken it.
    pub(crate) fn sleep(&self, deadline: Option<Instant>, look: impl FnOnce() -> bool) -> bool {
        self.announce();
        if !look() {
            self.park(deadline);
        }
        self.retract()
    }

    /// Announces that the thread will sleep: it must look once more whether it can go on.
    pub(crate) fn announce(&self) {
        // What the thread wrote before is seen by those that see this.
        self.asleep.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Takes the announcement back: whether it still stood.
    pub(crate) fn retract(&self) -> bool {
        self.asleep.compare_exchange(true, false, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Sleeps until somebody takes the announcement back, or until `deadline`.
    pub(crate) fn park(&self, deadline: Option<Instant>) {
        while self.asleep.load(Ordering::Acquire) {
            if !self.parker.park(deadline) {
                return;
            }
        }
    }

    /// Whether the thread sleeps, or is about to; after [`publish`].
    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Acquire)
    }

    /// Wakes the thread if it sleeps: whether it did. After [`publish`].
    pub(crate) fn wake(&self) -> bool {
        let slept = self.is_asleep() && self.retract();
        if slept {
            self.parker.unpark();
        }
        slept
    }
}

/// Stands between a change and the question who sleeps.
pub(crate) fn publish() {
    fence(Ordering::SeqCst);
}
