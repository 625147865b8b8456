//! What ranks must know of each other beside data: that all are there and run the same, that one has failed, bytes
//! gathered from all.
//!
//! A [`Control`] speaks for the ranks of one process. With [`Alone`] these are all; [`Peers`](super::peers::Peers)
//! speaks to other processes. All processes of a world call the same in the same order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::TransportError;
use super::threads::Threads;
use super::tick::Reading;
use super::witness::{Answers, Witness};

/// Speaks for the ranks of this process.
pub(crate) trait Control: Send + Sync {
    /// The ranks of each process.
    fn processes(&self) -> &[Vec<usize>];

    /// This process.
    fn process(&self) -> usize;

    /// How long anything is waited for.
    fn timeout(&self) -> Duration;

    /// Gives the others `own`, and waits for theirs: every process's bytes, in order. `what` names it in errors, and
    /// must be the same everywhere.
    fn gather(&self, what: &str, own: &[u8]) -> Result<Vec<Vec<u8>>, TransportError>;

    /// The same for one process: only to `process` others give theirs, and only it gets them; `None` in the others,
    /// which go on once it has all.
    fn gather_at(
        &self,
        process: usize,
        what: &str,
        own: &[u8],
    ) -> Result<Option<Vec<Vec<u8>>>, TransportError>;

    /// Sends a frame to another process, without waiting.
    fn send(&self, process: usize, frame: &[u8]);

    /// Sends a frame with data, which those of greater priority may pass; as [`Wire::send_data`](super::wire::Wire::send_data).
    fn send_data(
        &self,
        process: usize,
        (priority, bytes): (i32, usize),
        buffer: &mut Vec<u8>,
        write: &mut dyn FnMut(&mut Vec<u8>),
    ) {
        let _ = (priority, bytes);
        buffer.clear();
        write(buffer);
        self.send(process, buffer);
    }

    /// Tells the others that this process is at work that takes as long as it takes; [`at_work`](super::peers::at_work) does so.
    fn working(&self) {}

    /// When any other process was last heard to be at such work: what is waited for may be waiting for that one.
    fn heard_working(&self) -> Option<Instant> {
        None
    }

    /// Tells all that a rank of this process has failed.
    fn fail(&self, failure: &TransportError);

    /// The failure of any process that is known to count.
    fn failure(&self) -> Option<TransportError>;

    /// The failure that counts, once all processes know which: the first to notice one decides, and the others repeat
    /// its error; if several have noticed one by themselves, that of the first process among them which has not waited
    /// for another of them. Waits for what the others say, but not for long: who has stalled says nothing.
    fn settle(&self) -> Option<TransportError>;

    /// From now on `listener` hears what others send of their next run, until [`leave`](Self::leave): the run's
    /// number.
    fn enter(&self, listener: Arc<dyn Listener>) -> u64;

    /// The run is over.
    fn leave(&self);

    /// Asks where all ranks are. The first process gathers what all say, for at most `patience`; others ask it to.
    fn inquire(&self, patience: Duration) -> Answers;

    /// What processes have said of where they were with the failure that ends the run.
    fn last_words(&self) -> Answers;

    /// Lets the witness note where the ranks of this process are.
    fn freeze(&self) {}

    /// What this process gathers just now, and the ranks that it waits for.
    fn gathering(&self) -> Option<(String, Vec<usize>)> {
        None
    }

    /// What the times of this process count from, as others read them.
    fn epoch(&self) -> Instant;

    /// Reads the clocks of all other processes, in the first one: per process, none of itself and of those that do not
    /// answer. The others answer on the wire's thread.
    fn read_clocks(&self) -> Vec<Option<Reading>> {
        Vec::new()
    }

    /// Sends a frame to all others.
    fn tell(&self, frame: &[u8]) {
        (0..self.processes().len()).filter(|p| *p != self.process()).for_each(|p| self.send(p, frame));
    }

    /// Waits until all are there, and checks that they say the same of everything in `facts`: name and value.
    fn agree(&self, what: &str, facts: &[(&str, String)]) -> Result<(), TransportError> {
        let own: Vec<String> = facts.iter().map(|(name, value)| format!("{name}\t{value}")).collect();
        let own = own.join("\n");
        let all = self.gather(what, own.as_bytes())?;
        let all: Vec<_> = all.iter().map(|theirs| String::from_utf8_lossy(theirs)).collect();
        let said = |process: usize| all[process].lines().filter_map(|line| line.split_once('\t'));
        // Held against the first process, whoever asks, so that all say the same.
        for (process, ranks) in self.processes().iter().enumerate() {
            let (mut first, mut theirs) = (said(0), said(process));
            loop {
                let (own, other) = (first.next(), theirs.next());
                if own == other {
                    match own {
                        Some(_) => continue,
                        None => break,
                    }
                }
                let value =
                    |said: Option<(&str, &str)>| said.map_or("nothing", |(_, value)| value).to_owned();
                return Err(TransportError::Differ {
                    name: own.or(other).map_or("nothing", |(name, _)| name).to_owned(),
                    rank: self.processes()[0][0],
                    own: value(own),
                    other_rank: ranks[0],
                    other: value(other),
                });
            }
        }
        Ok(())
    }
}

/// Hears what other processes send of a run.
pub(crate) trait Listener: Send + Sync {
    /// A frame; `seen` is as the wire has it.
    fn frame(&self, process: usize, frame: &[u8], seen: std::time::Instant);

    /// A rank of another process has failed, or the process is gone.
    fn failed(&self, failure: &TransportError);

    /// Whether a process has still something to say.
    fn waits_for(&self, process: usize) -> bool;
}

/// All ranks are of this process.
pub(crate) struct Alone {
    ranks: Vec<Vec<usize>>,
    timeout: Duration,
    epoch: Instant,
    witness: Option<Weak<dyn Witness>>,
}

impl Alone {
    /// Runs `ranks` ranks.
    pub(crate) fn new(ranks: usize, timeout: Duration) -> Self {
        Self { ranks: vec![(0..ranks).collect()], timeout, epoch: Instant::now(), witness: None }
    }

    /// With somebody who knows where they are.
    #[must_use]
    pub(crate) fn with_witness(self, witness: Weak<dyn Witness>) -> Self {
        Self { witness: Some(witness), ..self }
    }

    fn witness(&self) -> Option<Arc<dyn Witness>> {
        self.witness.as_ref().and_then(Weak::upgrade)
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
    fn gather_at(&self, _: usize, _: &str, own: &[u8]) -> Result<Option<Vec<Vec<u8>>>, TransportError> {
        Ok(Some(vec![own.to_vec()]))
    }
    fn send(&self, _: usize, _: &[u8]) {}
    fn fail(&self, _: &TransportError) {}
    fn failure(&self) -> Option<TransportError> {
        None
    }
    fn settle(&self) -> Option<TransportError> {
        None
    }
    fn inquire(&self, _: Duration) -> Answers {
        self.last_words()
    }
    fn last_words(&self) -> Answers {
        Answers::All(self.witness().iter().map(|witness| Ok(witness.testify())).collect())
    }
    fn freeze(&self) {
        if let Some(witness) = self.witness() {
            witness.freeze();
        }
    }
    fn epoch(&self) -> Instant {
        self.epoch
    }
    fn enter(&self, _: Arc<dyn Listener>) -> u64 {
        0
    }
    fn leave(&self) {}
}

/// Whether a rank has failed in a run, and which did so first.
#[derive(Debug)]
pub(crate) struct Failures {
    failed: AtomicBool,
    first: Mutex<Option<TransportError>>,
    threads: Arc<Threads>,
}

impl Failures {
    /// None yet; one wakes all threads.
    pub(crate) fn new(threads: &Arc<Threads>) -> Self {
        Self { failed: AtomicBool::new(false), first: Mutex::default(), threads: Arc::clone(threads) }
    }

    /// Tells every thread of this process that a rank cannot go on: whether this is the first failure, which wins.
    pub(crate) fn set(&self, failure: &TransportError) -> bool {
        let mut first = self.first.lock();
        let is_first = first.is_none();
        first.get_or_insert_with(|| failure.clone());
        drop(first);
        self.failed.store(true, Ordering::Release);
        self.threads.call_all();
        is_first
    }

    /// Whether a rank has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// The first failure.
    pub(crate) fn first(&self) -> Option<TransportError> {
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

    /// A process of three whose others say what a test says.
    struct Said(usize, Vec<Vec<usize>>, Vec<&'static str>);

    impl Control for Said {
        fn processes(&self) -> &[Vec<usize>] {
            &self.1
        }
        fn process(&self) -> usize {
            self.0
        }
        fn timeout(&self) -> Duration {
            Duration::ZERO
        }
        fn gather(&self, _: &str, own: &[u8]) -> Result<Vec<Vec<u8>>, TransportError> {
            assert_eq!(own, self.2[self.0].as_bytes());
            Ok(self.2.iter().map(|said| said.as_bytes().to_vec()).collect())
        }
        fn gather_at(&self, _: usize, _: &str, _: &[u8]) -> Result<Option<Vec<Vec<u8>>>, TransportError> {
            Ok(None)
        }
        fn send(&self, _: usize, _: &[u8]) {}
        fn fail(&self, _: &TransportError) {}
        fn failure(&self) -> Option<TransportError> {
            None
        }
        fn settle(&self) -> Option<TransportError> {
            None
        }
        fn inquire(&self, _: Duration) -> Answers {
            Answers::Elsewhere
        }
        fn last_words(&self) -> Answers {
            Answers::Elsewhere
        }
        fn epoch(&self) -> Instant {
            Instant::now()
        }
        fn enter(&self, _: Arc<dyn Listener>) -> u64 {
            0
        }
        fn leave(&self) {}
    }

    /// Whoever asks: the same sentence, of the first rank that differs.
    #[test]
    fn all_say_alike_who_differs() {
        let agree = |said: [&'static str; 3]| {
            let found = [0, 1, 2].map(|process| {
                let own = said[process].lines().filter_map(|line| line.split_once('\t'));
                let own: Vec<(&str, String)> = own.map(|(name, value)| (name, value.to_owned())).collect();
                let control = Said(process, vec![vec![0, 3], vec![1], vec![2]], said.to_vec());
                control.agree("the start", &own).map_err(|e| e.to_string())
            });
            assert!(found[0] == found[1] && found[1] == found[2], "{found:?}");
            found[0].clone()
        };
        assert_eq!(agree(["a\t1\nb\t2"; 3]), Ok(()));
        let start = "the ranks do not run the same: ";
        assert_eq!(
            agree(["a\t1\nb\t2", "a\t1\nb\t2", "a\t1\nb\t3"]),
            Err(format!("{start}b is 2 on rank 0 and 3 on rank 2"))
        );
        assert_eq!(
            agree(["a\t1\nb\t2", "a\t1", "a\t1\nb\t3"]),
            Err(format!("{start}b is 2 on rank 0 and nothing on rank 1"))
        );
        assert_eq!(
            agree(["a\t1", "a\t1\nb\t2", "a\t1"]),
            Err(format!("{start}b is nothing on rank 0 and 2 on rank 1"))
        );
    }
}
