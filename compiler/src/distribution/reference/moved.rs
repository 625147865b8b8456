//! Samples that move: what a rank has of them, and who asks owners on whose behalf.

use std::collections::BTreeMap;

use super::{EvalError, Evaluation, Operands, Part, Request, Values};
use crate::distribution::term::Id;

/// A sample: where it is read, and its place there.
type Sample = (usize, usize);

/// What is moved, cut by sample.
enum Pieces {
    Reals(Vec<Vec<Vec<f32>>>),
    Ids(Vec<Vec<Vec<u64>>>),
    Lengths(Vec<usize>),
}

fn cut<T: Clone>(rows: &[T], lengths: &[usize]) -> Option<Vec<Vec<T>>> {
    let mut rest = rows;
    let mut pieces = Vec::with_capacity(lengths.len());
    for n in lengths {
        let (head, tail) = rest.split_at_checked(*n)?;
        pieces.push(head.to_vec());
        rest = tail;
    }
    rest.is_empty().then_some(pieces)
}

fn lengths(offsets: &[usize]) -> Vec<usize> {
    offsets.windows(2).map(|at| at[1] - at[0]).collect()
}

/// How many there are of each sample: one, or as many ids as the offsets at home say.
fn each(o: &Operands<'_>, home: usize, samples: usize) -> Result<Vec<usize>, EvalError> {
    if o.parts.len() < 2 {
        return Ok(vec![1; samples]);
    }
    let Values::Offsets(offsets) = &o.part(1, home)?.values else { return Err(o.wrong("no offsets")) };
    let lengths = lengths(offsets);
    if lengths.len() == samples { Ok(lengths) } else { Err(o.wrong("not as many offsets as samples")) }
}

impl Evaluation<'_> {
    /// For each sample of each rank who works on it.
    fn plan(&self, o: &Operands<'_>, batch: i32) -> Result<&[Vec<usize>], EvalError> {
        let plan = self.world.assigned.get(&batch).filter(|plan| plan.len() == self.world.ranks);
        plan.map(Vec::as_slice).ok_or_else(|| o.wrong("there is no plan of all ranks"))
    }

    /// What a rank has of samples at their new place, or back at home.
    fn carried(&self, o: &Operands<'_>, batch: i32, rank: usize, home: bool) -> Result<Part, EvalError> {
        let plan = self.plan(o, batch)?;
        let mut assigned: Vec<Vec<Sample>> = vec![Vec::new(); self.world.ranks];
        for (from, list) in plan.iter().enumerate() {
            for (sample, to) in list.iter().enumerate() {
                assigned.get_mut(*to).ok_or_else(|| o.wrong("no such rank"))?.push((from, sample));
            }
        }
        let at_home = |rank: usize| (0..plan[rank].len()).map(|sample| (rank, sample)).collect::<Vec<_>>();
        let (there, here) = if home {
            (assigned.clone(), at_home(rank))
        } else {
            ((0..self.world.ranks).map(at_home).collect(), assigned[rank].clone())
        };
        // Where each sample is taken from.
        let mut of: BTreeMap<Sample, (usize, usize)> = BTreeMap::new();
        for (holder, samples) in there.iter().enumerate() {
            of.extend(samples.iter().enumerate().map(|(at, sample)| (*sample, (holder, at))));
        }
        let mut by_home = Vec::with_capacity(self.world.ranks);
        for (rank, samples) in plan.iter().enumerate() {
            by_home.push(each(o, rank, samples.len())?);
        }
        let mut pieces = Vec::with_capacity(self.world.ranks);
        for (holder, samples) in there.iter().enumerate() {
            let each: Vec<usize> = samples.iter().map(|(rank, sample)| by_home[*rank][*sample]).collect();
            let of_holder = match &o.part(0, holder)?.values {
                Values::Reals(rows) => cut(rows, &each).map(Pieces::Reals),
                Values::Ids(rows) => cut(rows, &each).map(Pieces::Ids),
                Values::Offsets(offsets) => {
                    Some(lengths(offsets)).filter(|of| of.len() == samples.len()).map(Pieces::Lengths)
                }
                _ => None,
            };
            pieces.push(of_holder.ok_or_else(|| o.wrong("an operand has not as many as its samples"))?);
        }
        let (mut reals, mut ids, mut offsets) = (Vec::new(), Vec::new(), vec![0]);
        for sample in &here {
            let (holder, at) = of.get(sample).ok_or_else(|| o.wrong("a sample is nowhere"))?;
            match &pieces[*holder] {
                Pieces::Reals(of) => reals.extend(of[*at].iter().cloned()),
                Pieces::Ids(of) => ids.extend(of[*at].iter().cloned()),
                Pieces::Lengths(of) => offsets.push(offsets.last().copied().unwrap_or(0) + of[*at]),
            }
        }
        let values = match pieces.first() {
            Some(Pieces::Reals(_)) => Values::Reals(reals),
            Some(Pieces::Ids(_)) => Values::Ids(ids),
            _ => Values::Offsets(offsets),
        };
        Ok(Part { values, counts: Vec::new() })
    }

    /// From the ranks that read samples to those that work on them.
    pub(super) fn dispatch(&self, o: &Operands<'_>, batch: i32, rank: usize) -> Result<Part, EvalError> {
        self.carried(o, batch, rank, false)
    }

    /// Back.
    pub(super) fn combine(&self, o: &Operands<'_>, batch: i32, rank: usize) -> Result<Part, EvalError> {
        self.carried(o, batch, rank, true)
    }

    /// What an owner is asked for by those who read samples: each lists for each rank that works on some of them, and the owner
    /// joins what all ask for one rank.
    pub(super) fn ask_for(
        &self,
        id: Id,
        o: &Operands<'_>,
        unique: bool,
        (batch, owner): (i32, usize),
    ) -> Result<Part, EvalError> {
        let plan = self.plan(o, batch)?;
        let children = &self.terms.node(id).children;
        let (mut requests, mut counts) = (Vec::new(), vec![0; self.world.ranks]);
        for (user, count) in counts.iter_mut().enumerate() {
            let mut joined: BTreeMap<u64, (Request, usize)> = BTreeMap::new();
            for (home, samples) in plan.iter().enumerate() {
                for (row, (asked, times)) in self.listed_for(children, o, (home, samples, user))? {
                    if self.world.owner(row) != owner {
                        continue;
                    }
                    let (known, n) = joined.entry(row).or_insert((asked, 0));
                    (known.first, known.last) = (known.first.min(asked.first), known.last.max(asked.last));
                    *n += times;
                }
            }
            for (request, times) in joined.into_values() {
                let n = if unique { 1 } else { times };
                requests.extend(std::iter::repeat_n(request, n));
                *count += n;
            }
        }
        Ok(Part { values: Values::Requests(requests), counts })
    }

    /// What one rank asks for on behalf of another, by row, and how many occurrences that is.
    fn listed_for(
        &self,
        children: &[Id],
        o: &Operands<'_>,
        (home, samples, user): (usize, &[usize], usize),
    ) -> Result<BTreeMap<u64, (Request, usize)>, EvalError> {
        let mut list: BTreeMap<u64, (Request, usize)> = BTreeMap::new();
        for (i, child) in children.iter().enumerate().step_by(2) {
            let (Values::Ids(ids), Values::Offsets(offsets)) =
                (&o.part(i, home)?.values, &o.part(i + 1, home)?.values)
            else {
                return Err(o.wrong("no ids of samples"));
            };
            let microbatch = self.microbatch(*child);
            if offsets.len() != samples.len() + 1 {
                return Err(o.wrong("not as many offsets as samples"));
            }
            for (at, to) in offsets.windows(2).zip(samples) {
                if *to != user {
                    continue;
                }
                let of_sample = ids.get(at[0]..at[1]).ok_or_else(|| o.wrong("offsets are out of range"))?;
                for row in of_sample.iter().flatten() {
                    let first = Request { row: *row, first: microbatch, last: microbatch };
                    let (known, n) = list.entry(*row).or_insert((first, 0));
                    (known.first, known.last) = (known.first.min(microbatch), known.last.max(microbatch));
                    *n += 1;
                }
            }
        }
        Ok(list)
    }
}
