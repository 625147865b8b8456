//! What terms cost, by expected sizes: bytes that travel, those that must hurry, bytes that compute touches, transfers, memory.
//!
//! Bytes are those of a rank in a step, those between nodes among them. Rows *hurry* if the step before may have changed them:
//! between its update and this
//! step's use they cannot wait. Touched bytes are a rough guess, for comparisons: what is read and written once, ids that are
//! looked for among others several times. Whoever schedules the outcome prices every operation.

use fs_schedule::reuse::Reuse;
use fs_schedule::{Way, WirePrecision};

use super::size::{Class, List, Size, Symbol};
use crate::distribution::ty::Sharded;

/// Expected sizes of one table, of one rank and step.
#[derive(Debug, Clone, PartialEq)]
pub struct Sizes {
    /// Ranks.
    pub ranks: f64,
    /// Ranks of a node.
    pub node: f64,
    /// Ids: occurrences.
    pub occurrences: f64,
    /// Different rows among them.
    pub unique: f64,
    /// What a rank asks for on behalf of those who work on its samples: each row once for each of them, then per occurrence.
    pub asked: [f64; 2],
    /// What a relay asks for: a node's different rows, shared by its ranks.
    pub relayed: f64,
    /// Of each way to tell rows apart, entries of each class; of each row once, then per occurrence.
    pub classes: Vec<Classes>,
    /// Bytes of the table's rows and their optimizer states.
    pub table: f64,
    /// What rows and gradients are on their way.
    pub wire: WirePrecision,
}

/// Expected entries of each class.
#[derive(Debug, Clone, PartialEq)]
pub struct Classes {
    /// How rows are told apart.
    pub reuse: Reuse,
    /// Each row once.
    pub unique: bool,
    /// Of lookups.
    pub forward: Vec<f64>,
    /// Of gradients.
    pub backward: Vec<f64>,
    /// Of lookups and of gradients that a relay asks for.
    pub relayed: [Vec<f64>; 2],
}

/// What a way of distributing a table costs; nothing is better that is not better in one of these.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Cost {
    /// Bytes that a rank sends.
    pub wire: f64,
    /// Those to other nodes.
    pub far: f64,
    /// Those that must hurry.
    pub urgent: f64,
    /// Bytes that compute reads and writes.
    pub touched: f64,
    /// Transfers.
    pub transfers: f64,
    /// Bytes that a rank holds.
    pub held: f64,
}

impl Cost {
    fn each(&self) -> [f64; 6] {
        [self.wire, self.far, self.urgent, self.touched, self.transfers, self.held]
    }

    /// Both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            wire: self.wire + other.wire,
            far: self.far + other.far,
            urgent: self.urgent + other.urgent,
            touched: self.touched + other.touched,
            transfers: self.transfers + other.transfers,
            held: self.held + other.held,
        }
    }

    /// Whether it is no worse in anything.
    pub fn covers(&self, other: &Self) -> bool {
        self.each().iter().zip(other.each()).all(|(a, b)| *a <= b)
    }

    /// What travels in a transfer, of which shares leave the rank and the node.
    pub(super) fn sent(bytes: f64, (away, far): (f64, f64), hurries: bool) -> Self {
        Self {
            wire: bytes * away,
            far: bytes * far,
            urgent: if hurries { bytes * away } else { 0.0 },
            transfers: 1.0,
            ..Self::default()
        }
    }

    /// Bytes that compute touches.
    pub(super) fn touched(bytes: f64) -> Self {
        Self { touched: bytes, ..Self::default() }
    }
}

impl Sizes {
    /// Bytes of a row, or of its gradient, on its way.
    pub(super) fn row(&self, way: Way, columns: u32) -> f64 {
        let of = if way == Way::Forward { self.wire.rows } else { self.wire.gradients };
        of.row_bytes(columns) as f64
    }

    /// What a size is, of lists: how many samples and ids of single sequences there are no table's costs depend on.
    pub fn of(&self, size: &Size) -> f64 {
        self.bytes(size, 1.0)
    }

    /// The same times so many.
    pub(super) fn bytes(&self, size: &Size, each: f64) -> f64 {
        size.bytes(each, |symbol| self.symbol(symbol))
    }

    /// The same of a rank's own list, whoever else has what it asks for: relays for several ranks, or replicas.
    pub(super) fn bytes_of_rank(&self, size: &Size, each: f64) -> f64 {
        let own = |list| if list == List::Relayed { List::Unique } else { list };
        size.bytes(each, |symbol| match symbol {
            Symbol::Ranks => 1.0,
            Symbol::Rows(list) => self.symbol(Symbol::Rows(own(list))),
            Symbol::Class(list, class) => self.symbol(Symbol::Class(own(list), class)),
            other => self.symbol(other),
        })
    }

    fn symbol(&self, symbol: Symbol) -> f64 {
        match symbol {
            Symbol::Samples | Symbol::Ids(_) => 0.0,
            Symbol::Rows(List::Unique) => self.unique,
            Symbol::Rows(List::Occurrences) => self.occurrences,
            Symbol::Rows(List::Relayed) => self.relayed,
            Symbol::Class(list, class) => self.of_class(list, class),
            Symbol::Asked { unique } => self.asked[usize::from(!unique)],
            Symbol::Ranks => self.ranks,
        }
    }

    /// Rows of a class; those that relays pass on are expected to be as many as if each rank's own first use counted.
    fn of_class(&self, list: List, Class { reuse, way, class, passed: _ }: Class) -> f64 {
        let unique = list != List::Occurrences;
        let found = self.classes.iter().find(|c| c.reuse == reuse && c.unique == unique);
        let of = found.map(|c| match (list, way) {
            (List::Relayed, Way::Forward) => &c.relayed[0],
            (List::Relayed, Way::Backward) => &c.relayed[1],
            (_, Way::Forward) => &c.forward,
            (_, Way::Backward) => &c.backward,
        });
        of.and_then(|of| of.get(class as usize)).copied().unwrap_or(0.0)
    }

    /// The shares of what is sent to all ranks that leave the rank and its node; to those of the node; to those of a place of all
    /// nodes.
    pub(super) fn away(&self, leg: Route) -> (f64, f64) {
        let (ranks, node) = (self.ranks.max(1.0), self.node.clamp(1.0, self.ranks.max(1.0)));
        match leg {
            Route::Whole => ((ranks - 1.0) / ranks, (ranks - node) / ranks),
            Route::Within => ((node - 1.0) / node, 0.0),
            Route::Between => ((ranks - node) / ranks, (ranks - node) / ranks),
        }
    }
}

/// Between whom something travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// Ranks and owners.
    Whole,
    /// Ranks and the relays of their node.
    Within,
    /// Relays and owners.
    Between,
}

impl Route {
    /// By where it is at both ends, in either direction.
    pub(super) fn of(a: Sharded, b: Sharded) -> Self {
        match (a, b) {
            (Sharded::Relay, Sharded::Sample) | (Sharded::Sample, Sharded::Relay) => Self::Within,
            (Sharded::Relay, _) | (_, Sharded::Relay) => Self::Between,
            _ => Self::Whole,
        }
    }
}
