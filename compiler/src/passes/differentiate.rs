//! Reverse-mode differentiation: `@forward` becomes `@train`, the whole training step.
//!
//! The operations of the forward function are walked backwards; each one's vector-Jacobian rule turns the
//! cotangents of its results into cotangents of its operands. A value used several times sums its cotangents in
//! the order in which they arise. What arrives at parameters and tables goes to the optimizers.

use std::collections::{BTreeMap, BTreeSet};

use fs_schedule::signature::Shape;

use super::{PassError, Statistics};
use crate::dialect::named;
use crate::ir::{Attrs, Func, Module, OpData, OpId, Type, ValueId};

/// What vector-Jacobian rules work with.
#[derive(Debug)]
pub struct Vjp<'a> {
    module: &'a mut Module,
    body: Vec<OpId>,
    cotangents: BTreeMap<ValueId, Vec<ValueId>>,
    needed: BTreeSet<ValueId>,
}

impl Vjp<'_> {
    /// The module, to look at.
    pub fn module(&self) -> &Module {
        self.module
    }
    /// An operation of the forward function.
    pub fn op(&self, id: OpId) -> &OpData {
        self.module.op(id)
    }
    /// True if the loss depends on a trained value through this one.
    pub fn needs(&self, v: ValueId) -> bool {
        self.needed.contains(&v)
    }
    /// The sum of what users of a value contributed; `None` if nothing did.
    pub fn cotangent(&mut self, v: ValueId) -> Option<ValueId> {
        let parts = self.cotangents.get(&v)?.clone();
        if parts.len() == 1 {
            return parts.first().copied();
        }
        let ty = self.module.ty(v);
        let scope = self.module.def(v).scope.clone();
        let sum = self.emit("model.add", parts, Attrs::new(), &[ty], &scope)[0];
        self.cotangents.insert(v, vec![sum]);
        Some(sum)
    }
    /// Adds to a value's cotangent, if it needs one.
    pub fn contribute(&mut self, v: ValueId, cotangent: ValueId) {
        if self.needs(v) {
            self.cotangents.entry(v).or_default().push(cotangent);
        }
    }
    /// Appends an operation.
    pub fn emit(
        &mut self,
        name: &str,
        operands: Vec<ValueId>,
        attrs: Attrs,
        types: &[Type],
        scope: &str,
    ) -> Vec<ValueId> {
        let id = self.module.create(named(name), operands, attrs, types, scope);
        self.body.push(id);
        self.module.op(id).results.clone()
    }
    /// Appends the gradient of an operation with one differentiable operand, with the same attributes.
    pub fn emit_unary(&mut self, name: &str, operands: Vec<ValueId>, op: &OpData) -> Result<(), String> {
        let x = *op.operands.first().ok_or("needs an operand")?;
        let ty = self.module.ty(x);
        let grads = self.emit(name, operands, op.attrs.clone(), &[ty], &op.scope);
        self.contribute(x, grads[0]);
        Ok(())
    }
    /// The type of a parameter's gradient.
    pub fn gradient_type(&self, param: ValueId) -> Result<Type, String> {
        match self.module.ty(param) {
            Type::Shape(Shape::Parameter { rows, columns }) => Ok(Shape::Gradient { rows, columns }.into()),
            other => Err(format!("{other} is not a parameter")),
        }
    }
}

/// Makes `@train` of `@forward`.
pub(super) fn run(module: &mut Module, statistics: &mut Statistics) -> Result<(), PassError> {
    let forward = module.func("forward").ok_or_else(|| PassError::missing("forward"))?.body.clone();
    let needed = trained_values(module, &forward);
    let loss = *forward.last().ok_or_else(|| PassError::new("`@forward` is empty"))?;
    let frame = module.create(named("train.load_batch"), vec![], Attrs::new(), &[], "");
    let mut body = vec![frame];
    body.extend(&forward);
    let mut cx = Vjp { module, body, cotangents: BTreeMap::new(), needed };
    for id in forward.iter().rev() {
        let op = cx.op(*id);
        let reached = *id == loss || op.results.iter().any(|r| cx.cotangents.contains_key(r));
        if !reached {
            continue;
        }
        let (name, rule) = (op.def.name, op.def.vjp);
        if let Some(rule) = rule {
            rule(&mut cx, *id).map_err(|e| PassError::new(format!("derivative of {name}: {e}")))?;
            statistics.count("derivatives");
        } else if op.operands.iter().any(|v| cx.needs(*v)) {
            return Err(PassError::new(format!("{name} has no derivative")));
        }
    }
    finish(&mut cx)?;
    let body = cx.body;
    // The step holds the forward operations from here on.
    module.funcs.retain(|f| f.name != "forward");
    module.funcs.push(Func { name: "train".into(), body });
    Ok(())
}

/// Hands the cotangents of tables and parameters to the optimizers.
fn finish(cx: &mut Vjp<'_>) -> Result<(), PassError> {
    let decls: Vec<ValueId> = cx.module.decls.iter().flat_map(|d| cx.module.op(*d).results.clone()).collect();
    for v in &decls {
        if matches!(cx.module.ty(*v), Type::Shape(Shape::Table { .. }))
            && let Some(parts) = cx.cotangents.get(v).cloned()
        {
            let operands = std::iter::once(*v).chain(parts).collect();
            cx.emit("train.apply", operands, Attrs::new(), &[], "");
        }
    }
    let (mut gradients, mut params) = (Vec::new(), Vec::new());
    for v in &decls {
        if !matches!(cx.module.ty(*v), Type::Shape(Shape::Parameter { .. })) {
            continue;
        }
        match cx.cotangents.get(v).map(Vec::as_slice) {
            None => {}
            Some([one]) => {
                gradients.push(*one);
                params.push(*v);
            }
            Some(_) => return Err(PassError::new("a parameter is used by two layers")),
        }
    }
    if !gradients.is_empty() {
        let types: Vec<Type> = gradients.iter().map(|g| cx.module.ty(*g)).collect();
        let reduced = cx.emit("comm.all_reduce", gradients, Attrs::new(), &types, "");
        let operands = reduced.into_iter().chain(params).collect();
        cx.emit("train.dense_update", operands, Attrs::new(), &[], "");
    }
    Ok(())
}

/// Values through which the loss depends on something that is trained.
fn trained_values(module: &Module, body: &[OpId]) -> BTreeSet<ValueId> {
    let mut needed = BTreeSet::new();
    for id in &module.decls {
        let op = module.op(*id);
        if matches!(op.def.name, "model.table" | "model.param") {
            needed.extend(&op.results);
        }
    }
    for id in body {
        let op = module.op(*id);
        if op.operands.iter().any(|v| needed.contains(v)) {
            needed.extend(&op.results);
        }
    }
    needed
}
