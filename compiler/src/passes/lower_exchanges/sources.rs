//! What a function asks of tables: which ids of which tables, and which gradients update them.

use std::collections::{BTreeMap, BTreeSet};

use fs_schedule::Element;
use fs_schedule::signature::OperandType;

use super::super::PassError;
use crate::ir::{Module, OpData, OpId, Resource, Type, ValueId};

/// The table that an operation works on, if it is one that this pass replaces.
pub(super) fn table_of(module: &Module, op: &OpData) -> Option<ValueId> {
    let is_table = |v: &ValueId| matches!(module.ty(*v), Type::Operand(OperandType::Table { .. }));
    let replaced = op.dialect() != "comm" && !op.def.effects.writes(Resource::Evaluation);
    op.operands.iter().copied().find(|v| replaced && is_table(v))
}

/// Whether an operation hands sparse gradients to a table's optimizer.
pub(super) fn is_update(op: &OpData) -> bool {
    op.dialect() != "comm" && op.def.effects.writes(Resource::Table)
}

/// Operands of a table operation that are ids.
fn ids_operands(module: &Module, op: &OpData) -> Vec<ValueId> {
    let is_ids = |v: &ValueId| {
        matches!(
            module.ty(*v),
            Type::Operand(OperandType::Ids { .. } | OperandType::Matrix { element: Element::Id, .. })
        )
    };
    op.operands.iter().copied().filter(is_ids).collect()
}

/// The ids that a function uses.
#[derive(Debug, Default)]
pub(super) struct Sources {
    /// For each table and microbatch, in the order in which their gradients are summed.
    pub by_table: BTreeMap<ValueId, Vec<Vec<ValueId>>>,
    drawn: BTreeSet<ValueId>,
}

impl Sources {
    pub(super) fn find(module: &Module, body: &[OpId], rounds: u32) -> Result<Self, PassError> {
        let mut this = Self::default();
        let mut known: BTreeSet<(ValueId, u32, ValueId)> = BTreeSet::new();
        // Sequences whose gradients are summed first come first: owners sum occurrences in this order, so one row per
        // occurrence and sums per unique row give the same bits.
        let ops = || body.iter().map(|id| module.op(*id));
        let summed = ops().filter(|op| op.dialect() == "train" && !is_update(op));
        for op in summed.chain(ops()) {
            let Some(table) = table_of(module, op) else { continue };
            let round = op.microbatch.unwrap_or(0);
            if round >= rounds || (rounds > 1 && op.microbatch.is_none() && !is_update(op)) {
                return Err(PassError::new(format!(
                    "{} is not in one of {rounds} microbatches; run `microbatch` first",
                    op.def.name
                )));
            }
            for ids in ids_operands(module, op) {
                if known.insert((table, round, ids)) {
                    let list =
                        this.by_table.entry(table).or_insert_with(|| vec![Vec::new(); rounds as usize]);
                    list[round as usize].push(ids);
                    this.drawn.insert(ids);
                }
            }
        }
        Ok(this)
    }
    pub(super) fn is_empty(&self) -> bool {
        self.by_table.is_empty()
    }
    /// Ids come from the batch or are drawn without operands, so their operations can go first.
    pub(super) fn goes_first(&self, module: &Module, id: OpId) -> bool {
        let op = module.op(id);
        op.def.effects.writes(Resource::Batch) || op.results.iter().any(|r| self.drawn.contains(r))
    }
}

/// The sparse gradients that update each table, by microbatch, in the order in which they are summed.
pub(super) type Gradients = BTreeMap<ValueId, Vec<Vec<ValueId>>>;

/// Finds them at the updates.
pub(super) fn gradients(module: &Module, body: &[OpId], rounds: u32) -> Result<Gradients, PassError> {
    let mut gradients = Gradients::new();
    for op in body.iter().map(|id| module.op(*id)).filter(|op| is_update(op)) {
        let Some((table, parts)) = op.operands.split_first() else { continue };
        let mut by_round = vec![Vec::new(); rounds as usize];
        for part in parts {
            let round = module.def(*part).microbatch.unwrap_or(0);
            match by_round.get_mut(round as usize) {
                Some(list) => list.push(*part),
                None => return Err(PassError::new(format!("there is no microbatch {round}"))),
            }
        }
        if gradients.insert(*table, by_round).is_some() {
            return Err(PassError::new("a table is updated twice"));
        }
    }
    Ok(gradients)
}
