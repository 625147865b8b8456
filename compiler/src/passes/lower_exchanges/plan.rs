//! What is to be exchanged: which ids of which tables, in how many parts, told apart or not.

use std::collections::{BTreeMap, BTreeSet};

use fs_schedule::op::{Element, Extent, Way};
use fs_schedule::reuse::Reuse;
use fs_schedule::signature::{Shape, counts, index, real};
use fs_schedule::{Exchange, Sharding, Symbol, Table};

use super::super::PassError;
use crate::dialect::named;
use crate::ir::attr::{attrs_of, typed};
use crate::ir::{
    Attr, Attrs, Module, OpData, OpId, Resource, Type, ValueId, exchanges, table_of as table_record,
};

/// What holds for all tables.
#[derive(Debug)]
pub(super) struct Choice {
    /// Each row once per rank, or once per occurrence.
    pub unique: bool,
    /// Reuse distances that are told apart.
    pub lookahead: Option<u32>,
    /// Microbatches of the training step.
    pub microbatches: u32,
    /// Tables whose entries stay unique whatever was asked for: a sampled softmax tells a negative that equals its
    /// target by their common entry.
    sampled: BTreeSet<ValueId>,
}

impl Choice {
    /// From a module, before options.
    pub(super) fn of(module: &Module) -> Self {
        let settings = typed::<fs_schedule::Settings>(&module.attrs, "settings");
        let ops = module.funcs.iter().flat_map(|f| &f.body).map(|id| module.op(*id));
        let sampled = ops.filter(|op| op.def.name == "model.sampled_softmax");
        Self {
            unique: true,
            lookahead: None,
            microbatches: settings.map_or(1, |s| s.microbatches),
            sampled: sampled.filter_map(|op| table_of(module, op)).collect(),
        }
    }
    /// Refuses what classes cannot number.
    pub(super) fn check(&self) -> Result<(), PassError> {
        let Some(lookahead) = self.lookahead else { return Ok(()) };
        let reuse = Reuse { lookahead, microbatches: self.microbatches };
        if lookahead == 0 {
            return Err(PassError::new(
                "option lookahead must be at least 1; leave it out to move rows together",
            ));
        }
        // Counting is quadratic in neither: bound both first.
        let many = lookahead as usize > Reuse::MOST || self.microbatches as usize > Reuse::MOST;
        if many || reuse.count(Way::Forward) > Reuse::MOST {
            return Err(PassError::new(format!(
                "lookahead {lookahead} with {} microbatches makes more than {} classes of rows",
                self.microbatches,
                Reuse::MOST
            )));
        }
        Ok(())
    }
}

/// Appends operations to a list.
pub(super) struct Emitter<'a> {
    pub module: &'a mut Module,
    pub body: Vec<OpId>,
    /// Of the operations to come.
    pub microbatch: Option<u32>,
}

impl Emitter<'_> {
    pub(super) fn emit(
        &mut self,
        name: &str,
        operands: Vec<ValueId>,
        attrs: Attrs,
        types: &[Type],
        scope: &str,
    ) -> Vec<ValueId> {
        let id = self.module.create(named(name), operands, attrs, types, scope);
        self.module.op_mut(id).microbatch = self.microbatch;
        self.body.push(id);
        self.module.op(id).results.clone()
    }
    /// Operands of other batches, for the operation appended last.
    pub(super) fn offsets(&mut self, offsets: Vec<i32>) {
        if let Some(id) = self.body.last().filter(|_| offsets.iter().any(|o| *o != 0)) {
            self.module.op_mut(*id).offsets = offsets;
        }
    }
    /// What the first result of the operation appended last is added into.
    pub(super) fn into(&mut self, base: Option<ValueId>) {
        if let (Some(id), Some(_)) = (self.body.last(), base) {
            self.module.op_mut(*id).into = vec![base];
        }
    }
}

/// The table that an operation works on, if it is one that this pass replaces.
pub(super) fn table_of(module: &Module, op: &OpData) -> Option<ValueId> {
    let is_table = |v: &ValueId| matches!(module.ty(*v), Type::Shape(Shape::Table { .. }));
    let replaced = op.dialect() != "comm" && !op.def.effects.writes(Resource::Evaluation);
    op.operands.iter().copied().find(|v| replaced && is_table(v))
}

/// Whether an operation hands sparse gradients to a table's optimizer.
pub(super) fn is_update(op: &OpData) -> bool {
    op.dialect() != "comm" && op.def.effects.writes(Resource::Table)
}

/// Operands of a table operation that are ids.
fn ids_operands(module: &Module, op: &OpData) -> Vec<ValueId> {
    let is_ids = |v: &ValueId| {
        matches!(module.ty(*v), Type::Shape(Shape::Ids { .. } | Shape::Matrix { element: Element::Id, .. }))
    };
    op.operands.iter().copied().filter(is_ids).collect()
}

/// The ids that a function uses.
#[derive(Debug, Default)]
pub(super) struct Sources {
    /// For each table and microbatch, in the order in which their gradients are summed.
    pub by_table: BTreeMap<ValueId, Vec<Vec<ValueId>>>,
    drawn: BTreeSet<ValueId>,
}

impl Sources {
    pub(super) fn find(module: &Module, body: &[OpId], rounds: u32) -> Result<Self, PassError> {
        let mut this = Self::default();
        let mut known: BTreeSet<(ValueId, u32, ValueId)> = BTreeSet::new();
        // Sequences whose gradients are summed first come first: owners sum occurrences in this order, so one row per
        // occurrence and sums per unique row give the same bits.
        let ops = || body.iter().map(|id| module.op(*id));
        let summed = ops().filter(|op| op.dialect() == "train" && !is_update(op));
        for op in summed.chain(ops()) {
            let Some(table) = table_of(module, op) else { continue };
            let round = op.microbatch.unwrap_or(0);
            if round >= rounds || (rounds > 1 && op.microbatch.is_none() && !is_update(op)) {
                return Err(PassError::new(format!(
                    "{} is not in one of {rounds} microbatches; run `microbatch` first",
                    op.def.name
                )));
            }
            for ids in ids_operands(module, op) {
                if known.insert((table, round, ids)) {
                    let list =
                        this.by_table.entry(table).or_insert_with(|| vec![Vec::new(); rounds as usize]);
                    list[round as usize].push(ids);
                    this.drawn.insert(ids);
                }
            }
        }
        Ok(this)
    }
    pub(super) fn is_empty(&self) -> bool {
        self.by_table.is_empty()
    }
    /// Ids come from the batch or are drawn without operands, so their operations can go first.
    pub(super) fn goes_first(&self, module: &Module, id: OpId) -> bool {
        let op = module.op(id);
        op.def.effects.writes(Resource::Batch) || op.results.iter().any(|r| self.drawn.contains(r))
    }
}

/// The sparse gradients that update each table, by microbatch, in the order in which they are summed.
pub(super) type Gradients = BTreeMap<ValueId, Vec<Vec<ValueId>>>;

/// Finds them at the updates.
pub(super) fn gradients(module: &Module, body: &[OpId], rounds: u32) -> Result<Gradients, PassError> {
    let mut gradients = Gradients::new();
    for op in body.iter().map(|id| module.op(*id)).filter(|op| is_update(op)) {
        let Some((table, parts)) = op.operands.split_first() else { continue };
        let mut by_round = vec![Vec::new(); rounds as usize];
        for part in parts {
            let round = module.def(*part).microbatch.unwrap_or(0);
            match by_round.get_mut(round as usize) {
                Some(list) => list.push(*part),
                None => return Err(PassError::new(format!("there is no microbatch {round}"))),
            }
        }
        if gradients.insert(*table, by_round).is_some() {
            return Err(PassError::new("a table is updated twice"));
        }
    }
    Ok(gradients)
}

/// Positions and counts of one class at one side.
#[derive(Debug, Clone, Copy)]
pub(super) struct Picked {
    pub positions: ValueId,
    pub counts: ValueId,
}

/// A class at both sides.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClassOf {
    pub owner: Picked,
    pub asker: Picked,
}

/// One exchange: of a table, or of a part of a column-wise table.
#[derive(Debug)]
pub(super) struct Part {
    pub exchange: u32,
    /// Columns that it moves.
    pub columns: u32,
    /// What the owner knows: rows of its shard, how many of whom, and when they are used.
    pub rows: ValueId,
    pub counts: ValueId,
    pub uses: Option<ValueId>,
    /// Data-parallel: rows of the rank's own entries.
    pub own: Option<ValueId>,
    /// Classes of lookups and gradients.
    pub lookups: Vec<ClassOf>,
    pub updates: Vec<ClassOf>,
    /// What has arrived so far.
    pub merged: Option<ValueId>,
}

/// What is known about one table while operations are replaced.
#[derive(Debug)]
pub(super) struct Lowering {
    pub table: ValueId,
    pub name: String,
    pub dim: u32,
    pub replicated: bool,
    /// How rows are told apart; `None`: they travel together.
    pub reuse: Option<Reuse>,
    pub parts: Vec<Part>,
    /// Ids of each microbatch.
    pub ids: Vec<Vec<ValueId>>,
    /// Of the rank that asks: what, how many of whom, when used.
    pub entries: ValueId,
    pub counts: ValueId,
    pub uses: Option<ValueId>,
    /// Position matrix of each ids value, by microbatch.
    pub inverse: BTreeMap<(u32, ValueId), ValueId>,
    /// The rows, as far as the current microbatch needs them.
    pub rows: ValueId,
    /// Sum of the gradients so far.
    pub sum: Option<ValueId>,
}

/// A value that is filled in by a later stage.
const NONE: ValueId = ValueId(u32::MAX);

impl Lowering {
    /// Declares the exchanges of a table; those of another function are used again.
    pub(super) fn declare(
        module: &mut Module,
        table: ValueId,
        ids: &[Vec<ValueId>],
        choice: &Choice,
        partitioned: bool,
        declared: &mut Declared,
    ) -> Result<Self, PassError> {
        let Type::Shape(Shape::Table { table: number, dim }) = module.ty(table) else {
            return Err(PassError::new("a table has another type"));
        };
        let record = table_record(module.def(table)).map_err(PassError::new)?;
        if let Some(Attr::Str(asked)) = module.def(table).attrs.get("sharding")
            && matches!(asked.as_str(), "auto" | "table_wise" | "column_wise")
        {
            return Err(PassError::new(format!(
                "the placement of table {} is not decided yet; run `plan-sharding` first",
                record.name
            )));
        }
        let replicated = record.sharding == Sharding::DataParallel;
        let told_apart = choice.lookahead;
        let unique = choice.unique || choice.sampled.contains(&table);
        let reuse = |lookahead| Reuse { lookahead, microbatches: choice.microbatches };
        Ok(Self {
            table,
            dim,
            replicated,
            reuse: told_apart.filter(|_| partitioned).map(reuse),
            parts: declared.parts(module, &record, number, unique, told_apart),
            name: record.name,
            ids: ids.to_vec(),
            entries: NONE,
            counts: NONE,
            uses: None,
            inverse: BTreeMap::new(),
            rows: NONE,
            sum: None,
        })
    }
    /// Whether entries carry the microbatches of their uses.
    pub(super) fn has_uses(&self) -> bool {
        self.reuse.is_some_and(|r| r.microbatches > 1)
    }
    /// Rows of this rank's entries, of all columns.
    pub(super) fn rows_type(&self) -> Type {
        real(self.sent(Way::Forward, None), self.dim).into()
    }
    /// Entries that this rank sends.
    pub(super) fn sent(&self, way: Way, class: Option<u32>) -> Extent {
        let e = self.parts.first().map_or(0, |p| p.exchange);
        Extent::Symbol(class.map_or(Symbol::Sent(e), |c| Symbol::SentClass(e, way, c)))
    }
}

impl Part {
    /// Entries that an owner receives.
    pub(super) fn received(&self, way: Way, class: Option<u32>) -> Extent {
        let e = self.exchange;
        Extent::Symbol(class.map_or(Symbol::Received(e), |c| Symbol::ReceivedClass(e, way, c)))
    }
    /// `{exchange = e}`, with more.
    pub(super) fn attrs(&self) -> Attrs {
        Attrs::from([("exchange".into(), Attr::Int(self.exchange.into()))])
    }
    /// `{exchanges = [e]}`.
    pub(super) fn grouped(&self) -> Attrs {
        Attrs::from([("exchanges".into(), Attr::List(vec![Attr::Int(self.exchange.into())]))])
    }
}

/// Attributes and a class.
pub(super) fn with_class(mut attrs: Attrs, class: Option<u32>) -> Attrs {
    attrs.extend(class.map(|c| ("class".into(), Attr::Int(c.into()))));
    attrs
}

/// Attributes and a direction.
pub(super) fn with_way(mut attrs: Attrs, way: Way) -> Attrs {
    attrs.insert("way".into(), Attr::from(&way));
    attrs
}

/// Positions and counts of one class.
pub(super) fn picked_types(extent: Extent) -> [Type; 2] {
    [index(extent, 1).into(), counts().into()]
}

/// The exchanges that a module declares, by table, part, uniqueness and lookahead.
#[derive(Debug)]
pub(super) struct Declared(BTreeMap<(u32, u32, bool, Option<u32>), u32>);

impl Declared {
    pub(super) fn of(module: &Module) -> Self {
        let key = |(i, e): (usize, Exchange)| ((e.table, e.part, e.unique, e.lookahead), i as u32);
        Self(exchanges(module).into_iter().enumerate().map(key).collect())
    }

    /// Those of all parts of a table; functions share them.
    fn parts(
        &mut self,
        module: &mut Module,
        table: &Table,
        number: u32,
        unique: bool,
        lookahead: Option<u32>,
    ) -> Vec<Part> {
        let mut entries = None;
        let mut parts = Vec::new();
        for part in 0..table.sharding.parts() {
            let next = self.0.len() as u32;
            let exchange = *self.0.entry((number, part, unique, lookahead)).or_insert(next);
            let entries = *entries.get_or_insert(exchange);
            if exchange == next {
                let record = Exchange { table: number, part, entries, unique, lookahead };
                let decl = module.create(named("comm.exchange"), vec![], attrs_of(&record), &[], "");
                module.decls.push(decl);
            }
            let (start, end) = table.part_columns(part);
            parts.push(Part {
                exchange,
                columns: end - start,
                rows: NONE,
                counts: NONE,
                uses: None,
                own: None,
                lookups: Vec::new(),
                updates: Vec::new(),
                merged: None,
            });
        }
        parts
    }
}
