//! Rows of a shard as they were before updates that a checkpoint does not see: each once, until it has been taken.

use fs_kernels::Real;
use hashbrown::HashTable;

/// Bytes that the shards of a rank may put aside together before an update waits for the disk.
pub(crate) const MOST: usize = 64 << 20;

/// Rows that are put aside.
#[derive(Debug)]
pub(crate) struct Aside<T> {
    /// Rows before this one have been taken.
    taken: usize,
    /// Rows that may be put aside.
    most: usize,
    /// Numbers of a row: its values and states, one after the other.
    width: usize,
    /// Rows, and where the numbers of each are, in rows.
    at: HashTable<(u32, u32)>,
    numbers: Vec<T>,
    free: Vec<u32>,
}

/// Rows are few and spread by themselves: what matters is that it takes no time.
fn hash(row: u32) -> u64 {
    u64::from(row).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl<T: Real> Aside<T> {
    /// Nothing yet, and room for so many bytes; a row has so many numbers.
    pub(crate) fn new(width: usize, room: usize) -> Self {
        Self {
            taken: 0,
            most: (room / (width * size_of::<T>()).max(1)).max(1),
            width,
            at: HashTable::new(),
            numbers: Vec::new(),
            free: Vec::new(),
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.at.len()
    }

    /// How many there may be.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    #[cfg(test)]
    pub(crate) fn limit(&mut self, most: usize) {
        self.most = most;
    }

    /// Whether what a row holds now is still to be put aside before it changes.
    pub(crate) fn wants(&self, row: u32) -> bool {
        row as usize >= self.taken && self.at.find(hash(row), |(own, _)| *own == row).is_none()
    }

    /// Room for the numbers of a row that is wanted.
    pub(crate) fn put(&mut self, row: u32) -> &mut [T] {
        let width = self.width;
        let place = self.free.pop().unwrap_or_else(|| {
            self.numbers.resize(self.numbers.len() + width, T::ZERO);
            (self.numbers.len() / width.max(1)) as u32 - 1
        });
        self.at.insert_unique(hash(row), (row, place), |(row, _)| hash(*row));
        &mut self.numbers[place as usize * width..][..width]
    }

    /// Rows up to `end` are taken: those among them that were put aside replace what is in `out`, which has the fields of rows
    /// from `start` on, with so many numbers a row each.
    pub(crate) fn take(&mut self, (start, end): (usize, usize), widths: [usize; 3], out: &mut [Vec<T>; 3]) {
        for row in start..end {
            if self.at.is_empty() {
                break;
            }
            let Ok(entry) = self.at.find_entry(hash(row as u32), |(own, _)| *own as usize == row) else {
                continue;
            };
            let place = entry.remove().0.1;
            let mut numbers = &self.numbers[place as usize * self.width..][..self.width];
            for (out, width) in out.iter_mut().zip(widths) {
                let (head, rest) = numbers.split_at(width);
                out[(row - start) * width..][..width].copy_from_slice(head);
                numbers = rest;
            }
            self.free.push(place);
        }
        self.taken = end;
    }
}
