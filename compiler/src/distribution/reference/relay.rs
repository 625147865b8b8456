//! What relays do: lists of their nodes, and sums over these.

use std::collections::{BTreeMap, BTreeSet};

use super::{EvalError, Evaluation, Lists, Operands, Part, Request, Values, World, exchanged, segments};
use crate::distribution::term::Id;

impl World {
    /// Who asks an owner on behalf of a rank's node.
    pub(crate) fn relay(&self, rank: usize, owner: usize) -> usize {
        owner / self.nodes * self.nodes + rank % self.nodes
    }
}

impl Evaluation<'_> {
    /// What a relay receives of lists that are cut by owner.
    pub(super) fn within<T: Clone>(&self, lists: &Lists<'_, T>, rank: usize) -> (Vec<T>, Vec<usize>) {
        let by_relay = |(from, counts): (usize, &[usize])| {
            let mut of = vec![0; self.world.ranks];
            counts.iter().enumerate().for_each(|(owner, n)| of[self.world.relay(from, owner)] += n);
            of
        };
        let counts: Vec<Vec<usize>> = lists.iter().map(|l| l.1).enumerate().map(by_relay).collect();
        let cut: Vec<_> = lists.iter().zip(&counts).map(|(l, counts)| (l.0, counts.as_slice())).collect();
        exchanged(&cut).swap_remove(rank)
    }

    /// Each row once that a node asks for, by owner.
    pub(super) fn relayed(&self, o: &Operands<'_>, rank: usize) -> Result<Part, EvalError> {
        let mut of: BTreeMap<(usize, u64), Request> = BTreeMap::new();
        for r in o.requests(0, rank)? {
            let known = of.entry((self.world.owner(r.row), r.row)).or_insert(*r);
            (known.first, known.last) = (known.first.min(r.first), known.last.max(r.last));
        }
        let mut counts = vec![0; self.world.ranks];
        for (owner, _) in of.keys() {
            counts[*owner] += 1;
        }
        Ok(Part { values: Values::Requests(of.into_values().collect()), counts })
    }

    /// A node's sums: within each rank by position, then by rank.
    pub(super) fn sum_asked(&self, id: Id, o: &Operands<'_>, rank: usize) -> Result<Part, EvalError> {
        let received = o.reals(2, rank)?;
        let (groups, list) = groups(o, rank, (0, 4, 3))?;
        let counts = &o.part(if list == 0 { 1 } else { list }, rank)?.counts;
        let pairs: Vec<(usize, &Vec<f32>)> = groups.into_iter().zip(received).collect();
        let mut sums: BTreeMap<usize, Vec<f32>> = BTreeMap::new();
        for from in segments(&pairs, counts) {
            let mut of_rank = BTreeMap::new();
            for (at, g) in from {
                add(&mut of_rank, *at, g);
            }
            for (at, g) in &of_rank {
                add(&mut sums, *at, g);
            }
        }
        let there = match o.parts.len() {
            3 => {
                let entries = self.terms.child(id, 0).and_then(|places| self.terms.entries_of(places));
                self.known_part(entries.ok_or_else(|| o.wrong("no entries"))?, o, rank)?
            }
            _ => o.part(4, rank)?,
        };
        let n: usize = there.counts.iter().sum();
        let all: Vec<Vec<f32>> = sums.into_values().collect();
        if all.len() != n {
            return Err(o.wrong("a row that a relay asks for has no gradient"));
        }
        Ok(Part { values: Values::Reals(all), counts: there.counts.clone() })
    }
}

/// Adds to the sum of a key, or begins it.
pub(super) fn add<K: Ord>(sums: &mut BTreeMap<K, Vec<f32>>, key: K, g: &[f32]) {
    match sums.get_mut(&key) {
        Some(sum) => sum.iter_mut().zip(g).for_each(|(s, x)| *s += x),
        None => drop(sums.insert(key, g.to_vec())),
    }
}

/// Where each row that a node asks for stands among those that its relay asks for.
pub(super) fn places(o: &Operands<'_>, rank: usize) -> Result<Vec<usize>, EvalError> {
    let known: BTreeMap<u64, usize> = o.requests(0, rank)?.iter().map(|r| r.row).zip(0..).collect();
    let at =
        |r: &Request| known.get(&r.row).copied().ok_or_else(|| o.wrong("a relay does not ask for a row"));
    o.requests(1, rank)?.iter().map(at).collect()
}

/// Of what a node asks for, all or a class of it, where each stands among what is there of it, and the operand that says how
/// many ranks have. Operands are places, and the lists of a class among what is there and among what is asked for.
pub(super) fn groups(
    o: &Operands<'_>,
    rank: usize,
    (places, there, asked): (usize, usize, usize),
) -> Result<(Vec<usize>, usize), EvalError> {
    let of = o.positions(places, rank)?;
    if o.parts.len() <= asked.min(there) {
        return Ok((of.iter().map(|p| p[0]).collect(), places));
    }
    let there: Vec<usize> = o.positions(there, rank)?.iter().map(|p| p[0]).collect();
    let distinct: BTreeSet<usize> = there.iter().copied().collect();
    if distinct.len() != there.len() {
        return Err(o.wrong("a list names a place twice"));
    }
    let at = |p: &Vec<usize>| {
        let place = o.picked(of, p[0])?[0];
        there
            .iter()
            .position(|t| *t == place)
            .ok_or_else(|| o.wrong("a row is of another class at its relay"))
    };
    Ok((o.positions(asked, rank)?.iter().map(at).collect::<Result<_, _>>()?, asked))
}
