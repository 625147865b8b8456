//! What a batch of evaluation asks, on the device: held-out items, what users know, and which of both lie in the rank's block.

use std::ops::Range;

use fs_kernels::cuda::In;
use fs_kernels::cuda::driver::{Driver, Memory, Stream};
use fs_schedule::RowMap;

use super::outbox::grow;
use super::plain::{Plain, bytes_of};
use super::{Cuda, Fault};
use crate::data::{Histories, Question};

/// Of an item that is not in the block.
const NO_ROW: u32 = u32::MAX;

/// Lists of a batch's questions, one behind the other in one piece of memory.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) memory: Memory,
    /// How many questions.
    questions: u64,
    /// How many items users know, together.
    known: u64,
}

impl Asked {
    /// Ids of held-out items, from a question on.
    pub(super) fn targets(&self, first: usize) -> In<i64> {
        In::at(self.memory.address + 8 * first as u64)
    }

    /// Ids of items that users know.
    pub(super) fn seen(&self) -> In<i64> {
        In::at(self.memory.address + 8 * self.questions)
    }

    fn words(&self, first: u64) -> In<u32> {
        In::at(self.memory.address + 8 * (self.questions + self.known) + 4 * first)
    }

    /// Where the items begin that the user of a question knows; the next number is where they end.
    pub(super) fn offsets(&self, first: usize) -> In<u32> {
        self.words(first as u64)
    }

    /// Rows of the block that held-out items are, from a question on.
    pub(super) fn rows_of_targets(&self, first: usize) -> In<u32> {
        self.words(self.questions + 1 + first as u64)
    }

    /// Rows of the block that known items are.
    pub(super) fn rows_of_seen(&self) -> In<u32> {
        self.words(2 * self.questions + 1)
    }

    /// Sends the lists of a batch up, for work of the stream; `own` are the slots of the block, of a table with so many rows.
    pub(super) fn put<D: Driver>(
        &mut self,
        cuda: &Cuda<D>,
        stream: Stream,
        (questions, histories): (&[Question], &Histories),
        (map, rows, own): (&RowMap, u64, &Range<usize>),
    ) -> Result<(), Fault> {
        let local = |item: i64| {
            let row = u64::try_from(item).ok().filter(|row| *row < rows)?;
            let row = usize::try_from(map.slot(row)).ok()?.checked_sub(own.start)?;
            u32::try_from(row).ok().filter(|_| row < own.len())
        };
        let place = |item: i64| local(item).unwrap_or(NO_ROW);
        let (mut seen, mut offsets, mut own) = (Vec::new(), vec![0], Vec::new());
        for question in questions {
            histories.seen(question.user, &mut own);
            seen.extend(own.iter().map(|item| i64::from(*item)));
            offsets.push(seen.len() as u32);
        }
        let targets: Vec<i64> = questions.iter().map(|question| question.target).collect();
        let rows_of = |items: &[i64]| items.iter().map(|item| place(*item)).collect::<Vec<u32>>();
        let (of_targets, of_seen) = (rows_of(&targets), rows_of(&seen));
        (self.questions, self.known) = (targets.len() as u64, seen.len() as u64);
        let mut bytes = Vec::new();
        put(&targets, &mut bytes);
        put(&seen, &mut bytes);
        put(&offsets, &mut bytes);
        put(&of_targets, &mut bytes);
        put(&of_seen, &mut bytes);
        grow(&*cuda.driver, stream, &mut self.memory, bytes.len() as u64)?;
        cuda.send(stream, &bytes, self.memory.first(bytes.len() as u64))
    }
}

fn put<E: Plain>(values: &[E], bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(&bytes_of(values));
}
