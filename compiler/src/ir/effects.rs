//! What an operation reads and writes beside its values. Passes ask this instead of names: what writes nothing can be
//! removed when nobody uses its results, and what acts on the whole batch cannot be cut into parts.
//!
//! Values are pure: an operation that makes the gradient of a parameter writes a value, not [`Resource::Gradient`],
//! until gradients are summed over ranks where they stand.

/// What lasts longer than a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// The samples of the current batch, which inputs are read from.
    Batch,
    /// Rows of a table and their optimizer state.
    Table,
    /// Dense parameters and their optimizer state.
    Parameter,
    /// Gradients of dense parameters, summed over ranks.
    Gradient,
    /// Draws, keyed by seed, step and sample. Nothing writes them.
    Random,
    /// Losses and counts that a step reports.
    Report,
    /// Ranks of items that evaluation collects.
    Evaluation,
}

impl Resource {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Batch,
        Self::Table,
        Self::Parameter,
        Self::Gradient,
        Self::Random,
        Self::Report,
        Self::Evaluation,
    ];

    /// Its name in documentation.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::Table => "table",
            Self::Parameter => "parameter",
            Self::Gradient => "gradient",
            Self::Random => "random",
            Self::Report => "report",
            Self::Evaluation => "evaluation",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// Two sets of resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Effects {
    reads: u8,
    writes: u8,
}

impl Effects {
    /// Neither reads nor writes anything.
    pub(crate) const PURE: Self = Self { reads: 0, writes: 0 };

    /// These, and a read.
    #[must_use]
    pub(crate) const fn reading(self, what: Resource) -> Self {
        Self { reads: self.reads | what.bit(), ..self }
    }
    /// These, and a write.
    #[must_use]
    pub(crate) const fn writing(self, what: Resource) -> Self {
        Self { writes: self.writes | what.bit(), ..self }
    }
    /// Whether it reads a resource.
    pub const fn reads(self, what: Resource) -> bool {
        self.reads & what.bit() != 0
    }
    /// Whether it writes a resource.
    pub const fn writes(self, what: Resource) -> bool {
        self.writes & what.bit() != 0
    }
    /// Whether it writes anything: then it stays, whoever uses its results.
    pub(crate) const fn acts(self) -> bool {
        self.writes != 0
    }
}

/// `reads batch, writes table`; empty for pure operations.
impl std::fmt::Display for Effects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |of: fn(Self, Resource) -> bool| {
            Resource::ALL.into_iter().filter(|r| of(*self, *r)).map(Resource::name).collect::<Vec<_>>()
        };
        let (reads, writes) = (list(Self::reads), list(Self::writes));
        let parts = [("reads", reads), ("writes", writes)];
        let parts = parts.iter().filter(|(_, l)| !l.is_empty());
        f.write_str(&parts.map(|(what, l)| format!("{what} {}", l.join(", "))).collect::<Vec<_>>().join("; "))
    }
}
