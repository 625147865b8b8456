//! Who sends how many bytes to whom: an all-to-all of a schedule as messages between pairs of ranks.
//!
//! Sizes are the expected ones that the schedule was planned with. Rows are spread over their owners in proportion to
//! what each owns, so the messages of row-wise tables are nearly equal (the last shard may be shorter), and those of
//! table- and column-wise tables go to, or come from, one rank only.

use fs_schedule::op::{Action, Element, Op, Place, Way};
use fs_schedule::{Schedule, Sharding, Symbol};

use crate::sched::sizes::{Sizes, width};

/// What a transfer is.
#[derive(Debug, Clone, PartialEq)]
pub enum Transfer {
    /// Messages between pairs of ranks.
    Pairs(Pairs),
    /// All ranks contribute this many bytes, everyone gets all.
    AllGather(u64),
    /// A sum over ranks of this many bytes.
    AllReduce(u64),
}

/// Messages of an all-to-all.
#[derive(Debug, Clone, PartialEq)]
pub struct Pairs {
    /// Per exchange: the owners' shares, and the bytes that a rank exchanges with all owners.
    parts: Vec<(Vec<f64>, f64)>,
    /// From ranks to owners; else from owners to ranks.
    to_owners: bool,
    /// Bytes of each message besides: the number of entries that follow.
    header: u64,
}

impl Pairs {
    /// Bytes from one rank to another; 0: there is no message.
    pub fn bytes(&self, from: u32, to: u32) -> u64 {
        if from == to {
            return 0;
        }
        let owner = if self.to_owners { to } else { from } as usize;
        let mut any = false;
        let mut bytes = 0.0;
        for (shares, total) in &self.parts {
            let share = shares.get(owner).copied().unwrap_or(0.0);
            any |= share > 0.0;
            bytes += share * total;
        }
        // What is expected to be empty is still a message.
        if any { self.header + (bytes.round() as u64).max(u64::from(self.header == 0)) } else { 0 }
    }
}

/// The transfer of an operation; `None` if it moves nothing between ranks.
pub fn of(s: &Schedule, sizes: &Sizes, op: &Op) -> Option<Transfer> {
    let entry = width(Element::Index) + uses(s, op);
    let columns = |e: u32| s.exchanges.get(e as usize).map_or(0.0, |x| f64::from(x.columns(&s.tables)));
    let real = width(Element::Real);
    let sent = |e: u32, way: Way, class: Option<u32>| {
        sizes.of(op, class.map_or(Symbol::Sent(e), |c| Symbol::SentClass(e, way, c)))
    };
    let pairs = |exchanges: &[u32], to_owners: bool, header: u64, bytes: &dyn Fn(u32) -> f64| {
        let parts = exchanges.iter().map(|e| (shares(s, *e), bytes(*e))).collect();
        Some(Transfer::Pairs(Pairs { parts, to_owners, header }))
    };
    let gather = |exchanges: &[u32], bytes: &dyn Fn(u32) -> f64| {
        let total: f64 = exchanges.iter().map(|e| bytes(*e)).sum();
        Some(Transfer::AllGather((total.round() as u64).max(1)))
    };
    let count = width(Element::Count) as u64;
    match &op.action {
        Action::AllToAllIds { exchanges } => {
            let header = count * exchanges.len() as u64;
            pairs(exchanges, true, header, &|e| entry * sent(e, Way::Forward, None))
        }
        Action::AllToAllClasses { exchanges, .. } => {
            pairs(exchanges, false, 0, &|e| width(Element::Byte) * sent(e, Way::Forward, None))
        }
        Action::AllToAllRows { exchanges, class } => {
            pairs(exchanges, false, 0, &|e| real * columns(e) * sent(e, Way::Forward, *class))
        }
        Action::AllToAllGrads { exchanges, class } => {
            pairs(exchanges, true, 0, &|e| real * columns(e) * sent(e, Way::Backward, *class))
        }
        Action::AllGatherIds { exchanges } => {
            let counts = width(Element::Count) * f64::from(s.ranks);
            gather(exchanges, &|e| counts + entry * sent(e, Way::Forward, None))
        }
        Action::AllGatherGrads { exchanges, class } => {
            gather(exchanges, &|e| real * columns(e) * sent(e, Way::Backward, *class))
        }
        Action::AllReduce => {
            let values = op.reads.iter().map(|r| match r.place {
                Place::Gradient(p) => {
                    s.parameters.get(p as usize).map_or(0, |p| u64::from(p.rows) * u64::from(p.columns))
                }
                _ => 0,
            });
            Some(Transfer::AllReduce((values.sum::<u64>() * real as u64).max(1)))
        }
        _ => None,
    }
}

/// Bytes per entry that tell its first and last microbatch, if they travel.
fn uses(s: &Schedule, op: &Op) -> f64 {
    let travel = op.writes.iter().any(|w| match w.place {
        Place::Buffer(b) => s.train.buffers.get(b as usize).is_some_and(|b| b.element == Element::Byte),
        _ => false,
    });
    if travel { 2.0 * width(Element::Byte) } else { 0.0 }
}

/// The share of an exchange's rows that each rank owns.
fn shares(s: &Schedule, exchange: u32) -> Vec<f64> {
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
