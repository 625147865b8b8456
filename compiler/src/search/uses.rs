//! What uses the rows of each table in a schedule's training step.

use std::collections::{BTreeMap, BTreeSet};

use fs_schedule::action::Action;
use fs_schedule::{Place, Schedule};

/// What uses an exchange's entries in training.
pub(super) struct Used {
    /// Lists of ids.
    pub lists: usize,
    /// Each is used by one operation forward and one backward, and by none that compares entries.
    pub once: bool,
}

/// By exchange.
pub(super) fn uses(s: &Schedule) -> BTreeMap<u32, Used> {
    let mut places: BTreeMap<u32, (u32, [usize; 3])> = BTreeMap::new();
    let mut lists: BTreeMap<u32, usize> = BTreeMap::new();
    for op in &s.train.ops {
        if let Action::Unique { exchange } = op.action {
            let ids = op.reads.len();
            lists.insert(exchange, ids);
            for w in op.writes.iter().rev().take(ids) {
                if let Place::Buffer(b) = w.place {
                    places.insert(b, (exchange, [0; 3]));
                }
            }
        }
    }
    for op in &s.train.ops {
        let kind = match op.action {
            Action::Unique { .. } => continue,
            Action::Expand | Action::Pool { .. } => 0,
            Action::ExpandGrad | Action::PoolGrad { .. } => 1,
            _ => 2,
        };
        for r in &op.reads {
            if let Place::Buffer(b) = r.place
                && let Some((_, counts)) = places.get_mut(&b)
            {
                counts[kind] += 1;
            }
        }
    }
    let mut used: BTreeMap<u32, Used> =
        lists.into_iter().map(|(e, lists)| (e, Used { lists, once: true })).collect();
    for (exchange, [forward, backward, others]) in places.into_values() {
        if let Some(used) = used.get_mut(&exchange) {
            used.once &= forward <= 1 && backward <= 1 && others == 0;
        }
    }
    // Rows that are only read are not updated: nothing of them is derived.
    let updated: BTreeSet<u32> = s
        .train
        .ops
        .iter()
        .filter(|op| matches!(op.action, Action::Apply { .. }))
        .flat_map(|op| op.action.facts().of.exchanges.to_vec())
        // Owners apply what relays send them of what ranks sent these.
        .map(|e| s.exchanges.get(e as usize).and_then(|x| x.leg.within()).unwrap_or(e))
        // What hot rows and others are a share of is listed at once.
        .map(|e| s.exchanges.get(e as usize).and_then(|x| x.of).unwrap_or(e))
        .collect();
    used.retain(|e, _| updated.contains(e));
    used
}
