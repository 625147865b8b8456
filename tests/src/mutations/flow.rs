//! Schedules whose executions go wrong: order, storage, updates and exchanges.

use fs_schedule::{Action, Dep, Extent, Place, Schedule, Symbol, Way};

use super::{
    Mutation, adds, again, all, apply_apply, apply_gather, buffer_pairs, classes_of_gather, find,
    gather_apply, order, rank, remove, says, unorder, unorder_any, update, uses,
};

pub(super) const MUTATIONS: &[Mutation] = &[
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
        // Of one exchange and side: others would break the types already.
        let rows = |at: usize| match s.train.ops[at].reads[0].place {
            Place::Buffer(n) => s.train.buffers.get(n as usize).map(|b| b.rows),
            _ => None,
        };
        let (f, b) = f.iter().find_map(|f| Some((*f, *b.iter().find(|b| rows(**b) == rows(*f))?)))?;
        s.train.ops[f].reads[0] = s.train.ops[b].reads[0];
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
