//! Why an operation breaks the rules of its definition, or has no derivative.

use std::borrow::Cow;

use fs_schedule::action::Misfit;

use super::attr::AttrError;
use super::{Type, print};

/// A broken rule of an operation's definition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpError {
    /// A constant.
    #[error(transparent)]
    Attr(#[from] AttrError),
    /// Constants that are no action of the schedule.
    #[error("attributes do not fit: {0}")]
    Action(#[source] AttrError),
    /// Operands and results against the schedule's action.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    /// An operand that is not there.
    #[error("operand {0} is missing")]
    Missing(usize),
    /// An operand of another type.
    #[error("operand {operand} must be {must}")]
    Operand {
        /// Which.
        operand: usize,
        /// What it must be.
        must: String,
    },
    /// Another number of operands.
    #[error("takes {takes} operands, has {has}")]
    Count {
        /// Those that it takes.
        takes: usize,
        /// Those that it has.
        has: usize,
    },
    /// Other results than follow from the operands.
    #[error("must give ({}), gives ({})", print::types(must), print::types(gives))]
    Results {
        /// What follows.
        must: Vec<Type>,
        /// What there is.
        gives: Vec<Type>,
    },
    /// What operands have to do with each other.
    #[error("{0}")]
    Relation(Cow<'static, str>),
}

impl OpError {
    /// An operand must be something else.
    pub(crate) fn operand(operand: usize, must: impl Into<String>) -> Self {
        Self::Operand { operand, must: must.into() }
    }
    /// Operands do not fit each other; a sentence without its subject.
    pub(crate) fn relation(text: impl Into<Cow<'static, str>>) -> Self {
        Self::Relation(text.into())
    }
}
