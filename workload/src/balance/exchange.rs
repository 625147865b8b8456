//! The exchange between two ranks that brings the greater of their loads down the most.

use super::plan::Sample;

/// A sample given away, and one taken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exchange {
    /// Place in the list of who gives.
    pub give: usize,
    /// Place in the list of who takes.
    pub back: Option<usize>,
}

/// What two ranks have, and what they can hold.
pub(super) struct Pair<'a> {
    /// Samples of who gives, dearest first.
    pub from: &'a [Sample],
    /// Samples of who takes, dearest first.
    pub to: &'a [Sample],
    /// By how much the giver's load is greater.
    pub gap: u64,
    /// What more fits into who gives, and into who takes.
    pub room: (u64, u64),
    /// Whether a sample may go without one that comes back.
    pub alone: bool,
}

impl Pair<'_> {
    /// The exchange that moves most nearly half the gap, and what then remains of it; none if nothing makes it smaller.
    /// Of two that move as much, the one with fewer bytes away from home.
    pub(crate) fn best(&self) -> Option<(Exchange, u64)> {
        let half = self.gap / 2;
        let mut best: Option<(Exchange, u64, i64)> = None;
        let mut consider = |give: usize, back: Option<usize>| {
            let given = &self.from[give];
            let taken = back.map(|b| &self.to[b]);
            let (cost, size) = taken.map_or((0, 0), |s| (s.cost, s.size));
            let Some(moved) = given.cost.checked_sub(cost).filter(|moved| *moved > 0 && *moved < self.gap)
            else {
                return;
            };
            let fits = given.size <= self.room.1.saturating_add(size)
                && size <= self.room.0.saturating_add(given.size);
            if !fits {
                return;
            }
            let left = moved.abs_diff(half);
            let bytes = given.away + taken.map_or(0, |s| s.away);
            if best.is_none_or(|(_, l, b)| (left, bytes) < (l, b)) {
                best = Some((Exchange { give, back }, left, bytes));
            }
        };
        // Both lists fall, so for each sample given the one to take back lies no earlier than for the one before.
        let mut at = 0;
        for give in 0..self.from.len() {
            if self.alone {
                consider(give, None);
            }
            let wanted = self.from[give].cost.saturating_sub(half);
            while at < self.to.len() && self.to[at].cost > wanted {
                at += 1;
            }
            for back in at.saturating_sub(1)..(at + 1).min(self.to.len()) {
                consider(give, Some(back));
            }
        }
        best.map(|(exchange, left, _)| (exchange, left))
    }
}
