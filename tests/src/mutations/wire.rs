//! Corruptions of schedules whose rows and gradients are rounded on their way.

use fs_schedule::{Action, Element, Op, Operand, Place, Schedule};

use super::{Mutation, all, find, remove, says};

fn is_merge(action: &Action) -> bool {
    matches!(action, Action::Merge { .. })
}

fn is_split(action: &Action) -> bool {
    matches!(action, Action::Split { .. })
}

fn is_apply(action: &Action) -> bool {
    matches!(action, Action::Apply { .. })
}

/// Makes the buffer at a place one of other numbers.
fn becomes(s: &mut Schedule, place: Place, element: Element) -> Option<()> {
    let Place::Buffer(b) = place else { return None };
    s.train.buffers[b as usize].element = element;
    Some(())
}

/// Makes what the first operation of a kind reads or writes first other numbers.
fn of_first(
    s: &mut Schedule,
    is: fn(&Action) -> bool,
    list: fn(&Op) -> &[Operand],
    element: Element,
) -> Option<()> {
    let at = find(s, is)?;
    let place = list(&s.train.ops[at]).first()?.place;
    becomes(s, place, element)
}

/// The first rounded operand of the first operation of a kind.
fn rounded(s: &Schedule, is: fn(&Action) -> bool) -> Option<(usize, usize)> {
    let shorter = |element| matches!(element, Element::Bf16 | Element::Mxint8);
    let narrow = |place| matches!(place, Place::Buffer(b) if shorter(s.train.buffers[b as usize].element));
    all(s, is).into_iter().find_map(|at| {
        let read = s.train.ops[at].reads.iter().position(|o| narrow(o.place))?;
        Some((at, read))
    })
}

/// For compiled models whose rows and gradients travel as bf16, or rows as mxint8; the same form as [`super::mutations`].
pub const ROUNDED: &[Mutation] = &[
    says("rows rounded that the model sends as they are", "operands", |s| {
        s.settings.wire.rows = Element::Real;
        Some(())
    }),
    says("gradients rounded that the model sends as they are", "operands", |s| {
        s.settings.wire.gradients = Element::Real;
        Some(())
    }),
    says("rows that travel as numbers of places", "settings", |s| {
        s.settings.wire.rows = Element::Index;
        Some(())
    }),
    says("gradients in blocks of 8 bits", "settings", |s| {
        s.settings.wire.gradients = Element::Mxint8;
        Some(())
    }),
    says("dense gradients in blocks of 8 bits", "settings", |s| {
        s.settings.wire.dense = Element::Mxint8;
        Some(())
    }),
    says("rows in the other of two shorter forms", "operands", |s| {
        let rows = &mut s.settings.wire.rows;
        *rows = if *rows == Element::Bf16 { Element::Mxint8 } else { Element::Bf16 };
        Some(())
    }),
    says("rows in blocks where they are used", "operands", |s| {
        of_first(s, is_merge, |op| &op.writes, Element::Mxint8)
    }),
    says("gradients that are sent in blocks", "operands", |s| {
        of_first(s, is_split, |op| &op.writes, Element::Mxint8)
    }),
    says("gradients that travel as numbers of places", "settings", |s| {
        s.settings.wire.gradients = Element::Index;
        Some(())
    }),
    says("a gradient rounded for each occurrence", "exchanges", |s| {
        let at = s.exchanges.iter().position(|x| x.unique)?;
        s.exchanges[at].unique = false;
        Some(())
    }),
    says("rows that arrive as they were before they were rounded", "operands", |s| {
        let (at, read) = rounded(s, is_merge)?;
        let place = s.train.ops[at].reads[read].place;
        becomes(s, place, Element::Real)
    }),
    says("rows still rounded where they are used", "operands", |s| {
        of_first(s, is_merge, |op| &op.writes, Element::Bf16)
    }),
    says("rows that nothing widens", "exchange", |s| {
        let at = find(s, is_merge)?;
        remove(s, at);
        Some(())
    }),
    says("gradients that are sent before they are rounded", "operands", |s| {
        of_first(s, is_split, |op| &op.writes, Element::Real)
    }),
    says("gradients rounded before they are summed", "operands", |s| {
        of_first(s, is_split, |op| &op.reads, Element::Bf16)
    }),
    says("an update by gradients that no rank sent", "operands", |s| {
        let (at, read) = rounded(s, is_apply)?;
        let whole = all(s, is_split).into_iter().next()?;
        s.train.ops[at].reads[read] = s.train.ops[whole].reads[0];
        Some(())
    }),
    says("an update by rounded rows in the place of gradients", "exchange", |s| {
        let (at, read) = rounded(s, is_apply)?;
        let Action::Apply { exchange, .. } = s.train.ops[at].action else { return None };
        let gathers = |a: &Action| matches!(a, Action::Gather { exchange: e, .. } if *e == exchange);
        let gather = s.train.ops.iter().position(|op| gathers(&op.action))?;
        let (from, to) = (s.train.ops[gather].writes[0].place, s.train.ops[at].reads[read].place);
        let (Place::Buffer(a), Place::Buffer(b)) = (from, to) else { return None };
        // Where rows are told apart, lookups and updates have other numbers of them; other forms are another rule's.
        let of = |b: u32| (s.train.buffers[b as usize].rows, s.train.buffers[b as usize].element);
        if of(a) != of(b) {
            return None;
        }
        s.train.ops[at].reads[read].place = from;
        Some(())
    }),
];
