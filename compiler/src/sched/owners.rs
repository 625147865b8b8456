//! How evenly the ranks that share a table's rows are asked for them.
//!
//! A step waits for its busiest owner. Rows that are numbered at random are spread by that, and what is left of unevenness
//! is not predicted. Where rows are numbered by popularity, the owner of low numbers is asked most, unless rows are
//! hashed or planned.

use fs_schedule::{IdDistribution, RowMap, Sharding, Table};
use fs_workload::ids::{Bin, Draws, RowLaw};
use fs_workload::placement::owner_loads;

/// What a rank asks of a table in a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Requests<'a> {
    /// The law of its ids.
    pub(crate) ids: IdDistribution,
    /// The same, of its rows.
    pub(crate) law: &'a RowLaw,
    /// Draws of a rank.
    pub(crate) draws: Draws,
    /// Each row once, or once per occurrence.
    pub(crate) unique: bool,
    /// The most popular rows that are not asked of their owners.
    pub(crate) hot: u64,
}

impl Requests<'_> {
    /// Expected requests to each of `ranks` owners; `None`: they are taken to be asked evenly.
    pub(crate) fn loads(&self, table: &Table, map: &RowMap, ranks: u32) -> Option<Vec<f64>> {
        if !self.ids.by_popularity() || table.sharding != Sharding::RowWise {
            return None;
        }
        let mut hot = self.hot as f64;
        let each = |bin: &Bin| {
            let taken = hot.min(bin.rows);
            hot -= taken;
            self.law.requests(bin, self.draws, self.unique) * (1.0 - taken / bin.rows.max(1.0))
        };
        let requests: Vec<f64> = self.law.bins().iter().map(each).collect();
        Some(owner_loads(map, self.law, table.rows, ranks.into(), &requests))
    }
}
