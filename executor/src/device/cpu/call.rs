//! One operation about to run: its operands as views.

use std::ops::Deref;

use fs_kernels::{MatMut, Real, Write, elementwise, mxint8};
use fs_schedule::action::Effect;
use fs_schedule::{Buffer, Element, Extent, Normalize, Operand, Place, Symbol};
use parking_lot::{Mutex, RwLock};

use super::arena::{ColumnRange, Read, Slots, Whole, Writes};
use super::{Cpu, Fault, Job, Shard, Work};
use crate::data::samples::Dealt;
use crate::data::share::Column;
use crate::transport::Coding;

/// An operation of a batch, with the memory that it works on.
pub(crate) struct Call<'a, T: Real> {
    /// The operation and its batch.
    pub job: &'a Job<'a>,
    /// The rank's memory.
    pub cpu: &'a Cpu<T>,
    /// Workspaces of the engine's thread.
    pub work: &'a Mutex<Work<T>>,
}

impl<'a, T: Real> Deref for Call<'a, T> {
    type Target = Job<'a>;
    fn deref(&self) -> &Job<'a> {
        self.job
    }
}

impl<'a, T: Real> Call<'a, T> {
    /// Prepares to run an operation.
    pub(crate) fn new(cpu: &'a Cpu<T>, work: &'a Mutex<Work<T>>, job: &'a Job<'a>) -> Self {
        Self { job, cpu, work }
    }

    /// Of a data-parallel exchange with several windows: the last use by any rank of each entry's row.
    pub(crate) fn last_uses(&self, exchange: u32) -> &'a Mutex<Vec<u8>> {
        let ring = &self.cpu.last_uses;
        &ring[(self.number % ring.len() as u64) as usize][exchange as usize]
    }

    /// Whether a read operand's batch exists.
    pub(crate) fn exists(&self, position: usize) -> bool {
        self.op.reads.get(position).is_some_and(|o| self.batch_of(*o).is_some())
    }

    fn operand(&self, written: bool, position: usize) -> Result<Operand, Fault> {
        let list = if written { &self.op.writes } else { &self.op.reads };
        list.get(position).copied().ok_or_else(|| self.wrong(written, position, "one more"))
    }

    /// The fault of an operand that is not what it should be.
    pub(crate) fn wrong(&self, written: bool, position: usize, expected: &'static str) -> Fault {
        let (side, list) = if written { ("written", &self.op.writes) } else { ("read", &self.op.reads) };
        let found = list.get(position).map_or_else(|| "missing".into(), ToString::to_string);
        Fault::Operand { side, position, found, expected }
    }

    /// A place with values to compute with: its storage and shape.
    fn reals(&self, written: bool, position: usize) -> Result<(&'a RwLock<Vec<T>>, ColumnRange), Fault> {
        const EXPECTED: &str = "a buffer of reals, a parameter or a gradient";
        let wrong = || self.wrong(written, position, EXPECTED);
        let operand = self.operand(written, position)?;
        let cpu = self.cpu;
        let parameter = |n: u32| -> Result<ColumnRange, Fault> {
            let p = self.env.schedule.parameters.get(n as usize).ok_or_else(wrong)?;
            Ok(ColumnRange::whole(p.rows as usize, p.columns as usize))
        };
        match operand.place {
            Place::Buffer(n) => {
                let buffer = self.job.program.buffers.get(n as usize).ok_or_else(wrong)?;
                let batch = self.batch_of(operand).ok_or_else(wrong)?;
                let pool = cpu.arena.floats(buffer.element).ok_or_else(wrong)?;
                let lock = pool.get(buffer, batch).ok_or_else(wrong)?;
                Ok((lock, self.shape(buffer, operand)?.ok_or_else(wrong)?))
            }
            Place::Parameter(n) => {
                self.touches(if written { Effect::WritesParameter } else { Effect::ReadsParameter });
                Ok((&cpu.dense.get(n as usize).ok_or_else(wrong)?.values, parameter(n)?))
            }
            Place::Gradient(n) => {
                self.touches(if written { Effect::WritesGradient } else { Effect::ReadsGradient });
                Ok((&cpu.dense.get(n as usize).ok_or_else(wrong)?.gradient, parameter(n)?))
            }
            Place::Table(_) | Place::Input(_) | Place::Lengths(_) => Err(wrong()),
        }
    }

    fn buffer(&self, n: u32, element: Element) -> Option<&'a Buffer> {
        self.job.program.buffers.get(n as usize).filter(|b| b.element == element)
    }

    fn shape(&self, buffer: &Buffer, operand: Operand) -> Result<Option<ColumnRange>, Fault> {
        let columns = buffer.columns as usize;
        let (start, end) = operand.columns.map_or((0, columns), |(s, e)| (s as usize, e as usize));
        let Some(rows) = self.job.rows(buffer, operand)? else { return Ok(None) };
        Ok((start <= end && end <= columns).then_some(ColumnRange { rows, stride: columns, start, end }))
    }

    /// The buffer of an operand.
    pub(crate) fn buffer_of(&self, written: bool, position: usize) -> Option<&'a Buffer> {
        let list = if written { &self.op.writes } else { &self.op.reads };
        match list.get(position)?.place {
            Place::Buffer(n) => self.job.program.buffers.get(n as usize),
            _ => None,
        }
    }

    /// Whether an operand is of brain floats.
    pub(crate) fn is_bf16(&self, written: bool, position: usize) -> bool {
        self.buffer_of(written, position).is_some_and(|b| b.element == Element::Bf16)
    }

    /// What the reals of a read operand are on their way.
    pub(crate) fn coding(&self, position: usize) -> Coding {
        self.buffer_of(false, position).map_or(Coding::Real, |b| Coding::of(b.element))
    }

    /// Rounds what an operation has written into buffers of shorter numbers.
    pub(crate) fn round(&self) -> Result<(), Fault> {
        for position in 0..self.op.writes.len() {
            let round = match self.buffer_of(true, position).map(|b| b.element) {
                Some(Element::Bf16) => elementwise::round_to_bf16,
                Some(Element::Mxint8) => mxint8::round,
                _ => continue,
            };
            round(self.write([position])?.first()?.0);
        }
        Ok(())
    }

    /// Its batch, whose samples are dealt to ranks.
    pub(crate) fn dealt(&self) -> Dealt {
        Dealt {
            step: self.batch.step,
            samples: self.batch.share.batch().samples,
            rank: self.env.rank,
            ranks: self.env.ranks,
            microbatches: self.env.schedule.settings.microbatches.max(1) as usize,
        }
    }

    /// A read operand of reals.
    pub(crate) fn read(&self, position: usize) -> Result<Read<'a, T>, Fault> {
        let (lock, shape) = self.reals(false, position)?;
        Read::lock(lock, shape, || self.name(false, position))
    }

    /// A written operand of reals that the kernel needs as a slice; it must not be added into.
    pub(crate) fn slice(&self, position: usize) -> Result<Whole<'a, T>, Fault> {
        let (lock, shape) = self.reals(true, position)?;
        if self.mode(position) == Write::Add {
            return Err(self.wrong(true, position, "overwritten, not added into"));
        }
        Whole::lock(lock, shape, || self.name(true, position))
    }

    /// A written operand of reals whose present contents matter: to be added into.
    pub(crate) fn slice_to_add(&self, position: usize) -> Result<Whole<'a, T>, Fault> {
        let (lock, shape) = self.reals(true, position)?;
        Whole::lock(lock, shape, || self.name(true, position))
    }

    /// Written operands of reals.
    pub(crate) fn write(&self, positions: impl IntoIterator<Item = usize>) -> Result<Writes<'a, T>, Fault> {
        let mut writes = Writes::default();
        for position in positions {
            let (lock, shape) = self.reals(true, position)?;
            writes.lock(lock, shape, self.mode(position), || self.name(true, position))?;
        }
        Ok(writes)
    }

    /// Runs a kernel that only overwrites, also where its results are to be added to what is there.
    pub(crate) fn produce<const N: usize>(
        &self,
        positions: [usize; N],
        kernel: impl FnOnce([MatMut<'_, T>; N]),
    ) -> Result<(), Fault> {
        let mut writes = self.write(positions)?;
        let targets = writes.array::<N>()?;
        if targets.iter().all(|(_, mode)| *mode == Write::Set) {
            kernel(targets.map(|(y, _)| y));
            return Ok(());
        }
        let mut temporaries = std::mem::take(&mut self.work.lock().temporaries);
        temporaries.resize_with(N.max(temporaries.len()), Vec::new);
        for (temporary, (y, _)) in temporaries.iter_mut().zip(&targets) {
            temporary.resize((y.rows() * y.cols()).max(temporary.len()), T::ZERO);
        }
        {
            let mut left = temporaries.iter_mut();
            let views = targets.each_ref().map(|(y, _)| {
                let all = left.next().map(Vec::as_mut_slice).unwrap_or_default();
                MatMut::new(&mut all[..y.rows() * y.cols()], y.rows(), y.cols())
            });
            kernel(views);
        }
        for ((y, mode), temporary) in targets.into_iter().zip(&temporaries) {
            let x = fs_kernels::Mat::new(&temporary[..y.rows() * y.cols()], y.rows(), y.cols());
            elementwise::copy(x, y, mode);
        }
        self.work.lock().temporaries = temporaries;
        Ok(())
    }

    /// Whether a written operand is added into.
    pub(crate) fn mode(&self, position: usize) -> Write {
        let add = self.op.writes.get(position).is_some_and(|o| o.accumulate);
        if add { Write::Add } else { Write::Set }
    }

    fn typed<E>(
        &self,
        pool: &'a Slots<E>,
        element: Element,
        expected: &'static str,
        written: bool,
        position: usize,
    ) -> Result<(&'a RwLock<Vec<E>>, ColumnRange), Fault> {
        let wrong = || self.wrong(written, position, expected);
        let operand = self.operand(written, position)?;
        let Place::Buffer(n) = operand.place else { return Err(wrong()) };
        let buffer = self.buffer(n, element).ok_or_else(wrong)?;
        let batch = self.batch_of(operand).ok_or_else(wrong)?;
        let lock = pool.get(buffer, batch).ok_or_else(wrong)?;
        Ok((lock, self.shape(buffer, operand)?.ok_or_else(wrong)?))
    }

    /// A read buffer of ids.
    pub(crate) fn read_ids(&self, position: usize) -> Result<Read<'a, i64>, Fault> {
        let pool = &self.cpu.arena.ids;
        let (lock, shape) = self.typed(pool, Element::Id, "a buffer of ids", false, position)?;
        Read::lock(lock, shape, || self.name(false, position))
    }

    /// A written buffer of ids.
    pub(crate) fn write_ids(&self, position: usize) -> Result<Whole<'a, i64>, Fault> {
        let pool = &self.cpu.arena.ids;
        let (lock, shape) = self.typed(pool, Element::Id, "a buffer of ids", true, position)?;
        Whole::lock(lock, shape, || self.name(true, position))
    }

    /// A read buffer of positions.
    pub(crate) fn read_indices(&self, position: usize) -> Result<Read<'a, u32>, Fault> {
        let pool = &self.cpu.arena.indices;
        let (lock, shape) = self.typed(pool, Element::Index, "a buffer of positions", false, position)?;
        Read::lock(lock, shape, || self.name(false, position))
    }

    /// A written buffer of positions.
    pub(crate) fn write_indices(&self, position: usize) -> Result<Whole<'a, u32>, Fault> {
        let pool = &self.cpu.arena.indices;
        let (lock, shape) = self.typed(pool, Element::Index, "a buffer of positions", true, position)?;
        Whole::lock(lock, shape, || self.name(true, position))
    }

    /// A read buffer of counts.
    pub(crate) fn read_counts(&self, position: usize) -> Result<Read<'a, u64>, Fault> {
        let pool = &self.cpu.arena.counts;
        let (lock, shape) = self.typed(pool, Element::Count, "a buffer of counts", false, position)?;
        Read::lock(lock, shape, || self.name(false, position))
    }

    /// A written buffer of counts.
    pub(crate) fn write_counts(&self, position: usize) -> Result<Whole<'a, u64>, Fault> {
        let pool = &self.cpu.arena.counts;
        let (lock, shape) = self.typed(pool, Element::Count, "a buffer of counts", true, position)?;
        Whole::lock(lock, shape, || self.name(true, position))
    }

    /// A read buffer of classes or uses.
    pub(crate) fn read_bytes(&self, position: usize) -> Result<Read<'a, u8>, Fault> {
        let pool = &self.cpu.arena.bytes;
        let (lock, shape) =
            self.typed(pool, Element::Byte, "a buffer of classes or uses", false, position)?;
        Read::lock(lock, shape, || self.name(false, position))
    }

    /// A written buffer of classes or uses.
    pub(crate) fn write_bytes(&self, position: usize) -> Result<Whole<'a, u8>, Fault> {
        let pool = &self.cpu.arena.bytes;
        let (lock, shape) = self.typed(pool, Element::Byte, "a buffer of classes or uses", true, position)?;
        Whole::lock(lock, shape, || self.name(true, position))
    }

    /// Offsets of a length group.
    pub(crate) fn offsets(&self, position: usize) -> Result<&[usize], Fault> {
        match self.operand(false, position)?.place {
            Place::Lengths(g) => {
                self.touches(Effect::ReadsBatch);
                Ok(self.span().offsets(g as usize))
            }
            _ => Err(self.wrong(false, position, "offsets of a length group")),
        }
    }

    /// An input of the batch, if the operand is one: the part of a microbatch.
    pub(crate) fn input(
        &self,
        position: usize,
        microbatch: Option<u32>,
    ) -> Result<Option<Column<'_>>, Fault> {
        match self.operand(false, position)?.place {
            Place::Input(n) => {
                self.touches(Effect::ReadsBatch);
                let part = self.batch.share.input(&self.env.schedule, n as usize, self.op.site, microbatch);
                part.map(Some).ok_or_else(|| self.wrong(false, position, "an input of the batch"))
            }
            _ => Ok(None),
        }
    }

    /// Labels or features.
    pub(crate) fn input_reals(&self, position: usize) -> Result<&[f32], Fault> {
        match self.input(position, self.op.microbatch)? {
            Some(Column::Reals(reals)) => Ok(reals),
            _ => Err(self.wrong(false, position, "an input of reals")),
        }
    }

    /// This rank's shard of a part of a read or written table, and the table's number.
    pub(crate) fn table(
        &self,
        written: bool,
        position: usize,
        part: u32,
    ) -> Result<(usize, &'a RwLock<Shard<T>>), Fault> {
        self.touches(if written { Effect::WritesTable } else { Effect::ReadsTable });
        let shard = match self.operand(written, position)?.place {
            Place::Table(n) => {
                self.cpu.tables.get(n as usize).and_then(|t| Some((n as usize, t.get(part as usize)?)))
            }
            _ => None,
        };
        shard.ok_or_else(|| self.wrong(written, position, "a table"))
    }

    /// The dense parameter that a read gradient belongs to.
    pub(crate) fn gradient(&self, position: usize) -> Result<usize, Fault> {
        self.touches(Effect::ReadsGradient);
        match self.operand(false, position)?.place {
            Place::Gradient(n) if (n as usize) < self.cpu.dense.len() => Ok(n as usize),
            _ => Err(self.wrong(false, position, "a gradient")),
        }
    }

    /// Random keys of the rows of a written buffer: of its samples or tokens, the same whatever the rank.
    pub(crate) fn row_keys(&self, position: usize) -> Result<&[u64], Fault> {
        self.touches(Effect::ReadsBatch);
        let wrong = || self.wrong(true, position, "a buffer with a row per sample or token");
        let buffer = self.buffer_of(true, position).ok_or_else(wrong)?;
        let span = self.batch.share.part(buffer.site, buffer.microbatch);
        match buffer.rows {
            Extent::Symbol(Symbol::Samples) => Ok(span.sample_keys()),
            Extent::Symbol(Symbol::Tokens(g)) => Ok(span.token_keys(g as usize)),
            _ => Err(wrong()),
        }
    }

    /// What a loss is multiplied by: one over the divisor, counted over the global batch.
    pub(crate) fn norm(&self, normalize: Normalize) -> f64 {
        let batch = self.batch.share.batch();
        let divisor = match normalize {
            Normalize::Constant(c) => c,
            Normalize::Samples => batch.samples as f64,
            Normalize::Tokens(g) => batch.tokens_of(g as usize) as f64,
        };
        if divisor == 0.0 { 0.0 } else { divisor.recip() }
    }

    fn name(&self, written: bool, position: usize) -> String {
        let list = if written { &self.op.writes } else { &self.op.reads };
        list.get(position).map_or_else(String::new, ToString::to_string)
    }
}
