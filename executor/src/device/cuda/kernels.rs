//! Operations that kernels do: their operands as arguments, and what they touch.

use fs_kernels::cuda::catalogue::{elementwise, mxint8, rows, sort};
use fs_kernels::cuda::driver::{Driver, Launch, Memory, Stream, Touch};
use fs_kernels::cuda::lists::{Gradients, Segments, Sorting, bits_below, scan_room, segment_sum, sort_by};
use fs_kernels::cuda::{Call, In, Out};
use fs_schedule::{Action, Element, Operand, Place, PoolMode, Symbol};

use super::numbers::Numbers;
use super::operands::Located;
use super::plain::bytes_of;
use super::tables::Table;
use super::transfer::check;
use super::{Cuda, Fault, Job};

/// What became of an operation.
#[derive(Debug)]
pub(super) enum Enqueued {
    /// Nothing: it is not one of these.
    No,
    /// All of its work is enqueued.
    Done,
    /// Nothing yet: it finds no room for what it has to put aside.
    Crowded,
    /// The same as done, and numbers that the host must learn are on their way.
    Numbers(Numbers),
}

/// Memory for the length of an operation.
pub(super) struct Scratch<'c, D: Driver> {
    cuda: &'c Cuda<D>,
    pub(super) stream: Stream,
    pieces: Vec<Memory>,
}

impl<'c, D: Driver> Scratch<'c, D> {
    pub(super) fn new(cuda: &'c Cuda<D>, stream: Stream) -> Self {
        Self { cuda, stream, pieces: Vec::new() }
    }

    /// Room for so many numbers of 32 bits.
    pub(super) fn words(&mut self, n: u64) -> Result<Memory, Fault> {
        let memory = self.cuda.driver.allocate(self.stream, 4 * n.max(1))?;
        self.pieces.push(memory);
        Ok(memory)
    }

    pub(super) fn out(&mut self, n: u32) -> Result<Out<u32>, Fault> {
        Ok(Out::at(self.words(u64::from(n))?.address))
    }

    /// All of it, for whoever gives it back later.
    pub(super) fn keep(self) -> Vec<Memory> {
        self.pieces
    }

    /// What was kept, to be given back with the rest.
    pub(super) fn take_back(&mut self, kept: Vec<Memory>) {
        self.pieces.extend(kept);
    }

    /// Gives it back once the stream is through with it.
    pub(super) fn end(self) -> Result<(), Fault> {
        let release = |memory| self.cuda.driver.release(self.stream, memory);
        Ok(self.pieces.into_iter().try_for_each(release)?)
    }
}

impl<D: Driver> Cuda<D> {
    pub(super) fn read_operand(
        &self,
        job: &Job<'_>,
        position: usize,
        stream: Stream,
    ) -> Result<Located, Fault> {
        self.operand(job, &job.op.reads, position, stream, false)
    }

    pub(super) fn written_operand(
        &self,
        job: &Job<'_>,
        position: usize,
        stream: Stream,
    ) -> Result<(Located, bool), Fault> {
        let at = self.operand(job, &job.op.writes, position, stream, true)?;
        Ok((at, job.op.writes[position].accumulate))
    }

    fn operand(
        &self,
        job: &Job<'_>,
        list: &[Operand],
        position: usize,
        stream: Stream,
        written: bool,
    ) -> Result<Located, Fault> {
        let missing = || Fault::Unwritten(format!("number {position}"));
        let operand = *list.get(position).ok_or_else(missing)?;
        self.locate(job, operand, stream, written)?.ok_or_else(missing)
    }

    pub(super) fn run(&self, stream: Stream, call: &Call, touches: &[Touch]) -> Result<(), Fault> {
        Ok(self.driver.launch(stream, &Launch { call, touches })?)
    }

    pub(super) fn fault(&self) -> Out<u32> {
        Out::at(self.fault.address)
    }

    /// This rank's shard of the table of an exchange.
    fn table(&self, job: &Job<'_>, exchange: u32, operand: Option<&Operand>) -> Result<Table, Fault> {
        let part = job.exchange(exchange)?.0.part as usize;
        let found = match operand.map(|o| o.place) {
            Some(Place::Table(n)) => self.trained.tables.get(n as usize).and_then(|t| t.get(part)),
            _ => None,
        };
        found.copied().ok_or(Fault::NoExchange { exchange })
    }

    /// Rows that came as MXINT8, at some rows of a result or at its own.
    fn widen(&self, x: &Located, at: In<u32>, y: &Located) -> Call {
        let (n, cols, there) = (x.shape.rows as u32, x.shape.columns() as u32, y.shape.rows as u32);
        let ((to, stride), from) = (y.output(), In::at(x.area.address));
        mxint8::merge_mxint8(n, cols, from, at, to, there, stride, self.fault())
    }

    /// Enqueues an operation on rows, if it is one of those.
    pub(super) fn enqueue(&self, job: &Job<'_>, stream: Stream) -> Result<Enqueued, Fault> {
        match &job.op.action {
            Action::Gather { exchange, class } => {
                let table = self.table(job, *exchange, job.op.reads.first())?;
                let list = self.read_operand(job, 1, stream)?;
                let at = class.map(|_| self.read_operand(job, 2, stream)).transpose()?;
                let (y, add) = self.written_operand(job, 0, stream)?;
                let (n, cols) = (y.shape.rows as u32, y.shape.columns() as u32);
                let (values, stride) = (In::at(table.values.address), u64::from(table.dim));
                let (of, entries) = (In::at(list.area.address), list.shape.rows as u32);
                let places = at.map_or(In::NULL, |at| In::at(at.area.address));
                let call = if y.element == Element::Mxint8 {
                    let to = Out::at(y.area.address);
                    let fault = self.fault();
                    mxint8::gather_mxint8(n, cols, values, table.rows, stride, of, entries, places, to, fault)
                } else {
                    let ((to, to_stride), add) = (y.output(), u32::from(add));
                    rows::gather(
                        n,
                        cols,
                        values,
                        table.rows,
                        stride,
                        of,
                        entries,
                        places,
                        to,
                        to_stride,
                        add,
                        self.fault(),
                    )
                };
                let touched = Touch::Rows {
                    all: table.all(),
                    list: list.flat(),
                    at: at.map(|at| at.flat()),
                    written: false,
                };
                self.run(stream, &call.of(y.precision()), &[touched, result(&y, add)])?;
            }
            Action::Expand => {
                let (x, at) = (self.read_operand(job, 0, stream)?, self.read_operand(job, 1, stream)?);
                let (y, add) = self.written_operand(job, 0, stream)?;
                let call = rows::expand(
                    y.shape.rows as u32,
                    y.shape.columns() as u32,
                    In::at(x.area.address),
                    x.shape.rows as u32,
                    x.shape.stride as u64,
                    In::at(at.area.address),
                    Out::at(y.area.address),
                    y.shape.stride as u64,
                    u32::from(add),
                    self.fault(),
                );
                self.run(stream, &call, &[Touch::In(x.area), Touch::In(at.area), result(&y, add)])?;
            }
            Action::Split { exchange, class: None } => {
                let (y, add) = self.written_operand(job, 0, stream)?;
                let x = share_of(job, *exchange, self.read_operand(job, 0, stream)?)?;
                check("gradients of a share", x.shape.rows, y.shape.rows)?;
                let ((from, from_stride), (to, to_stride), (m, n)) = (x.input(), y.output(), x.size());
                let call =
                    elementwise::real_from_float(from, from_stride, to, to_stride, u32::from(add), m, n);
                self.run(stream, &call.of(y.precision()), &[Touch::In(x.area), result(&y, add)])?;
            }
            Action::Split { exchange, .. } => {
                let (x, at) = (self.read_operand(job, 0, stream)?, self.read_operand(job, 1, stream)?);
                let x = share_of(job, *exchange, x)?;
                let (y, add) = self.written_operand(job, 0, stream)?;
                let call = rows::split(
                    y.shape.rows as u32,
                    y.shape.columns() as u32,
                    In::at(x.area.address),
                    x.shape.rows as u32,
                    x.shape.stride as u64,
                    In::at(at.area.address),
                    Out::at(y.area.address),
                    y.shape.stride as u64,
                    u32::from(add),
                    self.fault(),
                );
                let read = Touch::Rows { all: x.area, list: at.flat(), at: None, written: false };
                self.run(stream, &call.of(y.precision()), &[read, result(&y, add)])?;
            }
            Action::Merge { classes, .. } => self.merge(job, stream, classes.len())?,
            Action::Copy => {
                let x = self.read_operand(job, 0, stream)?;
                let (y, add) = self.written_operand(job, 0, stream)?;
                if add && y.element.is_float() {
                    let ((from, stride), (to, to_stride), (m, n)) = (x.input(), y.output(), y.size());
                    let call = elementwise::copy(from, stride, to, to_stride, 1, m, n);
                    self.run(stream, &call.of(y.precision()), &[Touch::In(x.area), Touch::InOut(y.area)])?;
                } else if add {
                    return Ok(Enqueued::No);
                } else {
                    self.driver.copy(stream, &[(x.area, y.area)])?;
                }
            }
            Action::Zero => {
                let (y, add) = self.written_operand(job, 0, stream)?;
                if !add {
                    self.driver.fill(stream, y.area, 0)?;
                }
            }
            Action::ExpandGrad | Action::PoolGrad { .. } | Action::Pool { .. } => {
                let mut scratch = Scratch::new(self, stream);
                let done = self.sums(job, &mut scratch);
                scratch.end().and(done)?;
            }
            _ => return Ok(Enqueued::No),
        }
        Ok(Enqueued::Done)
    }

    /// Rows that came, all or of some classes, in the order of the entries; the first merge of a share brings hot rows.
    fn merge(&self, job: &Job<'_>, stream: Stream, classes: usize) -> Result<(), Fault> {
        let (all, add) = self.written_operand(job, 0, stream)?;
        let arrived = if classes == 0 { 1 } else { 2 * classes };
        let mut y = all;
        if job.op.reads.len() > arrived {
            let hot = self.read_operand(job, arrived, stream)?;
            let owned = all.shape.rows.checked_sub(hot.shape.rows).ok_or(Fault::NotTransfer)?;
            self.put_rows(stream, &hot, &all.of_rows(owned..all.shape.rows))?;
            y = all.of_rows(0..owned);
        }
        if classes == 0 {
            // All of them, so an addition finds nothing that stays.
            return self.put_rows(stream, &self.read_operand(job, 0, stream)?, &y);
        }
        let mut parts = Vec::with_capacity(classes);
        for i in 0..classes {
            parts.push((self.read_operand(job, 2 * i, stream)?, self.read_operand(job, 2 * i + 1, stream)?));
        }
        let placed: usize = parts.iter().map(|(rows, _)| rows.shape.rows).sum();
        if !add && placed < y.shape.rows {
            self.driver.fill(stream, y.area, 0)?;
        }
        for (x, at) in parts {
            let places = In::at(at.area.address);
            let call = if x.element == Element::Mxint8 {
                self.widen(&x, places, &y)
            } else {
                let (n, cols) = (x.shape.rows as u32, x.shape.columns() as u32);
                let ((from, stride), (to, to_stride)) = (x.input(), y.output());
                let there = y.shape.rows as u32;
                rows::merge(n, cols, from, stride, places, to, there, to_stride, self.fault())
                    .of(x.precision())
            };
            let put = Touch::Rows { all: y.area, list: at.flat(), at: None, written: true };
            self.run(stream, &call, &[Touch::In(x.area), put])?;
        }
        Ok(())
    }

    /// Rows as they travel become floats, in their order.
    fn put_rows(&self, stream: Stream, x: &Located, y: &Located) -> Result<(), Fault> {
        check("rows to put", x.shape.rows, y.shape.rows)?;
        let call = if x.element == Element::Mxint8 {
            self.widen(x, In::NULL, y)
        } else {
            let ((from, from_stride), (to, to_stride), (m, n)) = (x.input(), y.output(), x.size());
            elementwise::float_from_real(from, from_stride, to, to_stride, 0, m, n).of(x.precision())
        };
        self.run(stream, &call, &[Touch::In(x.area), Touch::Out(y.area)])
    }

    /// Sums of rows by bag, and of gradients by row.
    fn sums(&self, job: &Job<'_>, scratch: &mut Scratch<'_, D>) -> Result<(), Fault> {
        let stream = scratch.stream;
        let (x, at) = (self.read_operand(job, 0, stream)?, self.read_operand(job, 1, stream)?);
        let (y, add) = self.written_operand(job, 0, stream)?;
        let (n, groups, cols) = (at.shape.rows as u32, y.shape.rows as u32, y.shape.columns() as u32);
        let pooled = match job.op.action {
            Action::Pool { mode } | Action::PoolGrad { mode } => Some(u32::from(mode == PoolMode::Mean)),
            _ => None,
        };
        let offsets = match job.op.reads.get(2).map(|o| o.place) {
            Some(Place::Lengths(group)) => {
                let own: Vec<u32> = job.span().offsets(group as usize).iter().map(|o| *o as u32).collect();
                let memory = scratch.words(own.len() as u64)?;
                self.send(stream, &bytes_of(&own), memory.first(4 * own.len() as u64))?;
                Some((In::at(memory.address), (own.len() as u32).saturating_sub(1)))
            }
            _ => None,
        };
        let (x_in, x_stride) = (In::at(x.area.address), x.shape.stride as u64);
        let y_stride = y.shape.stride as u64;
        let list = In::at(at.area.address);
        if let (Action::Pool { .. }, Some((offsets, bags)), Some(mean)) = (&job.op.action, offsets, pooled) {
            let x_rows = x.shape.rows as u32;
            let (add_in, fault) = (u32::from(add), self.fault());
            let call = rows::pool(
                bags,
                cols,
                x_in,
                x_rows,
                x_stride,
                list,
                offsets,
                mean,
                Out::at(y.area.address),
                y_stride,
                add_in,
                fault,
            );
            return self.run(stream, &call, &[Touch::In(x.area), Touch::In(at.area), result(&y, add)]);
        }
        let counts = Sorting::counts(n);
        let work = Sorting {
            keys: [scratch.out(n)?, scratch.out(n)?],
            values: [scratch.out(n)?, scratch.out(n)?],
            counts: scratch.out(counts)?,
            sums: scratch.out(scan_room(counts) as u32)?,
        };
        let (ends, long, count) = (scratch.out(groups)?, scratch.out(groups)?, scratch.words(1)?);
        self.driver.fill(stream, count.first(4), 0)?;
        self.run(stream, &sort::check_below(n, list, groups, self.fault()), &[Touch::In(at.area)])?;
        let (calls, sorted) = sort_by(n, bits_below(u64::from(groups)), list, In::NULL, &work, 0);
        for call in calls {
            self.run(stream, &call, &[Touch::In(at.area)])?;
        }
        self.run(stream, &sort::bounds_of(groups, n, sorted.keys, ends), &[])?;
        let mut of = Gradients { x: x_in, stride: x_stride, bags: In::NULL, offsets: In::NULL, mean: false };
        if let (Some((offsets, bags)), Some(mean)) = (offsets, pooled) {
            let out = scratch.out(n)?;
            self.run(stream, &rows::bags_of_positions(n, bags, offsets, out, self.fault()), &[])?;
            of = Gradients { bags: out.read(), offsets, mean: mean == 1, ..of };
        }
        let groups = Segments {
            n,
            groups,
            positions: sorted.values,
            ends: ends.read(),
            long,
            count: Out::at(count.address),
        };
        let [begin, most, rest] = segment_sum(&groups, cols, &of, Out::at(y.area.address), y_stride, add);
        self.run(stream, &begin, &[])?;
        self.run(stream, &most, &[Touch::In(x.area), result(&y, add)])?;
        // Long lists come on top of what the others have written.
        self.run(stream, &rest, &[Touch::In(x.area), Touch::InOut(y.area)])
    }
}

/// Of gradients of all entries those of an exchange's share; all, if it has none.
fn share_of(job: &Job<'_>, exchange: u32, all: Located) -> Result<Located, Fault> {
    let (plan, table) = job.exchange(exchange)?;
    if plan.of.is_none() {
        return Ok(all);
    }
    let n = job.batch.share.size(Symbol::Sent(plan.entries), job.op.site, None);
    let rest = all.shape.rows.checked_sub(n).ok_or(Fault::NotTransfer)?;
    Ok(all.of_rows(if table.is_hot(plan.part) { rest..all.shape.rows } else { 0..n }))
}

/// A result that is overwritten or added to.
pub(super) fn result(y: &Located, add: bool) -> Touch {
    if add { Touch::InOut(y.area) } else { Touch::Out(y.area) }
}
