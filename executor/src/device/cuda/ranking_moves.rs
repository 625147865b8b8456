//! What ranks give each other while they rank items: in outboxes on the device, and where those leave the process down to the
//! host and up again.

use fs_kernels::cuda::catalogue::elementwise;
use fs_kernels::cuda::driver::{Area, Driver, Memory, Touch};
use fs_kernels::cuda::{In, Out};
use fs_schedule::ranking::{DIGITS, Round};

use super::outbox::{CudaOutbox, grow};
use super::plain::{bytes_of, values_of};
use super::ranking::{Asking, floats};
use super::through_host::{AGAIN, sent};
use super::transfer::check;
use super::{Cursor, Fault};
use crate::device::cpu::{digits_of, receive};
use crate::device::{Inbox, Progress};
use crate::transport::{TransportError, Widths};

impl<D: Driver> Asking<'_, D> {
    /// Something comes down, if it is anything.
    pub(super) fn begin_down(&mut self, area: Area) -> Result<Progress<Cursor>, Fault> {
        let driver = &*self.cuda.driver;
        let staging = self.cuda.staging.take(driver, area.bytes())?;
        if !area.is_empty() {
            driver.download(self.stream, area, (staging.pinned, 0))?;
        }
        driver.record(self.stream, staging.free)?;
        self.ranking.down = Some(staging);
        Ok(Progress::Running(Cursor::Down, AGAIN))
    }

    /// Whether it has come down; then it is in the host's part of the outbox.
    pub(super) fn come(&mut self, round: u64, outbox: &mut CudaOutbox) -> Result<Progress<Cursor>, Fault> {
        let driver = &*self.cuda.driver;
        let Some(staging) = self.ranking.down.take() else { return Err(Fault::NotTransfer) };
        if !driver.has_come(staging.free)? {
            self.ranking.down = Some(staging);
            return Ok(Progress::Running(Cursor::Down, AGAIN));
        }
        let n = self.questions().len();
        let section = &mut outbox.host.sections[0];
        if self.rounds.round(round) == Some(Round::Digits) {
            let mut bytes = vec![0; 16 * n];
            driver.read(staging.pinned, 0, &mut bytes)?;
            let counts: Vec<u64> = values_of(&bytes);
            let (better, known) = counts.split_at(n);
            let digits = better.iter().zip(known).flat_map(|(better, known)| digits_of(*better, *known));
            section.reals.clear();
            section.reals.extend(digits.map(|digit| digit as f32));
            section.everyone = true;
            section.widths = Widths { reals: 1, ..Widths::default() };
            section.counts.clear();
            section.counts.resize(self.job.env.ranks, (DIGITS * n) as u64);
        } else {
            let n = if section.everyone { section.counts[0] } else { section.counts.iter().sum() };
            let mut bytes = vec![0; 4 * n as usize];
            driver.read(staging.pinned, 0, &mut bytes)?;
            section.reals = values_of(&bytes);
        }
        self.cuda.staging.give(driver, self.stream, staging)?;
        Ok(Progress::Done)
    }

    /// Room for so many floats that all ranks get.
    pub(super) fn to_everyone(&self, outbox: &mut CudaOutbox, n: usize) -> Result<Area, Fault> {
        outbox.room(&*self.cuda.driver, self.stream, 0, 4 * n.max(1) as u64)?;
        let section = &mut outbox.host.sections[0];
        section.everyone = true;
        section.widths = Widths { reals: 1, ..Widths::default() };
        section.counts.clear();
        section.counts.resize(self.job.env.ranks, n as u64);
        Ok(floats(outbox.rows[0], 0, n))
    }

    /// Each rank gets the numbers of its block of rows, of so many lists with one number per row of the table.
    pub(super) fn to_blocks(&self, outbox: &mut CudaOutbox, from: Memory, lists: usize) -> Result<(), Fault> {
        let all = self.all_rows();
        outbox.room(&*self.cuda.driver, self.stream, 0, 4 * (lists * all).max(1) as u64)?;
        let section = &mut outbox.host.sections[0];
        section.widths = Widths { reals: 1, ..Widths::default() };
        section.counts.clear();
        let (mut copies, mut at) = (Vec::new(), outbox.rows[0].address);
        for to in 0..self.job.env.ranks {
            let block = self.block(to);
            let (width, rows) = (4 * block.len() as u64, lists as u64);
            let address = from.address + 4 * block.start as u64;
            let own = Area { address, width, rows, pitch: 4 * all as u64 };
            let packed = Area { address: at, width, rows, pitch: width };
            at += packed.bytes();
            section.counts.push((lists * block.len()) as u64);
            if !own.is_empty() {
                copies.push((own, packed));
            }
        }
        if copies.is_empty() { Ok(()) } else { Ok(self.cuda.driver.copy(self.stream, &copies)?) }
    }

    /// Where on the device each rank's part of a round is, in rank order. Those of others must be said to have been read.
    fn parts(&mut self, inbox: Inbox<'_, CudaOutbox>) -> Result<Vec<Area>, Fault> {
        let (ranks, me) = (self.job.env.ranks, self.job.env.rank);
        if !self.leaves() {
            self.cuda.wait_for_all(ranks, inbox, self.stream)?;
            let part = |from: usize| {
                let mut found = None;
                inbox(from, &mut |message| found = message.outbox().part(0, me));
                let nothing = || TransportError::Sizes(format!("rank {from} sent no section 0"));
                Ok(found.ok_or_else(nothing)?.joined())
            };
            return (0..ranks).map(part).collect();
        }
        self.ranking.arrived.resize(ranks, Memory::default());
        let mut parts = Vec::with_capacity(ranks);
        for from in 0..ranks {
            let mut bytes = Vec::new();
            receive(&sent(inbox), from, 0, |part| {
                bytes = bytes_of(part.reals);
                Ok::<_, Fault>(())
            })?;
            let own = &mut self.ranking.arrived[from];
            grow(&*self.cuda.driver, self.stream, own, bytes.len().max(4) as u64)?;
            let area = own.first(bytes.len() as u64);
            self.cuda.send(self.stream, &bytes, area)?;
            parts.push(area);
        }
        Ok(parts)
    }

    /// The stream has read what the others have sent.
    fn parts_read(&self, inbox: Inbox<'_, CudaOutbox>) -> Result<(), Fault> {
        if self.leaves() { Ok(()) } else { self.cuda.all_read(self.job, inbox, self.stream) }
    }

    /// What each rank sent, one rank's after the other's: so many floats.
    pub(super) fn gather(&mut self, inbox: Inbox<'_, CudaOutbox>, to: Memory, n: usize) -> Result<(), Fault> {
        let parts = self.parts(inbox)?;
        let (mut copies, mut at) = (Vec::new(), 0);
        for part in parts {
            let own = Area { address: to.address + at, ..part };
            at += part.bytes();
            if !part.is_empty() {
                copies.push((part, own));
            }
        }
        check("bytes of queries", at as usize, 4 * n)?;
        if !copies.is_empty() {
            self.cuda.driver.copy(self.stream, &copies)?;
        }
        self.parts_read(inbox)
    }

    /// Sums over ranks of so many floats, added in rank order.
    pub(super) fn add_up(&mut self, inbox: Inbox<'_, CudaOutbox>, to: Memory, n: usize) -> Result<(), Fault> {
        let parts = self.parts(inbox)?;
        parts.iter().try_for_each(|part| check("bytes to sum", part.bytes() as usize, 4 * n))?;
        if n > 0 {
            let addresses: Vec<u64> = parts.iter().map(|part| part.address).collect();
            self.with_scratch(|own, scratch| {
                let list = In::at(own.up(scratch, &addresses)?);
                let (count, out) = (addresses.len() as u32, Out::at(to.address));
                let call = elementwise::sum_in_rank_order(list, count, out, n as u64);
                let mut touches = vec![Touch::Out(floats(to, 0, n))];
                touches.extend(parts.iter().map(|part| Touch::In(*part)));
                own.run(&call, &touches)
            })?;
        }
        self.parts_read(inbox)
    }
}
