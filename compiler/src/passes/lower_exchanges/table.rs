//! What is known about one table while operations are replaced.

use std::collections::BTreeMap;

use fs_schedule::reuse::Reuse;
use fs_schedule::signature::OperandType;

use super::super::PassError;
use super::declared::Declared;
use super::generate::Generator;
use crate::distribution::{Distribution, TableChoices};
use crate::distribution::{Id, Op};
use crate::ir::{Attr, Type, ValueId, table_of};

/// A table, its terms, and the sum of its gradients.
#[derive(Debug)]
pub(super) struct Lowering {
    pub table: ValueId,
    pub name: String,
    pub dim: u32,
    pub dist: Distribution,
    /// Ids that its operations use, by microbatch.
    pub ids: BTreeMap<(u32, ValueId), Id>,
    /// Sum of the gradients so far.
    pub sum: Option<Id>,
}

impl Lowering {
    /// Builds the terms of a table as chosen, and declares its exchanges; those of another function are used again.
    /// Rows are told apart in a function that updates them, which has so many microbatches.
    pub(super) fn build(
        g: &mut Generator<'_>,
        table: ValueId,
        ids: &[Vec<ValueId>],
        plan: &TableChoices,
        updated: Option<u32>,
        declared: &mut Declared,
    ) -> Result<Self, PassError> {
        let module = &mut *g.e.module;
        let Type::Operand(OperandType::Table { table: number, dim }) = module.ty(table) else {
            return Err(PassError::new("a table has another type"));
        };
        let record = table_of(module.def(table))?;
        if let Some(Attr::Str(asked)) = module.def(table).attrs.get("sharding")
            && matches!(asked.as_str(), "auto" | "table_wise" | "column_wise")
        {
            return Err(PassError::new(format!(
                "the placement of table {} is not decided yet; run `plan-sharding` first",
                record.name
            )));
        }
        let choice = plan.choice(&record.name, &record.sharding);
        let (exchanges, listed) = declared.parts(module, &record, number, &choice);
        let (mut terms, mut by_value) = (Vec::new(), BTreeMap::new());
        for (round, list) in (0..).zip(ids) {
            for value in list {
                let (rows, columns) = ids_shape(g.e.module.ty(*value))?;
                let op = Op::Ids { source: value.0, rows, columns, microbatch: round };
                let id = g.terms.add(op, &[])?;
                g.bind(id, *value);
                terms.push(id);
                by_value.insert((round, *value), id);
            }
        }
        let dist =
            Distribution::with_hot(&mut g.terms, number, &choice, (&exchanges, listed), &terms, updated)?;
        g.share(dist.entries, &dist.shares);
        for p in dist.parts.iter().chain(&dist.hot) {
            g.bind(p.shard, table);
        }
        Ok(Self { table, name: record.name, dim, dist, ids: by_value, sum: None })
    }

    /// A value that has a gradient for each entry, as a term.
    pub(super) fn gradients(&self, g: &mut Generator<'_>, value: ValueId) -> Result<Id, PassError> {
        let leaf = Op::Gradients { source: value.0, columns: self.dim };
        let id = g.terms.add(leaf, &[self.dist.entries])?;
        g.bind(id, value);
        Ok(id)
    }

    /// Where the ids of a microbatch stand among the entries.
    pub(super) fn inverse(&self, g: &mut Generator<'_>, round: u32, ids: ValueId) -> Result<Id, PassError> {
        let ids = self.ids.get(&(round, ids)).ok_or_else(|| PassError::new("ids without positions"))?;
        Ok(g.terms.add(Op::Inverse, &[self.dist.entries, *ids])?)
    }

    /// The rows that a microbatch needs, of all columns.
    pub(super) fn rows(&self, g: &mut Generator<'_>, round: u32) -> Result<Id, PassError> {
        Ok(self.dist.rows(&mut g.terms, round)?)
    }
}

/// Rows and columns of ids.
fn ids_shape(ty: Type) -> Result<(fs_schedule::Extent, u32), PassError> {
    match ty {
        Type::Operand(OperandType::Matrix { rows, columns, .. }) => Ok((rows, columns)),
        Type::Operand(OperandType::Ids { lengths, .. }) => {
            Ok((fs_schedule::Extent::Symbol(fs_schedule::Symbol::Tokens(lengths)), 1))
        }
        other => Err(PassError::new(format!("{other} are no ids"))),
    }
}

/// How tables are told apart, each way once.
pub(super) fn reuses(tables: &[&Lowering]) -> Vec<Reuse> {
    let mut found: Vec<Reuse> = Vec::new();
    for reuse in tables.iter().filter_map(|l| l.dist.reuse) {
        if !found.contains(&reuse) {
            found.push(reuse);
        }
    }
    found
}
