//! Samples go to the ranks that work on them.
//!
//! Behind the load of a batch stand three operations: lengths go to everyone, every rank plans, inputs of samples travel.
//! What follows works on samples as assigned; gradients of parameters are summed over all ranks. [`At`] says what is
//! done with rows: ids are looked at where samples are worked on (`ids`), and nothing has to go back; or where they are
//! read (`rows`), and what is made of rows travels, and its gradients travel back ([`rows`](mod@rows)); or both, where who
//! reads samples asks for their rows in place of who works on them ([`folded`], of all tables or some). What a sample costs and how much is expected to move is filled in when operations are priced.

mod folded;
mod rows;

use fs_schedule::action::{Action, Phase};
use fs_schedule::signature::index;
use fs_schedule::{Extent, OperandType, Settings, Site, Table};

use super::{OptionError, Options, PassError, Statistics, option};
use crate::dialect::{action, named};
use crate::distribution::{At, PerTable};
use crate::ir::attr::typed;
use crate::ir::{Attr, Attrs, Module, OpId, Type, ValueId, table_of};

/// The part of a step that an operation belongs to; views have none.
fn phase(module: &Module, id: OpId) -> Option<Phase> {
    known(module, id).map(|action| action.facts().phase)
}

fn known(module: &Module, id: OpId) -> Option<Action> {
    let op = module.op(id);
    if op.def.view.is_some() { None } else { action(op).ok() }
}

/// Whether it only uses rows on their way, which are a rank's and of no samples.
fn of_rows_only(module: &Module, id: OpId) -> bool {
    let op = module.op(id);
    let mut values = op.uses().chain(op.results.iter().copied()).peekable();
    let of_rank = |v: ValueId| match module.ty(v) {
        Type::Operand(OperandType::Matrix { rows, .. }) => !rows.of_samples(),
        _ => false,
    };
    values.peek().is_some() && values.all(of_rank)
}

fn declared(module: &Module, kind: &str) -> Vec<ValueId> {
    module.decls_of(kind).flat_map(|op| op.results.clone()).collect()
}

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
    let at = match options.get("at").map(|text| text.parse::<At>()) {
        None => At::default(),
        Some(Ok(at)) => at,
        Some(Err(reason)) => return Err(OptionError::At(reason).into()),
    };
    let fold = PerTable { others: Some(at == At::Folded), ..option(options, "fold")?.unwrap_or_default() };
    let tables = module.decls_of("model.table").map(table_of).collect::<Result<Vec<Table>, _>>()?;
    let names: Vec<&str> = tables.iter().map(|t| t.name.as_str()).collect();
    if let Some(name) = fold.unknown(&names) {
        return Err(OptionError::NoTable { option: "fold", table: name.into() }.into());
    }
    module.attrs.insert("settings".into(), Attr::from(&settings));
    let body = module.func("train").ok_or_else(|| PassError::missing("train"))?.body.clone();
    if settings.balance.is_none() {
        return Ok(());
    }
    // Done before.
    if body.iter().any(|id| phase(module, *id) == Some(Phase::Balance)) {
        return Ok(());
    }
    let lengths = declared(module, "model.lengths");
    let samples = Extent::Fixed(settings.batch);
    let matrix = |columns: usize| Type::Operand(index(samples, columns.max(1) as u32));
    let shared = matrix(lengths.len());
    let share = module.create(named("train.share_lengths"), lengths, Attrs::new(), &[shared], "");
    let known = module.op(share).results.clone();
    let assign = module.create(named("train.assign"), known, Attrs::new(), &[matrix(2)], "");
    let plan = module.op(assign).results[0];
    let (body, inputs) = match at {
        At::Ids | At::Folded => {
            for id in &body {
                if phase(module, *id) != Some(Phase::Load) {
                    module.op_mut(*id).site = Site::Assigned;
                }
            }
            let inputs = declared(module, "model.input");
            (folded::place(module, body, plan, (&tables, &fold), statistics)?, inputs)
        }
        At::Rows => {
            folded::refuse(&fold, "samples move at `rows`, behind their lookups; use `ids` or `folded`")?;
            rows::place(module, body, plan, statistics)?
        }
    };
    let operands = std::iter::once(plan).chain(inputs).collect();
    let dispatch = module.create(named("train.dispatch"), operands, moved(), &[], "");
    let mut new = Vec::with_capacity(body.len() + 3);
    for id in body {
        new.push(id);
        if phase(module, id) == Some(Phase::Load) {
            new.extend([share, assign, dispatch]);
        } else if module.op(id).site == Site::Assigned {
            statistics.count("assigned");
        }
    }
    if let Some(func) = module.func_mut("train") {
        func.body = new;
    }
    Ok(())
}

/// All samples, until it is known how many are expected to move.
fn moved() -> Attrs {
    Attrs::from([("moved".into(), Attr::Float(1.0))])
}
