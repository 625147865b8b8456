//! Rule `sizes`: who needs a size that is known only when a batch runs comes after who finds it.
//!
//! How many entries an exchange sends and receives, and how many are in a class, is state like a buffer: `unique`, the
//! input dist and `positions` write it, every operation on a buffer with so many rows reads it, that of the batch whose
//! buffer it uses. Sizes lie in the ring of batches in flight, which the rule `in-flight` keeps while they are read.

use std::collections::BTreeMap;

use super::{Context, Report};
use crate::action::Sizes;
use crate::operand::{Extent, Operand, Place};
use crate::size::Symbol;

/// The size that an operand's buffer has, if it is found while the batch runs.
fn needed(cx: &Context<'_>, o: &Operand) -> Option<Symbol> {
    let Place::Buffer(b) = o.place else { return None };
    match cx.p.buffers[b as usize].rows {
        Extent::Symbol(s) if kind(s) != Sizes::None => Some(s),
        _ => None,
    }
}

fn kind(s: Symbol) -> Sizes {
    match s {
        Symbol::Sent(_) => Sizes::Sent,
        Symbol::Received(_) => Sizes::Received,
        Symbol::Asked(_) => Sizes::Asked,
        Symbol::SentClass(..) | Symbol::ReceivedClass(..) => Sizes::Classes,
        Symbol::Ranks | Symbol::Samples | Symbol::Tokens(_) | Symbol::Squares(_) => Sizes::None,
    }
}

pub(super) fn check(cx: &Context<'_>, r: &mut Report) {
    let finds = |i: u32, s: Symbol| cx.p.ops[i as usize].action.facts().learns.sizes == kind(s);
    // Parts of a column-wise table find the same numbers, so any of them will do.
    let mut found: BTreeMap<Symbol, Vec<u32>> = BTreeMap::new();
    for &i in &cx.sorted {
        for s in cx.p.ops[i as usize].writes.iter().filter_map(|o| needed(cx, o)) {
            if finds(i, s) && found.get(&s).and_then(|l| l.last()) != Some(&i) {
                found.entry(s).or_default().push(i);
            }
        }
    }
    for &i in &cx.sorted {
        let op = &cx.p.ops[i as usize];
        let mut seen = Vec::new();
        for o in op.reads.iter().chain(&op.writes) {
            let Some(s) = needed(cx, o).filter(|s| !finds(i, *s)) else { continue };
            // Operands of one size stand beside each other.
            if seen.last() == Some(&(s, o.batch)) {
                continue;
            }
            seen.push((s, o.batch));
            let finders = found.get(&s).map(Vec::as_slice).unwrap_or_default();
            if !cx.spend(finders.len()) {
                return;
            }
            let batches = -i64::from(o.batch);
            let known = finders.iter().any(|x| cx.clocks.before(*x as usize, i as usize, batches));
            r.check(known, "sizes", || {
                format!(
                    "`{}` uses {o} with {s} rows, and comes after nothing that finds out how many",
                    op.name
                )
            });
        }
    }
}
