//! Shapes of operands, and whether an action's fit together.
//!
//! Each action's rule stands in its entry of the [table of actions](crate::action). The verifier applies it to
//! schedules, the compiler to its IR, so an action that passes never makes a kernel meet matrices that do not fit.

use std::fmt;

pub use crate::action::Context;
use crate::op::{Action, Element, Extent};
use crate::size::Symbol;

/// What an operand is, as far as operand rules care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A matrix in a buffer.
    Matrix {
        /// Element type.
        element: Element,
        /// Rows.
        rows: Extent,
        /// Columns.
        columns: u32,
    },
    /// A dense parameter.
    Parameter {
        /// Rows.
        rows: u32,
        /// Columns.
        columns: u32,
    },
    /// The gradient of a dense parameter.
    Gradient {
        /// Rows.
        rows: u32,
        /// Columns.
        columns: u32,
    },
    /// A table's shard.
    Table {
        /// Its index.
        table: u32,
        /// Columns.
        dim: u32,
    },
    /// Ids of the batch.
    Ids {
        /// The table they name rows of.
        table: u32,
        /// Their length group.
        lengths: u32,
    },
    /// Dense features of the batch.
    Dense {
        /// Features per sample.
        width: u32,
    },
    /// Labels of the batch, one per row.
    Labels {
        /// Rows.
        rows: Extent,
    },
    /// Offsets of a length group.
    Offsets {
        /// The group.
        lengths: u32,
    },
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Matrix { element, rows, columns } => {
                let name = match element {
                    Element::Real => "real",
                    Element::Id => "id",
                    Element::Index => "index",
                    Element::Count => "count",
                    Element::Byte => "byte",
                };
                write!(f, "{name}<{rows} x {columns}>")
            }
            Self::Parameter { rows, columns } => write!(f, "parameter<{rows} x {columns}>"),
            Self::Gradient { rows, columns } => write!(f, "gradient<{rows} x {columns}>"),
            Self::Table { table, dim } => write!(f, "table<{table} x {dim}>"),
            Self::Ids { table, lengths } => write!(f, "ids<{table} x T{lengths}>"),
            Self::Dense { width } => write!(f, "dense<B x {width}>"),
            Self::Labels { rows } => write!(f, "labels<{rows}>"),
            Self::Offsets { lengths } => write!(f, "offsets<T{lengths}>"),
        }
    }
}

/// A real matrix.
pub fn real(rows: Extent, columns: u32) -> Shape {
    Shape::Matrix { element: Element::Real, rows, columns }
}
/// A matrix of positions.
pub fn index(rows: Extent, columns: u32) -> Shape {
    Shape::Matrix { element: Element::Index, rows, columns }
}
/// A matrix of row ids.
pub fn id(rows: Extent, columns: u32) -> Shape {
    Shape::Matrix { element: Element::Id, rows, columns }
}
/// Numbers of entries per rank.
pub fn counts() -> Shape {
    Shape::Matrix { element: Element::Count, rows: Extent::Symbol(Symbol::Ranks), columns: 1 }
}

/// Checks the operands of an action. The error is a sentence that names the operand.
pub fn check(action: &Action, reads: &[Shape], writes: &[Shape], cx: &Context<'_>) -> Result<(), String> {
    action.check(reads, writes, cx)
}
