//! Rule `model`: what a schedule computes is what its reference says.
//!
//! One batch is run over [terms](terms) instead of numbers, in the order of a batch, which the rules of order have shown
//! to be the order of every execution. How rows and gradients travel is taken out: rows that have arrived (rule
//! `exchange`) are "the rows of table t", places among entries are the ids that they stand for. What is left is compared
//! with the reference's terms, for each microbatch: dense gradients when they are reduced, row gradients when they leave
//! (a class may leave when no later microbatch adds to it), losses and rankings, the ids that are asked for. Terms are
//! made once, so this takes as long as reading the schedule.

mod expected;
mod terms;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::reference::Widths;
use super::{Context, Report};
use crate::action::{Action, Effect};
use crate::op::Op;
use crate::operand::{Element, Operand, Place};
use expected::Expected;
use terms::{Columns, Id, Node, Part, Terms};

/// What a batch has made so far.
struct Run<'a, 'b> {
    cx: &'a Context<'b>,
    terms: Terms,
    expected: Expected,
    buffers: Vec<Columns>,
    gradients: Vec<Option<Id>>,
    /// Parameters and tables that are updated; losses and rankings.
    reduced: BTreeSet<u32>,
    updated: BTreeSet<u32>,
    applied: BTreeSet<u32>,
    outcomes: BTreeSet<Id>,
    /// Sums that were made: by what adds where they stand, of values rounded before, or in both ways.
    sums: BTreeMap<Id, char>,
}

pub(super) fn check(cx: &Context<'_>, widths: &Widths, r: &mut Report) {
    let sums = run(cx, widths, r);
    let said = &cx.s.reference.sums[usize::from(cx.evaluation)];
    r.check(*said == sums, "model", || {
        let (said, sums) = (brief(said), brief(&sums));
        format!("the reference says that sums round as `{said}`, in the schedule they do as `{sums}`")
    });
}

/// Runs a batch over terms; how its sums round.
pub(super) fn run(cx: &Context<'_>, widths: &Widths, r: &mut Report) -> String {
    let mut terms = Terms::default();
    let expected = Expected::new(cx, &mut terms, widths);
    let of_model = terms.count();
    let mut run = Run {
        cx,
        terms,
        expected,
        buffers: vec![Columns::default(); cx.p.buffers.len()],
        gradients: vec![None; cx.s.parameters.len()],
        reduced: BTreeSet::new(),
        updated: BTreeSet::new(),
        applied: BTreeSet::new(),
        outcomes: BTreeSet::new(),
        sums: BTreeMap::new(),
    };
    for &i in &cx.sorted {
        run.operation(&cx.p.ops[i as usize], r);
    }
    run.finish(r);
    // Terms of the reference came first, so their numbers depend on nothing that the schedule does.
    let ways = run.terms.sums(of_model).map(|sum| run.sums.get(&sum).copied().unwrap_or(UNMADE));
    counted(ways)
}

/// How a sum is made: where it stands, of rounded values, in both ways, not at all.
const IN_PLACE: char = 'i';
const ROUNDED: char = 'a';
const BOTH: char = 'b';
const UNMADE: char = 'n';

/// Equal letters one after the other as one and their number.
fn counted(letters: impl Iterator<Item = char>) -> String {
    let mut runs: Vec<(char, u64)> = Vec::new();
    for letter in letters {
        match runs.last_mut() {
            Some((last, n)) if *last == letter => *n += 1,
            _ => runs.push((letter, 1)),
        }
    }
    runs.iter().fold(String::new(), |mut text, (letter, n)| {
        let _ = write!(text, "{letter}{n}");
        text
    })
}

fn brief(text: &str) -> String {
    text.chars().take(80).collect()
}

/// Whether it is something that a run reports.
fn reports(action: &Action) -> bool {
    action.facts().loss.is_some() || action.has(Effect::Ranks)
}

impl Run<'_, '_> {
    fn operation(&mut self, op: &Op, r: &mut Report) {
        let cx = self.cx;
        let part = op.microbatch;
        match &op.action {
            Action::Unique { exchange } | Action::UniqueFor { exchange } => self.unique(op, *exchange, r),
            Action::Gather { exchange, class: None }
                if cx.replicated(*exchange) && !self.partial(*exchange) =>
            {
                self.rows(*exchange, &op.writes[0]);
            }
            Action::AllToAllRows { exchanges, class: None } => {
                for (e, w) in exchanges.iter().zip(&op.writes) {
                    if self.partial(*e) {
                        let value = self.terms.other(cx.width(w));
                        self.write(w, value);
                    } else {
                        self.rows(*e, w);
                    }
                }
            }
            Action::Merge { exchange, .. } => self.rows(*exchange, &op.writes[0]),
            Action::Split { exchange, class } => {
                self.row_gradients(op, 0, *exchange, *class, r);
                self.others(op);
            }
            Action::AllToAllGrads { exchanges, class } | Action::AllGatherGrads { exchanges, class } => {
                // Those that are made narrow, or are cut out, on their way were looked at there.
                if class.is_none() && cx.s.settings.wire.gradients == Element::Real {
                    for (n, e) in exchanges.iter().enumerate() {
                        if !self.partial(*e) {
                            self.row_gradients(op, 3 * n, *e, None, r);
                        }
                    }
                }
                self.others(op);
            }
            Action::Apply { exchange, .. } => {
                self.applied.insert(cx.s.exchanges[*exchange as usize].table);
            }
            Action::AllReduce => {
                for o in &op.reads {
                    self.reduction(op, o, r);
                }
            }
            Action::DenseUpdate => {
                self.updated.extend(op.writes.iter().filter_map(|o| match o.place {
                    Place::Parameter(n) => Some(n),
                    _ => None,
                }));
            }
            // Elsewhere the same values, of the same samples: rule `site` tells the two apart.
            Action::Copy | Action::CopyIds | Action::DispatchRows { .. } | Action::Combine { .. } => {
                let value = self.read(&op.reads[op.reads.len() - 1], part);
                self.put(&op.writes[0], value, false);
            }
            Action::Zero => {
                let value = self.terms.zeros(cx.width(&op.writes[0]));
                self.write(&op.writes[0], value);
            }
            Action::Add => {
                let values: Vec<Id> = op.reads.iter().map(|o| self.read(o, part)).collect();
                let sum = values.into_iter().reduce(|a, b| self.sum(a, b, false));
                if let Some(sum) = sum {
                    self.write(&op.writes[0], sum);
                }
            }
            action if action.exchanges().is_empty() => self.made(op, part, r),
            // On its way, or not all there yet: equal to nothing that the reference has.
            _ => self.others(op),
        }
    }

    /// An operation of the model: results that nothing but equal operands and constants give. A fused one is its parts, one
    /// after the other.
    fn made(&mut self, op: &Op, part: Part, r: &mut Report) {
        let parts = op.action.parts(op.reads.len());
        if !parts.is_empty() {
            let reads = op.reads.len();
            let mut known: BTreeMap<usize, Id> =
                op.reads.iter().enumerate().map(|(i, o)| (i, self.read(o, part))).collect();
            for p in parts {
                let operands: Vec<Id> = p.operands.iter().filter_map(|i| known.get(i).copied()).collect();
                let values = self.part(&p, &operands, part, op);
                known.extend(p.results.iter().map(|at| reads + at).zip(values));
            }
            for (i, o) in op.writes.iter().enumerate() {
                let value = known.get(&(reads + i)).copied();
                let value = value.unwrap_or_else(|| self.terms.other(self.cx.width(o)));
                self.write(o, value);
            }
            return;
        }
        let operands: Vec<Id> = op.reads.iter().map(|o| self.read(o, part)).collect();
        let action = self.terms.action(&op.action);
        let made = self.terms.term(Node::Made(action, part, operands.into()), 0);
        for (n, o) in (0..).zip(&op.writes) {
            let value = self.terms.term(Node::Result(made, n), self.cx.width(o));
            self.write(o, value);
        }
        if !reports(&op.action) {
            return;
        }
        let known = self.expected.outcomes.contains(&made);
        r.check(known, "model", || format!("`{}` reports what is not in the reference", op.name));
        let new = self.outcomes.insert(made);
        r.check(new, "model", || format!("`{}` reports something a second time", op.name));
    }

    /// The results of a part of a fused operation.
    fn part(&mut self, p: &crate::action::Part, operands: &[Id], part: Part, op: &Op) -> Vec<Id> {
        if let (Action::Add, [a, b]) = (&p.action, operands) {
            return vec![self.sum(*a, *b, false)];
        }
        let action = self.terms.action(&p.action);
        let made = self.terms.term(Node::Made(action, part, operands.into()), 0);
        let results = (0..).zip(&p.results);
        results
            .map(|(n, at)| self.terms.term(Node::Result(made, n), self.cx.width(&op.writes[*at])))
            .collect()
    }

    fn read(&mut self, o: &Operand, part: Part) -> Id {
        let (start, end) = self.cx.columns(o);
        match o.place {
            Place::Buffer(b) => {
                let buffer = &self.buffers[b as usize];
                let value = if self.cx.spend(buffer.touched(start, end)) {
                    buffer.read(&mut self.terms, start, end)
                } else {
                    None
                };
                value.unwrap_or_else(|| self.terms.other(self.cx.width(o)))
            }
            Place::Parameter(n) => self.terms.term(Node::Parameter(n), 1),
            Place::Gradient(n) => match self.gradients[n as usize] {
                Some(value) => value,
                None => self.terms.other(1),
            },
            Place::Table(n) => self.terms.term(Node::Rows(n), self.cx.s.tables[n as usize].dim),
            Place::Input(n) => self.terms.term(Node::Input(n, part), 1),
            Place::Lengths(n) => self.terms.term(Node::Lengths(n, part), 1),
        }
    }

    /// The second added to the first: in place, or as values that are rounded before.
    fn sum(&mut self, a: Id, b: Id, in_place: bool) -> Id {
        let sum = self.terms.sum(a, b);
        let way = if in_place { IN_PLACE } else { ROUNDED };
        let known = self.sums.entry(sum).or_insert(way);
        if *known != way {
            *known = BOTH;
        }
        sum
    }

    fn write(&mut self, o: &Operand, value: Id) {
        self.put(o, value, true);
    }

    /// The same; `in_place` is whether what is added is not rounded before.
    fn put(&mut self, o: &Operand, value: Id, in_place: bool) {
        let value = if o.accumulate {
            let before = self.read(o, None);
            self.sum(before, value, in_place)
        } else {
            value
        };
        match o.place {
            Place::Buffer(b) => {
                let (start, end) = self.cx.columns(o);
                let buffer = &mut self.buffers[b as usize];
                if self.cx.spend(buffer.touched(start, end)) {
                    buffer.write(&self.terms, start, value);
                }
            }
            Place::Gradient(n) => self.gradients[n as usize] = Some(value),
            _ => {}
        }
    }

    /// Whether what travels is no model's by itself: those who ask are relays, or rows are put among others first.
    fn partial(&self, e: u32) -> bool {
        let x = &self.cx.s.exchanges[e as usize];
        x.leg.within().is_some() || x.of.is_some()
    }

    /// What is not of the model.
    fn others(&mut self, op: &Op) {
        for o in &op.writes {
            // Added to something, it is something else as well.
            let value = self.terms.other(self.cx.width(o));
            self.write(o, value);
        }
    }

    /// Rows of a part of a table have arrived, some or all of them.
    fn rows(&mut self, e: u32, o: &Operand) {
        let table = self.cx.s.exchanges[e as usize].table;
        let (a, z) = self.cx.part(e);
        let all = self.terms.term(Node::Rows(table), self.cx.s.tables[table as usize].dim);
        let value = self.terms.slice(all, a, z);
        self.write(&Operand { accumulate: false, ..*o }, value);
    }

    /// Places stand for the ids whose they are; the ids are those that the model uses, in its order.
    fn unique(&mut self, op: &Op, e: u32, r: &mut Report) {
        let cx = self.cx;
        let microbatches = if cx.evaluation { 1 } else { cx.s.settings.microbatches };
        let facts = op.action.facts();
        let listed = &op.reads[facts.listed(op.reads.len())];
        let each = (listed.len() / microbatches as usize).max(1);
        // Places of ids, if it finds them.
        let extra = if facts.asks_for_others() {
            op.writes.len()
        } else {
            op.writes.len().saturating_sub(listed.len())
        };
        self.others(op);
        let mut list = Vec::new();
        for (i, o) in listed.iter().enumerate() {
            let part = (microbatches > 1).then_some((i / each) as u32);
            let ids = self.read(o, part);
            list.push(ids);
            if let Some(w) = op.writes.get(i + extra) {
                // As wide as the ids: drawn ones have several columns.
                self.write(w, ids);
            }
        }
        let table = cx.s.exchanges[e as usize].table;
        let want = self.expected.ids.get(&table);
        r.check(want == Some(&list), "model", || {
            format!(
                "`{}` asks for other ids of `{}` than the reference uses, or in another order",
                op.name, cx.s.tables[table as usize].name
            )
        });
    }

    /// What is sent is the sum of the reference's row gradients, of all microbatches that use rows of the class.
    fn row_gradients(&mut self, op: &Op, read: usize, e: u32, class: Option<u32>, r: &mut Report) {
        let cx = self.cx;
        let last = class.and_then(|c| cx.last(e, c));
        let value = self.read(&op.reads[read], None);
        let columns = cx.part(e);
        let table = cx.s.exchanges[e as usize].table;
        let sums = self.expected.sums(&mut self.terms, table, columns);
        let complete = sums.iter().rposition(|(sum, _)| *sum == value).is_some_and(|at| {
            let done = sums[at].1;
            last.map_or(at + 1 == sums.len(), |last| done > last)
        });
        r.check(complete, "model", || {
            format!(
                "`{}` sends {} as gradients of `{}`, which is not the sum that the reference makes",
                op.name, op.reads[read], cx.s.tables[table as usize].name
            )
        });
    }

    fn reduction(&mut self, op: &Op, o: &Operand, r: &mut Report) {
        let Place::Gradient(n) = o.place else { return };
        let found = self.gradients[n as usize];
        let want = self.expected.gradients.get(&n).copied();
        r.check(found.is_some() && found == want, "model", || {
            format!(
                "`{}` reduces {o} of `{}`, which is not the sum that the reference makes",
                op.name, self.cx.s.parameters[n as usize].name
            )
        });
        self.reduced.insert(n);
        // What comes of it is for the update only.
        self.gradients[n as usize] = Some(self.terms.other(1));
    }

    /// Nothing is missing.
    fn finish(&self, r: &mut Report) {
        let s = self.cx.s;
        for n in self.expected.gradients.keys() {
            let done = self.reduced.contains(n) && self.updated.contains(n);
            r.check(done, "model", || {
                format!(
                    "the reference updates p{n} `{}`, the schedule does not",
                    s.parameters[*n as usize].name
                )
            });
        }
        for n in self.updated.iter().filter(|n| !self.expected.gradients.contains_key(n)) {
            r.fail("model", format!("the schedule updates p{n}, the reference does not"));
        }
        for n in &self.expected.tables {
            r.check(self.applied.contains(n), "model", || {
                format!("the reference updates t{n} `{}`, the schedule does not", s.tables[*n as usize].name)
            });
        }
        for n in self.applied.iter().filter(|n| !self.expected.tables.contains(n)) {
            r.fail("model", format!("the schedule updates t{n}, the reference does not"));
        }
        let missing = self.expected.outcomes.iter().filter(|o| !self.outcomes.contains(o)).count();
        r.check(missing == 0, "model", || {
            let what = if self.cx.evaluation { "rankings" } else { "losses" };
            format!("{missing} {what} of the reference are not in the schedule")
        });
    }
}
