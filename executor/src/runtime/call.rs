//! One operation about to run: its operands as views.

use fs_kernels::random::RandomKey;
use fs_kernels::{MatMut, Real, Write};
use fs_schedule::{Buffer, Element, Extent, Normalize, Op, Operand, Place, Program, Symbol};
use parking_lot::{RwLock, RwLockReadGuard};

use super::arena::{Pool, Read, Shape, Whole, Writes};
use super::share::Part;
use super::{Current, Env, Fault, Shard};

/// An operation, where it runs and on what.
pub struct Call<'a, T: Real> {
    /// The rank.
    pub env: &'a Env<T>,
    /// The operation.
    pub op: &'a Op,
    /// The step and its batch.
    pub current: RwLockReadGuard<'a, Current>,
    program: &'a Program,
}

impl<'a, T: Real> Call<'a, T> {
    /// Prepares to run `op`.
    pub fn new(env: &'a Env<T>, program: &'a Program, op: &'a Op) -> Result<Self, Fault> {
        let current = env.current.try_read().ok_or_else(|| Fault::Conflict("batch".into()))?;
        Ok(Self { env, op, current, program })
    }

    fn operand(&self, written: bool, position: usize) -> Result<Operand, Fault> {
        let list = if written { &self.op.writes } else { &self.op.reads };
        list.get(position).copied().ok_or_else(|| self.wrong(written, position, "one more"))
    }

    fn wrong(&self, written: bool, position: usize, expected: &'static str) -> Fault {
        let (side, list) = if written { ("written", &self.op.writes) } else { ("read", &self.op.reads) };
        let found = list.get(position).map_or_else(|| "missing".into(), ToString::to_string);
        Fault::Operand { side, position, found, expected }
    }

    /// A place with values of the training precision: its storage and shape.
    fn reals(&self, written: bool, position: usize) -> Result<(&'a RwLock<Vec<T>>, Shape), Fault> {
        const EXPECTED: &str = "a buffer of reals, a parameter or a gradient";
        let wrong = || self.wrong(written, position, EXPECTED);
        let operand = self.operand(written, position)?;
        let env = self.env;
        let parameter = |n: u32| -> Result<Shape, Fault> {
            let p = env.schedule.parameters.get(n as usize).ok_or_else(wrong)?;
            Ok(Shape::whole(p.rows as usize, p.columns as usize))
        };
        match operand.place {
            Place::Buffer(n) => {
                let buffer = self.buffer(n, Element::Real).ok_or_else(wrong)?;
                let lock = env.arena.reals.get(buffer.slot as usize).ok_or_else(wrong)?;
                Ok((lock, self.shape(buffer, operand).ok_or_else(wrong)?))
            }
            Place::Parameter(n) => Ok((&env.dense.get(n as usize).ok_or_else(wrong)?.values, parameter(n)?)),
            Place::Gradient(n) => Ok((&env.dense.get(n as usize).ok_or_else(wrong)?.gradient, parameter(n)?)),
            Place::Table(_) | Place::Input(_) | Place::Lengths(_) => Err(wrong()),
        }
    }

    fn buffer(&self, n: u32, element: Element) -> Option<&'a Buffer> {
        self.program.buffers.get(n as usize).filter(|b| b.element == element)
    }

    fn shape(&self, buffer: &Buffer, operand: Operand) -> Option<Shape> {
        let columns = buffer.columns as usize;
        let (start, end) = operand.columns.map_or((0, columns), |(s, e)| (s as usize, e as usize));
        (start <= end && end <= columns).then_some(Shape {
            rows: self.rows(buffer.rows),
            stride: columns,
            start,
            end,
        })
    }

    fn rows(&self, extent: Extent) -> usize {
        match extent {
            Extent::Symbol(symbol) => self.current.share.size(symbol),
            Extent::Fixed(n) => n as usize,
        }
    }

    /// A read operand of reals.
    pub fn read(&self, position: usize) -> Result<Read<'a, T>, Fault> {
        let (lock, shape) = self.reals(false, position)?;
        Read::lock(lock, shape, || self.name(false, position))
    }

    /// A written operand of reals that the kernel needs as a slice; it must not be added into.
    pub fn slice(&self, position: usize) -> Result<Whole<'a, T>, Fault> {
        let (lock, shape) = self.reals(true, position)?;
        if self.mode(position) == Write::Add {
            return Err(self.wrong(true, position, "overwritten, not added into"));
        }
        Whole::lock(lock, shape, || self.name(true, position))
    }

    /// A written operand of reals whose present contents matter: to be added into.
    pub fn slice_to_add(&self, position: usize) -> Result<Whole<'a, T>, Fault> {
        let (lock, shape) = self.reals(true, position)?;
        Whole::lock(lock, shape, || self.name(true, position))
    }

    /// Written operands of reals.
    pub fn write(&self, positions: impl IntoIterator<Item = usize>) -> Result<Writes<'a, T>, Fault> {
        let mut writes = Writes::default();
        for position in positions {
            let (lock, shape) = self.reals(true, position)?;
            writes.lock(lock, shape, self.mode(position), || self.name(true, position))?;
        }
        Ok(writes)
    }

    /// Runs a kernel that only overwrites, also where its results are to be added to what is there.
    pub fn produce<const N: usize>(
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
        let mut temporaries = std::mem::take(&mut self.env.work.lock().temporaries);
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
            fs_kernels::elementwise::copy(x, y, mode);
        }
        self.env.work.lock().temporaries = temporaries;
        Ok(())
    }

    /// Whether a written operand is added into.
    pub fn mode(&self, position: usize) -> Write {
        let add = self.op.writes.get(position).is_some_and(|o| o.accumulate);
        if add { Write::Add } else { Write::Set }
    }

    fn typed<E>(
        &self,
        pool: &'a Pool<E>,
        element: Element,
        expected: &'static str,
        written: bool,
        position: usize,
    ) -> Result<(&'a RwLock<Vec<E>>, Shape), Fault> {
        let wrong = || self.wrong(written, position, expected);
        let operand = self.operand(written, position)?;
        let Place::Buffer(n) = operand.place else { return Err(wrong()) };
        let buffer = self.buffer(n, element).ok_or_else(wrong)?;
        let lock = pool.get(buffer.slot as usize).ok_or_else(wrong)?;
        Ok((lock, self.shape(buffer, operand).ok_or_else(wrong)?))
    }

    /// A read buffer of ids.
    pub fn read_ids(&self, position: usize) -> Result<Read<'a, i64>, Fault> {
        let (lock, shape) =
            self.typed(&self.env.arena.ids, Element::Id, "a buffer of ids", false, position)?;
        Read::lock(lock, shape, || self.name(false, position))
    }

    /// A written buffer of ids.
    pub fn write_ids(&self, position: usize) -> Result<Whole<'a, i64>, Fault> {
        let (lock, shape) =
            self.typed(&self.env.arena.ids, Element::Id, "a buffer of ids", true, position)?;
        Whole::lock(lock, shape, || self.name(true, position))
    }

    /// A read buffer of positions.
    pub fn read_indices(&self, position: usize) -> Result<Read<'a, u32>, Fault> {
        let pool = &self.env.arena.indices;
        let (lock, shape) = self.typed(pool, Element::Index, "a buffer of indices", false, position)?;
        Read::lock(lock, shape, || self.name(false, position))
    }

    /// A written buffer of positions.
    pub fn write_indices(&self, position: usize) -> Result<Whole<'a, u32>, Fault> {
        let pool = &self.env.arena.indices;
        let (lock, shape) = self.typed(pool, Element::Index, "a buffer of indices", true, position)?;
        Whole::lock(lock, shape, || self.name(true, position))
    }

    /// A read buffer of counts.
    pub fn read_counts(&self, position: usize) -> Result<Read<'a, u64>, Fault> {
        let pool = &self.env.arena.counts;
        let (lock, shape) = self.typed(pool, Element::Count, "a buffer of counts", false, position)?;
        Read::lock(lock, shape, || self.name(false, position))
    }

    /// A written buffer of counts.
    pub fn write_counts(&self, position: usize) -> Result<Whole<'a, u64>, Fault> {
        let pool = &self.env.arena.counts;
        let (lock, shape) = self.typed(pool, Element::Count, "a buffer of counts", true, position)?;
        Whole::lock(lock, shape, || self.name(true, position))
    }

    /// Offsets of a length group.
    pub fn offsets(&self, position: usize) -> Result<&[usize], Fault> {
        match self.operand(false, position)?.place {
            Place::Lengths(g) => Ok(self.current.share.offsets(g as usize)),
            _ => Err(self.wrong(false, position, "offsets of a length group")),
        }
    }

    /// An input of the batch, if the operand is one.
    pub fn input(&self, position: usize) -> Result<Option<Part<'_>>, Fault> {
        match self.operand(false, position)?.place {
            Place::Input(n) => {
                let part = self.current.share.input(&self.env.schedule, n as usize);
                part.map(Some).ok_or_else(|| self.wrong(false, position, "an input of the batch"))
            }
            _ => Ok(None),
        }
    }

    /// Labels or features.
    pub fn input_reals(&self, position: usize) -> Result<&[f32], Fault> {
        match self.input(position)? {
            Some(Part::Reals(reals)) => Ok(reals),
            _ => Err(self.wrong(false, position, "an input of reals")),
        }
    }

    /// The shard of a read or written table, and its number.
    pub fn table(&self, written: bool, position: usize) -> Result<(usize, &'a RwLock<Shard<T>>), Fault> {
        match self.operand(written, position)?.place {
            Place::Table(n) if (n as usize) < self.env.tables.len() => {
                Ok((n as usize, &self.env.tables[n as usize]))
            }
            _ => Err(self.wrong(written, position, "a table")),
        }
    }

    /// The dense parameter that a read gradient belongs to.
    pub fn gradient(&self, position: usize) -> Result<usize, Fault> {
        match self.operand(false, position)?.place {
            Place::Gradient(n) if (n as usize) < self.env.dense.len() => Ok(n as usize),
            _ => Err(self.wrong(false, position, "a gradient")),
        }
    }

    /// The random key of a stream in this step.
    pub fn key(&self, stream: u32) -> RandomKey {
        RandomKey { seed: self.env.seed, stream, step: self.current.step }
    }

    /// Random keys of the rows of a written buffer: of its samples or tokens, the same whatever the rank.
    pub fn row_keys(&self, position: usize) -> Result<&[u64], Fault> {
        let wrong = || self.wrong(true, position, "a buffer with a row per sample or token");
        let Place::Buffer(n) = self.operand(true, position)?.place else { return Err(wrong()) };
        match self.program.buffers.get(n as usize).ok_or_else(wrong)?.rows {
            Extent::Symbol(Symbol::Samples) => Ok(self.current.share.sample_keys()),
            Extent::Symbol(Symbol::Tokens(g)) => Ok(self.current.share.token_keys(g as usize)),
            _ => Err(wrong()),
        }
    }

    /// What a loss is multiplied by: one over the divisor, counted over the global batch.
    pub fn norm(&self, normalize: Normalize) -> f64 {
        let batch = self.current.share.batch();
        let divisor = match normalize {
            Normalize::Constant(c) => c,
            Normalize::Samples => batch.samples as f64,
            Normalize::Tokens(g) => {
                batch.offsets.get(g as usize).and_then(|o| o.last()).map_or(0.0, |n| *n as f64)
            }
        };
        if divisor == 0.0 { 0.0 } else { divisor.recip() }
    }

    /// Adds to the step's loss.
    pub fn add_loss(&self, value: f64) {
        *self.env.loss.lock() += value;
    }

    fn name(&self, written: bool, position: usize) -> String {
        let list = if written { &self.op.writes } else { &self.op.reads };
        list.get(position).map_or_else(String::new, ToString::to_string)
    }
}
