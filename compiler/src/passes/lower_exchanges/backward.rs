//! Row gradients to the owners, and the updates.

use fs_schedule::op::Way;
use fs_schedule::signature::real;

use super::forward::{asker_positions, of_round, owner_positions, partition, tell_apart};
use super::plan::{ClassOf, Emitter, Lowering, with_class};
use crate::ir::{Attr, Attrs, Type, ValueId};

/// Who has which class of gradients.
pub(super) fn plan(e: &mut Emitter<'_>, tables: &mut [&mut Lowering]) {
    let (mut replicated, mut sharded): (Vec<&mut Lowering>, Vec<&mut Lowering>) =
        tables.iter_mut().map(|l| &mut **l).filter(|l| l.reuse.is_some()).partition(|l| l.replicated);
    tell_apart(e, &mut sharded, Way::Backward);
    for l in &mut replicated {
        at_home(e, l);
    }
}

/// Of a replicated table every rank knows all rows: it classifies those that it sends and those that it receives.
fn at_home(e: &mut Emitter<'_>, l: &mut Lowering) {
    let Some(reuse) = l.reuse else { return };
    let n = reuse.count(Way::Backward) as u32;
    for i in 0..l.parts.len() {
        let p = &l.parts[i];
        let Some(own) = p.own else { continue };
        let (all, attrs) = ((p.rows, p.uses), p.attrs());
        let extents = (p.received(Way::Forward, None), l.sent(Way::Forward, None));
        let received = partition(e, l, attrs.clone(), reuse, Way::Backward, all, all, extents.0);
        let sent = partition(e, l, attrs, reuse, Way::Backward, (own, l.uses), all, extents.1);
        let owner = owner_positions(e, l, i, Way::Backward, received, n);
        let asker = asker_positions(e, l, i, Way::Backward, sent, n);
        l.parts[i].updates =
            owner.into_iter().zip(asker).map(|(owner, asker)| ClassOf { owner, asker }).collect();
    }
}

/// Gradients of rows that a microbatch is the last to use, and their updates.
pub(super) fn send_classes(e: &mut Emitter<'_>, tables: &[&mut Lowering], round: u32) {
    let by_part: Vec<Vec<ValueId>> = tables.iter().map(|l| columns(e, l)).collect();
    for class in of_round(tables.iter().map(|l| &**l), Way::Backward, round) {
        let chosen: Vec<(&Lowering, usize, ValueId)> = tables
            .iter()
            .zip(&by_part)
            .flat_map(|(l, sums)| sums.iter().enumerate().map(|(i, sum)| (&**l, i, *sum)))
            .collect();
        let split: Vec<ValueId> = chosen
            .iter()
            .map(|(l, i, sum)| {
                let p = &l.parts[*i];
                let types = [real(l.sent(Way::Backward, Some(class)), p.columns).into()];
                let operands = vec![*sum, p.updates[class as usize].asker.positions];
                e.emit("comm.split", operands, with_class(p.attrs(), Some(class)), &types, &l.name)[0]
            })
            .collect();
        let received: Vec<ValueId> = chosen
            .iter()
            .zip(split)
            .map(|((l, i, _), s)| {
                let of = l.parts[*i].updates[class as usize];
                send(e, l, *i, Some(class), vec![s, of.asker.counts, of.owner.counts])
            })
            .collect();
        for ((l, i, _), r) in chosen.iter().zip(received) {
            let p = &l.parts[*i];
            let of = p.updates[class as usize].owner;
            let operands = vec![p.rows, of.positions, of.counts, r, l.table];
            e.emit("comm.apply", operands, with_class(p.attrs(), Some(class)), &[], &l.name);
        }
    }
}

/// All gradients of tables that are not told apart, and their updates.
pub(super) fn send_all(e: &mut Emitter<'_>, tables: &[&mut Lowering]) {
    let mut received = Vec::new();
    let by_part: Vec<Vec<ValueId>> = tables.iter().map(|l| columns(e, l)).collect();
    for (l, sums) in tables.iter().zip(by_part) {
        for (i, sum) in sums.into_iter().enumerate() {
            received.push(send(e, l, i, None, vec![sum, l.counts, l.parts[i].counts]));
        }
    }
    let mut received = received.into_iter();
    for l in tables {
        for (p, r) in l.parts.iter().zip(received.by_ref()) {
            e.emit("comm.apply", vec![p.rows, p.counts, r, l.table], p.attrs(), &[], &l.name);
        }
    }
}

/// Gradient dist of one exchange.
fn send(
    e: &mut Emitter<'_>,
    l: &Lowering,
    part: usize,
    class: Option<u32>,
    operands: Vec<ValueId>,
) -> ValueId {
    let p = &l.parts[part];
    let name = if l.replicated { "comm.all_gather_grads" } else { "comm.all_to_all_grads" };
    let types = [real(p.received(Way::Backward, class), p.columns).into()];
    e.emit(name, operands, with_class(p.grouped(), class), &types, &l.name)[0]
}

/// The sum of the gradients, by the columns of the parts.
fn columns(e: &mut Emitter<'_>, l: &Lowering) -> Vec<ValueId> {
    let Some(sum) = l.sum else { return Vec::new() };
    if l.parts.len() == 1 {
        return vec![sum];
    }
    let sizes = l.parts.iter().map(|p| Attr::Int(p.columns.into())).collect();
    let attrs = Attrs::from([("sizes".into(), Attr::List(sizes))]);
    let types: Vec<Type> =
        l.parts.iter().map(|p| real(l.sent(Way::Forward, None), p.columns).into()).collect();
    e.emit("model.split", vec![sum], attrs, &types, &l.name)
}
