//! A device that is another one, and notes what its operations write: so that what two devices make of the same schedule can
//! be compared list by list.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use fs_executor::device::cpu::Cpu;
use fs_executor::device::cpu::arena::{ColumnRange, Read};
use fs_executor::device::cuda::Cuda;
use fs_executor::device::{
    Device, Env, Fault, Held, Inbox, Job, OpenError, Progress, PutAside, Stored, Urgent,
};
use fs_executor::transport::Reach;
use fs_kernels::cuda::driver::emulated::Emulated;
use fs_schedule::{Element, Engine, Operand, Place, Program, Schedule};
use parking_lot::{Mutex, RwLock};

/// A device whose results can be looked at.
pub trait Look: Device {
    /// The bytes of what an operation has written, as it has ended and before anything that depends on it begins; `None` for
    /// what is no buffer, or not told.
    fn look(&self, job: &Job<'_>, operand: Operand) -> Result<Option<Vec<u8>>, Fault>;
}

/// What a rank's operation of a batch has written: for each result that is a list of ids, positions, counts or bytes, these.
pub type Seen = BTreeMap<(usize, usize, u64), Vec<Option<Vec<u8>>>>;

/// Options of the device, and where it is noted.
pub struct Options<D: Device> {
    /// Its own.
    pub own: D::Options,
    /// By rank, operation and batch.
    pub seen: Arc<Mutex<Seen>>,
    /// Whether activations in bf16 are noted, too: as two bytes, or as what a device has instead.
    pub brain_floats: bool,
}

impl<D: Device> Clone for Options<D> {
    fn clone(&self) -> Self {
        Self { own: self.own.clone(), seen: Arc::clone(&self.seen), brain_floats: self.brain_floats }
    }
}

impl<D: Device> Default for Options<D> {
    fn default() -> Self {
        Self { own: D::Options::default(), seen: Arc::default(), brain_floats: false }
    }
}

/// See the module.
pub struct Witness<D: Device> {
    own: D,
    seen: Arc<Mutex<Seen>>,
    brain_floats: bool,
}

/// Whether what an operation writes there is noted.
pub fn noted(program: &Program, operand: &Operand, brain_floats: bool) -> bool {
    let Place::Buffer(n) = operand.place else { return false };
    match program.buffers[n as usize].element {
        Element::Real | Element::Mxint8 => false,
        Element::Bf16 => brain_floats,
        Element::Id | Element::Index | Element::Count | Element::Byte => true,
    }
}

/// The first list that is another one than on the CPU.
pub fn difference(s: &Schedule, found: &Seen, expected: &Seen) -> Option<String> {
    if found.keys().ne(expected.keys()) {
        return Some(format!("{} operations, {} on the CPU", found.len(), expected.len()));
    }
    for ((key, found), expected) in found.iter().zip(expected.values()) {
        let (rank, op, batch) = *key;
        let op = &s.train.ops[op];
        let buffers = op.writes.iter().filter(|o| matches!(o.place, Place::Buffer(_)));
        for ((operand, found), expected) in buffers.zip(found).zip(expected) {
            // Lengths and assignments are the host's.
            if found.is_some() && found != expected {
                return Some(format!(
                    "{operand} of `{}` of batch {batch} on rank {rank} is {found:?}, {expected:?} on the CPU",
                    op.name
                ));
            }
        }
    }
    None
}

impl<D: Look> Witness<D> {
    /// Notes what an operation has written, if it has ended.
    fn note<T>(&self, job: &Job<'_>, progress: Progress<T>) -> Result<Progress<T>, Fault> {
        if let Progress::Done = progress {
            let list = |operand: &Operand| noted(job.program, operand, self.brain_floats);
            let lists: Vec<Operand> = job.op.writes.iter().copied().filter(list).collect();
            if !lists.is_empty() {
                let written = lists.iter().map(|operand| self.own.look(job, *operand));
                let written = written.collect::<Result<Vec<_>, _>>()?;
                self.seen.lock().insert((job.env.rank, job.index, job.number), written);
            }
        }
        Ok(progress)
    }
}

impl Look for Cuda<Emulated> {
    fn look(&self, job: &Job<'_>, operand: Operand) -> Result<Option<Vec<u8>>, Fault> {
        Self::look(self, job, operand)
    }
}

impl Look for Cpu<f32> {
    fn look(&self, job: &Job<'_>, operand: Operand) -> Result<Option<Vec<u8>>, Fault> {
        fn of<E: Copy, const N: usize>(
            lock: Option<&RwLock<Vec<E>>>,
            shape: ColumnRange,
            bytes: impl Fn(E) -> [u8; N],
        ) -> Result<Option<Vec<u8>>, Fault> {
            let Some(lock) = lock else { return Ok(None) };
            let read = Read::lock(lock, shape, || "of a result".into())?;
            Ok(Some(read.slice()?.iter().flat_map(|x| bytes(*x)).collect()))
        }
        let Place::Buffer(n) = operand.place else { return Ok(None) };
        let (buffer, batch) = (&job.program.buffers[n as usize], job.batch_of(operand));
        let (Some(batch), Some(rows)) = (batch, job.rows(buffer, operand)?) else { return Ok(None) };
        let shape = ColumnRange::whole(rows, buffer.columns as usize);
        match buffer.element {
            Element::Real | Element::Mxint8 => Ok(None),
            // As they are: whether they are rounded is for who looks at them.
            Element::Bf16 => {
                let (start, end) = operand.columns.map_or((0, shape.end), |(s, e)| (s as usize, e as usize));
                let Some(lock) = self.arena.bf16s.get(buffer, batch) else { return Ok(None) };
                let read = Read::lock(lock, ColumnRange { start, end, ..shape }, || "of a result".into())?;
                let rows = (0..rows).flat_map(|row| read.mat().row(row).to_vec());
                Ok(Some(rows.flat_map(f32::to_le_bytes).collect()))
            }
            Element::Id => of(self.arena.ids.get(buffer, batch), shape, i64::to_le_bytes),
            Element::Index => of(self.arena.indices.get(buffer, batch), shape, u32::to_le_bytes),
            Element::Count => of(self.arena.counts.get(buffer, batch), shape, u64::to_le_bytes),
            Element::Byte => of(self.arena.bytes.get(buffer, batch), shape, u8::to_le_bytes),
        }
    }
}

impl<D: Look> Device for Witness<D> {
    type Real = D::Real;
    type Lane = D::Lane;
    type Ticket = D::Ticket;
    type Cursor = D::Cursor;
    type Outbox = D::Outbox;
    type Options = Options<D>;

    const LATE_LOSSES: bool = D::LATE_LOSSES;
    const IN_ORDER: bool = D::IN_ORDER;

    fn open(env: &Env, options: &Options<D>) -> Result<Self, OpenError> {
        let (seen, brain_floats) = (Arc::clone(&options.seen), options.brain_floats);
        Ok(Self { own: D::open(env, &options.own)?, seen, brain_floats })
    }

    fn lane(&self, engine: Engine) -> D::Lane {
        self.own.lane(engine)
    }

    fn outbox(&self, reach: Reach) -> D::Outbox {
        self.own.outbox(reach)
    }

    fn start(&self, lane: &D::Lane, job: &Job<'_>) -> Result<Progress<D::Ticket>, Fault> {
        self.note(job, self.own.start(lane, job)?)
    }

    fn poll(&self, lane: &D::Lane, job: &Job<'_>, ticket: D::Ticket) -> Result<Progress<D::Ticket>, Fault> {
        self.note(job, self.own.poll(lane, job, ticket)?)
    }

    fn late_loss(&self, batch: u64) -> Result<Option<f64>, Fault> {
        self.own.late_loss(batch)
    }

    fn settle(&self) -> Result<(), Fault> {
        self.own.settle()
    }

    fn check(&self) -> Result<(), Fault> {
        self.own.check()
    }

    fn end_behind(&self, job: &Job<'_>) -> Result<(), Fault> {
        self.own.end_behind(job)
    }

    fn rounds(&self, lane: &D::Lane, job: &Job<'_>) -> Result<u64, Fault> {
        self.own.rounds(lane, job)
    }

    fn fill(
        &self,
        lane: &D::Lane,
        job: &Job<'_>,
        at: (u64, Option<D::Cursor>),
        outbox: &mut D::Outbox,
        inbox: Inbox<'_, D::Outbox>,
        urgent: Urgent<'_>,
    ) -> Result<Progress<D::Cursor>, Fault> {
        self.own.fill(lane, job, at, outbox, inbox, urgent)
    }

    fn drain(
        &self,
        lane: &D::Lane,
        job: &Job<'_>,
        from: Option<D::Cursor>,
        inbox: Inbox<'_, D::Outbox>,
        urgent: Urgent<'_>,
    ) -> Result<Progress<D::Cursor>, Fault> {
        self.note(job, self.own.drain(lane, job, from, inbox, urgent)?)
    }

    fn len(&self, what: Stored) -> usize {
        self.own.len(what)
    }

    fn read(&self, what: Stored, elements: Range<usize>, take: &mut dyn FnMut(&[D::Real])) {
        self.own.read(what, elements, take);
    }

    fn write(&self, what: Stored, first: usize, values: &[D::Real]) {
        self.own.write(what, first, values);
    }

    fn capture(&self, on: bool) {
        self.own.capture(on);
    }

    fn keep(&self, from: u64, first: bool) {
        self.own.keep(from, first);
    }

    fn begin_taking(&self, patience: std::time::Duration) {
        self.own.begin_taking(patience);
    }

    fn take_rows(&self, table: usize, part: usize, rows: Range<usize>, out: &mut [Vec<D::Real>; 3]) {
        self.own.take_rows(table, part, rows, out);
    }

    fn take_parameter(&self, parameter: usize) -> [Vec<D::Real>; 3] {
        self.own.take_parameter(parameter)
    }

    fn forget(&self) {
        self.own.forget();
    }

    fn crowded(&self) -> bool {
        self.own.crowded()
    }

    fn aside(&self) -> PutAside {
        self.own.aside()
    }

    fn held(&self) -> Held {
        self.own.held()
    }
}
