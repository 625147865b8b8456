//! Nodes: which ranks share one, and who in a node asks for rows on behalf of its ranks.
//!
//! Nodes are filled one after the other, the last one perhaps not wholly. The *relay* of a row in a node is the rank that
//! stands there where the row's owner stands in its own node, so relays and owners that talk to each other have the same
//! place: a rail of the network, and as many ranks at both ends.

use std::ops::Range;

/// Ranks by node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nodes {
    ranks: u32,
    each: u32,
}

impl Nodes {
    /// `ranks` ranks, `each` of a node; none: they are one node's.
    pub fn new(ranks: u32, each: Option<u32>) -> Self {
        let ranks = ranks.max(1);
        Self { ranks, each: each.unwrap_or(ranks).clamp(1, ranks) }
    }

    /// Ranks of a node, but perhaps of the last one.
    pub fn each(&self) -> u32 {
        self.each
    }

    /// How many nodes there are.
    pub fn count(&self) -> u32 {
        self.ranks.div_ceil(self.each)
    }

    /// The ranks of the node of a rank.
    pub fn of(&self, rank: u32) -> Range<u32> {
        let first = rank / self.each * self.each;
        first..self.ranks.min(first.saturating_add(self.each))
    }

    /// Who asks `owner` for rows on behalf of the node of `rank`. In a last node that is not full some ranks stand for two
    /// places.
    pub fn relay(&self, rank: u32, owner: u32) -> u32 {
        let node = self.of(rank);
        node.start + owner % self.each % (node.end - node.start).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_last_node_that_is_not_full() {
        let nodes = Nodes::new(7, Some(3));
        assert_eq!((nodes.count(), nodes.of(2), nodes.of(6)), (3, 0..3, 6..7));
        // The owner's own place, and the only one that there is.
        assert_eq!((nodes.relay(0, 5), nodes.relay(4, 1), nodes.relay(6, 2)), (2, 4, 6));
    }

    proptest! {
        #[test]
        fn an_owner_is_its_own_relay_and_asked_by_one_rank_a_node(
            ranks in 1u32..40, each in prop::option::of(1u32..12), owner in 0u32..40
        ) {
            let (nodes, owner) = (Nodes::new(ranks, each), owner % ranks);
            prop_assert_eq!(nodes.relay(owner, owner), owner);
            let mut relays: Vec<u32> = (0..ranks).map(|rank| nodes.relay(rank, owner)).collect();
            for (rank, relay) in (0..).zip(&relays) {
                prop_assert!(nodes.of(rank).contains(relay));
            }
            relays.dedup();
            prop_assert_eq!(relays.len() as u32, nodes.count());
            prop_assert!(relays.windows(2).all(|w| w[0] < w[1]), "sources of an owner come in the order of nodes");
        }
    }
}
