//! Who reads samples asks the owners for their rows on behalf of the ranks that work on them.
//!
//! Everything works on samples as assigned, as where their ids move, and a rank lists for itself what it needs. But the
//! owners do not wait for that list: home lists the same rows from the samples that it reads (`unique_for`) and sends
//! them with the rank that each is for (`all_to_all_ids_for`). Drawn ids are keyed by the sample, so home draws them too.
//! Rows of replicated tables lie everywhere: nobody is asked for them, and their lists stay as they are.

use std::collections::{BTreeMap, BTreeSet};

use fs_schedule::action::{Action, Phase};
use fs_schedule::signature::{counts, id as ids_of, index};
use fs_schedule::{Element, Extent, OperandType, Sharding, Site, Symbol, Table};

use super::{known, of_rows_only, phase};
use crate::dialect::named;
use crate::distribution::PerTable;
use crate::ir::{Attr, Attrs, Module, OpId, Type, ValueId, exchanges};
use crate::passes::{OptionError, PassError, Statistics};

/// What asks in place of a rank's own list: entries, their numbers, for whom they are, and their uses.
type Asked = Vec<ValueId>;

/// Puts in what asks on behalf of others, of the tables that `fold` says. The new body; operations at home are said to be there.
pub(super) fn place(
    module: &mut Module,
    body: Vec<OpId>,
    plan: ValueId,
    (tables, fold): (&[Table], &PerTable<bool>),
    statistics: &mut Statistics,
) -> Result<Vec<OpId>, PassError> {
    let [owned, relays, hot] = owned(module, tables);
    let folded = |table: &Table| fold.get(&table.name).copied().unwrap_or_default();
    let of = |is: &dyn Fn(&String) -> bool| {
        let named = fold.named.iter().filter(|(name, _)| is(name));
        PerTable { others: None, named: named.map(|(name, on)| (name.clone(), *on)).collect() }
    };
    let has = |list: &[(u32, &Table)], name: &String| list.iter().any(|(_, table)| table.name == *name);
    let asked = of(&|name| has(&hot, name));
    refuse(
        &asked,
        "every rank has its hot rows and lists the others by itself; leave these out with `hot=0`",
    )?;
    let asked = of(&|name| has(&relays, name));
    refuse(&asked, "relays of their nodes ask for them; leave these out with `relay=off`")?;
    let asked = of(&|name| [&owned, &relays, &hot].iter().all(|list| !has(list, name)));
    refuse(&asked, "every rank has all of them; `sharding=row_wise` gives them owners")?;
    // Where nothing is said otherwise of any table.
    if owned.is_empty() && fold.others == Some(true) && fold.named.values().all(|on| *on) {
        return Err(OptionError::NothingAsked.into());
    }
    let owned: BTreeSet<u32> =
        owned.into_iter().filter(|(_, table)| folded(table)).map(|(number, _)| number).collect();
    if owned.is_empty() {
        return Ok(body);
    }
    // By the entries of each rank's own list.
    let mut asked: BTreeMap<ValueId, Asked> = BTreeMap::new();
    let mut new = Vec::with_capacity(body.len());
    for id in body {
        match known(module, id) {
            Some(Action::Unique { exchange }) if owned.contains(&exchange) => {
                let (made, values) = ask(module, id, exchange, plan);
                asked.insert(module.op(id).results[0], values);
                statistics.count("asked");
                new.extend(made);
            }
            Some(Action::AllToAllIds { exchanges }) => {
                let folded = exchanges.iter().filter(|x| owned.contains(x)).count();
                if folded == exchanges.len() {
                    send(module, id, exchanges.len(), &asked);
                } else if folded > 0 {
                    return Err(OptionError::HalfFolded.into());
                }
            }
            _ => {}
        }
        // Owners wait for nobody's samples.
        let on_its_way = matches!(phase(module, id), Some(Phase::OutputDist | Phase::GradientDist));
        if on_its_way || of_rows_only(module, id) {
            module.op_mut(id).site = Site::Home;
        }
        new.push(id);
    }
    let named = |id: &OpId| module.op(*id).def.name == "comm.exchange";
    let decls: Vec<OpId> = module.decls.iter().copied().filter(named).collect();
    for (number, decl) in (0..).zip(decls) {
        if owned.contains(&number) {
            module.op_mut(decl).attrs.insert("folded".into(), Attr::Bool(true));
        }
    }
    Ok(new)
}

/// Says why a table that is to be folded is not.
pub(super) fn refuse(fold: &PerTable<bool>, why: &'static str) -> Result<(), PassError> {
    match fold.named.iter().find(|(_, on)| **on) {
        Some((table, _)) => Err(OptionError::NoFold { table: table.clone(), why }.into()),
        None => Ok(()),
    }
}

/// Exchanges of rows that have an owner, with their tables: those in which ranks ask owners, those of relays, which ask for
/// themselves, and those of tables with hot rows, of whose entries they have shares.
fn owned<'t>(module: &Module, tables: &'t [Table]) -> [Vec<(u32, &'t Table)>; 3] {
    let mut owned = [Vec::new(), Vec::new(), Vec::new()];
    for (number, x) in (0..).zip(exchanges(module)) {
        let table = tables.get(x.table as usize).filter(|t| t.sharding != Sharding::DataParallel);
        let kind = |t: &Table| if t.hot.is_empty() { usize::from(!x.leg.is_whole()) } else { 2 };
        if let Some(table) = table {
            owned[kind(table)].push((number, table));
        }
    }
    owned
}

/// Lists for others what a `unique` lists for itself, of samples at home.
fn ask(module: &mut Module, unique: OpId, exchange: u32, plan: ValueId) -> (Vec<OpId>, Asked) {
    let op = module.op(unique).clone();
    let mut made = Vec::new();
    let mut operands = vec![plan];
    for v in &op.operands {
        let drawn = module.op(module.value(*v).def).clone();
        if drawn.def.declares.is_some() {
            operands.push(*v);
            continue;
        }
        let types: Vec<Type> = drawn.results.iter().map(|r| module.ty(*r)).collect();
        let again = module.create(drawn.def, drawn.operands, drawn.attrs, &types, &drawn.scope);
        let result = module.value(*v).result as usize;
        let data = module.op_mut(again);
        (data.site, data.microbatch) = (Site::Home, drawn.microbatch);
        operands.push(data.results[result]);
        made.push(again);
    }
    let rows = Extent::Symbol(Symbol::Asked(exchange));
    let mut types = vec![ids_of(rows, 1), counts(), index(rows, 1)];
    if op.results.len() > op.operands.len() + 2 {
        types.push(OperandType::Matrix { element: Element::Byte, rows, columns: 2 });
    }
    let types: Vec<Type> = types.into_iter().map(Type::Operand).collect();
    let attrs = Attrs::from([("exchange".into(), Attr::Int(exchange.into()))]);
    let list = module.create(named("comm.unique_for"), operands, attrs, &types, &op.scope);
    made.push(list);
    (made, module.op(list).results.clone())
}

/// Sends what home asks for instead of what a rank lists for itself.
fn send(module: &mut Module, id: OpId, exchanges: usize, asked: &BTreeMap<ValueId, Asked>) {
    let op = module.op_mut(id);
    let each = op.operands.len() / exchanges.max(1);
    let own = std::mem::take(&mut op.operands);
    op.operands = own.chunks(each.max(1)).filter_map(|of| asked.get(&of[0])).flatten().copied().collect();
    op.def = named("comm.all_to_all_ids_for");
}
