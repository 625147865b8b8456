//! The reference: what a step computes, written down before anything is said of ranks, microbatches and transfers.
//!
//! It is the differentiated step as it stands behind `differentiate`, so it is the same for every strategy; schedules
//! are proved against it ([`fs_schedule::reference`]). Splits become column ranges. Operations on tables get the names
//! that they have over rows, and a cosine softmax its normalisations, as `lower-exchanges` writes them.

use std::collections::BTreeMap;

use fs_schedule::Action;
use fs_schedule::reference::{Reference, Source, Term, Update, Value};
use fs_schedule::signature::OperandType;

use super::lower_exchanges::NORMALIZE_EPS;
use super::{PassError, Statistics};
use crate::dialect::action;
use crate::ir::attr::{boolean, float, int, typed};
use crate::ir::{Attr, AttrError, Module, OpData, OpError, Type, ValueId};

/// Leaves the reference in the module's attribute `reference`.
pub(super) fn run(module: &mut Module, statistics: &mut Statistics) -> Result<(), PassError> {
    let mut actions = Actions::default();
    let mut train = Graph::new(module, &mut actions);
    train.function("train")?;
    let (terms, updates) = (train.terms, train.updates);
    let evaluation = if module.func("evaluate").is_some() {
        let mut graph = Graph::new(module, &mut actions);
        graph.function("evaluate")?;
        Some(graph.terms)
    } else {
        None
    };
    for _ in &terms {
        statistics.count("terms");
    }
    let reference =
        Reference { actions: actions.list, train: terms, updates, evaluation, ..Reference::default() };
    module.attrs.insert("reference".into(), Attr::from(&reference));
    Ok(())
}

/// Each action once.
#[derive(Default)]
struct Actions {
    list: Vec<Action>,
    numbers: BTreeMap<String, u32>,
}

impl Actions {
    fn number(&mut self, action: Action) -> u32 {
        let next = self.list.len() as u32;
        // Texts of numbers tell any two apart.
        let number = *self.numbers.entry(Attr::from(&action).to_string()).or_insert(next);
        if number == next {
            self.list.push(action);
        }
        number
    }
}

/// The terms of one function.
struct Graph<'a> {
    module: &'a Module,
    actions: &'a mut Actions,
    values: BTreeMap<ValueId, Value>,
    terms: Vec<Term>,
    updates: Vec<Update>,
    /// Normalised operands of a cosine softmax, h and rows, by the scores' gradient that it keeps.
    normalised: BTreeMap<ValueId, (u32, u32)>,
}

impl<'a> Graph<'a> {
    fn new(module: &'a Module, actions: &'a mut Actions) -> Self {
        let mut values = BTreeMap::new();
        let mut numbers: BTreeMap<&str, u32> = BTreeMap::new();
        for op in module.decls.iter().map(|id| module.op(*id)) {
            let n = numbers.entry(op.def.name).or_insert(0);
            for r in &op.results {
                let source = match module.ty(*r) {
                    Type::Operand(OperandType::Table { .. }) => Source::Table(*n),
                    Type::Operand(OperandType::Parameter { .. }) => Source::Parameter(*n),
                    Type::Operand(OperandType::Offsets { .. }) => Source::Lengths(*n),
                    _ => Source::Input(*n),
                };
                values.insert(*r, Value::all(source));
            }
            *n += 1;
        }
        let (terms, updates, normalised) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { module, actions, values, terms, updates, normalised }
    }

    fn function(&mut self, name: &'static str) -> Result<(), PassError> {
        let module = self.module;
        let func = module.func(name).ok_or_else(|| PassError::missing(name))?;
        for op in func.body.iter().map(|id| module.op(*id)) {
            self.operation(op)?;
        }
        Ok(())
    }

    fn value(&self, v: ValueId) -> Result<Value, PassError> {
        self.values.get(&v).copied().ok_or_else(|| PassError::new("a value that no term gives"))
    }
    fn all(&self, list: &[ValueId]) -> Result<Vec<Value>, PassError> {
        list.iter().map(|v| self.value(*v)).collect()
    }

    /// Appends a term; its number.
    fn term(&mut self, action: Option<Action>, operands: Vec<Value>) -> u32 {
        let action = action.map(|a| self.actions.number(a));
        self.terms.push(Term { action, operands });
        self.terms.len() as u32 - 1
    }
    /// Appends the term that gives an operation's results.
    fn define(&mut self, op: &OpData, action: Option<Action>, operands: Vec<Value>) -> u32 {
        let term = self.term(action, operands);
        for (r, v) in (0..).zip(&op.results) {
            self.values.insert(*v, Value::all(Source::Term(term, r)));
        }
        term
    }

    fn operation(&mut self, op: &OpData) -> Result<(), PassError> {
        let wrong = |e: AttrError| PassError::of(op, e);
        match op.def.name {
            "train.load_batch" => {}
            "model.split" => {
                let of = self.value(op.operands[0])?;
                let mut at = of.columns.map_or(0, |(start, _)| start);
                for r in &op.results {
                    let columns = self.module.ty(*r).as_floats().map_or(0, |(_, _, c)| c);
                    let part = match of.source {
                        Source::Zero(_) => Value::all(Source::Zero(columns)),
                        source => Value { source, columns: Some((at, at + columns)) },
                    };
                    self.values.insert(*r, part);
                    at += columns;
                }
            }
            "train.zero" => {
                let columns = self.module.ty(op.results[0]).as_floats().map_or(0, |(_, _, c)| c);
                self.values.insert(op.results[0], Value::all(Source::Zero(columns)));
            }
            "model.concat" => {
                let operands = self.all(&op.operands)?;
                self.define(op, None, operands);
            }
            "model.lookup" => {
                let operands = self.all(&op.operands)?;
                self.define(op, Some(Action::Expand), operands);
            }
            "train.lookup_grad" => {
                let operands = self.all(&[op.operands[2], op.operands[1]])?;
                self.define(op, Some(Action::ExpandGrad), operands);
            }
            "model.pool" => {
                let mode = typed(&op.attrs, "mode").map_err(wrong)?;
                let operands = self.all(&op.operands)?;
                self.define(op, Some(Action::Pool { mode }), operands);
            }
            "train.pool_grad" => {
                let mode = typed(&op.attrs, "mode").map_err(wrong)?;
                let operands = self.all(&[op.operands[3], op.operands[1], op.operands[2]])?;
                self.define(op, Some(Action::PoolGrad { mode }), operands);
            }
            "model.sampled_softmax" => self.sampled_softmax(op)?,
            "train.sampled_softmax_grad" => self.sampled_softmax_grad(op)?,
            "train.apply" => {
                let (table, parts) =
                    op.operands.split_first().ok_or_else(|| PassError::of(op, OpError::Missing(0)))?;
                let update = Update { of: self.value(*table)?.source, parts: self.all(parts)? };
                self.updates.push(update);
            }
            "comm.all_reduce" => {
                for (sum, part) in op.results.iter().zip(&op.operands) {
                    let value = self.value(*part)?;
                    self.values.insert(*sum, value);
                }
            }
            "train.dense_update" => {
                let (gradients, parameters) = op.operands.split_at(op.operands.len() / 2);
                for (g, p) in gradients.iter().zip(parameters) {
                    let update = Update { of: self.value(*p)?.source, parts: vec![self.value(*g)?] };
                    self.updates.push(update);
                }
            }
            _ => {
                let operands = self.all(&op.operands)?;
                let action = action(op).map_err(|e| PassError::of(op, e))?;
                self.define(op, Some(action), operands);
            }
        }
        Ok(())
    }

    fn sampled_softmax(&mut self, op: &OpData) -> Result<(), PassError> {
        let wrong = |e: AttrError| PassError::of(op, e);
        let mut operands = self.all(&op.operands)?;
        let norm = boolean(&op.attrs, "cosine").map_err(wrong)?.then(|| {
            let eps = NORMALIZE_EPS;
            let mut normalize = |x: Value| self.term(Some(Action::L2Normalize { eps }), vec![x]);
            (normalize(operands[0]), normalize(operands[1]))
        });
        if let Some((h, rows)) = norm {
            (operands[0], operands[1]) = (Value::all(Source::Term(h, 0)), Value::all(Source::Term(rows, 0)));
        }
        let action = Action::SampledSoftmax {
            negatives: int(&op.attrs, "negatives").map_err(wrong)?,
            temperature: float(&op.attrs, "temperature").map_err(wrong)?,
            normalize: typed(&op.attrs, "normalize").map_err(wrong)?,
        };
        self.define(op, Some(action), operands);
        self.normalised.extend(norm.map(|n| (op.results[1], n)));
        Ok(())
    }

    fn sampled_softmax_grad(&mut self, op: &OpData) -> Result<(), PassError> {
        let mut operands = self.all(&op.operands)?;
        let norm = self.normalised.get(&op.operands[4]).copied();
        if let Some((h, rows)) = norm {
            (operands[0], operands[1]) = (Value::all(Source::Term(h, 0)), Value::all(Source::Term(rows, 0)));
        }
        let negatives = int(&op.attrs, "negatives").map_err(|e| PassError::of(op, e))?;
        let action = Action::SampledSoftmaxGrad { negatives };
        let grads = self.define(op, Some(action), operands);
        let Some((h, rows)) = norm else { return Ok(()) };
        for (r, of) in [(0, h), (1, rows)] {
            let result = |term, r| Value::all(Source::Term(term, r));
            let operands = vec![result(of, 0), result(of, 1), result(grads, r)];
            let back = self.term(Some(Action::L2NormalizeGrad { eps: NORMALIZE_EPS }), operands);
            self.values.insert(op.results[r as usize], result(back, 0));
        }
        Ok(())
    }
}
