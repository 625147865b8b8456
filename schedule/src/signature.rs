//! Types of operands: what an operand is, as far as operand rules and costs care.
//!
//! Each action's rule stands in its entry of the [table of actions](crate::action). The verifier applies it to
//! schedules, the compiler to its IR, so an action that passes never makes a kernel meet matrices that do not fit.

use std::fmt;

use crate::operand::{Element, Extent};
use crate::size::{Poly, Symbol};

/// What an operand is, as far as operand rules care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperandType {
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

impl OperandType {
    /// Number of elements; a table counts as none, because nothing ever passes over all of it.
    pub(crate) fn elements(&self) -> Poly {
        match *self {
            Self::Matrix { rows, columns, .. } => rows.poly().times(columns.into()),
            Self::Parameter { rows, columns } | Self::Gradient { rows, columns } => {
                Poly::constant(f64::from(rows) * f64::from(columns))
            }
            Self::Ids { lengths, .. } => Extent::Symbol(Symbol::Tokens(lengths)).poly(),
            Self::Dense { width } => Poly::term(width.into(), &[Symbol::Samples]),
            Self::Labels { rows } => rows.poly(),
            Self::Offsets { .. } => Poly::term(1.0, &[Symbol::Samples]),
            Self::Table { .. } => Poly::zero(),
        }
    }

    /// Bytes of those elements on the device.
    pub(crate) fn bytes(&self) -> Poly {
        let each = match self {
            Self::Matrix { element, rows, columns } => {
                return rows.poly().times(element.row_bytes(*columns) as f64);
            }
            Self::Ids { .. } | Self::Offsets { .. } => Element::Id.row_bytes(1),
            _ => Element::Real.row_bytes(1),
        };
        self.elements().times(each as f64)
    }

    pub(crate) fn columns(&self) -> u32 {
        match *self {
            Self::Matrix { columns, .. }
            | Self::Parameter { columns, .. }
            | Self::Gradient { columns, .. } => columns,
            Self::Table { dim, .. } => dim,
            Self::Dense { width } => width,
            Self::Ids { .. } | Self::Labels { .. } | Self::Offsets { .. } => 1,
        }
    }

    pub(crate) fn rows(&self) -> Extent {
        match *self {
            Self::Matrix { rows, .. } | Self::Labels { rows } => rows,
            Self::Parameter { rows, .. } | Self::Gradient { rows, .. } => Extent::Fixed(rows),
            Self::Ids { lengths, .. } => Extent::Symbol(Symbol::Tokens(lengths)),
            Self::Dense { .. } | Self::Offsets { .. } => Extent::Symbol(Symbol::Samples),
            Self::Table { .. } => Extent::Fixed(0),
        }
    }
}

impl fmt::Display for OperandType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Matrix { element, rows, columns } => {
                let name = match element {
                    Element::Real => "real",
                    Element::Bf16 => "bf16",
                    Element::Mxint8 => "mxint8",
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
pub fn real(rows: Extent, columns: u32) -> OperandType {
    OperandType::Matrix { element: Element::Real, rows, columns }
}
/// The same in another precision: `element` is of floats, or of what rows are on their way.
pub fn floats(element: Element, rows: Extent, columns: u32) -> OperandType {
    OperandType::Matrix { element, rows, columns }
}
/// A matrix of positions.
pub fn index(rows: Extent, columns: u32) -> OperandType {
    OperandType::Matrix { element: Element::Index, rows, columns }
}
/// A matrix of row ids.
pub fn id(rows: Extent, columns: u32) -> OperandType {
    OperandType::Matrix { element: Element::Id, rows, columns }
}
/// Numbers of entries per rank.
pub fn counts() -> OperandType {
    OperandType::Matrix { element: Element::Count, rows: Extent::Symbol(Symbol::Ranks), columns: 1 }
}
