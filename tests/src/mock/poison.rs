//! What an operation will write, made useless until it ends: NaN for numbers, the impossible for ids, positions,
//! counts and classes. What it adds to, or changes in place, is put aside and comes back just before it ends.

use fs_executor::device::cpu::Cpu;
use fs_executor::device::cpu::arena::{ColumnRange, Read, Slots, Writes};
use fs_executor::device::{Fault, Job};
use fs_kernels::Write;
use fs_schedule::{Action, Buffer, Element, Operand, Place};

/// Values put aside.
#[derive(Debug)]
pub(crate) enum Saved {
    /// Of a written operand.
    Operand(Operand, Vec<f32>),
    /// Of rows of a table's part.
    Rows(usize, usize, Vec<u32>, Vec<f32>),
}

/// Poisons what an operation writes; what it returns is for [`restore`].
pub(crate) fn poison(cpu: &Cpu<f32>, job: &Job<'_>) -> Result<Vec<Saved>, Fault> {
    let mut saved = Vec::new();
    for operand in &job.op.writes {
        match operand.place {
            Place::Buffer(b) => {
                let buffer = &job.program.buffers[b as usize];
                let batch = job.number;
                let arena = &cpu.arena;
                match buffer.element {
                    Element::Real | Element::Bf16 | Element::Mxint8 => {
                        saved.extend(reals(cpu, job, operand, buffer)?);
                    }
                    Element::Id => all(&arena.ids, buffer, batch, i64::MIN / 2)?,
                    Element::Index => all(&arena.indices, buffer, batch, u32::MAX)?,
                    Element::Count => all(&arena.counts, buffer, batch, 1 << 40)?,
                    Element::Byte => all(&arena.bytes, buffer, batch, u8::MAX)?,
                }
            }
            // Gradients that a transfer changes in place are sent before it changes them.
            Place::Gradient(_) if job.op.action == Action::AllReduce => {}
            Place::Gradient(_) | Place::Parameter(_) => {
                let mut values = vector(cpu, operand)?;
                saved.push(Saved::Operand(*operand, values.clone()));
                values.fill(f32::NAN);
            }
            Place::Table(_) | Place::Input(_) | Place::Lengths(_) => {}
        }
    }
    if let Action::Apply { exchange, class } = job.op.action {
        saved.push(rows(cpu, job, exchange, class.is_some())?);
    }
    Ok(saved)
}

/// The gradients of an all-reduce, once they are sent.
pub(crate) fn poison_sent(cpu: &Cpu<f32>, job: &Job<'_>) -> Result<(), Fault> {
    if job.op.action == Action::AllReduce {
        for operand in &job.op.writes {
            vector(cpu, operand)?.fill(f32::NAN);
        }
    }
    Ok(())
}

/// Brings back what was put aside.
pub(crate) fn restore(cpu: &Cpu<f32>, job: &Job<'_>, saved: Vec<Saved>) -> Result<(), Fault> {
    for saved in saved {
        match saved {
            Saved::Operand(operand, values) => match operand.place {
                Place::Buffer(b) => {
                    let buffer = &job.program.buffers[b as usize];
                    let mut writes = views(cpu, job, &operand, buffer)?;
                    let mut left = values.iter();
                    for (mut view, _) in writes.views() {
                        for row in 0..view.rows() {
                            view.row_mut(row).iter_mut().zip(&mut left).for_each(|(x, old)| *x = *old);
                        }
                    }
                }
                _ => vector(cpu, &operand)?.copy_from_slice(&values),
            },
            Saved::Rows(table, part, rows, values) => {
                let mut shard = cpu.tables[table][part].write();
                let dim = shard.dim;
                for (row, old) in rows.iter().zip(values.chunks_exact(dim.max(1))) {
                    shard.values[*row as usize * dim..(*row as usize + 1) * dim].copy_from_slice(old);
                }
            }
        }
    }
    Ok(())
}

/// A parameter or gradient.
fn vector<'a>(
    cpu: &'a Cpu<f32>,
    operand: &Operand,
) -> Result<impl std::ops::DerefMut<Target = Vec<f32>> + use<'a>, Fault> {
    let lock = match operand.place {
        Place::Gradient(n) => &cpu.dense[n as usize].gradient,
        Place::Parameter(n) => &cpu.dense[n as usize].values,
        _ => return Err(Fault::Conflict(operand.to_string())),
    };
    lock.try_write().ok_or_else(|| Fault::Conflict(operand.to_string()))
}

fn all<E: Copy>(slots: &Slots<E>, buffer: &Buffer, batch: u64, poison: E) -> Result<(), Fault> {
    let Some(lock) = slots.get(buffer, batch) else { return Ok(()) };
    lock.try_write().ok_or_else(|| Fault::Conflict(buffer.name.clone()))?.fill(poison);
    Ok(())
}

fn views<'a>(
    cpu: &'a Cpu<f32>,
    job: &Job<'_>,
    operand: &Operand,
    buffer: &Buffer,
) -> Result<Writes<'a, f32>, Fault> {
    let mut writes = Writes::default();
    let columns = buffer.columns as usize;
    let (start, end) = operand.columns.map_or((0, columns), |(s, e)| (s as usize, e as usize));
    let rows = job.rows(buffer, *operand)?.unwrap_or(0);
    if let Some(lock) = cpu.arena.floats(buffer.element).and_then(|pool| pool.get(buffer, job.number)) {
        let shape = ColumnRange { rows, stride: columns, start, end };
        writes.lock(lock, shape, Write::Set, || operand.to_string())?;
    }
    Ok(writes)
}

fn reals(cpu: &Cpu<f32>, job: &Job<'_>, operand: &Operand, buffer: &Buffer) -> Result<Option<Saved>, Fault> {
    let mut writes = views(cpu, job, operand, buffer)?;
    let mut old = Vec::new();
    for (mut view, _) in writes.views() {
        if operand.accumulate {
            (0..view.rows()).for_each(|row| old.extend_from_slice(view.row_mut(row)));
        }
        view.fill(f32::NAN);
    }
    Ok(operand.accumulate.then_some(Saved::Operand(*operand, old)))
}

/// The rows that an update will change.
fn rows(cpu: &Cpu<f32>, job: &Job<'_>, exchange: u32, of_class: bool) -> Result<Saved, Fault> {
    let list = |position: usize| -> Result<Vec<u32>, Fault> {
        let operand = &job.op.reads[position];
        let Place::Buffer(b) = operand.place else { return Ok(Vec::new()) };
        let buffer = &job.program.buffers[b as usize];
        let rows = job.rows(buffer, *operand)?.unwrap_or(0);
        let lock = cpu.arena.indices.get(buffer, job.number);
        let lock = lock.ok_or_else(|| Fault::Conflict(operand.to_string()))?;
        let read = Read::lock(lock, ColumnRange::whole(rows, 1), || operand.to_string())?;
        Ok(read.slice()?.to_vec())
    };
    let mut rows = list(0)?;
    if of_class {
        let at = list(1)?;
        rows = at.iter().filter_map(|entry| rows.get(*entry as usize).copied()).collect();
    }
    rows.sort_unstable();
    rows.dedup();
    let (plan, _) = job.exchange(exchange)?;
    let (table, part) = (plan.table as usize, plan.part as usize);
    let mut shard = cpu.tables[table][part].write();
    let dim = shard.dim;
    rows.retain(|row| (*row as usize) < shard.len());
    let mut old = Vec::new();
    for row in &rows {
        let values = &mut shard.values[*row as usize * dim..(*row as usize + 1) * dim];
        old.extend_from_slice(values);
        values.fill(f32::NAN);
    }
    Ok(Saved::Rows(table, part, rows, old))
}
