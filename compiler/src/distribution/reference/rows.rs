//! Entries, positions and classes of rows, and what is summed over them.

use std::collections::BTreeMap;

use fs_schedule::reuse::Reuse;
use fs_schedule::{Element, Way};

use super::relay::add;
use super::{EvalError, Evaluation, Operands, Part, Request, Values, segments, travelling};
use crate::distribution::op::Op;
use crate::distribution::term::Id;
use crate::distribution::ty::Per;

impl Evaluation<'_> {
    /// All ids of a rank with the microbatches that use them, in order.
    pub(super) fn used(&self, id: Id, o: &Operands<'_>, rank: usize) -> Result<Vec<(u64, u32)>, EvalError> {
        let mut used = Vec::new();
        for (i, child) in self.terms.node(id).children.iter().enumerate() {
            let Values::Ids(ids) = &o.part(i, rank)?.values else { return Err(o.wrong("no ids")) };
            let microbatch = self.microbatch(*child);
            used.extend(ids.iter().flatten().map(|row| (*row, microbatch)));
        }
        Ok(used)
    }

    pub(super) fn microbatch(&self, ids: Id) -> u32 {
        match self.terms.node(ids).op {
            Op::Ids { microbatch, .. } => microbatch,
            _ => self.terms.child(ids, 0).map_or(0, |c| self.microbatch(c)),
        }
    }

    /// Where the occurrences of a rank's ids go among its entries, by owner and row, and what the entries are.
    pub(super) fn listed(&self, used: &[(u64, u32)], unique: bool) -> (Vec<usize>, Vec<Request>, Vec<usize>) {
        // Of each row how often it is used, first and last.
        let mut rows: BTreeMap<(usize, u64), (Request, usize)> = BTreeMap::new();
        for (row, m) in used {
            let key = (self.world.owner(*row), *row);
            let (known, n) = rows.entry(key).or_insert((Request { row: *row, first: *m, last: *m }, 0));
            (known.first, known.last) = (known.first.min(*m), known.last.max(*m));
            *n += 1;
        }
        let (mut requests, mut counts) = (Vec::new(), vec![0; self.world.ranks]);
        let mut next: BTreeMap<u64, usize> = BTreeMap::new();
        for ((owner, row), (request, times)) in rows {
            let n = if unique { 1 } else { times };
            next.insert(row, requests.len());
            requests.extend(std::iter::repeat_n(request, n));
            counts[owner] += n;
        }
        // Occurrences of a row stay in their order.
        let place = |(row, _): &(u64, u32)| {
            let at = next.entry(*row).or_default();
            let here = *at;
            *at += usize::from(!unique);
            here
        };
        (used.iter().map(place).collect(), requests, counts)
    }

    pub(super) fn entries(
        &self,
        id: Id,
        o: &Operands<'_>,
        unique: bool,
        rank: usize,
    ) -> Result<Part, EvalError> {
        let (_, requests, counts) = self.listed(&self.used(id, o, rank)?, unique);
        Ok(Part { values: Values::Requests(requests), counts })
    }

    pub(super) fn inverse(&self, id: Id, o: &Operands<'_>, rank: usize) -> Result<Part, EvalError> {
        let node = self.terms.node(id);
        let (entries, wanted) = (node.children[0], node.children[1]);
        let unique = self.terms.ty(entries).per == Per::Entry { unique: true };
        let Values::Ids(ids) = &o.part(1, rank)?.values else { return Err(o.wrong("no ids")) };
        // The ids' place among all that the entries were made of: those before them come first.
        let (mut used, mut start) = (Vec::new(), 0);
        for source in &self.terms.node(entries).children {
            if *source == wanted {
                start = used.len();
            }
            let Values::Ids(ids) = &self.known_part(*source, o, rank)?.values else {
                return Err(o.wrong("no ids"));
            };
            let microbatch = self.microbatch(*source);
            used.extend(ids.iter().flatten().map(|row| (*row, microbatch)));
        }
        let (places, ..) = self.listed(&used, unique);
        let mut places = places[start..].iter().copied();
        let rows = ids.iter().map(|row| places.by_ref().take(row.len()).collect()).collect();
        Ok(Part { values: Values::Positions(rows), counts: Vec::new() })
    }

    /// A value of the current batch that has been computed: what entries were made of.
    pub(super) fn known_part(&self, id: Id, o: &Operands<'_>, rank: usize) -> Result<&Part, EvalError> {
        let parts = self.known.get(&(id, 0));
        parts.and_then(|parts| parts.get(rank)).ok_or_else(|| o.wrong("a source is not known"))
    }

    pub(super) fn merge(&self, id: Id, o: &Operands<'_>, rank: usize) -> Result<Part, EvalError> {
        let odd = o.parts.len() % 2;
        let list = *self.terms.node(id).children.last().ok_or_else(|| o.wrong("nothing to merge"))?;
        let entries = self.terms.entries_of(list).ok_or_else(|| o.wrong("no entries"))?;
        let entries = self.known_part(entries, o, rank)?;
        let Values::Requests(requests) = &entries.values else { return Err(o.wrong("no entries")) };
        let width = self.terms.ty(id).columns as usize;
        // Rows that have not arrived yet are nothing that may be used: they show.
        let mut rows = match odd {
            1 => o.reals(0, rank)?.to_vec(),
            _ => vec![vec![f32::NAN; width]; requests.len()],
        };
        let list = self.terms.entries_of(list).ok_or_else(|| o.wrong("no entries"))?;
        let places = self.places_among_all(list, o, rank)?;
        for i in (odd..o.parts.len()).step_by(2) {
            for (row, at) in o.reals(i, rank)?.iter().zip(o.positions(i + 1, rank)?) {
                let at = places.as_ref().map_or(Ok(at[0]), |places| o.picked(places, at[0]).copied())?;
                let place = rows.get_mut(at).ok_or_else(|| o.wrong("a position is out of range"))?;
                place.clone_from(row);
            }
        }
        Ok(Part { values: Values::Reals(rows), counts: entries.counts.clone() })
    }

    pub(super) fn pool(&self, id: Id, o: &Operands<'_>, mean: bool, rank: usize) -> Result<Part, EvalError> {
        let (rows, at) = (o.reals(0, rank)?, o.positions(1, rank)?);
        let Values::Offsets(offsets) = &o.part(2, rank)?.values else {
            return Err(o.wrong("an operand has no offsets"));
        };
        let width = self.terms.ty(id).columns as usize;
        let mut pooled = Vec::with_capacity(offsets.len());
        for sample in offsets.windows(2) {
            let mut sum = vec![0.0; width];
            let own = at.get(sample[0]..sample[1]).ok_or_else(|| o.wrong("offsets are out of range"))?;
            for p in own.iter().flatten() {
                sum.iter_mut().zip(o.picked(rows, *p)?).for_each(|(s, x)| *s += x);
            }
            let scale = if mean { 1.0 / own.len().max(1) as f32 } else { 1.0 };
            pooled.push(sum.into_iter().map(|s| s * scale).collect());
        }
        Ok(Part { values: Values::Reals(pooled), counts: Vec::new() })
    }

    /// The entries that a term's sums are of.
    pub(super) fn entries_of(&self, id: Id, o: &Operands<'_>) -> Result<Id, EvalError> {
        let inverse = self.terms.child(id, 1).and_then(|i| self.terms.entries_of(i));
        inverse.ok_or_else(|| o.wrong("no entries"))
    }

    /// Adds the gradients of ids or samples to those of their entries, in the order of the ids.
    pub(super) fn add_by_entry(
        &self,
        id: Id,
        o: &Operands<'_>,
        rank: usize,
        sums: &mut [Vec<f32>],
    ) -> Result<(), EvalError> {
        let node = self.terms.node(id);
        let value = |i: usize| self.known_part(node.children[i], o, rank).map(|part| &part.values);
        let (Values::Reals(gradients), Values::Positions(at)) = (value(0)?, value(1)?) else {
            return Err(o.wrong("no gradients, or no places"));
        };
        let mut add = |at: usize, g: &[f32], scale: f32| -> Result<(), EvalError> {
            let sum = sums.get_mut(at).ok_or_else(|| o.wrong("a position is out of range"))?;
            sum.iter_mut().zip(g).for_each(|(s, x)| *s += x * scale);
            Ok(())
        };
        let Op::PoolGrad { mean } = node.op else {
            for (at, g) in at.iter().zip(gradients) {
                let width = (g.len() / at.len().max(1)).max(1);
                at.iter().zip(g.chunks(width)).try_for_each(|(at, g)| add(*at, g, 1.0))?;
            }
            return Ok(());
        };
        let Values::Offsets(offsets) = value(2)? else { return Err(o.wrong("no offsets")) };
        for (sample, g) in offsets.windows(2).zip(gradients) {
            let scale = if mean { 1.0 / (sample[1] - sample[0]).max(1) as f32 } else { 1.0 };
            let of_sample = at.get(sample[0]..sample[1]).ok_or_else(|| o.wrong("no such ids"))?;
            of_sample.iter().flatten().try_for_each(|at| add(*at, g, scale))?;
        }
        Ok(())
    }

    /// Sums per row of what arrived: within each rank by position, then by rank, then by node.
    pub(super) fn total(&self, o: &Operands<'_>, rank: usize) -> Result<Part, EvalError> {
        let (asked, received) = (o.requests(0, rank)?, o.reals(1, rank)?);
        let (rows, counts): (Vec<u64>, &[usize]) = if o.parts.len() == 3 {
            let picked = o.positions(2, rank)?.iter().map(|p| Ok(o.picked(asked, p[0])?.row));
            (picked.collect::<Result<_, EvalError>>()?, &o.part(2, rank)?.counts)
        } else {
            (asked.iter().map(|r| r.row).collect(), &o.part(0, rank)?.counts)
        };
        let pairs: Vec<(u64, &Vec<f32>)> = rows.into_iter().zip(received).collect();
        let sources = segments(&pairs, counts);
        let mut totals: BTreeMap<u64, Vec<f32>> = BTreeMap::new();
        for node in 0..self.world.nodes {
            let mut of_node = BTreeMap::new();
            for from in sources.iter().skip(node).step_by(self.world.nodes) {
                let mut of_rank = BTreeMap::new();
                for (row, g) in *from {
                    add(&mut of_rank, *row, g);
                }
                for (row, g) in &of_rank {
                    add(&mut of_node, *row, g);
                }
            }
            // A relay would send its node's sum.
            let element = if self.world.nodes > 1 { self.world.wire.gradients } else { Element::Real };
            for (row, g) in &of_node {
                add(&mut totals, *row, &travelling(g, element));
            }
        }
        Ok(Part { values: Values::Sums(totals), counts: Vec::new() })
    }
}

/// Sums of several operands: of other rows, or of more columns of the same ones. `fits` says whether a row may come, by
/// what there is of it and whether its operand is the first.
pub(super) fn together(
    o: &Operands<'_>,
    rank: usize,
    fits: impl Fn(Option<&Vec<f32>>, bool) -> bool,
) -> Result<Part, EvalError> {
    let mut all: BTreeMap<u64, Vec<f32>> = BTreeMap::new();
    for i in 0..o.parts.len() {
        let Values::Sums(sums) = &o.part(i, rank)?.values else { return Err(o.wrong("no sums")) };
        for (row, sum) in sums {
            if !fits(all.get(row), i == 0) {
                return Err(o.wrong("a row is in two operands, or in the first only"));
            }
            all.entry(*row).or_default().extend(sum);
        }
    }
    Ok(Part { values: Values::Sums(all), counts: Vec::new() })
}

/// The class of each row that is asked for.
pub(super) fn partition(
    o: &Operands<'_>,
    around: &[Vec<Part>],
    reuse: Reuse,
    way: Way,
    rank: usize,
) -> Result<Vec<u32>, EvalError> {
    let w = reuse.windows;
    let asked = |parts: &Vec<Part>| match parts.get(rank).map(|p| &p.values) {
        Some(Values::Requests(requests)) => Ok(requests.clone()),
        _ => Err(o.wrong("no requests of a batch around")),
    };
    let others = around.iter().map(asked).collect::<Result<Vec<_>, _>>()?;
    let own = o.requests(1, rank)?;
    let class = |r: &Request| {
        // Requests tell microbatches.
        let of = |list: &'_ [Request]| -> Option<(u32, u32)> {
            let same = || list.iter().filter(|x| x.row == r.row);
            let (first, last) = (same().map(|x| x.first).min()?, same().map(|x| x.last).max()?);
            Some((reuse.window(first), reuse.window(last)))
        };
        let found = others.iter().zip(1..).find_map(|(list, batches)| Some((of(list)?, batches)));
        let (window, distance) = match way {
            Way::Forward => {
                let first = reuse.window(r.first);
                (first, found.map(|((_, last), b): (_, u32)| b * w + first - last))
            }
            Way::Backward => {
                let last = of(own).map_or(reuse.window(r.last), |(_, last)| last);
                (last, found.map(|((first, _), b)| b * w + first - last))
            }
        };
        reuse.class(way, window, distance).ok_or_else(|| o.wrong("there is no such class"))
    };
    o.requests(0, rank)?.iter().map(class).collect()
}
