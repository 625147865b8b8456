//! Whole tables from the shards of all ranks, and back, whatever the sharding.

use std::io;

use fs_kernels::Real;
use fs_schedule::Sharding;

use super::{Env, Shard};

/// Visits the shards that together are the table once: rank, part, and the shard.
fn holders<T: Real>(ranks: &[Env<T>], table: usize) -> impl Iterator<Item = (usize, usize)> {
    let sharding = &ranks[0].schedule.tables[table].sharding;
    let parts = sharding.parts() as usize;
    // Every rank has all of a data-parallel table.
    let holding = if *sharding == Sharding::DataParallel { 1 } else { ranks.len() };
    (0..holding).flat_map(move |rank| (0..parts).map(move |part| (rank, part)))
}

/// Puts what every shard has into the order of the whole table: one number per element, or per row (then no shard
/// has parts of rows). `visit(rank, part, shard, take)` hands a shard's numbers to `take`.
pub fn assemble<T: Real>(
    ranks: &[Env<T>],
    table: usize,
    visit: impl Fn(usize, usize, &Shard<T>, &mut dyn FnMut(&[T])),
) -> Vec<T> {
    let whole = &ranks[0].schedule.tables[table];
    let (rows, dim) = (whole.rows as usize, whole.dim as usize);
    let mut out = Vec::new();
    for (rank, part) in holders(ranks, table) {
        let shard = ranks[rank].tables[table][part].read();
        visit(rank, part, &shard, &mut |values| {
            if values.is_empty() || shard.is_empty() {
                return;
            }
            let (each, columns) = match values.len() / shard.len() {
                1 if shard.dim != 1 => (1, 0..1),
                _ => (dim, shard.columns.clone()),
            };
            out.resize(rows * each, T::ZERO);
            let first = shard.rows.start as usize;
            let targets = out[first * each..].chunks_exact_mut(each);
            for (target, row) in targets.zip(values.chunks_exact(columns.len())) {
                target[columns.clone()].copy_from_slice(row);
            }
        });
    }
    out
}

/// Writes some values of a table, `first` of which come before them, to whoever holds them.
pub fn scatter<T: Real>(ranks: &[Env<T>], table: usize, first: usize, values: &[T]) {
    let dim = ranks[0].schedule.tables[table].dim as usize;
    for part in ranks.iter().flat_map(|env| &env.tables[table]) {
        let mut shard = part.write();
        let (rows, columns, width) = (shard.rows.clone(), shard.columns.clone(), shard.dim);
        // Row by row: the part of the values, and of the shard, that lies in both.
        let (mut at, end) =
            (first.max(rows.start as usize * dim), (first + values.len()).min(rows.end as usize * dim));
        while at < end {
            let (row, column) = (at / dim, at % dim);
            let stop = end.min((row + 1) * dim) - row * dim;
            let (from, to) = (column.max(columns.start), stop.min(columns.end));
            if from < to {
                let own = (row - rows.start as usize) * width;
                let source = row * dim + from - first;
                shard.values[own + from - columns.start..own + to - columns.start]
                    .copy_from_slice(&values[source..source + to - from]);
            }
            at = row * dim + stop;
        }
    }
}

/// Hands out a table's values in order, piece by piece.
pub fn in_order<T: Real>(
    ranks: &[Env<T>],
    table: usize,
    mut take: impl FnMut(&[T]) -> io::Result<()>,
) -> io::Result<()> {
    let whole = &ranks[0].schedule.tables[table];
    let owners: Vec<(usize, usize)> =
        holders(ranks, table).filter(|(r, p)| !ranks[*r].tables[table][*p].read().is_empty()).collect();
    if whole.sharding.parts() == 1 {
        return owners.iter().try_for_each(|(r, p)| take(&ranks[*r].tables[table][*p].read().values));
    }
    let mut shards: Vec<_> = owners.iter().map(|(r, p)| ranks[*r].tables[table][*p].read()).collect();
    shards.sort_by_key(|s| s.columns.start);
    for row in 0..whole.rows as usize {
        for shard in &shards {
            take(&shard.values[row * shard.dim..(row + 1) * shard.dim])?;
        }
    }
    Ok(())
}
