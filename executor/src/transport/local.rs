//! Ranks as threads of one process.
//!
//! A collective is: fill your own outbox, meet the others, read from theirs. There are two outboxes a rank, used in
//! turn: whoever writes one again has met everyone at the collective in between, and everyone arrived there only
//! after reading. So each collective takes one meeting, and outboxes are reused without allocation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fs_kernels::Real;
use parking_lot::{Condvar, Mutex, RwLock};

use super::{Transport, TransportError};

/// How long a rank watches before it sleeps, where every rank has a core of its own: waking up takes about as long.
const WATCH: Duration = Duration::from_micros(50);

/// What a rank has for the others.
#[derive(Debug)]
struct Outbox<T> {
    counts: Vec<u64>,
    rows: Vec<u32>,
    reals: Vec<T>,
    flag: bool,
}

#[derive(Debug, Default)]
struct Meeting {
    arrived: usize,
    round: u64,
    failure: Option<TransportError>,
}

#[derive(Debug)]
struct Shared<T> {
    outboxes: Vec<[RwLock<Outbox<T>>; 2]>,
    meeting: Mutex<Meeting>,
    changed: Condvar,
    /// The meeting's round, to watch without the lock.
    round: AtomicU64,
    watch: Duration,
}

/// One rank's end.
#[derive(Debug)]
pub struct Local<T> {
    rank: usize,
    turn: usize,
    shared: Arc<Shared<T>>,
    waited: Duration,
}

/// The ends of `ranks` ranks.
pub fn connect<T: Real>(ranks: usize) -> Vec<Local<T>> {
    let outbox =
        || RwLock::new(Outbox { counts: Vec::new(), rows: Vec::new(), reals: Vec::new(), flag: false });
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let shared = Arc::new(Shared {
        outboxes: (0..ranks).map(|_| [outbox(), outbox()]).collect(),
        meeting: Mutex::default(),
        changed: Condvar::new(),
        round: AtomicU64::new(0),
        watch: if ranks <= cores { WATCH } else { Duration::ZERO },
    });
    (0..ranks)
        .map(|rank| Local { rank, turn: 0, shared: Arc::clone(&shared), waited: Duration::ZERO })
        .collect()
}

impl<T: Real> Local<T> {
    /// Waits until every rank is here, or one has failed.
    fn meet(&mut self) -> Result<(), TransportError> {
        let ranks = self.shared.outboxes.len();
        let mut meeting = self.shared.meeting.lock();
        if let Some(failure) = &meeting.failure {
            return Err(failure.clone());
        }
        meeting.arrived += 1;
        if meeting.arrived == ranks {
            meeting.arrived = 0;
            meeting.round += 1;
            self.shared.round.store(meeting.round, Ordering::Release);
            self.shared.changed.notify_all();
            return Ok(());
        }
        let round = meeting.round;
        let since = Instant::now();
        if !self.shared.watch.is_zero() {
            drop(meeting);
            if self.watch(round, since) {
                self.waited += since.elapsed();
                return Ok(());
            }
            meeting = self.shared.meeting.lock();
        }
        while meeting.round == round && meeting.failure.is_none() {
            self.shared.changed.wait(&mut meeting);
        }
        self.waited += since.elapsed();
        match &meeting.failure {
            Some(failure) if meeting.round == round => Err(failure.clone()),
            _ => Ok(()),
        }
    }

    /// Watches for the end of a round; whether it came.
    fn watch(&self, round: u64, since: Instant) -> bool {
        loop {
            for _ in 0..64 {
                if self.shared.round.load(Ordering::Acquire) != round {
                    return true;
                }
                std::hint::spin_loop();
            }
            if since.elapsed() >= self.shared.watch {
                return false;
            }
        }
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<T> {
        let me = self.rank;
        (0..self.shared.outboxes.len()).filter(move |&r| r != me)
    }

    /// The outboxes of the next collective.
    fn next_turn(&mut self) -> usize {
        self.turn ^= 1;
        self.turn
    }
}

/// Where rank `to`'s part of a buffer lies, in rows.
fn span(counts: &[u64], to: usize) -> std::ops::Range<usize> {
    let start = counts[..to].iter().sum::<u64>() as usize;
    start..start + counts[to] as usize
}

fn check(what: &str, found: usize, expected: usize) -> Result<(), TransportError> {
    if found == expected {
        Ok(())
    } else {
        Err(TransportError::Sizes(format!("{what}: {found} values where {expected} are expected")))
    }
}

impl<T: Real> Transport<T> for Local<T> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.shared.outboxes.len()
    }

    fn all_to_all_rows(
        &mut self,
        rows: &[u32],
        counts: &[u64],
        received: &mut Vec<u32>,
        received_counts: &mut [u64],
    ) -> Result<(), TransportError> {
        let ranks = self.ranks();
        check("counts of an all-to-all", counts.len(), ranks)?;
        check("received counts of an all-to-all", received_counts.len(), ranks)?;
        check("rows of an all-to-all", rows.len(), counts.iter().sum::<u64>() as usize)?;
        let turn = self.next_turn();
        {
            let mut outbox = self.shared.outboxes[self.rank][turn].write();
            outbox.counts.clear();
            outbox.counts.extend_from_slice(counts);
            outbox.rows.clear();
            outbox.rows.extend_from_slice(rows);
        }
        self.meet()?;
        received.clear();
        for (outboxes, count) in self.shared.outboxes.iter().zip(received_counts) {
            let outbox = outboxes[turn].read();
            *count = outbox.counts[self.rank];
            received.extend_from_slice(&outbox.rows[span(&outbox.counts, self.rank)]);
        }
        Ok(())
    }

    fn all_to_all(
        &mut self,
        values: &[T],
        counts: &[u64],
        width: usize,
        received: &mut [T],
        received_counts: &[u64],
    ) -> Result<(), TransportError> {
        let ranks = self.ranks();
        check("counts of an all-to-all", counts.len(), ranks)?;
        check("received counts of an all-to-all", received_counts.len(), ranks)?;
        check("values of an all-to-all", values.len(), counts.iter().sum::<u64>() as usize * width)?;
        check("received values", received.len(), received_counts.iter().sum::<u64>() as usize * width)?;
        let turn = self.next_turn();
        let values_for = |to| {
            let rows = span(counts, to);
            &values[rows.start * width..rows.end * width]
        };
        {
            let mut outbox = self.shared.outboxes[self.rank][turn].write();
            outbox.counts.clear();
            outbox.counts.extend_from_slice(counts);
            // The own part does not travel.
            outbox.counts[self.rank] = 0;
            outbox.reals.clear();
            for to in self.others() {
                outbox.reals.extend_from_slice(values_for(to));
            }
        }
        self.meet()?;
        for source in 0..ranks {
            let rows = span(received_counts, source);
            let target = &mut received[rows.start * width..rows.end * width];
            if source == self.rank {
                let own = values_for(source);
                check("values kept by a rank", own.len(), target.len())?;
                target.copy_from_slice(own);
            } else {
                let outbox = self.shared.outboxes[source][turn].read();
                let rows = span(&outbox.counts, self.rank);
                check("values sent by a rank", rows.len() * width, target.len())?;
                target.copy_from_slice(&outbox.reals[rows.start * width..rows.end * width]);
            }
        }
        Ok(())
    }

    fn all_reduce(&mut self, parts: &mut [&mut [T]]) -> Result<(), TransportError> {
        let ranks = self.ranks();
        if ranks == 1 {
            return Ok(());
        }
        let turn = self.next_turn();
        let total: usize = parts.iter().map(|p| p.len()).sum();
        {
            let mut outbox = self.shared.outboxes[self.rank][turn].write();
            outbox.reals.clear();
            for part in parts.iter() {
                outbox.reals.extend_from_slice(part);
            }
        }
        self.meet()?;
        // Each rank adds up its share of the elements, then fetches the others' sums.
        let share = total.div_ceil(ranks);
        let bounds = |rank: usize| (rank * share).min(total)..((rank + 1) * share).min(total);
        let next = self.next_turn();
        {
            let own = bounds(self.rank);
            let mut sums = self.shared.outboxes[self.rank][next].write();
            sums.reals.clear();
            for source in 0..ranks {
                let outbox = self.shared.outboxes[source][turn].read();
                check("values of an all-reduce", outbox.reals.len(), total)?;
                let values = &outbox.reals[own.clone()];
                if source == 0 {
                    sums.reals.extend_from_slice(values);
                } else {
                    for (sum, value) in sums.reals.iter_mut().zip(values) {
                        *sum += *value;
                    }
                }
            }
        }
        self.meet()?;
        for source in 0..ranks {
            let sums = self.shared.outboxes[source][next].read();
            let mut from = bounds(source);
            let mut begin = 0;
            for part in parts.iter_mut() {
                let end = begin + part.len();
                let (start, stop) = (from.start.max(begin), from.end.min(end));
                if start < stop {
                    let offset = bounds(source).start;
                    part[start - begin..stop - begin]
                        .copy_from_slice(&sums.reals[start - offset..stop - offset]);
                    from.start = stop;
                }
                begin = end;
            }
        }
        Ok(())
    }

    fn all_gather(&mut self, values: &[T], gathered: &mut Vec<T>) -> Result<(), TransportError> {
        let turn = self.next_turn();
        {
            let mut outbox = self.shared.outboxes[self.rank][turn].write();
            outbox.reals.clear();
            outbox.reals.extend_from_slice(values);
        }
        self.meet()?;
        for source in 0..self.ranks() {
            gathered.extend_from_slice(&self.shared.outboxes[source][turn].read().reals);
        }
        Ok(())
    }

    fn any(&mut self, flag: bool) -> Result<bool, TransportError> {
        let turn = self.next_turn();
        self.shared.outboxes[self.rank][turn].write().flag = flag;
        self.meet()?;
        Ok(self.shared.outboxes.iter().any(|o| o[turn].read().flag))
    }

    fn poison(&self, op: &str, message: &str) {
        let mut meeting = self.shared.meeting.lock();
        if meeting.failure.is_none() {
            let failure = TransportError::Failed { rank: self.rank, op: op.into(), message: message.into() };
            meeting.failure = Some(failure);
        }
        self.shared.changed.notify_all();
    }

    fn waited(&self) -> Duration {
        self.waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn on_ranks<R: Send>(ranks: usize, run: impl Fn(&mut Local<f64>) -> R + Sync) -> Vec<R> {
        std::thread::scope(|scope| {
            let run = &run;
            let threads: Vec<_> =
                connect::<f64>(ranks).into_iter().map(|mut end| scope.spawn(move || run(&mut end))).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn all_to_all_transposes(ranks in 1..5usize, seed in 0..1000u64, width in 1..4usize) {
            // Rank s sends n(s, d) rows to d; a row says where it is from, where it goes and which it is.
            let n = |s: usize, d: usize| (seed + 7 * s as u64 + 3 * d as u64) % 5;
            let row = |s: usize, d: usize, i: u64| (s * 10_000 + d * 100) as u64 + i;
            let results = on_ranks(ranks, |end| {
                let me = end.rank();
                let counts: Vec<u64> = (0..ranks).map(|d| n(me, d)).collect();
                let rows: Vec<u32> =
                    (0..ranks).flat_map(|d| (0..n(me, d)).map(move |i| row(me, d, i) as u32)).collect();
                let (mut received, mut received_counts) = (vec![9; 3], vec![0; ranks]);
                let (mut back, mut all) = (Vec::new(), Vec::new());
                for _ in 0..3 {
                    end.all_to_all_rows(&rows, &counts, &mut received, &mut received_counts).unwrap();
                    let values: Vec<f64> =
                        received.iter().flat_map(|&r| (0..width).map(move |c| f64::from(r) + c as f64 / 8.0)).collect();
                    back = vec![0.0; rows.len() * width];
                    end.all_to_all(&values, &received_counts, width, &mut back, &counts).unwrap();
                }
                end.all_gather(&[me as f64], &mut all).unwrap();
                (rows, received, received_counts, back, all)
            });
            for (me, (rows, received, counts, back, all)) in results.into_iter().enumerate() {
                let expected: Vec<u32> =
                    (0..ranks).flat_map(|s| (0..n(s, me)).map(move |i| row(s, me, i) as u32)).collect();
                prop_assert_eq!(received, expected);
                prop_assert_eq!(counts, (0..ranks).map(|s| n(s, me)).collect::<Vec<_>>());
                let expected: Vec<f64> =
                    rows.iter().flat_map(|&r| (0..width).map(move |c| f64::from(r) + c as f64 / 8.0)).collect();
                prop_assert_eq!(back, expected);
                prop_assert_eq!(all, (0..ranks).map(|r| r as f64).collect::<Vec<_>>());
            }
        }

        #[test]
        fn all_reduce_adds_in_rank_order(ranks in 1..5usize, sizes in prop::collection::vec(0..9usize, 0..5), seed in 0..99u32) {
            let value = |rank: usize, part: usize, i: usize| {
                (1.0 + 0.1 * f64::from(seed) + rank as f64 * 0.7 + part as f64 * 0.3 + i as f64 * 0.11).sin()
            };
            let results = on_ranks(ranks, |end| {
                let me = end.rank();
                let mut parts: Vec<Vec<f64>> =
                    sizes.iter().enumerate().map(|(p, &n)| (0..n).map(|i| value(me, p, i)).collect()).collect();
                let mut views: Vec<&mut [f64]> = parts.iter_mut().map(Vec::as_mut_slice).collect();
                end.all_reduce(&mut views).unwrap();
                parts
            });
            for parts in results {
                for (p, part) in parts.iter().enumerate() {
                    for (i, &sum) in part.iter().enumerate() {
                        let expected = (1..ranks).fold(value(0, p, i), |s, r| s + value(r, p, i));
                        prop_assert_eq!(sum.to_bits(), expected.to_bits());
                    }
                }
            }
        }
    }

    #[test]
    fn any_agrees() {
        for ranks in 1..5 {
            for who in 0..ranks {
                let answers = on_ranks(ranks, |end| {
                    let yes = end.any(end.rank() == who).unwrap();
                    (end.any(false).unwrap(), yes)
                });
                assert!(answers.iter().all(|a| *a == (false, true)), "{ranks} {who}: {answers:?}");
            }
        }
    }

    #[test]
    fn a_failure_reaches_everyone() {
        for ranks in 2..5 {
            let results = on_ranks(ranks, |end| {
                if end.rank() == 1 {
                    // Late, so that the others already wait.
                    std::thread::sleep(Duration::from_millis(20));
                    end.poison("layers.0.linear", "out of luck");
                    end.poison("later", "must not replace the first");
                }
                end.any(false)
            });
            let expected = TransportError::Failed {
                rank: 1,
                op: "layers.0.linear".into(),
                message: "out of luck".into(),
            };
            assert!(results.iter().all(|r| *r == Err(expected.clone())), "{results:?}");
        }
    }

    #[test]
    fn sizes_that_differ_are_an_error() {
        let results = on_ranks(2, |end| {
            let mut received = vec![0.0; 2];
            // Both say they send one row to rank 0 only, but expect one from each.
            let result = end.all_to_all(&[1.0], &[1, 0], 1, &mut received, &[1, 1]);
            if let Err(error) = &result {
                end.poison("test", &error.to_string());
            }
            result
        });
        assert!(results.iter().any(Result::is_err), "{results:?}");
    }
}
