//! Which ranks share a node, and what that means for sums.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use fs_schedule::{Leg, Schedule};

/// Whom a rank asks for an owner's rows: the owner, or in an exchange within nodes the rank of its own node that has the owner's
/// place there; of a last node that is not full, places begin again.
pub(super) fn asked(s: &Schedule, e: u32, from: u32, owner: u32, ranks: u32) -> u32 {
    let (Leg::Within { .. }, Some(each)) = (s.exchanges[e as usize].leg, s.settings.node) else {
        return owner;
    };
    let first = from - from % each;
    let size = each.min(ranks - first);
    first + (owner % each) % size
}

/// What is added up of each row: a node's values, then the nodes'; a relay has added up its node's already.
pub(super) fn by_row(
    s: &Schedule,
    e: u32,
    received: impl Iterator<Item = (u32, u64, u64)>,
) -> BTreeMap<u64, Vec<u64>> {
    let summed = matches!(s.exchanges[e as usize].leg, Leg::Between { .. });
    let mut sums: BTreeMap<u64, BTreeMap<u32, Vec<u64>>> = BTreeMap::new();
    for (from, row, v) in received {
        let node = s.settings.node.map_or(0, |each| from / each);
        sums.entry(row).or_default().entry(node).or_default().push(v);
    }
    let each = |list: Vec<u64>| if summed { list[0] } else { word(&list) };
    let of = |nodes: BTreeMap<u32, Vec<u64>>| nodes.into_values().map(each).collect();
    sums.into_iter().map(|(row, nodes)| (row, of(nodes))).collect()
}

/// A hash of anything.
pub(crate) fn word(x: &impl Hash) -> u64 {
    let mut h = DefaultHasher::new();
    x.hash(&mut h);
    h.finish()
}
