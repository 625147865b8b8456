//! Bytes that ranks send each other in a step, as the mean rank is expected to.
//!
//! Times are of the rank that has most to do; bytes are added up over all ranks and shared. So samples and tokens are the mean rank's,
//! and what owners send and receive is what ranks ask for: of rows with one owner he sends what all get, of rows that everyone has
//! all get what each sends.

use fs_schedule::{Leg, Op, Schedule, Sent, Symbol};

use super::relays;
use super::sizes::Sizes;

/// Of a schedule whose nodes have so many ranks, the last one maybe fewer (there about: relays are taken to have as much to do as those of
/// full nodes).
pub(crate) fn expect(s: &Schedule, sizes: &Sizes, node: u32) -> Sent {
    let (ranks, node) = (s.ranks.max(1), node.clamp(1, s.ranks.max(1)));
    let nodes = ranks.div_ceil(node);
    let last = ranks - (nodes - 1) * node;
    let [all, full, rest] = [ranks, node, last].map(f64::from);
    // Of all pairs of a rank and one that it sends to, itself among them, those that are others and those of other nodes.
    let within = f64::from(nodes - 1) * full * full + rest * rest;
    let (away, far) = (1.0 - 1.0 / all, (1.0 - within / (all * all)).max(0.0));
    let mut sent = Sent::default();
    for op in s.train.ops.iter().filter(|op| op.action.facts().transfer.is_some()) {
        let bytes = op.cost.wire.eval(|symbol| of_mean(s, sizes, op, symbol));
        let (away, far) = match relays::leg(s, op) {
            // Each rank sends its node all of its gradients, and owners as much less of their sums as nodes are fewer than ranks; and back.
            Leg::Whole if op.action.facts().sums_over_ranks() && s.sums().count() > 1 => {
                let nodes = f64::from(s.sums().count());
                let (relayed, others) = (nodes / all, 1.0 - 1.0 / nodes);
                let far = relayed * others / (1.0 + relayed);
                ((1.0 - relayed) / (1.0 + relayed) + far, far)
            }
            // Sums at once travel as all else does: each rank adds up its part of all ranks', and sends that to all.
            Leg::Whole => (away, far),
            Leg::Within { .. } => (1.0 - f64::from(nodes) / all, 0.0),
            Leg::Between { .. } => (far, far),
        };
        sent.bytes += bytes * away;
        sent.between_nodes += bytes * far;
    }
    Sent { between_nodes: sent.between_nodes.min(sent.bytes), ..sent }
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
    let replicated = x.replicated(&s.tables);
    let gathered = if replicated && asked != symbol { f64::from(s.ranks) } else { 1.0 };
    // One relay of a node asks a table's only owner for all of it; the size is that relay's.
    sizes.of(op, asked) * gathered / relays::whole(s, x)
}
