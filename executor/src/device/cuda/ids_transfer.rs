//! Ids, requests on behalf of others and classes from rank to rank, on the device.
//!
//! As rows travel ([`transfer`](super::transfer)): a filler's stream puts what each rank gets into the outbox, in pieces of the
//! transfer's chunk, and readers' streams copy from there. Entries become row numbers of their owner's shard on the way into the outbox.
//! The numbers of entries are the host's, which reads them in the outboxes, so nothing waits for the device; only how many
//! requests are left when those of several ranks for one user are joined must come down.

use std::ops::Range;

use fs_kernels::cuda::catalogue::{classes, ids};
use fs_kernels::cuda::driver::{Area, Driver, Memory, Stream, Touch};
use fs_kernels::cuda::{Call as Launched, In, Out};
use fs_schedule::action::{Payload, Peers};
use fs_schedule::{Action, Sharding, Symbol};

use super::ids::Ids;
use super::numbers::{Numbers, Pending, Then};
use super::operands::Located;
use super::outbox::CudaOutbox;
use super::plain::values_of;
use super::through_host::AGAIN;
use super::transfer::{check, cut, owned, spans, until_urgent};
use super::{Cuda, Cursor, Fault, Job, Lane};
use crate::device::shards::rows_per_rank;
use crate::device::{Inbox, Progress, Urgent};
use crate::transport::{TransportError, Widths};

/// What travels.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Entries to their owners, or to everyone.
    Entries { everyone: bool },
    /// Entries on behalf of users.
    Asked,
    /// Classes to those who asked.
    Classes,
}

fn kind(action: &Action) -> Option<Kind> {
    let transfer = action.facts().transfer?;
    Some(match transfer.payload {
        Payload::Ids => Kind::Entries { everyone: transfer.peers == Peers::Everyone },
        Payload::Asked => Kind::Asked,
        Payload::Classes => Kind::Classes,
        _ => return None,
    })
}

/// Whether an action moves ids, or what is told of them.
pub(super) fn moves_lists(action: &Action) -> bool {
    kind(action).is_some()
}

/// A piece of work between two of which something more urgent may go first.
pub(super) enum Piece {
    /// Areas of one shape.
    Copy(Area, Area),
    Launch(Box<Launched>, Vec<Touch>),
}

/// Where the operands and results of one exchange stand.
#[derive(Clone, Copy)]
struct Places {
    entries: usize,
    counts: usize,
    users: usize,
    uses: Option<usize>,
    result: usize,
    result_uses: usize,
}

/// Of an exchange: what is there, and how the entries become row numbers.
struct Sends {
    /// Row numbers, or classes.
    widths: Widths,
    entries: Located,
    users: Option<Located>,
    /// Uses, or classes.
    bytes: Option<Located>,
    /// Rows of an owner, or 0 where the table's are asked for as they are.
    rows: u64,
}

impl<D: Driver> Ids<'_, D> {
    fn places(&self, kind: Kind, n: usize, exchanges: usize) -> Places {
        let (reads, writes) = (self.job.op.reads.len() / exchanges, self.job.op.writes.len() / exchanges);
        let base = if kind == Kind::Asked { 3 } else { 2 };
        let uses = kind != Kind::Classes && reads > base;
        Places {
            entries: reads * n,
            counts: reads * n + 1,
            users: reads * n + 2,
            uses: uses.then_some(reads * n + base),
            result: writes * n,
            result_uses: writes * (n + 1) - 1,
        }
    }

    fn counts(&self, position: usize) -> Result<Vec<u64>, Fault> {
        Ok(self.call.read_counts(position)?.slice()?.to_vec())
    }

    fn sends(&self, kind: Kind, exchange: u32, at: Places) -> Result<Sends, Fault> {
        let (plan, table) = self.job.exchange(exchange)?;
        let entries = self.read(at.entries)?;
        let bytes = match kind {
            Kind::Classes => Some(entries),
            _ => at.uses.map(|at| self.read(at)).transpose()?,
        };
        let users = (kind == Kind::Asked).then(|| self.read(at.users)).transpose()?;
        // A relay is asked for rows of the whole table, and hot rows have no owners.
        let whole = plan.leg.between().is_some()
            || table.replicates(plan.part)
            || table.sharding.owner(plan.part).is_some();
        let owners = table.sharding == Sharding::RowWise && !whole;
        let widths = Widths {
            indices: match kind {
                Kind::Entries { .. } => 1,
                Kind::Asked => 2,
                Kind::Classes => 0,
            },
            bytes: bytes.map_or(0, |at| at.shape.columns()),
            ..Widths::default()
        };
        let rows = if owners { rows_per_rank(table.rows, self.job.env.ranks) } else { 0 };
        Ok(Sends { widths, entries, users, bytes, rows })
    }

    /// A launch that makes row numbers, or pairs with users, of some entries.
    fn numbered(&self, of: &Sends, range: Range<usize>, to: Area) -> Piece {
        let (n, ranks) = (range.len() as u32, self.job.env.ranks as u32);
        let area = of.entries.area.rows(range.start as u64, range.len() as u64).joined();
        let (from, at) = (In::at(area.address), Out::at(to.address));
        let mut touches = vec![Touch::In(area), Touch::Out(to.joined())];
        let call = match of.users {
            Some(users) => {
                let own = users.area.rows(range.start as u64, range.len() as u64).joined();
                touches.push(Touch::In(own));
                classes::pack_asked(n, from, In::at(own.address), of.rows, ranks, at)
            }
            None => ids::rows_of_entries(n, from, of.rows, ranks, at),
        };
        Piece::Launch(Box::new(call), touches)
    }

    /// Pieces that bring some entries to areas of row numbers and of bytes.
    fn bring(&self, of: &Sends, range: Range<usize>, to: [Area; 2], pieces: &mut Vec<Piece>) {
        let entry = (4 * of.widths.indices + of.widths.bytes).max(1) as u64;
        let each = self.job.op.chunk.map_or(usize::MAX, |chunk| (chunk / entry).max(1) as usize);
        let mut start = range.start;
        while start < range.end {
            let own = start..range.end.min(start.saturating_add(each));
            let (first, n) = ((start - range.start) as u64, own.len() as u64);
            if of.widths.indices > 0 {
                pieces.push(self.numbered(of, own.clone(), to[0].rows(first, n)));
            }
            if let Some(bytes) = of.bytes {
                pieces.push(copy(bytes.area.rows(start as u64, n), to[1].rows(first, n)));
            }
            start = own.end;
        }
    }

    /// For each rank what it gets of this one.
    fn ranges(&self, kind: Kind, exchange: u32, at: Places, n: usize) -> Result<Vec<Range<usize>>, Fault> {
        let (counts, ranks) = (self.counts(at.counts)?, self.job.env.ranks);
        check("ranks", counts.len(), ranks)?;
        Ok(match kind {
            Kind::Entries { everyone: true } => vec![0..n; ranks],
            Kind::Entries { .. } | Kind::Asked => owned(self.job, exchange, &counts, n)?,
            Kind::Classes => {
                check("classes", n, counts.iter().sum::<u64>() as usize)?;
                spans(&counts)
            }
        })
    }

    /// What is sent to the others, in pieces.
    fn fill(&self, kind: Kind, outbox: &mut CudaOutbox, first: bool) -> Result<Vec<Piece>, Fault> {
        let (me, exchanges) = (self.job.env.rank, self.job.op.action.facts().of.exchanges);
        let everyone = kind == Kind::Entries { everyone: true };
        let mut pieces = Vec::new();
        for (i, exchange) in exchanges.iter().enumerate() {
            let at = self.places(kind, i, exchanges.len());
            let of = self.sends(kind, *exchange, at)?;
            let ranges = self.ranges(kind, *exchange, at, of.entries.shape.rows)?;
            let section = &mut outbox.host.sections[i];
            (section.everyone, section.widths) = (everyone, of.widths);
            section.counts.clear();
            let others = ranges.iter().enumerate();
            section.counts.extend(others.map(|(to, r)| if to == me { 0 } else { r.len() as u64 }));
            let total = if everyone { of.entries.shape.rows as u64 } else { section.counts.iter().sum() };
            if first {
                let bytes = [4 * of.widths.indices as u64, of.widths.bytes as u64].map(|width| width * total);
                outbox.list_room(&*self.cuda.driver, self.stream, i, bytes)?;
            }
            let others = ranges.into_iter().enumerate().filter(|(to, _)| *to != me);
            for (to, range) in others.take(if everyone { 1 } else { usize::MAX }) {
                let nothing = || TransportError::Sizes(format!("no room for rank {to} in section {i}"));
                self.bring(&of, range, outbox.list_part(i, to).ok_or_else(nothing)?, &mut pieces);
            }
        }
        Ok(pieces)
    }

    /// Entries that each rank sends.
    fn numbers_of(
        &self,
        inbox: Inbox<'_, CudaOutbox>,
        section: usize,
        own: usize,
    ) -> Result<Vec<u64>, Fault> {
        let me = self.job.env.rank;
        let of = |from: usize| {
            let mut found = (from == me).then_some(own as u64);
            if from != me {
                inbox(from, &mut |message| {
                    let section = message.outbox().host.sections.get(section);
                    found = section.and_then(|s| s.counts.get(me).copied());
                });
            }
            found.ok_or_else(|| nothing_from(from, section).into())
        };
        (0..self.job.env.ranks).map(of).collect()
    }

    /// What a rank's entries of a list are, in pieces: `own` for this rank's, the outbox's for the others'.
    fn receive(
        &self,
        inbox: Inbox<'_, CudaOutbox>,
        (section, from): (usize, usize),
        own: (&Sends, Range<usize>),
        to: [Area; 2],
        pieces: &mut Vec<Piece>,
    ) -> Result<(), Fault> {
        let me = self.job.env.rank;
        if from == me {
            self.bring(own.0, own.1, to, pieces);
            return Ok(());
        }
        let mut found = None;
        inbox(from, &mut |message| found = message.outbox().list_part(section, me));
        for (sent, to) in found.ok_or_else(|| nothing_from(from, section))?.into_iter().zip(to) {
            if to.width > 0 {
                check("entries of a rank", sent.rows as usize, to.rows as usize)?;
                check("bytes of an entry", sent.width as usize, to.width as usize)?;
                cut(sent, to, self.job.op.chunk, &mut |from, to| pieces.push(copy(from, to)));
            }
        }
        Ok(())
    }

    /// Entries of this rank's own shard.
    fn kept(&self, kind: Kind, exchange: u32, at: Places, n: usize) -> Result<Range<usize>, Fault> {
        let ranges = self.ranges(kind, exchange, at, n)?;
        Ok(ranges.get(self.job.env.rank).cloned().unwrap_or_default())
    }

    /// Received entries as rows of the own shard, in pieces.
    fn drain_entries(
        &self,
        kind: Kind,
        inbox: Inbox<'_, CudaOutbox>,
        first: bool,
    ) -> Result<Vec<Piece>, Fault> {
        let exchanges = self.job.op.action.facts().of.exchanges;
        let mut pieces = Vec::new();
        for (i, exchange) in exchanges.iter().enumerate() {
            let at = self.places(kind, i, exchanges.len());
            let of = self.sends(kind, *exchange, at)?;
            let n = of.entries.shape.rows;
            let kept = self.kept(kind, *exchange, at, n)?;
            let received = self.numbers_of(inbox, i, kept.len())?;
            if first {
                let total = received.iter().sum::<u64>() as usize;
                self.job.learn(Symbol::Received(*exchange), total);
                self.job.served(*exchange, total);
                let mut counts = self.call.write_counts(at.result + 1)?;
                let counts = counts.slice();
                check("ranks", counts.len(), received.len())?;
                counts.copy_from_slice(&received);
            }
            let rows = self.write(at.result)?;
            let uses = at.uses.map(|_| self.write(at.result_uses)).transpose()?;
            for (from, range) in spans(&received).into_iter().enumerate() {
                let part = |at: Located| at.area.rows(range.start as u64, range.len() as u64);
                let to = [part(rows), uses.map_or_else(Area::default, part)];
                self.receive(inbox, (i, from), (&of, kept.clone()), to, &mut pieces)?;
            }
            if kind == (Kind::Entries { everyone: true }) {
                let own = self.write(at.result + 2)?;
                pieces.push(self.numbered(&of, 0..n, own.area));
            }
        }
        Ok(pieces)
    }

    fn drain_classes(&self, inbox: Inbox<'_, CudaOutbox>) -> Result<Vec<Piece>, Fault> {
        let exchanges = self.job.op.action.facts().of.exchanges;
        let mut pieces = Vec::new();
        for (i, exchange) in exchanges.iter().enumerate() {
            let at = self.places(Kind::Classes, i, exchanges.len());
            let of = self.sends(Kind::Classes, *exchange, at)?;
            let kept = self.kept(Kind::Classes, *exchange, at, of.entries.shape.rows)?;
            let target = self.write(i)?;
            let ranges = owned(self.job, *exchange, &self.counts(3 * i + 2)?, target.shape.rows)?;
            for (from, range) in ranges.into_iter().enumerate() {
                let to = target.area.rows(range.start as u64, range.len() as u64);
                if from == self.job.env.rank {
                    check("classes of the own rows", kept.len(), range.len())?;
                }
                self.receive(inbox, (i, from), (&of, kept.clone()), [Area::default(), to], &mut pieces)?;
            }
        }
        Ok(pieces)
    }

    /// Requests of all ranks, one rank's after the other's, in memory that is kept, in pieces.
    fn drain_asked(
        &mut self,
        inbox: Inbox<'_, CudaOutbox>,
        memory: &mut Vec<Memory>,
    ) -> Result<Vec<Piece>, Fault> {
        let exchanges = self.job.op.action.facts().of.exchanges;
        let first = memory.is_empty();
        let mut pieces = Vec::new();
        for (i, exchange) in exchanges.iter().enumerate() {
            let at = self.places(Kind::Asked, i, exchanges.len());
            let of = self.sends(Kind::Asked, *exchange, at)?;
            let kept = self.kept(Kind::Asked, *exchange, at, of.entries.shape.rows)?;
            let received = self.numbers_of(inbox, i, kept.len())?;
            let n = received.iter().sum::<u64>();
            if first {
                memory.push(self.cuda.driver.allocate(self.stream, (8 * n).max(4))?);
                memory.push(self.cuda.driver.allocate(self.stream, (2 * n).max(4))?);
            }
            let area = |n: usize, width: u64, rows: u64| Area {
                address: memory[n].address,
                width,
                rows,
                pitch: width,
            };
            let all = [area(2 * i, 8, n), area(2 * i + 1, of.widths.bytes as u64, n)];
            for (from, range) in spans(&received).into_iter().enumerate() {
                let to = all.map(|all| all.rows(range.start as u64, range.len() as u64));
                self.receive(inbox, (i, from), (&of, kept.clone()), to, &mut pieces)?;
            }
        }
        Ok(pieces)
    }

    /// They become lists for each user, whose numbers begin to come down.
    fn join_all(
        cuda: &Cuda<D>,
        (lane, job, stream): (&Lane, &Job<'_>, Stream),
        inbox: Inbox<'_, CudaOutbox>,
        memory: &[Memory],
    ) -> Result<Vec<Numbers>, Fault> {
        let exchanges = job.op.action.facts().of.exchanges;
        let mut numbers = Vec::new();
        for (i, exchange) in exchanges.iter().enumerate() {
            let mut ids = Ids::new(cuda, lane, job, stream);
            let at = ids.places(Kind::Asked, i, exchanges.len());
            let n = ids.read(at.entries)?.shape.rows;
            let kept = ids.kept(Kind::Asked, *exchange, at, n)?.len();
            let received = ids.numbers_of(inbox, i, kept)?.iter().sum::<u64>();
            let uses = at.uses.map(|_| In::at(memory[2 * i + 1].address));
            let pairs = In::at(memory[2 * i].address);
            let room = ids.join((*exchange, at.result), received as u32, pairs, uses)?;
            numbers.push(ids.numbers(room, Then::Requests)?);
        }
        Ok(numbers)
    }
}

/// A copy of packed entries.
fn copy(from: Area, to: Area) -> Piece {
    Piece::Copy(from.joined(), to.joined())
}

fn nothing_from(from: usize, section: usize) -> TransportError {
    TransportError::Sizes(format!("rank {from} sent no section {section}"))
}

impl<D: Driver> Cuda<D> {
    /// Fills an outbox of ids, requests or classes.
    pub(super) fn fill_lists(
        &self,
        lane: &Lane,
        job: &Job<'_>,
        from: Option<Cursor>,
        outbox: &mut CudaOutbox,
        urgent: Urgent<'_>,
    ) -> Result<Progress<Cursor>, Fault> {
        let kind = kind(&job.op.action).ok_or(Fault::NotTransfer)?;
        let stream = self.order.stream(job);
        if from.is_none() {
            self.order.begin(&*self.driver, job)?;
            outbox.again(&*self.driver, stream)?;
        }
        let pieces = Ids::new(self, lane, job, stream).fill(kind, outbox, from.is_none())?;
        let done = self.send_pieces(stream, &pieces, from, urgent)?;
        if let Progress::Done = done {
            outbox.filled(&*self.driver, stream)?;
        }
        Ok(done)
    }

    /// Takes in what the others sent.
    pub(super) fn drain_lists(
        &self,
        lane: &Lane,
        job: &Job<'_>,
        cursor: Option<Cursor>,
        inbox: Inbox<'_, CudaOutbox>,
        urgent: Urgent<'_>,
    ) -> Result<Progress<Cursor>, Fault> {
        let kind = kind(&job.op.action).ok_or(Fault::NotTransfer)?;
        let stream = self.order.stream(job);
        let first = cursor.is_none();
        let mut pending = lane.pending.lock().remove(&job.index).unwrap_or_default();
        if cursor == Some(Cursor::Down) {
            return self.end_asked(lane, job, pending);
        }
        if first {
            self.wait_for_others(job, inbox, stream)?;
        }
        let mut ids = Ids::new(self, lane, job, stream);
        let pieces = match kind {
            Kind::Entries { .. } => ids.drain_entries(kind, inbox, first)?,
            Kind::Classes => ids.drain_classes(inbox)?,
            Kind::Asked => ids.drain_asked(inbox, &mut pending.memory)?,
        };
        let done = self.send_pieces(stream, &pieces, cursor, urgent)?;
        if let Progress::Running(..) = done {
            lane.pending.lock().insert(job.index, pending);
            return Ok(done);
        }
        self.others_are_read(job, inbox, stream)?;
        if kind == Kind::Asked {
            pending.numbers = Ids::join_all(self, (lane, job, stream), inbox, &pending.memory)?;
            pending.memory.drain(..).try_for_each(|memory| self.driver.release(stream, memory))?;
            self.order.end(&*self.driver, job)?;
            lane.pending.lock().insert(job.index, pending);
            return Ok(Progress::Running(Cursor::Down, AGAIN));
        }
        Self::keep_uses_of_all(&mut ids, kind)?;
        ids.scratch.end()?;
        self.order.end(&*self.driver, job)?;
        Ok(done)
    }

    /// Gradients of a replicated row stay together: their class follows from its last use by any rank.
    fn keep_uses_of_all(ids: &mut Ids<'_, D>, kind: Kind) -> Result<(), Fault> {
        if kind != (Kind::Entries { everyone: true }) {
            return Ok(());
        }
        let exchanges = ids.job.op.action.facts().of.exchanges;
        for (i, exchange) in exchanges.iter().enumerate() {
            let at = ids.places(kind, i, exchanges.len());
            if at.uses.is_some() {
                let (rows, uses) = (ids.write(at.result)?, ids.write(at.result_uses)?);
                let own = ids.write(at.result + 2)?;
                ids.keep_last_uses(*exchange, (rows, uses), own)?;
            }
        }
        Ok(())
    }

    /// Whether it is known how many requests there are for each user; then the transfer ends.
    fn end_asked(&self, lane: &Lane, job: &Job<'_>, pending: Pending) -> Result<Progress<Cursor>, Fault> {
        for numbers in &pending.numbers {
            if !self.driver.has_come(numbers.staging.free)? {
                lane.pending.lock().insert(job.index, pending);
                return Ok(Progress::Running(Cursor::Down, AGAIN));
            }
        }
        let stream = self.order.stream(job);
        let exchanges = job.op.action.facts().of.exchanges;
        for (i, (exchange, numbers)) in exchanges.iter().zip(pending.numbers).enumerate() {
            let ids = Ids::new(self, lane, job, stream);
            let at = ids.places(Kind::Asked, i, exchanges.len());
            let mut bytes = vec![0; 8 + 8 * numbers.counts];
            self.driver.read(numbers.staging.pinned, 0, &mut bytes)?;
            self.staging.give(&*self.driver, stream, numbers.staging)?;
            let words: Vec<u64> = values_of(&bytes);
            let (fault, counts) = words.split_first().ok_or(Fault::NotTransfer)?;
            if *fault != 0 {
                let what = "somebody asks on behalf of a rank that there is not";
                return Err(TransportError::Sizes(what.into()).into());
            }
            ids.take_requests((*exchange, at.result), counts)?;
        }
        Ok(Progress::Done)
    }

    /// Work of a stream comes after all others have filled what it reads.
    pub(super) fn wait_for_others(
        &self,
        job: &Job<'_>,
        inbox: Inbox<'_, CudaOutbox>,
        stream: Stream,
    ) -> Result<(), Fault> {
        let mut outcome = Ok(());
        for from in (0..job.env.ranks).filter(|from| *from != job.env.rank) {
            inbox(from, &mut |message| outcome = message.outbox().wait(&*self.driver, stream));
            std::mem::replace(&mut outcome, Ok(()))?;
        }
        Ok(())
    }

    /// All that reads what the others have sent is enqueued.
    pub(super) fn others_are_read(
        &self,
        job: &Job<'_>,
        inbox: Inbox<'_, CudaOutbox>,
        stream: Stream,
    ) -> Result<(), Fault> {
        let (mut outcome, me) = (Ok(()), job.env.rank);
        for from in (0..job.env.ranks).filter(|from| *from != me) {
            inbox(from, &mut |message| outcome = message.outbox().read_by(&*self.driver, me, stream));
            std::mem::replace(&mut outcome, Ok(()))?;
        }
        Ok(())
    }

    /// Enqueues pieces from where an earlier call has stopped, until something is urgent.
    pub(super) fn send_pieces(
        &self,
        stream: Stream,
        pieces: &[Piece],
        from: Option<Cursor>,
        urgent: Urgent<'_>,
    ) -> Result<Progress<Cursor>, Fault> {
        until_urgent(pieces, from, urgent, |piece| match piece {
            Piece::Copy(from, to) => Ok(self.driver.copy(stream, &[(*from, *to)])?),
            Piece::Launch(call, touches) => self.run(stream, call, touches),
        })
    }
}
