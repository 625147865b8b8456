//! Which entries of a list are whose: those of an exchange that each owner has, and lists that ranks stand in one after the
//! other.

use std::ops::Range;

use fs_kernels::Real;
use fs_schedule::{Exchange, Table};

use super::pieces::check;
use super::{Call, Fault};
use crate::device::shards::rows_per_rank;

/// For each rank the entries that it owns, and the first row of its shard.
pub(super) fn by_owner<'a, T: Real>(
    c: &Call<'a, T>,
    exchange: u32,
    counts: &'a [u64],
    entries: usize,
) -> Result<impl Iterator<Item = (usize, Range<usize>, i64)> + use<'a, T>, Fault> {
    let (exchange, table) = c.exchange(exchange)?;
    check("entries", entries, sum(counts))?;
    check("counts", counts.len(), c.env.ranks)?;
    let sole = asked_of(c, exchange, table)?;
    // A relay is asked for rows of the whole table.
    let whole = sole.is_some() || exchange.leg.between().is_some();
    let each = rows_per_rank(table.rows, c.env.ranks) as i64;
    let mut at = 0;
    Ok(counts.iter().enumerate().map(move |(rank, count)| {
        let n = match sole {
            Some(owner) if owner == rank => entries,
            Some(_) => 0,
            None => *count as usize,
        };
        let range = at..at + n;
        at += n;
        (rank, range, if whole { 0 } else { rank as i64 * each })
    }))
}

/// The one rank that is asked for all of a table's rows, or of a part's, if it is one.
pub(super) fn asked_of<T: Real>(
    c: &Call<T>,
    exchange: &Exchange,
    table: &Table,
) -> Result<Option<usize>, Fault> {
    let Some(owner) = table.sharding.owner(exchange.part) else { return Ok(None) };
    let ranks = c.env.ranks;
    if owner as usize >= ranks {
        return Err(Fault::NoOwner { table: table.name.clone(), owner: owner as usize, ranks });
    }
    let relay = exchange.leg.between().map(|_| c.env.nodes.relay(c.env.rank as u32, owner));
    Ok(Some(relay.unwrap_or(owner) as usize))
}

/// Each rank's entries, one rank's after the other's.
pub(super) fn spans(counts: &[u64]) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut at = 0;
    counts.iter().enumerate().map(move |(rank, n)| {
        let range = at..at + *n as usize;
        at = range.end;
        (rank, range)
    })
}

pub(super) fn span(counts: &[u64], rank: usize) -> Range<usize> {
    spans(counts).nth(rank).map_or(0..0, |(_, range)| range)
}

pub(super) fn sum(counts: &[u64]) -> usize {
    counts.iter().sum::<u64>() as usize
}
