//! How much an operation of a schedule does, by its cost formula at given sizes: what times are fitted to and follow from.
//!
//! A rank that owns rows receives of one operation what it sends in its mirror image (rows and their gradients), so both
//! directions of the link are asked: a rank's traffic is what goes to or comes from the rows that it owns, of all tables that
//! travel together. Who is asked most differs between tables and between transfers, and ranks do not wait for each other
//! after each of them. So one rank is described: the owner whose traffic of a whole step is greatest, or whoever asks for most
//! if that is more.

use std::borrow::Cow;

use crate::model::{Leg, Sharding, Table};
use crate::node::Nodes;
use crate::op::Op;
use crate::program::Schedule;
use crate::size::Symbol;

use super::Rows;

/// Sums that differ by less are the same.
const EVEN: f64 = 1e-9;

/// Who does how much where a schedule runs on `ranks` ranks, which may be others than it was planned for.
#[derive(Debug)]
pub struct Work<'a, S, R> {
    schedule: &'a Schedule,
    ranks: u32,
    nodes: Nodes,
    size: S,
    rows: R,
    uneven: f64,
}

/// The rank whose transfers are described.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Busiest {
    /// Whoever asks for most in a batch, which need not be the same in the next.
    #[default]
    Asking,
    /// An owner.
    Owner(u32),
}

impl<'a, S: Fn(&Op, Symbol) -> f64, R: Fn(u32) -> Option<&'a Rows>> Work<'a, S, R> {
    /// `size` of an operation's symbols is asked, of exchanges, only for what is sent or asked for on behalf of others;
    /// `rows` for what was counted of an exchange, without which its owners are asked evenly.
    pub fn new(schedule: &'a Schedule, ranks: u32, size: S, rows: R) -> Self {
        let ranks = ranks.max(1);
        Self { schedule, ranks, nodes: Nodes::new(ranks, schedule.settings.node), size, rows, uneven: 1.0 }
    }

    /// Where samples load ranks so many times as unevenly as when rows were counted.
    #[must_use]
    pub fn uneven(self, times: f64) -> Self {
        Self { uneven: times, ..self }
    }

    /// The rank with the most traffic in a training step.
    pub fn busiest(&self) -> Busiest {
        let (mut asking, mut owners) = (0.0, vec![0.0; self.ranks as usize]);
        for op in self.schedule.train.ops.iter().filter(|op| !op.cost.wire.is_zero()) {
            let crosses = self.crosses(op);
            // What each is asked for, and asks for.
            let (mut asked, mut asks) = (vec![0.0; owners.len()], 0.0);
            for (bytes, load) in self.traffic(op) {
                asking += bytes * load.of(Busiest::Asking) * crosses;
                asks += bytes * load.asks();
                match load {
                    Load::Even(times) => asked.iter_mut().for_each(|sum| *sum += bytes * times),
                    Load::Owner { rank, each, times, .. } => {
                        let places = asked.iter_mut().skip((rank % each) as usize).step_by(each as usize);
                        places.for_each(|sum| *sum += bytes * times);
                    }
                    Load::Owners { loads, .. } => {
                        asked.iter_mut().zip(loads.iter()).for_each(|(sum, load)| *sum += bytes * load);
                    }
                }
            }
            owners.iter_mut().zip(asked).for_each(|(sum, asked)| *sum += asks.max(asked) * crosses);
        }
        let most = (0..).zip(owners).reduce(|most, next| if next.1 > most.1 { next } else { most });
        match most {
            // Where all have as much it is nobody.
            Some((rank, most)) if most > asking * (1.0 + EVEN) => Busiest::Owner(rank),
            _ => Busiest::Asking,
        }
    }

    /// Work of an operation by its cost formula: floating-point operations and bytes in memory on the rank that has most
    /// of them; of transfers bytes through the link of the [`busiest`](Self::busiest) rank.
    pub fn of(&self, op: &Op, busiest: Busiest) -> (f64, f64) {
        if op.cost.wire.is_zero() {
            let seen = |symbol| match symbol {
                Symbol::Received(e) | Symbol::ReceivedClass(e, ..) => {
                    (self.size)(op, sent(symbol)) * self.received(e)
                }
                other => (self.size)(op, other),
            };
            return (op.cost.flops.eval(seen), op.cost.bytes.eval(seen));
        }
        let (mut asked, mut asks) = (0.0, 0.0);
        for (bytes, load) in self.traffic(op) {
            asked += bytes * load.of(busiest);
            asks += bytes * load.asks();
        }
        (0.0, asks.max(asked) * self.crosses(op))
    }

    /// Share of what is exchanged between equals that leaves a rank.
    fn crosses(&self, op: &Op) -> f64 {
        let peers = match op.action.exchanges().first().map_or(Leg::Whole, |e| self.leg(*e)) {
            Leg::Whole => f64::from(self.ranks),
            Leg::Within { .. } => self.nodes.each().into(),
            Leg::Between { .. } => self.nodes.count().into(),
        };
        (peers - 1.0) / peers
    }

    fn leg(&self, e: u32) -> Leg {
        self.schedule.exchanges.get(e as usize).map_or(Leg::Whole, |x| x.leg)
    }

    fn table(&self, e: u32) -> Option<&Table> {
        self.schedule.tables.get(self.schedule.exchanges.get(e as usize)?.table as usize)
    }

    fn owner(&self, e: u32) -> Option<u32> {
        self.table(e)?.sharding.owner(self.schedule.exchanges.get(e as usize)?.part)
    }

    /// Whether all ranks have all rows of an exchange.
    fn replicated(&self, e: u32) -> bool {
        self.schedule.exchanges.get(e as usize).is_some_and(|x| x.replicated(&self.schedule.tables))
    }

    /// Entries that an owner of an exchange's rows receives for each that a rank sends, of rows spread evenly.
    fn received(&self, e: u32) -> f64 {
        if self.replicated(e) {
            return self.ranks.into();
        }
        match (self.owner(e), self.table(e).map(|t| &t.sharding), self.leg(e)) {
            (None, None | Some(Sharding::RowWise), _) => 1.0,
            // Of a relay those of its node, of an owner one relay of each.
            (Some(_), _, Leg::Within { .. }) => self.nodes.each().into(),
            (Some(_), _, Leg::Between { .. }) => self.nodes.count().into(),
            _ => self.ranks.into(),
        }
    }

    /// Bytes that a mean rank asks for or sends of each part of a transfer, its own among them, and who has how much of them.
    fn traffic<'s>(&'s self, op: &'s Op) -> impl Iterator<Item = (f64, Load<'s>)> {
        op.cost.wire.terms().map(move |(coefficient, symbols)| {
            // What is sent to owners, whichever way the operation carries it.
            let bytes =
                coefficient * symbols.iter().map(|symbol| (self.size)(op, sent(*symbol))).product::<f64>();
            let Some(e) = symbols.iter().find_map(|symbol| exchange(*symbol)) else {
                return (bytes, Load::Even(1.0));
            };
            let rows = (self.rows)(e);
            let counted = rows.and_then(|rows| rows.asking).unwrap_or(1.0);
            let asking = if counted > 1.0 { (counted * self.uneven).max(1.0) } else { 1.0 };
            let each = if self.leg(e).between().is_some() { self.nodes.each() } else { self.ranks };
            let load = match (self.owner(e), self.table(e)) {
                (Some(owner), _) => {
                    Load::Owner { rank: owner % self.ranks, each, times: self.received(e), asking }
                }
                (None, Some(table)) if table.sharding == Sharding::RowWise && !self.replicated(e) => {
                    match rows.map(|rows| (rows.owners_of(table, self.ranks), rows)) {
                        Some((Some(owners), _)) => Load::Owners { loads: self.places(e, owners), asking },
                        // Who is busiest is not known: the same rank for all.
                        Some((None, rows)) => Load::Even(rows.busiest_of(table, self.ranks)),
                        None => Load::Even(1.0),
                    }
                }
                _ => {
                    // Where everyone gets everything.
                    let gathered = symbols.iter().any(|symbol| sent(*symbol) != *symbol);
                    Load::Even(if gathered { self.received(e) } else { 1.0 })
                }
            };
            (bytes, load)
        })
    }

    /// Loads of ranks as relays, of those of owners: within a node a relay is asked for what the owners at its place own.
    fn places<'o>(&self, e: u32, owners: Cow<'o, [f64]>) -> Cow<'o, [f64]> {
        if self.leg(e).between().is_none() {
            return owners;
        }
        let each = self.nodes.each() as usize;
        let mut places = vec![0.0; each];
        owners.iter().enumerate().for_each(|(rank, load)| places[rank % each] += load);
        let share = 1.0 / f64::from(self.nodes.count());
        (0..owners.len()).map(|rank| places[rank % each] * share).collect()
    }
}

/// Who has how many times as much as a mean rank asks for.
enum Load<'a> {
    /// All ranks.
    Even(f64),
    /// One rank owns all, or whoever has its place among so many relays.
    Owner { rank: u32, each: u32, times: f64, asking: f64 },
    /// All own some.
    Owners { loads: Cow<'a, [f64]>, asking: f64 },
}

impl Load<'_> {
    /// What a mean rank asks for.
    fn asks(&self) -> f64 {
        if let Self::Even(times) = self { *times } else { 1.0 }
    }

    fn of(&self, busiest: Busiest) -> f64 {
        match (self, busiest) {
            (Self::Even(times), _) => *times,
            (Self::Owner { asking, .. } | Self::Owners { asking, .. }, Busiest::Asking) => *asking,
            (Self::Owner { rank, each, times, .. }, Busiest::Owner(busiest)) => {
                if rank % each == busiest % each { *times } else { 0.0 }
            }
            (Self::Owners { loads, .. }, Busiest::Owner(busiest)) => {
                loads.get(busiest as usize).copied().unwrap_or(1.0)
            }
        }
    }
}

/// What ranks send of what an owner receives.
fn sent(symbol: Symbol) -> Symbol {
    match symbol {
        Symbol::Received(e) => Symbol::Sent(e),
        Symbol::ReceivedClass(e, way, c) => Symbol::SentClass(e, way, c),
        other => other,
    }
}

/// The exchange whose entries a size counts.
fn exchange(symbol: Symbol) -> Option<u32> {
    match symbol {
        Symbol::Sent(e)
        | Symbol::Received(e)
        | Symbol::Asked(e)
        | Symbol::SentClass(e, ..)
        | Symbol::ReceivedClass(e, ..) => Some(e),
        Symbol::Ranks | Symbol::Samples | Symbol::Tokens(_) | Symbol::Squares(_) => None,
    }
}
