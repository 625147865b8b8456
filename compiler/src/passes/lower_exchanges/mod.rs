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
//! - *data-parallel*: `all_gather_ids` tells every rank what all use, rows are looked up at home; back
//!   `all_gather_grads`, and every rank applies everything.
//!
//! With a `lookahead` the rows of the training step travel by class of reuse distance ([`fs_schedule::reuse`]). Owners
//! compare a batch with those before (`partition`), tell those who asked (`all_to_all_classes`), both list their
//! entries (`positions`), and each class is a lookup and a transfer of its own, put together by `merge`; gradients
//! likewise, compared with the batches after, cut up by `split`. The classes of microbatch b stand in front of its
//! forward operations, the gradients last used in microbatch a right behind its backward ones.
//!
//! The order is by stages over all tables, so that collectives of one kind stand side by side for `fuse-collectives`.

mod backward;
mod forward;
mod plan;
mod rewrite;

use std::collections::BTreeMap;

use super::{Options, PassError, Statistics, option};
use crate::ir::{Module, OpId, ValueId};
use plan::{Choice, Declared, Emitter, Lowering, Sources, is_update};

/// Replaces table operations in all functions.
pub(super) fn run(
    module: &mut Module,
    options: &Options,
    statistics: &mut Statistics,
) -> Result<(), PassError> {
    let mut choice = Choice::of(module);
    choice.unique = option(options, "unique")?.unwrap_or(true);
    choice.lookahead = option(options, "lookahead")?;
    choice.check()?;
    for f in 0..module.funcs.len() {
        lower_function(module, f, &choice, statistics)?;
    }
    Ok(())
}

fn lower_function(
    module: &mut Module,
    f: usize,
    choice: &Choice,
    statistics: &mut Statistics,
) -> Result<(), PassError> {
    let trains = module.funcs[f].name == "train";
    let rounds = if trains { choice.microbatches } else { 1 };
    let body = module.funcs[f].body.clone();
    let sources = Sources::find(module, &body, rounds)?;
    if sources.is_empty() {
        return Ok(());
    }
    let (head, rest): (Vec<OpId>, Vec<OpId>) =
        body.into_iter().partition(|id| sources.goes_first(module, *id));
    let mut tables: BTreeMap<ValueId, Lowering> = BTreeMap::new();
    let mut declared = Declared::of(module);
    let gradients = plan::gradients(module, &rest, rounds)?;
    // Declarations are numbered in order, so tables are exchanged in the order of their declaration.
    for (table, ids) in &sources.by_table {
        let partitioned = trains && gradients.contains_key(table);
        let lowering = Lowering::declare(module, *table, ids, choice, partitioned, &mut declared)?;
        for _ in &lowering.parts {
            statistics.count("exchanges");
        }
        tables.insert(*table, lowering);
    }
    let mut e = Emitter { module, body: head, microbatch: None };
    forward::ask(&mut e, &mut tables);
    forward::plan(&mut e, &mut tables);
    forward::fetch(&mut e, &mut tables, 0);
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
        e.module.replace_uses(&[id], &cx.replaced);
        let op = e.module.op(id);
        if let Some(m) = op.microbatch.filter(|m| trains && *m > cx.round) {
            cx.next_round(&mut e, m)?;
        }
        let Some(table) = plan::table_of(e.module, e.module.op(id)) else {
            e.body.push(id);
            continue;
        };
        statistics.count("lowered");
        if is_update(e.module.op(id)) {
            // Neighbours go by stages too.
            let mut updated = vec![table];
            let is_apply = |id: &OpId| is_update(e.module.op(*id));
            while let Some(next) = rest.next_if(is_apply) {
                statistics.count("lowered");
                updated.extend(plan::table_of(e.module, e.module.op(next)));
            }
            cx.update(&mut e, &updated)?;
            continue;
        }
        let op = e.module.op(id).clone();
        cx.lower(&mut e, table, &op)?;
    }
    let new_body = e.body;
    module.funcs[f].body = new_body;
    Ok(())
}
