//! Rules `fresh`, `sums`, `storage` and `copies`: what buffers and gradients hold when they are read.
//!
//! Every pair of uses of which one writes is ordered as the reference orders it: within a batch, between batches that
//! share a copy, between buffers that share a slot. So every read sees exactly the writes that it sees in the
//! reference. Gradients `g` are buffers with one copy.

use std::collections::BTreeMap;

use super::{Context, Report};
use crate::columns::ByColumns;
use crate::op::Buffer;
use crate::operand::{Element, Operand, Place};

/// A use of a buffer or gradient.
#[derive(Clone, Copy)]
struct Use {
    op: u32,
    columns: (u32, u32),
    /// Of which batch, relative to the operation's.
    batch: i64,
    writes: bool,
    adds: bool,
}

impl Use {
    /// Starts a new life of its columns.
    fn begins(&self) -> bool {
        self.writes && !self.adds
    }
}

/// Columns that are written so far: ranges without gaps between, by start.
#[derive(Default)]
struct Covered(BTreeMap<u32, u32>);

impl Covered {
    fn add(&mut self, (mut start, mut end): (u32, u32)) {
        if let Some((&s, &e)) = self.0.range(..=start).next_back()
            && e >= start
        {
            (start, end) = (s, end.max(e));
        }
        while let Some((&s, &e)) = self.0.range(start..=end).next() {
            end = end.max(e);
            self.0.remove(&s);
        }
        self.0.insert(start, end);
    }
    fn holds(&self, (start, end): (u32, u32)) -> bool {
        self.0.range(..=start).next_back().is_some_and(|(_, e)| *e >= end)
    }
}

pub(super) fn check(cx: &Context<'_>, r: &mut Report) {
    let p = cx.p;
    let mut uses: BTreeMap<Place, Vec<Use>> = BTreeMap::new();
    for &i in &cx.sorted {
        let op = &p.ops[i as usize];
        let in_place = op.action.facts().results.in_place;
        let reads = op.reads.iter().map(|o| (o, false));
        for (o, writes) in reads.chain(op.writes.iter().map(|o| (o, true))) {
            let whole = match o.place {
                Place::Buffer(b) => (0, p.buffers[b as usize].columns),
                Place::Gradient(_) => (0, 1),
                _ => continue,
            };
            // What works in place needs what is there, as an addition does.
            let adds = writes && (o.accumulate || in_place);
            let columns = o.columns.unwrap_or(whole);
            uses.entry(o.place).or_default().push(Use {
                op: i,
                columns,
                batch: o.batch.into(),
                writes,
                adds,
            });
        }
    }
    for (place, uses) in &uses {
        let copies = match place {
            Place::Buffer(b) => {
                let buffer = &p.buffers[*b as usize];
                lifetime(cx, *b, buffer, uses, r);
                buffer.copies
            }
            _ => 1,
        };
        let name = || match place {
            Place::Buffer(b) => format!("{place} `{}`", p.buffers[*b as usize].name),
            _ => place.to_string(),
        };
        contents(cx, *place, uses, &name, r);
        // The next life of a copy begins when all uses of the last have ended.
        let mut by = ByColumns::default();
        for u in uses {
            by.add(u.columns, *u);
        }
        for w in uses.iter().filter(|w| w.begins()) {
            let met = meeting(&by, w);
            if !cx.spend(met.len()) {
                return;
            }
            for u in met {
                let rule = if matches!(place, Place::Buffer(_)) { "copies" } else { "dense" };
                cx.need(u.op, w.op, i64::from(copies) + u.batch, rule, r, || {
                    format!("both use one of the {copies} copies of {}", name())
                });
            }
        }
    }
    slots(cx, &uses, r);
}

/// Of some uses those whose columns one has something to do with, in their order.
fn meeting(by: &ByColumns<Use>, of: &Use) -> Vec<Use> {
    let mut met: Vec<(u32, Use)> = by.meeting(of.columns).map(|(_, number, u)| (number, *u)).collect();
    met.sort_unstable_by_key(|(number, _)| *number);
    met.into_iter().map(|(_, u)| u).collect()
}

/// Of some uses the last in each queue: what comes after these comes after all.
fn latest<'a>(cx: &Context<'_>, uses: &'a [Use]) -> Vec<&'a Use> {
    let mut last: BTreeMap<usize, (i64, &Use)> = BTreeMap::new();
    for u in uses {
        let (queue, at) = cx.clocks.ends(u.op as usize, u.batch);
        let known = last.entry(queue).or_insert((at, u));
        if at > known.0 {
            *known = (at, u);
        }
    }
    last.into_values().map(|(_, u)| u).collect()
}

fn lifetime(cx: &Context<'_>, number: u32, b: &Buffer, uses: &[Use], r: &mut Report) {
    let rank = |op: u32| cx.rank[op as usize];
    let (first, last) = (rank(b.first), rank(b.last));
    for u in uses {
        r.check((first..=last).contains(&rank(u.op)), "storage", || {
            format!(
                "`{}` uses b{number} `{}` outside its lifetime from `{}` to `{}`",
                cx.name(u.op),
                b.name,
                cx.name(b.first),
                cx.name(b.last)
            )
        });
    }
}

/// Within one batch, and reads of its copy by others. `uses` are in the order of a batch.
fn contents(cx: &Context<'_>, place: Place, uses: &[Use], name: &impl Fn() -> String, r: &mut Report) {
    let mut covered = Covered::default();
    // Writes so far; reads that later writes must respect. What comes before a write that covers it comes before all
    // that comes after that write, so it is not asked for again.
    let (mut writes, mut reads) = (ByColumns::default(), ByColumns::default());
    let ordered = |x: &Use, u: &Use| x.op == u.op || cx.clocks.before(x.op as usize, u.op as usize, 0);
    let operand = |u: &Use| {
        let columns = Some(u.columns).filter(|_| matches!(place, Place::Buffer(_)));
        Operand { columns, ..Operand::new(place) }
    };
    for u in uses.iter().filter(|u| u.batch == 0) {
        let needs = !u.writes || u.adds;
        let written = meeting(&writes, u);
        let read = if u.writes { meeting(&reads, u) } else { Vec::new() };
        if !cx.spend(written.iter().chain(&read).count()) {
            return;
        }
        r.check(!needs || covered.holds(u.columns), "fresh", || {
            let verb = if u.writes { "adds to" } else { "reads" };
            format!(
                "`{}` {verb} {} of {}, which is not all written before",
                cx.name(u.op),
                operand(u),
                name()
            )
        });
        for w in written.iter().filter(|w| w.op != u.op) {
            let (rule, why) = match (u.writes, u.adds) {
                (false, _) => ("fresh", "reads"),
                (true, true) => ("sums", "adds to"),
                (true, false) => ("storage", "overwrites"),
            };
            cx.need(w.op, u.op, 0, rule, r, || {
                format!("the second {why} {}, which the first writes", name())
            });
        }
        if u.writes {
            for x in read.iter().filter(|x| x.op != u.op) {
                cx.need(x.op, u.op, 0, "storage", r, || {
                    format!("the second writes {}, which the first reads", name())
                });
            }
            covered.add(u.columns);
            writes.remove_within(u.columns, |w| ordered(w, u));
            reads.remove_within(u.columns, |x| ordered(x, u));
            writes.add(u.columns, *u);
        } else {
            reads.add(u.columns, *u);
        }
    }
    for u in uses.iter().filter(|u| u.batch != 0) {
        r.check(covered.holds(u.columns), "fresh", || {
            format!("`{}` reads {} of another batch, which is not all written", cx.name(u.op), name())
        });
        let written = meeting(&writes, u);
        if !cx.spend(written.len()) {
            return;
        }
        for w in written {
            cx.need(w.op, u.op, -u.batch, "fresh", r, || {
                format!("the second reads {} of {:+} batches, which the first writes", name(), u.batch)
            });
        }
    }
}

/// Buffers of one slot, in the order in which a step begins them, live one after the other, and the first of the next
/// step after the last. Others follow by transitivity.
fn slots(cx: &Context<'_>, uses: &BTreeMap<Place, Vec<Use>>, r: &mut Report) {
    let mut slots: BTreeMap<(Element, u32), Vec<u32>> = BTreeMap::new();
    for place in uses.keys() {
        if let Place::Buffer(b) = place {
            let buffer = &cx.p.buffers[*b as usize];
            slots.entry((buffer.element, buffer.slot)).or_default().push(*b);
        }
    }
    for mut list in slots.into_values().filter(|l| l.len() > 1) {
        let of = |b: u32| uses.get(&Place::Buffer(b)).map(Vec::as_slice).unwrap_or_default();
        let alone = list.iter().find(|b| cx.p.buffers[**b as usize].copies > 1);
        if let Some(b) = alone {
            let other = if *b == list[0] { list[1] } else { list[0] };
            r.fail("storage", format!("b{b} has several copies and shares its slot with b{other}"));
            continue;
        }
        let first = |b: u32| of(b).first().map_or(0, |u| u.op);
        list.sort_by_key(|b| (first(*b), *b));
        for (i, &a) in list.iter().enumerate() {
            let (b, around) = if i + 1 < list.len() { (list[i + 1], 0) } else { (list[0], 1) };
            let stage = |b: u32| i64::from(cx.p.ops[first(b) as usize].stage);
            let batches = stage(b) - stage(a) + around;
            let latest = latest(cx, of(a));
            for w in of(b).iter().filter(|w| w.begins()) {
                let apart = |u: &Use| batches + u.batch;
                let free = |u: &&Use| cx.clocks.before(u.op as usize, w.op as usize, apart(u));
                if !cx.spend(latest.len()) {
                    return;
                }
                if latest.iter().all(free) {
                    continue;
                }
                if !cx.spend(of(a).len()) {
                    return;
                }
                for u in of(a) {
                    cx.need(u.op, w.op, apart(u), "storage", r, || {
                        let name = |b: u32| &cx.p.buffers[b as usize].name;
                        format!("b{b} `{}` takes over the slot of b{a} `{}`", name(b), name(a))
                    });
                }
            }
        }
    }
}
