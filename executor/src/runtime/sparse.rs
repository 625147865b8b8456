//! Ids and rows: deduplication, lookup, expansion, pooling.

use fs_kernels::embedding::{self, Pool};
use fs_kernels::random::negatives;
use fs_kernels::unique::{bucketize_by_owner, unique_by_owner};
use fs_kernels::{Mat, Real};
use fs_schedule::PoolMode;

use super::arena::Read;
use super::share::Part;
use super::state::rows_per_rank;
use super::{Call, Fault};

pub(super) fn draw_negatives<T: Real>(
    c: &Call<T>,
    table: u32,
    lengths: u32,
    count: u32,
    stream: u32,
) -> Result<(), Fault> {
    let table = c.env.schedule.tables.get(table as usize);
    let rows = table.ok_or_else(|| Fault::Unsupported("no such table".into()))?.rows;
    let mut ids = c.write_ids(0)?;
    negatives(c.key(stream), rows, c.current.share.token_keys(lengths as usize), count as usize, ids.slice());
    Ok(())
}

pub(super) fn unique<T: Real>(c: &Call<T>, exchange: u32) -> Result<(), Fault> {
    let schedule = &c.env.schedule;
    let unknown = || Fault::Unsupported(format!("exchange {exchange} or its table does not exist"));
    let plan = schedule.exchanges.get(exchange as usize).ok_or_else(unknown)?;
    let table = schedule.tables.get(plan.table as usize).ok_or_else(unknown)?;
    let rows = rows_per_rank(table.rows, c.env.ranks) as usize;
    // Buffers stay locked while their ids are read.
    let mut buffers: Vec<Option<Read<i64>>> = Vec::with_capacity(c.op.reads.len());
    for position in 0..c.op.reads.len() {
        buffers.push(if c.input(position)?.is_some() { None } else { Some(c.read_ids(position)?) });
    }
    let mut features: Vec<&[i64]> = Vec::with_capacity(buffers.len());
    for (position, buffer) in buffers.iter().enumerate() {
        features.push(match (buffer, c.input(position)?) {
            (Some(buffer), _) => buffer.slice()?,
            (None, Some(Part::Ids(ids))) => ids,
            _ => return Err(Fault::Unsupported(format!("read operand {position} does not hold ids"))),
        });
    }
    let mut work = c.env.work.lock();
    let unique = &mut work.unique;
    let found = if plan.unique {
        unique_by_owner(&features, rows, c.env.ranks, unique)
    } else {
        bucketize_by_owner(&features, rows, c.env.ranks, unique)
    };
    found.map_err(|e| {
        Fault::Unsupported(format!(
            "id {} is out of range for table `{}` with {} rows",
            e.id, table.name, table.rows
        ))
    })?;
    c.current.share.set_sent(exchange, unique.ids.len());
    c.write_ids(0)?.slice().copy_from_slice(&unique.ids);
    for (count, n) in c.write_counts(1)?.slice().iter_mut().zip(&unique.counts) {
        *count = *n as u64;
    }
    let mut inverse = unique.inverse.as_slice();
    for (i, ids) in features.iter().enumerate() {
        let (own, rest) = inverse.split_at(ids.len());
        c.write_indices(2 + i)?.slice().copy_from_slice(own);
        inverse = rest;
    }
    Ok(())
}

pub(super) fn gather<T: Real>(c: &Call<T>) -> Result<(), Fault> {
    let (_, table) = c.table(false, 0)?;
    let rows = c.read_indices(1)?;
    let shard = table.read();
    let values = Mat::new(&shard.values, shard.len(), shard.dim);
    let rows = rows.slice()?;
    c.produce([0], |[y]| embedding::gather(values, rows, y))
}

pub(super) fn expand<T: Real>(c: &Call<T>) -> Result<(), Fault> {
    let (rows, inverse) = (c.read(0)?, c.read_indices(1)?);
    let inverse = inverse.slice()?;
    c.produce([0], |[y]| embedding::expand(rows.mat(), inverse, y))
}

pub(super) fn expand_grad<T: Real>(c: &Call<T>) -> Result<(), Fault> {
    let (gy, inverse) = (c.read(0)?, c.read_indices(1)?);
    let mut writes = c.write([0])?;
    let (grows, mode) = writes.first()?;
    embedding::expand_grad(gy.mat(), inverse.slice()?, grows, mode);
    Ok(())
}

fn kind(mode: PoolMode) -> Pool {
    match mode {
        PoolMode::Sum => Pool::Sum,
        PoolMode::Mean => Pool::Mean,
    }
}

pub(super) fn pool<T: Real>(c: &Call<T>, mode: PoolMode) -> Result<(), Fault> {
    let (rows, inverse, offsets) = (c.read(0)?, c.read_indices(1)?, c.offsets(2)?);
    let inverse = inverse.slice()?;
    c.produce([0], |[y]| embedding::pool(rows.mat(), inverse, offsets, kind(mode), y))
}

pub(super) fn pool_grad<T: Real>(c: &Call<T>, pooling: PoolMode) -> Result<(), Fault> {
    let (gy, inverse, offsets) = (c.read(0)?, c.read_indices(1)?, c.offsets(2)?);
    let mut writes = c.write([0])?;
    let (grows, mode) = writes.first()?;
    embedding::pool_grad(gy.mat(), inverse.slice()?, offsets, kind(pooling), grows, mode);
    Ok(())
}
