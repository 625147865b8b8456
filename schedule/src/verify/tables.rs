//! Rules `fresh-read`, `early-write` and `apply-order`: lookups and updates of one table.
//!
//! [`Reuse`] says at which distance two classes can hold one row at *consecutive* uses. Ordering those is enough:
//! between uses further apart there are others, and order is transitive. Operations that are not split hold every
//! class, so they are ordered with the next batch.

use std::collections::BTreeMap;

use super::{Context, Report};
use crate::action::{Effect, Facts};
use crate::reuse::Reuse;

/// Class operands: all classes first, then each.
fn at(class: Option<u32>) -> usize {
    class.map_or(0, |c| c as usize + 1)
}

/// The answers of [`Reuse`] for all pairs of classes.
struct Orders {
    classes: usize,
    apply_gather: Vec<Option<u32>>,
    apply_apply: Vec<Option<u32>>,
    gather_apply: Vec<bool>,
}

impl Orders {
    fn new(reuse: Reuse) -> Self {
        let classes = reuse.count(crate::attribute::Way::Forward) + 1;
        let name = |i: usize| i.checked_sub(1).map(|c| c as u32);
        let pairs = || (0..classes * classes).map(|i| (name(i / classes), name(i % classes)));
        Self {
            classes,
            apply_gather: pairs().map(|(a, b)| reuse.apply_before_gather(a, b)).collect(),
            apply_apply: pairs().map(|(a, b)| reuse.apply_before_apply(a, b)).collect(),
            gather_apply: pairs().map(|(a, b)| reuse.gather_before_apply(a, b)).collect(),
        }
    }
    fn index(&self, a: Option<u32>, b: Option<u32>) -> usize {
        at(a) * self.classes + at(b)
    }
}

/// Operations with their class operands.
type Users = Vec<(u32, Option<u32>)>;

pub(super) fn check(cx: &Context<'_>, r: &mut Report) {
    if cx.evaluation {
        return;
    }
    let mut users: BTreeMap<u32, (Users, Users)> = BTreeMap::new();
    for (i, op) in (0..).zip(&cx.p.ops) {
        let Facts { of, effects, .. } = op.action.facts();
        for exchange in of.exchanges {
            let class = of.classes.first().copied();
            if effects.contains(&Effect::ReadsTable) {
                users.entry(*exchange).or_default().0.push((i, class));
            }
            if effects.contains(&Effect::WritesTable) {
                users.entry(*exchange).or_default().1.push((i, class));
            }
        }
    }
    let mut known: BTreeMap<Reuse, Orders> = BTreeMap::new();
    for (e, (gathers, applies)) in &users {
        // One lookup and one update per class; more would be wrong, and many.
        let most = 256;
        if gathers.len() > most || applies.len() > most {
            r.fail("exchange", format!("exchange {e} is looked up or updated more than {most} times a step"));
            continue;
        }
        let exchange = &cx.s.exchanges[*e as usize];
        // Lookahead 0 with one window is one class: everything is ordered with the next batch.
        let reuse = exchange.reuse(cx.s.settings.microbatches).unwrap_or(Reuse::new(0, 1));
        let orders = known.entry(reuse).or_insert_with(|| Orders::new(reuse));
        let table = &cx.s.tables[exchange.table as usize].name;
        for &(a, applied) in applies {
            for &(g, looked_up) in gathers {
                if let Some(d) = orders.apply_gather[orders.index(applied, looked_up)] {
                    cx.need(a, g, d.into(), "fresh-read", r, || {
                        format!("the second looks up rows of `{table}` that the first updates")
                    });
                }
                if orders.gather_apply[orders.index(looked_up, applied)] {
                    cx.need(g, a, 0, "early-write", r, || {
                        format!("the second updates rows of `{table}` that the first looks up")
                    });
                }
            }
            for &(b, later) in applies {
                if let Some(d) = orders.apply_apply[orders.index(applied, later)] {
                    cx.need(a, b, d.into(), "apply-order", r, || format!("both update rows of `{table}`"));
                }
            }
        }
    }
}
