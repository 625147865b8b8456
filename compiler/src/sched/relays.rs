//! Rows that come through relays: what of them is within nodes and what between, and how many different rows a node uses.

use fs_schedule::{Exchange, Leg, Nodes, Op, Reuse, Schedule};
use fs_workload::ids::Draws;

use super::rows::{Entries, Expected, Law};

/// Between whom a transfer's exchanges are; those of one transfer are alike.
pub(crate) fn leg(s: &Schedule, op: &Op) -> Leg {
    let first = op.action.exchanges().first().and_then(|e| s.exchanges.get(*e as usize));
    first.map_or(Leg::Whole, |x| x.leg)
}

/// Whether all that an operation moves stays within nodes.
pub(crate) fn within(s: &Schedule, op: &Op) -> bool {
    leg(s, op).between().is_some()
}

/// The nodes of a schedule's ranks.
pub(crate) fn nodes(s: &Schedule) -> Nodes {
    Nodes::new(s.ranks, s.settings.node)
}

/// Expected entries of one relay's request, of a table whose rows all its ranks own: those of a node, shared evenly by its
/// relays. A rank that draws all that a node's ranks draw asks for as many.
pub(crate) fn expect(
    known: &Expected,
    law: Law,
    draws: Draws,
    nodes: Nodes,
    reuse: Option<Reuse>,
) -> Entries {
    let each = f64::from(nodes.each());
    let of_node = Draws { by_law: draws.by_law * each, uniform: draws.uniform * each };
    let found = known.entries(law, of_node, f64::from(nodes.count()), true, reuse);
    share(&found, 1.0 / each)
}

/// How many relays' requests the described rank sends: of a table with one owner it is the owner himself, who asks for all of
/// it on behalf of his node.
pub(crate) fn whole(s: &Schedule, x: &Exchange) -> f64 {
    let owner = s.tables.get(x.table as usize).and_then(|t| t.sharding.owner(x.part));
    let relays = x.leg.within().is_some() && owner.is_some();
    if relays { f64::from(nodes(s).each()) } else { 1.0 }
}

/// Without some of them.
pub(crate) fn without(entries: &Entries, some: &Entries) -> Entries {
    let less = |all: &[f64], some: &[f64]| all.iter().zip(some).map(|(n, of)| (n - of).max(0.0)).collect();
    Entries {
        sent: (entries.sent - some.sent).max(0.0),
        forward: less(&entries.forward, &some.forward),
        backward: less(&entries.backward, &some.backward),
    }
}

/// So many times as many.
pub(crate) fn share(entries: &Entries, factor: f64) -> Entries {
    let scaled = |list: &[f64]| list.iter().map(|n| n * factor).collect();
    Entries {
        sent: entries.sent * factor,
        forward: scaled(&entries.forward),
        backward: scaled(&entries.backward),
    }
}

/// How much more the busiest relay is asked for than the mean one, by the loads of owners: of each place in a node the sum.
pub(crate) fn busiest_place(loads: &[f64], nodes: Nodes) -> f64 {
    let each = nodes.each() as usize;
    let mut places = vec![0.0; each];
    loads.iter().enumerate().for_each(|(owner, load)| places[owner % each] += load);
    fs_workload::placement::busiest(&places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::rows::Popular;
    use fs_schedule::{IdDistribution, Way};

    fn drawn(ids: IdDistribution, rows: u64, draws: Draws, nodes: Nodes, reuse: Option<Reuse>) -> Entries {
        expect(&Expected::default(), Law { ids, rows, of: Popular::All }, draws, nodes, reuse)
    }

    fn close(a: f64, b: f64, tolerance: f64) {
        assert!((a - b).abs() <= tolerance * b.abs().max(1e-12), "{a} for {b}");
    }

    #[test]
    fn a_node_asks_for_what_its_ranks_ask_for_once() {
        let nodes = Nodes::new(16, Some(4));
        let draws = Draws { by_law: 500.0, uniform: 0.0 };
        // All ranks use all rows: a relay asks for its quarter of them, once instead of four times.
        let e = drawn(IdDistribution::Uniform, 40, draws, nodes, None);
        close(e.sent, 10.0, 1e-6);
        // Nobody uses what another uses: as many as ranks ask for.
        let e = drawn(IdDistribution::Uniform, 1 << 40, draws, nodes, None);
        close(e.sent, 500.0, 1e-3);
        let reuse = Reuse::new(2, 3);
        let e = drawn(IdDistribution::Zipf(1.05), 10_000, draws, nodes, Some(reuse));
        assert_eq!(e.forward.len(), reuse.count(Way::Forward));
        close(e.forward.iter().sum(), e.sent, 1e-9);
        close(e.backward.iter().sum(), e.sent, 1e-9);
    }

    /// Against drawing: what a node's four ranks use of 60 rows.
    #[test]
    fn nodes_agree_with_drawing() {
        let (rows, per_rank, each) = (60u64, 12, 4);
        let mut state = 99u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % rows
        };
        let rounds = 3000;
        let mut seen = 0;
        for _ in 0..rounds {
            let node: std::collections::BTreeSet<u64> = (0..per_rank * each).map(|_| next()).collect();
            seen += node.len();
        }
        let draws = Draws { by_law: f64::from(per_rank), uniform: 0.0 };
        let e = drawn(IdDistribution::Uniform, rows, draws, Nodes::new(8, Some(each as u32)), None);
        close(e.sent * f64::from(each as u32), seen as f64 / f64::from(rounds), 0.02);
    }

    #[test]
    fn places_of_a_node_share_what_their_owners_are_asked() {
        let nodes = Nodes::new(4, Some(2));
        // Places are asked 3 + 1 and 2 + 2: evenly.
        close(busiest_place(&[3.0, 2.0, 1.0, 2.0], nodes), 1.0, 1e-9);
        close(busiest_place(&[3.0, 1.0, 3.0, 1.0], nodes), 1.5, 1e-9);
    }
}
