//! What a rank has at the end of a run.

use std::collections::{BTreeMap, BTreeSet};

/// Versions of rows and parameters of one rank, and the losses that it reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    pub(super) rows: BTreeMap<(u32, u32, u64), u64>,
    pub(super) parameters: BTreeMap<u64, u64>,
    /// By batch, in whatever order, with their number.
    pub(super) losses: Vec<(i64, BTreeSet<u64>, usize)>,
}

impl State {
    /// What all ranks hold together, wherever it lies.
    pub fn together(states: &[Self]) -> impl PartialEq + use<> {
        let mut rows: BTreeMap<(u32, u32, u64), BTreeSet<u64>> = BTreeMap::new();
        for (row, version) in states.iter().flat_map(|s| &s.rows) {
            rows.entry(*row).or_default().insert(*version);
        }
        let dense: Vec<_> = states.iter().map(|s| (s.parameters.clone(), s.losses.clone())).collect();
        (rows, dense)
    }

    /// What differs from another state: rows by table, part and number, then parameters.
    pub fn differs(&self, other: &Self) -> String {
        let keys: BTreeSet<_> = self.rows.keys().chain(other.rows.keys()).collect();
        let rows: Vec<_> = keys.into_iter().filter(|k| self.rows.get(k) != other.rows.get(k)).collect();
        let parameters: Vec<_> = self
            .parameters
            .iter()
            .filter(|(k, v)| other.parameters.get(k) != Some(v))
            .map(|(k, _)| k)
            .collect();
        let losses = if self.losses == other.losses { "equal" } else { "other" };
        format!("rows {rows:?}, parameters {parameters:?}, {losses} losses")
    }
}
