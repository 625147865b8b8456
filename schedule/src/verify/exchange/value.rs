//! What a buffer can hold of an exchange, and who has it.

use crate::attribute::Way;
use crate::model::Exchange;

/// Who holds a value: the rank that asks for rows, or the one that owns them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    Asking,
    Owning,
}

/// What a buffer holds. Numbers are exchanges and classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Value {
    /// Entries to ask for, their counts and microbatches of use, and where an id's entry stands.
    Entries(u32),
    Counts(u32, Side),
    Uses(u32, Side),
    Inverse(u32),
    /// Entries to ask for on behalf of others, their counts, microbatches of use and for whom each is; the plan that says who
    /// works on which sample.
    Asked(u32),
    AskedCounts(u32),
    AskedUses(u32),
    ForWhom(u32),
    Plan,
    /// Rows as the owner received them; those of a rank's own entries (replicated tables).
    Rows(u32),
    Own(u32),
    /// Classes of reuse distance, entries by class, and counts of those.
    Classes(u32, Way, Side),
    Positions(u32, Way, Side, u32),
    ClassCounts(u32, Way, Side, u32),
    /// Looked up; arrived; gradients to send; arrived.
    Gathered(u32, Option<u32>),
    Arrived(u32, Option<u32>),
    Split(u32, Option<u32>),
    /// Sums of a node's gradients, to be sent between nodes.
    Summed(u32, Option<u32>),
    Gradients(u32, Option<u32>),
}

impl Value {
    /// Parts of a column-wise table ask with the same entries, so what the asking side knows of them is equal.
    pub(super) fn canonical(self, exchanges: &[Exchange]) -> Self {
        let first = |e: u32| exchanges.get(e as usize).map_or(e, |x| x.entries);
        match self {
            Self::Classes(e, way, Side::Asking) => Self::Classes(first(e), way, Side::Asking),
            Self::Positions(e, way, Side::Asking, c) => Self::Positions(first(e), way, Side::Asking, c),
            Self::ClassCounts(e, way, Side::Asking, c) => Self::ClassCounts(first(e), way, Side::Asking, c),
            other => other,
        }
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let side = |s: Side| if s == Side::Asking { "sent" } else { "received" };
        let way = |w: Way| if w == Way::Forward { "lookups" } else { "gradients" };
        let class = |c: Option<u32>| c.map_or(String::new(), |c| format!(" of class {c}"));
        match *self {
            Self::Entries(e) => write!(f, "the entries of exchange {e}"),
            Self::Counts(e, s) => write!(f, "the {} counts of exchange {e}", side(s)),
            Self::Uses(e, s) => write!(f, "the {} uses of exchange {e}", side(s)),
            Self::Inverse(e) => write!(f, "the places of ids among the entries of exchange {e}"),
            Self::Asked(e) => write!(f, "the entries that exchange {e} asks for on behalf of others"),
            Self::AskedCounts(e) => write!(f, "the counts of what exchange {e} asks for on behalf of others"),
            Self::AskedUses(e) => write!(f, "the uses of what exchange {e} asks for on behalf of others"),
            Self::ForWhom(e) => write!(f, "the ranks on whose behalf exchange {e} asks"),
            Self::Plan => write!(f, "the plan of who works on which sample"),
            Self::Rows(e) => write!(f, "the received rows of exchange {e}"),
            Self::Own(e) => write!(f, "the own rows of exchange {e}"),
            Self::Classes(e, w, s) => write!(f, "the classes of {} {} of exchange {e}", side(s), way(w)),
            Self::Positions(e, w, s, c) => {
                write!(f, "the positions of {} {} of class {c} of exchange {e}", side(s), way(w))
            }
            Self::ClassCounts(e, w, s, c) => {
                write!(f, "the counts of {} {} of class {c} of exchange {e}", side(s), way(w))
            }
            Self::Gathered(e, c) => write!(f, "the looked-up rows{} of exchange {e}", class(c)),
            Self::Arrived(e, c) => write!(f, "the arrived rows{} of exchange {e}", class(c)),
            Self::Split(e, c) => write!(f, "the row gradients{} of exchange {e}", class(c)),
            Self::Summed(e, c) => write!(f, "the node's gradients{} of exchange {e}", class(c)),
            Self::Gradients(e, c) => write!(f, "the arrived gradients{} of exchange {e}", class(c)),
        }
    }
}
