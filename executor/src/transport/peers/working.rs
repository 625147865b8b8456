//! Work of a process that takes as long as it takes, such as writing to a slow disk.
//!
//! Others that wait for it can't tell it from a process that stands still, so it says from time to time that it is at work, by a thread
//! of its own. They wait for a timeout from when that was heard last. Who is waited for by one at work is waited for by that
//! one alone, so a process that stands still ends the run as before.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::super::control::Control;
use super::super::frame::{FrameKind, Writer};
use super::{Peers, Shared};

/// How often at least, and in which part of the timeout, it is said.
const EVERY: (Duration, u32) = (Duration::from_secs(5), 8);

impl Shared {
    pub(super) fn heard_working(&self, process: usize, seen: Instant) {
        self.lock().working[process] = Some(seen);
        self.changed.notify_all();
    }
}

impl Peers {
    pub(super) fn say_working(&self) {
        let mut frame = Vec::new();
        Writer::new(&mut frame, FrameKind::Working, 0);
        self.tell(&frame);
    }
}

/// Does what may take long while the other processes wait for this one.
pub(crate) fn at_work<R>(control: &dyn Control, work: impl FnOnce() -> R) -> R {
    if control.processes().len() < 2 {
        return work();
    }
    let every = EVERY.0.min(control.timeout() / EVERY.1);
    // Ends with the work, and where that panics.
    let (working, ended) = channel::<()>();
    std::thread::scope(|scope| {
        let say = move || {
            while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                control.working();
            }
        };
        // Without a thread the others wait for their timeout.
        let _ = std::thread::Builder::new().name("at-work".into()).spawn_scoped(scope, say);
        let done = work();
        drop(working);
        done
    })
}
