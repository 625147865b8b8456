//! Rows on their way into the model, and gradients on their way out of it.

use std::collections::{BTreeMap, BTreeSet};

use super::{Flow, Value, per_entry};
use crate::action::{Action, At};
use crate::attribute::Way;
use crate::operand::{Element, Operand, Place};
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

impl Flow<'_> {
    /// Operations of the model that read rows, or turn ids' gradients into rows' gradients.
    pub(super) fn model_side(&self, i: u32, r: &mut Report) {
        let op = &self.cx.p.ops[i as usize];
        // A part of whole rows: who reads those is judged.
        if matches!(op.action, Action::Copy) {
            return;
        }
        // Which operand or result has a row per entry, which operands place ids among the entries.
        let entries = op.action.facts().entries;
        let inverse = entries.map_or(&[][..], |e| e.inverse);
        let rows = entries.and_then(|e| match e.rows {
            At::Read(n) => op.reads.get(n),
            At::Written(n) => op.writes.get(n),
        });
        if !inverse.is_empty() {
            match rows.and_then(|o| per_entry(self.cx, o)) {
                Some(e) => inverse.iter().for_each(|n| self.expect(i, *n, Value::Inverse(e), "exchange", r)),
                None => {
                    r.fail("exchange", format!("`{}` works on rows that no exchange moves", op.name));
                }
            }
        }
        // A negative that equals its target is known by their common entry.
        let compares = inverse.len() > 1;
        if let Some(e) = rows.filter(|_| compares).and_then(|o| per_entry(self.cx, o)) {
            r.check(self.cx.exchange(e).unique, "exchange", || {
                format!("`{}` needs each row of exchange {e} once, not once per occurrence", op.name)
            });
        }
        for (n, o) in op.reads.iter().enumerate() {
            if let Some(e) = per_entry(self.cx, o) {
                self.looked_up(i, n, e, r);
            }
        }
    }

    /// The rows that an operation of the model reads have arrived: all parts, each in its columns, all classes that
    /// its microbatch uses.
    fn looked_up(&self, i: u32, read: usize, entries: u32, r: &mut Report) {
        let cx = self.cx;
        let op = &cx.p.ops[i as usize];
        let operand = &op.reads[read];
        r.check(cx.exchange(entries).leg.within().is_none(), "exchange", || {
            format!("`{}` reads rows of exchange {entries} from {operand}, which are a relay's", op.name)
        });
        let mut parts: BTreeMap<u32, Part> = BTreeMap::new();
        // What the model makes of rows is the model's business; a buffer holds either.
        let (mut wrong, mut derived) = (None, None);
        self.arrivals(operand, cx.rank[i as usize], &mut |at, e, columns, class| {
            let (start, end) = e.map_or((0, 0), |e| cx.part(e));
            match e {
                None if cx.p.ops[at as usize].action.exchanges().is_empty() => {
                    derived = derived.or(Some(at));
                }
                Some(e) if cx.exchange(e).list() == entries && columns == (start, end) => {
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
        if derived.is_some() && parts.is_empty() && wrong.is_none() {
            return;
        }
        if let Some(at) = wrong.or(derived) {
            r.fail(
                "exchange",
                format!(
                    "`{}` reads rows of exchange {entries} from {operand}, where `{}` puts something else",
                    op.name,
                    cx.name(at)
                ),
            );
        }
        // Who adds may pass rows on to other microbatches: a sum is that of any microbatch, results of the rest of the
        // model's operations are those of their own.
        let microbatch = op.microbatch.filter(|_| op.action != Action::Add).unwrap_or(u32::MAX);
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
            let window = cx.reuse(n).map_or(0, |reuse| reuse.window(microbatch));
            let missing = (0..).zip(&classes).find(|(c, k)| k.window <= window && !part.classes.contains(c));
            if let Some((c, _)) = missing {
                r.fail(
                    "exchange",
                    format!("`{}` reads rows of exchange {n} before those of class {c} are merged", op.name),
                );
            }
        }
    }

    /// Calls `found` for everything that is written into an operand before a place in the order of a batch: the
    /// operation, the exchange whose rows it brings, their columns relative to the operand's, the class. What is copied
    /// counts as written by who wrote it first.
    fn arrivals(
        &self,
        o: &Operand,
        before: u32,
        found: &mut impl FnMut(u32, Option<u32>, (u32, u32), Option<u32>),
    ) {
        let cx = self.cx;
        let narrow = cx.s.settings.wire.rows != Element::Real;
        // Operands to look at, each with what comes after it and the column of the first one at which it stands.
        let mut open = vec![(*o, before, 0)];
        let mut seen = BTreeSet::new();
        while let Some((o, before, shift)) = open.pop() {
            let Place::Buffer(b) = o.place else { continue };
            let (start, end) = cx.columns(&o);
            if !cx.spend(self.writers[b as usize].len()) {
                return;
            }
            for &(w, n) in self.writers[b as usize].iter().filter(|(w, _)| cx.rank[*w as usize] < before) {
                let op = &cx.p.ops[w as usize];
                let (from, to) = cx.columns(&op.writes[n]);
                if to <= start || end <= from {
                    continue;
                }
                if op.action == Action::Copy {
                    // Of what is copied the columns that the operand has.
                    let (a, z) = (from.max(start), to.min(end));
                    let source = cx.columns(&op.reads[0]).0;
                    let columns = Some((source + a - from, source + z - from));
                    let shift = shift + a - start;
                    if seen.insert((w, columns, shift)) {
                        open.push((Operand { columns, ..op.reads[0] }, cx.rank[w as usize], shift));
                    }
                    continue;
                }
                // More than the operand is no part of its rows; columns that no part has say so.
                let columns = match from.checked_sub(start).filter(|_| to <= end) {
                    Some(from) => (from + shift, to - start + shift),
                    None => (u32::MAX, 0),
                };
                match &op.action {
                    // What travels as something else arrives where it is merged.
                    Action::AllToAllRows { exchanges, class: None } if !narrow => {
                        // A share of the entries arrives where it is merged.
                        let e = exchanges.get(n).copied().filter(|e| cx.exchange(*e).of.is_none());
                        found(w, e, columns, None);
                    }
                    Action::Gather { exchange, class: None }
                        if cx.replicated(*exchange) && cx.exchange(*exchange).of.is_none() && !narrow =>
                    {
                        found(w, Some(*exchange), columns, None);
                    }
                    Action::Merge { exchange, classes } => {
                        if classes.is_empty() {
                            found(w, Some(*exchange), columns, None);
                        }
                        for c in classes {
                            found(w, Some(*exchange), columns, Some(*c));
                        }
                    }
                    // Whatever else writes there brings no rows.
                    _ => found(w, None, columns, None),
                }
            }
        }
    }

    /// The gradients that an operation sends: sums of gradients of these rows, complete for its class.
    pub(super) fn row_gradients(&self, i: u32, read: usize, e: u32, class: Option<u32>, r: &mut Report) {
        let cx = self.cx;
        let op = &cx.p.ops[i as usize];
        let operand = &op.reads[read];
        let entries = cx.exchange(e).list();
        // Rows of class (a, ..) are not used after the last microbatch of window a.
        let last = class.and_then(|c| cx.last(e, c)).unwrap_or(u32::MAX);
        let (mut seen, mut reached) = (BTreeSet::new(), false);
        let mut open = vec![(*operand, true)];
        while let Some((o, sent)) = open.pop() {
            let Place::Buffer(b) = o.place else { continue };
            if per_entry(cx, &o) != Some(entries) {
                continue;
            }
            if !seen.insert((b, o.columns)) {
                continue;
            }
            let (start, end) = cx.columns(&o);
            if !cx.spend(self.writers[b as usize].len()) {
                return;
            }
            for &(w, n) in &self.writers[b as usize] {
                let writer = &cx.p.ops[w as usize];
                let (from, to) = cx.columns(&writer.writes[n]);
                if to <= start || end <= from {
                    continue;
                }
                let sums = writer.action.facts().entries;
                reached |= sums.is_some_and(|e| e.rows == At::Written(n));
                let of_model = writer.action.exchanges().is_empty();
                if of_model {
                    open.extend(writer.reads.iter().map(|o| (*o, false)));
                }
                if !sent {
                    continue;
                }
                // The operand is the columns of its part of what is written.
                let (a, z) = cx.part(e);
                r.check(of_model && start == from + a && end == from + z, "exchange", || {
                    format!(
                        "`{}` sends {o} as row gradients of exchange {e}, where `{}` puts something else",
                        op.name, writer.name
                    )
                });
                let later = writer.microbatch.unwrap_or(0) > last;
                r.check(later || cx.rank[w as usize] < cx.rank[i as usize], "exchange", || {
                    format!(
                        "`{}` sends gradients of exchange {e} before `{}` adds to them",
                        op.name, writer.name
                    )
                });
            }
        }
        r.check(reached, "exchange", || {
            format!("`{}` sends {operand} as row gradients of exchange {e}, which nothing sums", op.name)
        });
    }
}
