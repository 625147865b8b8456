//! How dense gradients are summed: who adds up which elements, and what goes where for that.
//!
//! Each rank *owns* a share of all elements. At once, a rank sends every other one the share that it owns, which adds up what comes, in
//! rank order, and sends the sum to all: two rounds. Node by node, what goes to another node is summed before: a rank sends the shares to
//! their *relays*, the ranks of its own node that stand for owners ([`Nodes::relay`]); these send their node's sums to the owners, who
//! add those up in the order of nodes and send the totals back the same way, to relays and from there to all ranks of a node. That is four
//! rounds, and between nodes each element passes once there and once back for each node instead of for each rank.

use std::ops::Range;

use fs_schedule::Nodes;

use super::job::Env;

/// Sums over ranks of so many elements, as one of the ranks sees them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sums {
    nodes: Nodes,
    rank: usize,
    ranks: usize,
    total: usize,
}

/// What a rank sends in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// Elements of its own gradients: [`Sums::own`].
    Own,
    /// Sums of what came in the round before: [`Sums::added`].
    Sum,
    /// What came in the round before: [`Sums::joined`].
    Joined,
}

impl Sums {
    pub(crate) fn new(env: &Env, total: usize) -> Self {
        let by_node = env.schedule.settings.sums_by_node;
        let nodes = if by_node { env.nodes } else { Nodes::new(env.ranks as u32, None) };
        Self { nodes, rank: env.rank, ranks: env.ranks, total }
    }

    /// Two, or four over several nodes.
    pub(crate) fn rounds(&self) -> u64 {
        if self.nodes.count() > 1 { 4 } else { 2 }
    }

    /// The elements that a rank owns.
    fn share(&self, owner: usize) -> Range<usize> {
        let each = self.total.div_ceil(self.ranks);
        (owner * each).min(self.total)..((owner + 1) * each).min(self.total)
    }

    /// Ranks of this rank's node.
    fn node(&self) -> Range<usize> {
        let node = self.nodes.of(self.rank as u32);
        node.start as usize..node.end as usize
    }

    /// Whom a rank stands for in its node, in their order: [`Nodes::relay`] the other way round.
    fn stands_for(&self, relay: usize) -> impl Iterator<Item = usize> + use<> {
        let (node, each, ranks) = (self.nodes.of(relay as u32), self.nodes.each() as usize, self.ranks);
        let (place, size) = (relay - node.start as usize, node.len().max(1));
        let firsts = (0..ranks).step_by(each);
        let owners = firsts.flat_map(move |first| (place..each).step_by(size).map(move |at| first + at));
        owners.take_while(move |owner| *owner < ranks)
    }

    /// The elements of those whom a rank stands for, as they are sent.
    pub(crate) fn shares(&self, relay: usize) -> impl Iterator<Item = Range<usize>> {
        self.stands_for(relay).map(|owner| self.share(owner))
    }

    /// What is sent in a round.
    pub(crate) fn content(&self, round: u64) -> Content {
        match (round, self.rounds()) {
            (0, _) => Content::Own,
            (3, _) => Content::Joined,
            _ => Content::Sum,
        }
    }

    /// Whether all who are sent something in a round are sent the same.
    pub(crate) fn everyone(&self, round: u64) -> bool {
        round + 1 == self.rounds() || round == 2
    }

    /// How many elements are sent to a rank in a round.
    pub(crate) fn count(&self, round: u64, to: usize) -> usize {
        let near = self.node().contains(&to);
        let relay = |rank: usize, owner: usize| self.nodes.relay(rank as u32, owner as u32) as usize;
        match round {
            0 if near => self.len(to),
            // Sums of a node to their owners, and totals to who stands for their owner.
            1 if self.rounds() == 4 && relay(self.rank, to) == self.rank => self.share(to).len(),
            2 if relay(to, self.rank) == to => self.share(self.rank).len(),
            1 if self.rounds() == 2 => self.len(self.rank),
            3 if near => self.len(self.rank),
            _ => 0,
        }
    }

    /// Elements of those whom a rank stands for.
    fn len(&self, relay: usize) -> usize {
        self.shares(relay).map(|share| share.len()).sum()
    }

    /// Which of the own gradients are sent in the first round, one range after the other.
    pub(crate) fn own(&self) -> impl Iterator<Item = Range<usize>> {
        // On one node shares follow each other.
        let several = self.nodes.count() > 1;
        let whole = (!several).then_some(0..self.total);
        let node = if several { self.node() } else { 0..0 };
        whole.into_iter().chain(node.flat_map(|to| self.shares(to)))
    }

    /// What is added up in a round: what these ranks sent in the round before, in this order.
    pub(crate) fn added(&self, round: u64) -> impl Iterator<Item = usize> + use<> {
        let (nodes, owner) = (self.nodes, self.rank as u32);
        let node = if round == 1 { self.node() } else { 0..0 };
        let others = if round == 2 { 0..nodes.count() } else { 0..0 };
        node.chain(others.map(move |node| nodes.relay(node * nodes.each(), owner) as usize))
    }

    /// How many elements are added up.
    pub(crate) fn sums(&self, round: u64) -> usize {
        if round == 2 { self.share(self.rank).len() } else { self.len(self.rank) }
    }

    /// Who sent what is sent on in the last of four rounds, one after the other, and how many elements.
    pub(crate) fn joined(&self) -> impl Iterator<Item = (usize, usize)> {
        self.stands_for(self.rank).map(|owner| (owner, self.share(owner).len()))
    }

    /// Who sends sums in the last round, and how many.
    pub(crate) fn comes(&self) -> impl Iterator<Item = (usize, usize)> {
        self.node().map(|from| (from, self.len(from)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What all ranks have in the end, by rounds between them: sums as texts that say in which order they were made.
    fn summed(ranks: usize, node: Option<u32>, total: usize) -> Vec<Vec<String>> {
        let nodes = Nodes::new(ranks as u32, node);
        let of = |rank| Sums { nodes, rank, ranks, total };
        let own = |rank: usize| (0..total).map(|i| format!("{rank}.{i}")).collect::<Vec<_>>();
        // Of each rank how many it sends to each, whether all get the same, and what.
        let mut before: Vec<(Vec<usize>, bool, Vec<String>)> = Vec::new();
        for round in 0..of(0).rounds() {
            let part = |from: usize, to: usize| {
                let (counts, everyone, elements) = &before[from];
                let first = if *everyone { 0 } else { counts[..to].iter().sum() };
                elements[first..first + counts[to]].to_vec()
            };
            let sends = |rank: usize| {
                let sums = of(rank);
                let elements: Vec<String> = match sums.content(round) {
                    Content::Own => sums.own().flat_map(|r| own(rank)[r].to_vec()).collect(),
                    Content::Sum => {
                        let parts: Vec<_> = sums.added(round).map(|from| part(from, rank)).collect();
                        assert!(parts.iter().all(|part| part.len() == sums.sums(round)));
                        let sum = |i: usize| parts.iter().map(|p| p[i].clone()).collect::<Vec<_>>().join("+");
                        (0..sums.sums(round)).map(|i| format!("({})", sum(i))).collect()
                    }
                    Content::Joined => {
                        let part = |(from, n): (usize, usize)| {
                            let part = part(from, rank);
                            assert_eq!(part.len(), n);
                            part
                        };
                        sums.joined().flat_map(part).collect()
                    }
                };
                let counts: Vec<usize> = (0..ranks).map(|to| sums.count(round, to)).collect();
                let everyone = sums.everyone(round);
                if everyone {
                    assert!(counts.iter().all(|n| [0, elements.len()].contains(n)));
                } else {
                    assert_eq!(counts.iter().sum::<usize>(), elements.len());
                }
                (counts, everyone, elements)
            };
            before = (0..ranks).map(sends).collect();
        }
        let come = |rank: usize| {
            let mut sums = vec![String::new(); total];
            for (from, n) in of(rank).comes() {
                let (counts, everyone, elements) = &before[from];
                assert!(*everyone && counts[rank] == n);
                let mut sent = elements.iter();
                for (i, sum) in of(rank).shares(from).flatten().zip(&mut sent) {
                    assert!(sums[i].is_empty(), "it comes once");
                    sums[i].clone_from(sum);
                }
                assert!(sent.next().is_none());
            }
            sums
        };
        (0..ranks).map(come).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Every rank gets every sum, in rank order within nodes, then in the order of nodes; at once that is rank order.
        #[test]
        fn every_rank_gets_every_sum(ranks in 1..14usize, node in prop::option::of(1..14u32), total in 0..40usize) {
            let nodes = Nodes::new(ranks as u32, node);
            let of_node = |i: usize, node: u32| {
                let ranks = nodes.of(node * nodes.each()).map(|rank| format!("{rank}.{i}"));
                format!("({})", ranks.collect::<Vec<_>>().join("+"))
            };
            let sum = |i: usize| {
                let sums: Vec<String> = (0..nodes.count()).map(|node| of_node(i, node)).collect();
                if sums.len() > 1 { format!("({})", sums.join("+")) } else { sums.concat() }
            };
            let wanted: Vec<String> = (0..total).map(sum).collect();
            for found in summed(ranks, node, total) {
                prop_assert_eq!(&found, &wanted);
            }
        }

        /// Whom ranks stand for is what relays are.
        #[test]
        fn who_stands_for_whom(ranks in 1..40usize, node in prop::option::of(1..40u32)) {
            let nodes = Nodes::new(ranks as u32, node);
            for rank in 0..ranks {
                let sums = Sums { nodes, rank, ranks, total: 7 };
                let relayed = |owner: &usize| nodes.relay(rank as u32, *owner as u32) as usize == rank;
                let wanted: Vec<usize> = (0..ranks).filter(relayed).collect();
                prop_assert_eq!(sums.stands_for(rank).collect::<Vec<_>>(), wanted);
            }
        }

        /// Between nodes each element passes once for each other node, there and back, and within them once for each other rank.
        #[test]
        fn what_passes_between_nodes(nodes in 2..5usize, each in 2..5usize, share in 1..4usize) {
            let ranks = nodes * each;
            let total = ranks * share;
            let of = |rank| Sums { nodes: Nodes::new(ranks as u32, Some(each as u32)), rank, ranks, total };
            for round in 0..4 {
                let (mut near, mut far) = (0, 0);
                for rank in 0..ranks {
                    for to in (0..ranks).filter(|to| *to != rank) {
                        *(if to / each == rank / each { &mut near } else { &mut far }) += of(rank).count(round, to);
                    }
                }
                let wanted = if round == 0 || round == 3 { (nodes * (each - 1) * total, 0) } else { (0, (nodes - 1) * total) };
                prop_assert_eq!((near, far), wanted);
            }
        }
    }
}
