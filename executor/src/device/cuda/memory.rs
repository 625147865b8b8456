//! Device memory of a rank's buffers: a block for every slot and copy of the schedule's.

use fs_kernels::cuda::driver::{Area, Driver, DriverError, Event, Memory, Stream};
use fs_schedule::{Buffer, Element, Program, Schedule};
use parking_lot::Mutex;

use super::joined::Joining;
use crate::device::cpu::arena::ColumnRange;

/// A block that grows to the largest batch.
#[derive(Debug)]
pub(super) struct Block {
    memory: Memory,
    /// When it was there, and in which stream.
    born: Option<(Event, Stream)>,
}

/// Blocks of one type of elements.
#[derive(Debug)]
struct Pool {
    blocks: Vec<Mutex<Block>>,
    /// Where those of each slot start.
    starts: Vec<usize>,
}

/// All buffers of a rank.
#[derive(Debug)]
pub(super) struct Buffers([Pool; ELEMENTS.len()]);

const ELEMENTS: [Element; 7] = [
    Element::Real,
    Element::Bf16,
    Element::Mxint8,
    Element::Id,
    Element::Index,
    Element::Count,
    Element::Byte,
];

impl Pool {
    fn new<'p>(programs: impl Iterator<Item = &'p Program>, element: Element) -> Self {
        let mut copies: Vec<usize> = Vec::new();
        for buffer in programs.flat_map(|p| &p.buffers).filter(|b| b.element == element) {
            let slot = buffer.slot as usize;
            copies.resize(copies.len().max(slot + 1), 1);
            copies[slot] = copies[slot].max(buffer.copies as usize);
        }
        let starts = copies.iter().scan(0, |n, copies| Some(std::mem::replace(n, *n + copies))).collect();
        let block = || Mutex::new(Block { memory: Memory::default(), born: None });
        Self { blocks: (0..copies.iter().sum()).map(|_| block()).collect(), starts }
    }
}

impl Buffers {
    /// Nothing yet, for several programs that never run at the same time.
    pub(super) fn new(schedule: &Schedule) -> Self {
        let programs = || std::iter::once(&schedule.train).chain(&schedule.evaluation);
        Self(ELEMENTS.map(|element| Pool::new(programs(), element)))
    }

    fn block(&self, buffer: &Buffer, batch: u64) -> Option<&Mutex<Block>> {
        let pool = &self.0[ELEMENTS.iter().position(|e| *e == buffer.element)?];
        let start = *pool.starts.get(buffer.slot as usize)?;
        pool.blocks.get(start + (batch % u64::from(buffer.copies.max(1))) as usize)
    }

    /// The memory of a buffer's copy for a batch, for work of a stream that needs so many bytes; it grows if that is to
    /// write them.
    pub(super) fn get<D: Driver>(
        &self,
        driver: &Joining<D>,
        (buffer, batch): (&Buffer, u64),
        bytes: u64,
        stream: Stream,
        written: bool,
    ) -> Result<Option<Memory>, DriverError> {
        let Some(block) = self.block(buffer, batch) else { return Ok(None) };
        let mut block = block.lock();
        if block.memory.bytes < bytes {
            if !written {
                return Ok(None);
            }
            // The stream comes after all uses of what was there before.
            if block.memory.bytes > 0 {
                driver.release(stream, block.memory)?;
            }
            block.memory = Memory::default();
            block.memory = driver.allocate(stream, bytes + bytes / 16 + 256)?;
            let event = match block.born {
                Some((event, _)) => event,
                None => driver.event()?,
            };
            // The memory is there now, whatever waits to be done with it.
            driver.record_now(stream, event)?;
            block.born = Some((event, stream));
        } else if let Some((event, first)) = block.born
            && first != stream
        {
            // Others may use other columns, and nothing else orders them after whoever got the memory.
            driver.wait(stream, event)?;
        }
        Ok(Some(block.memory))
    }

    /// All blocks, which are empty from then on.
    pub(super) fn take(&self) -> Vec<Memory> {
        let blocks = self.0.iter().flat_map(|pool| &pool.blocks);
        blocks.map(|block| std::mem::take(&mut block.lock().memory)).filter(|m| m.bytes > 0).collect()
    }

    /// Bytes held.
    pub(super) fn held(&self) -> u64 {
        self.0.iter().flat_map(|pool| &pool.blocks).map(|block| block.lock().memory.bytes).sum()
    }
}

/// Columns of a matrix; all of what only travels.
pub(super) fn columns(memory: Memory, shape: ColumnRange, element: Element) -> Area {
    let bytes = |columns: usize| element.row_bytes(columns as u32);
    Area {
        address: memory.address + bytes(shape.start),
        width: bytes(shape.columns()),
        rows: shape.rows as u64,
        pitch: bytes(shape.stride),
    }
}
