//! Which collectives travel together: those of a group get its number, and `fuse-collectives` makes one of them.
//!
//! By default a *group* are collectives of one function that
//!
//! - do the same (input dist, classes, output dist, gradient dist), point to point (row-, table- and column-wise
//!   tables) or to all (data-parallel tables);
//! - move the same class of rows, told apart up to the same lookahead;
//! - have their operands ready at the same place: no dense operation stands between, so neither waits for work that
//!   the other does not need;
//! - do not need each other's results, and belong to different exchanges.
//!
//! Ids that others ask for on a rank's behalf (`balance`) do not travel with those that it asks for itself.
//!
//! Tables that are given groups by the option travel with the tables of their group only, wherever their operands are
//! ready.

use std::collections::{BTreeMap, BTreeSet};

use fs_schedule::action::Flops;
use fs_schedule::signature::OperandType;
use fs_schedule::{Exchange, Extent, Symbol};

use super::collective::Collective;
use super::{OptionError, Options, PassError, Statistics, option};
use crate::dialect::action;
use crate::distribution::PerTable;
use crate::ir::{Module, OpData, OpId, ValueId, exchanges, table_of};

/// What collectives of a group have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    what: Collective,
    /// The group that their tables were given.
    given: Option<u32>,
    /// Of ids: what was said of who asks for them.
    fold: Option<bool>,
}

/// Collectives that have been found to belong together.
#[derive(Debug, Default)]
struct Group {
    members: Vec<OpId>,
    exchanges: BTreeSet<u32>,
    /// Dense operations before its operands are ready.
    place: usize,
}

/// Of an exchange's table: its group, and who asks.
type Said = (Option<u32>, Option<bool>);

/// Numbers the groups of all functions.
pub(super) fn run(
    module: &mut Module,
    options: &Options,
    statistics: &mut Statistics,
) -> Result<(), PassError> {
    let given: PerTable<u32> = option(options, "groups")?.unwrap_or_default();
    let fold: PerTable<bool> = option(options, "fold")?.unwrap_or_default();
    let tables = module.decls_of("model.table").map(table_of).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<&str> = tables.iter().map(|t| t.name.as_str()).collect();
    for (option, unknown) in [("groups", given.unknown(&names)), ("fold", fold.unknown(&names))] {
        if let Some(name) = unknown {
            return Err(OptionError::NoTable { option, table: name.into() }.into());
        }
    }
    let declared = exchanges(module);
    let said = |e: &Exchange| {
        let name = names.get(e.table as usize);
        (name.and_then(|name| given.get(name)).copied(), name.and_then(|name| fold.get(name)).copied())
    };
    let by_exchange: Vec<Said> = declared.iter().map(said).collect();
    for f in 0..module.funcs.len() {
        let body = module.funcs[f].body.clone();
        let several = groups(module, &body, &declared, &by_exchange);
        let several = several.into_iter().filter(|g| g.members.len() > 1);
        for (number, group) in (0..).zip(several) {
            statistics.count("groups");
            for id in group.members {
                module.op_mut(id).group = Some(number);
            }
        }
    }
    Ok(())
}

/// The groups of a function, in the order of their ends.
fn groups(module: &Module, body: &[OpId], declared: &[Exchange], said: &[Said]) -> Vec<Group> {
    let mut dense = 0;
    // Dense operations before each value is ready.
    let mut ready: BTreeMap<ValueId, usize> = BTreeMap::new();
    let mut open: BTreeMap<Key, Group> = BTreeMap::new();
    // The group that makes a value.
    let mut made: BTreeMap<ValueId, Key> = BTreeMap::new();
    let mut done = Vec::new();
    for id in body {
        let op = module.op(*id);
        // Who needs a result closes its group: what follows cannot be waited for.
        for v in op.uses() {
            let group = made.get(&v).and_then(|k| open.get_key_value(k));
            if let Some((key, _)) = group.filter(|(_, g)| g.members.contains(&module.value(v).def)) {
                let key = key.clone();
                done.extend(open.remove(&key));
            }
        }
        if is_dense(module, op) {
            dense += 1;
        }
        ready.extend(op.results.iter().map(|r| (*r, dense)));
        let Some((what, own)) = Collective::of(op, declared) else { continue };
        let (given, fold) = own.first().and_then(|e| said.get(*e as usize).copied()).unwrap_or_default();
        let fold = fold.filter(|_| what.name == "comm.all_to_all_ids");
        let key = Key { what, given, fold };
        let place = op.uses().filter_map(|v| ready.get(&v)).max().copied().unwrap_or(0);
        let group = open.entry(key.clone()).or_default();
        let elsewhere = given.is_none() && group.place != place;
        if !group.members.is_empty() && (elsewhere || !group.exchanges.is_disjoint(&own)) {
            done.push(std::mem::take(group));
        }
        group.place = place;
        group.members.push(*id);
        group.exchanges.extend(own);
        made.extend(op.results.iter().map(|r| (*r, key.clone())));
    }
    done.extend(open.into_values());
    done
}

/// Work on samples, tokens or parameters, as opposed to rows and their transport.
fn is_dense(module: &Module, op: &OpData) -> bool {
    let of_rows = |v: &ValueId| {
        matches!(
            module.ty(*v).shape(),
            Some(OperandType::Matrix { rows: Extent::Symbol(Symbol::Sent(_) | Symbol::Received(_)), .. })
        )
    };
    let counts = || action(op).is_ok_and(|a| a.facts().flops != Flops::None);
    op.dialect() != "comm" && !op.results.iter().any(of_rows) && counts()
}
