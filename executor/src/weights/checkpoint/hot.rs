//! Hot rows of a shard in a checkpoint: as their replicas were, which are newer than what the shard has of them.

use std::ops::Range;

use crate::device::shards::ShardRange;
use crate::device::{Device, Env};

/// Replicas of the hot rows that a shard owns, as they were when the checkpoint was left: values, first and second state.
pub(super) struct Replicas<T> {
    /// Where each of them is in the shard, rising, and its number among all hot rows.
    places: Vec<(usize, usize)>,
    numbers: [Vec<T>; 3],
    /// Hot rows of the table.
    all: usize,
}

impl<T: Copy + Default> Replicas<T> {
    /// Takes all hot rows that a device has of a part of a table.
    pub(super) fn take<D: Device<Real = T>>(
        (env, device): (&Env, &D),
        table: usize,
        (part, shard): (usize, &ShardRange),
    ) -> Self {
        let whole = &env.schedule.tables[table];
        let all = whole.hot.len();
        let mut numbers = [Vec::new(), Vec::new(), Vec::new()];
        if all == 0 {
            return Self { places: Vec::new(), numbers, all };
        }
        device.take_rows(table, part + whole.sharding.parts() as usize, 0..all, &mut numbers);
        let slots = whole.hot.iter().map(|row| env.maps[table].slot(*row)).enumerate();
        let own = slots.filter(|(_, slot)| shard.rows.contains(slot));
        let mut places: Vec<_> =
            own.map(|(number, slot)| ((slot - shard.rows.start) as usize, number)).collect();
        places.sort_unstable();
        Self { places, numbers, all }
    }

    /// Puts them into some rows of the shard.
    pub(super) fn put(&self, rows: Range<usize>, out: &mut [Vec<T>; 3]) {
        let of = |row: usize| self.places.partition_point(|(place, _)| *place < row);
        for (place, number) in &self.places[of(rows.start)..of(rows.end)] {
            for (out, own) in out.iter_mut().zip(&self.numbers) {
                let width = own.len() / self.all;
                out[(place - rows.start) * width..][..width].copy_from_slice(&own[number * width..][..width]);
            }
        }
    }
}
