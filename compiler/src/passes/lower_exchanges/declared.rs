//! The exchanges that a module declares: functions share those of the same choice.

use std::collections::BTreeMap;

use fs_schedule::{Exchange, Leg, Shares, Table};

use crate::dialect::named;
use crate::distribution::Choice;
use crate::distribution::build::{Listed, Numbered};
use crate::ir::attr::attrs_of;
use crate::ir::{Module, exchanges};

/// Lookahead and windows.
type Apart = (Option<u32>, Option<u32>);

/// The whole way.
const WHOLE: u32 = 0;
/// Within nodes.
const WITHIN: u32 = 1;
/// Between them.
const BETWEEN: u32 = 2;
/// The list of what exchanges have shares of.
const LIST: u32 = 3;

/// Table, part, uniqueness, how rows are told apart, and which leg or list.
type Key = (u32, u32, bool, Apart, u32);

/// Numbers of exchanges.
#[derive(Debug)]
pub(super) struct Declared(BTreeMap<Key, u32>);

impl Declared {
    pub(super) fn of(module: &Module) -> Self {
        let all = exchanges(module);
        let key = |(i, e): (usize, &Exchange)| {
            let (unique, leg) = match e.leg {
                Leg::Whole if e.shares.is_some() => (e.unique, LIST),
                Leg::Whole => (e.unique, WHOLE),
                Leg::Within { .. } => (e.unique, WITHIN),
                // Known by what it is for.
                Leg::Between { within } => (all.get(within as usize).is_none_or(|w| w.unique), BETWEEN),
            };
            ((e.table, e.part, unique, (e.lookahead, e.windows), leg), i as u32)
        };
        Self(all.iter().enumerate().map(key).collect())
    }

    /// Those of all parts of a table, declared if they are not; and what else there is where it has hot rows.
    pub(super) fn parts(
        &mut self,
        module: &mut Module,
        table: &Table,
        number: u32,
        choice: &Choice,
    ) -> (Vec<Numbered>, Option<Listed>) {
        let Choice { unique, lookahead, windows, relayed, .. } = *choice;
        let apart = (lookahead, windows);
        let count = table.sharding.parts();
        let key = |part, leg| (number, part, unique, apart, leg);
        let plain = Exchange {
            table: number,
            part: 0,
            entries: 0,
            unique,
            lookahead,
            windows,
            folded: false,
            leg: Leg::Whole,
            shares: None,
            of: None,
        };
        let next = self.0.len() as u32;
        // The list comes first, then the parts with their legs, then those of hot rows.
        let listed = (!table.hot.is_empty()).then(|| {
            let list = *self.0.entry(key(0, LIST)).or_insert(next);
            Listed { list, hot: list + 1 + count * (1 + u32::from(relayed)) }
        });
        if let Some(Listed { list, hot }) = listed.filter(|listed| listed.list == next) {
            let shares = Some(Shares { owned: list + 1, hot });
            declare(module, &Exchange { entries: list, shares, ..plain.clone() });
        }
        let of = listed.map(|listed| listed.list);
        let mut entries = None;
        let mut parts = Vec::new();
        for part in 0..count {
            let next = self.0.len() as u32;
            let exchange = *self.0.entry(key(part, u32::from(relayed))).or_insert(next);
            let entries = *entries.get_or_insert(exchange);
            // The two legs are declared one after the other.
            let between = relayed.then(|| *self.0.entry(key(part, BETWEEN)).or_insert(exchange + 1));
            if exchange == next {
                let leg = between.map_or(Leg::Whole, |between| Leg::Within { between });
                let record = Exchange { part, entries, leg, of, ..plain.clone() };
                declare(module, &record);
                if let Some(between) = between {
                    let leg = Leg::Between { within: exchange };
                    declare(module, &Exchange { entries: between, unique: true, leg, of: None, ..record });
                }
            }
            parts.push(Numbered { exchange, between, columns: table.part_columns(part) });
        }
        for part in (count..2 * count).filter(|_| listed.is_some()) {
            let next = self.0.len() as u32;
            if *self.0.entry(key(part, WHOLE)).or_insert(next) == next {
                let entries = listed.map_or(next, |listed| listed.hot);
                declare(module, &Exchange { part, entries, of, ..plain.clone() });
            }
        }
        (parts, listed)
    }
}

fn declare(module: &mut Module, record: &Exchange) {
    let decl = module.create(named("comm.exchange"), vec![], attrs_of(record), &[], "");
    module.decls.push(decl);
}
