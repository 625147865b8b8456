//! What was counted in a model's data before it is trained: lengths, and which rows batches use how soon again.
//!
//! Counts are of some consecutive batches, cut for a number of ranks and microbatches. They take the place of the
//! workload's laws when a schedule is planned. What was counted is not written into the schedule, only in what
//! ([`Counted`]), so that a run can say when its data are others.

use serde::{Deserialize, Serialize};

pub use crate::model::Counted;
use crate::profile::{DISTANCES, MOST_LENGTHS, Rows};

/// What was counted. Means are over these batches and ranks, of samples where they are read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// Of what.
    pub of: Counted,
    /// Ranks that the batches were cut for.
    pub ranks: u32,
    /// Microbatches that they were cut into.
    pub microbatches: u32,
    /// Samples of a rank.
    pub samples: f64,
    /// Of each length group.
    pub groups: Vec<GroupCounts>,
    /// Of each table that is looked up.
    pub tables: Vec<TableCounts>,
}

/// Lengths of one group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupCounts {
    /// Ids of a rank.
    pub tokens: f64,
    /// Sum of the squares of its samples' lengths.
    pub squares: f64,
    /// Lengths of up to [`MOST_LENGTHS`] samples in the order of the data.
    pub lengths: Vec<u32>,
}

/// Rows of one table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableCounts {
    /// Where a row travels each time that it is used.
    pub occurrences: Rows,
    /// Where it travels once to a rank.
    pub unique: Rows,
}

impl Counts {
    /// The rows of a table, once per rank or once per occurrence.
    pub fn rows_of(&self, table: &str, unique: bool) -> Option<&Rows> {
        let of = self.tables.iter().find(|t| t.unique.table == table)?;
        Some(if unique { &of.unique } else { &of.occurrences })
    }

    /// Whether these can be counts of so many length groups for so many ranks and microbatches: lists are whole, numbers
    /// are finite and none is below zero.
    pub fn are_whole(&self, groups: usize, ranks: u32, microbatches: u32) -> bool {
        let number = |x: f64| x.is_finite() && x >= 0.0;
        let samples = self.groups.first().map_or(0, |g| g.lengths.len());
        let group = |g: &GroupCounts| {
            number(g.tokens) && number(g.squares) && g.lengths.len() == samples && samples <= MOST_LENGTHS
        };
        let rows = |r: &Rows| {
            let reuse = r.reuse.iter().all(|counts| {
                [1, microbatches].contains(&counts.microbatches)
                    && [&counts.forward, &counts.backward].into_iter().all(|lists| {
                        lists.len() == counts.microbatches as usize
                            && lists.iter().all(|list| (2..=DISTANCES as usize + 1).contains(&list.len()))
                            && lists.iter().flatten().all(|n| number(*n))
                    })
            });
            let hot = r.hot.iter().all(|(_, n)| number(*n)) && r.hot.windows(2).all(|p| p[0].0 < p[1].0);
            let owners = [&r.owners, &r.hashed_owners].into_iter().all(|list| {
                (list.is_empty() || list.len() == ranks as usize) && list.iter().all(|n| number(*n))
            });
            reuse
                && hot
                && owners
                && number(r.sent)
                && number(r.busiest)
                && r.hashed.is_none_or(number)
                && r.asking.is_none_or(number)
        };
        (self.ranks, self.microbatches, self.groups.len()) == (ranks, microbatches, groups)
            && self.of.batches > 0
            && number(self.samples)
            && self.groups.iter().all(group)
            && self
                .tables
                .iter()
                .all(|t| rows(&t.unique) && rows(&t.occurrences) && t.unique.table == t.occurrences.table)
    }
}
