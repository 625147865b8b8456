//! What terms cost, by expected sizes: bytes that travel, those that must hurry, bytes that compute touches, transfers, memory.
//!
//! Bytes are those of a rank in a step. Rows *hurry* if the step before may have changed them: between its update and this
//! step's use they cannot wait. Touched bytes are a rough guess, for comparisons: what is read and written once, ids that are
//! looked for among others several times. Whoever schedules the outcome prices every operation.

use fs_schedule::Way;
use fs_schedule::reuse::Reuse;

/// Expected sizes of one table, of one rank and step.
#[derive(Debug, Clone, PartialEq)]
pub struct Sizes {
    /// Ranks.
    pub ranks: f64,
    /// Ids: occurrences.
    pub occurrences: f64,
    /// Different rows among them.
    pub unique: f64,
    /// Of each way to tell rows apart, entries of each class; of each row once, then per occurrence.
    pub classes: Vec<Classes>,
    /// Bytes of the table's rows and their optimizer states.
    pub table: f64,
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
}

/// What a way of distributing a table costs; nothing is better that is not better in one of these.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Cost {
    /// Bytes that a rank sends.
    pub wire: f64,
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
    fn each(&self) -> [f64; 5] {
        [self.wire, self.urgent, self.touched, self.transfers, self.held]
    }

    /// Both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            wire: self.wire + other.wire,
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

    /// Bytes of rows that travel in a transfer.
    pub(super) fn sent(bytes: f64, hurries: bool) -> Self {
        Self { wire: bytes, urgent: if hurries { bytes } else { 0.0 }, transfers: 1.0, ..Self::default() }
    }

    /// Bytes that compute touches.
    pub(super) fn touched(bytes: f64) -> Self {
        Self { touched: bytes, ..Self::default() }
    }
}

impl Sizes {
    /// Entries of a rank.
    pub(super) fn entries(&self, unique: bool) -> f64 {
        if unique { self.unique } else { self.occurrences }
    }

    /// Entries of a class.
    pub(super) fn of_class(&self, reuse: Reuse, unique: bool, way: Way, class: usize) -> f64 {
        let found = self.classes.iter().find(|c| c.reuse == reuse && c.unique == unique);
        let list = found.map(|c| if way == Way::Forward { &c.forward } else { &c.backward });
        list.and_then(|list| list.get(class)).copied().unwrap_or(0.0)
    }

    /// The share of what is sent to all owners that leaves the rank.
    pub(super) fn away(&self) -> f64 {
        (self.ranks - 1.0) / self.ranks.max(1.0)
    }
}
