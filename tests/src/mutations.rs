//! Kinds of corruption of a schedule, each with the rule that must catch it.
//!
//! Those that take order away cut dependencies until nothing orders two operations that must be; the others change
//! what the file says. docs/exactness.md lists them.

use fs_schedule::model::{Duration, Engine, Init, InputKind, Schedule, Sharding, SparseOptimizer, Strategy};
use fs_schedule::op::{Action, Dep, Element, Extent, Op, Operand, Place, Way};
use fs_schedule::{Reuse, Symbol};

use crate::arrange::{reaches, waits};
use crate::schedules::Plan;

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
pub fn bases() -> Vec<(String, Plan)> {
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
            for (microbatches, unique) in [(1, true), (2, true), (4, true), (2, false)] {
                let fused = tables.len() > 1;
                let plan =
                    Plan { fused, ..Plan::new(strategy, lookahead, microbatches).tables(tables.clone()) };
                let k = lookahead.map_or(String::new(), |k| format!(", K = {k}"));
                let rows = if unique { "" } else { ", a row per occurrence" };
                let plan = Plan { unique, ..plan };
                out.push((format!("{strategy:?}{k}, M = {microbatches}, {name}{rows}"), plan));
            }
        }
    }
    out
}

/// Position of the first operation that fits.
fn find(s: &Schedule, fits: impl Fn(&Action) -> bool) -> Option<usize> {
    s.train.ops.iter().position(|op| fits(&op.action))
}

fn all(s: &Schedule, fits: impl Fn(&Action) -> bool) -> Vec<usize> {
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
    let microbatches = s.settings.microbatches;
    s.exchanges[e as usize].lookahead.map(|lookahead| Reuse { lookahead, microbatches })
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
fn remove(s: &mut Schedule, at: usize) {
    let gone = s.train.ops.remove(at);
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

/// The kinds.
pub const MUTATIONS: &[Mutation] = &[
    says("another version", "version", |s| {
        s.version = 99;
        Some(())
    }),
    says("another format", "version", |s| {
        s.format = "chakra".into();
        Some(())
    }),
    says("a name of a megabyte", "limits", |s| {
        s.train.ops[0].name = "x".repeat(1 << 20);
        Some(())
    }),
    says("more queues than clocks can tell apart", "limits", |s| {
        (0..).zip(&mut s.train.ops).for_each(|(i, op)| op.priority = i);
        (s.train.ops.len() > 64).then_some(())
    }),
    says("no samples in a batch", "settings", |s| {
        s.settings.batch = 0;
        Some(())
    }),
    says("no ranks", "settings", |s| {
        s.ranks = 0;
        Some(())
    }),
    says("no steps", "settings", |s| {
        s.settings.duration = Duration::Steps(0);
        Some(())
    }),
    says("no microbatches", "settings", |s| {
        s.settings.microbatches = 0;
        Some(())
    }),
    says("a table without rows", "tables", |s| {
        s.tables[0].rows = 0;
        Some(())
    }),
    says("an infinite initial value", "tables", |s| {
        s.tables[0].init = Init::Constant(f64::INFINITY);
        Some(())
    }),
    says("two parameters of one name", "tables", |s| {
        s.parameters[1].name = s.parameters[0].name.clone();
        Some(())
    }),
    says("an exchange of a table that is not there", "tables", |s| {
        s.exchanges[0].table = 77;
        Some(())
    }),
    says("a table on a rank that is not there", "sharding", |s| {
        let found = s.tables.iter_mut().find_map(|t| match &mut t.sharding {
            Sharding::TableWise { rank } => Some(rank),
            Sharding::ColumnWise { ranks } => ranks.first_mut(),
            _ => None,
        });
        *found? = 9;
        Some(())
    }),
    says("a column-wise table with a row-wise optimizer", "sharding", |s| {
        let t = s.tables.iter_mut().find(|t| t.sharding.parts() > 1)?;
        t.optimizer = SparseOptimizer::RowwiseAdagrad { lr: 0.1, eps: 1e-8 };
        Some(())
    }),
    says("a part of the columns that no exchange moves", "exchanges", |s| {
        let t = s.tables.iter_mut().find(|t| t.sharding.parts() > 1)?;
        t.sharding = Sharding::ColumnWise { ranks: vec![0, 1, 0] };
        Some(())
    }),
    says("a part that sends entries of its own", "exchanges", |s| {
        let e = s.exchanges.iter().position(|x| x.part > 0)?;
        s.exchanges[e].entries = e as u32;
        Some(())
    }),
    says("a lookahead beyond the limit", "exchanges", |s| {
        let x = s.exchanges.iter_mut().find(|x| x.lookahead.is_some())?;
        x.lookahead = Some(65);
        Some(())
    }),
    says("a sequence of a group that is not there", "inputs", |s| {
        s.inputs[0].kind = InputKind::TokenLabel { lengths: 99 };
        Some(())
    }),
    says("a group of empty sequences", "inputs", |s| {
        s.lengths[0].max = 0;
        Some(())
    }),
    says("an operand that is not there", "indices", |s| {
        let at = linear(s)?;
        s.train.ops[at].reads[0] = Operand::buffer(9999);
        Some(())
    }),
    says("columns outside of a buffer", "indices", |s| {
        let at = linear(s)?;
        s.train.ops[at].reads[0].columns = Some((0, 1 << 20));
        Some(())
    }),
    says("rows of an unknown length group", "indices", |s| {
        s.train.buffers[0].rows = Extent::Symbol(Symbol::Tokens(99));
        Some(())
    }),
    says("rows of a class that is not there", "indices", |s| {
        s.train.buffers[0].rows = Extent::Symbol(Symbol::SentClass(0, Way::Forward, 200));
        Some(())
    }),
    says("a dependency on nothing", "indices", |s| {
        s.train.ops[3].deps.push(Dep { op: 9999, distance: 0 });
        Some(())
    }),
    says("a buffer without copies", "indices", |s| {
        s.train.buffers[0].copies = 0;
        Some(())
    }),
    says("a missing operand", "operands", |s| {
        let at = linear(s)?;
        s.train.ops[at].reads.pop();
        Some(())
    }),
    says("a weight of another layer", "operands", |s| {
        let at = *all(s, |a| matches!(a, Action::Linear { .. })).get(1)?;
        s.train.ops[at].reads[1] = Operand::new(Place::Parameter(0));
        Some(())
    }),
    says("a result of another type", "operands", |s| {
        let at = find(s, |a| matches!(a, Action::Unique { .. }))?;
        let Place::Buffer(b) = s.train.ops[at].writes[0].place else { return None };
        s.train.buffers[b as usize].element = Element::Real;
        Some(())
    }),
    says("positions of another class", "operands", |s| {
        let gathers = all(s, |a| classes_of_gather(a).is_some());
        let other = s.train.ops[*gathers.get(1)?].reads[2];
        s.train.ops[gathers[0]].reads[2] = other;
        Some(())
    }),
    says("a partition that is not shown the oldest batch", "operands", |s| {
        let at = find(s, |a| matches!(a, Action::Partition { .. }))?;
        s.train.ops[at].reads.pop();
        Some(())
    }),
    says("two operations of one name", "names", |s| {
        s.train.ops[2].name = s.train.ops[1].name.clone();
        Some(())
    }),
    says("a wait cycle within a step", "order", |s| {
        let (i, d) = s
            .train
            .ops
            .iter()
            .enumerate()
            .find_map(|(i, op)| op.deps.iter().find(|d| d.distance == 0).map(|d| (i, d.op as usize)))?;
        s.train.ops[d].deps.push(Dep { op: i as u32, distance: 0 });
        Some(())
    }),
    says("an operation that waits for itself", "order", |s| {
        s.train.ops[3].deps.push(Dep { op: 3, distance: 0 });
        Some(())
    }),
    says("a dependency twice", "order", |s| {
        let op = s.train.ops.iter_mut().find(|o| !o.deps.is_empty())?;
        op.deps.push(op.deps[0]);
        Some(())
    }),
    says("an operation that overwrites what it reads", "writes", |s| {
        let at = find(s, |a| matches!(a, Action::Add))?;
        s.train.ops[at].writes[0] = s.train.ops[at].reads[0];
        Some(())
    }),
    says("an addition by an operation that overwrites", "writes", |s| {
        let at = linear(s)?;
        s.train.ops[at].writes[0].accumulate = true;
        Some(())
    }),
    says("an input that is written", "writes", |s| {
        let at = linear(s)?;
        s.train.ops[at].writes[0] = Operand::new(Place::Parameter(0));
        Some(())
    }),
    says("a transfer on the compute engine", "engines", |s| {
        let at = find(s, |a| matches!(a, Action::AllReduce))?;
        s.train.ops[at].engine = Engine::Compute;
        Some(())
    }),
    says("an engine that is not declared", "engines", |s| {
        s.engines.pop();
        Some(())
    }),
    says("a stage out of range", "stages", |s| {
        s.train.ops[0].stage = 65;
        Some(())
    }),
    says("a chunk of no bytes", "chunks", |s| {
        let at = find(s, |a| matches!(a, Action::AllReduce))?;
        s.train.ops[at].chunk = Some(0);
        Some(())
    }),
    says("chunks of a matrix product", "chunks", |s| {
        let at = linear(s)?;
        s.train.ops[at].chunk = Some(64);
        Some(())
    }),
    says("a plan against the queue's order", "times", |s| {
        let at = linear(s)?;
        s.train.ops[at].start = 1 << 50;
        Some(())
    }),
    says("a matrix product with another batch's activations", "offsets", |s| {
        let at = linear(s)?;
        s.train.ops[at].reads[0].batch = -1;
        Some(())
    }),
    says("a result for another batch", "offsets", |s| {
        let at = linear(s)?;
        s.train.ops[at].writes[0].batch = 1;
        Some(())
    }),
    says("samples of another microbatch", "microbatch", |s| {
        let expands = all(s, |a| matches!(a, Action::Expand));
        let (a, b) = (*expands.first()?, *expands.iter().find(|i| s.train.ops[**i].microbatch == Some(1))?);
        let other = s.train.ops[b].reads[1];
        s.train.ops[a].reads[1] = other;
        Some(())
    }),
    says("ids of microbatches in another order", "microbatch", |s| {
        let at = find(s, |a| matches!(a, Action::Unique { .. }))?;
        let n = s.train.ops[at].writes.len();
        s.train.ops[at].writes.swap(n - 1, n - 2);
        (s.settings.microbatches > 1).then_some(())
    }),
    order("a dependency on the writer of an operand dropped", "fresh", |s| {
        let pairs = buffer_pairs(s, |x, y, b| uses(x, b).1 && uses(y, b).0);
        unorder_any(s, pairs)
    }),
    order("rows of another batch compared before they arrive", "fresh", |s| {
        let mut pairs = Vec::new();
        for (y, op) in s.train.ops.iter().enumerate() {
            for o in op.reads.iter().filter(|o| o.batch != 0) {
                let writer = s.train.ops.iter().position(|x| uses(x, o.place).1);
                pairs.extend(writer.map(|x| (x, y, -i64::from(o.batch))));
            }
        }
        unorder_any(s, pairs)
    }),
    says("an addition to nothing", "fresh", |s| {
        let at = find(s, |a| matches!(a, Action::LinearGradInput))?;
        s.train.ops[at].writes[0].accumulate = true;
        Some(())
    }),
    order("additions in no certain order", "sums", |s| {
        // Kernels of one queue are ordered by it; a queue of its own is what makes a sum race.
        let op = s
            .train
            .ops
            .iter()
            .rposition(|op| adds(op, op.writes.first().map_or(Place::Table(0), |w| w.place)))?;
        let place = s.train.ops[op].writes[0].place;
        let first = s
            .train
            .ops
            .iter()
            .position(|x| uses(x, place).1 && x.microbatch != s.train.ops[op].microbatch)?;
        s.train.ops[op].priority = 7;
        let (x, y) = if rank(s, first) < rank(s, op) { (first, op) } else { (op, first) };
        unorder(s, x, y, 0)
    }),
    order("an addition while an earlier reader runs", "storage", |s| {
        let pairs = buffer_pairs(s, |x, y, b| uses(x, b).0 && adds(y, b));
        let (x, y, d) = *pairs.first()?;
        s.train.ops[y].priority = 7;
        unorder(s, x, y, d)
    }),
    says("a lifetime that ends too early", "storage", |s| {
        let early = s.train.buffers.iter().position(|b| b.last != b.first)?;
        s.train.buffers[early].last = s.train.buffers[early].first;
        Some(())
    }),
    says("two living buffers in one slot", "storage", |s| {
        let b = &s.train.buffers;
        let single = |i: usize| b[i].copies == 1;
        let (i, j) = (0..b.len()).flat_map(|i| (0..i).map(move |j| (i, j))).find(|(i, j)| {
            let lives = b[*i].first <= b[*j].last && b[*j].first <= b[*i].last;
            lives && b[*i].element == b[*j].element && b[*i].slot != b[*j].slot && single(*i) && single(*j)
        })?;
        s.train.buffers[i].slot = s.train.buffers[j].slot;
        Some(())
    }),
    says("a buffer with copies in a shared slot", "storage", |s| {
        let i = s.train.buffers.iter().position(|b| b.copies > 1)?;
        let j = (0..s.train.buffers.len())
            .find(|j| *j != i && s.train.buffers[*j].element == s.train.buffers[i].element)?;
        s.train.buffers[i].slot = s.train.buffers[j].slot;
        Some(())
    }),
    order("a slot taken over before its last reader is done", "storage", |s| {
        let mut pairs = Vec::new();
        let b = &s.train.buffers;
        for i in 0..b.len() {
            for j in 0..b.len() {
                if i == j || (b[i].element, b[i].slot) != (b[j].element, b[j].slot) || b[i].last >= b[j].first
                {
                    continue;
                }
                for (x, op) in s.train.ops.iter().enumerate() {
                    if uses(op, Place::Buffer(i as u32)).0 {
                        pairs.push((x, b[j].first as usize, 0));
                    }
                }
            }
        }
        unorder_any(s, pairs)
    }),
    order("too few copies", "copies", |s| {
        let b = s.train.buffers.iter_mut().find(|b| b.copies > 1)?;
        b.copies -= 1;
        Some(())
    }),
    order("a copy written again while it is read", "copies", |s| {
        let mut pairs = Vec::new();
        for (b, buffer) in (0..).zip(&s.train.buffers) {
            for (y, w) in s.train.ops.iter().enumerate() {
                for (x, op) in s.train.ops.iter().enumerate() {
                    if uses(w, Place::Buffer(b)).1
                        && !adds(w, Place::Buffer(b))
                        && uses(op, Place::Buffer(b)).0
                    {
                        pairs.push((x, y, i64::from(buffer.copies)));
                    }
                }
            }
        }
        unorder_any(s, pairs)
    }),
    says("two batches in a step", "frame", |s| {
        let at = find(s, |a| matches!(a, Action::LoadBatch))?;
        again(s, at);
        Some(())
    }),
    says("an evaluation that updates", "frame", |s| {
        s.evaluation = Some(s.train.clone());
        (s.settings.microbatches == 1).then_some(())
    }),
    order("an operation on the batch before it is loaded", "batch", |s| {
        let load = find(s, |a| matches!(a, Action::LoadBatch))?;
        let first = find(s, |a| matches!(a, Action::Unique { .. }))?;
        unorder(s, load, first, 0)
    }),
    order("one batch in flight too few", "in-flight", |s| {
        s.train.in_flight -= 1;
        (s.train.in_flight > 0).then_some(())
    }),
    order("a batch that is loaded too early", "in-flight", |s| {
        let load = find(s, |a| matches!(a, Action::LoadBatch))?;
        let users = all(s, |a| matches!(a, Action::BceWithLogits { .. }));
        let flight = i64::from(s.train.in_flight);
        unorder_any(s, users.into_iter().map(|x| (x, load, flight)))
    }),
    says("a bucket that is not reduced", "dense", |s| {
        let at = find(s, |a| matches!(a, Action::AllReduce))?;
        remove(s, at);
        Some(())
    }),
    says("a bucket that is reduced twice", "dense", |s| {
        let at = find(s, |a| matches!(a, Action::AllReduce))?;
        again(s, at);
        Some(())
    }),
    says("a parameter that is not updated", "dense", |s| {
        let at = update(s)?;
        remove(s, at);
        Some(())
    }),
    order("a gradient reduced before it is complete", "fresh", |s| {
        let reductions = all(s, |a| matches!(a, Action::AllReduce));
        let mut pairs = Vec::new();
        for y in reductions {
            for g in &s.train.ops[y].reads {
                let makers = (0..s.train.ops.len()).filter(|x| uses(&s.train.ops[*x], g.place).1 && *x != y);
                pairs.extend(makers.map(|x| (x, y, 0)));
            }
        }
        unorder_any(s, pairs)
    }),
    order("a gradient written again before its update", "dense", |s| {
        let at = update(s)?;
        let g = s.train.ops[at].reads[0].place;
        let makers = all(s, |a| matches!(a, Action::LinearGradWeight { .. }));
        let w = makers.into_iter().find(|x| uses(&s.train.ops[*x], g).1 && !adds(&s.train.ops[*x], g))?;
        s.train.ops[at].priority = 7;
        unorder(s, at, w, 1)
    }),
    order("a parameter read before its update", "parameter", |s| {
        let mut pairs = Vec::new();
        for x in all(s, |a| matches!(a, Action::DenseUpdate)) {
            for w in &s.train.ops[x].writes {
                let readers = (0..s.train.ops.len()).filter(|y| uses(&s.train.ops[*y], w.place).0);
                pairs.extend(readers.map(|y| (x, y, 1)));
            }
        }
        s.train.ops[pairs.first()?.0].priority = 7;
        unorder_any(s, pairs)
    }),
    order("a parameter updated while it is read", "parameter", |s| {
        let at = update(s)?;
        let p = s.train.ops[at].writes[0].place;
        let last = s.train.ops.iter().rposition(|op| uses(op, p).0)?;
        s.train.ops[last].priority = 7;
        unorder(s, last, at, 0)
    }),
    order("a lookup of the next batch before the update", "fresh-read", |s| {
        let pairs = apply_gather(s, 1);
        unorder_any(s, pairs)
    }),
    order("a deferred update after the early lookup of a row used in n and n + 2", "fresh-read", |s| {
        let pairs = apply_gather(s, 2);
        unorder_any(s, pairs)
    }),
    order("a distance off by one between update and lookup", "fresh-read", |s| {
        for (x, y, d) in apply_gather(s, 1) {
            let steps = d + i64::from(s.train.ops[x].stage) - i64::from(s.train.ops[y].stage);
            let dep = Dep { op: x as u32, distance: u32::try_from(steps).ok()? };
            if let Some(d) = s.train.ops[y].deps.iter_mut().find(|d| **d == dep) {
                d.distance += 1;
                return Some(());
            }
        }
        None
    }),
    order("an update before its own batch's lookup", "early-write", |s| {
        let pairs = gather_apply(s);
        unorder_any(s, pairs)
    }),
    order("updates of one row in no certain order", "apply-order", |s| {
        let (x, y, d) = apply_apply(s).into_iter().find(|(x, y, _)| x != y)?;
        s.train.ops[y].priority = 7;
        unorder(s, x, y, d)
    }),
    order("an urgent lookup moved one step ahead", "fresh-read", |s| {
        let (_, y, _) = apply_gather(s, 1)
            .into_iter()
            .find(|(x, y, d)| *d == 1 && s.train.ops[*x].stage == 0 && s.train.ops[*y].stage == 0)?;
        s.train.ops[y].stage += 1;
        Some(())
    }),
    order("an update moved one step behind", "fresh-read", |s| {
        let (x, _, _) = apply_gather(s, 1)
            .into_iter()
            .find(|(x, y, d)| *d == 1 && s.train.ops[*x].stage == 0 && s.train.ops[*y].stage == 0)?;
        s.train.ops[x].stage -= 1;
        Some(())
    }),
    says("a class of lookups missing", "exchange", |s| {
        let at = find(s, |a| classes_of_gather(a).is_some())?;
        remove(s, at);
        Some(())
    }),
    says("a class of lookups twice", "exchange", |s| {
        let at = find(s, |a| classes_of_gather(a).is_some())?;
        again(s, at);
        Some(())
    }),
    says("all rows looked up beside a class of them", "exchange", |s| {
        let at = find(s, |a| classes_of_gather(a).is_some())?;
        let op = &mut s.train.ops[at];
        let Action::Gather { exchange, .. } = op.action else { return None };
        op.action = Action::Gather { exchange, class: None };
        op.reads.pop();
        let Place::Buffer(b) = op.writes[0].place else { return None };
        s.train.buffers[b as usize].rows = Extent::Symbol(Symbol::Received(exchange));
        // The transfer no longer fits by its size, so it goes too.
        let place = Place::Buffer(b);
        let reader = s.train.ops.iter().position(|op| uses(op, place).0)?;
        remove(s, reader);
        Some(())
    }),
    says("a class that no merge takes", "exchange", |s| {
        let at = s
            .train
            .ops
            .iter()
            .position(|op| matches!(&op.action, Action::Merge { classes, .. } if classes.len() > 1))?;
        let op = &mut s.train.ops[at];
        op.reads.truncate(op.reads.len() - 2);
        if let Action::Merge { classes, .. } = &mut op.action {
            classes.pop();
        }
        Some(())
    }),
    says("a later microbatch's merge left out", "exchange", |s| {
        let at = all(s, |a| matches!(a, Action::Merge { .. }))
            .into_iter()
            .rev()
            .find(|i| s.train.ops[*i].writes[0].accumulate)?;
        remove(s, at);
        Some(())
    }),
    says("rows read before those of their microbatch are merged", "exchange", |s| {
        let merge = all(s, |a| matches!(a, Action::Merge { .. }))
            .into_iter()
            .rev()
            .find(|i| s.train.ops[*i].writes[0].accumulate)?;
        let rows = s.train.ops[merge].writes[0].place;
        // A reader of an earlier microbatch claims to be of a later one.
        let reader = s.train.ops.iter().position(|op| uses(op, rows).0 && op.microbatch == Some(0))?;
        let last = s.settings.microbatches - 1;
        s.train.ops[reader].microbatch = Some(last);
        for o in s.train.ops[reader].reads.clone().iter().chain(&s.train.ops[reader].writes.clone()) {
            if let Place::Buffer(b) = o.place
                && s.train.buffers[b as usize].microbatch.is_some()
            {
                return claim(s, reader, last);
            }
        }
        Some(())
    }),
    says("a class of updates missing", "exchange", |s| {
        let at = find(s, |a| matches!(a, Action::Apply { .. }))?;
        remove(s, at);
        Some(())
    }),
    says("gradients applied twice", "exchange", |s| {
        let at = find(s, |a| matches!(a, Action::Apply { .. }))?;
        again(s, at);
        Some(())
    }),
    says("gradients sent twice", "exchange", |s| {
        let at = find(s, |a| matches!(a, Action::AllToAllGrads { .. } | Action::AllGatherGrads { .. }))?;
        again(s, at);
        Some(())
    }),
    says("rows sent in place of their gradients", "exchange", |s| {
        let at = s.train.ops.iter().position(|op| match op.action {
            Action::Split { .. } => true,
            Action::AllToAllGrads { class, .. } | Action::AllGatherGrads { class, .. } => class.is_none(),
            _ => false,
        })?;
        let expand = find(s, |a| matches!(a, Action::Expand))?;
        let rows = s.train.ops[expand].reads[0].place;
        s.train.ops[at].reads[0].place = rows;
        Some(())
    }),
    says("gradients sent before the last is added", "exchange", |s| {
        let at = s.train.ops.iter().position(|op| match op.action {
            Action::Split { .. } => true,
            Action::AllToAllGrads { class, .. } | Action::AllGatherGrads { class, .. } => class.is_none(),
            _ => false,
        })?;
        let sums = s.train.ops[at].reads[0].place;
        let writers = s.train.ops.iter().filter(|op| uses(op, sums).1);
        s.train.ops[at].stage = writers.map(|op| op.stage).max()? + 1;
        Some(())
    }),
    says("classes of gradients used for lookups", "exchange", |s| {
        let positions = |w: Way| all(s, |a| matches!(a, Action::Positions { way, .. } if *way == w));
        let (f, b) = (positions(Way::Forward), positions(Way::Backward));
        let other = s.train.ops[*b.first()?].reads[0];
        s.train.ops[*f.first()?].reads[0] = other;
        Some(())
    }),
    says("a partition that compares with one batch twice", "history", |s| {
        let at = s.train.ops.iter().position(|op| {
            matches!(op.action, Action::Partition { .. }) && op.reads.iter().any(|o| o.batch.abs() > 1)
        })?;
        s.train.ops[at].reads.iter_mut().for_each(|o| o.batch = o.batch.signum());
        Some(())
    }),
    says("a partition that looks the wrong way in time", "history", |s| {
        let at = find(s, |a| matches!(a, Action::Partition { .. }))?;
        s.train.ops[at].reads.iter_mut().for_each(|o| o.batch = -o.batch);
        Some(())
    }),
    says("counts of the wrong side", "collective", |s| {
        let at = find(s, |a| matches!(a, Action::AllToAllRows { .. } | Action::AllGatherGrads { .. }))?;
        s.train.ops[at].reads.swap(1, 2);
        Some(())
    }),
    says("counts of another class", "collective", |s| {
        let list = all(s, |a| {
            matches!(
                a,
                Action::AllToAllGrads { class: Some(_), .. } | Action::AllGatherGrads { class: Some(_), .. }
            )
        });
        let other = s.train.ops[*list.get(1)?].reads[2];
        s.train.ops[list[0]].reads[2] = other;
        Some(())
    }),
    says("two collectives with each other's counts", "collective", |s| {
        let list = all(s, |a| matches!(a, Action::AllToAllRows { class: Some(_), .. }));
        let (a, b) = (*list.first()?, *list.get(1)?);
        let swap = s.train.ops[a].reads[1];
        s.train.ops[a].reads[1] = s.train.ops[b].reads[1];
        s.train.ops[b].reads[1] = swap;
        Some(())
    }),
    says("a replicated table's gradients scattered", "collective", |s| {
        let at = find(s, |a| matches!(a, Action::AllGatherGrads { .. }))?;
        let Action::AllGatherGrads { exchanges, class } = s.train.ops[at].action.clone() else { return None };
        s.train.ops[at].action = Action::AllToAllGrads { exchanges, class };
        Some(())
    }),
    says("an update with another class's counts", "collective", |s| {
        let list = all(s, |a| matches!(a, Action::Apply { class: Some(_), .. }));
        let other = s.train.ops[*list.get(1)?].reads[2];
        s.train.ops[list[0]].reads[2] = other;
        Some(())
    }),
];

/// Moves an operation's samples to another microbatch, as far as buffers say.
fn claim(s: &mut Schedule, reader: usize, microbatch: u32) -> Option<()> {
    let op = s.train.ops[reader].clone();
    for o in op.reads.iter().chain(&op.writes) {
        let Place::Buffer(b) = o.place else { continue };
        if s.train.buffers[b as usize].microbatch.is_none() {
            continue;
        }
        let name = s.train.buffers[b as usize].name.clone();
        let (stem, _) = name.rsplit_once('.')?;
        let wanted = format!("{stem}.{microbatch}");
        let other = s.train.buffers.iter().position(|x| x.name == wanted)? as u32;
        let op = &mut s.train.ops[reader];
        for o in op.reads.iter_mut().chain(&mut op.writes) {
            if o.place == Place::Buffer(b) {
                o.place = Place::Buffer(other);
            }
        }
    }
    Some(())
}
