//! The reference as terms: what a batch of so many microbatches must make.

use std::collections::{BTreeMap, BTreeSet};

use super::reports;
use super::terms::{Id, Node, Part, Terms};
use crate::action::{Action, At};
use crate::reference::{Source, Term, Value};
use crate::verify::Context;
use crate::verify::reference::{Widths, table_of_ids};

/// What must come out.
#[derive(Default)]
pub(super) struct Expected {
    /// The gradient of each parameter.
    pub gradients: BTreeMap<u32, Id>,
    /// Tables that are updated.
    pub tables: BTreeSet<u32>,
    /// Sums of a table's row gradients, one part after the other, with the microbatches that are whole in each.
    rows: BTreeMap<u32, Vec<(Id, u32)>>,
    /// The same in some columns.
    parts: BTreeMap<(u32, u32, u32), Vec<(Id, u32)>>,
    /// The ids of each table in the order in which they are asked for, over all microbatches.
    pub ids: BTreeMap<u32, Vec<Id>>,
    /// Losses and rankings.
    pub outcomes: BTreeSet<Id>,
}

impl Expected {
    /// Needs a reference that makes sense by itself.
    pub(super) fn new(cx: &Context<'_>, terms: &mut Terms, widths: &Widths) -> Self {
        let mut this = Self::default();
        let reference = &cx.s.reference;
        let microbatches = if cx.evaluation { 1 } else { cx.s.settings.microbatches };
        let list = if cx.evaluation {
            reference.evaluation.as_deref().unwrap_or_default()
        } else {
            &reference.train
        };
        let numbers: Vec<u32> = reference.actions.iter().map(|a| terms.action(a)).collect();
        for part in 0..microbatches {
            let part = (microbatches > 1).then_some(part);
            let values = this.microbatch(cx, terms, (list, widths), &numbers, part);
            if cx.evaluation {
                continue;
            }
            for update in &reference.updates {
                for (n, value) in update.parts.iter().enumerate() {
                    let value = values.value(cx, terms, value);
                    match update.of {
                        Source::Parameter(p) => {
                            let before = this.gradients.get(&p).copied();
                            let sum = before.map_or(value, |before| terms.sum(before, value));
                            this.gradients.insert(p, sum);
                        }
                        Source::Table(t) => {
                            let sums = this.rows.entry(t).or_default();
                            let before = sums.last().map(|(sum, _)| *sum);
                            let sum = before.map_or(value, |before| terms.sum(before, value));
                            let whole = part.unwrap_or(0) + u32::from(n + 1 == update.parts.len());
                            sums.push((sum, whole));
                            this.tables.insert(t);
                        }
                        _ => {}
                    }
                }
            }
        }
        this
    }

    /// The sums of a table's gradients in some columns.
    pub(super) fn sums(&mut self, terms: &mut Terms, table: u32, (start, end): (u32, u32)) -> &[(Id, u32)] {
        let rows = &self.rows;
        self.parts.entry((table, start, end)).or_insert_with(|| {
            let all = rows.get(&table).map(Vec::as_slice).unwrap_or_default();
            all.iter().map(|(sum, whole)| (terms.slice(*sum, start, end), *whole)).collect()
        })
    }

    fn microbatch(
        &mut self,
        cx: &Context<'_>,
        terms: &mut Terms,
        (list, widths): (&[Term], &Widths),
        numbers: &[u32],
        part: Part,
    ) -> Values {
        let mut values = Values { results: Vec::with_capacity(list.len()), part };
        // Ids whose gradients are summed first come first, then the others.
        let mut summed: Vec<(u32, Id)> = Vec::new();
        let mut used: Vec<(u32, Id)> = Vec::new();
        for (term, columns) in list.iter().zip(widths) {
            let operands: Vec<Id> = term.operands.iter().map(|v| values.value(cx, terms, v)).collect();
            let Some(action) = term.action.map(|a| &cx.s.reference.actions[a as usize]) else {
                let pieces = operands.iter().flat_map(|v| terms.pieces(*v)).collect();
                values.results.push(vec![terms.beside(pieces)]);
                continue;
            };
            if *action == Action::Add {
                let sum = operands.into_iter().reduce(|a, b| terms.sum(a, b));
                values.results.push(sum.into_iter().collect());
                continue;
            }
            for (place, table) in ids(cx, action, list, term) {
                let to = if makes_row_gradients(action) { &mut summed } else { &mut used };
                to.push((table, operands[place]));
            }
            let number = numbers[term.action.unwrap_or(0) as usize];
            let made = terms.term(Node::Made(number, part, operands.into()), 0);
            let results = (0..).zip(columns).map(|(r, c)| terms.term(Node::Result(made, r), *c));
            values.results.push(results.collect());
            if reports(action) {
                self.outcomes.insert(made);
            }
        }
        let mut known = BTreeSet::new();
        for (table, id) in summed.into_iter().chain(used) {
            if known.insert((table, id)) {
                self.ids.entry(table).or_default().push(id);
            }
        }
        values
    }
}

/// Values of a microbatch.
struct Values {
    results: Vec<Vec<Id>>,
    part: Part,
}

impl Values {
    fn value(&self, cx: &Context<'_>, terms: &mut Terms, v: &Value) -> Id {
        let all = match v.source {
            Source::Term(n, r) => self.results[n as usize][r as usize],
            Source::Parameter(n) => terms.term(Node::Parameter(n), 1),
            Source::Table(n) => terms.term(Node::Rows(n), cx.s.tables[n as usize].dim),
            Source::Input(n) => terms.term(Node::Input(n, self.part), 1),
            Source::Lengths(n) => terms.term(Node::Lengths(n, self.part), 1),
            Source::Zero(n) => terms.zeros(n),
        };
        match v.columns {
            Some((start, end)) => terms.slice(all, start, end),
            None => all,
        }
    }
}

fn makes_row_gradients(action: &Action) -> bool {
    action.facts().entries.is_some_and(|e| matches!(e.rows, At::Written(_)))
}

/// Operands that are ids, with their table.
fn ids<'a>(
    cx: &'a Context<'_>,
    action: &Action,
    list: &'a [Term],
    term: &'a Term,
) -> impl Iterator<Item = (usize, u32)> + 'a {
    let places = action.facts().entries.map_or(&[][..], |e| e.inverse);
    places.iter().filter_map(move |i| {
        let table = table_of_ids(cx.s, list, &term.operands[*i])?;
        Some((*i, table))
    })
}
