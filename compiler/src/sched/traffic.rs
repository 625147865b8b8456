//! Bytes that ranks send each other in a step, as the mean rank is expected to.
//!
//! Times are of the rank that has most to do; bytes are added up over all ranks and shared. So samples and tokens are the mean rank's,
//! and what owners send and receive is what ranks ask for: of rows with one owner he sends what all get, of rows that everyone has
//! all get what each sends.

use fs_schedule::action::Peers;
use fs_schedule::{Leg, Op, Schedule, Sharding, Symbol};

use super::relays;
use super::sizes::Sizes;

/// What a rank sends to others in a step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Traffic {
    /// Bytes.
    pub sent: f64,
    /// Those to ranks of other nodes.
    pub between_nodes: f64,
}

/// Of a schedule whose nodes have so many ranks.
pub(crate) fn expect(s: &Schedule, sizes: &Sizes, node: u32) -> Traffic {
    let (ranks, node) = (f64::from(s.ranks.max(1)), f64::from(node.clamp(1, s.ranks.max(1))));
    let nodes = (ranks / node).ceil();
    let whole = ((ranks - 1.0) / ranks, (ranks - node).max(0.0) / ranks);
    let mut all = Traffic::default();
    for op in &s.train.ops {
        let Some(transfer) = op.action.facts().transfer else { continue };
        let bytes = op.cost.wire.eval(|symbol| of_mean(s, sizes, op, symbol));
        // Sums are made within nodes first, and travel between them once for each.
        let (away, far) = match (transfer.peers, relays::leg(s, op)) {
            (Peers::Reduce, _) => (whole.0, (nodes - 1.0) / nodes / node),
            (_, Leg::Whole) => whole,
            (_, Leg::Within { .. }) => ((node - 1.0) / node, 0.0),
            (_, Leg::Between { .. }) => ((nodes - 1.0) / nodes, (nodes - 1.0) / nodes),
        };
        all.sent += bytes * away;
        all.between_nodes += bytes * far;
    }
    all
}

/// A size of what the mean rank sends.
fn of_mean(s: &Schedule, sizes: &Sizes, op: &Op, symbol: Symbol) -> f64 {
    let (asked, e) = match symbol {
        Symbol::Received(e) => (Symbol::Sent(e), e),
        Symbol::ReceivedClass(e, way, class) => (Symbol::SentClass(e, way, class), e),
        Symbol::Sent(e) | Symbol::SentClass(e, ..) => (symbol, e),
        other => return sizes.mean_of(op, other),
    };
    let Some(x) = s.exchanges.get(e as usize) else { return 0.0 };
    let replicated = s.tables.get(x.table as usize).is_some_and(|t| t.sharding == Sharding::DataParallel);
    let gathered = if replicated && asked != symbol { f64::from(s.ranks) } else { 1.0 };
    // One relay of a node asks a table's only owner for all of it; the size is that relay's.
    sizes.of(op, asked) * gathered / relays::whole(s, x)
}
