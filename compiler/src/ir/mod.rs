//! The intermediate representation: operations with typed SSA values in arenas.
//!
//! A [`Module`] holds declarations (tables, inputs, parameters) and functions; a function is a flat list of
//! operations over values of the module. Everything is an index into an arena, so passes copy ids, not trees.
//! What can be said of an operation is its [`OpDef`]; which operations exist is the dialects' business
//! (`crate::dialect`), which this module does not know: who reads text or differentiates brings them along.
//! Operations, their definitions and modules know each other, and so stand here together.
//! The textual form ([`mod@print`], [`parse`]) round-trips.

pub(crate) mod attr;
mod context;
mod effects;
mod error;
pub mod parse;
pub mod print;
mod types;
pub mod verify;
mod vjp;

use std::collections::BTreeMap;

use fs_schedule::Site;

pub use attr::{Attr, AttrError, Attrs};
pub(crate) use context::{Context, exchanges, table_of};
pub use effects::{Effects, Resource};
pub use error::OpError;
pub use types::Type;
pub(crate) use vjp::Vjp;

/// The definition of an operation.
#[derive(Debug)]
pub struct OpDef {
    /// Dialect and name: `model.linear`.
    pub name: &'static str,
    /// One line of documentation: `operands -> results`, and what is computed.
    pub summary: &'static str,
    /// Checks attributes, operands and result types.
    pub(crate) verify: fn(&Context<'_>, &OpData) -> Result<(), OpError>,
    /// How cotangents of the results become cotangents of the operands; `None`: it has no derivative (or needs none).
    pub(crate) vjp: Option<VjpRule>,
    /// Results that can be added into a value instead of written to fresh storage.
    pub accumulates: &'static [usize],
    /// What it reads and writes beside its values.
    pub effects: Effects,
    /// What it declares, if it stands before functions.
    pub(crate) declares: Option<Declares>,
    /// Set if it moves nothing where storage allows.
    pub(crate) view: Option<View>,
    /// Which operands it writes where they stand.
    pub(crate) updates: Updates,
    /// In evaluation it is its first operand.
    pub only_trains: bool,
    /// Where its operands and results are.
    pub(crate) sites: Sites,
}

/// Where the samples are whose values an operation takes and gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sites {
    /// All where it works.
    Own,
    /// The first operand is of home, the others are of one site, results of another.
    Between(Site, Site),
    /// Operands are of any site, and for each the result at its place from the end is of its site.
    Listed,
}

/// A vector-Jacobian rule.
pub(crate) type VjpRule = fn(&mut Vjp<'_>, OpId) -> Result<(), OpError>;

/// Kinds of declarations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Declares {
    /// An embedding table.
    Table,
    /// A group of sequences that share lengths.
    Lengths,
    /// What a sample holds.
    Input,
    /// A dense parameter.
    Parameter,
    /// Who asks whom for which rows.
    Exchange,
}

/// Ranges of columns instead of copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    /// Its results are ranges of its operand.
    Split,
    /// Its operands are ranges of its result.
    Concat,
}

/// Operands that are written, of operations that have places for results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Updates {
    /// None: results are values of their own.
    Nothing,
    /// The last one (a table).
    Last,
    /// All, which are read too; results name what then stands there (sums of gradients).
    All,
    /// The second half (parameters, behind their gradients).
    SecondHalf,
}

impl Updates {
    /// How many of `operands` are read only.
    pub(crate) const fn reads(self, operands: usize) -> usize {
        match self {
            Self::Nothing | Self::All => operands,
            Self::Last => operands.saturating_sub(1),
            Self::SecondHalf => operands / 2,
        }
    }
}

impl OpDef {
    /// A pure operation without derivative, free of arithmetic.
    pub(crate) const fn new(
        name: &'static str,
        summary: &'static str,
        verify: fn(&Context<'_>, &OpData) -> Result<(), OpError>,
    ) -> Self {
        Self {
            name,
            summary,
            verify,
            vjp: None,
            accumulates: &[],
            effects: Effects::PURE,
            declares: None,
            view: None,
            updates: Updates::Nothing,
            only_trains: false,
            sites: Sites::Own,
        }
    }
    /// With a derivative.
    #[must_use]
    pub(crate) const fn with_vjp(mut self, vjp: VjpRule) -> Self {
        self.vjp = Some(vjp);
        self
    }
    /// With rules of its own.
    #[must_use]
    pub(crate) const fn with_verify(
        mut self,
        verify: fn(&Context<'_>, &OpData) -> Result<(), OpError>,
    ) -> Self {
        self.verify = verify;
        self
    }
    /// Some results can be added into a value.
    #[must_use]
    pub(crate) const fn accumulating(mut self, results: &'static [usize]) -> Self {
        self.accumulates = results;
        self
    }
    /// Reads something beside its operands.
    #[must_use]
    pub(crate) const fn reading(mut self, what: Resource) -> Self {
        self.effects = self.effects.reading(what);
        self
    }
    /// Writes something beside its results.
    #[must_use]
    pub(crate) const fn writing(mut self, what: Resource) -> Self {
        self.effects = self.effects.writing(what);
        self
    }
    /// Is a declaration.
    #[must_use]
    pub(crate) const fn declaring(mut self, what: Declares) -> Self {
        self.declares = Some(what);
        self
    }
    /// Is a view of storage.
    #[must_use]
    pub(crate) const fn viewing(mut self, view: View) -> Self {
        self.view = Some(view);
        self
    }
    /// Writes operands where they stand.
    #[must_use]
    pub(crate) const fn updating(mut self, updates: Updates) -> Self {
        self.updates = updates;
        self
    }
    /// Takes operands of other sites than its own, or gives results there.
    #[must_use]
    pub(crate) const fn placing(mut self, sites: Sites) -> Self {
        self.sites = sites;
        self
    }
    /// Does nothing in evaluation.
    #[must_use]
    pub(crate) const fn only_training(mut self) -> Self {
        self.only_trains = true;
        self
    }
}

/// A value of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub u32);

/// An operation of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u32);

/// What defines a value, and its type.
#[derive(Debug, Clone)]
pub(crate) struct ValueData {
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
    /// Where the samples are that it works on, and those of its results.
    pub site: Site,
    /// Collectives of one function with the same number are to travel as one.
    pub group: Option<u32>,
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
    /// One launch starts it and the one before.
    #[serde(default, skip_serializing_if = "is_false")]
    pub joined: bool,
    /// Planned start within the step, in nanoseconds.
    pub start: u64,
    /// Planned nanoseconds that it occupies its engine.
    pub time: u64,
    /// Planned nanoseconds after that until what waits for it may start.
    #[serde(default, skip_serializing_if = "is_no_time")]
    pub lag: u64,
    /// Why it stands here.
    pub reason: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_no_time(n: &u64) -> bool {
    *n == 0
}

impl OpData {
    /// Operands and accumulated-into values: everything that it reads.
    pub(crate) fn uses(&self) -> impl Iterator<Item = ValueId> {
        self.operands.iter().copied().chain(self.into.iter().flatten().copied())
    }
    /// Of which batch operand `i` is, relative to the operation's own.
    pub(crate) fn offset(&self, i: usize) -> i32 {
        self.offsets.get(i).copied().unwrap_or(0)
    }
    /// The dialect's name, before the dot.
    pub(crate) fn dialect(&self) -> &'static str {
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
    pub(crate) fn named(name: &str) -> Self {
        Self { name: name.into(), ..Self::default() }
    }
    /// The operation behind an id.
    pub fn op(&self, id: OpId) -> &OpData {
        &self.ops[id.0 as usize]
    }
    /// Likewise, to change it.
    pub(crate) fn op_mut(&mut self, id: OpId) -> &mut OpData {
        &mut self.ops[id.0 as usize]
    }
    /// The value behind an id.
    pub(crate) fn value(&self, id: ValueId) -> &ValueData {
        &self.values[id.0 as usize]
    }
    /// A value's type.
    pub(crate) fn ty(&self, id: ValueId) -> Type {
        self.value(id).ty
    }
    /// Gives a value another type; who uses it must have a form for that.
    pub(crate) fn set_type(&mut self, id: ValueId, ty: Type) {
        self.values[id.0 as usize].ty = ty;
    }
    /// The operation that defines a value.
    pub(crate) fn def(&self, id: ValueId) -> &OpData {
        self.op(self.value(id).def)
    }
    /// Where the samples are that a value is of; home for what is of none: declarations, rows on their way.
    pub(crate) fn site(&self, id: ValueId) -> Site {
        let (value, def) = (self.value(id), self.def(id));
        let of_samples = match value.ty {
            Type::Operand(fs_schedule::OperandType::Matrix { rows, .. }) => rows.of_samples(),
            Type::Operand(_) | Type::Sparse { .. } => true,
        };
        if !of_samples || def.def.declares.is_some() {
            return Site::Home;
        }
        match def.def.sites {
            Sites::Own => def.site,
            Sites::Between(_, to) => to,
            Sites::Listed => {
                let extra = def.results.len().saturating_sub(def.operands.len());
                let of = (value.result as usize).checked_sub(extra).and_then(|i| def.operands.get(i));
                match of.filter(|v| self.def(**v).def.declares.is_none()) {
                    Some(v) => self.site(*v),
                    None => def.site,
                }
            }
        }
    }
    /// Number of values ever made; ids are below it.
    pub(crate) fn value_count(&self) -> usize {
        self.values.len()
    }
    /// The function of a name.
    pub fn func(&self, name: &str) -> Option<&Func> {
        self.funcs.iter().find(|f| f.name == name)
    }
    /// Likewise, to change it.
    pub(crate) fn func_mut(&mut self, name: &str) -> Option<&mut Func> {
        self.funcs.iter_mut().find(|f| f.name == name)
    }
    /// Makes an operation with results of the given types; the caller puts it into a list.
    pub(crate) fn create(
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
            site: Site::Home,
            group: None,
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
    pub(crate) fn decls_of(&self, name: &str) -> impl Iterator<Item = &OpData> {
        self.decls.iter().map(|id| self.op(*id)).filter(move |op| op.def.name == name)
    }
    /// How often each value is used by the operations of a list.
    pub(crate) fn use_counts(&self, body: &[OpId]) -> BTreeMap<ValueId, usize> {
        let mut counts = BTreeMap::new();
        for v in body.iter().flat_map(|id| self.op(*id).uses()) {
            *counts.entry(v).or_insert(0) += 1;
        }
        counts
    }
    /// Adds to the reason why operations of a name stand where they do.
    pub(crate) fn say_of(&mut self, name: &str, said: &str) {
        let of_name = self.ops.iter_mut().filter(|op| op.def.name == name);
        for placement in of_name.filter_map(|op| op.placement.as_mut()) {
            placement.reason = format!("{}; {said}", placement.reason);
        }
    }
    /// Replaces uses of values in the operations of a list.
    pub(crate) fn replace_uses(&mut self, body: &[OpId], map: &BTreeMap<ValueId, ValueId>) {
        let mut ends: BTreeMap<ValueId, ValueId> = BTreeMap::new();
        let mut resolve = |v: &mut ValueId| {
            let mut path = Vec::new();
            while let Some(next) = ends.get(v).or_else(|| map.get(v)) {
                path.push(*v);
                *v = *next;
            }
            // Chains are walked once.
            ends.extend(path.into_iter().map(|from| (from, *v)));
        };
        for id in body {
            let op = &mut self.ops[id.0 as usize];
            op.operands.iter_mut().for_each(&mut resolve);
            op.into.iter_mut().flatten().for_each(&mut resolve);
        }
    }
}
