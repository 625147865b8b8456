//! Operations that the host does for the device: their operands come to the host, the CPU's handler runs, its results go
//! back.
//!
//! Nobody waits: the copies down are enqueued when the operation starts, and it is asked after like any other that is
//! under way. Planning (lengths, assignment) is meant to be done so, and needs no copies because what it works on stays on
//! the host.

use std::time::Duration;

use fs_kernels::cuda::driver::{Driver, Stream};
use fs_schedule::Operand;

use super::lane::Staging;
use super::operands::Located;
use super::{Cuda, Fault, Job, Lane};
use crate::device::{Device, Progress};

/// How long to wait before asking again.
pub(super) const AGAIN: Duration = Duration::from_micros(20);

/// Operands on their way to the host.
#[derive(Debug)]
pub(super) struct Down {
    staging: Staging,
    parts: Vec<(Operand, Located, u64)>,
}

impl<D: Driver> Cuda<D> {
    /// Starts the copies of an operation's operands to the host; none if it has none on the device.
    pub(super) fn down(&self, job: &Job<'_>, stream: Stream) -> Result<Option<Down>, Fault> {
        let mut parts: Vec<(Operand, Located, u64)> = Vec::new();
        let mut end = 0;
        let added = job.op.writes.iter().filter(|o| o.accumulate);
        for operand in job.op.reads.iter().chain(added) {
            let Some(at) = self.locate(job, *operand, stream, false)? else { continue };
            parts.push((*operand, at, end));
            end += at.area.bytes().next_multiple_of(8);
        }
        if parts.is_empty() {
            return Ok(None);
        }
        let staging = self.staging.take(&*self.driver, end)?;
        for (_, at, offset) in parts.iter().filter(|(_, at, _)| !at.area.is_empty()) {
            self.driver.download(stream, at.area, (staging.pinned, *offset))?;
        }
        self.driver.record(stream, staging.free)?;
        Ok(Some(Down { staging, parts }))
    }

    /// Whether they are there.
    pub(super) fn is_down(&self, down: &Down) -> Result<bool, Fault> {
        Ok(self.driver.has_come(down.staging.free)?)
    }

    /// Takes them in. The host's memory is the caller's.
    pub(super) fn take_in(&self, job: &Job<'_>, stream: Stream, down: &Down) -> Result<(), Fault> {
        for (operand, at, offset) in &down.parts {
            let mut bytes = vec![0; at.area.bytes() as usize];
            self.driver.read(down.staging.pinned, *offset, &mut bytes)?;
            self.host_put(job, *operand, at, &bytes)?;
        }
        Ok(self.staging.give(&*self.driver, stream, down.staging)?)
    }

    /// Sends results back.
    pub(super) fn up(&self, job: &Job<'_>, stream: Stream) -> Result<(), Fault> {
        for operand in &job.op.writes {
            let Some(at) = self.locate(job, *operand, stream, true)? else { continue };
            let mut bytes = Vec::with_capacity(at.area.bytes() as usize);
            self.host_take(job, *operand, &at, &mut bytes)?;
            self.send(stream, &bytes, at.area)?;
        }
        Ok(())
    }

    /// Copies bytes of the host to the device.
    pub(super) fn send(
        &self,
        stream: Stream,
        bytes: &[u8],
        to: fs_kernels::cuda::driver::Area,
    ) -> Result<(), Fault> {
        if bytes.is_empty() {
            return Ok(());
        }
        let staging = self.staging.take(&*self.driver, bytes.len() as u64)?;
        self.driver.write(staging.pinned, 0, bytes)?;
        self.driver.upload(stream, (staging.pinned, 0), to)?;
        Ok(self.staging.give(&*self.driver, stream, staging)?)
    }

    /// Starts an operation that the host does.
    pub(super) fn start_staged(
        &self,
        lane: &Lane,
        job: &Job<'_>,
        stream: Stream,
    ) -> Result<Progress<Down>, Fault> {
        match self.down(job, stream)? {
            Some(down) => Ok(Progress::Running(down, AGAIN)),
            None => self.end_staged(lane, job, stream, None),
        }
    }

    /// Asks after one.
    pub(super) fn poll_staged(
        &self,
        lane: &Lane,
        job: &Job<'_>,
        down: Down,
    ) -> Result<Progress<Down>, Fault> {
        if !self.is_down(&down)? {
            return Ok(Progress::Running(down, AGAIN));
        }
        self.end_staged(lane, job, self.order.stream(job), Some(down))
    }

    fn end_staged(
        &self,
        lane: &Lane,
        job: &Job<'_>,
        stream: Stream,
        down: Option<Down>,
    ) -> Result<Progress<Down>, Fault> {
        let _own = self.hosts.lock();
        if let Some(down) = down {
            self.take_in(job, stream, &down)?;
        }
        match self.host.start(&lane.work, job)? {
            Progress::Done => {}
            Progress::Running(never, _) => match never {},
        }
        self.up(job, stream)?;
        self.keep_up(lane, job, stream)?;
        self.order.end(&*self.driver, job)?;
        Ok(Progress::Done)
    }
}
