//! Who sends how many bytes to whom: an all-to-all of a schedule as messages between pairs of ranks.
//!
//! Sizes are the expected ones that the schedule was planned with. Rows are spread over their owners in proportion to
//! what each owns, so the messages of row-wise tables are nearly equal (the last shard may be shorter), unless the
//! workload asks some owners for more than others. Those of table- and column-wise tables go to, or come from, one rank
//! only.

use fs_schedule::action::{Operands, Payload, Peers, Runs};
use fs_schedule::{Element, Leg, Nodes, Op, Schedule, Section, Sharding};

use crate::sched::relays;
use crate::sched::sizes::Sizes;

/// What a transfer is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Transfer {
    /// Messages between pairs of ranks.
    Pairs(Pairs),
    /// All ranks contribute this many bytes, everyone gets all.
    AllGather(u64),
    /// A sum over ranks of this many bytes.
    AllReduce(u64),
}

/// Messages of an all-to-all.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pairs {
    /// Per exchange: the owners' shares, and the bytes that a rank exchanges with all owners.
    parts: Vec<(Vec<f64>, f64)>,
    /// Through whom, if rows come through relays.
    leg: Leg,
    nodes: Nodes,
    /// From ranks to owners; else from owners to ranks.
    to_owners: bool,
    /// Bytes of each message besides: the number of entries that follow.
    header: u64,
}

impl Pairs {
    /// Bytes from one rank to another; 0: there is no message.
    pub(crate) fn bytes(&self, from: u32, to: u32) -> u64 {
        if from == to {
            return 0;
        }
        let (asker, asked) = if self.to_owners { (from, to) } else { (to, from) };
        let mut any = false;
        let mut bytes = 0.0;
        for (shares, total) in &self.parts {
            let share = self.share(shares, asker, asked);
            any |= share > 0.0;
            bytes += share * total;
        }
        // What is expected to be empty is still a message.
        if any { self.header + (bytes.round() as u64).max(u64::from(self.header == 0)) } else { 0 }
    }
}

impl Pairs {
    /// The share of what a rank asks for that it asks another for.
    fn share(&self, shares: &[f64], asker: u32, asked: u32) -> f64 {
        let of = |owner: u32| shares.get(owner as usize).copied().unwrap_or(0.0);
        let owners = 0..shares.len() as u32;
        match self.leg {
            Leg::Whole => of(asked),
            // Of all owners that the relay stands for.
            Leg::Within { .. } => {
                let through = owners.filter(|owner| self.nodes.relay(asker, *owner) == asked);
                through.map(of).sum()
            }
            // A relay asks only those that it stands for, for all that its node wants of them.
            Leg::Between { .. } if self.nodes.relay(asker, asked) == asker => {
                let all: f64 = owners.filter(|owner| self.nodes.relay(asker, *owner) == asker).map(of).sum();
                if all > 0.0 { of(asked) / all } else { 0.0 }
            }
            Leg::Between { .. } => 0.0,
        }
    }
}

/// The transfer of an operation; `None` if it moves nothing between ranks.
///
/// `spread` says how evenly owners are asked.
pub(crate) fn of(s: &Schedule, sizes: &Sizes, spread: &Sizes, op: &Op) -> Option<Transfer> {
    let facts = op.action.facts();
    let transfer = facts.transfer.filter(|_| facts.runs == Runs::Link)?;
    let (reads, writes) = s.shapes(&s.train, op);
    let sections = op.action.sections(&Operands { reads: &reads, writes: &writes }, s.settings.wire);
    // Entries of who asks: they say how many go to each owner, or come from there.
    let asked = |x: &Section| {
        let entries = if transfer.peers == Peers::FromOwners { x.received } else { x.sent };
        x.entry * entries.poly().eval(|symbol| sizes.of(op, symbol))
    };
    // Who gets ids does not know yet how many.
    let counts = if matches!(transfer.payload, Payload::Ids | Payload::Asked) {
        Element::Count.row_bytes(1)
    } else {
        0
    };
    let pairs = |to_owners: bool| {
        let parts =
            sections.iter().filter_map(|x| Some((shares(s, spread, x.exchange?), asked(x)))).collect();
        let (leg, nodes) = (relays::leg(s, op), relays::nodes(s));
        Transfer::Pairs(Pairs { parts, leg, nodes, to_owners, header: counts * sections.len() as u64 })
    };
    let all: f64 = sections.iter().map(asked).sum();
    Some(match transfer.peers {
        Peers::ToOwners => pairs(true),
        Peers::FromOwners => pairs(false),
        // As many samples go to each rank as to any other.
        Peers::ToAssigned | Peers::FromAssigned => {
            let shares = vec![1.0 / f64::from(s.ranks.max(1)); s.ranks as usize];
            let parts = sections.iter().map(|x| (shares.clone(), asked(x))).collect();
            let (leg, nodes) = (Leg::Whole, relays::nodes(s));
            Transfer::Pairs(Pairs { parts, leg, nodes, to_owners: true, header: 0 })
        }
        Peers::Everyone => {
            let header = (counts * u64::from(s.ranks) * sections.len() as u64) as f64;
            Transfer::AllGather(((all + header).round() as u64).max(1))
        }
        Peers::Reduce => Transfer::AllReduce((all.round() as u64).max(1)),
    })
}

/// The share of an exchange's rows that each rank owns, or that it is asked for, where owners are not asked evenly.
fn shares(s: &Schedule, spread: &Sizes, exchange: u32) -> Vec<f64> {
    if let Some(loads) = spread.owners(exchange) {
        let all: f64 = loads.iter().sum();
        return loads.iter().map(|load| if all > 0.0 { load / all } else { 0.0 }).collect();
    }
    let mut shares = vec![0.0; s.ranks as usize];
    let Some(x) = s.exchanges.get(exchange as usize) else { return shares };
    let Some(t) = s.tables.get(x.table as usize) else { return shares };
    let one = match &t.sharding {
        Sharding::TableWise { rank } => Some(*rank),
        Sharding::ColumnWise { ranks } => ranks.get(x.part as usize).copied(),
        Sharding::RowWise | Sharding::DataParallel => None,
    };
    if let Some(rank) = one {
        if let Some(share) = shares.get_mut(rank as usize) {
            *share = 1.0;
        }
    } else {
        let shard = t.rows.div_ceil(u64::from(s.ranks).max(1));
        for (r, share) in shares.iter_mut().enumerate() {
            let (start, end) = (shard * r as u64, shard * (r as u64 + 1));
            *share = end.min(t.rows).saturating_sub(start) as f64 / t.rows.max(1) as f64;
        }
    }
    shares
}
