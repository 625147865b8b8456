//! From a function of lowered IR to a list of operations in the function's own order, with a buffer for every value
//! that needs one. What engine executes an operation, when, and which buffers share memory is decided later.

use std::collections::BTreeMap;

use fs_schedule as s;
use fs_schedule::{Op, Operand};

use super::FormError;
use super::storage::Storage;
use crate::dialect::action;
use crate::ir::{Module, OpData, OpId, Updates, ValueId, View};

/// One function as a program in its own order, and the IR operation behind each of the program's.
pub(super) fn list(module: &Module, func: &'static str) -> Result<(s::Program, Vec<OpId>), FormError> {
    let body = &module.func(func).ok_or(FormError::NoFunction(func))?.body;
    let mut storage = Storage::assign(module, body)?;
    let mut names: BTreeMap<String, u32> = BTreeMap::new();
    let mut ops: Vec<Op> = Vec::new();
    let mut origins: Vec<OpId> = Vec::new();
    for id in body {
        let op = module.op(*id);
        match op.def.view {
            Some(View::Split) => continue,
            Some(View::Concat) => {
                // Parts that could not be computed in place are copied.
                for (value, target) in storage.concat_copies(module, op) {
                    let copied = Op {
                        reads: vec![storage.operand(value)?],
                        writes: vec![target],
                        ..template(op, unique_name(&mut names, &op.scope, "copy"))
                    };
                    ops.push(copied);
                    origins.push(*id);
                }
                continue;
            }
            None => {}
        }
        let kind = op.def.name.rsplit('.').next().unwrap_or_default();
        let mut new = Op { action: action(op)?, ..template(op, unique_name(&mut names, &op.scope, kind)) };
        (new.reads, new.writes) = operands(module, op, &storage)?;
        ops.push(new);
        origins.push(*id);
    }
    Ok((s::Program { in_flight: 1, buffers: storage.buffers(), ops }, origins))
}

/// A copy of nothing yet.
fn template(op: &OpData, name: String) -> Op {
    Op {
        name,
        action: s::Action::Copy,
        reads: Vec::new(),
        writes: Vec::new(),
        engine: s::Engine::Compute,
        stage: 0,
        microbatch: op.microbatch,
        site: op.site,
        deps: Vec::new(),
        priority: 0,
        joined: false,
        chunk: None,
        // Priced when all buffers are known.
        cost: s::Cost::default(),
        start: 0,
        time: 0,
        lag: 0,
        reason: String::new(),
    }
}

fn unique_name(names: &mut BTreeMap<String, u32>, scope: &str, kind: &str) -> String {
    let base = if scope.is_empty() { kind.to_owned() } else { format!("{scope}.{kind}") };
    let count = names.entry(base.clone()).or_insert(0);
    *count += 1;
    if *count == 1 { base } else { format!("{base}#{count}") }
}

/// Operands of an executable operation in the schedule's terms.
fn operands(
    module: &Module,
    op: &OpData,
    storage: &Storage,
) -> Result<(Vec<Operand>, Vec<Operand>), FormError> {
    let list = |ids: &[ValueId]| ids.iter().map(|v| storage.operand(*v)).collect::<Result<Vec<_>, _>>();
    match op.def.updates {
        Updates::Last | Updates::SecondHalf => {
            let (reads, places) = op.operands.split_at(op.def.updates.reads(op.operands.len()));
            Ok((list(reads)?, list(places)?))
        }
        Updates::Nothing | Updates::All => {
            let mut writes = list(&op.results)?;
            for (write, base) in writes.iter_mut().zip(&op.into) {
                write.accumulate = base.is_some();
            }
            debug_assert!(op.operands.iter().all(|v| module.ty(*v).shape().is_some()));
            let mut reads = list(&op.operands)?;
            for (i, read) in reads.iter_mut().enumerate() {
                read.batch = op.offset(i);
            }
            Ok((reads, writes))
        }
    }
}
