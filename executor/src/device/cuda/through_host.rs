//! What the host does for the device: it plans, and hands over what leaves the process.
//!
//! Planning (lengths, assignment) works on what stays on the host, so nothing is copied for it but what it makes current. Of a
//! transfer that leaves the process, operands come to the host, the CPU's handlers write and read the bytes, and results go
//! back. Nobody waits: copies down are enqueued when the transfer begins, and it is asked after like any other that is under
//! way.

use std::time::Duration;

use fs_kernels::cuda::driver::{Driver, Stream};
use fs_schedule::Operand;

use super::lane::Staging;
use super::operands::Located;
use super::outbox::CudaOutbox;
use super::{Cuda, Cursor, Fault, Job, Lane};
use crate::device::{Device, Inbox, Progress};
use crate::transport::{HostOutbox, Message};

/// How long to wait before asking again.
pub(super) const AGAIN: Duration = Duration::from_micros(20);

/// Operands on their way to the host.
#[derive(Debug)]
pub(super) struct Down {
    staging: Staging,
    parts: Vec<(Operand, Located, u64)>,
}

/// What looks at a message of the host's.
type Look<'a> = dyn FnMut(Message<'_, HostOutbox<f32>>) + 'a;

/// The host's parts of the others' outboxes.
pub(super) fn sent(inbox: Inbox<'_, CudaOutbox>) -> impl Fn(usize, &mut Look<'_>) {
    move |from, read| inbox(from, &mut |message| read(message.map(|outbox| &outbox.host)))
}

impl<D: Driver> Cuda<D> {
    /// Starts the copies of an operation's operands to the host; none if it has none on the device.
    fn down(&self, job: &Job<'_>, stream: Stream) -> Result<Option<Down>, Fault> {
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
    fn is_down(&self, down: &Down) -> Result<bool, Fault> {
        Ok(self.driver.has_come(down.staging.free)?)
    }

    /// Takes them in. The host's memory is the caller's.
    fn take_in(&self, job: &Job<'_>, stream: Stream, down: &Down) -> Result<(), Fault> {
        for (operand, at, offset) in &down.parts {
            let mut bytes = vec![0; at.area.bytes() as usize];
            self.driver.read(down.staging.pinned, *offset, &mut bytes)?;
            self.host_put(job, *operand, at, &bytes)?;
        }
        Ok(self.staging.give(&*self.driver, stream, down.staging)?)
    }

    /// Sends results back.
    fn up(&self, job: &Job<'_>, stream: Stream) -> Result<(), Fault> {
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

    /// Fills the host's part of an outbox.
    pub(super) fn fill_through_host(
        &self,
        lane: &Lane,
        job: &Job<'_>,
        (round, from): (u64, Option<Cursor>),
        outbox: &mut CudaOutbox,
        inbox: Inbox<'_, CudaOutbox>,
    ) -> Result<Progress<Cursor>, Fault> {
        let stream = self.order.stream(job);
        if from.is_none() && round == 0 {
            self.order.begin(&*self.driver, job)?;
            if let Some(down) = self.down(job, stream)? {
                lane.transfers.lock().insert(job.index, down);
                return Ok(Progress::Running(Cursor::Down, AGAIN));
            }
        }
        let down = lane.transfers.lock().remove(&job.index);
        let _own = self.hosts.lock();
        if let Some(down) = down {
            if !self.is_down(&down)? {
                lane.transfers.lock().insert(job.index, down);
                return Ok(Progress::Running(Cursor::Down, AGAIN));
            }
            self.take_in(job, stream, &down)?;
        }
        let all =
            self.host.fill(&lane.work, job, (round, None), &mut outbox.host, &sent(inbox), &mut || false);
        match all? {
            Progress::Done => Ok(Progress::Done),
            // It stops only where something is urgent.
            Progress::Running(..) => Ok(Progress::Running(Cursor::Down, Duration::ZERO)),
        }
    }

    /// Takes in what the others sent to the host, and sends it up.
    pub(super) fn drain_through_host(
        &self,
        lane: &Lane,
        job: &Job<'_>,
        inbox: Inbox<'_, CudaOutbox>,
    ) -> Result<Progress<Cursor>, Fault> {
        let stream = self.order.stream(job);
        let _own = self.hosts.lock();
        let all = self.host.drain(&lane.work, job, None, &sent(inbox), &mut || false);
        if let Progress::Running(..) = all? {
            return Ok(Progress::Running(Cursor::Down, Duration::ZERO));
        }
        self.up(job, stream)?;
        self.keep_up(lane, job, stream)?;
        self.order.end(&*self.driver, job)?;
        Ok(Progress::Done)
    }

    /// Does what the host plans, which works on nothing of the device's.
    pub(super) fn plan(&self, lane: &Lane, job: &Job<'_>, stream: Stream) -> Result<(), Fault> {
        let _own = self.hosts.lock();
        match self.host.start(&lane.work, job)? {
            Progress::Done => {}
            Progress::Running(never, _) => match never {},
        }
        self.keep_up(lane, job, stream)?;
        Ok(self.order.end(&*self.driver, job)?)
    }
}
