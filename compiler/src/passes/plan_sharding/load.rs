//! What a table costs per step, as far as the module tells: expected lookups, unique rows, bytes.

use std::collections::{BTreeMap, BTreeSet};

use fs_schedule::op::Extent;
use fs_schedule::signature::Shape;
use fs_schedule::{
    Data, IdDistribution, LengthDistribution, Lengths, Settings, SparseOptimizer, Symbol, Table,
};

use crate::dialect::from_attrs;
use crate::ir::attr::typed;
use crate::ir::{Module, Type, ValueId};

/// Zipf exponent of ids in files, which are not read at compile time.
const FILE_EXPONENT: f64 = 1.05;

/// Work and size of one table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Load {
    /// Bytes of values and optimizer state, over all ranks.
    pub bytes: u64,
    /// Unique rows that a rank uses per step.
    pub unique: f64,
    /// Bytes of a row's values.
    pub row: f64,
}

impl Load {
    /// Bytes of rows that all ranks together ask for per step: the work of the table's owners.
    pub(super) fn lookups(&self, ranks: f64) -> f64 {
        self.unique * self.row * ranks
    }
}

/// Bytes of optimizer state of a table.
fn state(t: &Table) -> u64 {
    let elements = t.rows.saturating_mul(t.dim.into());
    match t.optimizer {
        SparseOptimizer::Sgd { .. } => 0,
        SparseOptimizer::RowwiseAdagrad { .. } => t.rows.saturating_mul(4),
        SparseOptimizer::Adagrad { .. } => elements.saturating_mul(4),
        SparseOptimizer::Adam { .. } => elements.saturating_mul(8),
    }
}

/// Loads of all tables, by declaration.
pub(super) fn expect(module: &Module, tables: &[Table], ranks: f64) -> Vec<Load> {
    let batch = typed::<Settings>(&module.attrs, "settings").map_or(1.0, |s| f64::from(s.batch));
    let data = typed::<Option<Data>>(&module.attrs, "data").ok().flatten();
    let (lengths, ids) = match data {
        Some(Data::Generate { lengths, ids, .. }) => (Some(lengths), ids),
        _ => (None, IdDistribution::Zipf(FILE_EXPONENT)),
    };
    let means: Vec<f64> = module
        .decls_of("model.lengths")
        .map(|op| from_attrs::<Lengths>(&op.attrs).map_or(1.0, |l| mean(lengths, l.max)))
        .collect();
    let mut drawn: Vec<f64> = vec![0.0; tables.len()];
    for (table, v) in sources(module) {
        let (group, columns) = match module.ty(v).shape() {
            Some(Shape::Ids { lengths, .. }) => (lengths, 1),
            Some(Shape::Matrix { rows: Extent::Symbol(Symbol::Tokens(g)), columns, .. }) => (g, columns),
            _ => continue,
        };
        let mean = means.get(group as usize).copied().unwrap_or(1.0);
        if let Some(n) = drawn.get_mut(table as usize) {
            *n += batch * mean * f64::from(columns);
        }
    }
    let mut known: BTreeMap<(u64, u64), f64> = BTreeMap::new();
    tables
        .iter()
        .zip(drawn)
        .map(|(t, n)| {
            let draws = n / ranks;
            let unique = *known
                .entry((t.rows, draws.to_bits()))
                .or_insert_with(|| distinct(t.rows as f64, draws, ids));
            let bytes = t.rows.saturating_mul(t.dim.into()).saturating_mul(4).saturating_add(state(t));
            Load { bytes, unique, row: 4.0 * f64::from(t.dim) }
        })
        .collect()
}

/// Every table with every ids value that is looked up in it.
fn sources(module: &Module) -> BTreeSet<(u32, ValueId)> {
    let mut sources = BTreeSet::new();
    for op in module.funcs.iter().flat_map(|f| &f.body).map(|id| module.op(*id)) {
        let table = op.operands.iter().find_map(|v| match module.ty(*v) {
            Type::Shape(Shape::Table { table, .. }) => Some(table),
            _ => None,
        });
        let Some(table) = table else { continue };
        let is_ids = |v: &&ValueId| {
            matches!(
                module.ty(**v).shape(),
                Some(Shape::Ids { .. } | Shape::Matrix { element: fs_schedule::Element::Id, .. })
            )
        };
        sources.extend(op.operands.iter().filter(is_ids).map(|v| (table, *v)));
    }
    sources
}

/// Mean length of a group; half its maximum if nothing is known.
fn mean(lengths: Option<LengthDistribution>, max: u32) -> f64 {
    let max = f64::from(max);
    match lengths {
        None => (max / 2.0).max(1.0),
        Some(LengthDistribution::Fixed(n)) => f64::from(n).min(max),
        Some(LengthDistribution::Uniform { min, max: most }) => {
            f64::midpoint(f64::from(min), f64::from(most)).min(max)
        }
        Some(LengthDistribution::Lognormal { mean, .. }) => mean.min(max),
    }
}

/// Expected number of different rows among `draws`: sum of 1 - exp(-draws * p), over rows grouped by rank in
/// geometric steps.
fn distinct(rows: f64, draws: f64, ids: IdDistribution) -> f64 {
    let exponent = match ids {
        IdDistribution::Uniform => 0.0,
        IdDistribution::Zipf(a) => a,
    };
    // Rows per step, and the weight of one of them.
    let mut steps: Vec<(f64, f64)> = Vec::new();
    let mut from = 1.0f64;
    while from <= rows {
        let to = (from * 1.25).floor().max(from + 1.0).min(rows + 1.0);
        let middle = (from * (to - 1.0)).sqrt();
        steps.push((to - from, middle.powf(-exponent)));
        from = to;
    }
    let total: f64 = steps.iter().map(|(n, w)| n * w).sum();
    steps.iter().map(|(n, w)| -n * (-draws * w / total).exp_m1()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the sums without grouping.
    #[test]
    fn distinct_rows() {
        for (rows, draws, a) in
            [(10, 5.0, 0.0), (1000, 500.0, 1.05), (100_000, 20_000.0, 1.05), (50, 1e6, 1.5)]
        {
            let weight = |i: u32| f64::from(i).powf(-a);
            let total: f64 = (1..=rows).map(weight).sum();
            let exact: f64 = (1..=rows).map(|i| 1.0 - (-draws * weight(i) / total).exp()).sum();
            let have = distinct(f64::from(rows), draws, IdDistribution::Zipf(a));
            assert!((have / exact - 1.0).abs() < 0.02, "{rows} {draws} {a}: {have} {exact}");
        }
    }
}
