//! Ids out, rows back.

use std::collections::BTreeMap;

use fs_schedule::Symbol;
use fs_schedule::op::{Element, Extent, Way};
use fs_schedule::reuse::Reuse;
use fs_schedule::signature::{Shape, counts, id as id_matrix, index, real};

use super::plan::{ClassOf, Emitter, Lowering, Picked, picked_types, with_class, with_way};
use crate::ir::{Attr, Attrs, Type, ValueId};

pub(super) type Tables = BTreeMap<ValueId, Lowering>;

/// Microbatches of first and last use.
fn byte(rows: Extent, columns: u32) -> Type {
    Shape::Matrix { element: Element::Byte, rows, columns }.into()
}

/// Input dist: what to ask for, and asking.
pub(super) fn ask(e: &mut Emitter<'_>, tables: &mut Tables) {
    for l in tables.values_mut() {
        unique(e, l);
    }
    for l in tables.values_mut() {
        input_dist(e, l);
    }
}

fn unique(e: &mut Emitter<'_>, l: &mut Lowering) {
    let sent = l.sent(Way::Forward, None);
    let mut types: Vec<Type> = vec![id_matrix(sent, 1).into(), counts().into()];
    if l.has_uses() {
        types.push(byte(sent, 2));
    }
    let extra = types.len();
    let mut keys = Vec::new();
    for (round, list) in l.ids.iter().enumerate() {
        for ids in list {
            let (rows, columns) = match e.module.ty(*ids) {
                Type::Shape(Shape::Matrix { rows, columns, .. }) => (rows, columns),
                Type::Shape(Shape::Ids { lengths, .. }) => (Extent::Symbol(Symbol::Tokens(lengths)), 1),
                _ => (Extent::Fixed(0), 0),
            };
            types.push(index(rows, columns).into());
            keys.push((round as u32, *ids));
        }
    }
    let Some(first) = l.parts.first() else { return };
    let operands = keys.iter().map(|(_, ids)| *ids).collect();
    let made = e.emit("comm.unique", operands, first.attrs(), &types, &l.name);
    (l.entries, l.counts) = (made[0], made[1]);
    l.uses = l.has_uses().then(|| made[2]);
    l.inverse = keys.into_iter().zip(made[extra..].iter().copied()).collect();
}

fn input_dist(e: &mut Emitter<'_>, l: &mut Lowering) {
    let (sent, uses) = (l.sent(Way::Forward, None), l.has_uses());
    let asked: Vec<ValueId> = [l.entries, l.counts].into_iter().chain(l.uses).collect();
    for p in &mut l.parts {
        let received = p.received(Way::Forward, None);
        let mut types: Vec<Type> = vec![index(received, 1).into(), counts().into()];
        if l.replicated {
            types.push(index(sent, 1).into());
        }
        if uses {
            types.push(byte(received, 2));
        }
        let name = if l.replicated { "comm.all_gather_ids" } else { "comm.all_to_all_ids" };
        let made = e.emit(name, asked.clone(), p.grouped(), &types, &l.name);
        (p.rows, p.counts) = (made[0], made[1]);
        p.own = l.replicated.then(|| made[2]);
        p.uses = uses.then(|| made[made.len() - 1]);
    }
}

/// Who has which class of lookups. Rows of replicated tables are at home, so their lookups are not told apart.
pub(super) fn plan(e: &mut Emitter<'_>, tables: &mut Tables) {
    let mut chosen: Vec<&mut Lowering> =
        tables.values_mut().filter(|l| l.reuse.is_some() && !l.replicated).collect();
    tell_apart(e, &mut chosen, Way::Forward);
}

/// Classes at the owners, then at those who asked, then the positions at both, for tables that rows are sent of.
pub(super) fn tell_apart(e: &mut Emitter<'_>, tables: &mut [&mut Lowering], way: Way) {
    let mut at_owner = Vec::new();
    for l in tables.iter() {
        let Some(reuse) = l.reuse else { continue };
        for p in &l.parts {
            let extent = p.received(Way::Forward, None);
            let rows = (p.rows, p.uses);
            at_owner.push(partition(e, l, p.attrs(), reuse, way, rows, (p.rows, p.uses), extent));
        }
    }
    let mut classes = at_owner.iter();
    let mut at_asker = Vec::new();
    for l in tables.iter() {
        for (p, class) in l.parts.iter().zip(classes.by_ref()) {
            let operands = vec![*class, p.counts, l.counts];
            let types = [byte(l.sent(Way::Forward, None), 1)];
            at_asker.push(
                e.emit("comm.all_to_all_classes", operands, with_way(p.grouped(), way), &types, &l.name)[0],
            );
        }
    }
    let mut both = at_owner.into_iter().zip(at_asker);
    for l in tables.iter_mut() {
        let n = l.reuse.map_or(0, |r| r.count(way)) as u32;
        for i in 0..l.parts.len() {
            let Some((owner, asker)) = both.next() else { return };
            let owner = owner_positions(e, l, i, way, owner, n);
            let asker = asker_positions(e, l, i, way, asker, n);
            let classes =
                owner.into_iter().zip(asker).map(|(owner, asker)| ClassOf { owner, asker }).collect();
            match way {
                Way::Forward => l.parts[i].lookups = classes,
                Way::Backward => l.parts[i].updates = classes,
            }
        }
    }
}

/// The class of each of `rows`, by the `others` of the batches around.
#[expect(clippy::too_many_arguments, reason = "what a partition is made of")]
pub(super) fn partition(
    e: &mut Emitter<'_>,
    l: &Lowering,
    attrs: Attrs,
    reuse: Reuse,
    way: Way,
    rows: (ValueId, Option<ValueId>),
    others: (ValueId, Option<ValueId>),
    extent: Extent,
) -> ValueId {
    let sign = match way {
        Way::Forward => -1,
        Way::Backward => 1,
    };
    let mut operands = vec![rows.0];
    operands.extend(rows.1);
    let mut offsets = vec![0; operands.len()];
    for distance in 1..=reuse.history() as i32 {
        operands.push(others.0);
        operands.extend(others.1);
        offsets.resize(operands.len(), sign * distance);
    }
    let classes = e.emit("comm.partition", operands, with_way(attrs, way), &[byte(extent, 1)], &l.name)[0];
    e.offsets(offsets);
    classes
}

/// Positions of each class among what an owner received.
pub(super) fn owner_positions(
    e: &mut Emitter<'_>,
    l: &Lowering,
    part: usize,
    way: Way,
    classes: ValueId,
    n: u32,
) -> Vec<Picked> {
    let p = &l.parts[part];
    positions(e, l, part, way, (classes, p.counts), (0..n).map(|c| p.received(way, Some(c))))
}

/// Positions of each class among what this rank asked for.
pub(super) fn asker_positions(
    e: &mut Emitter<'_>,
    l: &Lowering,
    part: usize,
    way: Way,
    classes: ValueId,
    n: u32,
) -> Vec<Picked> {
    positions(e, l, part, way, (classes, l.counts), (0..n).map(|c| l.sent(way, Some(c))))
}

fn positions(
    e: &mut Emitter<'_>,
    l: &Lowering,
    part: usize,
    way: Way,
    (classes, counts): (ValueId, ValueId),
    extents: impl Iterator<Item = Extent>,
) -> Vec<Picked> {
    let types: Vec<Type> = extents.flat_map(picked_types).collect();
    let attrs = with_way(l.parts[part].attrs(), way);
    let made = e.emit("comm.positions", vec![classes, counts], attrs, &types, &l.name);
    made.chunks_exact(2).map(|c| Picked { positions: c[0], counts: c[1] }).collect()
}

/// Rows that a microbatch is the first to use; of tables that are not told apart everything, with the first.
pub(super) fn fetch(e: &mut Emitter<'_>, tables: &mut Tables, round: u32) {
    if round == 0 {
        together(e, tables);
    }
    let mut arrived: BTreeMap<(ValueId, usize), Vec<(u32, ValueId)>> = BTreeMap::new();
    for class in of_round(tables.values(), Way::Forward, round) {
        let chosen: Vec<(&Lowering, usize)> = tables
            .values()
            .filter(|l| l.reuse.is_some() && !l.replicated)
            .flat_map(|l| (0..l.parts.len()).map(move |i| (l, i)))
            .collect();
        let looked_up: Vec<ValueId> = chosen
            .iter()
            .map(|(l, i)| {
                let p = &l.parts[*i];
                let types = [real(p.received(Way::Forward, Some(class)), p.columns).into()];
                let picked = p.lookups[class as usize].owner.positions;
                let operands = vec![l.table, p.rows, picked];
                e.emit("comm.gather", operands, with_class(p.attrs(), Some(class)), &types, &l.name)[0]
            })
            .collect();
        for ((l, i), y) in chosen.into_iter().zip(looked_up) {
            let p = &l.parts[i];
            let of = p.lookups[class as usize];
            let types = [real(l.sent(Way::Forward, Some(class)), p.columns).into()];
            let operands = vec![y, of.owner.counts, of.asker.counts];
            let attrs = with_class(p.grouped(), Some(class));
            let z = e.emit("comm.all_to_all_rows", operands, attrs, &types, &l.name)[0];
            arrived.entry((l.table, i)).or_default().push((class, z));
        }
    }
    for ((table, i), classes) in arrived {
        if let Some(l) = tables.get_mut(&table) {
            merge(e, l, i, &classes);
        }
    }
    for l in tables.values_mut().filter(|l| l.reuse.is_some() && !l.replicated) {
        l.rows = concat(e, l);
    }
}

/// The classes that belong to a microbatch. Tables that are told apart are so alike.
pub(super) fn of_round<'a>(mut tables: impl Iterator<Item = &'a Lowering>, way: Way, round: u32) -> Vec<u32> {
    let classes = tables.find_map(|l| l.reuse).map_or_else(Vec::new, |r| r.classes(way));
    (0..).zip(classes).filter(|(_, c)| c.microbatch == round).map(|(i, _)| i).collect()
}

fn merge(e: &mut Emitter<'_>, l: &mut Lowering, part: usize, classes: &[(u32, ValueId)]) {
    let p = &l.parts[part];
    let of = |(c, z): &(u32, ValueId)| [*z, p.lookups[*c as usize].asker.positions];
    let operands = classes.iter().flat_map(of).collect();
    let mut attrs = p.attrs();
    attrs.insert("classes".into(), Attr::List(classes.iter().map(|(c, _)| Attr::Int((*c).into())).collect()));
    let types = [real(l.sent(Way::Forward, None), p.columns).into()];
    let merged = e.emit("comm.merge", operands, attrs, &types, &l.name)[0];
    e.into(p.merged);
    l.parts[part].merged = Some(merged);
}

/// Lookup and output dist of tables whose rows travel together, or not at all.
fn together(e: &mut Emitter<'_>, tables: &mut Tables) {
    let mut looked_up = Vec::new();
    for l in tables.values_mut() {
        for p in l.parts.iter().filter(|_| l.reuse.is_none() || l.replicated) {
            let (rows, extent) = match p.own {
                Some(own) => (own, l.sent(Way::Forward, None)),
                None => (p.rows, p.received(Way::Forward, None)),
            };
            let types = [real(extent, p.columns).into()];
            let y = e.emit("comm.gather", vec![l.table, rows], p.attrs(), &types, &l.name)[0];
            if l.replicated {
                l.rows = y;
            } else {
                looked_up.push(y);
            }
        }
    }
    let mut looked_up = looked_up.into_iter();
    for l in tables.values_mut().filter(|l| l.reuse.is_none() && !l.replicated) {
        let extent = l.sent(Way::Forward, None);
        for (p, y) in l.parts.iter_mut().zip(looked_up.by_ref()) {
            let types = [real(extent, p.columns).into()];
            let operands = vec![y, p.counts, l.counts];
            p.merged = Some(e.emit("comm.all_to_all_rows", operands, p.grouped(), &types, &l.name)[0]);
        }
    }
    for l in tables.values_mut().filter(|l| l.reuse.is_none() && !l.replicated) {
        l.rows = concat(e, l);
    }
}

/// The parts of a column-wise table side by side.
fn concat(e: &mut Emitter<'_>, l: &Lowering) -> ValueId {
    let parts: Vec<ValueId> = l.parts.iter().filter_map(|p| p.merged).collect();
    match parts[..] {
        [one] => one,
        _ => e.emit("model.concat", parts, Attrs::new(), &[l.rows_type()], &l.name)[0],
    }
}
