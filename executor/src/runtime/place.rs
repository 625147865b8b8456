//! Where the queues of one rank are: written by their threads as they go, read by whoever asks.
//!
//! A store without order for each operation that starts and each stage of a transfer; nobody waits for a reader, and what
//! it sees of two queues need not have been true at once. Of a run that stands still it is.

use crate::sync::{AtomicU64, Ordering};

/// What a thread does with the head of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doing {
    /// The device works on it.
    Runs = 1,
    /// The device fills an outbox.
    Fills = 2,
    /// Waits for a link to take what is sent.
    Sends = 3,
    /// Waits for what others send.
    Meets = 4,
    /// The device takes what has come.
    Drains = 5,
    /// Waits for leave to load a batch.
    Leave = 6,
    /// Waits for a batch that is read.
    Reads = 7,
}

impl Doing {
    const ALL: [Self; 7] =
        [Self::Runs, Self::Fills, Self::Sends, Self::Meets, Self::Drains, Self::Leave, Self::Reads];
    /// Of a word, for it.
    const BITS: u32 = 3;

    /// What a number stands for.
    pub(crate) fn from_number(n: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|doing| *doing as u64 == n)
    }
}

/// Where the queues of one rank are.
#[derive(Debug)]
pub(crate) struct Places {
    /// Operations of the program.
    ops: u64,
    /// Per engine and queue.
    places: Vec<Vec<Place>>,
}

/// Threads write to lines of memory of their own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Place {
    /// Operation, step and what is done with it.
    word: AtomicU64,
    /// The turn of its channel.
    turn: AtomicU64,
    /// Since when it waits for others in that turn.
    since: AtomicU64,
}

impl Places {
    /// At the start of a program of so many operations; per engine its number of queues.
    pub(crate) fn new(ops: usize, queues: impl Iterator<Item = usize>) -> Self {
        let own = |n: usize| (0..n).map(|_| Place::default()).collect();
        Self { ops: ops as u64, places: queues.map(own).collect() }
    }

    /// States what a thread does with the head of a queue.
    pub(crate) fn set(&self, (engine, queue): (usize, usize), (op, step): (usize, u64), doing: Doing) {
        let word = ((step * self.ops + op as u64) << Doing::BITS) | doing as u64;
        self.places[engine][queue].word.store(word, Ordering::Relaxed);
    }

    /// The same of a transfer that waits for others, in a turn of its channel, from a time of the run's on.
    pub(crate) fn meet(&self, at: (usize, usize), instance: (usize, u64), (turn, since): (u64, u64)) {
        let place = &self.places[at.0][at.1];
        place.turn.store(turn, Ordering::Relaxed);
        place.since.store(since, Ordering::Relaxed);
        self.set(at, instance, Doing::Meets);
    }

    /// The operation of a queue that was begun last, its step, and what is done with it; `None` before the first.
    pub(crate) fn get(&self, (engine, queue): (usize, usize)) -> Option<(usize, u64, Doing)> {
        let word = self.places[engine][queue].word.load(Ordering::Relaxed);
        let doing = Doing::from_number(word & ((1 << Doing::BITS) - 1))?;
        let at = word >> Doing::BITS;
        Some(((at % self.ops) as usize, at / self.ops, doing))
    }

    /// The turn in which a queue met others last, and since when it waited for them.
    pub(crate) fn met(&self, (engine, queue): (usize, usize)) -> (u64, u64) {
        let place = &self.places[engine][queue];
        (place.turn.load(Ordering::Relaxed), place.since.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_were_written() {
        let places = Places::new(7, [1, 2].into_iter());
        assert_eq!(places.get((1, 1)), None);
        for (n, doing) in Doing::ALL.into_iter().enumerate() {
            places.set((1, 1), (6 - n, 1 << 40), doing);
            assert_eq!(places.get((1, 1)), Some((6 - n, 1 << 40, doing)));
        }
        places.meet((0, 0), (0, 3), (11, 5));
        assert_eq!((places.get((0, 0)), places.met((0, 0))), (Some((0, 3, Doing::Meets)), (11, 5)));
        assert_eq!(Doing::from_number(0), None);
    }
}
