//! What ranks must know of each other beside data: so far, that one has failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::TransportError;
use super::threads::Threads;

/// Whether a rank has failed, and which did so first.
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

    /// Tells every thread of every rank that this rank cannot go on. The first failure wins.
    pub fn fail(&self, rank: usize, op: &str, message: &str) {
        let failure = TransportError::Failed { rank, op: op.into(), message: message.into() };
        self.first.lock().get_or_insert(failure);
        self.failed.store(true, Ordering::Release);
        self.threads.call_all();
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
            failures.fail(2, "gather", "out of luck");
            failures.fail(1, "apply", "late");
            for thread in waiting {
                let error = thread.join().unwrap().unwrap();
                assert_eq!(error.to_string(), "rank 2 failed in `gather`: out of luck");
            }
        });
    }
}
