//! What a rank has for the others: rows, gradients and ids on the device, all else on the host.
//!
//! Ranks of one process share the device, so one copies from another's outbox where it lies. A reader's stream waits for the
//! event that says that the outbox is filled, and leaves one of its own when it has read; whoever fills it again waits
//! for those. So neither end of a transfer waits for the device on the host. Where outboxes leave the process
//! everything passes through the host.

use std::collections::BTreeMap;

use fs_kernels::cuda::driver::{Area, Driver, DriverError, Event, Memory, Stream};
use parking_lot::Mutex;

use crate::transport::frame::{BadFrame, Reader};
use crate::transport::{HostOutbox, Outbox};

/// An outbox of a rank on a GPU.
#[derive(Debug, Default)]
pub struct CudaOutbox {
    /// How many entries of what kinds there are for whom, and what passes through the host.
    pub(super) host: HostOutbox<f32>,
    /// Rows of each section.
    pub(super) rows: Vec<Memory>,
    /// Row numbers, and bytes, of each section.
    pub(super) lists: Vec<[Memory; 2]>,
    filled: Option<Event>,
    /// Of each reader.
    read: Mutex<BTreeMap<usize, Event>>,
}

impl CudaOutbox {
    /// Work of a stream comes after all who have read it.
    pub(super) fn again<D: Driver>(&self, driver: &D, stream: Stream) -> Result<(), DriverError> {
        self.read.lock().values().try_for_each(|event| driver.wait(stream, *event))
    }

    /// Room for so many bytes in a section.
    pub(super) fn room<D: Driver>(
        &mut self,
        driver: &D,
        stream: Stream,
        section: usize,
        bytes: u64,
    ) -> Result<(), DriverError> {
        self.rows.resize(self.rows.len().max(section + 1), Memory::default());
        grow(driver, stream, &mut self.rows[section], bytes)
    }

    /// Room for so many bytes of row numbers and of bytes in a section.
    pub(super) fn list_room<D: Driver>(
        &mut self,
        driver: &D,
        stream: Stream,
        section: usize,
        bytes: [u64; 2],
    ) -> Result<(), DriverError> {
        self.lists.resize(self.lists.len().max(section + 1), [Memory::default(); 2]);
        let mut own = self.lists[section].iter_mut().zip(bytes);
        own.try_for_each(|(own, bytes)| grow(driver, stream, own, bytes))
    }

    /// The stream has filled it.
    pub(super) fn filled<D: Driver>(&mut self, driver: &D, stream: Stream) -> Result<(), DriverError> {
        let event = match self.filled {
            Some(event) => event,
            None => *self.filled.insert(driver.event()?),
        };
        driver.record(stream, event)
    }

    /// Work of a reader's stream comes after it was filled.
    pub(super) fn wait<D: Driver>(&self, driver: &D, stream: Stream) -> Result<(), DriverError> {
        self.filled.map_or(Ok(()), |event| driver.wait(stream, event))
    }

    /// A reader's stream has read it.
    pub(super) fn read_by<D: Driver>(
        &self,
        driver: &D,
        rank: usize,
        stream: Stream,
    ) -> Result<(), DriverError> {
        let mut read = self.read.lock();
        let event = match read.get(&rank) {
            Some(event) => *event,
            None => *read.entry(rank).or_insert(driver.event()?),
        };
        driver.record(stream, event)
    }

    /// What it has for a rank in a section.
    pub(super) fn part(&self, section: usize, to: usize) -> Option<Area> {
        let own = self.host.sections.get(section)?;
        let width = own.coding.bytes::<f32>(own.widths.reals) as u64;
        self.part_of(section, to, *self.rows.get(section)?, width)
    }

    /// The row numbers and the bytes that it has for a rank in a section: a row of the area for each entry.
    pub(super) fn list_part(&self, section: usize, to: usize) -> Option<[Area; 2]> {
        let (lists, widths) = (self.lists.get(section)?, self.host.sections.get(section)?.widths);
        let numbers = self.part_of(section, to, lists[0], 4 * widths.indices as u64)?;
        Some([numbers, self.part_of(section, to, lists[1], widths.bytes as u64)?])
    }

    fn part_of(&self, section: usize, to: usize, memory: Memory, width: u64) -> Option<Area> {
        let own = self.host.sections.get(section)?;
        let before = if own.everyone { 0 } else { own.counts.get(..to)?.iter().sum::<u64>() };
        let rows = *own.counts.get(to)?;
        let area = Area { address: memory.address + before * width, width, rows, pitch: width };
        ((before + rows) * width <= memory.bytes).then_some(area)
    }
}

/// Makes memory of a stream long enough.
pub(super) fn grow<D: Driver>(
    driver: &D,
    stream: Stream,
    own: &mut Memory,
    bytes: u64,
) -> Result<(), DriverError> {
    if own.bytes < bytes {
        if own.bytes > 0 {
            driver.release(stream, *own)?;
        }
        *own = Memory::default();
        *own = driver.allocate(stream, bytes + bytes / 16 + 256)?;
    }
    Ok(())
}

impl Outbox for CudaOutbox {
    fn clear(&mut self, sections: usize) {
        self.host.clear(sections);
    }

    fn wire(&self, to: usize) -> u64 {
        self.host.wire(to)
    }

    fn sections(&self) -> usize {
        Outbox::sections(&self.host)
    }

    fn write(&self, to: usize, bytes: &mut Vec<u8>) {
        self.host.write(to, bytes);
    }

    fn read(&mut self, to: usize, sections: usize, reader: &mut Reader<'_>) -> Result<(), BadFrame> {
        self.host.read(to, sections, reader)
    }
}
