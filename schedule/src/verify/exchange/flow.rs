//! Rows on their way into the model, and gradients on their way out of it.

use std::collections::{BTreeMap, BTreeSet};

use super::{Flow, Value, per_entry};
use crate::op::{Action, Operand, Place, Way};
use crate::reuse::Reuse;
use crate::verify::Report;

/// What a buffer of rows holds of one part of a table.
#[derive(Default)]
struct Part {
    /// All rows.
    whole: bool,
    /// Rows of these classes.
    classes: BTreeSet<u32>,
}

/// Copies that are looked through.
const DEEPEST: usize = 8;

impl Flow<'_> {
    /// Operations that use rows or make their gradients.
    pub(super) fn model_side(&self, i: u32, r: &mut Report) {
        let op = &self.cx.p.ops[i as usize];
        // Which operand is rows, which results are row gradients, which operands place ids among the entries.
        let (rows, gradient, inverse): (Option<usize>, Option<usize>, &[usize]) = match op.action {
            Action::Expand | Action::Pool { .. } => (Some(0), None, &[1]),
            Action::ExpandGrad | Action::PoolGrad { .. } => (None, Some(0), &[1]),
            Action::SampledSoftmax { .. } => (Some(1), None, &[2, 3]),
            Action::SampledSoftmaxGrad { .. } => (Some(1), Some(1), &[2, 3]),
            _ => return,
        };
        let of = rows.map(|n| &op.reads[n]).or(gradient.map(|n| &op.writes[n])).and_then(|o| per_entry(self.cx, o));
        let Some(e) = of else {
            r.fail("exchange", format!("`{}` works on rows that no exchange moves", op.name));
            return;
        };
        if let Some(n) = gradient {
            r.check(per_entry(self.cx, &op.writes[n]) == Some(e), "exchange", || {
                format!("`{}` adds gradients to rows of another exchange", op.name)
            });
        }
        for n in inverse {
            self.expect(i, *n, Value::Inverse(e), "exchange", r);
        }
        if let Some(n) = rows {
            self.looked_up(i, n, e, r);
        }
    }

    /// The rows that an operation of the model reads have arrived: all parts, each in its columns, all classes that
    /// its microbatch uses.
    fn looked_up(&self, i: u32, read: usize, entries: u32, r: &mut Report) {
        let cx = self.cx;
        let op = &cx.p.ops[i as usize];
        let operand = &op.reads[read];
        let mut parts: BTreeMap<u32, Part> = BTreeMap::new();
        let mut wrong = None;
        self.arrivals(operand, cx.rank[i as usize], 0, 0, &mut |at, e, columns, class| {
            let (start, end) = e.map_or((0, 0), |e| cx.part(e));
            match e {
                Some(e) if cx.exchange(e).entries == entries && columns == (start, end) => {
                    let part = parts.entry(e).or_default();
                    match class {
                        None => part.whole = true,
                        Some(c) => {
                            part.classes.insert(c);
                        }
                    }
                }
                _ => wrong = wrong.or(Some(at)),
            }
        });
        if let Some(at) = wrong {
            r.fail("exchange", format!(
                "`{}` reads rows of exchange {entries} from {operand}, where `{}` puts something else",
                op.name,
                cx.name(at)
            ));
        }
        let microbatch = op.microbatch.unwrap_or(if cx.s.settings.microbatches > 1 { u32::MAX } else { 0 });
        let list = self.parts.get(entries as usize).map(Vec::as_slice).unwrap_or_default();
        for (n, x) in list.iter().map(|n| (*n, cx.exchange(*n))) {
            if !cx.spend(Reuse::MOST) {
                return;
            }
            let Some(part) = parts.get(&n) else {
                r.fail("exchange", format!("`{}` reads rows whose part {} has not arrived", op.name, x.part));
                continue;
            };
            if part.whole {
                continue;
            }
            let classes = cx.reuse(n).map(|reuse| reuse.classes(Way::Forward)).unwrap_or_default();
            let missing = (0..).zip(&classes).find(|(c, k)| k.microbatch <= microbatch && !part.classes.contains(c));
            if let Some((c, _)) = missing {
                r.fail("exchange", format!(
                    "`{}` reads rows of exchange {n} before those of class {c} are merged",
                    op.name
                ));
            }
        }
    }

    /// Calls `found` for everything that is written into an operand before a place in the order of a batch: the
    /// operation, the exchange whose rows it brings, their columns relative to the operand's, the class.
    fn arrivals(
        &self,
        o: &Operand,
        before: u32,
        shift: u32,
        depth: usize,
        found: &mut impl FnMut(u32, Option<u32>, (u32, u32), Option<u32>),
    ) {
        let cx = self.cx;
        let Place::Buffer(b) = o.place else { return };
        let (start, end) = cx.columns(o);
        if !cx.spend(self.writers[b as usize].len()) {
            return;
        }
        for &(w, n) in self.writers[b as usize].iter().filter(|(w, _)| cx.rank[*w as usize] < before) {
            let op = &cx.p.ops[w as usize];
            let (from, to) = cx.columns(&op.writes[n]);
            if to <= start || end <= from {
                continue;
            }
            if from < start || to > end {
                found(w, None, (0, 0), None);
                continue;
            }
            let columns = (from - start + shift, to - start + shift);
            match &op.action {
                Action::AllToAllRows { exchanges, class: None } => {
                    found(w, exchanges.get(n).copied(), columns, None);
                }
                Action::Gather { exchange, class: None } if cx.replicated(*exchange) => {
                    found(w, Some(*exchange), columns, None);
                }
                Action::Merge { exchange, classes } => {
                    for c in classes {
                        found(w, Some(*exchange), columns, Some(*c));
                    }
                }
                Action::Copy if depth < DEEPEST => {
                    self.arrivals(&op.reads[0], cx.rank[w as usize], columns.0, depth + 1, &mut *found);
                }
                _ => found(w, None, columns, None),
            }
        }
    }

    /// The gradients that an operation sends: sums of gradients of these rows, complete for its class.
    pub(super) fn row_gradients(&self, i: u32, read: usize, e: u32, class: Option<u32>, r: &mut Report) {
        let cx = self.cx;
        let op = &cx.p.ops[i as usize];
        let operand = &op.reads[read];
        let entries = cx.exchange(e).entries;
        // Rows of class (a, ..) are not used after microbatch a.
        let last = class.and_then(|c| cx.reuse(e).and_then(|k| k.classes(Way::Backward).get(c as usize).copied()));
        let last = last.map_or(u32::MAX, |c| c.microbatch);
        let mut seen = BTreeSet::new();
        let mut open = vec![(*operand, Some(cx.part(e)))];
        while let Some((o, part)) = open.pop() {
            let Place::Buffer(b) = o.place else { continue };
            if !seen.insert((b, o.columns)) {
                continue;
            }
            let (start, end) = cx.columns(&o);
            let mut any = false;
            if !cx.spend(self.writers[b as usize].len()) {
                return;
            }
            for &(w, n) in &self.writers[b as usize] {
                let writer = &cx.p.ops[w as usize];
                let (from, to) = cx.columns(&writer.writes[n]);
                if to <= start || end <= from {
                    continue;
                }
                any = true;
                // The operand is the columns of its part of what is written.
                let placed = part.is_none_or(|(a, z)| start == from + a && end == from + z);
                let adds = match writer.action {
                    Action::ExpandGrad | Action::PoolGrad { .. } => n == 0,
                    Action::SampledSoftmaxGrad { .. } => n == 1,
                    Action::Zero => true,
                    Action::Copy | Action::Add | Action::Scale { .. } => {
                        open.extend(writer.reads.iter().map(|o| (*o, None)));
                        true
                    }
                    _ => false,
                };
                r.check(adds && placed && per_entry(cx, &o) == Some(entries), "exchange", || {
                    format!(
                        "`{}` sends {o} as row gradients of exchange {e}, where `{}` puts something else",
                        op.name, writer.name
                    )
                });
                let early = writer.microbatch.unwrap_or(0) > last;
                r.check(early || cx.rank[w as usize] < cx.rank[i as usize], "exchange", || {
                    format!("`{}` sends gradients of exchange {e} before `{}` has added to them", op.name, writer.name)
                });
            }
            r.check(any, "exchange", || format!("`{}` sends {o}, which nothing writes", op.name));
        }
    }
}
