//! What was counted of a table's rows: how many travel, how soon they are used again, and whom they are asked of.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use fs_workload::placement;

use super::DISTANCES;
use crate::Way;
use crate::model::{Leg, RowPlacement, Table};
use crate::reuse::Reuse;

/// Rows of an exchange: means over ranks and batches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rows {
    /// The table.
    pub table: String,
    /// Its part.
    pub part: u32,
    /// Entries that a rank sends.
    pub sent: f64,
    /// Traffic of the rank that is busiest in a batch over what evenly spread rows would be, if ranks own ranges of rows.
    pub busiest: f64,
    /// The same if rows are hashed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hashed: Option<f64>,
    /// Entries of the rank that has most in a batch over a mean rank's, whoever owns the rows; none if nobody counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asking: Option<f64>,
    /// Requests that other ranks send each rank for the rows it owns, over an even share, if ranks own ranges of rows; none if
    /// nobody counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<f64>,
    /// The same if rows are hashed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hashed_owners: Vec<f64>,
    /// Rows that were asked for most, by number, each with how often a rank asks for it in a batch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hot: Vec<(u64, f64)>,
    /// For some numbers of microbatches how soon rows are used again.
    pub reuse: Vec<ReuseCounts>,
    /// What a relay asks for, of ranks on several nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relayed: Option<Relayed>,
}

/// What relays ask for: each row once that a node uses. Means over relays and batches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Relayed {
    /// Ranks of a node.
    pub node: u32,
    /// Entries that a relay sends.
    pub sent: f64,
    /// For some numbers of microbatches how soon rows are used again.
    pub reuse: Vec<ReuseCounts>,
}

/// Entries by reuse distance, for a number of microbatches, each a window; or for as many windows. See [`Reuse`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReuseCounts {
    /// Microbatches of a batch.
    pub microbatches: u32,
    /// Per microbatch of the first use: entries at distances 1 to [`DISTANCES`], then those beyond.
    pub forward: Vec<Vec<f64>>,
    /// Per microbatch of the last use, by the distance of the next.
    pub backward: Vec<Vec<f64>>,
}

impl Rows {
    /// Entries that an exchange's ranks or relays send, and how soon rows are used again; none of relays of other nodes.
    pub fn of_leg(&self, leg: Leg, node: Option<u32>) -> Option<(f64, &[ReuseCounts])> {
        match leg {
            Leg::Whole | Leg::Within { .. } => Some((self.sent, &self.reuse)),
            Leg::Between { .. } => {
                let relayed = self.relayed.as_ref().filter(|r| Some(r.node) == node)?;
                Some((relayed.sent, &relayed.reuse))
            }
        }
    }

    /// Traffic of the busiest rank over what evenly spread rows would be, where a table's rows are placed as they are on
    /// so many ranks. Of other tables than row-wise ones, what was counted.
    pub fn busiest_of(&self, table: &Table, ranks: u32) -> f64 {
        match self.planned(table, ranks) {
            Some(loads) => placement::busiest(&loads),
            None if table.placement == RowPlacement::Range => self.busiest,
            // Of rows that nobody counted there is no telling where they are but that they are hashed.
            None => self.hashed.unwrap_or(self.busiest),
        }
    }

    /// What each rank is asked for over an even share, where a table's rows are placed as they are on so many ranks; `None` if it
    /// was not counted.
    pub fn owners_of(&self, table: &Table, ranks: u32) -> Option<Cow<'_, [f64]>> {
        let counted = match self.planned(table, ranks) {
            Some(loads) => {
                let mean = loads.iter().sum::<f64>() / f64::from(ranks.max(1));
                return (mean > 0.0).then(|| loads.iter().map(|load| load / mean).collect());
            }
            None if table.placement == RowPlacement::Range => &self.owners,
            None => &self.hashed_owners,
        };
        (counted.len() == ranks as usize).then_some(Cow::Borrowed(counted.as_slice()))
    }

    /// Requests to each owner of planned rows that were counted.
    fn planned(&self, table: &Table, ranks: u32) -> Option<Vec<f64>> {
        let RowPlacement::Planned { hot } = &table.placement else { return None };
        if self.hot.is_empty() || hot.len() != ranks as usize {
            return None;
        }
        let all: f64 = self.hot.iter().map(|row| row.1).sum();
        let even = (self.sent - all).max(0.0) / f64::from(ranks.max(1));
        let of = |row: &u64| {
            let at = self.hot.binary_search_by_key(row, |(row, _)| *row);
            at.map_or(0.0, |at| self.hot[at].1)
        };
        Some(hot.iter().map(|list| even + list.iter().map(of).sum::<f64>()).collect())
    }
}

impl ReuseCounts {
    /// Entries of each class; `None` if distances that far apart were not counted.
    pub fn classes(&self, reuse: Reuse, way: Way) -> Option<Vec<f64>> {
        if reuse.windows != self.microbatches || reuse.lookahead > DISTANCES {
            return None;
        }
        let counts = if way == Way::Forward { &self.forward } else { &self.backward };
        let far = reuse.lookahead as usize;
        // Of few batches, or of large ones, fewer distances were counted one by one.
        if counts.iter().any(|list| list.len() <= far) {
            return None;
        }
        let entries = reuse.classes(way).into_iter().map(|class| {
            let of = counts.get(class.window as usize)?;
            match class.distance {
                Some(d) => of.get(d as usize - 1).copied(),
                None => of.get(far..).map(|rest| rest.iter().sum()),
            }
        });
        entries.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_take_their_distances() {
        let mut counts = ReuseCounts {
            microbatches: 2,
            forward: vec![vec![0.0; DISTANCES as usize + 1]; 2],
            backward: vec![vec![0.0; DISTANCES as usize + 1]; 2],
        };
        for (b, list) in counts.forward.iter_mut().enumerate() {
            for (d, n) in list.iter_mut().enumerate() {
                *n = (10 * b + d) as f64;
            }
        }
        let reuse = Reuse::new(3, 2);
        // Microbatch 0: distances 1, 2, 3 and the rest; microbatch 1: nothing is nearer than 2.
        let rest =
            |from: usize, b: usize| (from..=DISTANCES as usize).map(|d| (10 * b + d) as f64).sum::<f64>();
        assert_eq!(
            counts.classes(reuse, Way::Forward).unwrap(),
            [0.0, 1.0, 2.0, rest(3, 0), 11.0, 12.0, rest(3, 1)]
        );
        assert_eq!(counts.classes(Reuse::new(3, 4), Way::Forward), None);
        assert_eq!(counts.classes(Reuse::new(9, 2), Way::Forward), None);
    }
}
