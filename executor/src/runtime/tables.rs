//! Whole tables from the shards of all ranks, and back, whatever the sharding.

use std::io;

use fs_kernels::Real;
use fs_schedule::{Schedule, Sharding, Table};

use crate::device::shards::Shape;
use crate::device::{Device, Stored, Values};

/// Rows handed out at once where ranks have some of their columns.
const ROWS: usize = 256;

/// The shards that together are the table once: rank, part, and what it holds. None is empty.
fn holders(table: &Table, ranks: usize) -> impl Iterator<Item = (usize, usize, Shape)> {
    // Every rank has all of a data-parallel table.
    let holding = if table.sharding == Sharding::DataParallel { 1 } else { ranks };
    let parts = table.sharding.parts() as usize;
    let all = (0..holding).flat_map(move |rank| (0..parts).map(move |part| (rank, part)));
    let shapes = all.map(move |(rank, part)| (rank, part, Shape::of(table, part as u32, rank, ranks)));
    shapes.filter(|(_, _, shape)| !shape.is_empty())
}

/// Puts what every shard has into the order of the whole table: one number per element, or per row (then no shard
/// has parts of rows). `what` names the numbers of a part.
pub fn assemble<D: Device>(
    schedule: &Schedule,
    ranks: &[D],
    table: usize,
    what: impl Fn(usize) -> Stored,
) -> Vec<D::Real> {
    let whole = &schedule.tables[table];
    let (rows, dim) = (whole.rows as usize, whole.dim as usize);
    let mut out = Vec::new();
    for (rank, part, shard) in holders(whole, ranks.len()) {
        let values = ranks[rank].all(what(part));
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
pub fn scatter<D: Device>(schedule: &Schedule, ranks: &[D], table: usize, first: usize, values: &[D::Real]) {
    let whole = &schedule.tables[table];
    let dim = whole.dim as usize;
    for (rank, device) in ranks.iter().enumerate() {
        for part in 0..whole.sharding.parts() {
            let shape = Shape::of(whole, part, rank, ranks.len());
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
    schedule: &Schedule,
    ranks: &[D],
    table: usize,
    mut take: impl FnMut(&[D::Real]) -> io::Result<()>,
) -> io::Result<()> {
    let whole = &schedule.tables[table];
    let mut owners: Vec<_> = holders(whole, ranks.len()).collect();
    let stored = |part: usize| Stored::Table(table, part, Values::Weights);
    let mut outcome = Ok(());
    if whole.sharding.parts() == 1 {
        for (rank, part, shape) in owners {
            ranks[rank].read(stored(part), 0..shape.len() * shape.dim(), &mut |values| {
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
            ranks[*rank].read(stored(*part), first * width..(first + n) * width, &mut |values| {
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
