//! Why operands do not fit an action: sentences that name the operand.

use super::At;
use crate::operand::Extent;
use crate::signature::OperandType;

/// Why operands do not fit an action.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misfit {
    /// Another number of operands or results.
    #[error("takes {reads} operands and gives {writes} results, has {has_reads} and {has_writes}")]
    Count {
        /// Operands that it takes.
        reads: usize,
        /// Results that it gives.
        writes: usize,
        /// Operands that it has.
        has_reads: usize,
        /// Results that it has.
        has_writes: usize,
    },
    /// An operand of another type.
    #[error("{} must be {want}, is {}", place(*at), .is.map_or("missing".into(), |t| t.to_string()))]
    Operand {
        /// Which.
        at: At,
        /// What it must be.
        want: String,
        /// What it is; `None`: missing.
        is: Option<OperandType>,
    },
    /// Types that do not fit each other, or the action's fields.
    #[error("{0}")]
    Relation(String),
    /// An exchange that is not there.
    #[error("there is no exchange {0}")]
    NoExchange(u32),
    /// An exchange of no table.
    #[error("exchange {0} has no columns")]
    NoColumns(u32),
    /// Classes of an exchange whose rows travel together.
    #[error("the rows of exchange {0} are not told apart")]
    NoClasses(u32),
    /// A class that is not there.
    #[error("class {class} of exchange {exchange}, which has {classes}")]
    NoClass {
        /// The class.
        class: u32,
        /// The exchange.
        exchange: u32,
        /// How many it has.
        classes: usize,
    },
    /// An operand with other rows than the entries of an exchange.
    #[error("operand {operand} must have a row per entry of exchange {exchange}, has {rows}")]
    NotEntries {
        /// Which.
        operand: usize,
        /// The exchange.
        exchange: u32,
        /// Its rows.
        rows: Extent,
    },
    /// Exchanges or classes that are none, or not in order.
    #[error("its {0} must be at least one, in rising order")]
    NotRising(&'static str),
}

impl Misfit {
    pub(super) fn operand(at: At, want: impl Into<String>, is: Option<&OperandType>) -> Self {
        Self::Operand { at, want: want.into(), is: is.copied() }
    }
    pub(super) fn relation(text: impl Into<String>) -> Self {
        Self::Relation(text.into())
    }
}

fn place(at: At) -> String {
    match at {
        At::Read(n) => format!("operand {n}"),
        At::Written(n) => format!("result {n}"),
    }
}
