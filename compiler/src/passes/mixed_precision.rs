//! Activations in bf16: the dense graph of `@forward` reads and writes brain floats, with casts at its edges.
//!
//! An operation whose action has a form in bf16 (its operand rule says so) gets it: operands that are activations are cast
//! if they are f32, results that are no statistics are bf16. Every other operation (lookups, features, losses) keeps f32
//! and is given its operands so. A value is cast once, before its first use. Evaluation and derivatives are made of
//! what then stands there, so gradients of activations have their precision, and a cast's derivative is the cast back.

use std::collections::BTreeMap;

use fs_schedule::action::Context as Shapes;
use fs_schedule::signature::OperandType;
use fs_schedule::{Element, WirePrecision};

use super::{OptionError, Options, PassError, Statistics};
use crate::dialect::{action, named};
use crate::ir::attr::typed;
use crate::ir::{Attrs, Module, OpData, OpId, Type, ValueId};

/// Changes `@forward`.
pub(super) fn run(
    module: &mut Module,
    options: &Options,
    statistics: &mut Statistics,
) -> Result<(), PassError> {
    let asked = match (options.get("compute"), module.attrs.contains_key("compute")) {
        (Some(text), _) => text.clone(),
        (None, true) => typed(&module.attrs, "compute")?,
        (None, false) => "f32".into(),
    };
    match asked.as_str() {
        "f32" => return Ok(()),
        "bf16" => {}
        _ => return Err(OptionError::Value { option: "compute", text: asked }.into()),
    }
    let body = module.func("forward").ok_or_else(|| PassError::missing("forward"))?.body.clone();
    // Done before.
    if body.iter().any(|id| module.op(*id).def.name == "model.cast") {
        return Ok(());
    }
    let mut casts = Casts { of: BTreeMap::new(), body: Vec::with_capacity(body.len()) };
    for id in body {
        let op = module.op(id).clone();
        let form = form(module, &op);
        let element = if form.is_some() { Element::Bf16 } else { Element::Real };
        let operands: Vec<ValueId> = op
            .operands
            .iter()
            .enumerate()
            .map(|(i, v)| if statistic(&op, i) { *v } else { casts.value(module, *v, element, statistics) })
            .collect();
        module.op_mut(id).operands = operands;
        for (result, ty) in op.results.iter().zip(form.into_iter().flatten()) {
            module.set_type(*result, ty);
        }
        if element == Element::Bf16 && op.results.iter().any(|r| module.ty(*r).is_bf16()) {
            statistics.count("rounded");
        }
        casts.body.push(id);
    }
    if let Some(func) = module.func_mut("forward") {
        func.body = casts.body;
    }
    Ok(())
}

/// Values in the precision that they do not have by themselves, and the operations so far.
struct Casts {
    of: BTreeMap<ValueId, ValueId>,
    body: Vec<OpId>,
}

impl Casts {
    /// A value in a precision; what is no matrix of floats is itself.
    fn value(
        &mut self,
        module: &mut Module,
        v: ValueId,
        element: Element,
        statistics: &mut Statistics,
    ) -> ValueId {
        let Some((own, rows, columns)) = module.ty(v).as_floats() else { return v };
        if own == element {
            return v;
        }
        if let Some(cast) = self.of.get(&v) {
            return *cast;
        }
        let (scope, ty) = (module.def(v).scope.clone(), Type::floats(element, rows, columns));
        let id = module.create(named("model.cast"), vec![v], Attrs::new(), &[ty], &scope);
        let cast = module.op(id).results[0];
        self.body.push(id);
        self.of.insert(v, cast);
        statistics.count("casts");
        cast
    }
}

/// Whether an operand is a list of numbers rather than an activation.
fn statistic(op: &OpData, operand: usize) -> bool {
    action(op).is_ok_and(|action| action.facts().lists.reads.contains(&operand))
}

/// The types of an operation's results where its activations are bf16; none if it has no such form.
fn form(module: &Module, op: &OpData) -> Option<Vec<Type>> {
    let round = |values: &[ValueId], lists: &[usize]| -> Option<Vec<OperandType>> {
        let one = |(i, v): (usize, &ValueId)| {
            Some(match module.ty(*v).shape()? {
                OperandType::Matrix { element: Element::Real, rows, columns } if !lists.contains(&i) => {
                    OperandType::Matrix { element: Element::Bf16, rows, columns }
                }
                other => other,
            })
        };
        values.iter().enumerate().map(one).collect()
    };
    if op.def.view.is_some() {
        return Some(round(&op.results, &[])?.into_iter().map(Type::from).collect());
    }
    let action = action(op).ok()?;
    let lists = action.facts().lists;
    let (reads, writes) = (round(&op.operands, lists.reads)?, round(&op.results, lists.writes)?);
    // What is of a model needs nothing of exchanges.
    let cx = Shapes {
        exchanges: &[],
        columns: &[],
        tables: module.decls_of("model.table").count(),
        microbatches: 1,
        batch: 1,
        groups: module.decls_of("model.lengths").count() as u32,
        inputs: module.decls_of("model.input").count() as u32,
        wire: WirePrecision::default(),
    };
    action.check(&reads, &writes, &cx).ok()?;
    Some(writes.into_iter().map(Type::from).collect())
}
