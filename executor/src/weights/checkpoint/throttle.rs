//! How fast a checkpoint is written beside training.
//!
//! Written as fast as it goes, a checkpoint takes a core away from steps for a while. Instead its thread takes at most a small
//! [`SHARE`] of this process's cores, by the processor's own count of its time. It takes more only where it must: so that it has
//! ended before the next one begins, where rows put aside fill their room, and once training has ended.
//!
//! Its thread has the priority of all others: an update may wait for it while it copies a piece, and must not wait until all others
//! have had their turn.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::runtime::pace::Pace;

/// Of the time of all cores. A step gets longer by that, by what is put aside, and by what caches lose.
const SHARE: f64 = 0.02;
/// Of the time between two checkpoints, in which one is written if the share allows it or not.
const PART: f64 = 0.75;
/// How long it rests at once: at least, at most.
const REST: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// Lets a thread write as much as is due.
pub(crate) struct Throttle<'a> {
    /// `None`: as fast as it goes.
    beside: Option<Beside<'a>>,
    /// Asked between pieces, and while it rests.
    pub given_up: &'a (dyn Fn() -> bool + Sync),
}

struct Beside<'a> {
    pace: &'a Pace,
    /// Whether there is little room left for what is put aside.
    crowded: &'a (dyn Fn() -> bool + Sync),
    /// The step of the checkpoint, and its bytes that this process writes.
    step: u64,
    bytes: u64,
    /// Cores that it may use.
    cores: f64,
    since: Instant,
    worked: Duration,
}

/// Time that this thread has worked.
fn worked() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Why there is nothing to write for.
pub(crate) fn given_up() -> io::Error {
    io::Error::new(io::ErrorKind::Interrupted, "the run has ended")
}

impl<'a> Throttle<'a> {
    /// As fast as it goes.
    pub(crate) fn none(given_up: &'a (dyn Fn() -> bool + Sync)) -> Self {
        Self { beside: None, given_up }
    }

    /// Beside training: so many bytes of a step's checkpoint. Processes that are bound to cores count their own only.
    pub(crate) fn beside(
        pace: &'a Pace,
        (step, bytes): (u64, u64),
        crowded: &'a (dyn Fn() -> bool + Sync),
        given_up: &'a (dyn Fn() -> bool + Sync),
    ) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from) as f64 * SHARE;
        let (since, worked) = (Instant::now(), worked());
        Self { beside: Some(Beside { pace, crowded, step, bytes, cores, since, worked }), given_up }
    }

    /// Threads that may write at once.
    pub(crate) fn threads(&self) -> usize {
        match self.beside {
            Some(_) => 1,
            None => thread::available_parallelism().map_or(1, usize::from).min(8),
        }
    }

    /// Rests until more is due than the bytes written so far.
    pub(crate) fn wait(&self, written: u64) -> io::Result<()> {
        loop {
            if (self.given_up)() {
                return Err(given_up());
            }
            match &self.beside {
                Some(beside) if !beside.due(written) => thread::sleep(beside.rest()),
                _ => return Ok(()),
            }
        }
    }
}

impl Beside<'_> {
    /// How long it has worked for this one.
    fn worked(&self) -> Duration {
        worked().saturating_sub(self.worked)
    }

    /// How long its share says to rest, but for what else may make more due meanwhile.
    fn rest(&self) -> Duration {
        let due = self.worked().as_secs_f64() / self.cores.max(1e-9);
        let rest = due - self.since.elapsed().as_secs_f64();
        Duration::try_from_secs_f64(rest).unwrap_or_default().clamp(REST.0, REST.1)
    }

    fn due(&self, written: u64) -> bool {
        let share = self.worked().as_secs_f64() <= self.cores * self.since.elapsed().as_secs_f64();
        share || {
            let done = written as f64 / self.bytes.max(1) as f64;
            done < self.pace.gone(self.step, self.since.elapsed()) / PART || (self.crowded)()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::pace::Every;

    /// Without cores to use: what is due is what steps say, or all if there is no room or training has ended.
    #[test]
    fn what_is_due_follows_the_steps() {
        let pace = Pace::new(Every::Steps(100));
        pace.begin(1000);
        let (roomy, crowded) = (|| false, || true);
        let never = || false;
        let beside = |crowded| {
            let mut throttle = Throttle::beside(&pace, (1100, 800), crowded, &never);
            if let Some(beside) = &mut throttle.beside {
                // What it has worked before counts, and there is no time for more.
                (beside.cores, beside.worked) = (0.0, Duration::ZERO);
            }
            throttle.beside.unwrap()
        };
        let own = beside(&roomy);
        assert!(worked() > Duration::ZERO);
        pace.ended(1100);
        assert!(!own.due(0) && beside(&crowded).due(799));
        pace.ended(1110);
        assert!(own.due(0) && own.due(100) && !own.due(110));
        pace.ended(1175);
        assert!(own.due(799) && !own.due(800));
        pace.hurry();
        assert!(own.due(800));
        pace.begin(1100);
        assert!(!own.due(0));
    }

    #[test]
    fn a_run_that_has_ended_is_not_written_for() {
        let pace = Pace::new(Every::Steps(10));
        let throttle = Throttle::beside(&pace, (10, 1), &|| false, &|| true);
        assert_eq!(throttle.wait(0).unwrap_err().kind(), io::ErrorKind::Interrupted);
        assert_eq!(Throttle::none(&|| true).wait(0).unwrap_err().kind(), io::ErrorKind::Interrupted);
        Throttle::none(&|| false).wait(u64::MAX).unwrap();
    }
}
