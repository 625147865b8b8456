//! Kinds of corruption of a schedule, each with the rule that must catch it.
//!
//! Those that take order away cut dependencies until nothing orders two operations that must be; the others change
//! what the file says. docs/exactness.md lists them.

use fs_schedule::{Action, Dep, Op, Place, Reuse, Schedule, Sharding, Strategy};

mod balance;
mod flow;
mod form;
mod hot;
mod model;
mod ranking;
mod relay;
mod wire;

pub use balance::{BALANCED, BALANCED_MODEL, CARRIED, CLASSES_MODEL, FOLDED};
pub use hot::HOT;
pub use ranking::RANKING;
pub use relay::{RELAYED, RELAYED_MODEL};
pub use wire::ROUNDED;

use crate::arrange::{reaches, waits};
use crate::schedules::Recipe;

/// A kind of corruption.
pub struct Mutation {
    /// What is wrong.
    pub name: &'static str,
    /// The rule that must catch it.
    pub rule: &'static str,
    /// True if only the order of operations is wrong, which some execution shows.
    pub order: bool,
    /// Corrupts, if the schedule has such a place.
    pub corrupt: fn(&mut Schedule) -> Option<()>,
}

const fn says(name: &'static str, rule: &'static str, corrupt: fn(&mut Schedule) -> Option<()>) -> Mutation {
    Mutation { name, rule, order: false, corrupt }
}
const fn order(name: &'static str, rule: &'static str, corrupt: fn(&mut Schedule) -> Option<()>) -> Mutation {
    Mutation { name, rule, order: true, corrupt }
}

/// Schedules to corrupt: every strategy, lookahead, number of microbatches and sharding.
pub fn bases() -> Vec<(String, Recipe)> {
    let column = || Sharding::ColumnWise { ranks: vec![1, 0] };
    let shardings = [
        ("row-wise", vec![Sharding::RowWise]),
        ("table-wise", vec![Sharding::TableWise { rank: 1 }]),
        ("column-wise", vec![column()]),
        ("data-parallel", vec![Sharding::DataParallel]),
        ("mixed, fused", vec![Sharding::RowWise, Sharding::DataParallel, column()]),
    ];
    let mut out = Vec::new();
    for (name, tables) in shardings {
        for (strategy, lookahead) in [
            (Strategy::Serial, None),
            (Strategy::Prefetch, None),
            (Strategy::Serial, Some(1)),
            (Strategy::Pec, Some(1)),
            (Strategy::Pec, Some(2)),
            (Strategy::Pec, Some(3)),
        ] {
            for (microbatches, windows, unique) in [
                (1, None, true),
                (2, None, true),
                (4, None, true),
                (2, None, false),
                (2, Some(1), true),
                (4, Some(2), true),
            ] {
                if lookahead.is_none() && windows.is_some() {
                    continue;
                }
                let fused = tables.len() > 1;
                let plan =
                    Recipe { fused, ..Recipe::new(strategy, lookahead, microbatches).tables(tables.clone()) };
                let k = lookahead.map_or(String::new(), |k| format!(", K = {k}"));
                let rows = if unique { "" } else { ", a row per occurrence" };
                let w = windows.map_or(String::new(), |w| format!(", W = {w}"));
                let plan = Recipe { windows, unique, ..plan };
                out.push((format!("{strategy:?}{k}, M = {microbatches}{w}, {name}{rows}"), plan));
            }
        }
    }
    out
}

/// Position of the first operation that fits.
pub(crate) fn find(s: &Schedule, fits: impl Fn(&Action) -> bool) -> Option<usize> {
    s.train.ops.iter().position(|op| fits(&op.action))
}

pub(crate) fn all(s: &Schedule, fits: impl Fn(&Action) -> bool) -> Vec<usize> {
    (0..s.train.ops.len()).filter(|i| fits(&s.train.ops[*i].action)).collect()
}

/// Position in the order of one batch.
fn rank(s: &Schedule, op: usize) -> (i32, usize) {
    (-s.train.ops[op].stage, op)
}

/// Cuts dependencies until nothing orders `x` of batch m before `y` of batch m + `batches`; not if queues do.
pub fn unorder(s: &mut Schedule, x: usize, y: usize, batches: i64) -> Option<()> {
    let steps = batches + i64::from(s.train.ops[x].stage) - i64::from(s.train.ops[y].stage);
    if steps < 0 {
        return None;
    }
    let queues = {
        let mut bare = s.train.clone();
        bare.ops.iter_mut().for_each(|op| op.deps.clear());
        waits(&bare)
    };
    if reaches(&queues, y, x, steps) {
        return None;
    }
    loop {
        let now = waits(&s.train);
        if !reaches(&now, y, x, steps) {
            return Some(());
        }
        // Drop the dependencies that lead from anything in y's reach to x's future, one operation at a time.
        let cut = (0..s.train.ops.len()).find_map(|i| {
            (0..s.train.ops[i].deps.len())
                .find(|n| {
                    let d = s.train.ops[i].deps[*n];

                    (0..=steps).any(|k| {
                        let here = (i == y && k == 0) || reaches(&now, y, i, k);
                        let left = steps - k - i64::from(d.distance);
                        let there = (d.op as usize == x && left == 0)
                            || (left >= 0 && reaches(&now, d.op as usize, x, left));
                        here && there
                    })
                })
                .map(|n| (i, n))
        })?;
        s.train.ops[cut.0].deps.remove(cut.1);
    }
}

/// Unorders the first pair for which that is possible.
fn unorder_any(s: &mut Schedule, pairs: impl IntoIterator<Item = (usize, usize, i64)>) -> Option<()> {
    for (x, y, d) in pairs {
        let before = s.train.clone();
        if unorder(s, x, y, d).is_some() {
            return Some(());
        }
        s.train = before;
    }
    None
}

fn uses(op: &Op, place: Place) -> (bool, bool) {
    (op.reads.iter().any(|o| o.place == place), op.writes.iter().any(|o| o.place == place))
}

/// Operations that write and read each buffer of their own batch, in the order of a batch.
fn buffer_pairs(s: &Schedule, wanted: impl Fn(&Op, &Op, Place) -> bool) -> Vec<(usize, usize, i64)> {
    let mut out = Vec::new();
    for b in 0..s.train.buffers.len() as u32 {
        let place = Place::Buffer(b);
        let users: Vec<usize> = (0..s.train.ops.len())
            .filter(|i| {
                let op = &s.train.ops[*i];
                let (reads, writes) = uses(op, place);
                writes || (reads && op.reads.iter().all(|o| o.place != place || o.batch == 0))
            })
            .collect();
        for x in &users {
            for y in &users {
                if rank(s, *x) < rank(s, *y) && wanted(&s.train.ops[*x], &s.train.ops[*y], place) {
                    out.push((*x, *y, 0));
                }
            }
        }
    }
    out
}

fn adds(op: &Op, place: Place) -> bool {
    op.writes.iter().any(|o| o.place == place && o.accumulate)
}

fn reuse(s: &Schedule, e: u32) -> Option<Reuse> {
    s.exchanges[e as usize].reuse(s.settings.microbatches)
}

/// Pairs of updates and lookups of one exchange with their distance; `least`: of at least so many batches.
fn apply_gather(s: &Schedule, least: u32) -> Vec<(usize, usize, i64)> {
    let mut out = Vec::new();
    for (i, a) in s.train.ops.iter().enumerate() {
        let Action::Apply { exchange, class } = a.action else { continue };
        for (j, g) in s.train.ops.iter().enumerate() {
            if let Action::Gather { exchange: e, class: c } = g.action
                && e == exchange
            {
                let d = reuse(s, e).map_or(Some(1), |r| r.apply_before_gather(class, c));
                out.extend(d.filter(|d| *d >= least).map(|d| (i, j, i64::from(d))));
            }
        }
    }
    out
}

fn gather_apply(s: &Schedule) -> Vec<(usize, usize, i64)> {
    let mut out = Vec::new();
    for (i, g) in s.train.ops.iter().enumerate() {
        let Action::Gather { exchange, class } = g.action else { continue };
        for (j, a) in s.train.ops.iter().enumerate() {
            if let Action::Apply { exchange: e, class: c } = a.action
                && e == exchange
                && reuse(s, e).is_none_or(|r| r.gather_before_apply(class, c))
            {
                out.push((i, j, 0));
            }
        }
    }
    out
}

fn apply_apply(s: &Schedule) -> Vec<(usize, usize, i64)> {
    let mut out = Vec::new();
    for (i, a) in s.train.ops.iter().enumerate() {
        let Action::Apply { exchange, class } = a.action else { continue };
        for (j, b) in s.train.ops.iter().enumerate() {
            if let Action::Apply { exchange: e, class: c } = b.action
                && e == exchange
            {
                let d = reuse(s, e).map_or(Some(1), |r| r.apply_before_apply(class, c));
                out.extend(d.map(|d| (i, j, i64::from(d))));
            }
        }
    }
    out
}

fn linear(s: &Schedule) -> Option<usize> {
    find(s, |a| matches!(a, Action::Linear { .. }))
}
fn update(s: &Schedule) -> Option<usize> {
    find(s, |a| matches!(a, Action::DenseUpdate))
}

/// Removes an operation; dependencies on it become its own.
pub(crate) fn remove(s: &mut Schedule, at: usize) {
    let gone = s.train.ops.remove(at);
    // It may be on the cycle, and the mutation is about something else.
    s.prediction = None;
    for op in &mut s.train.ops {
        let mut deps = Vec::new();
        for d in &op.deps {
            if d.op as usize == at {
                deps.extend(gone.deps.iter().map(|g| Dep { op: g.op, distance: g.distance + d.distance }));
            } else {
                deps.push(*d);
            }
        }
        deps.sort_unstable();
        deps.dedup();
        op.deps = deps.into_iter().filter(|d| d.op as usize != at).collect();
        for d in &mut op.deps {
            d.op -= u32::from(d.op as usize > at);
        }
    }
    for b in &mut s.train.buffers {
        b.first -= u32::from(b.first as usize > at);
        b.last = b.last.saturating_sub(u32::from(b.last as usize >= at));
    }
}

/// Puts an operation at a place in the list; dependencies and lifetimes follow.
pub(crate) fn insert(s: &mut Schedule, at: usize, op: Op) {
    let moved = |i: u32| i + u32::from(i as usize >= at);
    for d in s.train.ops.iter_mut().flat_map(|op| &mut op.deps) {
        d.op = moved(d.op);
    }
    for b in &mut s.train.buffers {
        (b.first, b.last) = (moved(b.first), moved(b.last));
    }
    // The mutation is about something else.
    s.prediction = None;
    s.train.ops.insert(at, op);
}

/// Appends a copy of an operation that waits for it.
fn again(s: &mut Schedule, at: usize) {
    let mut new = s.train.ops[at].clone();
    new.name += " again";
    new.stage = s.train.ops.iter().map(|op| op.stage).min().unwrap_or(0);
    new.start = u64::MAX >> 12;
    new.deps = vec![Dep { op: at as u32, distance: 0 }];
    s.train.ops.push(new);
}

fn classes_of_gather(a: &Action) -> Option<u32> {
    if let Action::Gather { class, .. } = a { *class } else { None }
}

/// The kinds: what a schedule says, then what its executions do.
pub fn mutations() -> impl Iterator<Item = &'static Mutation> {
    form::MUTATIONS.iter().chain(flow::MUTATIONS).chain(model::MUTATIONS)
}
