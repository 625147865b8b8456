//! What the ranks' batches use: the ids in them, and by these rows of an exchange.

use std::collections::BTreeSet;

use fs_schedule::{Action, Place, Schedule};

use super::nodes::word;

/// Streams of ids that are drawn, beside those of inputs.
pub(super) const DRAWN: u64 = 1000;

/// What the ranks' batches hold: ids that a seed fixes, few rows used often.
pub struct Workload {
    /// Fixes the ids.
    pub seed: u64,
    /// Batches of the run.
    pub batches: i64,
    /// Ranks.
    pub ranks: u32,
}

impl Workload {
    /// The ids of one sequence input of a rank's microbatch: Zipf-like, sometimes none.
    pub fn ids(&self, rows: u64, stream: u64, rank: u32, batch: i64, microbatch: u32) -> Vec<u64> {
        let key = word(&(self.seed, stream, rank, batch, microbatch));
        let count = key % 4;
        (0..count)
            .map(|i| {
                let u = (word(&(key, i)) >> 11) as f64 / (1u64 << 53) as f64;
                ((rows as f64).powf(u) - 1.0).floor() as u64 % rows
            })
            .collect()
    }
}

/// Windows by which an exchange's rows are told apart.
pub(super) fn windows(s: &Schedule, e: u32) -> u32 {
    s.exchanges[e as usize].windows.unwrap_or(s.settings.microbatches)
}

/// Microbatches of one.
pub(super) fn of_window(s: &Schedule, e: u32) -> u32 {
    s.settings.microbatches / windows(s, e)
}

/// Entries of a rank whose rows have owners.
pub(super) fn owned(s: &Schedule, work: &Workload, e: u32, rank: u32, batch: i64) -> u32 {
    let x = &s.exchanges[e as usize];
    let hot = &s.tables[x.table as usize].hot;
    let used = used(s, work, e, rank, batch).into_iter().map(|(_, row)| row).filter(|row| !hot.contains(row));
    let count = if x.unique { used.collect::<BTreeSet<_>>().len() } else { used.count() };
    count as u32
}

/// Uses of an exchange's rows by a rank: window and row, in the order of its list.
pub(super) fn used(s: &Schedule, work: &Workload, e: u32, rank: u32, batch: i64) -> Vec<(u32, u64)> {
    let (x, ops) = (&s.exchanges[e as usize], &s.train.ops);
    let rows = s.tables[x.table as usize].rows;
    let unique =
        ops.iter().find(|op| matches!(op.action, Action::Unique { exchange } if exchange == x.list()));
    let Some(unique) = unique else { return Vec::new() };
    let each = unique.reads.len() / s.settings.microbatches as usize;
    let mut out = Vec::new();
    for (i, o) in unique.reads.iter().enumerate() {
        let part = (i / each) as u32;
        let drawn = ops.iter().find(|op| op.writes.first().is_some_and(|w| w.place == o.place));
        let stream = match (s.train.ids_of(o), drawn.map(|op| &op.action)) {
            (Place::Input(n), _) => u64::from(n),
            (_, Some(Action::DrawNegatives { stream, .. })) => DRAWN + u64::from(*stream),
            _ => continue,
        };
        out.extend(
            work.ids(rows, stream, rank, batch, part).into_iter().map(|row| (part / of_window(s, e), row)),
        );
    }
    out
}
