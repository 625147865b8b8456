//! What rows held before updates that a checkpoint does not see.
//!
//! While a checkpoint is written training goes on. An update of its step or of a later one first puts aside what the rows that it
//! changes held, once for each row and until the row has been taken; see [`crate::weights::checkpoint`]. Between checkpoints that is one
//! lock which nobody else wants.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fs_kernels::Real;
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};

use super::state::Shard;
use crate::device::aside::{Aside, MOST};
use crate::device::{Fault, PutAside};

/// A shard as it was before the updates of a step.
#[derive(Debug)]
pub(crate) struct Picture<T> {
    aside: Mutex<Option<Kept<T>>>,
    /// Rows have been taken.
    room: Condvar,
    /// Rows put aside so far, and nanoseconds that updates have waited for room.
    counted: [AtomicU64; 2],
}

/// Rows that are put aside, and from when on.
#[derive(Debug)]
pub(crate) struct Kept<T> {
    /// The first step whose updates are not seen.
    from: u64,
    /// Rows are being taken, so it is worth waiting: for so long, before more is put aside than there is room for. Whoever waits for
    /// this rank meanwhile has a limit, too.
    patience: Option<Duration>,
    /// Shards of the rank, whose waits come one after the other.
    shards: u32,
    rows: Aside<T>,
}

impl<T> Default for Picture<T> {
    fn default() -> Self {
        Self { aside: Mutex::default(), room: Condvar::new(), counted: Default::default() }
    }
}

/// Numbers of a row in values, first and second state.
fn widths<T: Real>(shard: &Shard<T>) -> [usize; 3] {
    let rows = shard.len().max(1);
    [shard.dim, shard.state1.len() / rows, shard.state2.len() / rows]
}

/// Puts aside what a row holds.
fn put_aside<T: Real>(rows: &mut Aside<T>, row: u32, shard: &Shard<T>) {
    let mut own = rows.put(row);
    for (field, width) in [&shard.values, &shard.state1, &shard.state2].into_iter().zip(widths(shard)) {
        let (head, rest) = own.split_at_mut(width);
        head.copy_from_slice(&field[row as usize * width..][..width]);
        own = rest;
    }
}

impl<T: Real> Picture<T> {
    /// From the updates of this step on rows are put aside; of `shards` shards.
    pub(crate) fn keep(&self, from: u64, shard: &RwLock<Shard<T>>, shards: usize) {
        // Who looks at a shard holds this first, so that no update finds it in use.
        let mut held = self.aside.lock();
        let width = widths(&shard.read()).iter().sum();
        let rows = Aside::new(width, MOST / shards.max(1));
        *held = Some(Kept { from, patience: None, shards: shards.max(1) as u32, rows });
    }

    /// Nothing is put aside any more.
    pub(crate) fn forget(&self) {
        *self.aside.lock() = None;
        self.room.notify_all();
    }

    /// From now on updates that find no room wait for it, those of all shards of a step together for about so long.
    pub(crate) fn begin(&self, patience: Duration) {
        if let Some(aside) = &mut *self.aside.lock() {
            aside.patience = Some(patience / aside.shards);
        }
    }

    /// Puts aside what an update of a step is about to change. While what is returned lives nobody takes rows.
    pub(crate) fn before(
        &self,
        step: u64,
        rows: &[u32],
        shard: &RwLock<Shard<T>>,
        conflict: impl Fn() -> Fault,
    ) -> Result<MutexGuard<'_, Option<Kept<T>>>, Fault> {
        let mut held = self.aside.lock();
        let mut rows = rows.iter();
        // A row that found no room; what has been taken is another number after the wait.
        let mut waiting = None;
        let (mut put, mut waited) = (0, Duration::ZERO);
        while let Some(aside) = held.as_mut().filter(|aside| step >= aside.from) {
            let own = shard.try_read().ok_or_else(&conflict)?;
            let mut full = None;
            while let Some(row) = waiting.take().or_else(|| rows.next()) {
                if !aside.rows.wants(*row) {
                    continue;
                }
                let left = aside.patience.map(|patience| patience.saturating_sub(waited));
                let full_now = aside.rows.len() >= aside.rows.most();
                if let Some(left) = left.filter(|left| full_now && !left.is_zero()) {
                    (waiting, full) = (Some(row), Some(left));
                    break;
                }
                put_aside(&mut aside.rows, *row, &own);
                put += 1;
            }
            drop(own);
            let Some(left) = full else { break };
            let since = Instant::now();
            self.room.wait_for(&mut held, left);
            waited += since.elapsed();
            self.counted[1].fetch_add(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
        if put > 0 {
            self.counted[0].fetch_add(put, Ordering::Relaxed);
        }
        Ok(held)
    }

    /// Whether more than half of the room is taken.
    pub(crate) fn crowded(&self) -> bool {
        self.aside.lock().as_ref().is_some_and(|aside| aside.rows.len() > aside.rows.most() / 2)
    }

    /// What was put aside so far.
    pub(crate) fn counted(&self) -> PutAside {
        let [rows, waited] = &self.counted;
        PutAside {
            rows: rows.load(Ordering::Relaxed),
            waited: Duration::from_nanos(waited.load(Ordering::Relaxed)),
        }
    }

    /// Hands over some rows as they were: values, first and second state. Rows are taken in order.
    pub(crate) fn take(&self, rows: Range<usize>, shard: &RwLock<Shard<T>>, out: &mut [Vec<T>; 3]) {
        let mut held = self.aside.lock();
        let own = shard.read();
        let widths = widths(&own);
        for ((out, field), width) in out.iter_mut().zip([&own.values, &own.state1, &own.state2]).zip(widths) {
            out.clear();
            out.extend_from_slice(&field[rows.start * width..rows.end * width]);
        }
        drop(own);
        let Some(aside) = &mut *held else { return };
        aside.rows.take((rows.start, rows.end), widths, out);
        self.room.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use fs_kernels::Mat;
    use fs_schedule::{Init, Sharding, SparseOptimizer, Table};
    use proptest::prelude::*;

    use super::*;

    const ROWS: usize = 23;

    fn shard(optimizer: SparseOptimizer) -> RwLock<Shard<f64>> {
        let table = Table {
            name: "t".into(),
            rows: ROWS as u64,
            dim: 3,
            sharding: Sharding::RowWise,
            placement: fs_schedule::RowPlacement::default(),
            hot: Vec::new(),
            optimizer,
            init: Init::Normal { mean: 0.0, std: 1.0 },
            stream: 1,
        };
        let map = table.row_map(1).unwrap();
        RwLock::new(Shard::new(&table, &map, 0, (0, 1), 1).unwrap())
    }

    fn numbers(shard: &Shard<f64>) -> [Vec<f64>; 3] {
        [shard.values.to_vec(), shard.state1.to_vec(), shard.state2.to_vec()]
    }

    /// As an operation does it.
    fn update(picture: &Picture<f64>, shard: &RwLock<Shard<f64>>, step: u64, rows: &[u32]) {
        let gradients: Vec<f64> = (0..rows.len() * 3).map(|i| (step * 7 + i as u64) as f64 / 9.0).collect();
        let conflict = || Fault::Conflict("t".into());
        let _held = picture.before(step, rows, shard, conflict).unwrap();
        shard.write().update(step + 1, rows, Mat::new(&gradients, rows.len(), 3));
    }

    fn optimizers() -> impl Strategy<Value = SparseOptimizer> {
        prop_oneof![
            Just(SparseOptimizer::Sgd { lr: 0.1 }),
            Just(SparseOptimizer::RowwiseAdagrad { lr: 0.1, eps: 1e-8 }),
            Just(SparseOptimizer::Adam { lr: 0.1, beta1: 0.9, beta2: 0.99, eps: 1e-8 }),
        ]
    }

    proptest! {
        /// Whatever is updated between pieces, and whichever pieces they are: what is taken is what there was.
        #[test]
        fn what_is_taken_is_as_it_was(
            optimizer in optimizers(),
            begun in prop::collection::btree_set(0..ROWS as u32, 0..ROWS),
            late in prop::collection::btree_set(0..ROWS as u32, 0..ROWS),
            rounds in prop::collection::vec((1usize..6, prop::collection::btree_set(0..ROWS as u32, 0..ROWS)), 24),
        ) {
            let (oracle, shard, picture) = (shard(optimizer), shard(optimizer), Picture::default());
            let listed = |rows: &std::collections::BTreeSet<u32>| rows.iter().copied().collect::<Vec<_>>();
            update(&picture, &shard, 3, &listed(&begun));
            picture.keep(5, &shard, 1);
            // Of other rows those of the next step may come first.
            let first: Vec<u32> = rounds[0].1.difference(&late).copied().collect();
            update(&picture, &shard, 5, &first);
            update(&picture, &shard, 4, &listed(&late));
            let was = {
                let none = Picture::default();
                update(&none, &oracle, 3, &listed(&begun));
                update(&none, &oracle, 4, &listed(&late));
                numbers(&oracle.read())
            };
            let (mut taken, mut out): ([Vec<f64>; 3], [Vec<f64>; 3]) = Default::default();
            let mut at = 0;
            for (step, (rows, changed)) in (5..).zip(&rounds) {
                update(&picture, &shard, step, &listed(changed));
                if at == 0 {
                    picture.begin(Duration::from_secs(9));
                }
                let piece = at..ROWS.min(at + rows);
                picture.take(piece.clone(), &shard, &mut out);
                taken.iter_mut().zip(&out).for_each(|(all, new)| all.extend(new));
                at = piece.end;
                if at == ROWS {
                    break;
                }
            }
            prop_assume!(at == ROWS);
            prop_assert_eq!(&taken, &was);
            // Nothing is left of it.
            prop_assert!(picture.aside.lock().as_ref().is_some_and(|aside| aside.rows.len() == 0));
            picture.forget();
            update(&picture, &shard, 99, &listed(&begun));
            prop_assert!(picture.aside.lock().is_none());
        }
    }

    /// Who finds no room waits until rows are taken, or nobody takes any more.
    #[test]
    fn room_is_waited_for() {
        for forgotten in [false, true] {
            let (shard, picture) = (shard(SparseOptimizer::Sgd { lr: 0.1 }), Picture::default());
            picture.keep(0, &shard, 1);
            picture.aside.lock().as_mut().unwrap().rows.limit(2);
            let was = numbers(&shard.read());
            // Before anything is taken waiting would be for ever.
            update(&picture, &shard, 0, &[1, 2, 3]);
            picture.begin(Duration::from_secs(99));
            let mut taken: [Vec<f64>; 3] = Default::default();
            std::thread::scope(|scope| {
                let changes = scope.spawn(|| update(&picture, &shard, 1, &[0, 3, 20, 22]));
                std::thread::sleep(std::time::Duration::from_millis(50));
                assert!(!changes.is_finished());
                if forgotten {
                    picture.forget();
                } else {
                    let mut out: [Vec<f64>; 3] = Default::default();
                    for row in 0..ROWS {
                        picture.take(row..row + 1, &shard, &mut out);
                        taken.iter_mut().zip(&out).for_each(|(all, new)| all.extend(new));
                    }
                }
                changes.join().unwrap();
            });
            assert!(forgotten || taken == was);
            assert!(shard.read().values[..] != was[0][..]);
        }
    }

    /// Who has waited long enough goes on, and what was is taken all the same.
    #[test]
    fn room_is_not_waited_for_forever() {
        let (shard, picture) = (shard(SparseOptimizer::Sgd { lr: 0.1 }), Picture::default());
        picture.keep(0, &shard, 4);
        picture.aside.lock().as_mut().unwrap().rows.limit(2);
        let was = numbers(&shard.read());
        picture.begin(Duration::from_millis(80));
        for step in 0..3 {
            let began = Instant::now();
            update(&picture, &shard, step, &[0, 1, 3, 20 + step as u32]);
            assert!(began.elapsed() >= Duration::from_millis(19), "a shard's share of it, once an update");
        }
        assert!(picture.counted().waited >= Duration::from_millis(57));
        let (mut taken, mut out): ([Vec<f64>; 3], [Vec<f64>; 3]) = Default::default();
        for row in 0..ROWS {
            picture.take(row..row + 1, &shard, &mut out);
            taken.iter_mut().zip(&out).for_each(|(all, new)| all.extend(new));
        }
        assert!(taken == was);
    }
}
