//! Modules, functions, operations and values.

use std::collections::BTreeMap;

use super::{Attrs, OpDef, Type};

/// A value of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub u32);

/// An operation of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u32);

/// What defines a value, and its type.
#[derive(Debug, Clone)]
pub struct ValueData {
    /// Its type.
    pub ty: Type,
    /// The operation whose result it is.
    pub def: OpId,
    /// Which result.
    pub result: u32,
}

/// An operation.
#[derive(Debug, Clone)]
pub struct OpData {
    /// Which operation.
    pub def: &'static OpDef,
    /// Operands.
    pub operands: Vec<ValueId>,
    /// Of which batch each operand is, relative to the operation's own; empty: all of its own.
    pub offsets: Vec<i32>,
    /// Results.
    pub results: Vec<ValueId>,
    /// For each result the value that it is added into, whose storage it takes over; empty: none.
    pub into: Vec<Option<ValueId>>,
    /// Constants.
    pub attrs: Attrs,
    /// Where it comes from: the scope path of the model's source, and the layer's name.
    pub scope: String,
    /// The microbatch that it works on; `None`: the whole batch.
    pub microbatch: Option<u32>,
    /// When and where it runs, once that is decided.
    pub placement: Option<Placement>,
}

/// When and where a scheduled operation runs: the `sched` level. Functions whose operations have placements list them
/// in issue order; a batch executes them in falling order of stage.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// What executes it.
    pub engine: fs_schedule::Engine,
    /// In step n it works on batch n + stage.
    pub stage: i32,
    /// Greater goes first.
    pub priority: i32,
    /// Bytes after which a transfer lets an urgent one pass.
    pub chunk: Option<u64>,
    /// Planned start within the step, in nanoseconds.
    pub start: u64,
    /// Planned duration, in nanoseconds.
    pub time: u64,
    /// Why it stands here.
    pub reason: String,
}

impl OpData {
    /// Operands and accumulated-into values: everything that it reads.
    pub fn uses(&self) -> impl Iterator<Item = ValueId> {
        self.operands.iter().copied().chain(self.into.iter().flatten().copied())
    }
    /// Of which batch operand `i` is, relative to the operation's own.
    pub fn offset(&self, i: usize) -> i32 {
        self.offsets.get(i).copied().unwrap_or(0)
    }
    /// The dialect's name, before the dot.
    pub fn dialect(&self) -> &'static str {
        self.def.name.split('.').next().unwrap_or_default()
    }
}

/// A list of operations.
#[derive(Debug, Clone)]
pub struct Func {
    /// Its name: `forward`, `train`, `evaluate`.
    pub name: String,
    /// Operations in order.
    pub body: Vec<OpId>,
}

/// A module: what one `.fs` file becomes.
#[derive(Debug, Clone, Default)]
pub struct Module {
    /// Name of the model.
    pub name: String,
    /// Settings, data source and the like, in the schedule's own vocabulary.
    pub attrs: Attrs,
    /// Declarations in order.
    pub decls: Vec<OpId>,
    /// Functions.
    pub funcs: Vec<Func>,
    ops: Vec<OpData>,
    values: Vec<ValueData>,
}

impl Module {
    /// An empty module.
    pub fn named(name: &str) -> Self {
        Self { name: name.into(), ..Self::default() }
    }
    /// The operation behind an id.
    pub fn op(&self, id: OpId) -> &OpData {
        &self.ops[id.0 as usize]
    }
    /// Likewise, to change it.
    pub fn op_mut(&mut self, id: OpId) -> &mut OpData {
        &mut self.ops[id.0 as usize]
    }
    /// The value behind an id.
    pub fn value(&self, id: ValueId) -> &ValueData {
        &self.values[id.0 as usize]
    }
    /// A value's type.
    pub fn ty(&self, id: ValueId) -> Type {
        self.value(id).ty
    }
    /// The operation that defines a value.
    pub fn def(&self, id: ValueId) -> &OpData {
        self.op(self.value(id).def)
    }
    /// Number of values ever made; ids are below it.
    pub fn value_count(&self) -> usize {
        self.values.len()
    }
    /// The function of a name.
    pub fn func(&self, name: &str) -> Option<&Func> {
        self.funcs.iter().find(|f| f.name == name)
    }
    /// Likewise, to change it.
    pub fn func_mut(&mut self, name: &str) -> Option<&mut Func> {
        self.funcs.iter_mut().find(|f| f.name == name)
    }
    /// Makes an operation with results of the given types; the caller puts it into a list.
    pub fn create(
        &mut self,
        def: &'static OpDef,
        operands: Vec<ValueId>,
        attrs: Attrs,
        types: &[Type],
        scope: &str,
    ) -> OpId {
        let id = OpId(self.ops.len() as u32);
        let first = self.values.len() as u32;
        self.values.extend(types.iter().enumerate().map(|(i, ty)| ValueData {
            ty: *ty,
            def: id,
            result: i as u32,
        }));
        let results = (first..self.values.len() as u32).map(ValueId).collect();
        self.ops.push(OpData {
            def,
            operands,
            offsets: Vec::new(),
            results,
            into: Vec::new(),
            attrs,
            scope: scope.into(),
            microbatch: None,
            placement: None,
        });
        id
    }
    /// Makes an operation without results define values that another one defined before.
    pub(crate) fn adopt(&mut self, id: OpId, results: Vec<ValueId>) {
        for (i, v) in results.iter().enumerate() {
            let data = &mut self.values[v.0 as usize];
            (data.def, data.result) = (id, i as u32);
        }
        self.ops[id.0 as usize].results = results;
    }
    /// Declarations of one kind, in order.
    pub fn decls_of(&self, name: &str) -> impl Iterator<Item = &OpData> {
        self.decls.iter().map(|id| self.op(*id)).filter(move |op| op.def.name == name)
    }
    /// How often each value is used by the operations of a list.
    pub fn use_counts(&self, body: &[OpId]) -> BTreeMap<ValueId, usize> {
        let mut counts = BTreeMap::new();
        for v in body.iter().flat_map(|id| self.op(*id).uses()) {
            *counts.entry(v).or_insert(0) += 1;
        }
        counts
    }
    /// Replaces uses of values in the operations of a list.
    pub fn replace_uses(&mut self, body: &[OpId], map: &BTreeMap<ValueId, ValueId>) {
        let resolve = |v: &mut ValueId| {
            while let Some(n) = map.get(v) {
                *v = *n;
            }
        };
        for id in body {
            let op = &mut self.ops[id.0 as usize];
            op.operands.iter_mut().for_each(resolve);
            op.into.iter_mut().flatten().for_each(resolve);
        }
    }
}
