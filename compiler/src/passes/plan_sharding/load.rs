//! What a table costs per step, as far as the module tells: expected lookups, unique rows, bytes.

use std::collections::{BTreeMap, BTreeSet};

use fs_schedule::signature::OperandType;
use fs_schedule::{Extent, IdDistribution, Settings, Symbol, Table, WirePrecision};
use fs_workload::ids::{Draws, RowLaw};

use crate::ir::attr::typed;
use crate::ir::{Module, Type, ValueId};
use crate::passes::expected::Expected;

/// Work and size of one table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Load {
    /// Bytes of values and optimizer state, over all ranks.
    pub bytes: u64,
    /// Unique rows that a rank uses per step.
    pub unique: f64,
    /// Bytes of a row's values.
    pub row: f64,
    /// Bytes of it, and of its gradient, as they travel.
    pub sent: [f64; 2],
    /// The law of its ids, if the data have one, and draws of a rank.
    pub law: Option<(IdDistribution, Draws)>,
}

impl Load {
    /// Bytes of rows that all ranks together ask for per step: the work of the table's owners.
    pub(super) fn lookups(&self, ranks: f64) -> f64 {
        self.unique * self.row * ranks
    }
}

/// Loads of all tables, by declaration.
pub(super) fn expect(module: &Module, tables: &[Table], ranks: f64) -> Vec<Load> {
    let expected = Expected::of(module, ranks);
    let (ids, stated) = (expected.ids, expected.stated);
    let wire =
        typed::<Settings>(&module.attrs, "settings").map_or_else(|_| WirePrecision::default(), |s| s.wire);
    let mut drawn = vec![Draws { by_law: 0.0, uniform: 0.0 }; tables.len()];
    for (table, v) in sources(module) {
        let Some(n) = drawn.get_mut(table as usize) else { continue };
        match module.ty(v).shape() {
            Some(OperandType::Ids { lengths, .. }) => n.by_law += expected.tokens(lengths),
            // Negatives are drawn uniformly.
            Some(OperandType::Matrix { rows: Extent::Symbol(Symbol::Tokens(g)), columns, .. }) => {
                n.uniform += expected.tokens(g) * f64::from(columns);
            }
            _ => {}
        }
    }
    // Models repeat tables: equal ones are computed once.
    let mut known: BTreeMap<(u64, u64, u64), f64> = BTreeMap::new();
    tables
        .iter()
        .zip(drawn)
        .map(|(t, n)| {
            let key = (t.rows, n.by_law.to_bits(), n.uniform.to_bits());
            let unique = *known.entry(key).or_insert_with(|| RowLaw::new(ids, t.rows).unique(n));
            let bytes = t.rows.saturating_mul(t.dim.into()).saturating_mul(4);
            let bytes = bytes.saturating_add(t.optimizer.state(t.rows, t.dim.into()).saturating_mul(4));
            let sent = [wire.rows, wire.gradients].map(|e| e.row_bytes(t.dim) as f64);
            Load { bytes, unique, row: 4.0 * f64::from(t.dim), sent, law: stated.then_some((ids, n)) }
        })
        .collect()
}

/// Every table with every ids value that is looked up in it.
fn sources(module: &Module) -> BTreeSet<(u32, ValueId)> {
    let mut sources = BTreeSet::new();
    for op in module.funcs.iter().flat_map(|f| &f.body).map(|id| module.op(*id)) {
        let table = op.operands.iter().find_map(|v| match module.ty(*v) {
            Type::Operand(OperandType::Table { table, .. }) => Some(table),
            _ => None,
        });
        let Some(table) = table else { continue };
        let is_ids = |v: &&ValueId| {
            matches!(
                module.ty(**v).shape(),
                Some(OperandType::Ids { .. } | OperandType::Matrix { element: fs_schedule::Element::Id, .. })
            )
        };
        sources.extend(op.operands.iter().filter(is_ids).map(|v| (table, *v)));
    }
    sources
}
