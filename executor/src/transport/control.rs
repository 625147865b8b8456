//! What ranks must know of each other beside data: that all are there and run the same, that one has failed, bytes
//! gathered from all.
//!
//! A [`Control`] speaks for the ranks of one process. With [`Alone`] these are all; [`Peers`](super::peers::Peers)
//! speaks to other processes. All processes of a world call the same in the same order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::TransportError;
use super::threads::Threads;

/// Speaks for the ranks of this process.
pub trait Control: Send + Sync {
    /// The ranks of each process.
    fn processes(&self) -> &[Vec<usize>];

    /// This process.
    fn process(&self) -> usize;

    /// How long anything is waited for.
    fn timeout(&self) -> Duration;

    /// Gives the others `own`, and waits for theirs: every process's bytes, in order. `what` names it in errors, and
    /// must be the same everywhere.
    fn gather(&self, what: &str, own: &[u8]) -> Result<Vec<Vec<u8>>, TransportError>;

    /// Sends a frame to another process, without waiting.
    fn send(&self, process: usize, frame: &[u8]);

    /// Tells all that a rank of this process has failed.
    fn fail(&self, failure: &TransportError);

    /// The first failure of any process.
    fn failure(&self) -> Option<TransportError>;

    /// From now on `listener` hears what others send of their next run, until [`leave`](Self::leave): the run's
    /// number.
    fn enter(&self, listener: Arc<dyn Listener>) -> u64;

    /// The run is over.
    fn leave(&self);

    /// Sends a frame to all others.
    fn tell(&self, frame: &[u8]) {
        (0..self.processes().len()).filter(|p| *p != self.process()).for_each(|p| self.send(p, frame));
    }

    /// Waits until all are there, and checks that they say the same of everything in `facts`: name and value.
    fn agree(&self, what: &str, facts: &[(&str, String)]) -> Result<(), TransportError> {
        let own: Vec<String> = facts.iter().map(|(name, value)| format!("{name}\t{value}")).collect();
        let own = own.join("\n");
        let all = self.gather(what, own.as_bytes())?;
        for (process, theirs) in all.iter().enumerate() {
            let theirs = String::from_utf8_lossy(theirs);
            let mut theirs = theirs.lines().filter_map(|line| line.split_once('\t'));
            for (name, value) in facts {
                let other = theirs.next();
                if other != Some((name, value)) {
                    let rank = self.processes()[process][0];
                    let first = self.processes()[self.process()][0];
                    let other = other.map_or("nothing", |(_, value)| value).to_owned();
                    let (own, name) = (value.clone(), (*name).to_owned());
                    return Err(TransportError::Differ { name, rank: first, own, other_rank: rank, other });
                }
            }
        }
        Ok(())
    }
}

/// Hears what other processes send of a run.
pub trait Listener: Send + Sync {
    /// A frame; `seen` is when its first byte was here.
    fn frame(&self, process: usize, frame: &[u8], seen: std::time::Instant);

    /// A rank of another process has failed, or the process is gone.
    fn failed(&self, failure: &TransportError);

    /// Whether a process has still something to say.
    fn waits_for(&self, process: usize) -> bool;
}

/// All ranks are of this process.
#[derive(Debug)]
pub struct Alone {
    ranks: Vec<Vec<usize>>,
    timeout: Duration,
}

impl Alone {
    /// Runs `ranks` ranks.
    pub fn new(ranks: usize, timeout: Duration) -> Self {
        Self { ranks: vec![(0..ranks).collect()], timeout }
    }
}

impl Control for Alone {
    fn processes(&self) -> &[Vec<usize>] {
        &self.ranks
    }
    fn process(&self) -> usize {
        0
    }
    fn timeout(&self) -> Duration {
        self.timeout
    }
    fn gather(&self, _: &str, own: &[u8]) -> Result<Vec<Vec<u8>>, TransportError> {
        Ok(vec![own.to_vec()])
    }
    fn send(&self, _: usize, _: &[u8]) {}
    fn fail(&self, _: &TransportError) {}
    fn failure(&self) -> Option<TransportError> {
        None
    }
    fn enter(&self, _: Arc<dyn Listener>) -> u64 {
        0
    }
    fn leave(&self) {}
}

/// Whether a rank has failed in a run, and which did so first.
#[derive(Debug)]
pub struct Failures {
    failed: AtomicBool,
    first: Mutex<Option<TransportError>>,
    threads: Arc<Threads>,
}

impl Failures {
    /// None yet; one wakes all threads.
    pub fn new(threads: &Arc<Threads>) -> Self {
        Self { failed: AtomicBool::new(false), first: Mutex::default(), threads: Arc::clone(threads) }
    }

    /// Tells every thread of this process that a rank cannot go on: whether this is the first failure, which wins.
    pub fn set(&self, failure: &TransportError) -> bool {
        let mut first = self.first.lock();
        let is_first = first.is_none();
        first.get_or_insert_with(|| failure.clone());
        drop(first);
        self.failed.store(true, Ordering::Release);
        self.threads.call_all();
        is_first
    }

    /// Whether a rank has failed.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// The first failure.
    pub fn first(&self) -> Option<TransportError> {
        if self.has_failed() { self.first.lock().clone() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_wakes_everyone() {
        let threads = Arc::new(Threads::new(3, &[0, 1, 2], 1));
        let failures = Failures::new(&threads);
        let failed = |rank: usize, op: &str, message: &str| TransportError::Failed {
            rank,
            op: op.into(),
            message: message.into(),
        };
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..2)
                .map(|rank| {
                    let (threads, failures) = (&threads, &failures);
                    scope.spawn(move || {
                        threads.enter(rank, 0);
                        while !failures.has_failed() {
                            threads.sleep(rank, 0, None, || failures.has_failed());
                        }
                        failures.first()
                    })
                })
                .collect();
            assert!(failures.set(&failed(2, "gather", "out of luck")));
            assert!(!failures.set(&failed(1, "apply", "late")));
            for thread in waiting {
                let error = thread.join().unwrap().unwrap();
                assert_eq!(error.to_string(), "rank 2 failed in `gather`: out of luck");
            }
        });
    }
}
