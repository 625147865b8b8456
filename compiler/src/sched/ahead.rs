//! What the host must learn of an operation before others can start: planned a batch ahead, in a queue that holds up nothing.
//!
//! How many entries a batch asks for, how many of each class: a GPU knows when the operation has ended, the host a little
//! later, and a queue starts nothing while one of its operations is under way. Three things keep compute from standing still
//! for that, as far as no bound on the step grows:
//!
//! - *a queue of its own*: operations on ids (the input dist) have a greater priority than what else compute does. Each waits for
//!   the operation of the other queue behind which it is planned, so the order is as planned, but what is planned behind it
//!   does not wait for it unless it needs it;
//! - *a batch ahead*: what lookups need is planned before the loss of the batch before, what gradients need before that of
//!   their own, so that the host always has the other half of a step to start;
//! - *room* ([`CostModel::room`](super::costs::CostModel::room)) between what the host learns and what needs it.
//!
//! The last two are planned with only: no operation of the finished schedule waits for them.

use fs_schedule::action::{Effect, Phase, Runs};
use fs_schedule::{Action, Way};

use super::bounds;
use super::deps::Before;
use super::freeze::Frozen;
use super::graph::{Edge, Graph, Why};
use super::problem::Problem;

/// Priority of operations on ids: one more than that of what else compute does.
const PRIORITY: i32 = 1;

/// Whether an operation is work on ids that compute does.
fn on_ids(action: &Action) -> bool {
    let facts = action.facts();
    facts.runs == Runs::Compute && facts.phase == Phase::InputDist
}

/// Gives work on ids its queue.
pub(super) fn queue(p: &Problem<'_>, priorities: &mut [i32]) {
    for (priority, _) in priorities.iter_mut().zip(p.ops()).filter(|(_, op)| on_ids(&op.action)) {
        *priority = PRIORITY;
    }
}

/// For work on ids in a list in that order what else compute does before it: relations between positions of the list.
pub(super) fn behind<'a>(p: &'a Problem<'_>, order: &'a [u32]) -> impl Iterator<Item = Before> + 'a {
    let mut last = None;
    let twice = order.iter().enumerate().map(|at| (0, at)).chain(order.iter().enumerate().map(|at| (1, at)));
    twice.filter_map(move |(lap, (to, op))| {
        let action = &p.op(*op as usize).action;
        if on_ids(action) {
            let (before, from) = last.filter(|_| lap == 1)?;
            return Some(Before { from, to: to as u32, steps: lap - before });
        }
        if action.facts().runs == Runs::Compute {
            last = Some((lap, to as u32));
        }
        None
    })
}

/// What is planned before losses.
fn before_losses(p: &Problem<'_>) -> impl Iterator<Item = Edge> {
    let loss = p.ops().position(|op| op.action.has(Effect::AddsLoss));
    let learned = p.ops().enumerate().filter(|(_, op)| op.action.facts().learns.host_sync);
    loss.into_iter().flat_map(move |loss| {
        learned.clone().map(move |(from, op)| {
            let distance = if op.action.facts().of.way == Some(Way::Backward) { 0 } else { -1 };
            Edge { from: from as u32, to: loss as u32, distance, why: Why::Ahead }
        })
    })
}

/// A graph with what is to be planned besides, or without what would make steps of `bound` nanoseconds impossible.
pub(super) fn plan(p: &Problem<'_>, graph: &Graph, bound: f64) -> Graph {
    let room = graph.clone().lagging(p.room.clone());
    let ahead = room.with(before_losses(p));
    for planned in [ahead, room] {
        if bounds::rec_mii(&planned, &p.time).is_ok_and(|r| r.time <= bound) {
            return planned;
        }
    }
    graph.clone()
}

/// What is learned later than that in a step, in a sentence.
pub(super) fn late(p: &Problem<'_>, frozen: &Frozen) -> Option<String> {
    let room = p.graph.clone().lagging(p.room.clone()).with(before_losses(p));
    let late = |e: &&Edge| {
        let (from, to) = (e.from as usize, e.to as usize);
        let known = frozen.position[from] + room.until(&p.time, from) as i64;
        p.room[from] > 0 && known > frozen.position[to] + frozen.ii * i64::from(e.distance)
    };
    let late = room.edges.iter().find(late)?;
    Some(format!(
        "host: what it must learn of `{}` is not planned a batch ahead, so a GPU may wait for it; more batches in flight may help",
        p.op(late.from as usize).name
    ))
}
