//! From the operations of one batch with stages to a schedule: constraints, copies, slots, the order of the step, and
//! dependencies of which none is implied by queues and the others.
//!
//! It shares nothing with the verifier: constraints come from going over conflicting uses, what is implied from
//! walking over unrolled steps.

use std::collections::{BTreeMap, BTreeSet};

use fs_schedule::{Action, Dep, Element, Engine, Op, Place, Program, Schedule};

/// X of batch m comes before Y of batch m + D.
type Constraint = (usize, usize, i64);

/// A use of shared storage.
#[derive(Clone, Copy)]
struct Use {
    op: usize,
    columns: (u32, u32),
    batch: i64,
    writes: bool,
    begins: bool,
}

impl Use {
    fn meets(&self, o: &Use) -> bool {
        self.columns.0 < o.columns.1 && o.columns.0 < self.columns.1
    }
}

/// Arranges the training program, whose operations are in reference order.
pub fn arrange(s: &mut Schedule) {
    s.train.ops.sort_by_key(|op| -op.stage);
    let uses = uses(&s.train);
    copies(&mut s.train, &uses);
    slots(&mut s.train, &uses);
    flight(&mut s.train);
    let constraints = constraints(s, &uses);
    let order = order(&s.train, &constraints);
    let mut at = vec![0; order.len()];
    for (new, old) in order.iter().enumerate() {
        at[*old] = new;
    }
    s.train.ops = order.iter().map(|old| s.train.ops[*old].clone()).collect();
    lifetimes(&mut s.train);
    let constraints = constraints.into_iter().map(|(x, y, d)| (at[x], at[y], d)).collect();
    depend(&mut s.train, constraints);
    for (i, op) in s.train.ops.iter_mut().enumerate() {
        (op.start, op.time) = (100 * i as u64, 100);
    }
}

fn uses(p: &Program) -> BTreeMap<Place, Vec<Use>> {
    let mut all: BTreeMap<Place, Vec<Use>> = BTreeMap::new();
    for (i, op) in p.ops.iter().enumerate() {
        let both = op.reads.iter().map(|o| (o, false)).chain(op.writes.iter().map(|o| (o, true)));
        for (o, writes) in both {
            let columns = match o.place {
                Place::Buffer(b) => o.columns.unwrap_or((0, p.buffers[b as usize].columns)),
                _ => (0, 1),
            };
            let begins = writes && !o.accumulate && !matches!(op.action, Action::AllReduce);
            let batch = i64::from(o.batch);
            all.entry(o.place).or_default().push(Use { op: i, columns, batch, writes, begins });
        }
    }
    all
}

fn stage(p: &Program, op: usize) -> i64 {
    i64::from(p.ops[op].stage)
}

/// As many copies as keep every use of a copy in an earlier step than its next life.
fn copies(p: &mut Program, uses: &BTreeMap<Place, Vec<Use>>) {
    for (place, list) in uses {
        let Place::Buffer(b) = place else { continue };
        let begins = list.iter().filter(|u| u.begins);
        let spans = begins.flat_map(|w| list.iter().map(move |u| (w, u)));
        let needed = spans.map(|(w, u)| stage(p, w.op) - stage(p, u.op) - u.batch + 1).max().unwrap_or(1);
        p.buffers[*b as usize].copies = needed.max(1) as u32;
    }
}

/// Buffers that live within one stage, one after the other, share a slot.
fn slots(p: &mut Program, uses: &BTreeMap<Place, Vec<Use>>) {
    let mut next: BTreeMap<Element, u32> = BTreeMap::new();
    // Stage, element, slot, free after this operation.
    let mut open: Vec<(i64, Element, u32, usize)> = Vec::new();
    let mut buffers: Vec<(usize, u32)> = uses
        .iter()
        .filter_map(|(place, list)| match place {
            Place::Buffer(b) => Some((list[0].op, *b)),
            _ => None,
        })
        .collect();
    buffers.sort_unstable();
    for (first, b) in buffers {
        let list = &uses[&Place::Buffer(b)];
        let own = stage(p, first);
        let last = list.iter().map(|u| u.op).max().unwrap_or(first);
        let shares =
            p.buffers[b as usize].copies == 1 && list.iter().all(|u| stage(p, u.op) == own && u.batch == 0);
        let element = p.buffers[b as usize].element;
        let found = open.iter().position(|o| shares && o.0 == own && o.1 == element && o.3 < first);
        let slot = if let Some(at) = found {
            open[at].3 = last;
            open[at].2
        } else {
            let n = next.entry(element).or_insert(0);
            *n += 1;
            if shares {
                open.push((own, element, *n - 1, last));
            }
            *n - 1
        };
        p.buffers[b as usize].slot = slot;
    }
}

fn load(p: &Program) -> usize {
    p.ops.iter().position(|op| matches!(op.action, Action::LoadBatch)).expect("a batch is loaded")
}

fn oldest(op: &Op) -> i64 {
    op.reads.iter().map(|o| i64::from(o.batch)).min().unwrap_or(0).min(0)
}

fn flight(p: &mut Program) {
    let load = load(p);
    let needed = p.ops.iter().enumerate().map(|(i, op)| stage(p, load) - stage(p, i) - oldest(op) + 1);
    p.in_flight = needed.max().unwrap_or(1).max(1) as u32;
}

fn constraints(s: &Schedule, uses: &BTreeMap<Place, Vec<Use>>) -> Vec<Constraint> {
    let p = &s.train;
    let mut out = Vec::new();
    for (place, list) in uses {
        match place {
            Place::Buffer(_) | Place::Gradient(_) => storage(p, *place, list, &mut out),
            Place::Parameter(_) => {
                for w in list.iter().filter(|u| u.writes) {
                    for u in list.iter().filter(|u| !u.writes) {
                        out.extend([(u.op, w.op, 0), (w.op, u.op, 1)]);
                    }
                }
            }
            _ => {}
        }
    }
    let mut slots: BTreeMap<(Element, u32), Vec<(usize, u32)>> = BTreeMap::new();
    for (b, buffer) in (0..).zip(&p.buffers) {
        if let Some(list) = uses.get(&Place::Buffer(b)) {
            slots.entry((buffer.element, buffer.slot)).or_default().push((list[0].op, b));
        }
    }
    for list in slots.values_mut().filter(|l| l.len() > 1) {
        list.sort_unstable();
        for i in 0..list.len() {
            let (next, around) = if i + 1 < list.len() { (i + 1, 0) } else { (0, 1) };
            for u in &uses[&Place::Buffer(list[i].1)] {
                let begins = uses[&Place::Buffer(list[next].1)].iter().filter(|w| w.begins);
                out.extend(begins.map(|w| (u.op, w.op, around)));
            }
        }
    }
    let load = load(p);
    for (i, op) in p.ops.iter().enumerate().filter(|(i, _)| *i != load) {
        out.extend([(load, i, 0), (i, load, i64::from(p.in_flight) + oldest(op))]);
    }
    tables(s, &mut out);
    out
}

fn storage(p: &Program, place: Place, list: &[Use], out: &mut Vec<Constraint>) {
    let copies = match place {
        Place::Buffer(b) => i64::from(p.buffers[b as usize].copies),
        _ => 1,
    };
    for (i, u) in list.iter().enumerate() {
        for v in &list[i + 1..] {
            if u.batch == 0 && v.batch == 0 && u.op != v.op && (u.writes || v.writes) && u.meets(v) {
                out.push((u.op, v.op, 0));
            }
        }
        for w in list.iter().filter(|w| w.writes && w.meets(u)) {
            if u.batch != 0 {
                out.push((w.op, u.op, -u.batch));
            }
            if w.begins {
                out.push((u.op, w.op, copies + u.batch));
            }
        }
    }
}

fn tables(s: &Schedule, out: &mut Vec<Constraint>) {
    for (i, a) in s.train.ops.iter().enumerate() {
        let Action::Apply { exchange, class } = a.action else { continue };
        let x = &s.exchanges[exchange as usize];
        let reuse = x.reuse(s.settings.microbatches);
        for (j, b) in s.train.ops.iter().enumerate() {
            match b.action {
                Action::Gather { exchange: e, class: c } if e == exchange => {
                    let meets = reuse.map_or(Some(1), |r| r.apply_before_gather(class, c));
                    out.extend(meets.map(|d| (i, j, i64::from(d))));
                    if reuse.is_none_or(|r| r.gather_before_apply(c, class)) {
                        out.push((j, i, 0));
                    }
                }
                Action::Apply { exchange: e, class: c } if e == exchange => {
                    let meets = reuse.map_or(Some(1), |r| r.apply_before_apply(class, c));
                    out.extend(meets.map(|d| (i, j, i64::from(d))));
                }
                _ => {}
            }
        }
    }
}

/// An order of the step in which what must come first within it does; work behind first, then this batch's.
fn order(p: &Program, constraints: &[Constraint]) -> Vec<usize> {
    let n = p.ops.len();
    let (mut after, mut waits) = (vec![BTreeSet::new(); n], vec![0; n]);
    for &(x, y, d) in constraints {
        let steps = d + stage(p, x) - stage(p, y);
        assert!(steps >= 0, "`{}` cannot come before `{}` {d} batches on", p.ops[x].name, p.ops[y].name);
        if steps == 0 && after[x].insert(y) {
            waits[y] += 1;
        }
    }
    let key = |i: usize| (p.ops[i].stage, i);
    let mut ready: BTreeSet<(i32, usize)> = (0..n).filter(|i| waits[*i] == 0).map(key).collect();
    let mut order = Vec::new();
    while let Some((_, i)) = ready.pop_first() {
        order.push(i);
        for y in &after[i] {
            waits[*y] -= 1;
            if waits[*y] == 0 {
                ready.insert(key(*y));
            }
        }
    }
    assert_eq!(order.len(), n, "the constraints within a step have a cycle");
    order
}

fn lifetimes(p: &mut Program) {
    let mut batch: Vec<usize> = (0..p.ops.len()).collect();
    batch.sort_by_key(|i| (-p.ops[*i].stage, *i));
    let mut seen: BTreeSet<u32> = BTreeSet::new();
    for i in batch {
        for o in p.ops[i].reads.iter().chain(&p.ops[i].writes) {
            if let Place::Buffer(b) = o.place {
                if seen.insert(b) {
                    p.buffers[b as usize].first = i as u32;
                }
                p.buffers[b as usize].last = i as u32;
            }
        }
    }
}

/// Earlier instances that an instance waits for directly: operation and steps back.
pub fn waits(p: &Program) -> Vec<Vec<(usize, i64)>> {
    let mut last: BTreeMap<(Engine, i32), usize> = BTreeMap::new();
    for (i, op) in p.ops.iter().enumerate() {
        last.insert((op.engine, op.priority), i);
    }
    let mut before: BTreeMap<(Engine, i32), usize> = BTreeMap::new();
    let mut out: Vec<Vec<(usize, i64)>> = Vec::new();
    for (i, op) in p.ops.iter().enumerate() {
        let queue = (op.engine, op.priority);
        // What one launch starts comes after what its first comes after.
        if op.joined && i > 0 {
            before.insert(queue, i);
            out.push(out[i - 1].clone());
            continue;
        }
        let previous = match before.insert(queue, i) {
            Some(x) => (x, 0),
            None => (last[&queue], 1),
        };
        let deps = op.deps.iter().map(|d| (d.op as usize, i64::from(d.distance)));
        out.push(std::iter::once(previous).chain(deps).collect());
    }
    out
}

/// True if `y` waits, directly or not, for `x` the given steps back.
pub fn reaches(waits: &[Vec<(usize, i64)>], y: usize, x: usize, steps: i64) -> bool {
    let mut seen = BTreeSet::new();
    let mut open = vec![(y, 0)];
    while let Some((i, back)) = open.pop() {
        for (j, more) in &waits[i] {
            let there = (*j, back + more);
            if there == (x, steps) {
                return true;
            }
            if there.1 <= steps && seen.insert(there) {
                open.push(there);
            }
        }
    }
    false
}

fn depend(p: &mut Program, constraints: Vec<Constraint>) {
    let mut nearest: BTreeMap<(usize, usize), i64> = BTreeMap::new();
    for (x, y, d) in constraints {
        let steps = d + stage(p, x) - stage(p, y);
        let entry = nearest.entry((y, x)).or_insert(steps);
        *entry = steps.min(*entry);
    }
    for ((y, x), steps) in &nearest {
        p.ops[*y].deps.push(Dep { op: *x as u32, distance: *steps as u32 });
    }
    // Far ones first: near ones often imply them.
    let mut candidates: Vec<(i64, usize, usize)> = nearest.iter().map(|((y, x), k)| (*k, *y, *x)).collect();
    candidates.sort_by_key(|(k, y, x)| (-k, std::cmp::Reverse(y.abs_diff(*x)), *y));
    let mut all = waits(p);
    for (steps, y, x) in candidates {
        // The queue's own edge stands first and stays.
        let Some(at) = all[y].iter().skip(1).position(|w| *w == (x, steps)) else { continue };
        all[y].remove(at + 1);
        if !reaches(&all, y, x, steps) {
            all[y].push((x, steps));
        }
    }
    for (op, list) in p.ops.iter_mut().zip(&all) {
        op.deps = list[1..].iter().map(|(x, k)| Dep { op: *x as u32, distance: *k as u32 }).collect();
        op.deps.sort_unstable();
    }
}
