//! All tables whose place is open at owners of one kind at once.
//!
//! A climb changes one kind of tables after the other, in one strategy. Of many small tables that every rank has, one less spares a sum over
//! all ranks and costs transfers of ids, rows and gradients that more of them would share; and which strategy is shortest depends on
//! where tables live. No single change is worth it, all together may be.

use std::collections::BTreeSet;

use fs_schedule::Sharding;

use super::asked::{Change, Owners, anywhere, between};
use super::climb::Move;
use super::outcome::{Way, place};
use super::travel::WORTH;
use crate::algebra::rules::Context;
use crate::distribution::Choice;

/// A way of a kind of tables.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind<'a> {
    pub tables: &'a [String],
    /// Nobody has said where they live.
    pub open: bool,
    /// What rules may know of each.
    pub context: &'a Context,
    /// How they are distributed.
    pub now: &'a Choice,
    /// How they would be.
    pub way: &'a Choice,
    /// Bytes that a rank would send of all of them, and those to other nodes.
    pub wire: f64,
    pub far: f64,
}

/// Changes from which a climb may begin as well, and how many times as long the step may be there: all tables row-wise, and all
/// table-wise; but for those that have neither as a way. Where some are cut by columns, with these and without.
pub(super) fn starts(ways: &[Kind<'_>]) -> Vec<(Move, f64)> {
    let cut = |k: &Kind<'_>| matches!(k.now.sharding, Sharding::ColumnWise { .. });
    let (all, uncut): (Vec<_>, Vec<_>) = (ways.iter().collect(), ways.iter().filter(|k| !cut(k)).collect());
    let mut among = vec![uncut];
    if among[0].len() < all.len() {
        among.push(all);
    }
    let each = among.iter().flat_map(|ways| [Owners::All, Owners::One].map(|owners| start(ways, owners)));
    each.flatten().collect()
}

fn start(ways: &[&Kind<'_>], owners: Owners) -> Option<(Move, f64)> {
    let (mut tables, mut places, mut rules) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    let (mut wire, mut far) = ((0.0, 0.0), (0.0, 0.0));
    // Of tables that are used alike the same rules.
    let mut known = BTreeSet::new();
    for now in ways.iter().filter(|k| k.open && k.way == k.now) {
        // Several terms may be one way.
        if tables.contains(&now.tables[0]) {
            continue;
        }
        let whole = Owners::of(&now.now.sharding);
        if whole == Some(owners) {
            continue;
        }
        // Terms do not say which ranks are owners.
        let plain = Choice { sharding: Sharding::RowWise, ..now.now.clone() };
        let then = match whole {
            Some(_) => Some(now),
            None => ways.iter().find(|k| k.tables == now.tables && *k.way == plain),
        };
        let Some(then) = then else { continue };
        let used = || format!("{:?} {:?} {:?}", now.context, anywhere(now.now), anywhere(then.way));
        if whole.is_none() && known.insert(used()) {
            rules.extend(between(now.context, now.now, then.way));
        }
        places.insert(place(&now.now.sharding));
        tables.extend(now.tables.iter().cloned());
        wire = (wire.0 + now.wire, wire.1 + then.wire);
        far = (far.0 + now.far, far.1 + then.far);
    }
    let from = places.into_iter().collect::<Vec<_>>().join(" and ");
    let ways = (Way::Owned(from), Way::Owned(owners.told().into()));
    let change = Change::Owners { owners, rules: rules.into_iter().collect() };
    let any = !tables.is_empty();
    any.then_some((Move { tables, ways, change, wire, far, covered: false }, WORTH))
}
