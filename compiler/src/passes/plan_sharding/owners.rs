//! Ranks by load: the least loaded first, without a list of all ranks.

use std::collections::{BTreeMap, BTreeSet};

/// A load that sorts.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Work(f64);

impl Eq for Work {}
impl PartialOrd for Work {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Work {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// What ranks own so far. Ranks that own nothing are alike: only the first of them is known.
#[derive(Debug)]
pub(super) struct Owners {
    ranks: u32,
    /// Memory of a rank for what it owns.
    room: u64,
    /// Ranks with something, least loaded first.
    order: BTreeSet<(Work, u32)>,
    held: BTreeMap<u32, (f64, u64)>,
    /// No rank from here on owns anything.
    fresh: u32,
}

impl Owners {
    pub(super) fn new(ranks: u32, room: u64) -> Self {
        Self { ranks, room, order: BTreeSet::new(), held: BTreeMap::new(), fresh: 0 }
    }

    /// Less room on every rank.
    pub(super) fn shrink(&mut self, bytes: u64) {
        self.room = self.room.saturating_sub(bytes);
    }

    /// The most bytes that a rank owns.
    pub(super) fn fullest(&self) -> u64 {
        self.held.values().map(|(_, bytes)| *bytes).max().unwrap_or(0)
    }

    /// Gives work and bytes to a rank.
    pub(super) fn add(&mut self, rank: u32, work: f64, bytes: u64) {
        // Ranks in between own nothing, but are no longer alike the ones behind.
        while self.fresh <= rank {
            self.held.insert(self.fresh, (0.0, 0));
            self.order.insert((Work(0.0), self.fresh));
            self.fresh += 1;
        }
        let (w, b) = self.held.get(&rank).copied().unwrap_or_default();
        self.order.remove(&(Work(w), rank));
        self.order.insert((Work(w + work), rank));
        self.held.insert(rank, (w + work, b.saturating_add(bytes)));
    }

    /// The `count` least loaded ranks with room for `bytes` each, which they then own; none if there are fewer.
    pub(super) fn take(&mut self, count: u32, work: f64, bytes: u64) -> Vec<u32> {
        let mut found: Vec<u32> = Vec::new();
        let count = count as usize;
        let fits = |held: u64| held.checked_add(bytes).is_some_and(|sum| sum <= self.room);
        // Idle ranks that are known come first, then unknown ones, then the rest by load.
        let known = self.order.iter().filter(|(_, r)| self.held.get(r).is_some_and(|h| fits(h.1)));
        let mut known = known.peekable();
        while found.len() < count {
            if let Some((_, rank)) = known.next_if(|(w, _)| w.0 == 0.0) {
                found.push(*rank);
            } else {
                break;
            }
        }
        let mut next = self.fresh;
        while found.len() < count && next < self.ranks && fits(0) {
            found.push(next);
            next += 1;
        }
        found.extend(known.map(|(_, r)| *r).take(count - found.len()));
        if found.len() < count {
            return Vec::new();
        }
        for rank in &found {
            self.add(*rank, work, bytes);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_loaded_with_room() {
        let mut o = Owners::new(3, 10);
        assert_eq!(o.take(1, 5.0, 4), [0]);
        assert_eq!(o.take(1, 3.0, 4), [1]);
        assert_eq!(o.take(1, 2.0, 9), [2]);
        // Rank 2 has the least work, but no room.
        assert_eq!(o.take(1, 1.0, 4), [1]);
        assert_eq!(o.take(2, 1.0, 1), [2, 1]);
        assert_eq!(o.take(1, 1.0, 100), Vec::<u32>::new());
        assert_eq!(o.fullest(), 10);
    }

    #[test]
    fn ranks_that_own_nothing_cost_nothing() {
        let mut o = Owners::new(u32::MAX, u64::MAX);
        for want in 0..100 {
            assert_eq!(o.take(1, 1.0, 1), [want]);
        }
        assert_eq!(o.held.len(), 100);
    }
}
