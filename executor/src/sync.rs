//! What the signalling core is made of: [`transport::event`](crate::transport::event),
//! [`transport::posts`](crate::transport::posts) and [`runtime::progress`](crate::runtime::progress).
//!
//! They use nothing else of the standard library's primitives, so that a model checker can put its own in their place
//! and run through every interleaving (`tests/tests/signalling.rs`).

pub use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
pub use std::thread::{Thread, current};

use std::time::Instant;

/// Parks the calling thread until it is unparked, or until `deadline`: whether it came before that.
pub fn park(deadline: Option<Instant>) -> bool {
    let Some(at) = deadline else {
        std::thread::park();
        return true;
    };
    let left = at.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        std::thread::park_timeout(left);
    }
    !left.is_zero()
}
