//! Rows and gradients from rank to rank by copies on the device.
//!
//! A transfer is cut into pieces of its chunk; between two of them a more urgent one of the same engine goes first, because
//! what is enqueued is done in order whatever its stream's priority.

use std::ops::Range;
use std::time::Duration;

use fs_kernels::cuda::driver::{Area, Driver, Stream};
use fs_schedule::{Action, Exchange, Operand, Table};

use super::operands::Located;
use super::outbox::CudaOutbox;
use super::plain::values_of;
use super::{Cuda, Cursor, Fault, Job};
use crate::device::{Inbox, Progress, Urgent};
use crate::transport::{Coding, TransportError, Widths};

/// What travels.
#[derive(Clone, Copy)]
struct Moves<'a> {
    exchanges: &'a [u32],
    /// Gradients, to who owns the rows.
    gradients: bool,
    /// All ranks get all.
    everyone: bool,
}

/// Rows or gradients, if the action moves those.
fn moves(action: &Action) -> Option<Moves<'_>> {
    let (exchanges, gradients, everyone) = match action {
        Action::AllToAllRows { exchanges, .. } => (exchanges, false, false),
        Action::AllToAllGrads { exchanges, .. } => (exchanges, true, false),
        Action::AllGatherGrads { exchanges, .. } => (exchanges, true, true),
        _ => return None,
    };
    Some(Moves { exchanges, gradients, everyone })
}

/// Whether an action moves rows or gradients.
pub(super) fn moves_rows(action: &Action) -> bool {
    moves(action).is_some()
}

/// Two numbers that ranks must agree about.
pub(super) fn check(what: &str, found: usize, expected: usize) -> Result<(), Fault> {
    if found == expected {
        return Ok(());
    }
    Err(TransportError::Sizes(format!("{what}: {found} where {expected} are expected")).into())
}

/// Each rank's entries, one rank's after the other's.
pub(super) fn spans(counts: &[u64]) -> Vec<Range<usize>> {
    let mut start = 0;
    let span = |n: &u64| {
        let range = start..start + *n as usize;
        start = range.end;
        range
    };
    counts.iter().map(span).collect()
}

/// The one rank that is asked for all of a table's rows, or of a part's, if it is one: a relay of the owner, where there are.
pub(super) fn asked_of(job: &Job<'_>, exchange: &Exchange, table: &Table) -> Option<usize> {
    let owner = table.sharding.owner(exchange.part)?;
    let relay = exchange.leg.between().map(|_| job.env.nodes.relay(job.env.rank as u32, owner));
    Some(relay.unwrap_or(owner) as usize)
}

/// For each rank the entries that it is asked for.
pub(super) fn owned(
    job: &Job<'_>,
    exchange: u32,
    counts: &[u64],
    entries: usize,
) -> Result<Vec<Range<usize>>, Fault> {
    let (exchange, table) = job.exchange(exchange)?;
    check("entries", entries, counts.iter().sum::<u64>() as usize)?;
    Ok(match asked_of(job, exchange, table) {
        Some(owner) => {
            let counts: Vec<u64> =
                (0..counts.len()).map(|rank| if rank == owner { entries as u64 } else { 0 }).collect();
            spans(&counts)
        }
        None => spans(counts),
    })
}

/// Pieces of a copy of rows.
pub(super) fn cut(from: Area, to: Area, chunk: Option<u64>, each_piece: &mut dyn FnMut(Area, Area)) {
    let each = chunk.map_or(u64::MAX, |bytes| (bytes / from.width.max(1)).max(1));
    let mut at = 0;
    while at < from.rows {
        let n = each.min(from.rows - at);
        each_piece(from.rows(at, n), to.rows(at, n));
        at += n;
    }
}

fn pieces(from: Area, to: Area, chunk: Option<u64>, out: &mut Vec<(Area, Area)>) {
    cut(from, to, chunk, &mut |from, to| out.push((from, to)));
}

impl<D: Driver> Cuda<D> {
    fn counts(&self, job: &Job<'_>, operand: Operand) -> Result<Vec<u64>, Fault> {
        let mut bytes = Vec::new();
        self.host_counts(job, operand, &mut bytes)?;
        Ok(values_of(&bytes))
    }

    fn there(
        &self,
        job: &Job<'_>,
        operand: Option<&Operand>,
        stream: Stream,
        written: bool,
    ) -> Result<Located, Fault> {
        let operand = *operand.ok_or(Fault::NotTransfer)?;
        let found = self.locate(job, operand, stream, written)?;
        found.ok_or_else(|| Fault::Unwritten(operand.to_string()))
    }

    /// Fills an outbox of rows or gradients.
    pub(super) fn fill_rows(
        &self,
        job: &Job<'_>,
        from: Option<Cursor>,
        outbox: &mut CudaOutbox,
        urgent: Urgent<'_>,
    ) -> Result<Progress<Cursor>, Fault> {
        let Moves { exchanges, gradients, everyone } = moves(&job.op.action).ok_or(Fault::NotTransfer)?;
        let (me, ranks) = (job.env.rank, job.env.ranks);
        let stream = self.order.stream(job);
        if from.is_none() {
            self.order.begin(&*self.driver, job)?;
            outbox.again(&*self.driver, stream)?;
        }
        let mut copies = Vec::new();
        for (i, exchange) in exchanges.iter().enumerate() {
            let source = self.there(job, job.op.reads.get(3 * i), stream, false)?;
            let counts = self.counts(job, job.op.reads[3 * i + 1])?;
            let n = source.shape.rows;
            check("ranks", counts.len(), ranks)?;
            let ranges = match (gradients, everyone) {
                (true, true) => vec![0..n; ranks],
                (true, false) => owned(job, *exchange, &counts, n)?,
                _ => spans(&counts),
            };
            check("rows to send", ranges.last().map_or(0, |r| r.end), n)?;
            let section = &mut outbox.host.sections[i];
            (section.everyone, section.coding) = (everyone, Coding::of(source.element));
            section.widths = Widths { reals: source.shape.columns(), ..Widths::default() };
            section.counts.clear();
            section
                .counts
                .extend(ranges.iter().enumerate().map(|(to, r)| if to == me { 0 } else { r.len() as u64 }));
            let width = source.area.width;
            if from.is_none() {
                outbox.room(&*self.driver, stream, i, n as u64 * width)?;
            }
            let mut sent: Vec<Range<usize>> =
                ranges.into_iter().enumerate().filter(|(to, _)| *to != me).map(|(_, r)| r).collect();
            sent.truncate(if everyone { 1 } else { sent.len() });
            let mut at = outbox.rows[i].address;
            for range in sent {
                let own = source.area.rows(range.start as u64, range.len() as u64);
                let target = Area { address: at, pitch: width, ..own };
                at += target.bytes();
                pieces(own, target, job.op.chunk, &mut copies);
            }
        }
        let done = self.enqueue_pieces(stream, &copies, from, urgent)?;
        if let Progress::Done = done {
            outbox.filled(&*self.driver, stream)?;
        }
        Ok(done)
    }

    /// Takes in what the others sent.
    pub(super) fn drain_rows(
        &self,
        job: &Job<'_>,
        cursor: Option<Cursor>,
        inbox: Inbox<'_, CudaOutbox>,
        urgent: Urgent<'_>,
    ) -> Result<Progress<Cursor>, Fault> {
        let Moves { exchanges, gradients, everyone } = moves(&job.op.action).ok_or(Fault::NotTransfer)?;
        let me = job.env.rank;
        let stream = self.order.stream(job);
        let mut copies = Vec::new();
        if cursor.is_none() {
            self.wait_for_others(job, inbox, stream)?;
        }
        for (i, exchange) in exchanges.iter().enumerate() {
            let source = self.there(job, job.op.reads.get(3 * i), stream, false)?;
            let first = self.counts(job, job.op.reads[3 * i + 1])?;
            let second = self.counts(job, job.op.reads[3 * i + 2])?;
            let target = self.there(job, job.op.writes.get(i), stream, true)?;
            let n = source.shape.rows;
            // Where the own part lies, and where each rank's goes.
            let (own, ranges) = match (gradients, everyone) {
                (false, _) => (spans(&first)[me].clone(), owned(job, *exchange, &second, target.shape.rows)?),
                (true, true) => (0..n, spans(&second)),
                (true, false) => (owned(job, *exchange, &first, n)?[me].clone(), spans(&second)),
            };
            check("rows to receive", ranges.last().map_or(0, |r| r.end), target.shape.rows)?;
            for (from, range) in ranges.into_iter().enumerate() {
                let place = target.area.rows(range.start as u64, range.len() as u64);
                let sent = if from == me {
                    source.area.rows(own.start as u64, own.len() as u64)
                } else {
                    let mut found = None;
                    inbox(from, &mut |message| found = message.outbox().part(i, me));
                    let nothing = || TransportError::Sizes(format!("rank {from} sent no section {i}"));
                    found.ok_or_else(nothing)?
                };
                check("rows of a rank", sent.rows as usize, range.len())?;
                if !place.is_empty() {
                    check("bytes of a row", sent.width as usize, place.width as usize)?;
                }
                pieces(sent, place, job.op.chunk, &mut copies);
            }
        }
        let done = self.enqueue_pieces(stream, &copies, cursor, urgent)?;
        if let Progress::Done = done {
            self.others_are_read(job, inbox, stream)?;
            self.order.end(&*self.driver, job)?;
        }
        Ok(done)
    }

    /// Enqueues copies from where an earlier call has stopped, until something is urgent.
    pub(super) fn enqueue_pieces(
        &self,
        stream: Stream,
        copies: &[(Area, Area)],
        from: Option<Cursor>,
        urgent: Urgent<'_>,
    ) -> Result<Progress<Cursor>, Fault> {
        until_urgent(copies, from, urgent, |piece| Ok(self.driver.copy(stream, &[*piece])?))
    }
}

/// Enqueues pieces from where an earlier call has stopped, until something is urgent.
pub(super) fn until_urgent<P>(
    pieces: &[P],
    from: Option<Cursor>,
    urgent: Urgent<'_>,
    mut enqueue: impl FnMut(&P) -> Result<(), Fault>,
) -> Result<Progress<Cursor>, Fault> {
    let begin = match from {
        Some(Cursor::Piece(n)) => n,
        _ => 0,
    };
    for (n, piece) in pieces.iter().enumerate().skip(begin) {
        if n > begin && urgent() {
            return Ok(Progress::Running(Cursor::Piece(n), Duration::ZERO));
        }
        enqueue(piece)?;
    }
    Ok(Progress::Done)
}
