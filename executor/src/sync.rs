//! What the signalling core is made of: `transport/event.rs`, `transport/posts.rs`, `transport/mpi/mailbox.rs` and
//! `runtime/progress.rs`.
//!
//! They use nothing else of the standard library's primitives, so that a model checker can put its own in their place
//! and run through every interleaving (`tests/tests/signalling.rs`).

#[cfg(feature = "mpi")]
pub(crate) use parking_lot::Mutex;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use std::sync::OnceLock;
use std::thread::{self, Thread};
use std::time::Instant;

/// Where one thread sleeps.
#[derive(Debug, Default)]
pub(crate) struct Parker(OnceLock<Thread>);

impl Parker {
    /// The calling thread will sleep here. Only the first call counts.
    pub(crate) fn attach(&self) {
        self.0.get_or_init(thread::current);
    }

    /// Sleeps until unparked (which may have been before), or until `deadline`: false if that has passed. May wake
    /// up for nothing.
    #[allow(clippy::unused_self, reason = "a thread parks where it is; a model checker's needs the place")]
    pub(crate) fn park(&self, deadline: Option<Instant>) -> bool {
        let Some(at) = deadline else {
            thread::park();
            return true;
        };
        let left = at.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            thread::park_timeout(left);
        }
        !left.is_zero()
    }

    /// Ends the thread's sleep, or its next one.
    pub(crate) fn unpark(&self) {
        if let Some(thread) = self.0.get() {
            thread.unpark();
        }
    }
}
