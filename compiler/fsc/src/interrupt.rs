//! Ctrl-C and its like: a command that is ended leaves nothing half written.
//!
//! The signals are blocked in all threads, and one thread waits for them. What is written comes to its place whole or not at
//! all; what has been begun beside it is removed before the command ends, with 128 and the signal's number as a shell has it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use fs_schedule::file::remove_unfinished;
use fs_schedule::signals::is_ignored;
use nix::sys::signal::{SigSet, Signal};

/// What shells add to the number of the signal that ended a command.
const SIGNALLED: i32 = 128;

/// Somebody ends the command, who says how.
static ENDS: AtomicBool = AtomicBool::new(false);

/// Watches for signals from now on. To be called before there are other threads.
pub(super) fn watch() -> io::Result<()> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // `nohup` has said so.
        if !is_ignored(signal as u32) {
            signals.add(signal);
        }
    }
    if signals.iter().next().is_none() {
        return Ok(());
    }
    signals.thread_block()?;
    let end = move || {
        let Ok(signal) = signals.wait() else { return };
        if ENDS.swap(true, Ordering::AcqRel) {
            return;
        }
        remove_unfinished();
        std::process::exit(SIGNALLED + signal as i32)
    };
    std::thread::Builder::new().name("signals".into()).spawn(end).map(drop)
}

/// The command has come to its own end. If a signal is ending it, this waits for that: what was removed meanwhile is no
/// error to be told.
pub(super) fn leave() {
    if ENDS.swap(true, Ordering::AcqRel) {
        loop {
            std::thread::park();
        }
    }
}
