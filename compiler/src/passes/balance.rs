//! Samples go to the ranks that work on them, before their ids are looked at (`dispatch` of ids).
//!
//! Behind the load of a batch stand three operations: lengths go to everyone, every rank plans, samples travel. All other
//! operations of the step then work on samples as assigned. Gradients of rows go from there to the owners and those of
//! parameters are summed over all ranks, so nothing has to go back. What a sample costs and how much is expected to
//! move is filled in when operations are priced.

use fs_schedule::action::{Action, Phase};
use fs_schedule::signature::index;
use fs_schedule::{Extent, Settings, Site};

use super::{Options, PassError, Statistics};
use crate::dialect::{action, named};
use crate::ir::attr::typed;
use crate::ir::{Attr, Attrs, Module, OpId, Type, ValueId};

/// Changes `@train`.
pub(super) fn run(
    module: &mut Module,
    options: &Options,
    statistics: &mut Statistics,
) -> Result<(), PassError> {
    let mut settings: Settings = typed(&module.attrs, "settings")?;
    match options.get("samples").map(String::as_str) {
        None => {}
        Some("off") => settings.balance = None,
        Some("on") => {
            settings.balance.get_or_insert_default();
        }
        Some(other) => return Err(PassError::new(format!("option samples is `on` or `off`, not `{other}`"))),
    }
    module.attrs.insert("settings".into(), Attr::from(&settings));
    let body = module.func("train").ok_or_else(|| PassError::missing("train"))?.body.clone();
    if settings.balance.is_none() {
        return Ok(());
    }
    let phase = |module: &Module, id: OpId| {
        let op = module.op(id);
        // Views have no action.
        if op.def.view.is_some() { None } else { action(op).ok().map(|a: Action| a.facts().phase) }
    };
    // Done before.
    if body.iter().any(|id| phase(module, *id) == Some(Phase::Balance)) {
        return Ok(());
    }
    let declared = |module: &Module, kind: &str| -> Vec<ValueId> {
        module.decls_of(kind).flat_map(|op| op.results.clone()).collect()
    };
    let (lengths, inputs) = (declared(module, "model.lengths"), declared(module, "model.input"));
    let samples = Extent::Fixed(settings.batch);
    let matrix = |columns: usize| Type::Operand(index(samples, columns.max(1) as u32));
    let shared = matrix(lengths.len());
    let share = module.create(named("train.share_lengths"), lengths, Attrs::new(), &[shared], "");
    let known = module.op(share).results.clone();
    let assign = module.create(named("train.assign"), known, Attrs::new(), &[matrix(2)], "");
    let plan = module.op(assign).results.iter().copied();
    let attrs = Attrs::from([("moved".into(), Attr::Float(1.0))]);
    let dispatch = module.create(named("train.dispatch"), plan.chain(inputs).collect(), attrs, &[], "");
    let mut new = Vec::with_capacity(body.len() + 3);
    for id in body {
        new.push(id);
        if phase(module, id) == Some(Phase::Load) {
            new.extend([share, assign, dispatch]);
        } else {
            module.op_mut(id).site = Site::Assigned;
            statistics.count("assigned");
        }
    }
    if let Some(func) = module.func_mut("train") {
        func.body = new;
    }
    Ok(())
}
