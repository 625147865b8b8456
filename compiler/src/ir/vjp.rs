//! What vector-Jacobian rules work with: cotangents of values, and a list that derivatives are appended to.

use std::collections::{BTreeMap, BTreeSet};

use fs_schedule::signature::OperandType;

use super::{Attrs, Module, OpData, OpDef, OpError, OpId, Type, ValueId};

/// A function that is being differentiated.
#[derive(Debug)]
pub(crate) struct Vjp<'a> {
    module: &'a mut Module,
    body: Vec<OpId>,
    cotangents: BTreeMap<ValueId, Vec<ValueId>>,
    needed: BTreeSet<ValueId>,
    named: fn(&str) -> &'static OpDef,
}

impl<'a> Vjp<'a> {
    /// Derivatives go behind `body`, of the values that are `needed`; operations are found by `named`.
    pub(crate) fn new(
        module: &'a mut Module,
        body: Vec<OpId>,
        needed: BTreeSet<ValueId>,
        named: fn(&str) -> &'static OpDef,
    ) -> Self {
        Self { module, body, cotangents: BTreeMap::new(), needed, named }
    }
    /// The list with all that was appended.
    pub(crate) fn into_body(self) -> Vec<OpId> {
        self.body
    }
    /// The module, to look at.
    pub(crate) fn module(&self) -> &Module {
        self.module
    }
    /// An operation of the forward function.
    pub(crate) fn op(&self, id: OpId) -> &OpData {
        self.module.op(id)
    }
    /// True if the loss depends on a trained value through this one.
    pub(crate) fn needs(&self, v: ValueId) -> bool {
        self.needed.contains(&v)
    }
    /// What users of a value contributed so far, in this order.
    pub(crate) fn contributions(&self, v: ValueId) -> &[ValueId] {
        self.cotangents.get(&v).map_or(&[], Vec::as_slice)
    }
    /// The sum of what users of a value contributed; `None` if nothing did.
    pub(crate) fn cotangent(&mut self, v: ValueId) -> Option<ValueId> {
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
    pub(crate) fn contribute(&mut self, v: ValueId, cotangent: ValueId) {
        if self.needs(v) {
            self.cotangents.entry(v).or_default().push(cotangent);
        }
    }
    /// Appends an operation.
    pub(crate) fn emit(
        &mut self,
        name: &str,
        operands: Vec<ValueId>,
        attrs: Attrs,
        types: &[Type],
        scope: &str,
    ) -> Vec<ValueId> {
        let id = self.module.create((self.named)(name), operands, attrs, types, scope);
        self.body.push(id);
        self.module.op(id).results.clone()
    }
    /// Appends the gradient of an operation with one differentiable operand, with the same attributes.
    pub(crate) fn emit_unary(
        &mut self,
        name: &str,
        operands: Vec<ValueId>,
        op: &OpData,
    ) -> Result<(), OpError> {
        let x = *op.operands.first().ok_or(OpError::Missing(0))?;
        let ty = self.module.ty(x);
        let grads = self.emit(name, operands, op.attrs.clone(), &[ty], &op.scope);
        self.contribute(x, grads[0]);
        Ok(())
    }
    /// The type of a parameter's gradient.
    pub(crate) fn gradient_type(&self, param: ValueId) -> Result<Type, OpError> {
        match self.module.ty(param) {
            Type::Operand(OperandType::Parameter { rows, columns }) => {
                Ok(OperandType::Gradient { rows, columns }.into())
            }
            other => Err(OpError::relation(format!("{other} is not a parameter"))),
        }
    }
}
