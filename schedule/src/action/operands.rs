//! Operands of an action: accessors that explain a mismatch, and what rules need to know beside them.

use std::ops::Range;

use super::{At, Misfit};
use crate::model::{Exchange, WirePrecision};
use crate::operand::{Element, Extent};
use crate::signature::{OperandType, floats};
use crate::size::Symbol;

pub(super) const ONE: Extent = Extent::Fixed(1);
pub(super) const SAMPLES: Extent = Extent::Symbol(Symbol::Samples);

pub(super) fn tokens(g: u32) -> Extent {
    Extent::Symbol(Symbol::Tokens(g))
}

/// What signatures need to know beside the operands.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The schedule's exchanges.
    pub exchanges: &'a [Exchange],
    /// Columns that each exchange moves: those of its part of the table.
    pub columns: &'a [u32],
    /// Number of tables.
    pub tables: usize,
    /// Microbatches of a batch.
    pub microbatches: u32,
    /// Samples of a global batch.
    pub batch: u32,
    /// Number of length groups.
    pub groups: u32,
    /// Number of inputs.
    pub inputs: u32,
    /// What rows and gradients are on their way.
    pub wire: WirePrecision,
}

/// A matrix of floats of the dense graph, in either precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Activation {
    /// f32 or bf16.
    pub(super) element: Element,
    pub(super) rows: Extent,
    pub(super) columns: u32,
}

impl Activation {
    /// Its type.
    pub(super) fn shape(self) -> OperandType {
        self.with(self.columns)
    }
    /// That of a matrix of its precision and rows with other columns.
    pub(super) fn with(self, columns: u32) -> OperandType {
        floats(self.element, self.rows, columns)
    }
}

/// Operands with accessors that explain a mismatch.
#[derive(Debug, Clone, Copy)]
pub struct Operands<'a> {
    /// Those read.
    pub reads: &'a [OperandType],
    /// Those written.
    pub writes: &'a [OperandType],
}

impl Operands<'_> {
    pub(super) fn count(&self, reads: usize, writes: usize) -> Result<(), Misfit> {
        if self.reads.len() != reads || self.writes.len() != writes {
            return Err(Misfit::Count {
                reads,
                writes,
                has_reads: self.reads.len(),
                has_writes: self.writes.len(),
            });
        }
        Ok(())
    }
    /// Rows and columns of a real operand.
    pub(super) fn real(&self, i: usize) -> Result<(Extent, u32), Misfit> {
        match self.reads.get(i) {
            Some(OperandType::Matrix { element: Element::Real, rows, columns }) => Ok((*rows, *columns)),
            other => Err(Misfit::operand(At::Read(i), "a real matrix", other)),
        }
    }
    /// A matrix of floats of either precision.
    pub(super) fn activation(&self, i: usize) -> Result<Activation, Misfit> {
        match self.reads.get(i) {
            Some(OperandType::Matrix { element, rows, columns }) if element.is_float() => {
                Ok(Activation { element: *element, rows: *rows, columns: *columns })
            }
            other => Err(Misfit::operand(At::Read(i), "a real or bf16 matrix", other)),
        }
    }
    pub(super) fn index(&self, i: usize) -> Result<(Extent, u32), Misfit> {
        match self.reads.get(i) {
            Some(OperandType::Matrix { element: Element::Index, rows, columns }) => Ok((*rows, *columns)),
            other => Err(Misfit::operand(At::Read(i), "an index matrix", other)),
        }
    }
    pub(super) fn parameter(&self, i: usize) -> Result<(u32, u32), Misfit> {
        match self.reads.get(i) {
            Some(OperandType::Parameter { rows, columns }) => Ok((*rows, *columns)),
            other => Err(Misfit::operand(At::Read(i), "a parameter", other)),
        }
    }
    pub(super) fn offsets(&self, i: usize) -> Result<u32, Misfit> {
        match self.reads.get(i) {
            Some(OperandType::Offsets { lengths }) => Ok(*lengths),
            other => Err(Misfit::operand(At::Read(i), "offsets", other)),
        }
    }
    pub(super) fn read(&self, i: usize, want: OperandType) -> Result<(), Misfit> {
        if self.reads.get(i) == Some(&want) {
            return Ok(());
        }
        Err(Misfit::operand(At::Read(i), want.to_string(), self.reads.get(i)))
    }
    pub(super) fn write(&self, i: usize, want: OperandType) -> Result<(), Misfit> {
        if self.writes.get(i) == Some(&want) {
            return Ok(());
        }
        Err(Misfit::operand(At::Written(i), want.to_string(), self.writes.get(i)))
    }
    /// Gradient of a vector parameter with `columns` entries.
    pub(super) fn vector_gradient(&self, i: usize, columns: u32) -> Result<(), Misfit> {
        self.write(i, OperandType::Gradient { rows: 1, columns })
    }
    /// `n` matrices of floats of one shape and precision in, one out.
    pub(super) fn pointwise(&self, n: usize) -> Result<(), Misfit> {
        self.count(n, 1)?;
        let x = self.alike(0..n)?;
        self.write(0, x.shape())
    }
    /// Matrices of floats of one shape and precision.
    pub(super) fn alike(&self, reads: Range<usize>) -> Result<Activation, Misfit> {
        let first = self.activation(reads.start)?;
        for i in reads {
            self.read(i, first.shape())?;
        }
        Ok(first)
    }
}

pub(super) fn token_group(rows: Extent) -> Result<u32, Misfit> {
    match rows {
        Extent::Symbol(Symbol::Tokens(g)) => Ok(g),
        _ => Err(Misfit::relation(format!("rows must be tokens, are {rows}"))),
    }
}

pub(super) fn heads_fit(columns: u32, heads: u32) -> Result<(), Misfit> {
    if heads == 0 || !columns.is_multiple_of(heads) {
        return Err(Misfit::relation(format!("{columns} columns do not divide into {heads} heads")));
    }
    Ok(())
}

/// The rows of a gradient that is summed per entry of an exchange.
pub(super) fn sent_rows(writes: &[OperandType]) -> Result<Extent, Misfit> {
    match writes.first() {
        Some(OperandType::Matrix { rows: rows @ Extent::Symbol(Symbol::Sent(_)), .. }) => Ok(*rows),
        other => {
            let is = other.map_or("missing".into(), ToString::to_string);
            Err(Misfit::relation(format!("result 0 must have a row per entry of an exchange, is {is}")))
        }
    }
}
