//! The exchanges that a module declares: functions share those of the same choice.

use std::collections::BTreeMap;

use fs_schedule::{Exchange, Leg, Table};

use crate::dialect::named;
use crate::distribution::Choice;
use crate::distribution::build::Numbered;
use crate::ir::attr::attrs_of;
use crate::ir::{Module, exchanges};

/// Lookahead and windows.
type Apart = (Option<u32>, Option<u32>);

/// Table, part, uniqueness, how rows are told apart, and which leg: 0 the whole way, 1 within nodes, 2 between them.
type Key = (u32, u32, bool, Apart, u32);

/// Numbers of exchanges.
#[derive(Debug)]
pub(super) struct Declared(BTreeMap<Key, u32>);

impl Declared {
    pub(super) fn of(module: &Module) -> Self {
        let all = exchanges(module);
        let key = |(i, e): (usize, &Exchange)| {
            let (unique, leg) = match e.leg {
                Leg::Whole => (e.unique, 0),
                Leg::Within { .. } => (e.unique, 1),
                // Known by what it is for.
                Leg::Between { within } => (all.get(within as usize).is_none_or(|w| w.unique), 2),
            };
            ((e.table, e.part, unique, (e.lookahead, e.windows), leg), i as u32)
        };
        Self(all.iter().enumerate().map(key).collect())
    }

    /// Those of all parts of a table, declared if they are not.
    pub(super) fn parts(
        &mut self,
        module: &mut Module,
        table: &Table,
        number: u32,
        choice: &Choice,
    ) -> Vec<Numbered> {
        let Choice { unique, lookahead, windows, relayed, .. } = *choice;
        let apart = (lookahead, windows);
        let mut entries = None;
        let mut parts = Vec::new();
        for part in 0..table.sharding.parts() {
            let next = self.0.len() as u32;
            let leg = u32::from(relayed);
            let exchange = *self.0.entry((number, part, unique, apart, leg)).or_insert(next);
            let entries = *entries.get_or_insert(exchange);
            // The two legs are declared one after the other.
            let between =
                relayed.then(|| *self.0.entry((number, part, unique, apart, 2)).or_insert(exchange + 1));
            if exchange == next {
                let leg = between.map_or(Leg::Whole, |between| Leg::Within { between });
                let (table, folded) = (number, false);
                let record = Exchange { table, part, entries, unique, lookahead, windows, folded, leg };
                declare(module, &record);
                if let Some(between) = between {
                    let leg = Leg::Between { within: exchange };
                    declare(module, &Exchange { entries: between, unique: true, leg, ..record });
                }
            }
            parts.push(Numbered { exchange, between, columns: table.part_columns(part) });
        }
        parts
    }
}

fn declare(module: &mut Module, record: &Exchange) {
    let decl = module.create(named("comm.exchange"), vec![], attrs_of(record), &[], "");
    module.decls.push(decl);
}
