//! All tables whose place is open at owners of one kind at once.
//!
//! A climb changes one kind of tables after the other, in one strategy. Of many small tables that every rank has, one less spares a sum over
//! all ranks and costs transfers of ids, rows and gradients that more of them would share; and which strategy is shortest depends on
//! where tables live. No single change is worth it, all together may be.

use fs_schedule::Sharding;

use super::asked::{Change, Owners};
use super::climb::Move;
use super::outcome::Way;
use super::travel::WORTH;
use crate::distribution::Choice;

/// A way of a kind of tables.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind<'a> {
    pub tables: &'a [String],
    /// Nobody has said where they live.
    pub open: bool,
    /// How they are distributed.
    pub now: &'a Choice,
    /// How they would be.
    pub way: &'a Choice,
    /// Bytes that a rank would send of all of them, and those to other nodes.
    pub wire: f64,
    pub far: f64,
}

/// Changes from which a climb may begin as well, and how many times as long the step may be there: all tables row-wise, and all
/// table-wise; but for those that have neither as a way.
pub(super) fn starts(ways: &[Kind<'_>]) -> Vec<(Move, f64)> {
    [Owners::All, Owners::One].into_iter().filter_map(|owners| start(ways, owners)).collect()
}

fn start(ways: &[Kind<'_>], owners: Owners) -> Option<(Move, f64)> {
    let whole = |k: &Kind<'_>| matches!(k.now.sharding, Sharding::RowWise | Sharding::TableWise { .. });
    let there = |k: &Kind<'_>| match owners {
        Owners::All => k.now.sharding == Sharding::RowWise,
        Owners::One => matches!(k.now.sharding, Sharding::TableWise { .. }),
    };
    let (mut tables, mut replicated, mut owned) = (Vec::new(), false, false);
    let (mut wire, mut far) = ((0.0, 0.0), (0.0, 0.0));
    for now in ways.iter().filter(|k| k.open && k.way == k.now && !there(k)) {
        // Terms do not say which ranks are owners.
        let plain = Choice { sharding: Sharding::RowWise, ..now.now.clone() };
        let other = ways.iter().find(|k| k.tables == now.tables && *k.way == plain);
        let then = match (&now.now.sharding, other) {
            _ if whole(now) => now,
            (Sharding::DataParallel, Some(other)) => other,
            _ => continue,
        };
        (replicated, owned) = (replicated || !whole(now), owned || whole(now));
        tables.extend(now.tables.iter().cloned());
        wire = (wire.0 + now.wire, wire.1 + then.wire);
        far = (far.0 + now.far, far.1 + then.far);
    }
    let (from, to) = match owners {
        Owners::All => ("table-wise", "row-wise"),
        Owners::One => ("row-wise", "table-wise"),
    };
    let from = match (replicated, owned, owners) {
        (false, ..) => from,
        (true, false, _) => "replicated",
        (true, true, Owners::All) => "replicated and table-wise",
        (true, true, Owners::One) => "replicated and row-wise",
    };
    let ways = (Way::Owned(from), Way::Owned(to));
    let any = !tables.is_empty();
    let start =
        Move { tables, ways, change: Change::Owners { owners, replicated }, wire, far, covered: false };
    any.then_some((start, WORTH))
}
