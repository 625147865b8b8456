//! Reads batches ahead on a thread of its own and hands each one to every rank.
//!
//! Batches wait on a shelf from which each rank takes them in order. Once every rank has taken a batch it leaves the
//! shelf; once they are through with it, it is filled again, so in steady state nothing is allocated.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{DataError, GlobalBatch, Source, Wanted};

/// Batches that may wait.
const DEPTH: usize = 4;

/// A batch, or why there is none.
pub type Delivery = Result<Arc<GlobalBatch>, Arc<DataError>>;

/// What the reader and the ranks share. (The locks of the standard library allocate nothing, whoever waits.)
#[derive(Debug)]
struct Shelf {
    state: Mutex<State>,
    /// Something was put there, or nothing more will come.
    put: Condvar,
    /// There is room again, or nobody listens any more.
    taken: Condvar,
    depth: usize,
}

#[derive(Debug)]
struct State {
    waiting: VecDeque<Delivery>,
    /// Deliveries that have left the shelf.
    gone: u64,
    /// Deliveries that each rank has taken.
    taken: Vec<u64>,
    /// The reader has come to its end.
    finished: bool,
    /// A rank has hung up.
    deserted: bool,
}

impl Shelf {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sending half: runs on the reader's thread.
#[derive(Debug)]
pub struct Reader {
    shelf: Arc<Shelf>,
    /// Batches that are under way at most.
    batches: usize,
    wanted: Wanted,
}

/// One rank's receiving half.
#[derive(Debug)]
pub struct Batches {
    shelf: Arc<Shelf>,
    rank: usize,
}

/// A reader for `ranks` ranks with `in_flight` batches each, of which `held` have their memory, and each rank's
/// receiving end. No rank gets so far ahead of another that the reader must wait for the slow one while the fast one
/// waits for the reader.
pub fn reader(ranks: usize, in_flight: usize, held: usize) -> (Reader, Vec<Batches>) {
    let depth = DEPTH + in_flight;
    let state = State {
        waiting: VecDeque::with_capacity(depth),
        gone: 0,
        taken: vec![0; ranks],
        finished: false,
        deserted: false,
    };
    let (put, taken) = (Condvar::new(), Condvar::new());
    let shelf = Arc::new(Shelf { state: Mutex::new(state), put, taken, depth });
    let batches = (0..ranks).map(|rank| Batches { shelf: Arc::clone(&shelf), rank }).collect();
    // Beside those that wait, the slowest rank holds some, and one is being filled.
    (Reader { shelf, batches: depth + held + 2, wanted: Wanted::All }, batches)
}

impl Batches {
    /// The next batch, which is waited for no longer than `timeout`; `None` when the reader has come to its end. The
    /// reader is told of the room by [`resume`](Self::resume).
    pub fn next(&self, timeout: Duration) -> Option<Delivery> {
        let until = Instant::now() + timeout;
        let mut state = self.shelf.lock();
        loop {
            let at = (state.taken[self.rank] - state.gone) as usize;
            if let Some(delivery) = state.waiting.get(at).cloned() {
                state.taken[self.rank] += 1;
                if state.taken.iter().all(|taken| *taken > state.gone) {
                    state.waiting.pop_front();
                    state.gone += 1;
                }
                return Some(delivery);
            }
            if state.finished {
                return None;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Some(Err(Arc::new(DataError::Late { seconds: timeout.as_secs_f64() })));
            }
            state = self.shelf.put.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Batches {
    /// Wakes the reader if there is room. Later than the room is there, so that those who wait for the batch find a
    /// processor before the reader does.
    pub fn resume(&self) {
        let room = self.shelf.lock().waiting.len() < self.shelf.depth;
        if room {
            self.shelf.taken.notify_one();
        }
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.shelf.lock().deserted = true;
        self.shelf.taken.notify_one();
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shelf.lock().finished = true;
        self.shelf.put.notify_all();
    }
}

impl Reader {
    /// Reads these samples of every batch only.
    #[must_use]
    pub fn wanting(mut self, wanted: Wanted) -> Self {
        self.wanted = wanted;
        self
    }

    /// Sends the batches of `steps`; ends early when the ranks hang up or after an error. While it works it counts in
    /// `awake` as a thread that needs a processor. Returns the bytes that batches took.
    pub fn run(self, source: &mut dyn Source, steps: std::ops::Range<u64>, awake: &AtomicU64) -> usize {
        // Batches come back by their count: once all ranks are through with one, only this list holds it.
        // They are used in turn, so all have their memory soon.
        let mut spare: VecDeque<Arc<GlobalBatch>> = (0..self.batches).map(|_| self.empty()).collect();
        // The largest so far: all grow to its size when they are filled next, and not when chance has it.
        let mut largest = Vec::new();
        for step in steps {
            let free = spare.iter().position(|b| Arc::strong_count(b) == 1);
            let mut batch = free.and_then(|i| spare.remove(i)).unwrap_or_else(|| self.empty());
            // Nobody else holds it, so nothing is cloned.
            let own = Arc::make_mut(&mut batch);
            own.reserve(&largest);
            awake.fetch_add(1, Ordering::Relaxed);
            let delivery = source.fill(step, own).map_err(Arc::new);
            awake.fetch_sub(1, Ordering::Relaxed);
            batch.measure(&mut largest);
            let last = delivery.is_err();
            if !self.put(delivery.map(|()| Arc::clone(&batch))) {
                return held(&spare);
            }
            if last {
                break;
            }
            spare.push_back(batch);
        }
        held(&spare)
    }

    fn empty(&self) -> Arc<GlobalBatch> {
        Arc::new(GlobalBatch::wanting(self.wanted.clone()))
    }

    /// Waits for room and puts a delivery onto the shelf; false if a rank has hung up.
    fn put(&self, delivery: Delivery) -> bool {
        let mut state = self.shelf.lock();
        while !state.deserted && state.waiting.len() >= self.shelf.depth {
            state = self.shelf.taken.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.deserted {
            return false;
        }
        state.waiting.push_back(delivery);
        drop(state);
        self.shelf.put.notify_all();
        true
    }
}

fn held(batches: &VecDeque<Arc<GlobalBatch>>) -> usize {
    batches.iter().map(|b| b.bytes()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_mins(1);

    struct Count;

    impl Source for Count {
        fn describe(&self) -> String {
            "numbers".into()
        }
        fn epoch_steps(&self) -> Option<u64> {
            None
        }
        fn fill(&mut self, step: u64, batch: &mut GlobalBatch) -> Result<(), DataError> {
            batch.step = step;
            if step == 300 { Err(DataError::NoData) } else { Ok(()) }
        }
    }

    #[test]
    fn every_rank_gets_every_batch_in_order_and_the_end() {
        let (reader, batches) = reader(3, 2, 3);
        std::thread::scope(|scope| {
            scope.spawn(move || reader.run(&mut Count, 0..1000, &AtomicU64::default()));
            for (rank, batches) in batches.into_iter().enumerate() {
                scope.spawn(move || {
                    for step in 0..300 {
                        if step % (50 + rank) == 0 {
                            std::thread::yield_now();
                        }
                        assert_eq!(batches.next(LONG).unwrap().unwrap().step, step as u64);
                        batches.resume();
                    }
                    assert!(batches.next(LONG).unwrap().is_err());
                    assert!(batches.next(LONG).is_none());
                });
            }
        });
    }

    #[test]
    fn a_batch_that_does_not_come_is_an_error() {
        let (_reader, batches) = reader(1, 1, 1);
        let said = batches[0].next(Duration::from_millis(5)).unwrap().unwrap_err().to_string();
        assert_eq!(said, "the data has given no batch for 0.005 s");
    }

    #[test]
    fn the_reader_ends_when_a_rank_hangs_up() {
        let (reader, mut batches) = reader(2, 1, 2);
        std::thread::scope(|scope| {
            let reading = scope.spawn(move || reader.run(&mut Count, 0..1_000_000, &AtomicU64::default()));
            batches.pop();
            reading.join().unwrap();
            while batches[0].next(LONG).is_some() {
                batches[0].resume();
            }
        });
    }
}
