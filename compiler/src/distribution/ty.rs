//! Types of terms: what a value holds, which rank has which part of it, and one per what there is.

use fs_schedule::Site;

/// What the elements are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Holds {
    /// Rows of a table.
    Rows,
    /// Gradients of rows, or of what was made of them.
    Gradients,
    /// Ids of rows of the whole table.
    Ids,
    /// Rows that somebody asks for, with the microbatches that use them.
    Requests,
    /// Places in a list.
    Positions,
    /// Classes of reuse distance.
    Classes,
    /// Begins and ends of samples.
    Offsets,
}

/// Which rank has which part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sharded {
    /// By the rank that owns the row.
    Owner,
    /// By the rank of a node that asks the row's owner.
    Relay,
    /// By the rank that has the sample.
    Sample,
    /// Every rank has all.
    Replicated,
}

/// One per what there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Per {
    /// Sample.
    Sample,
    /// Id of a sequence.
    Id,
    /// Row that a rank asks for.
    Entry {
        /// Each row once, or once per occurrence.
        unique: bool,
    },
    /// Row of the table.
    Row,
}

/// Precision of reals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Precision {
    /// 32 bits.
    F32,
    /// 16 bits with the exponent of 32.
    Bf16,
}

/// The type of a term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Type {
    /// What.
    pub(crate) holds: Holds,
    /// Where.
    pub sharded: Sharded,
    /// How many.
    pub(crate) per: Per,
    /// Columns of each.
    pub columns: u32,
    /// On which ranks the samples are worked on.
    pub site: Site,
    /// In which precision.
    pub precision: Precision,
}

/// An operand that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("operand {operand} of {op} must be {wanted}")]
pub struct TypeError {
    /// The operation.
    pub op: &'static str,
    /// Which operand.
    pub operand: usize,
    /// What it must be.
    pub wanted: &'static str,
}
