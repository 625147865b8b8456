//! Rows of samples between the ranks that read them and those that work on them, on the device.
//!
//! The host, which plans, knows which samples go where; kernels make of that which rows these are, put them into the outbox one
//! after the other, and put what came where the list has the sample. A sample that stays goes from list to list by the same two
//! kernels.

use fs_kernels::cuda::catalogue::{carry, rows};
use fs_kernels::cuda::driver::{Area, Driver, Memory, Stream, Touch};
use fs_kernels::cuda::lists::{scan, scan_room};
use fs_kernels::cuda::{In, Out};
use fs_schedule::Action;

use super::ids::Ids;
use super::ids_transfer::Piece;
use super::numbers::Pending;
use super::operands::Located;
use super::outbox::CudaOutbox;
use super::transfer::check;
use super::{Cuda, Cursor, Fault, Job, Lane};
use crate::device::cpu::{Route, routes};
use crate::device::{Inbox, Progress, Urgent};
use crate::transport::{TransportError, Widths};

/// Whether an action moves rows of samples.
pub(super) fn moves_samples(action: &Action) -> bool {
    action.facts().carries().is_some()
}

/// Rows of each rank's samples.
fn rows_of_ranks(route: &Route, ranks: usize) -> Vec<u64> {
    let mut rows = vec![0; ranks];
    for (rank, place) in &route.moves {
        rows[*rank] += route.rows(*place) as u64;
    }
    rows
}

/// Of a list of row numbers those of some rows.
fn some(list: Memory, first: u64, n: u64) -> Area {
    list.from(4 * first, 4 * n)
}

impl<D: Driver> Ids<'_, D> {
    /// Which rows samples have, one sample's after the other's.
    fn rows_of(&mut self, route: &Route, places: &[u32], to: Area) -> Result<(), Fault> {
        let (moves, count, fault) = (places.len() as u32, route.samples as u32, self.cuda.fault());
        let n = places.iter().map(|place| route.rows(*place)).sum::<usize>() as u32;
        let samples = In::at(self.up(places)?);
        let offsets = match &route.offsets {
            Some(offsets) => In::at(self.up(offsets)?),
            None => In::NULL,
        };
        let (starts, sums) = (self.scratch.out(moves)?, self.scratch.out(scan_room(moves) as u32)?);
        self.run(&carry::lengths_of_moves(moves, samples, count, offsets, starts, fault), &[])?;
        self.run_all(scan(moves, starts.read(), starts, sums, Out::NULL), &[])?;
        let out = Out::at(to.address);
        let call = carry::rows_of_moves(n, moves, starts.read(), samples, count, offsets, out, fault);
        self.run(&call, &[Touch::Out(to)])
    }

    /// Listed rows, packed.
    fn taken(&self, x: Located, list: Area, to: Area) -> Piece {
        let (n, columns) = ((list.bytes() / 4) as u32, x.shape.columns() as u32);
        let ((from, stride), width) = (x.input(), u64::from(columns));
        let (at, out, count) = (In::at(list.address), Out::at(to.address), x.shape.rows as u32);
        let call = rows::expand(n, columns, from, count, stride, at, out, width, 0, self.cuda.fault());
        let read = Touch::Rows { all: x.area, list, at: None, written: false };
        Piece::Launch(Box::new(call), vec![read, Touch::Out(to)])
    }

    /// Packed rows become those that are listed.
    fn placed(&self, from: Area, list: Area, y: Located) -> Piece {
        let (n, columns) = ((list.bytes() / 4) as u32, y.shape.columns() as u32);
        let ((to, stride), width) = (y.output(), u64::from(columns));
        let (x, at, count) = (In::at(from.address), In::at(list.address), y.shape.rows as u32);
        let call = rows::scatter(n, columns, x, width, at, to, count, stride, self.cuda.fault());
        let put = Touch::Rows { all: y.area, list, at: None, written: true };
        Piece::Launch(Box::new(call), vec![Touch::In(from), put])
    }

    /// Rows of a piece of the transfer.
    fn each(&self, columns: usize) -> u64 {
        self.job.op.chunk.map_or(u64::MAX, |chunk| (chunk / (4 * columns as u64).max(1)).max(1))
    }

    fn kept_list(&self, pending: &mut Pending, words: u64) -> Result<Memory, Fault> {
        let memory = self.cuda.driver.allocate(self.stream, 4 * words.max(1))?;
        pending.memory.push(memory);
        Ok(memory)
    }

    /// The first call of a fill or drain makes the lists of rows, which later ones find.
    fn list_rows(&mut self, pending: &mut Pending, which: &[(&Route, Vec<u32>)]) -> Result<(), Fault> {
        for (route, places) in which {
            let n = places.iter().map(|place| route.rows(*place) as u64).sum();
            let list = self.kept_list(pending, n)?;
            self.rows_of(route, places, list.first(4 * n))?;
        }
        Ok(())
    }
}

/// Pieces of so many rows: where each begins, and how many it has.
fn steps(n: u64, each: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..n.div_ceil(each)).map(move |k| (k * each, each.min(n - k * each)))
}

impl<D: Driver> Cuda<D> {
    /// Fills an outbox of rows of samples.
    pub(super) fn fill_samples(
        &self,
        lane: &Lane,
        job: &Job<'_>,
        from: Option<Cursor>,
        outbox: &mut CudaOutbox,
        urgent: Urgent<'_>,
    ) -> Result<Progress<Cursor>, Fault> {
        let (stream, me) = (self.order.stream(job), job.env.rank);
        let mut pending = lane.pending.lock().remove(&job.index).unwrap_or_default();
        if from.is_none() {
            self.order.begin(&*self.driver, job)?;
            outbox.again(&*self.driver, stream)?;
        }
        let mut ids = Ids::new(self, lane, job, stream);
        let (x, [taken, _]) = (ids.read(1)?, routes(&ids.call)?);
        let mut counts = rows_of_ranks(&taken, job.env.ranks);
        counts[me] = 0;
        let n = counts.iter().sum::<u64>();
        let section = &mut outbox.host.sections[0];
        (section.widths, section.counts) = (Widths { reals: x.shape.columns(), ..Widths::default() }, counts);
        if from.is_none() {
            outbox.room(&*self.driver, stream, 0, n * x.area.width)?;
            let places = taken.moves.iter().filter(|(rank, _)| *rank != me).map(|(_, place)| *place);
            ids.list_rows(&mut pending, &[(&taken, places.collect())])?;
        }
        let list = pending.memory.first().copied().unwrap_or_default();
        let width = x.area.width;
        let all = Area { address: outbox.rows[0].address, width, rows: n, pitch: width };
        let pieces: Vec<Piece> = steps(n, ids.each(x.shape.columns()))
            .map(|(first, n)| ids.taken(x, some(list, first, n), all.rows(first, n).joined()))
            .collect();
        ids.scratch.end()?;
        self.go_on(lane, (job, stream), pending, &pieces, (from, urgent), || {
            Ok(outbox.filled(&*self.driver, stream)?)
        })
    }

    /// Puts the rows of this rank's samples at the other site where its list has them.
    pub(super) fn drain_samples(
        &self,
        lane: &Lane,
        job: &Job<'_>,
        cursor: Option<Cursor>,
        inbox: Inbox<'_, CudaOutbox>,
        urgent: Urgent<'_>,
    ) -> Result<Progress<Cursor>, Fault> {
        let (stream, me) = (self.order.stream(job), job.env.rank);
        let mut pending = lane.pending.lock().remove(&job.index).unwrap_or_default();
        if cursor.is_none() {
            self.wait_for_others(job, inbox, stream)?;
        }
        let mut ids = Ids::new(self, lane, job, stream);
        let (x, y, [taken, given]) = (ids.read(1)?, ids.write(0)?, routes(&ids.call)?);
        let (kept, counts) = (rows_of_ranks(&taken, job.env.ranks)[me], rows_of_ranks(&given, job.env.ranks));
        check("values of samples that stay", kept as usize, counts[me] as usize)?;
        let width = y.area.width;
        if cursor.is_none() {
            check("columns of samples that stay", x.area.width as usize, width as usize)?;
            let all = |route: &Route, own: bool| {
                let moves = route.moves.iter().filter(|(rank, _)| !own || *rank == me);
                moves.map(|(_, place)| *place).collect()
            };
            ids.list_rows(&mut pending, &[(&given, all(&given, false)), (&taken, all(&taken, true))])?;
            ids.kept_list(&mut pending, kept * width / 4)?;
        }
        let [list, own, packed] = pending.memory[..] else { return Err(Fault::NotTransfer) };
        let (each, mut pieces, mut first) = (ids.each(y.shape.columns()), Vec::new(), 0);
        for (from, n) in counts.into_iter().enumerate() {
            let sent = if from == me {
                Area { address: packed.address, width, rows: kept, pitch: width }
            } else {
                let mut found = None;
                inbox(from, &mut |message| found = message.outbox().part(0, me));
                found.ok_or_else(|| TransportError::Sizes(format!("rank {from} sent no section 0")))?
            };
            check("values of a rank", sent.rows as usize, n as usize)?;
            if n > 0 {
                check("bytes of a row", sent.width as usize, width as usize)?;
            }
            for (begin, n) in steps(n, each) {
                let part = sent.rows(begin, n).joined();
                if from == me {
                    pieces.push(ids.taken(x, some(own, begin, n), part));
                }
                pieces.push(ids.placed(part, some(list, first + begin, n), y));
            }
            first += n;
        }
        ids.scratch.end()?;
        self.go_on(lane, (job, stream), pending, &pieces, (cursor, urgent), || {
            self.others_are_read(job, inbox, stream)?;
            Ok(self.order.end(&*self.driver, job)?)
        })
    }

    /// Enqueues pieces; when all are, gives back what was kept for them.
    fn go_on(
        &self,
        lane: &Lane,
        (job, stream): (&Job<'_>, Stream),
        mut pending: Pending,
        pieces: &[Piece],
        (from, urgent): (Option<Cursor>, Urgent<'_>),
        end: impl FnOnce() -> Result<(), Fault>,
    ) -> Result<Progress<Cursor>, Fault> {
        let done = self.send_pieces(stream, pieces, from, urgent)?;
        if let Progress::Running(..) = done {
            lane.pending.lock().insert(job.index, pending);
            return Ok(done);
        }
        pending.memory.drain(..).try_for_each(|memory| self.driver.release(stream, memory))?;
        end()?;
        Ok(done)
    }
}
