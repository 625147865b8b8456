//! All replicated tables at owners at once.
//!
//! A climb changes one kind of tables after the other. Of many small tables that every rank has, one less spares a sum over all ranks and
//! costs transfers of ids, rows and gradients that more of them would share: no single change is worth it, all together may be.

use fs_schedule::Sharding;

use super::asked::Change;
use super::climb::Move;
use super::outcome::Way;
use crate::distribution::Choice;

/// By how much a step may be longer so, and a climb from there be worth it.
const WORTH: f64 = 1.1;

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

/// The change, from which a climb may begin as well, and how many times as long the step may be there; none for less than two kinds.
pub(super) fn start(ways: &[Kind<'_>]) -> Option<(Move, f64)> {
    let replicated = |k: &&Kind<'_>| k.open && k.now.sharding == Sharding::DataParallel && k.way == k.now;
    let (mut tables, mut kinds) = (Vec::new(), 0);
    let (mut wire, mut far) = ((0.0, 0.0), (0.0, 0.0));
    for now in ways.iter().filter(replicated) {
        let plain = Choice { sharding: Sharding::RowWise, ..now.now.clone() };
        // What can have no owners stays.
        let Some(owned) = ways.iter().find(|k| k.tables == now.tables && *k.way == plain) else { continue };
        kinds += 1;
        tables.extend(now.tables.iter().cloned());
        wire = (wire.0 + now.wire, wire.1 + owned.wire);
        far = (far.0 + now.far, far.1 + owned.far);
    }
    let ways = (Way::Owned("replicated"), Way::Owned("row-wise"));
    let start = Move { tables, ways, change: Change::AtOwners, wire, far, covered: false };
    (kinds > 1).then_some((start, WORTH))
}
