//! Sums of dense gradients over ranks on one device.
//!
//! Who adds up what is the CPU's rule ([`Sums`]): in the first round a rank copies its gradients to its outbox, later it sums what others
//! have for it, in their order, into the outbox of that round, or copies it there. All that is
//! cut into pieces of the schedule's chunk. Bits are the CPU's, which shares and sums alike. Where gradients travel as bf16, outboxes
//! hold brain floats, and kernels round and widen in the place of copies.

use std::ops::Range;
use std::time::Duration;

use fs_kernels::cuda::catalogue::elementwise;
use fs_kernels::cuda::driver::{Area, Driver, Stream, Touch};
use fs_kernels::cuda::sources::Precision;
use fs_kernels::cuda::{Call, In, Out};
use fs_schedule::{Element, Place};

use super::ids_transfer::Piece;
use super::kernels::Scratch;
use super::outbox::CudaOutbox;
use super::plain::bytes_of;
use super::transfer::check;
use super::{Cuda, Cursor, Fault, Job};
use crate::device::sums::{Content, Sums};
use crate::device::{Inbox, Progress, Urgent};
use crate::transport::{Coding, TransportError, Widths};

/// Some elements of a list.
fn some(of: Precision, address: u64, first: u64, n: u64) -> Area {
    let size = of.bytes() as u64;
    Area { address: address + size * first, width: size * n, rows: 1, pitch: size * n }
}

/// Some elements of a list of floats.
fn floats(address: u64, first: u64, n: u64) -> Area {
    some(Precision::F32, address, first, n)
}

/// What gradients are on their way.
fn travelling(job: &Job<'_>) -> Precision {
    if job.env.schedule.settings.wire.dense == Element::Bf16 { Precision::Bf16 } else { Precision::F32 }
}

/// Elements of each piece.
fn each(job: &Job<'_>) -> u64 {
    job.op.chunk.map_or(u64::MAX, |bytes| (bytes / travelling(job).bytes() as u64).max(1))
}

/// Brings n gradients into an outbox, or sums out of one.
fn bring(job: &Job<'_>, (from, to): (Area, Area), n: u64, out: bool) -> Piece {
    let launch = |call: Call| {
        let touches = vec![Touch::In(from), Touch::Out(to)];
        Piece::Launch(Box::new(call.of(Precision::Bf16)), touches)
    };
    match (travelling(job), out) {
        (Precision::F32, _) => Piece::Copy(from, to),
        (Precision::Bf16, false) => {
            launch(elementwise::real_from_float(In::at(from.address), n, Out::at(to.address), n, 0, 1, n))
        }
        (Precision::Bf16, true) => {
            launch(elementwise::float_from_real(In::at(from.address), n, Out::at(to.address), n, 0, 1, n))
        }
    }
}

/// So many elements in pieces: the first of each, and how many.
fn cut(n: u64, each: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..n.div_ceil(each)).map(move |i| (i * each, each.min(n - i * each)))
}

/// A rank's part of an outbox, which has so many elements.
fn sent(inbox: Inbox<'_, CudaOutbox>, (from, to): (usize, usize), n: u64) -> Result<u64, Fault> {
    let mut found = None;
    inbox(from, &mut |message| found = message.outbox().part(0, to));
    let part =
        found.ok_or_else(|| TransportError::Sizes(format!("rank {from} sent no values of an all-reduce")))?;
    check("values of an all-reduce", part.rows as usize, n as usize)?;
    Ok(part.address)
}

impl<D: Driver> Cuda<D> {
    /// The gradients, one after the other: address and elements of each.
    fn gradients(&self, job: &Job<'_>) -> Result<Vec<(u64, u64)>, Fault> {
        let one = |operand: &fs_schedule::Operand| match operand.place {
            Place::Gradient(n) => self.trained.dense.get(n as usize),
            _ => None,
        };
        let all = job.op.reads.iter().map(|operand| {
            let dense = one(operand).ok_or_else(|| Fault::Unwritten(operand.to_string()))?;
            Ok((dense.gradient.address, dense.elements))
        });
        all.collect()
    }

    /// Fills an outbox with gradients, or in later rounds with sums.
    pub(super) fn fill_sums(
        &self,
        job: &Job<'_>,
        (round, from): (u64, Option<Cursor>),
        outbox: &mut CudaOutbox,
        inbox: Inbox<'_, CudaOutbox>,
        urgent: Urgent<'_>,
    ) -> Result<Progress<Cursor>, Fault> {
        let stream = self.order.stream(job);
        let gradients = self.gradients(job)?;
        let total: u64 = gradients.iter().map(|(_, n)| n).sum();
        let sums = Sums::new(job.env, total as usize);
        let counts = (0..job.env.ranks).map(|to| sums.count(round, to) as u64);
        let n = if sums.everyone(round) { counts.clone().max().unwrap_or(0) } else { counts.clone().sum() };
        if from.is_none() {
            if round == 0 {
                self.order.begin(&*self.driver, job)?;
            }
            outbox.again(&*self.driver, stream)?;
            outbox.room(&*self.driver, stream, 0, travelling(job).bytes() as u64 * n)?;
        }
        let room = outbox.rows[0].address;
        let section = &mut outbox.host.sections[0];
        section.widths = Widths { reals: 1, ..Widths::default() };
        section.coding = Coding::of(job.env.schedule.settings.wire.dense);
        section.everyone = sums.everyone(round);
        section.counts.clear();
        section.counts.extend(counts);
        let done = match sums.content(round) {
            Content::Own => {
                let (mut pieces, mut at) = (Vec::new(), 0);
                for own in sums.own().map(|own| own.start as u64..own.end as u64) {
                    let mut begin = 0;
                    for (address, n) in &gradients {
                        let (first, last) = (own.start.max(begin), own.end.min(begin + n));
                        for (i, n) in cut(last.saturating_sub(first), each(job)) {
                            let to = some(travelling(job), room, at + i, n);
                            pieces.push(bring(job, (floats(*address, first - begin + i, n), to), n, false));
                        }
                        at += last.saturating_sub(first);
                        begin += n;
                    }
                }
                self.send_pieces(stream, &pieces, from, urgent)?
            }
            Content::Sum => {
                let (ranks, n): (Vec<usize>, _) = (sums.added(round).collect(), sums.sums(round) as u64);
                self.add_up_parts(job, (&ranks, n, room), from, inbox, urgent)?
            }
            Content::Joined => self.join_parts(job, (&sums, room), from, inbox, urgent)?,
        };
        if let Progress::Done = done {
            outbox.filled(&*self.driver, stream)?;
        }
        Ok(done)
    }

    /// Work of a stream comes after all have filled their outboxes.
    pub(super) fn wait_for_all(
        &self,
        ranks: usize,
        inbox: Inbox<'_, CudaOutbox>,
        stream: Stream,
    ) -> Result<(), Fault> {
        let mut outcome = Ok(());
        for from in 0..ranks {
            inbox(from, &mut |message| outcome = message.outbox().wait(&*self.driver, stream));
            std::mem::replace(&mut outcome, Ok(()))?;
        }
        Ok(())
    }

    /// The stream has read everybody's outbox.
    pub(super) fn all_read(
        &self,
        job: &Job<'_>,
        inbox: Inbox<'_, CudaOutbox>,
        stream: Stream,
    ) -> Result<(), Fault> {
        let mut outcome = Ok(());
        for from in 0..job.env.ranks {
            inbox(from, &mut |message| {
                outcome = message.outbox().read_by(&*self.driver, job.env.rank, stream);
            });
            std::mem::replace(&mut outcome, Ok(()))?;
        }
        Ok(())
    }

    /// Copies what ranks sent, one rank's after the other's, into this rank's outbox, until something is urgent.
    fn join_parts(
        &self,
        job: &Job<'_>,
        (sums, room): (&Sums, u64),
        from: Option<Cursor>,
        inbox: Inbox<'_, CudaOutbox>,
        urgent: Urgent<'_>,
    ) -> Result<Progress<Cursor>, Fault> {
        let (me, stream, of) = (job.env.rank, self.order.stream(job), travelling(job));
        if from.is_none() {
            self.wait_for_all(job.env.ranks, inbox, stream)?;
        }
        let (mut pieces, mut at) = (Vec::new(), 0);
        for (from, n) in sums.joined().map(|(from, n)| (from, n as u64)) {
            let part = sent(inbox, (from, me), n)?;
            let copied = |(i, n)| Piece::Copy(some(of, part, i, n), some(of, room, at + i, n));
            pieces.extend(cut(n, each(job)).map(copied));
            at += n;
        }
        let done = self.send_pieces(stream, &pieces, from, urgent)?;
        if let Progress::Done = done {
            self.all_read(job, inbox, stream)?;
        }
        Ok(done)
    }

    /// Adds up what ranks sent into this rank's outbox, until something is urgent.
    fn add_up_parts(
        &self,
        job: &Job<'_>,
        (ranks, n, room): (&[usize], u64, u64),
        from: Option<Cursor>,
        inbox: Inbox<'_, CudaOutbox>,
        urgent: Urgent<'_>,
    ) -> Result<Progress<Cursor>, Fault> {
        let (me, stream) = (job.env.rank, self.order.stream(job));
        let begin = match from {
            Some(Cursor::Piece(n)) => n,
            _ => 0,
        };
        if from.is_none() {
            self.wait_for_all(job.env.ranks, inbox, stream)?;
        }
        let parts = ranks.iter().map(|from| sent(inbox, (*from, me), n)).collect::<Result<Vec<_>, _>>()?;
        let ranks = ranks.len();
        let pieces: Vec<(u64, u64)> = cut(n, each(job)).skip(begin).collect();
        let of = travelling(job);
        let size = of.bytes() as u64;
        // Where the parts of each piece begin.
        let addresses: Vec<u64> =
            pieces.iter().flat_map(|(first, _)| parts.iter().map(move |part| part + size * first)).collect();
        let bytes = bytes_of(&addresses);
        let mut scratch = Scratch::new(self, stream);
        let mut enqueue = |scratch: &mut Scratch<'_, D>| {
            let list = scratch.words(bytes.len() as u64 / 4)?;
            self.send(stream, &bytes, list.first(bytes.len() as u64))?;
            for (i, (first, n)) in pieces.iter().copied().enumerate() {
                if i > 0 && urgent() {
                    return Ok(Progress::Running(Cursor::Piece(begin + i), Duration::ZERO));
                }
                let addresses = In::at(list.address + 8 * (i * ranks) as u64);
                let to = some(of, room, first, n);
                let call = elementwise::sum_in_rank_order(addresses, ranks as u32, Out::at(to.address), n);
                let mut touches = vec![Touch::Out(to)];
                touches.extend(parts.iter().map(|part| Touch::In(some(of, *part, first, n))));
                self.run(stream, &call.of(of), &touches)?;
            }
            Ok::<_, Fault>(Progress::Done)
        };
        let done = enqueue(&mut scratch);
        scratch.end()?;
        let done = done?;
        if let Progress::Done = done {
            self.all_read(job, inbox, stream)?;
        }
        Ok(done)
    }

    /// Takes in the sums of all shares.
    pub(super) fn drain_sums(
        &self,
        job: &Job<'_>,
        from: Option<Cursor>,
        inbox: Inbox<'_, CudaOutbox>,
        urgent: Urgent<'_>,
    ) -> Result<Progress<Cursor>, Fault> {
        let (me, stream) = (job.env.rank, self.order.stream(job));
        if from.is_none() {
            self.wait_for_all(job.env.ranks, inbox, stream)?;
        }
        let gradients = self.gradients(job)?;
        let total: u64 = gradients.iter().map(|(_, n)| n).sum();
        // Where each range of sums lies.
        let of_all = Sums::new(job.env, total as usize);
        let mut sums: Vec<(Range<u64>, u64)> = Vec::new();
        for (of, all) in of_all.comes() {
            let mut part = sent(inbox, (of, me), all as u64)?;
            for range in of_all.shares(of) {
                sums.push((range.start as u64..range.end as u64, part));
                part += travelling(job).bytes() as u64 * range.len() as u64;
            }
        }
        let mut pieces = Vec::new();
        let mut begin = 0;
        for (address, n) in gradients {
            let end = begin + n;
            for (sums, part) in &sums {
                let (first, last) = (sums.start.max(begin), sums.end.min(end));
                for (i, n) in cut(last.saturating_sub(first), each(job)) {
                    let source = some(travelling(job), *part, first - sums.start + i, n);
                    pieces.push(bring(job, (source, floats(address, first - begin + i, n)), n, true));
                }
            }
            begin = end;
        }
        let done = self.send_pieces(stream, &pieces, from, urgent)?;
        if let Progress::Done = done {
            self.all_read(job, inbox, stream)?;
            self.order.end(&*self.driver, job)?;
        }
        Ok(done)
    }
}
