//! Ctrl-C and its like, at any moment of a command, and the question where its ranks are (`SIGUSR1`).
//!
//! The signals are blocked in all threads, and one thread waits for them. What is to be done then is done by threads that
//! are there from the start, and they neither allocate nor take locks of others until the command ends: among thousands that
//! compute, a new thread waits for its first turn as long as all others take, and whoever holds a lock (of an arena of memory,
//! say) may wait for its own as long. The report is kept twice for that, one of which nobody holds; it is waited for no
//! longer than a second, for who reads it may have stalled.
//! Before training a command is ended at once, and so it is by `SIGQUIT` at any time: whoever sends that wants to look at
//! what the process leaves (its core), so the signal itself ends it once nothing half written is left.
//! While a run trains or evaluates, the first signal asks it to stop, which it does after what is in flight. If that
//! takes too long (a step may be of any size), or if a second signal comes, it is ended wherever it is. Either way the
//! report holds the steps that are done, and nothing half written is left. Nothing is waited for that may never come. Who only
//! asks gets an answer, and nothing else changes.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use fs_executor::stall::Watch;
use fs_executor::{Error, Observer, Report, StepEvent};
use fs_schedule::file::Reserved;
use fs_schedule::signals::is_ignored;
use nix::sys::signal::{SigSet, Signal, raise};

/// How long a run that was asked to stop may take, with few threads.
const PATIENCE: Duration = Duration::from_secs(3);
/// What a thread takes off that: the system ends them one by one, and all before the end compete with the last words.
const PATIENCE_OF_A_THREAD: Duration = Duration::from_micros(400);
const LEAST_PATIENCE: Duration = Duration::from_millis(500);
/// How long the report of a command that is ended may take: who reads it may have stalled.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Those that end a command.
const ENDING: [Signal; 6] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGXCPU, Signal::SIGUSR2];

/// What shells add to the number of the signal that ended a command.
const SIGNALLED: i32 = 128;

/// Who ends the command: nobody yet, a signal, or it ends by itself.
const RUNS: u8 = 0;
const ENDS: u8 = 1;
const LEAVES: u8 = 2;

/// Waits for the end of the process.
fn forever() -> ! {
    loop {
        std::thread::park();
    }
}

/// What is known of the command when a signal comes.
pub(crate) struct Interrupts {
    stop: Arc<AtomicBool>,
    /// The first signal; 0: none.
    signal: AtomicI32,
    /// It may be asked to stop.
    running: AtomicBool,
    report: Kept<Report>,
    /// What the other threads shall do.
    asked: Mutex<Asked>,
    changed: Condvar,
    /// Says where ranks are.
    places: Arc<Watch>,
    /// Whether somebody ends the command, or it leaves by itself.
    last: AtomicU8,
}

/// What has been asked for, and what is done.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is asked for by itself")]
struct Asked {
    /// End the command if it does not stop.
    patience: bool,
    /// Say that it will stop.
    message: bool,
    /// Write its report.
    report: bool,
    written: bool,
    /// Say where the ranks are.
    places: bool,
}

impl Interrupts {
    fn new() -> Self {
        Self {
            stop: Arc::default(),
            signal: AtomicI32::new(0),
            running: AtomicBool::new(false),
            report: Kept::default(),
            asked: Mutex::default(),
            changed: Condvar::new(),
            last: AtomicU8::new(RUNS),
            // In one piece: other processes may write to the same place.
            places: Watch::new(|text| {
                let _ = io::stderr().write_all(text.as_bytes());
            }),
        }
    }

    /// Watches for signals from now on. To be called before there are other threads.
    pub(crate) fn watch() -> Result<Arc<Self>, Error> {
        let failed = |e: &dyn std::fmt::Display| Error::Settings(format!("cannot watch for Ctrl-C: {e}"));
        let mut signals = SigSet::empty();
        for signal in ENDING.into_iter().chain([Signal::SIGUSR1]) {
            // `nohup` and shells have said so of what shall outlive them.
            if !is_ignored(signal as u32) {
                signals.add(signal);
            }
        }
        // Nobody takes this one: what would write more than may be written gets an error.
        let blocked = signals | Signal::SIGXFSZ;
        blocked.thread_block().map_err(|e| failed(&e))?;
        let own = Arc::new(Self::new());
        let start = |name: &str, body: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.into()).spawn(body).map_err(|e| failed(&e))
        };
        let this = Arc::clone(&own);
        start("patience", Box::new(move || this.wait_and_end()))?;
        let this = Arc::clone(&own);
        start("message", Box::new(move || this.tell()))?;
        let this = Arc::clone(&own);
        start("report", Box::new(move || this.write_last()))?;
        let this = Arc::clone(&own);
        start("places", Box::new(move || this.say_places()))?;
        let this = Arc::clone(&own);
        let watch = move || {
            while let Ok(signal) = signals.wait() {
                if signal == Signal::SIGUSR1 {
                    this.ask(|asked| asked.places = true);
                } else {
                    this.take(signal);
                }
            }
        };
        start("signals", Box::new(watch))?;
        Ok(own)
    }

    /// Set when the command shall stop.
    pub(crate) fn stop(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// Says where the command's ranks are.
    pub(crate) fn places(&self) -> Arc<Watch> {
        Arc::clone(&self.places)
    }

    /// Where the report goes if the command is ended, and what it is so far.
    pub(crate) fn reserve_report(&self, path: Option<&PathBuf>, report: &Report) -> Result<(), Error> {
        path.map_or(Ok(()), |path| {
            let failed = |source| Error::Write { what: "the report", path: path.clone(), source };
            self.report.reserve(path, report).map_err(failed)
        })
    }

    /// From now on this is the report of a command that is ended.
    pub(crate) fn set_report(&self, report: &Report) {
        self.report.change(|kept| kept.clone_from(report));
    }

    /// Writes the report, not at the same time as a signal does.
    pub(crate) fn write_report(&self, path: &Path, report: &Report) -> Result<(), Error> {
        let _both = self.report.hold();
        report.write(path)
    }

    /// Until what is returned is dropped no signal begins the last report: whoever ends the process otherwise would leave
    /// half of it. If a signal is writing it, this waits for that, and so for the end.
    pub(crate) fn hold_report(&self) -> Held<'_, Report> {
        self.report.hold()
    }

    /// Whether a signal has asked the command to stop.
    pub(crate) fn asked_to_stop(&self) -> bool {
        self.signal.load(Ordering::Relaxed) != 0
    }

    /// From now on the command stops when it is asked to.
    pub(crate) fn set_running(&self) {
        self.running.store(true, Ordering::Relaxed);
    }

    /// The exit status of a command that was stopped.
    pub(crate) fn status(&self) -> u8 {
        let signal = match self.signal.load(Ordering::Relaxed) {
            0 => Signal::SIGINT as i32,
            signal => signal,
        };
        u8::try_from(SIGNALLED + signal).unwrap_or(u8::MAX)
    }

    fn take(&self, signal: Signal) {
        let first = self.signal.compare_exchange(0, signal as i32, Ordering::Relaxed, Ordering::Relaxed);
        if signal == Signal::SIGQUIT {
            self.signal.store(signal as i32, Ordering::Relaxed);
        }
        if signal == Signal::SIGQUIT || first.is_err() || !self.running.load(Ordering::Relaxed) {
            self.end();
        }
        self.stop.store(true, Ordering::Relaxed);
        // What is behind standard error may have stalled: that is another thread's.
        self.ask(|asked| (asked.patience, asked.message) = (true, true));
    }

    fn ask(&self, what: impl FnOnce(&mut Asked)) {
        what(&mut self.asked.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// Sleeps until it is asked.
    fn wait_for(&self, what: impl Fn(&Asked) -> bool) -> MutexGuard<'_, Asked> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        self.changed.wait_while(asked, |asked| !what(asked)).unwrap_or_else(PoisonError::into_inner)
    }

    /// Says where the ranks are, whenever somebody asks.
    fn say_places(&self) {
        loop {
            self.wait_for(|asked| asked.places).places = false;
            self.places.ask();
        }
    }

    /// Ends a command that has been asked to stop and does not.
    fn wait_and_end(&self) {
        drop(self.wait_for(|asked| asked.patience));
        std::thread::sleep(patience(threads()));
        self.end();
    }

    /// Says that a command will stop.
    fn tell(&self) {
        drop(self.wait_for(|asked| asked.message));
        let _ = io::stderr().write_all(b"stopping after this step; press Ctrl-C again to stop at once\n");
    }

    /// Writes the report of a command that is ended, once.
    fn write_last(&self) {
        drop(self.wait_for(|asked| asked.report));
        self.report.write_last(|report, out| {
            report.interrupted = true;
            report.write_json(out)
        });
        self.ask(|asked| asked.written = true);
    }

    /// Settles how it ends; it may be settled already.
    fn settle(&self, how: u8) -> Result<u8, u8> {
        self.last.compare_exchange(RUNS, how, Ordering::AcqRel, Ordering::Acquire)
    }

    /// The command has come to its own end, and leaves right after this, once: no signal ends it any more. If one is doing
    /// so, this waits for it, that nothing is cut off half way.
    pub(crate) fn leave(&self) {
        if self.settle(LEAVES).is_err() {
            forever();
        }
    }

    /// Ends the command wherever it is.
    fn end(&self) -> ! {
        if self.settle(ENDS).is_err() {
            // Somebody else does so, or it ends by itself.
            forever();
        }
        self.ask(|asked| asked.report = true);
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        // Nor is this waited for by whoever ends the command. A second one hears of the first one's end.
        drop(self.changed.wait_timeout_while(asked, LAST_WORDS, |asked| !asked.written));
        fs_schedule::file::remove_unfinished();
        if self.signal.load(Ordering::Relaxed) == Signal::SIGQUIT as i32 {
            let quit = SigSet::from(Signal::SIGQUIT);
            let _ = quit.thread_unblock().and_then(|()| raise(Signal::SIGQUIT));
        }
        std::process::exit(i32::from(self.status()))
    }
}

/// A text of which the end of the command may be the last, and where it goes. It is there twice: of the two, at most one is
/// held by whoever changes it, and that may be for long.
struct Kept<T>([Mutex<Option<(Reserved, T)>>; 2]);

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self([Mutex::new(None), Mutex::new(None)])
    }
}

fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Both places of a [`Kept`] text, which is not written as long as these live.
type Held<'a, T> = [MutexGuard<'a, Option<(Reserved, T)>>; 2];

impl<T> Kept<T> {
    fn hold(&self) -> Held<'_, T> {
        self.0.each_ref().map(locked)
    }
}

impl<T: Clone> Kept<T> {
    fn reserve(&self, path: &Path, text: &T) -> io::Result<()> {
        for kept in &self.0 {
            *locked(kept) = Some((Reserved::new(path)?, text.clone()));
        }
        Ok(())
    }

    fn change(&self, change: impl Fn(&mut T)) {
        for kept in &self.0 {
            if let Some((_, text)) = locked(kept).as_mut() {
                change(text);
            }
        }
    }

    /// Writes it, and waits for nobody who changes it. Nothing is written after it.
    fn write_last(&self, write: impl Fn(&mut T, &mut dyn Write) -> io::Result<()>) {
        loop {
            for kept in &self.0 {
                let mut kept = match kept.try_lock() {
                    Ok(kept) => kept,
                    Err(TryLockError::Poisoned(kept)) => kept.into_inner(),
                    Err(TryLockError::WouldBlock) => continue,
                };
                if let Some((reserved, text)) = kept.as_mut() {
                    // There is nobody left to tell that it cannot be written.
                    let _ = reserved.write(|out| write(text, out));
                }
                std::mem::forget(kept);
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Threads of this process; 0 where the system does not tell.
fn threads() -> u32 {
    // The line is among the first 1,000 bytes or so.
    let mut status = [0; 4096];
    let read = File::open("/proc/self/status").and_then(|mut file| file.read(&mut status));
    let status = std::str::from_utf8(&status[..read.unwrap_or(0)]).unwrap_or_default();
    let number = status.lines().find_map(|line| line.strip_prefix("Threads:"));
    number.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
}

/// How long a run of so many threads may take to stop.
fn patience(threads: u32) -> Duration {
    PATIENCE.saturating_sub(PATIENCE_OF_A_THREAD.saturating_mul(threads)).max(LEAST_PATIENCE)
}

/// Keeps the report of a run up to date while somebody else watches it.
pub(crate) struct Counting<'a> {
    inner: &'a mut dyn Observer,
    interrupts: &'a Interrupts,
    started: Instant,
}

impl<'a> Counting<'a> {
    /// Tells `inner` of everything, too.
    pub(crate) fn new(inner: &'a mut dyn Observer, interrupts: &'a Interrupts) -> Self {
        Self { inner, interrupts, started: Instant::now() }
    }
}

impl Observer for Counting<'_> {
    fn training(&mut self, done: u64, steps: u64) {
        if done == 0 {
            self.started = Instant::now();
        }
        self.inner.training(done, steps);
    }

    fn step(&mut self, event: &StepEvent) {
        let seconds = self.started.elapsed().as_secs_f64();
        self.interrupts.report.change(|report| report.count(std::slice::from_ref(event), seconds));
        self.inner.step(event);
    }

    fn unusable(&mut self, step: u64, why: &str) {
        self.inner.unusable(step, why);
    }

    fn evaluating(&mut self, batches: u64) {
        self.inner.evaluating(batches);
    }

    fn evaluated(&mut self, event: &StepEvent) {
        self.inner.evaluated(event);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn many_threads_have_less_time() {
        assert_eq!(patience(0), PATIENCE);
        assert!(patience(16) > Duration::from_millis(2990));
        assert_eq!(patience(5_000), Duration::from_secs(1));
        assert_eq!(patience(10_000), LEAST_PATIENCE);
        assert_eq!(patience(u32::MAX), LEAST_PATIENCE);
        let (beside, end) = (threads(), mpsc::channel::<()>());
        let waiting = std::thread::spawn(move || end.1.recv());
        assert!(threads() > 1 || beside == 0, "{beside}");
        drop(end.0);
        assert!(waiting.join().is_ok_and(|r| r.is_err()));
    }

    #[test]
    fn whoever_counts_holds_up_no_last_report() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        for held in [0, 1] {
            let kept = Kept::default();
            kept.reserve(&path, &1).unwrap();
            kept.change(|n| *n += 1);
            let _held = kept.0[held].lock();
            kept.write_last(|n, out| write!(out, "{n}"));
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "2");
            std::fs::remove_file(&path).unwrap();
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    /// As where MPI ends the process: a report that was just begun would stay beside its place.
    #[test]
    fn whoever_holds_the_report_keeps_it_from_being_begun() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        let kept = Arc::new(Kept::default());
        kept.reserve(&path, &1).unwrap();
        let held = kept.hold();
        let other = Arc::clone(&kept);
        let writing = std::thread::spawn(move || other.write_last(|n, out| write!(out, "{n}")));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!writing.is_finished());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        drop(held);
        writing.join().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1");
    }

    #[test]
    fn who_ends_a_command_is_waited_for() {
        for (last, leaves) in [(RUNS, true), (ENDS, false)] {
            let own = Arc::new(Interrupts { last: AtomicU8::new(last), ..Interrupts::new() });
            let (left, other) = (mpsc::channel(), Arc::clone(&own));
            std::thread::spawn(move || {
                other.leave();
                left.0.send(())
            });
            let found = left.1.recv_timeout(Duration::from_millis(if leaves { 20_000 } else { 200 }));
            assert_eq!(found.is_ok(), leaves, "{last}");
        }
    }
}
