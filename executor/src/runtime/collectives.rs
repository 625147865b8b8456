//! Operations in which all ranks take part.

use fs_kernels::Real;

use super::state::rows_per_rank;
use super::{Call, Fault, Work};

/// Entries travel as row numbers of the owner's shard: half the bytes of ids.
pub(super) fn all_to_all_ids<T: Real>(c: &Call<T>, exchange: u32) -> Result<(), Fault> {
    let (entries, counts) = (c.read_ids(0)?, c.read_counts(1)?);
    let (entries, counts) = (entries.slice()?, counts.slice()?);
    let schedule = &c.env.schedule;
    let table = schedule.exchanges.get(exchange as usize).and_then(|e| schedule.tables.get(e.table as usize));
    let table = table
        .ok_or_else(|| Fault::Unsupported(format!("exchange {exchange} or its table does not exist")))?;
    let each = rows_per_rank(table.rows, c.env.ranks) as i64;
    let mut work = c.env.work.lock();
    work.rows.clear();
    let mut rest = entries;
    for (owner, &n) in counts.iter().enumerate() {
        let (own, tail) = rest.split_at(n as usize);
        let first = owner as i64 * each;
        work.rows.extend(own.iter().map(|id| (id - first) as u32));
        rest = tail;
    }
    let mut received_counts = c.write_counts(1)?;
    let Work { rows, received, .. } = &mut *work;
    c.env.transport.lock().all_to_all_rows(rows, counts, received, received_counts.slice())?;
    // Only now is it known how large the written buffer must be.
    c.current.share.set_received(exchange, received.len());
    c.write_indices(0)?.slice().copy_from_slice(received);
    Ok(())
}

/// Rows or their gradients: values, counts to send, counts to receive.
pub(super) fn all_to_all<T: Real>(c: &Call<T>) -> Result<(), Fault> {
    let (values, sent, expected) = (c.read(0)?, c.read_counts(1)?, c.read_counts(2)?);
    let width = values.shape().columns();
    let mut received = c.slice(0)?;
    let (values, sent, expected) = (values.slice()?, sent.slice()?, expected.slice()?);
    Ok(c.env.transport.lock().all_to_all(values, sent, width, received.slice(), expected)?)
}

pub(super) fn all_reduce<T: Real>(c: &Call<T>) -> Result<(), Fault> {
    let mut guards = Vec::with_capacity(c.op.reads.len());
    for position in 0..c.op.reads.len() {
        let n = c.gradient(position)?;
        let guard = c.env.dense[n].gradient.try_write().ok_or_else(|| Fault::Conflict(format!("g{n}")))?;
        guards.push(guard);
    }
    let mut parts: Vec<&mut [T]> = guards.iter_mut().map(|g| g.as_mut_slice()).collect();
    Ok(c.env.transport.lock().all_reduce(&mut parts)?)
}
