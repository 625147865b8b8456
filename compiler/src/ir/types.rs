//! Types of values. Executable shapes are the schedule's own ([`OperandType`]), so both sides agree on every rule;
//! two more stand for what is not yet lowered to buffers.

use std::fmt;

use fs_schedule::signature::OperandType;
use fs_schedule::{Element, Extent};

/// The type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// A matrix, parameter, table, input or offsets.
    Operand(OperandType),
    /// Gradients of rows of a table, before it is decided how they travel.
    Sparse {
        /// The table.
        table: u32,
    },
}

impl Type {
    /// A real matrix.
    pub(crate) fn real(rows: Extent, columns: u32) -> Self {
        Self::Operand(fs_schedule::signature::real(rows, columns))
    }
    /// A matrix of floats of either precision.
    pub(crate) fn floats(element: Element, rows: Extent, columns: u32) -> Self {
        Self::Operand(fs_schedule::signature::floats(element, rows, columns))
    }
    /// Precision, rows and columns of a matrix of floats.
    pub(crate) fn as_floats(self) -> Option<(Element, Extent, u32)> {
        match self {
            Self::Operand(OperandType::Matrix { element, rows, columns }) if element.is_float() => {
                Some((element, rows, columns))
            }
            _ => None,
        }
    }
    /// Whether it is a matrix of brain floats.
    pub(crate) fn is_bf16(self) -> bool {
        self.as_floats().is_some_and(|(element, ..)| element == Element::Bf16)
    }
    /// Rows and columns of a real matrix.
    pub(crate) fn as_real(self) -> Option<(Extent, u32)> {
        match self {
            Self::Operand(OperandType::Matrix { element: Element::Real, rows, columns }) => {
                Some((rows, columns))
            }
            _ => None,
        }
    }
    /// The executable shape, if it has one.
    pub(crate) fn shape(self) -> Option<OperandType> {
        match self {
            Self::Operand(s) => Some(s),
            Self::Sparse { .. } => None,
        }
    }
}

impl From<OperandType> for Type {
    fn from(s: OperandType) -> Self {
        Self::Operand(s)
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operand(s) => write!(f, "{s}"),
            Self::Sparse { table } => write!(f, "sparse<{table}>"),
        }
    }
}

impl std::str::FromStr for Type {
    type Err = ();
    /// Reads what `Display` prints.
    fn from_str(s: &str) -> Result<Self, ()> {
        let (head, rest) = s.split_once('<').ok_or(())?;
        let body = rest.strip_suffix('>').ok_or(())?;
        let number = |t: &str| t.trim().parse::<u32>().map_err(|_| ());
        let extent = |t: &str| t.trim().parse::<Extent>().map_err(|_| ());
        let group = |t: &str| number(t.trim().strip_prefix('T').ok_or(())?);
        let pair = || body.split_once(" x ").ok_or(());
        let matrix = |element| {
            let (rows, columns) = pair()?;
            Ok(OperandType::Matrix { element, rows: extent(rows)?, columns: number(columns)? })
        };
        let shape = match head {
            "real" => matrix(Element::Real)?,
            "bf16" => matrix(Element::Bf16)?,
            "mxint8" => matrix(Element::Mxint8)?,
            "id" => matrix(Element::Id)?,
            "index" => matrix(Element::Index)?,
            "count" => matrix(Element::Count)?,
            "byte" => matrix(Element::Byte)?,
            "parameter" => OperandType::Parameter { rows: number(pair()?.0)?, columns: number(pair()?.1)? },
            "gradient" => OperandType::Gradient { rows: number(pair()?.0)?, columns: number(pair()?.1)? },
            "table" => OperandType::Table { table: number(pair()?.0)?, dim: number(pair()?.1)? },
            "ids" => OperandType::Ids { table: number(pair()?.0)?, lengths: group(pair()?.1)? },
            "dense" => OperandType::Dense { width: number(pair()?.1)? },
            "labels" => OperandType::Labels { rows: extent(body)? },
            "offsets" => OperandType::Offsets { lengths: group(body)? },
            "sparse" => return Ok(Self::Sparse { table: number(body)? }),
            _ => return Err(()),
        };
        Ok(Self::Operand(shape))
    }
}
