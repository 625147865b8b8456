//! Operands of an operation, and what the buffers that they name are made of.
//!
//! Operands are short texts: `b3` is a buffer, `b3[64:128]` a range of its columns, `p`, `g`, `t`, `i`, `l` name
//! parameters, their gradients, tables, inputs of the batch and offsets of a length group. `b3@-1` is the buffer of
//! the batch before. A written operand that ends in `+` is added into instead of overwritten.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::size::{ParseError, Poly, Symbol, as_text, decimal};

/// Element types of buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Element {
    /// Numbers of everything that is kept, sent or summed (f32).
    Real,
    /// Brain floats: activations of a model that computes in them.
    Bf16,
    /// Numbers of 8 bits with a power of two for each 32 of a row (MXINT8): rows on their way.
    Mxint8,
    /// Row ids of a whole table (i64).
    Id,
    /// Positions in another buffer, or rows of a shard (u32).
    Index,
    /// Numbers of entries per rank (u64).
    Count,
    /// Classes of reuse distance, or windows of use (u8).
    Byte,
}

/// Columns of an [`Mxint8`](Element::Mxint8) row that share a power of two (OCP Microscaling Formats 1.0, section 5.1).
pub const BLOCK: u32 = 32;

impl Element {
    /// Bytes of a row of so many columns on the device: of [`Mxint8`](Self::Mxint8) a byte for each, then one for each
    /// [`BLOCK`].
    pub fn row_bytes(self, columns: u32) -> u64 {
        let each = match self {
            Self::Real | Self::Index => 4,
            Self::Id | Self::Count => 8,
            Self::Bf16 => 2,
            Self::Byte => 1,
            Self::Mxint8 => return u64::from(columns) + u64::from(columns.div_ceil(BLOCK)),
        };
        each * u64::from(columns)
    }
    /// Whether rows of tables can be these on their way.
    pub fn carries_rows(self) -> bool {
        self.is_float() || self == Self::Mxint8
    }
    /// Whether columns of it can be cut here: no block is taken apart.
    pub fn cuts_at(self, column: u32) -> bool {
        self != Self::Mxint8 || column.is_multiple_of(BLOCK)
    }
    /// Whether these are numbers to compute with, rather than lists or what only travels.
    pub fn is_float(self) -> bool {
        matches!(self, Self::Real | Self::Bf16)
    }
}

/// Number of rows of a buffer: a symbol or a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Extent {
    /// Known when a batch arrives.
    Symbol(Symbol),
    /// Always the same.
    Fixed(u32),
}

impl Extent {
    /// Whether so many rows are those of samples, or follow from some (a loss). Entries and rows on their way to and from
    /// owners are a rank's, wherever the samples are that it asks for.
    pub fn of_samples(self) -> bool {
        match self {
            Self::Fixed(_) | Self::Symbol(Symbol::Samples | Symbol::Tokens(_) | Symbol::Squares(_)) => true,
            Self::Symbol(
                Symbol::Ranks
                | Symbol::Sent(_)
                | Symbol::Received(_)
                | Symbol::Asked(_)
                | Symbol::SentClass(..)
                | Symbol::ReceivedClass(..),
            ) => false,
        }
    }
    /// As a polynomial.
    pub fn poly(self) -> Poly {
        match self {
            Self::Symbol(s) => Poly::term(1.0, &[s]),
            Self::Fixed(n) => Poly::constant(n.into()),
        }
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Symbol(s) => write!(f, "{s}"),
            Self::Fixed(n) => write!(f, "{n}"),
        }
    }
}

impl FromStr for Extent {
    type Err = ParseError;
    fn from_str(s: &str) -> Result<Self, ParseError> {
        match decimal(s) {
            Some(n) => Ok(Self::Fixed(n)),
            None => s.parse().map(Self::Symbol).map_err(|_| ParseError::new(s, "number of rows")),
        }
    }
}

as_text!(Extent, "Extent", r"^([0-9]+|[WB]|[TQA][0-9]+|[UR][0-9]+([fb][0-9]+)?)$");

/// What an operation reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Operand {
    /// The thing.
    pub place: Place,
    /// A range of a buffer's columns `[start, end)`; `None` is all.
    pub columns: Option<(u32, u32)>,
    /// Read buffers only: of which batch, relative to the operation's.
    pub batch: i32,
    /// Written operands only: add to what is there.
    pub accumulate: bool,
}

/// Things that operands name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// `b<n>`: a buffer of the program.
    Buffer(u32),
    /// `p<n>`: a dense parameter.
    Parameter(u32),
    /// `g<n>`: its gradient.
    Gradient(u32),
    /// `t<n>`: this rank's shard of a table with its optimizer state.
    Table(u32),
    /// `i<n>`: an input of the batch.
    Input(u32),
    /// `l<n>`: offsets of a length group (samples + 1 numbers, from 0 to the tokens).
    Lengths(u32),
}

impl Operand {
    /// The whole of a place.
    pub fn new(place: Place) -> Self {
        Self { place, columns: None, batch: 0, accumulate: false }
    }
    /// A whole buffer.
    pub fn buffer(id: u32) -> Self {
        Self::new(Place::Buffer(id))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Buffer(n) => write!(f, "b{n}"),
            Self::Parameter(n) => write!(f, "p{n}"),
            Self::Gradient(n) => write!(f, "g{n}"),
            Self::Table(n) => write!(f, "t{n}"),
            Self::Input(n) => write!(f, "i{n}"),
            Self::Lengths(n) => write!(f, "l{n}"),
        }
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.place)?;
        if let Some((start, end)) = self.columns {
            write!(f, "[{start}:{end}]")?;
        }
        if self.batch != 0 {
            write!(f, "@{:+}", self.batch)?;
        }
        if self.accumulate { write!(f, "+") } else { Ok(()) }
    }
}

impl FromStr for Operand {
    type Err = ParseError;
    fn from_str(s: &str) -> Result<Self, ParseError> {
        let fail = || ParseError::new(s, "operand");
        let (rest, accumulate) = s.strip_suffix('+').map_or((s, false), |r| (r, true));
        let (rest, batch) = match rest.split_once('@') {
            None => (rest, 0),
            Some((rest, offset)) => {
                let (sign, digits) = match offset.strip_prefix('-') {
                    Some(digits) => (-1, digits),
                    None => (1, offset.strip_prefix('+').ok_or_else(fail)?),
                };
                let distance = decimal(digits).filter(|d| (1..=1 << 20).contains(d)).ok_or_else(fail)?;
                (rest, sign * distance as i32)
            }
        };
        let (name, columns) = match rest.strip_suffix(']') {
            None => (rest, None),
            Some(rest) => {
                let (name, range) = rest.split_once('[').ok_or_else(fail)?;
                let (start, end) = range.split_once(':').ok_or_else(fail)?;
                (name, Some((decimal(start).ok_or_else(fail)?, decimal(end).ok_or_else(fail)?)))
            }
        };
        let head = name.chars().next().ok_or_else(fail)?;
        let n = decimal(&name[head.len_utf8()..]).ok_or_else(fail)?;
        let place = match head {
            'b' => Place::Buffer(n),
            'p' => Place::Parameter(n),
            'g' => Place::Gradient(n),
            't' => Place::Table(n),
            'i' => Place::Input(n),
            'l' => Place::Lengths(n),
            _ => return Err(fail()),
        };
        Ok(Self { place, columns, batch, accumulate })
    }
}

as_text!(Operand, "Operand", r"^[bpgtil][0-9]+(\[[0-9]+:[0-9]+\])?(@[+-][0-9]+)?\+?$");
