//! Which rows and columns of a table a rank holds.

use std::ops::Range;

use fs_schedule::{Sharding, Table};
use fs_workload::placement;

/// A rank's shard of a part of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShardRange {
    /// Slots of the whole table: row numbers, unless its rows are hashed or planned. Of hot rows their numbers among these.
    pub rows: Range<u64>,
    /// Columns of the whole table.
    pub columns: Range<usize>,
}

impl ShardRange {
    /// What `rank` holds of a part.
    pub(crate) fn of(table: &Table, part: u32, rank: usize, ranks: usize) -> Self {
        let rows = match (&table.sharding, table.sharding.owner(part)) {
            _ if table.is_hot(part) => 0..table.hot.len() as u64,
            (Sharding::RowWise, _) => shard_rows(table.rows, rank, ranks),
            (_, Some(owner)) if owner as usize != rank => 0..0,
            _ => 0..table.rows,
        };
        let (start, end) = table.part_columns(part);
        Self { rows, columns: start as usize..end as usize }
    }

    /// Whether the rank holds none.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// Rows that each rank owns; the last ranks may own fewer.
pub(crate) fn rows_per_rank(rows: u64, ranks: usize) -> u64 {
    placement::rows_per_rank(rows, ranks as u64)
}

/// The slots of a rank.
pub(crate) fn shard_rows(rows: u64, rank: usize, ranks: usize) -> Range<u64> {
    placement::slots_of(rows, rank as u64, ranks as u64)
}

/// Bytes of a table's values and of its optimizer state on all ranks, with `element` bytes a number.
pub(crate) fn table_bytes(table: &Table, ranks: usize, element: usize) -> (u64, u64) {
    let copies = if table.sharding == Sharding::DataParallel { ranks as u64 } else { 1 };
    let element = element as u64;
    let values = |rows: u64| rows.saturating_mul(u64::from(table.dim));
    let state = |rows: u64| table.optimizer.state(rows, table.dim.into());
    let hot = table.hot.len() as u64;
    let all = |of: &dyn Fn(u64) -> u64| {
        let replicas = of(hot).saturating_mul(ranks as u64);
        of(table.rows).saturating_mul(copies).saturating_add(replicas).saturating_mul(element)
    };
    (all(&values), all(&state))
}

/// Rows of the shards that an exchange of a part asks for rows of.
pub(crate) fn shard_of(table: &Table, part: u32, ranks: usize) -> u64 {
    match table.sharding {
        _ if table.is_hot(part) => table.hot.len() as u64,
        Sharding::RowWise => rows_per_rank(table.rows, ranks),
        _ => table.rows,
    }
}
