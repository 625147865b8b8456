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
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Round {
    /// Elements for each rank.
    pub counts: Vec<u64>,
    /// All who get some get the same, which are there once.
    pub everyone: bool,
    /// What they are.
    pub content: Content,
}

/// Elements that are sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Of the rank's own gradients, one range after the other.
    Own(Vec<Range<usize>>),
    /// So many that each of these ranks sent in the round before, added in this order.
    Sum(Vec<usize>, usize),
    /// Those that each of these ranks sent in the round before, one rank's after the other's.
    Joined(Vec<(usize, usize)>),
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

    /// Whom a rank stands for in its node.
    fn stands_for(&self, relay: usize) -> impl Iterator<Item = usize> + use<> {
        let nodes = self.nodes;
        (0..self.ranks).filter(move |owner| nodes.relay(relay as u32, *owner as u32) as usize == relay)
    }

    /// The elements of those whom a rank stands for, as they are sent.
    fn shares(&self, relay: usize) -> impl Iterator<Item = Range<usize>> {
        self.stands_for(relay).map(|owner| self.share(owner))
    }

    /// What is sent in a round.
    pub(crate) fn round(&self, round: u64) -> Round {
        let (me, node) = (self.rank, self.node());
        let counts = |of: &dyn Fn(usize) -> usize| (0..self.ranks).map(|to| of(to) as u64).collect();
        let len = |relay: usize| self.shares(relay).map(|share| share.len()).sum::<usize>();
        let within = |to: usize, n: usize| if node.contains(&to) { n } else { 0 };
        match (round, self.rounds()) {
            (0, _) => {
                let counts = counts(&|to| within(to, if node.contains(&to) { len(to) } else { 0 }));
                let mut own: Vec<Range<usize>> = Vec::new();
                for share in node.clone().flat_map(|to| self.shares(to)).filter(|share| !share.is_empty()) {
                    match own.last_mut().filter(|last| last.end == share.start) {
                        Some(last) => last.end = share.end,
                        None => own.push(share),
                    }
                }
                Round { counts, everyone: false, content: Content::Own(own) }
            }
            // On one node the rank is the only one that stands for it.
            (1, 2) => {
                let n = self.share(me).len();
                let content = Content::Sum(node.clone().collect(), n);
                Round { counts: counts(&|_| n), everyone: true, content }
            }
            (1, _) => {
                let owner = |to: usize| self.nodes.relay(me as u32, to as u32) as usize == me;
                let counts = counts(&|to| if owner(to) { self.share(to).len() } else { 0 });
                let content = Content::Sum(node.clone().collect(), len(me));
                Round { counts, everyone: false, content }
            }
            (2, _) => {
                let n = self.share(me).len();
                let first = |node: u32| node * self.nodes.each();
                let relay = |node: u32| self.nodes.relay(first(node), me as u32) as usize;
                let relays: Vec<usize> = (0..self.nodes.count()).map(relay).collect();
                let counts = counts(&|to| if relays.contains(&to) { n } else { 0 });
                Round { counts, everyone: true, content: Content::Sum(relays, n) }
            }
            _ => {
                let n = len(me);
                let content = self.stands_for(me).map(|owner| (owner, self.share(owner).len())).collect();
                Round {
                    counts: counts(&|to| within(to, n)),
                    everyone: true,
                    content: Content::Joined(content),
                }
            }
        }
    }

    /// Which sums come in the last round: from whom, and which elements, one range after the other.
    pub(crate) fn comes(&self) -> Vec<(usize, Vec<Range<usize>>)> {
        self.node().map(|from| (from, self.shares(from).collect())).collect()
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
        let mut before: Vec<(Round, Vec<String>)> = Vec::new();
        for round in 0..of(0).rounds() {
            let part = |from: usize, to: usize| {
                let (sent, elements): &(Round, Vec<String>) = &before[from];
                let n = sent.counts[to] as usize;
                let first = sent.counts[..to].iter().sum::<u64>() as usize;
                elements[if sent.everyone { 0..n } else { first..first + n }].to_vec()
            };
            before = (0..ranks)
                .map(|rank| {
                    let sent = of(rank).round(round);
                    let elements: Vec<String> = match &sent.content {
                        Content::Own(ranges) => {
                            ranges.iter().flat_map(|r| own(rank)[r.clone()].to_vec()).collect()
                        }
                        Content::Sum(from, n) => {
                            let parts: Vec<_> = from.iter().map(|from| part(*from, rank)).collect();
                            assert!(parts.iter().all(|part| part.len() == *n));
                            let sum =
                                |i: usize| parts.iter().map(|p| p[i].clone()).collect::<Vec<_>>().join("+");
                            (0..*n).map(|i| format!("({})", sum(i))).collect()
                        }
                        Content::Joined(from) => {
                            let part = |(from, n): &(usize, usize)| {
                                let part = part(*from, rank);
                                assert_eq!(part.len(), *n);
                                part
                            };
                            from.iter().flat_map(part).collect()
                        }
                    };
                    let most = *sent.counts.iter().max().expect("ranks") as usize;
                    let all = sent.counts.iter().sum::<u64>() as usize;
                    assert_eq!(elements.len(), if sent.everyone { most } else { all });
                    (sent, elements)
                })
                .collect();
        }
        let come = |rank: usize| {
            let mut sums = vec![String::new(); total];
            for (from, ranges) in of(rank).comes() {
                let (sent, elements) = &before[from];
                assert!(
                    sent.everyone
                        && ranges.iter().map(Range::len).sum::<usize>() == sent.counts[rank] as usize
                );
                for (i, sum) in ranges.into_iter().flatten().zip(elements) {
                    assert!(sums[i].is_empty(), "it comes once");
                    sums[i].clone_from(sum);
                }
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

        /// Between nodes each element passes once for each other node, there and back, and within them once for each other rank.
        #[test]
        fn what_passes_between_nodes(nodes in 2..5usize, each in 2..5usize, share in 1..4usize) {
            let ranks = nodes * each;
            let total = ranks * share;
            let of = |rank| Sums { nodes: Nodes::new(ranks as u32, Some(each as u32)), rank, ranks, total };
            for round in 0..4 {
                let (mut near, mut far) = (0, 0);
                for rank in 0..ranks {
                    for (to, n) in of(rank).round(round).counts.into_iter().enumerate().filter(|(to, _)| *to != rank) {
                        *(if to / each == rank / each { &mut near } else { &mut far }) += n as usize;
                    }
                }
                let wanted = if round == 0 || round == 3 { (nodes * (each - 1) * total, 0) } else { (0, (nodes - 1) * total) };
                prop_assert_eq!((near, far), wanted);
            }
        }
    }
}
