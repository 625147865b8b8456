//! Where the operands of an operation lie.

use std::ops::Range;

use fs_kernels::cuda::driver::{Area, Driver, Stream};
use fs_kernels::{Mat, mxint8};
use fs_schedule::{Action, Buffer, Element, Operand, Place, Schedule};

use super::memory::columns;
use super::plain::{Plain, bytes_of, narrowed, put, take, values_of, widened};
use super::{Cuda, Fault, Job};
use crate::device::cpu::arena::ColumnRange;

/// Buffers that stay on the host, per program: lengths and assignments of samples, which it plans with.
pub(super) fn of_host(schedule: &Schedule) -> [Vec<bool>; 2] {
    let of = |program: &fs_schedule::Program| {
        let mut host: Vec<bool> =
            program.buffers.iter().map(|buffer| buffer.element == Element::Count).collect();
        for op in &program.ops {
            if matches!(op.action, Action::ShareLengths | Action::Assign) {
                for written in &op.writes {
                    if let Place::Buffer(n) = written.place {
                        host[n as usize] = true;
                    }
                }
            }
        }
        host
    };
    [of(&schedule.train), schedule.evaluation.as_ref().map_or_else(Vec::new, of)]
}

/// An operand in device memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Located {
    pub(super) area: Area,
    pub(super) shape: ColumnRange,
    pub(super) element: Element,
}

impl Located {
    /// A list: all its bytes one after the other.
    pub(super) fn flat(&self) -> Area {
        self.area.joined()
    }

    /// Some of its rows.
    pub(super) fn of_rows(&self, rows: Range<usize>) -> Self {
        let area = self.area.rows(rows.start as u64, rows.len() as u64);
        Self { area, shape: ColumnRange { rows: rows.len(), ..self.shape }, ..*self }
    }
}

impl<D: Driver> Cuda<D> {
    /// Counts, which the host has.
    pub(super) fn host_counts(
        &self,
        job: &Job<'_>,
        operand: Operand,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let missing = || Fault::Unwritten(operand.to_string());
        let Place::Buffer(n) = operand.place else { return Err(missing()) };
        let (buffer, batch) = (job.program.buffers.get(n as usize), job.batch_of(operand));
        let (Some(buffer), Some(batch)) = (buffer, batch) else { return Err(missing()) };
        let shape = Self::shape(job, buffer, operand)?.ok_or_else(missing)?;
        take(self.host.arena.counts.get(buffer, batch).ok_or_else(missing)?, shape, bytes)
    }

    fn shape(job: &Job<'_>, buffer: &Buffer, operand: Operand) -> Result<Option<ColumnRange>, Fault> {
        let all = buffer.columns as usize;
        let (start, end) = operand.columns.map_or((0, all), |(s, e)| (s as usize, e as usize));
        let Some(rows) = job.rows(buffer, operand)? else { return Ok(None) };
        Ok((start <= end && end <= all).then_some(ColumnRange { rows, stride: all, start, end }))
    }

    fn stays(&self, job: &Job<'_>, n: u32) -> bool {
        let program = usize::from(!std::ptr::eq(job.program, &raw const job.env.schedule.train));
        self.of_host[program].get(n as usize).copied().unwrap_or(false)
    }

    /// Where an operand lies on the device; `None` for what the host has, and for batches that there are not.
    pub(super) fn locate(
        &self,
        job: &Job<'_>,
        operand: Operand,
        stream: Stream,
        written: bool,
    ) -> Result<Option<Located>, Fault> {
        match operand.place {
            Place::Buffer(n) => {
                let Some(buffer) = job.program.buffers.get(n as usize) else { return Ok(None) };
                let Some(batch) = job.batch_of(operand).filter(|_| !self.stays(job, n)) else {
                    return Ok(None);
                };
                let Some(shape) = Self::shape(job, buffer, operand)? else { return Ok(None) };
                let bytes = shape.rows as u64 * buffer.element.row_bytes(buffer.columns);
                let memory = self.buffers.get(&*self.driver, (buffer, batch), bytes, stream, written)?;
                let memory = memory.ok_or_else(|| Fault::Unwritten(operand.to_string()))?;
                let area = columns(memory, shape, buffer.element);
                Ok(Some(Located { area, shape, element: buffer.element }))
            }
            Place::Parameter(n) | Place::Gradient(n) => {
                let Some(dense) = self.trained.dense.get(n as usize) else { return Ok(None) };
                let memory =
                    if matches!(operand.place, Place::Gradient(_)) { dense.gradient } else { dense.values };
                let p = &job.env.schedule.parameters[n as usize];
                let shape = ColumnRange::whole(p.rows as usize, p.columns as usize);
                let element = Element::Real;
                Ok(Some(Located { area: columns(memory, shape, element), shape, element }))
            }
            Place::Table(_) | Place::Input(_) | Place::Lengths(_) => Ok(None),
        }
    }

    /// A weight as products of brain floats read it.
    pub(super) fn rounded_operand(&self, job: &Job<'_>, position: usize) -> Result<Located, Fault> {
        let missing = || Fault::Unwritten(format!("operand {position} of `{}`, rounded", job.op.name));
        let operand = job.op.reads.get(position).ok_or_else(missing)?;
        let Place::Parameter(n) = operand.place else { return Err(missing()) };
        let dense = self.trained.dense.get(n as usize).filter(|dense| dense.rounded.bytes > 0);
        let dense = dense.ok_or_else(missing)?;
        let p = &job.env.schedule.parameters[n as usize];
        let shape = ColumnRange::whole(p.rows as usize, p.columns as usize);
        let area = columns(dense.rounded, shape, Element::Bf16);
        Ok(Located { area, shape, element: Element::Bf16 })
    }

    /// The bytes of what an operation has written, as it has ended and before anything that depends on it begins; `None` for what
    /// is no buffer. Waits for the device: for tests.
    pub fn look(&self, job: &Job<'_>, operand: Operand) -> Result<Option<Vec<u8>>, Fault> {
        let Place::Buffer(n) = operand.place else { return Ok(None) };
        let mut bytes = Vec::new();
        if self.stays(job, n) {
            if job.program.buffers.get(n as usize).is_some_and(|b| b.element == Element::Count) {
                self.host_counts(job, operand, &mut bytes)?;
                return Ok(Some(bytes));
            }
            return Ok(None);
        }
        let stream = self.order.stream(job);
        let Some(at) = self.locate(job, operand, stream, false)? else { return Ok(None) };
        if at.area.is_empty() {
            return Ok(Some(bytes));
        }
        let staging = self.staging.take(&*self.driver, at.area.bytes())?;
        self.driver.download(stream, at.area, (staging.pinned, 0))?;
        // Whoever depends on the operation comes after this, too.
        self.order.mark(&*self.driver, job)?;
        self.driver.synchronize(stream)?;
        bytes.resize(at.area.bytes() as usize, 0);
        self.driver.read(staging.pinned, 0, &mut bytes)?;
        self.staging.give(&*self.driver, stream, staging)?;
        Ok(Some(bytes))
    }

    /// Puts bytes that came from the device where the host's handlers find them.
    pub(super) fn host_put(
        &self,
        job: &Job<'_>,
        operand: Operand,
        at: &Located,
        bytes: &[u8],
    ) -> Result<(), Fault> {
        fn to<E: Plain>(
            lock: Option<&parking_lot::RwLock<Vec<E>>>,
            at: &Located,
            bytes: &[u8],
        ) -> Result<(), Fault> {
            lock.map_or(Ok(()), |lock| put(lock, at.shape, bytes))
        }
        match operand.place {
            // What uses these is the device's.
            Place::Parameter(_) | Place::Gradient(_) => Err(Fault::Unwritten(operand.to_string())),
            Place::Buffer(n) => {
                let Some(batch) = job.batch_of(operand) else { return Ok(()) };
                let (arena, buffer) = (&self.host.arena, &job.program.buffers[n as usize]);
                match at.element {
                    Element::Real => to(arena.reals.get(buffer, batch), at, bytes),
                    // The host has numbers that are rounded instead.
                    Element::Bf16 => to(arena.bf16s.get(buffer, batch), at, &widened(bytes)),
                    Element::Mxint8 => {
                        let mut floats: Vec<f32> = Vec::new();
                        mxint8::read(bytes, at.shape.columns(), &mut floats);
                        to(arena.mxint8s.get(buffer, batch), at, &bytes_of(&floats))
                    }
                    Element::Id => to(arena.ids.get(buffer, batch), at, bytes),
                    Element::Index => to(arena.indices.get(buffer, batch), at, bytes),
                    Element::Count => to(arena.counts.get(buffer, batch), at, bytes),
                    Element::Byte => to(arena.bytes.get(buffer, batch), at, bytes),
                }
            }
            Place::Table(_) | Place::Input(_) | Place::Lengths(_) => Ok(()),
        }
    }

    /// Takes bytes that the host's handlers have made, for the device.
    pub(super) fn host_take(
        &self,
        job: &Job<'_>,
        operand: Operand,
        at: &Located,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        fn from<E: Plain>(
            lock: Option<&parking_lot::RwLock<Vec<E>>>,
            at: &Located,
            bytes: &mut Vec<u8>,
        ) -> Result<(), Fault> {
            lock.map_or(Ok(()), |lock| take(lock, at.shape, bytes))
        }
        match operand.place {
            Place::Parameter(_) | Place::Gradient(_) => Err(Fault::Unwritten(operand.to_string())),
            Place::Buffer(n) => {
                let Some(batch) = job.batch_of(operand) else { return Ok(()) };
                let (arena, buffer) = (&self.host.arena, &job.program.buffers[n as usize]);
                match at.element {
                    Element::Real => from(arena.reals.get(buffer, batch), at, bytes),
                    Element::Bf16 => {
                        let mut floats = Vec::with_capacity(2 * at.area.bytes() as usize);
                        from(arena.bf16s.get(buffer, batch), at, &mut floats)?;
                        bytes.extend(narrowed(&floats));
                        Ok(())
                    }
                    Element::Mxint8 => {
                        let mut floats = Vec::new();
                        from(arena.mxint8s.get(buffer, batch), at, &mut floats)?;
                        let floats: Vec<f32> = values_of(&floats);
                        mxint8::write(Mat::new(&floats, at.shape.rows, at.shape.columns()), bytes);
                        Ok(())
                    }
                    Element::Id => from(arena.ids.get(buffer, batch), at, bytes),
                    Element::Index => from(arena.indices.get(buffer, batch), at, bytes),
                    Element::Count => from(arena.counts.get(buffer, batch), at, bytes),
                    Element::Byte => from(arena.bytes.get(buffer, batch), at, bytes),
                }
            }
            Place::Table(_) | Place::Input(_) | Place::Lengths(_) => Ok(()),
        }
    }
}
