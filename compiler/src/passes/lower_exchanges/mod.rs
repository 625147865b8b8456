//! From tables to exchanges: lookups, pools, sampled softmax and sparse gradients become collectives.
//!
//! In each function and for each table, all ids that its operations use form one exchange (one per part of a
//! column-wise table): unique entries are asked for at their owners, looked up there, sent back and expanded where
//! they are used. Row gradients are summed per entry, sent to the owners and applied. So a row used by several
//! sequences of one table travels once. What differs by placement:
//!
//! - *row-wise, table-wise*: `all_to_all_ids`, `gather`, `all_to_all_rows`; back `all_to_all_grads`, `apply`.
//! - *column-wise*: that for every part; parts after the first send the entries of the first. Rows are the concat of
//!   what the parts send, gradients are split into the parts' columns.
//! - *hot rows* of the others: those that follow are data-parallel, side by side with the rest. One `unique` finds the entries
//!   of both; `merge` puts their rows together, `split` takes their gradients apart.
//! - *data-parallel*: `all_gather_ids` tells every rank what all use, rows are looked up at home; back
//!   `all_gather_grads`, and every rank applies everything.
//!
//! With a `lookahead` the rows of the training step travel by class of reuse distance ([`fs_schedule::reuse`]). Owners
//! compare a batch with those before (`partition`), tell those who asked (`all_to_all_classes`), both list their
//! entries (`positions`), and each class is a lookup and a transfer of its own, put together by `merge`; gradients
//! likewise, compared with the batches after, cut up by `split`. The classes of microbatch b stand in front of its
//! forward operations, the gradients last used in microbatch a right behind its backward ones.
//!
//! The pass writes a plan ([`crate::distribution`]): each table's terms are built as it is chosen for that table, and
//! walking a function decides only when the operations of a term are written.

mod backward;
mod declared;
mod forward;
mod generate;
mod rewrite;
mod sources;
mod table;

use std::collections::{BTreeMap, BTreeSet};

use fs_schedule::reuse::Reuse;
use fs_schedule::{Element, Settings, Sharding, Way, WirePrecision};

use super::{OptionError, Options, PassError, Statistics, option};
use crate::distribution::{Lookahead, TableChoices};
use crate::ir::attr::typed;
use crate::ir::{Module, OpId, ValueId, table_of};
use declared::Declared;
use generate::{Emitter, Generator};
pub(super) use rewrite::NORMALIZE_EPS;
use sources::{Sources, is_update};
use table::Lowering;

/// Replaces table operations in all functions.
pub(super) fn run(
    module: &mut Module,
    options: &Options,
    statistics: &mut Statistics,
) -> Result<(), PassError> {
    let there = module.attrs.contains_key("settings");
    let settings = there.then(|| typed::<Settings>(&module.attrs, "settings")).transpose()?;
    let microbatches = settings.as_ref().map_or(1, |s| s.microbatches);
    let plan = TableChoices {
        unique: option(options, "unique")?.unwrap_or_default(),
        lookahead: option(options, "lookahead")?.unwrap_or_default(),
        windows: option(options, "windows")?.unwrap_or_default(),
        microbatches,
        relay: option(options, "relay")?.unwrap_or_default(),
        sampled: sampled(module)?,
    };
    let wire = settings.as_ref().map_or_else(WirePrecision::default, |s| s.wire);
    if !(wire.rows.carries_rows() && wire.gradients.is_float() && wire.dense.is_float()) {
        let what = "rows travel as `real`, as `bf16` or as `mxint8`, gradients and dense sums as `real` or as `bf16`";
        return Err(PassError::new(what));
    }
    check(module, &plan, microbatches)?;
    check_rounding(module, &plan, wire)?;
    check_relays(module, &plan, settings.is_some_and(|s| s.node.is_some()))?;
    for f in 0..module.funcs.len() {
        lower_function(module, f, &plan, (microbatches, wire), statistics)?;
    }
    Ok(())
}

/// Tables of a sampled softmax.
fn sampled(module: &Module) -> Result<BTreeSet<String>, PassError> {
    let ops = module.funcs.iter().flat_map(|f| &f.body).map(|id| module.op(*id));
    let tables = ops.filter(|op| op.def.name == "model.sampled_softmax");
    let tables = tables.filter_map(|op| sources::table_of(module, op));
    tables.map(|t| Ok(table_of(module.def(t))?.name)).collect()
}

/// Refuses tables that are not there, and what classes cannot number.
fn check(module: &Module, plan: &TableChoices, microbatches: u32) -> Result<(), PassError> {
    let names: Vec<String> =
        module.decls_of("model.table").filter_map(|op| Some(table_of(op).ok()?.name)).collect();
    let known: Vec<&str> = names.iter().map(String::as_str).collect();
    for (option, unknown) in [
        ("unique", plan.unique.unknown(&known)),
        ("lookahead", plan.lookahead.unknown(&known)),
        ("windows", plan.windows.unknown(&known)),
        ("relay", plan.relay.unknown(&known)),
    ] {
        if let Some(name) = unknown {
            return Err(OptionError::NoTable { option, table: name.into() }.into());
        }
    }
    let chosen = plan.windows.others.iter().chain(plan.windows.named.values());
    for windows in chosen.copied() {
        if windows == 0 || (windows < microbatches && !microbatches.is_multiple_of(windows)) {
            return Err(OptionError::Windows { windows, microbatches }.into());
        }
    }
    let chosen = plan.lookahead.others.iter().chain(plan.lookahead.named.values());
    if chosen.filter_map(|Lookahead(k)| *k).any(|lookahead| lookahead == 0) {
        return Err(OptionError::NoLookahead.into());
    }
    for name in &names {
        let choice = plan.choice(name, &Sharding::RowWise);
        let Some((lookahead, reuse)) = choice.lookahead.zip(choice.reuse(microbatches)) else { continue };
        let windows = reuse.windows;
        // Counting is quadratic in neither: bound both first.
        let many = lookahead as usize > Reuse::MOST || windows as usize > Reuse::MOST;
        if many || reuse.count(Way::Forward) > Reuse::MOST {
            return Err(OptionError::Classes { lookahead, windows, most: Reuse::MOST }.into());
        }
    }
    Ok(())
}

/// Refuses gradients of occurrences that would be rounded each by itself.
fn check_rounding(module: &Module, plan: &TableChoices, wire: WirePrecision) -> Result<(), PassError> {
    if wire.gradients == Element::Real {
        return Ok(());
    }
    for op in module.decls_of("model.table") {
        let table = table_of(op)?;
        if !plan.choice(&table.name, &table.sharding).unique {
            return Err(OptionError::Rounded { table: table.name }.into());
        }
    }
    Ok(())
}

/// Refuses relays where there are none, or for rows that they cannot ask for.
fn check_relays(module: &Module, plan: &TableChoices, nodes: bool) -> Result<(), PassError> {
    let chosen = plan.relay.others.iter().chain(plan.relay.named.values());
    if !chosen.copied().any(|relayed| relayed) {
        return Ok(());
    }
    if !nodes {
        return Err(OptionError::OneNode.into());
    }
    for op in module.decls_of("model.table") {
        let table = table_of(op)?;
        let asked = plan.relay.named.get(&table.name).copied() == Some(true);
        let why = match table.sharding {
            Sharding::DataParallel if asked => "every rank has all of them",
            Sharding::DataParallel => continue,
            _ if table.rows > 1 << 32 && plan.relay.get(&table.name) == Some(&true) => {
                "it has more than 2^32, which have no numbers of 32 bits"
            }
            _ => continue,
        };
        return Err(OptionError::NoRelay { table: table.name, why }.into());
    }
    Ok(())
}

fn lower_function(
    module: &mut Module,
    f: usize,
    plan: &TableChoices,
    (microbatches, wire): (u32, WirePrecision),
    statistics: &mut Statistics,
) -> Result<(), PassError> {
    let trains = module.funcs[f].name == "train";
    let rounds = if trains { microbatches } else { 1 };
    let body = module.funcs[f].body.clone();
    let sources = Sources::find(module, &body, rounds)?;
    if sources.is_empty() {
        return Ok(());
    }
    let (head, rest): (Vec<OpId>, Vec<OpId>) =
        body.into_iter().partition(|id| sources.goes_first(module, *id));
    let mut tables: BTreeMap<ValueId, Lowering> = BTreeMap::new();
    let mut declared = Declared::of(module);
    let gradients = sources::gradients(module, &rest, rounds)?;
    let mut g = Generator::new(Emitter { module, body: head, microbatch: None }, wire);
    // Declarations are numbered in order, so tables are exchanged in the order of their declaration.
    for (table, ids) in &sources.by_table {
        let updated = (trains && gradients.contains_key(table)).then_some(microbatches);
        let lowering = Lowering::build(&mut g, *table, ids, plan, updated, &mut declared)?;
        for _ in lowering.dist.exchanges() {
            statistics.count("exchanges");
        }
        tables.insert(*table, lowering);
    }
    forward::ask(&mut g, &tables)?;
    forward::plan(&mut g, &tables)?;
    forward::fetch(&mut g, &tables, 0)?;
    let mut cx = rewrite::Rewrite {
        tables,
        gradients,
        replaced: BTreeMap::new(),
        round: 0,
        rounds,
        normalised: BTreeMap::new(),
        sparse: BTreeMap::new(),
    };
    let mut rest = rest.into_iter().peekable();
    while let Some(id) = rest.next() {
        g.e.module.replace_uses(&[id], &cx.replaced);
        let op = g.e.module.op(id);
        if let Some(m) = op.microbatch.filter(|m| trains && *m > cx.round) {
            cx.next_round(&mut g, m)?;
        }
        let Some(table) = sources::table_of(g.e.module, g.e.module.op(id)) else {
            g.e.body.push(id);
            continue;
        };
        statistics.count("lowered");
        if is_update(g.e.module.op(id)) {
            // Neighbours go by stages too.
            let mut updated = vec![table];
            let is_apply = |id: &OpId| is_update(g.e.module.op(*id));
            while let Some(next) = rest.next_if(is_apply) {
                statistics.count("lowered");
                updated.extend(sources::table_of(g.e.module, g.e.module.op(next)));
            }
            cx.update(&mut g, &updated)?;
            continue;
        }
        let op = g.e.module.op(id).clone();
        cx.lower(&mut g, table, &op)?;
    }
    let new_body = g.e.body;
    module.funcs[f].body = new_body;
    Ok(())
}
