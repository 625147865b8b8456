//! Whole tables from the shards of all ranks, and back, whatever the sharding.

use std::io;
use std::ops::Range;

use fs_kernels::Real;
use fs_schedule::{Sharding, Table};

use crate::device::shards::ShardRange;
use crate::device::{Device, Env, Stored, Values};
use crate::transport::frame::{BadFrame, Reader};

/// Rows handed out at once where ranks have some of their columns.
const ROWS: usize = 256;

/// The shards of this process that, with those of others, are the table once: position of the rank, part, and what it
/// holds. None is empty.
fn holders<'a>(table: &'a Table, ranks: &'a [Env]) -> impl Iterator<Item = (usize, usize, ShardRange)> + 'a {
    // Every rank has all of a data-parallel table.
    let replicated = table.sharding == Sharding::DataParallel;
    let holding = ranks.iter().enumerate().filter(move |(_, env)| !replicated || env.rank == 0);
    let parts = table.sharding.parts() as usize;
    let all = holding.flat_map(move |(at, env)| (0..parts).map(move |part| (at, env, part)));
    let shapes =
        all.map(move |(at, env, part)| (at, part, ShardRange::of(table, part as u32, env.rank, env.ranks)));
    shapes.filter(|(_, _, shape)| !shape.is_empty())
}

/// What the shards of this process have of some rows, written so that [`place`] can put it into a table.
pub fn pieces<D: Device>(
    (ranks, devices): (&[Env], &[D]),
    table: usize,
    rows: &Range<u64>,
    what: impl Fn(usize) -> Stored,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    let whole = &ranks[0].schedule.tables[table];
    for (at, part, shard) in holders(whole, ranks) {
        let (first, last) = (shard.rows.start.max(rows.start), shard.rows.end.min(rows.end));
        let each = devices[at].len(what(part)) / shard.len();
        if first >= last || each == 0 {
            continue;
        }
        // One number a row, or one an element.
        let (width, columns) = match each {
            1 if shard.dim() != 1 => (1, 0..1),
            _ => (whole.dim as usize, shard.columns.clone()),
        };
        for n in [first, last, columns.start as u64, columns.end as u64, width as u64] {
            bytes.extend_from_slice(&n.to_le_bytes());
        }
        let of = |row: u64| (row - shard.rows.start) as usize * each;
        devices[at]
            .read(what(part), of(first)..of(last), &mut |values| D::Real::write_le(values, &mut bytes));
    }
    bytes
}

/// Puts what [`pieces`] has written into some rows of a table of `dim` columns; `out` grows to what they hold.
pub fn place<T: Real>(bytes: &[u8], rows: &Range<u64>, dim: usize, out: &mut Vec<T>) -> Result<(), BadFrame> {
    let mut reader = Reader::plain(bytes);
    let mut values = Vec::new();
    while !reader.is_empty() {
        let (first, last) = (reader.number()?, reader.number()?);
        let (start, end, each) = (reader.size()?, reader.size()?, reader.size()?);
        let fits = rows.start <= first && first < last && last <= rows.end;
        let fits = fits && start < end && end <= each && (each == 1 || each == dim);
        if !fits {
            return Err(BadFrame::Short("the rows of a table"));
        }
        let n = (last - first) as usize * (end - start);
        values.clear();
        T::read_le(reader.bytes(n * size_of::<T>())?, &mut values);
        out.resize(out.len().max((rows.end - rows.start) as usize * each), T::ZERO);
        let targets = out[(first - rows.start) as usize * each..].chunks_exact_mut(each);
        for (target, row) in targets.zip(values.chunks_exact(end - start)) {
            target[start..end].copy_from_slice(row);
        }
    }
    Ok(())
}

/// Puts what every shard has into the order of the whole table: one number per element, or per row (then no shard
/// has parts of rows). `what` names the numbers of a part.
pub fn assemble<D: Device>(
    (ranks, devices): (&[Env], &[D]),
    table: usize,
    what: impl Fn(usize) -> Stored,
) -> Vec<D::Real> {
    let whole = &ranks[0].schedule.tables[table];
    let (rows, dim) = (whole.rows as usize, whole.dim as usize);
    let mut out = Vec::new();
    for (rank, part, shard) in holders(whole, ranks) {
        let values = devices[rank].all(what(part));
        if values.is_empty() {
            continue;
        }
        let (each, columns) = match values.len() / shard.len() {
            1 if shard.dim() != 1 => (1, 0..1),
            _ => (dim, shard.columns.clone()),
        };
        out.resize(rows * each, D::Real::ZERO);
        let first = shard.rows.start as usize;
        let targets = out[first * each..].chunks_exact_mut(each);
        for (target, row) in targets.zip(values.chunks_exact(columns.len())) {
            target[columns.clone()].copy_from_slice(row);
        }
    }
    out
}

/// Writes some values of a table, `first` of which come before them, to whoever holds them.
pub fn scatter<D: Device>((ranks, devices): (&[Env], &[D]), table: usize, first: usize, values: &[D::Real]) {
    let whole = &ranks[0].schedule.tables[table];
    let dim = whole.dim as usize;
    for (env, device) in ranks.iter().zip(devices) {
        for part in 0..whole.sharding.parts() {
            let shape = ShardRange::of(whole, part, env.rank, env.ranks);
            let weights = Stored::Table(table, part as usize, Values::Weights);
            let (rows, columns, width) = (&shape.rows, &shape.columns, shape.dim());
            // The part of the values, and of the shard, that lies in both: whole rows at once, or row by row.
            let (mut at, end) =
                (first.max(rows.start as usize * dim), (first + values.len()).min(rows.end as usize * dim));
            if width == dim && at < end {
                device.write(weights, at - rows.start as usize * dim, &values[at - first..end - first]);
                continue;
            }
            while at < end {
                let (row, column) = (at / dim, at % dim);
                let stop = end.min((row + 1) * dim) - row * dim;
                let (from, to) = (column.max(columns.start), stop.min(columns.end));
                if from < to {
                    let own = (row - rows.start as usize) * width;
                    let source = row * dim + from - first;
                    device.write(weights, own + from - columns.start, &values[source..source + to - from]);
                }
                at = row * dim + stop;
            }
        }
    }
}

/// Hands out a table's values in order, piece by piece.
pub fn in_order<D: Device>(
    (ranks, devices): (&[Env], &[D]),
    table: usize,
    mut take: impl FnMut(&[D::Real]) -> io::Result<()>,
) -> io::Result<()> {
    let whole = &ranks[0].schedule.tables[table];
    let mut owners: Vec<_> = holders(whole, ranks).collect();
    let stored = |part: usize| Stored::Table(table, part, Values::Weights);
    let mut outcome = Ok(());
    if whole.sharding.parts() == 1 {
        for (rank, part, shape) in owners {
            devices[rank].read(stored(part), 0..shape.len() * shape.dim(), &mut |values| {
                if outcome.is_ok() {
                    outcome = take(values);
                }
            });
        }
        return outcome;
    }
    owners.sort_by_key(|(_, _, shape)| shape.columns.start);
    let mut block = Vec::new();
    let (rows, dim) = (whole.rows as usize, whole.dim as usize);
    for first in (0..rows).step_by(ROWS) {
        let n = ROWS.min(rows - first);
        block.resize(n * dim, D::Real::ZERO);
        for (rank, part, shape) in &owners {
            let width = shape.dim();
            let mut at = 0;
            devices[*rank].read(stored(*part), first * width..(first + n) * width, &mut |values| {
                for value in values {
                    block[at / width * dim + shape.columns.start + at % width] = *value;
                    at += 1;
                }
            });
        }
        take(&block)?;
    }
    outcome
}
