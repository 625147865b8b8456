//! Several transfers as one: what a rank sends another of all of them is one message, which the receiver cuts.

use fs_schedule::Element;

use super::{EvalError, Evaluation, Item, Operands, Part, Values, add_rows, exchanged, segments, travelling};
use crate::distribution::op::Op;
use crate::distribution::term::Id;
use crate::distribution::ty::Sharded;

/// What one rank sends: items, and how many go to each rank.
type Sent = (Vec<Item>, Vec<usize>);

impl Evaluation<'_> {
    /// The n-th of some transfers, by rank.
    pub(super) fn joint(&mut self, id: Id, nth: usize, batch: i32) -> Result<Vec<Part>, EvalError> {
        let members = self.terms.node(id).children.clone();
        let mut values = Vec::with_capacity(members.len());
        for member in &members {
            let mut of = Vec::new();
            for child in self.terms.node(*member).children.clone() {
                of.push(self.value(child, batch)?);
            }
            values.push(of);
        }
        let names: Vec<String> = members.iter().map(|m| self.terms.display(*m).to_string()).collect();
        let operands = |i: usize| Operands {
            name: names[i].clone(),
            parts: values[i].iter().map(Vec::as_slice).collect(),
        };
        let op = self.terms.node(members[nth]).op;
        if op == Op::AllReduce {
            let all: Vec<Operands<'_>> = (0..members.len()).map(operands).collect();
            let sums = self.summed(&all, nth)?;
            return Ok((0..self.world.ranks)
                .map(|_| Part { values: Values::Reals(sums.clone()), counts: Vec::new() })
                .collect());
        }
        let mut messages = Vec::with_capacity(self.world.ranks);
        for rank in 0..self.world.ranks {
            let lists =
                (0..members.len()).map(|i| self.sent(self.terms.node(members[i]).op, &operands(i), rank));
            messages.push(packed(&lists.collect::<Result<Vec<_>, _>>()?));
        }
        let lists: Vec<(&[Item], &[usize])> = messages.iter().map(|(i, c)| (&i[..], &c[..])).collect();
        let relays = self.terms.ty(members[nth]).sharded == Sharded::Relay
            && matches!(op, Op::AskRelay { .. } | Op::Send);
        let arrived =
            |rank| if relays { self.within(&lists, rank) } else { exchanged(&lists).swap_remove(rank) };
        (0..self.world.ranks)
            .map(|rank| self.received(op, &operands(nth), nth, arrived(rank), rank))
            .collect()
    }

    /// What a transfer sends from a rank.
    fn sent(&self, op: Op, o: &Operands<'_>, rank: usize) -> Result<Sent, EvalError> {
        let items = match &o.part(0, rank)?.values {
            Values::Reals(rows) => rows.iter().cloned().map(Item::Real).collect(),
            Values::Requests(requests) => requests.iter().copied().map(Item::Request).collect(),
            Values::Classes(classes) => classes.iter().copied().map(Item::Class).collect::<Vec<_>>(),
            _ => return Err(o.wrong("it sends something else")),
        };
        // Cut as the sender's list says, or all to all.
        Ok(match op {
            Op::AskAll { .. } | Op::SendAll => {
                let all = (0..self.world.ranks).flat_map(|_| items.clone()).collect();
                (all, vec![items.len(); self.world.ranks])
            }
            Op::Return | Op::Send => (items, o.part(1, rank)?.counts.clone()),
            _ => (items, o.part(0, rank)?.counts.clone()),
        })
    }

    /// What a rank has of the n-th transfer, of all that arrived.
    fn received(
        &self,
        op: Op,
        o: &Operands<'_>,
        nth: usize,
        (items, counts): (Vec<Item>, Vec<usize>),
        rank: usize,
    ) -> Result<Part, EvalError> {
        let (mut own, mut of_ranks) = (Vec::new(), Vec::new());
        for message in segments(&items, &counts) {
            let before = own.len();
            // Of each list in the message a receiver is told its length, or knows it.
            let mut rest = message;
            while !rest.is_empty() {
                for member in 0.. {
                    let [Item::Next(n), tail @ ..] = rest else { break };
                    let (list, behind) =
                        tail.split_at_checked(*n).ok_or_else(|| o.wrong("a message is too short"))?;
                    if member == nth {
                        own.extend_from_slice(list);
                    }
                    rest = behind;
                }
                match rest {
                    [Item::End, tail @ ..] => rest = tail,
                    _ => return Err(o.wrong("a message does not end")),
                }
            }
            of_ranks.push(own.len() - before);
        }
        let known = || o.part(2, rank).map(|list| list.counts.clone());
        let element = match op {
            Op::Send | Op::SendAll => self.world.wire.gradients,
            _ => Element::Real,
        };
        let values = match own.first() {
            None => match &o.part(0, rank)?.values {
                Values::Reals(_) => Values::Reals(Vec::new()),
                Values::Requests(_) => Values::Requests(Vec::new()),
                _ => Values::Classes(Vec::new()),
            },
            Some(Item::Real(_)) => Values::Reals(collected(own, o, |item| match item {
                Item::Real(row) => Some(travelling(&row, element)),
                _ => None,
            })?),
            Some(Item::Request(_)) => Values::Requests(collected(own, o, |item| match item {
                Item::Request(request) => Some(request),
                _ => None,
            })?),
            Some(_) => Values::Classes(collected(own, o, |item| match item {
                Item::Class(class) => Some(class),
                _ => None,
            })?),
        };
        let counts = match op {
            Op::Return | Op::Send | Op::SendAll => known()?,
            _ => of_ranks,
        };
        Ok(Part { values, counts })
    }

    /// Sums over ranks of everything side by side: each rank adds up a part of that, in the order of ranks, whatever it is of.
    fn summed(&self, all: &[Operands<'_>], nth: usize) -> Result<Vec<Vec<f32>>, EvalError> {
        let flat = |rank: usize| -> Result<Vec<f32>, EvalError> {
            let of = all.iter().map(|o| Ok(o.reals(0, rank)?.concat()));
            Ok(of.collect::<Result<Vec<_>, EvalError>>()?.concat())
        };
        let ranks = self.world.ranks;
        let of: Vec<Vec<f32>> = (0..ranks).map(flat).collect::<Result<_, _>>()?;
        let n = of.first().map_or(0, Vec::len);
        if of.iter().any(|other| other.len() != n) {
            return Err(all[nth].wrong("ranks have other numbers of gradients"));
        }
        let part = |owner: usize| {
            let own = n * owner / ranks..n * (owner + 1) / ranks;
            let mut sum = vec![of[0][own.clone()].to_vec()];
            of[1..].iter().for_each(|more| add_rows(&mut sum, &[more[own.clone()].to_vec()]));
            sum.concat()
        };
        let mut sums: Vec<f32> = (0..ranks).flat_map(part).collect();
        let before: usize =
            all[..nth].iter().map(|o| o.reals(0, 0).map_or(0, |rows| rows.concat().len())).sum();
        sums.drain(..before);
        let mut rest = sums.into_iter();
        Ok(all[nth].reals(0, 0)?.iter().map(|row| rest.by_ref().take(row.len()).collect()).collect())
    }
}

/// One message for each rank: of each list its length, then the list.
fn packed(lists: &[Sent]) -> Sent {
    let ranks = lists.iter().map(|(_, counts)| counts.len()).max().unwrap_or(0);
    let cut: Vec<Vec<&[Item]>> = lists.iter().map(|(items, counts)| segments(items, counts)).collect();
    let (mut items, mut counts) = (Vec::new(), Vec::new());
    for to in 0..ranks {
        let before = items.len();
        for list in &cut {
            let own = list.get(to).copied().unwrap_or(&[]);
            items.push(Item::Next(own.len()));
            items.extend_from_slice(own);
        }
        items.push(Item::End);
        counts.push(items.len() - before);
    }
    (items, counts)
}

fn collected<T>(
    items: Vec<Item>,
    o: &Operands<'_>,
    of: impl Fn(Item) -> Option<T>,
) -> Result<Vec<T>, EvalError> {
    items.into_iter().map(of).collect::<Option<_>>().ok_or_else(|| o.wrong("another kind of list arrived"))
}
