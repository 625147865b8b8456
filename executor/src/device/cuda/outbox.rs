//! What a rank has for the others: rows and gradients on the device, all else on the host.
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
        let own = &mut self.rows[section];
        if own.bytes < bytes {
            if own.bytes > 0 {
                driver.release(stream, *own)?;
            }
            *own = Memory::default();
            *own = driver.allocate(stream, bytes + bytes / 16 + 256)?;
        }
        Ok(())
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
        let (memory, own) = (self.rows.get(section)?, self.host.sections.get(section)?);
        let before = if own.everyone { 0 } else { own.counts.get(..to)?.iter().sum::<u64>() };
        let (width, rows) = (4 * own.widths.reals as u64, *own.counts.get(to)?);
        let area = Area { address: memory.address + before * width, width, rows, pitch: width };
        ((before + rows) * width <= memory.bytes).then_some(area)
    }
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
