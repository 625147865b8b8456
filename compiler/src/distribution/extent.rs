//! Sizes of terms: how many rows a value has, and of which exchange, both follow from the term.

use fs_schedule::{Extent, Poly, Symbol};

use super::op::Op;
use super::term::{Id, Terms};
use super::ty::Holds;

impl Terms {
    /// Rows of a value on one rank; `None` for what has none of its own: shards, sums per row of the table.
    pub fn extent(&self, id: Id) -> Option<Extent> {
        let of = |i| self.child(id, i).and_then(|c| self.extent(c));
        match self.node(id).op {
            Op::Shard { .. } | Op::Replicas { .. } | Op::Total | Op::Update | Op::Join | Op::Beside => None,
            Op::Ids { rows, .. } | Op::Given { rows, .. } => Some(rows),
            Op::Offsets { .. } | Op::Pool { .. } => Some(Extent::Symbol(Symbol::Samples)),
            Op::Entries { exchange, .. } | Op::Relayed { exchange, .. } | Op::Share { exchange, .. } => {
                Some(Extent::Symbol(Symbol::Sent(exchange)))
            }
            Op::Ask { exchange }
            | Op::AskAll { exchange }
            | Op::AskRelay { exchange }
            | Op::AskFor { exchange, .. } => Some(Extent::Symbol(Symbol::Received(exchange))),
            Op::Positions { way, class, .. } => of(0).map(|whole| of_class(whole, way, class)),
            // As many as there are ids, entries, classes or gradients.
            Op::Inverse | Op::Places | Op::PassClasses | Op::Own | Op::Answer | Op::Expand => of(1),
            Op::Partition { .. }
            | Op::Gradients { .. }
            | Op::Sum
            | Op::Columns { .. }
            | Op::Concat
            | Op::Dispatch
            | Op::Combine
            | Op::AllReduce
            | Op::Cast { .. } => of(0),
            Op::Joint { nth } => of(nth as usize),
            // The last list says how many there are.
            Op::Gather
            | Op::Return
            | Op::PassRows
            | Op::Split
            | Op::Cut { .. }
            | Op::Send
            | Op::SendAll
            | Op::Unite => {
                let list = self.node(id).children.last()?;
                self.extent(*list)
            }
            Op::SumAsked => match self.child(id, 4) {
                Some(list) => self.extent(list),
                None => self.extent(self.child(self.child(id, 0)?, 0)?),
            },
            // In the order of the entries, all of them: those of what is there, or of the classes.
            Op::Merge => {
                let children = &self.node(id).children;
                if children.len() % 2 == 1 {
                    return self.extent(children[0]);
                }
                self.extent(self.child(*children.last()?, 0)?)
            }
            Op::ExpandGrad | Op::PoolGrad { .. } => self.extent(self.entries_of(self.child(id, 1)?)?),
        }
    }

    /// Elements of a value on one rank, as a polynomial in the sizes of a batch.
    pub fn elements(&self, id: Id) -> Poly {
        let columns = f64::from(self.ty(id).columns);
        match self.extent(id) {
            Some(Extent::Symbol(s)) => Poly::term(columns, &[s]),
            Some(Extent::Fixed(n)) => Poly::constant(columns * f64::from(n)),
            None => Poly::zero(),
        }
    }

    /// The exchange that a term belongs to.
    pub fn exchange(&self, id: Id) -> Option<u32> {
        let of = |i| self.child(id, i).and_then(|c| self.exchange(c));
        match self.node(id).op {
            Op::Ask { exchange }
            | Op::AskAll { exchange }
            | Op::AskRelay { exchange }
            | Op::AskFor { exchange, .. }
            | Op::Relayed { exchange, .. }
            | Op::Share { exchange, .. }
            | Op::Cut { exchange }
            | Op::Entries { exchange, .. } => Some(exchange),
            // What a relay does is of the exchange within the node.
            Op::Places
            | Op::PassClasses
            | Op::PassRows
            | Op::SumAsked
            | Op::Gather
            | Op::Return
            | Op::Split => of(1),
            // Replicas list their own entries, which are those of what was gathered.
            Op::Send | Op::SendAll => of(2),
            Op::Merge => of(self.node(id).children.len() - 1),
            Op::Joint { nth } => of(nth as usize),
            _ => of(0),
        }
    }

    /// The class of a list, and of all that goes by it.
    pub fn class(&self, id: Id) -> Option<u32> {
        match self.node(id).op {
            Op::Positions { class, .. } => Some(class),
            Op::Gather
            | Op::Return
            | Op::PassRows
            | Op::SumAsked
            | Op::Split
            | Op::Send
            | Op::SendAll
            | Op::Total => self
                .node(id)
                .children
                .iter()
                .filter(|c| self.ty(**c).holds == Holds::Positions && self.node(**c).op != Op::Places)
                .find_map(|c| self.class(*c)),
            _ => None,
        }
    }
}

/// Of a class instead of all.
fn of_class(whole: Extent, way: fs_schedule::Way, class: u32) -> Extent {
    match whole {
        Extent::Symbol(Symbol::Sent(e)) => Extent::Symbol(Symbol::SentClass(e, way, class)),
        Extent::Symbol(Symbol::Received(e)) => Extent::Symbol(Symbol::ReceivedClass(e, way, class)),
        other => other,
    }
}
