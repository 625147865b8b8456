//! The fewest dependencies that say what must come before what.
//!
//! A queue is a chain, so what an operation surely comes after is one number per queue: the farthest position that
//! has finished, counted over steps (a vector clock). Of the operations of a queue that one waits for, the farthest
//! implies the rest; and it is itself implied if the clock of another one that is waited for, or of the one before in
//! the own queue, has reached it. What remains is the transitive reduction: of relations that follow some order in
//! time all redundant ones can go at once.

use std::collections::BTreeMap;

use fs_schedule::{Dep, Engine};

/// A relation between instances: `from`, `steps` steps earlier, has finished before `to` starts. Positions in the
/// list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Before {
    /// What comes first.
    pub from: u32,
    /// What waits.
    pub to: u32,
    /// Steps between them.
    pub steps: i32,
}

/// Queues of a list.
#[derive(Debug)]
pub(crate) struct Queues {
    /// Queue of each operation.
    pub of: Vec<u16>,
    /// Position in its queue.
    at: Vec<i64>,
    /// Operations of each queue.
    pub members: Vec<Vec<u32>>,
}

impl Queues {
    /// Operations of one engine and priority are a queue.
    pub(crate) fn new(ops: impl Iterator<Item = (Engine, i32)>) -> Self {
        let mut numbers: BTreeMap<(Engine, i32), u16> = BTreeMap::new();
        let (mut of, mut at, mut members) = (Vec::new(), Vec::new(), Vec::<Vec<u32>>::new());
        for (i, key) in ops.enumerate() {
            let next = numbers.len() as u16;
            let q = *numbers.entry(key).or_insert(next);
            if members.len() <= q as usize {
                members.push(Vec::new());
            }
            let list = &mut members[q as usize];
            of.push(q);
            at.push(list.len() as i64);
            list.push(i as u32);
        }
        Self { of, at, members }
    }

    fn len(&self, q: usize) -> i64 {
        self.members[q].len() as i64
    }

    /// Operations of a queue that have finished once `op`, `steps` steps ago, has.
    pub(crate) fn count(&self, op: usize, steps: i32) -> i64 {
        self.at[op] + 1 - i64::from(steps) * self.len(self.of[op] as usize)
    }

    /// The operation that a count ends with, and how many steps ago it ran.
    fn last(&self, q: usize, count: i64) -> (u32, i32) {
        let n = self.len(q);
        let at = (count - 1).rem_euclid(n);
        (self.members[q][at as usize], -((count - 1).div_euclid(n)) as i32)
    }
}

/// Nothing is known to have finished.
const NONE: i64 = i64::MIN / 4;

/// A relation that the list's own order contradicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("operation {} of the list must wait for {}, which stands behind it", .0.to, .0.from)]
pub(crate) struct Contradiction(pub Before);

/// The fewest dependencies of each operation from which all relations follow.
pub(crate) fn reduce(
    queues: &Queues,
    relations: impl IntoIterator<Item = Before>,
) -> Result<Vec<Vec<Dep>>, Contradiction> {
    let (n, width) = (queues.of.len(), queues.members.len());
    // Per operation and queue the farthest that is waited for.
    let mut wanted = vec![NONE; n * width];
    for r in relations {
        let (from, to) = (r.from as usize, r.to as usize);
        if r.steps < 0 || (r.steps == 0 && from >= to) {
            return Err(Contradiction(r));
        }
        let w = &mut wanted[to * width + queues.of[from] as usize];
        *w = (*w).max(queues.count(from, r.steps));
    }
    let clocks = clocks(queues, &wanted);
    let mut deps = Vec::with_capacity(n);
    for op in 0..n {
        let wants = &wanted[op * width..(op + 1) * width];
        let own = queues.of[op] as usize;
        let mut list = Vec::new();
        for (q, want) in wants.iter().enumerate() {
            if *want == NONE {
                continue;
            }
            // Known by the operation before in the own queue, or by another one that is waited for.
            let known = |other: usize, count: i64| {
                let (p, steps) = queues.last(other, count);
                clocks[p as usize * width + q] - i64::from(steps) * queues.len(q) >= *want
            };
            let implied = (q == own && *want <= queues.at[op])
                || known(own, queues.at[op])
                || wants.iter().enumerate().any(|(other, c)| other != q && *c != NONE && known(other, *c));
            if !implied {
                let (p, steps) = queues.last(q, *want);
                list.push(Dep { op: p, distance: steps as u32 });
            }
        }
        list.sort_unstable();
        deps.push(list);
    }
    Ok(deps)
}

/// What has surely finished before each operation starts.
fn clocks(queues: &Queues, wanted: &[i64]) -> Vec<i64> {
    let (n, width) = (queues.of.len(), queues.members.len());
    let mut clocks = vec![NONE; n * width];
    let mut next = vec![NONE; width];
    loop {
        let mut changed = false;
        for op in 0..n {
            next.copy_from_slice(&clocks[op * width..(op + 1) * width]);
            let own = queues.of[op] as usize;
            let mut learn = |q: usize, count: i64| {
                let (p, steps) = queues.last(q, count);
                next[q] = next[q].max(count);
                for (k, known) in next.iter_mut().enumerate() {
                    let of = clocks[p as usize * width + k];
                    if of != NONE {
                        *known = (*known).max(of - i64::from(steps) * queues.len(k));
                    }
                }
            };
            learn(own, queues.at[op]);
            for (q, want) in wanted[op * width..(op + 1) * width].iter().enumerate() {
                if *want != NONE {
                    learn(q, *want);
                }
            }
            if next != clocks[op * width..(op + 1) * width] {
                clocks[op * width..(op + 1) * width].copy_from_slice(&next);
                changed = true;
            }
        }
        if !changed {
            return clocks;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn before(from: u32, to: u32, steps: i32) -> Before {
        Before { from, to, steps }
    }
    fn dep(op: u32, distance: u32) -> Dep {
        Dep { op, distance }
    }

    #[test]
    fn queues_and_other_dependencies_imply_the_rest() {
        // compute 0, transfer 1, compute 2, transfer 3, compute 4.
        let engines = [Engine::Compute, Engine::CopyOut, Engine::Compute, Engine::CopyOut, Engine::Compute];
        let q = Queues::new(engines.iter().map(|e| (*e, 0)));
        let all = [
            before(0, 1, 0),
            before(0, 2, 0),
            before(2, 3, 0),
            before(0, 3, 0),
            before(1, 4, 0),
            before(3, 4, 0),
        ];
        let deps = reduce(&q, all).unwrap();
        assert_eq!(deps, vec![vec![], vec![dep(0, 0)], vec![], vec![dep(2, 0)], vec![dep(3, 0)]]);
    }

    #[test]
    fn the_step_before_counts() {
        let engines = [Engine::Compute, Engine::CopyOut, Engine::Compute];
        let q = Queues::new(engines.iter().map(|e| (*e, 0)));
        // 2 of the step before comes first in the own queue; 1 of the step before is not known by anyone.
        let deps = reduce(&q, [before(2, 0, 1), before(1, 0, 1)]).unwrap();
        assert_eq!(deps[0], vec![dep(1, 1)]);
        // Once 2 waits for 1, whoever comes after 2 knows of it.
        let deps = reduce(&q, [before(1, 2, 0), before(1, 0, 1)]).unwrap();
        assert_eq!((deps[2].clone(), deps[0].clone()), (vec![dep(1, 0)], vec![]));
    }

    #[test]
    fn priorities_are_queues_of_their_own() {
        let q = Queues::new([(Engine::CopyOut, 0), (Engine::CopyOut, 1)].into_iter());
        assert_eq!(reduce(&q, [before(0, 1, 0)]).unwrap()[1], vec![dep(0, 0)]);
        let q = Queues::new([(Engine::CopyOut, 1), (Engine::CopyOut, 1)].into_iter());
        assert_eq!(reduce(&q, [before(0, 1, 0)]).unwrap()[1], vec![]);
    }

    #[test]
    fn contradictions_are_errors() {
        let q = Queues::new([(Engine::Compute, 0), (Engine::CopyOut, 0)].into_iter());
        assert!(reduce(&q, [before(1, 0, 0)]).is_err());
        assert!(reduce(&q, [before(1, 0, -1)]).is_err());
        assert!(reduce(&q, [before(1, 0, 1)]).is_ok());
    }

    /// Reachability over unrolled steps is the same with the relations and with what is left of them, and nothing
    /// that is left can go.
    #[test]
    fn nothing_is_lost_and_nothing_is_superfluous() {
        let mut state = 99u64;
        let mut next = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        for _ in 0..200 {
            let n = 7usize;
            let kinds = [(Engine::Compute, 0), (Engine::CopyOut, 0), (Engine::CopyOut, 1), (Engine::Host, 0)];
            let ops: Vec<(Engine, i32)> = (0..n).map(|_| kinds[next(4) as usize]).collect();
            let q = Queues::new(ops.into_iter());
            let relations: Vec<Before> = (0..10)
                .map(|_| {
                    let (a, b) = (next(n as u64) as u32, next(n as u64) as u32);
                    before(a, b, i32::from(a >= b) + next(2) as i32)
                })
                .collect();
            let steps = 6;
            let reach = |deps: &[Before]| {
                let total = n * steps;
                let mut to = vec![vec![false; total]; total];
                for i in 0..total {
                    let (step, op) = (i / n, i % n);
                    let mut preds: Vec<usize> = deps
                        .iter()
                        .filter(|d| d.to as usize == op && d.steps as usize <= step)
                        .map(|d| (step - d.steps as usize) * n + d.from as usize)
                        .collect();
                    let before = (0..i).rev().find(|j| q.of[j % n] == q.of[op]);
                    preds.extend(before);
                    for p in preds {
                        let of = to[p].clone();
                        to[i].iter_mut().zip(of).for_each(|(a, b)| *a |= b);
                        to[i][p] = true;
                    }
                }
                to
            };
            let deps = reduce(&q, relations.clone()).unwrap();
            let left: Vec<Before> = deps
                .iter()
                .enumerate()
                .flat_map(|(to, list)| list.iter().map(move |d| before(d.op, to as u32, d.distance as i32)))
                .collect();
            let full = reach(&relations);
            assert_eq!(full, reach(&left));
            for gone in 0..left.len() {
                let mut fewer = left.clone();
                fewer.remove(gone);
                assert_ne!(full, reach(&fewer), "{:?} is superfluous", left[gone]);
            }
        }
    }
}
