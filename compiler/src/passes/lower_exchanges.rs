//! From tables to exchanges, row-wise sharded.
//!
//! In each function and for each table, all ids that its operations use form one exchange: unique entries are asked
//! for at their owners (`all_to_all_ids`), looked up there (`gather`), sent back (`all_to_all_rows`) and expanded
//! where they are used. Row gradients are summed per entry, sent to the owners and applied. So a row used by several
//! sequences of one table travels once.

use std::collections::{BTreeMap, BTreeSet};

use fs_schedule::op::{Element, Extent};
use fs_schedule::signature::{Shape, counts, id as id_matrix, index, real};
use fs_schedule::{Exchange, Symbol};

use super::{Options, PassError, Statistics};
use crate::dialect::{exchanges, named};
use crate::ir::attr::{attrs_of, boolean, int};
use crate::ir::{Attr, Attrs, Module, OpData, OpId, Type, ValueId};

/// l2 normalisation's lower bound of the divisor, PyTorch's default.
const NORMALIZE_EPS: f64 = 1e-12;

/// Replaces table operations in all functions.
pub(super) fn run(
    module: &mut Module,
    options: &Options,
    statistics: &mut Statistics,
) -> Result<(), PassError> {
    let unique = match options.get("unique").map_or("true", String::as_str) {
        "true" => true,
        "false" => false,
        other => return Err(PassError::new(format!("option unique must be true or false, is `{other}`"))),
    };
    for f in 0..module.funcs.len() {
        lower_function(module, f, unique, statistics)?;
    }
    Ok(())
}

/// What is known about one table's exchange while operations are replaced.
struct Lowering {
    table: ValueId,
    name: String,
    exchange: u32,
    dim: u32,
    counts: ValueId,
    received_rows: ValueId,
    received_counts: ValueId,
    rows: ValueId,
    /// Position matrix of each ids value.
    inverse: BTreeMap<ValueId, ValueId>,
    /// Normalised rows and their norms, by the scores' gradient that the forward operation keeps.
    normalised: BTreeMap<ValueId, Normalised>,
    /// What replaces a sparse gradient: rows of the exchange.
    sparse: BTreeMap<ValueId, ValueId>,
}

/// Results of the normalisations in front of a cosine softmax.
#[derive(Clone, Copy)]
struct Normalised {
    h: (ValueId, ValueId),
    rows: (ValueId, ValueId),
}

/// Appends operations to a list.
struct Emitter<'a> {
    module: &'a mut Module,
    body: Vec<OpId>,
}

impl Emitter<'_> {
    fn emit(
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
}

/// The table that an operation works on, if it is one that this pass replaces.
fn table_of(module: &Module, op: &OpData) -> Option<ValueId> {
    let is_table = |v: &ValueId| matches!(module.ty(*v), Type::Shape(Shape::Table { .. }));
    let replaced = op.dialect() != "comm" && op.def.name != "model.rank_items";
    op.operands.iter().copied().find(|v| replaced && is_table(v))
}

/// Operands of a table operation that are ids.
fn ids_operands(module: &Module, op: &OpData) -> Vec<ValueId> {
    let is_ids = |v: &ValueId| {
        matches!(module.ty(*v), Type::Shape(Shape::Ids { .. } | Shape::Matrix { element: Element::Id, .. }))
    };
    op.operands.iter().copied().filter(is_ids).collect()
}

fn lower_function(
    module: &mut Module,
    f: usize,
    unique: bool,
    statistics: &mut Statistics,
) -> Result<(), PassError> {
    let body = module.funcs[f].body.clone();
    // Ids of each table in the order of their first use.
    let mut sources: BTreeMap<ValueId, Vec<ValueId>> = BTreeMap::new();
    for op in body.iter().map(|id| module.op(*id)) {
        let Some(table) = table_of(module, op) else { continue };
        let list = sources.entry(table).or_default();
        for ids in ids_operands(module, op) {
            if !list.contains(&ids) {
                list.push(ids);
            }
        }
    }
    // Ids come from the batch or are drawn without operands, so their operations can go first.
    let drawn: BTreeSet<ValueId> = sources.values().flatten().copied().collect();
    let first = |m: &Module, id: OpId| {
        let op = m.op(id);
        op.def.name == "train.load_batch" || op.results.iter().any(|r| drawn.contains(r))
    };
    let (head, rest): (Vec<OpId>, Vec<OpId>) = body.into_iter().partition(|id| first(module, *id));
    let mut e = Emitter { module, body: head };
    // A sampled softmax tells a negative that equals its target by their common entry.
    let sampled: BTreeSet<ValueId> = rest
        .iter()
        .map(|id| e.module.op(*id))
        .filter(|op| op.def.name == "model.sampled_softmax")
        .filter_map(|op| table_of(e.module, op))
        .collect();
    let mut lowerings: BTreeMap<ValueId, Lowering> = BTreeMap::new();
    // Declarations are numbered in order, so tables are exchanged in the order of their declaration.
    for (table, ids) in sources.iter().filter(|(_, ids)| !ids.is_empty()) {
        statistics.count("exchanges");
        lowerings.insert(*table, emit_exchange(&mut e, *table, unique || sampled.contains(table), ids)?);
    }
    let mut replaced = BTreeMap::new();
    for id in &rest {
        e.module.replace_uses(&[*id], &replaced);
        let op = e.module.op(*id);
        match table_of(e.module, op).and_then(|t| lowerings.get_mut(&t)) {
            Some(lowering) => {
                statistics.count("lowered");
                let op = op.clone();
                lower_op(&mut e, lowering, &mut replaced, &op)?;
            }
            None => e.body.push(*id),
        }
    }
    let new_body = e.body;
    module.funcs[f].body = new_body;
    Ok(())
}

/// One exchange per table, shared by all functions.
fn declare_exchange(module: &mut Module, table: u32, unique: bool) -> u32 {
    let known = exchanges(module);
    if let Some(at) = known.iter().position(|e| (e.table, e.unique) == (table, unique)) {
        return at as u32;
    }
    let exchange = Exchange { table, part: 0, entries: known.len() as u32, unique, lookahead: None };
    let decl = module.create(named("comm.exchange"), vec![], attrs_of(&exchange), &[], "");
    module.decls.push(decl);
    known.len() as u32
}

fn table_name(module: &Module, table: ValueId) -> String {
    match module.def(table).attrs.get("name") {
        Some(Attr::Str(s)) => s.clone(),
        _ => String::from("table"),
    }
}

fn emit_exchange(
    e: &mut Emitter<'_>,
    table: ValueId,
    unique: bool,
    sources: &[ValueId],
) -> Result<Lowering, PassError> {
    let Type::Shape(Shape::Table { table: number, dim }) = e.module.ty(table) else {
        return Err(PassError::new("a table has another type"));
    };
    let exchange = declare_exchange(e.module, number, unique);
    let name = table_name(e.module, table);
    let name = name.as_str();
    let sent = Extent::Symbol(Symbol::Sent(exchange));
    let received = Extent::Symbol(Symbol::Received(exchange));
    let attrs = Attrs::from([("exchange".into(), Attr::Int(exchange.into()))]);
    let grouped = Attrs::from([("exchanges".into(), Attr::List(vec![Attr::Int(exchange.into())]))]);
    let mut types: Vec<Type> = vec![id_matrix(sent, 1).into(), counts().into()];
    for ids in sources {
        let (rows, columns) = match e.module.ty(*ids) {
            Type::Shape(Shape::Matrix { rows, columns, .. }) => (rows, columns),
            Type::Shape(Shape::Ids { lengths, .. }) => (Extent::Symbol(Symbol::Tokens(lengths)), 1),
            _ => (Extent::Fixed(0), 0),
        };
        types.push(index(rows, columns).into());
    }
    let unique = e.emit("comm.unique", sources.to_vec(), attrs.clone(), &types, name);
    let (entries, send_counts) = (unique[0], unique[1]);
    let inverse = sources.iter().copied().zip(unique[2..].iter().copied()).collect();
    let types = [index(received, 1).into(), counts().into()];
    let asked = e.emit("comm.all_to_all_ids", vec![entries, send_counts], grouped.clone(), &types, name);
    let types = [real(received, dim).into()];
    let looked_up = e.emit("comm.gather", vec![table, asked[0]], attrs, &types, name)[0];
    let operands = vec![looked_up, asked[1], send_counts];
    let rows = e.emit("comm.all_to_all_rows", operands, grouped, &[real(sent, dim).into()], name)[0];
    Ok(Lowering {
        table,
        name: name.to_owned(),
        exchange,
        dim,
        counts: send_counts,
        received_rows: asked[0],
        received_counts: asked[1],
        rows,
        inverse,
        normalised: BTreeMap::new(),
        sparse: BTreeMap::new(),
    })
}

fn lower_op(
    e: &mut Emitter<'_>,
    l: &mut Lowering,
    replaced: &mut BTreeMap<ValueId, ValueId>,
    op: &OpData,
) -> Result<(), PassError> {
    let types: Vec<Type> = op.results.iter().map(|r| e.module.ty(*r)).collect();
    let rows_type: Type = real(Extent::Symbol(Symbol::Sent(l.exchange)), l.dim).into();
    let positions = l.inverse.clone();
    let inverse =
        |v: ValueId| positions.get(&v).copied().ok_or_else(|| PassError::new("ids without positions"));
    let mut replace = |op: &OpData, new: &[ValueId]| {
        replaced.extend(op.results.iter().copied().zip(new.iter().copied()));
    };
    let name = l.name.clone();
    let name = name.as_str();
    let wrong = |e: String| PassError::new(format!("{}: {e}", op.def.name));
    match op.def.name {
        "model.lookup" => {
            let new = e.emit(
                "comm.expand",
                vec![l.rows, inverse(op.operands[1])?],
                Attrs::new(),
                &types,
                &op.scope,
            );
            replace(op, &new);
        }
        "model.pool" => {
            let operands = vec![l.rows, inverse(op.operands[1])?, op.operands[2]];
            let new = e.emit("comm.pool", operands, op.attrs.clone(), &types, &op.scope);
            replace(op, &new);
        }
        "train.lookup_grad" => {
            let operands = vec![op.operands[2], inverse(op.operands[1])?];
            let new = e.emit("comm.expand_grad", operands, Attrs::new(), &[rows_type], &op.scope);
            l.sparse.insert(op.results[0], new[0]);
        }
        "train.pool_grad" => {
            let operands = vec![op.operands[3], inverse(op.operands[1])?, op.operands[2]];
            let new = e.emit("comm.pool_grad", operands, op.attrs.clone(), &[rows_type], &op.scope);
            l.sparse.insert(op.results[0], new[0]);
        }
        "model.sampled_softmax" => {
            let mut attrs = op.attrs.clone();
            let cosine = boolean(&attrs, "cosine").map_err(wrong)?;
            attrs.remove("cosine");
            let (mut h, mut rows) = (op.operands[0], l.rows);
            if cosine {
                let norm = Normalised { h: normalize(e, h, &op.scope), rows: normalize(e, rows, &op.scope) };
                (h, rows) = (norm.h.0, norm.rows.0);
                l.normalised.insert(op.results[1], norm);
            }
            let operands = vec![h, rows, inverse(op.operands[2])?, inverse(op.operands[3])?];
            let new = e.emit("comm.sampled_softmax", operands, attrs, &types, &op.scope);
            if let Some(norm) = l.normalised.get(&op.results[1]).copied() {
                l.normalised.insert(new[1], norm);
            }
            replace(op, &new);
        }
        "train.sampled_softmax_grad" => {
            let negatives = int(&op.attrs, "negatives").map_err(wrong)?;
            let attrs = Attrs::from([("negatives".into(), Attr::Int(negatives.into()))]);
            let gscores = op.operands[4];
            let norm = l.normalised.get(&gscores).copied();
            let (h, rows) = norm.map_or((op.operands[0], l.rows), |n| (n.h.0, n.rows.0));
            let operands = vec![h, rows, inverse(op.operands[2])?, inverse(op.operands[3])?, gscores];
            let types = [types[0], rows_type];
            let mut new = e.emit("comm.sampled_softmax_grad", operands, attrs, &types, &op.scope);
            if let Some(n) = norm {
                new = vec![denormalize(e, n.h, new[0], &op.scope), denormalize(e, n.rows, new[1], &op.scope)];
            }
            l.sparse.insert(op.results[1], new[1]);
            replace(&OpData { results: vec![op.results[0]], ..op.clone() }, &new[..1]);
        }
        "train.apply" => {
            let parts: Vec<ValueId> =
                op.operands[1..].iter().filter_map(|v| l.sparse.get(v).copied()).collect();
            let sum = match parts[..] {
                [] => return Err(PassError::new("a table is updated without gradients")),
                [one] => one,
                _ => e.emit("model.add", parts, Attrs::new(), &[rows_type], name)[0],
            };
            let received = real(Extent::Symbol(Symbol::Received(l.exchange)), l.dim).into();
            let attrs = Attrs::from([("exchange".into(), Attr::Int(l.exchange.into()))]);
            let grouped = Attrs::from([("exchanges".into(), Attr::List(vec![Attr::Int(l.exchange.into())]))]);
            let operands = vec![sum, l.counts, l.received_counts];
            let grads = e.emit("comm.all_to_all_grads", operands, grouped, &[received], name)[0];
            let operands = vec![l.received_rows, l.received_counts, grads, l.table];
            e.emit("comm.apply", operands, attrs, &[], name);
        }
        other => return Err(PassError::new(format!("{other} of a table is not known to this pass"))),
    }
    Ok(())
}

fn normalize(e: &mut Emitter<'_>, x: ValueId, scope: &str) -> (ValueId, ValueId) {
    let ty = e.module.ty(x);
    let (rows, _) = ty.as_real().unwrap_or((Extent::Fixed(0), 0));
    let attrs = Attrs::from([("eps".into(), Attr::Float(NORMALIZE_EPS))]);
    let new = e.emit("model.l2_normalize", vec![x], attrs, &[ty, Type::real(rows, 1)], scope);
    (new[0], new[1])
}

fn denormalize(e: &mut Emitter<'_>, (y, norms): (ValueId, ValueId), gy: ValueId, scope: &str) -> ValueId {
    let ty = e.module.ty(y);
    let attrs = Attrs::from([("eps".into(), Attr::Float(NORMALIZE_EPS))]);
    e.emit("train.l2_normalize_grad", vec![y, norms, gy], attrs, &[ty], scope)[0]
}
