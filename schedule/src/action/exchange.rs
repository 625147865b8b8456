//! What operand rules ask of an exchange: its sizes, columns and classes.

use super::operands::Context;
use super::{At, Misfit};
use crate::attribute::Way;
use crate::model::Exchange;
use crate::operand::{Element, Extent};
use crate::reuse::Reuse;
use crate::signature::OperandType;
use crate::size::Symbol;

/// An exchange and its sizes.
pub(super) struct Subject<'a> {
    /// Itself.
    pub(super) of: &'a Exchange,
    /// Its index.
    pub(super) number: u32,
    /// Columns that it moves.
    pub(super) columns: u32,
    /// How its rows are told apart.
    pub(super) reuse: Option<Reuse>,
}

impl Subject<'_> {
    pub(super) fn sent(&self, way: Way, class: Option<u32>) -> Result<Extent, Misfit> {
        self.class(way, class)?;
        let e = self.of.entries;
        Ok(Extent::Symbol(class.map_or(Symbol::Sent(e), |c| Symbol::SentClass(e, way, c))))
    }
    pub(super) fn received(&self, way: Way, class: Option<u32>) -> Result<Extent, Misfit> {
        self.class(way, class)?;
        let e = self.number;
        Ok(Extent::Symbol(class.map_or(Symbol::Received(e), |c| Symbol::ReceivedClass(e, way, c))))
    }
    /// All entries that rows are for and gradients of: those sent, unless it has a share of some.
    pub(super) fn listed(&self) -> Extent {
        Extent::Symbol(Symbol::Sent(self.of.list()))
    }
    /// Entries that are asked for on behalf of others.
    pub(super) fn asked(&self) -> Extent {
        Extent::Symbol(Symbol::Asked(self.of.entries))
    }
    pub(super) fn class(&self, way: Way, class: Option<u32>) -> Result<(), Misfit> {
        let Some(class) = class else { return Ok(()) };
        let classes = self.classes(way)?;
        if class as usize >= classes {
            return Err(Misfit::NoClass { class, exchange: self.number, classes });
        }
        Ok(())
    }
    pub(super) fn classes(&self, way: Way) -> Result<usize, Misfit> {
        self.reuse.map(|r| r.count(way)).ok_or(Misfit::NoClasses(self.number))
    }
    /// Whether entries carry the windows of their uses.
    pub(super) fn uses(&self) -> bool {
        self.reuse.is_some_and(|r| r.windows > 1)
    }
}

pub(super) fn byte(rows: Extent, columns: u32) -> OperandType {
    OperandType::Matrix { element: Element::Byte, rows, columns }
}

pub(super) fn subject<'a>(cx: &Context<'a>, number: u32) -> Result<Subject<'a>, Misfit> {
    let of = cx.exchanges.get(number as usize).ok_or(Misfit::NoExchange(number))?;
    let columns = *cx.columns.get(number as usize).ok_or(Misfit::NoColumns(number))?;
    let reuse = of.reuse(cx.microbatches);
    Ok(Subject { of, number, columns, reuse })
}

/// The exchanges of a collective, rising: equal sets are written alike, and none travels twice.
pub(super) fn group<'a>(cx: &Context<'a>, exchanges: &[u32]) -> Result<Vec<Subject<'a>>, Misfit> {
    if exchanges.is_empty() || exchanges.windows(2).any(|w| w[0] >= w[1]) {
        return Err(Misfit::NotRising("exchanges"));
    }
    exchanges.iter().map(|e| subject(cx, *e)).collect()
}

/// The rows that a partition or gather works on: those received, or (replicated tables) the rank's own.
pub(super) fn owns(f: &Subject<'_>, operand: usize, rows: Extent) -> Result<bool, Misfit> {
    match rows {
        Extent::Symbol(Symbol::Received(e)) if e == f.number => Ok(true),
        Extent::Symbol(Symbol::Sent(e)) if e == f.of.entries => Ok(false),
        _ => Err(Misfit::NotEntries { operand, exchange: f.number, rows }),
    }
}

pub(super) fn table_of(f: &Subject<'_>, shape: Option<&OperandType>, at: At) -> Result<(), Misfit> {
    match shape {
        Some(OperandType::Table { table, .. }) if *table == f.of.table => Ok(()),
        other => Err(Misfit::operand(at, format!("table {}", f.of.table), other)),
    }
}
