//! The exchanges that a module declares: functions share those of the same choice.

use std::collections::BTreeMap;

use fs_schedule::{Exchange, Table};

use crate::dialect::named;
use crate::distribution::Choice;
use crate::distribution::build::Numbered;
use crate::ir::attr::attrs_of;
use crate::ir::{Module, exchanges};

/// Numbers of exchanges, by table, part, uniqueness and lookahead.
#[derive(Debug)]
pub(super) struct Declared(BTreeMap<(u32, u32, bool, Option<u32>), u32>);

impl Declared {
    pub(super) fn of(module: &Module) -> Self {
        let key = |(i, e): (usize, Exchange)| ((e.table, e.part, e.unique, e.lookahead), i as u32);
        Self(exchanges(module).into_iter().enumerate().map(key).collect())
    }

    /// Those of all parts of a table, declared if they are not.
    pub(super) fn parts(
        &mut self,
        module: &mut Module,
        table: &Table,
        number: u32,
        choice: &Choice,
    ) -> Vec<Numbered> {
        let Choice { unique, lookahead, .. } = *choice;
        let mut entries = None;
        let mut parts = Vec::new();
        for part in 0..table.sharding.parts() {
            let next = self.0.len() as u32;
            let exchange = *self.0.entry((number, part, unique, lookahead)).or_insert(next);
            let entries = *entries.get_or_insert(exchange);
            if exchange == next {
                let record = Exchange { table: number, part, entries, unique, lookahead, folded: false };
                let decl = module.create(named("comm.exchange"), vec![], attrs_of(&record), &[], "");
                module.decls.push(decl);
            }
            parts.push(Numbered { exchange, columns: table.part_columns(part) });
        }
        parts
    }
}
