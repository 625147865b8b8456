//! Ctrl-C and its like: a command that is ended leaves nothing half written.
//!
//! The signals are blocked in all threads, and one thread waits for them. What is written comes to its place whole or not at
//! all; what has been begun beside it is removed before the command ends, with 128 and the signal's number as a shell has it;
//! after `SIGQUIT` by that signal itself.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use fs_schedule::file::remove_unfinished;
use fs_schedule::signals::is_ignored;
use nix::sys::signal::{SigSet, Signal, raise};

/// Those that end a command.
const ENDING: [Signal; 7] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGXCPU,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// What shells add to the number of the signal that ended a command.
const SIGNALLED: i32 = 128;

/// Somebody ends the command, who says how.
static ENDS: AtomicBool = AtomicBool::new(false);

/// Watches for signals from now on. To be called before there are other threads.
pub(super) fn watch() -> io::Result<()> {
    let mut signals = SigSet::empty();
    for signal in ENDING {
        // `nohup` has said so.
        if !is_ignored(signal as u32) {
            signals.add(signal);
        }
    }
    // Nobody takes this one: what would write more than may be written gets an error.
    let blocked = signals | Signal::SIGXFSZ;
    blocked.thread_block()?;
    if signals.iter().next().is_none() {
        return Ok(());
    }
    let (began, begins) = channel();
    let end = move || {
        let _ = began.send(());
        let Ok(signal) = signals.wait() else { return };
        if ENDS.swap(true, Ordering::AcqRel) {
            return;
        }
        remove_unfinished();
        if signal == Signal::SIGQUIT {
            // Whoever sends it wants to look at what the process leaves (its core).
            let _ = SigSet::from(signal).thread_unblock().and_then(|()| raise(signal));
        }
        std::process::exit(SIGNALLED + signal as i32)
    };
    std::thread::Builder::new().name("signals".into()).spawn(end)?;
    // Where there is no memory for it nothing has been begun yet.
    begins.recv().map_err(|_| io::Error::other("there is no memory for the thread that does"))
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
