//! How many there are of what a term says: polynomials in what is known of a batch only when it arrives.
//!
//! A size is that of one rank. What a rank has of its samples, and what it asks for, has the size that it says; of what travels,
//! owners and relays have on the mean over ranks what was sent to them, and together exactly that. Replicas have what all ranks
//! sent: `W` times as much.
//!
//! An e-graph is of one table, and all that use it are asked for in one list. So lists have no numbers, and parts of a table, which
//! have exchanges of their own, have sizes in common.

use std::fmt;

use fs_schedule::reuse::Reuse;
use fs_schedule::{Poly, Way};

/// A list of rows that somebody asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum List {
    /// `U`: a rank's, each row once.
    Unique,
    /// `Q`: a rank's, a row per occurrence.
    Occurrences,
    /// `N`: a relay's, each row once that its node asks it for.
    Relayed,
}

impl List {
    /// What a rank asks for.
    pub(super) const fn of_rank(unique: bool) -> Self {
        if unique { Self::Unique } else { Self::Occurrences }
    }
}

/// Rows of one class of reuse distance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class {
    /// How rows are told apart.
    pub reuse: Reuse,
    /// Of lookups or of gradients.
    pub way: Way,
    /// Which.
    pub class: u32,
    /// As relays pass them on: by the first use of a node, not by that of the rank that asks.
    pub passed: bool,
}

/// What sizes are polynomials in. What there are so many of comes first, whatever it is multiplied with last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Symbol {
    /// `B`: samples.
    Samples,
    /// `T<n>`: ids of sequence n.
    Ids(u32),
    /// `U`, `Q`, `N`: rows of a list.
    Rows(List),
    /// `U.f1@2:3x1`, `Q.b0@1`, `U.f1@2:3x1~`: those in class 1 of lookups, of gradients, of distances up to 2 in 3 windows of 1
    /// microbatch; as relays pass them on.
    Class(List, Class),
    /// `AU`, `AQ`: rows of such lists, each of them made on behalf of one rank by all that read samples of it.
    Asked {
        /// Each row once in each list.
        unique: bool,
    },
    /// `W`: ranks.
    Ranks,
}

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unique => "U",
            Self::Occurrences => "Q",
            Self::Relayed => "N",
        })
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reuse { lookahead, windows, each } = self.reuse;
        let way = if self.way == Way::Forward { 'f' } else { 'b' };
        write!(f, "{way}{}@{lookahead}", self.class)?;
        if self.reuse.microbatches() > 1 {
            write!(f, ":{windows}x{each}")?;
        }
        f.write_str(if self.passed { "~" } else { "" })
    }
}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Samples => f.write_str("B"),
            Self::Ids(n) => write!(f, "T{n}"),
            Self::Rows(list) => write!(f, "{list}"),
            Self::Class(list, class) => write!(f, "{list}.{class}"),
            Self::Asked { unique } => write!(f, "A{}", List::of_rank(*unique)),
            Self::Ranks => f.write_str("W"),
        }
    }
}

/// A polynomial in symbols.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Size(Poly<Symbol>);

impl Size {
    /// Of what has none of its own: a shard has the rows that it has, whatever is asked for, and sums are by row of the table.
    pub(super) fn none() -> Self {
        Self::default()
    }

    pub(super) fn fixed(n: u32) -> Self {
        Self(Poly::constant(n.into()))
    }

    pub(super) fn of(symbol: Symbol) -> Self {
        Self(Poly::term(1.0, &[symbol]))
    }

    /// What a list has.
    pub(super) fn rows(list: List) -> Self {
        Self::of(Symbol::Rows(list))
    }

    /// Each of its terms as something says.
    fn each(&self, of: impl Fn(f64, &[Symbol]) -> Poly<Symbol>) -> Self {
        Self(self.0.terms().map(|(c, symbols)| of(c, symbols)).sum())
    }

    /// Both.
    pub(super) fn and(&self, other: &Self) -> Self {
        Self([self.0.clone(), other.0.clone()].into_iter().sum())
    }

    /// So many times as much: bytes, if each is so many.
    #[must_use]
    pub fn times(&self, each: f64) -> Self {
        self.each(|c, symbols| Poly::term(c * each, symbols))
    }

    /// With other symbols in place of some.
    fn with(&self, other: impl Fn(Symbol) -> Symbol) -> Self {
        self.each(|c, symbols| Poly::term(c, &symbols.iter().map(|s| other(*s)).collect::<Vec<_>>()))
    }

    /// What all ranks have.
    pub(super) fn of_all(&self) -> Self {
        self.each(|c, symbols| Poly::term(c, &[symbols, &[Symbol::Ranks]].concat()))
    }

    /// Those of a class.
    pub(super) fn in_class(&self, class: Class) -> Self {
        self.with(|symbol| match symbol {
            Symbol::Rows(list) => Symbol::Class(list, class),
            other => other,
        })
    }

    /// What it is made of, by term.
    pub fn symbols(&self) -> impl Iterator<Item = Symbol> {
        self.0.terms().flat_map(|(_, symbols)| symbols.iter().copied())
    }

    /// The class, if it is what one has.
    pub(super) fn class(&self) -> Option<Class> {
        self.symbols().find_map(|symbol| match symbol {
            Symbol::Class(_, class) => Some(class),
            _ => None,
        })
    }

    /// Its value where symbols have these.
    pub fn value(&self, of: impl Fn(Symbol) -> f64) -> f64 {
        self.bytes(1.0, of)
    }

    /// So many times that: bytes, if each is so many.
    pub(super) fn bytes(&self, each: f64, of: impl Fn(Symbol) -> f64) -> f64 {
        let term =
            |(c, symbols): (f64, &[Symbol])| symbols.iter().fold(c * each, |product, s| product * of(*s));
        self.0.terms().map(term).sum()
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
