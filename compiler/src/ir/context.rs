//! What operations refer to beside their operands: a module's declarations.

use std::collections::BTreeMap;

use fs_schedule::{Exchange, Input, Settings, Table, WirePrecision};

use super::attr::{AttrError, record, typed};
use super::{Attr, Module, OpData, ValueId};

/// A module's declarations, read once.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    module: &'a Module,
    /// Declared exchanges.
    pub exchanges: Vec<Exchange>,
    /// Columns that each exchange moves.
    pub columns: Vec<u32>,
    /// Number of tables.
    pub tables: usize,
    /// Microbatches of the training step.
    pub microbatches: u32,
    /// Evaluation runs whole batches, whatever training does.
    pub evaluating: bool,
    /// Samples of a global batch.
    pub batch: u32,
    /// Number of length groups.
    pub groups: u32,
    /// What rows and gradients are on their way.
    pub wire: WirePrecision,
    /// Declared inputs.
    pub inputs: Vec<Input>,
    /// Where each declared value stands among those of its kind.
    pub positions: BTreeMap<ValueId, u32>,
}

impl<'a> Context<'a> {
    /// Reads a module's declarations. Ill-formed ones are left to their own verifiers.
    pub(crate) fn new(module: &'a Module) -> Self {
        let mut positions = BTreeMap::new();
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        for op in module.decls.iter().map(|id| module.op(*id)) {
            let n = counts.entry(op.def.name).or_insert(0);
            positions.extend(op.results.iter().map(|r| (*r, *n)));
            *n += 1;
        }
        let inputs = module.decls_of("model.input").map(|op| record::<Input>(&op.attrs));
        let tables: Vec<Table> = module.decls_of("model.table").filter_map(|op| table_of(op).ok()).collect();
        let exchanges = exchanges(module);
        let settings = typed::<Settings>(&module.attrs, "settings");
        Self {
            module,
            columns: exchanges.iter().map(|e| e.columns(&tables)).collect(),
            exchanges,
            tables: tables.len(),
            microbatches: settings.as_ref().map_or(1, |s| s.microbatches),
            batch: settings.as_ref().map_or(1, |s| s.batch),
            wire: settings.map_or_else(|_| WirePrecision::default(), |s| s.wire),
            groups: module.decls_of("model.lengths").count() as u32,
            evaluating: false,
            inputs: inputs.filter_map(Result::ok).collect(),
            positions,
        }
    }
    /// For the operations of a function.
    pub(crate) fn enter(&mut self, function: &str) {
        self.evaluating = function == "evaluate";
    }
}

impl std::ops::Deref for Context<'_> {
    type Target = Module;
    fn deref(&self) -> &Module {
        self.module
    }
}

/// The exchanges that a module declares.
pub(crate) fn exchanges(m: &Module) -> Vec<Exchange> {
    m.decls_of("comm.exchange").filter_map(|op| record(&op.attrs).ok()).collect()
}

/// The record of a table. Placements that are only asked for (`auto`, `table_wise`, `column_wise`) read as row-wise
/// until `plan-sharding` has decided.
pub(crate) fn table_of(op: &OpData) -> Result<Table, AttrError> {
    let mut attrs = op.attrs.clone();
    if let Some(Attr::Str(s)) = attrs.get("sharding")
        && matches!(s.as_str(), "auto" | "table_wise" | "column_wise")
    {
        attrs.insert("sharding".into(), Attr::Str("row_wise".into()));
    }
    // Rows that are to be planned, before they are.
    if matches!(attrs.get("placement"), Some(Attr::Str(s)) if s == "planned") {
        attrs.remove("placement");
    }
    record(&attrs)
}
