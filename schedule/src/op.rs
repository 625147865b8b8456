//! Operations of a schedule: what they do, what they read and write.
//!
//! Operands are short texts: `b3` is a buffer, `b3[64:128]` a range of its columns, `p`, `g`, `t`, `i`, `l` name
//! parameters, their gradients, tables, inputs of the batch and offsets of a length group. `b3@-1` is the buffer of
//! the batch before. A written operand that ends in `+` is added into instead of overwritten.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::action::Action;
use crate::model::{Cost, Engine};

use crate::size::{ParseError, Symbol, as_text, decimal};

/// One operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Op {
    /// Unique within its program, tells where it comes from: `layers.0.uvqk.linear`.
    pub name: String,
    /// What it does.
    pub action: Action,
    /// Operands read, in the order of [`Action`]'s documentation.
    pub reads: Vec<Operand>,
    /// Operands written, likewise.
    pub writes: Vec<Operand>,
    /// What executes it.
    pub engine: Engine,
    /// Batch offset: an operation of stage s in step n works on batch n + s.
    pub stage: i32,
    /// The microbatch that it works on; `None`: the whole batch. Inputs, offsets and the sizes `B`, `T<n>`, `Q<n>` of
    /// an operation are those of its microbatch.
    pub microbatch: Option<u32>,
    /// Where its samples are: its inputs, offsets and the sizes `B`, `T<n>`, `Q<n>` are of the samples that its rank
    /// has there.
    #[serde(default, skip_serializing_if = "Site::is_home")]
    pub site: Site,
    /// What must have finished.
    pub deps: Vec<Dep>,
    /// Greater goes first among the ready ones of an engine.
    pub priority: i32,
    /// Bytes after which a transfer lets an urgent one pass; `None` is one piece.
    pub chunk: Option<u64>,
    /// Expected work.
    pub cost: Cost,
    /// Planned start within the step, in nanoseconds.
    pub start: u64,
    /// Planned duration, in nanoseconds.
    pub time: u64,
    /// Why it stands here.
    pub reason: String,
}

impl Op {
    /// An operation of a whole batch that nothing is known of yet but what it does and where.
    pub fn new(name: &str, action: Action, engine: Engine) -> Self {
        Self {
            name: name.into(),
            action,
            reads: Vec::new(),
            writes: Vec::new(),
            engine,
            stage: 0,
            microbatch: None,
            site: Site::Home,
            deps: Vec::new(),
            priority: 0,
            chunk: None,
            cost: Cost::default(),
            start: 0,
            time: 0,
            reason: String::new(),
        }
    }
}

/// Where samples are worked on. A rank has some samples at home, which it reads, and some assigned to it, so that all
/// ranks have about as much to do; either way over all ranks they are the samples of the batch.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Site {
    /// On the rank that reads them.
    #[default]
    Home,
    /// On the rank that they are assigned to.
    Assigned,
}

impl Site {
    /// Whether samples are where they are read.
    pub fn is_home(&self) -> bool {
        *self == Self::Home
    }
    /// For messages: `at home`.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Home => "at home",
            Self::Assigned => "as assigned",
        }
    }
}

/// A dependency on an operation of the same program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Dep {
    /// Its position in the list.
    pub op: u32,
    /// 0: the instance of the same step; d: the one of d steps before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub distance: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// Storage of intermediate values: a matrix whose rows are a symbol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Buffer {
    /// Value that it holds.
    pub name: String,
    /// Type of its elements.
    pub element: Element,
    /// Number of rows.
    pub rows: Extent,
    /// Number of columns.
    pub columns: u32,
    /// The microbatch whose rows it holds; `None`: the whole batch's.
    pub microbatch: Option<u32>,
    /// Where the samples are whose rows it holds.
    #[serde(default, skip_serializing_if = "Site::is_home")]
    pub site: Site,
    /// Batches that hold it at once: batch m uses copy m mod `copies`.
    pub copies: u32,
    /// Buffers of one element type with the same slot share memory; their lifetimes do not overlap. Slots lie one
    /// after the other in the arena of their element type. Buffers with several copies share with none.
    pub slot: u32,
    /// The operation that uses it first, in the order of one batch (falling stage, then position).
    pub first: u32,
    /// The operation that uses it last, likewise.
    pub last: u32,
}

/// Element types of buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Element {
    /// The training precision (f32).
    Real,
    /// Row ids of a whole table (i64).
    Id,
    /// Positions in another buffer, or rows of a shard (u32).
    Index,
    /// Numbers of entries per rank (u64).
    Count,
    /// Classes of reuse distance, or microbatches of use (u8).
    Byte,
}

/// Number of rows of a buffer: a symbol or a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Extent {
    /// Known when a batch arrives.
    Symbol(Symbol),
    /// Always the same.
    Fixed(u32),
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

as_text!(Extent, "Extent", r"^([0-9]+|[WB]|[TQ][0-9]+|[UR][0-9]+([fb][0-9]+)?)$");

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

/// Pointwise functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Function {
    /// x * sigmoid(x)
    Silu,
    /// max(x, 0)
    Relu,
    /// x * Phi(x)
    Gelu,
    /// 1 / (1 + exp(-x))
    Sigmoid,
}

/// How pooling reduces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PoolMode {
    /// Sum.
    Sum,
    /// Sum divided by the number of ids; zeros for none.
    Mean,
}

/// Lookups or gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Lookups: by the last use before.
    Forward,
    /// Gradients: by the next use after.
    Backward,
}

/// What a loss is divided by, counted over the global batch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Normalize {
    /// A constant.
    Constant(f64),
    /// Samples.
    Samples,
    /// Tokens of a length group.
    Tokens(u32),
}
