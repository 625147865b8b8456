//! Vector clocks: what surely has finished when an operation starts.
//!
//! Operations of one engine and one priority are a queue, that is a chain over all steps. So what has finished before
//! an operation is, per queue, a prefix of that chain, and one number describes it: the farthest position, where the
//! instance of step n of the i-th operation of a queue of length L has position n*L + i. Positions are relative to
//! the operation's own step, so one number serves every step.
//!
//! What one launch starts (`joined`) is no chain: each of it comes after what the first of it comes after, and none after another.
//! What comes after one of it comes after those that stand before that one in the queue, which end no later than the launch.
//!
//! The clocks are the greatest positions along paths of queue predecessors and dependencies. A path that enters a
//! queue twice is no better than the chain between, and walking a whole round along a queue is no better than not
//! doing so; so a best path crosses from one step to another at most twice per queue, and so many sweeps in list
//! order (in which edges within a step point backwards) find it. Fewer sweeps would only know less order, never more.

use std::collections::BTreeMap;

use crate::model::Engine;
use crate::program::Program;

const NEVER: i64 = i64::MIN;

/// The clocks of a program's operations.
pub(super) struct Clocks {
    /// Queue and place in it of each operation.
    place: Vec<(usize, i64)>,
    /// Lengths of the queues.
    lengths: Vec<i64>,
    /// Per operation and queue the farthest position finished.
    finished: Vec<i64>,
    stages: Vec<i64>,
}

impl Clocks {
    /// Needs dependencies that exist, and within a step point backwards.
    pub(super) fn new(p: &Program) -> Self {
        let mut queues: BTreeMap<(Engine, i32), Vec<usize>> = BTreeMap::new();
        for (i, op) in p.ops.iter().enumerate() {
            queues.entry((op.engine, op.priority)).or_default().push(i);
        }
        let mut place = vec![(0, 0); p.ops.len()];
        // Who runs before in the same queue, and how many steps earlier.
        let mut previous = vec![(0, 0); p.ops.len()];
        for (q, list) in queues.values().enumerate() {
            for (i, op) in list.iter().enumerate() {
                place[*op] = (q, i as i64);
                previous[*op] = if i == 0 { (list[list.len() - 1], 1) } else { (list[i - 1], 0) };
            }
        }
        let lengths: Vec<i64> = queues.values().map(|l| l.len() as i64).collect();
        let n = lengths.len();
        let mut finished = vec![NEVER; n * p.ops.len()];
        let mut own = vec![NEVER; n];
        for _ in 0..2 * n + 4 {
            let mut changed = false;
            for (i, op) in p.ops.iter().enumerate() {
                own.copy_from_slice(&finished[i * n..(i + 1) * n]);
                // What one launch starts has no order: all of it comes after what the first comes after.
                if op.joined && i > 0 {
                    finished.copy_within((i - 1) * n..i * n, i * n);
                    changed |= own != finished[i * n..(i + 1) * n];
                    continue;
                }
                let deps = op.deps.iter().map(|d| (d.op as usize, i64::from(d.distance)));
                for (x, steps) in deps.chain([previous[i]]) {
                    let (q, at) = place[x];
                    own[q] = own[q].max(at - steps * lengths[q]);
                    for ((o, f), l) in own.iter_mut().zip(&finished[x * n..(x + 1) * n]).zip(&lengths) {
                        if *f != NEVER {
                            *o = (*o).max(f - steps * l);
                        }
                    }
                }
                if own != finished[i * n..(i + 1) * n] {
                    finished[i * n..(i + 1) * n].copy_from_slice(&own);
                    changed = true;
                }
            }
            if !changed {
                break;
            }
        }
        let stages = p.ops.iter().map(|op| i64::from(op.stage)).collect();
        Self { place, lengths, finished, stages }
    }

    /// The queue of `x`, and when in it `x` has worked on the batch `batches` before: of two operations of a queue the
    /// one with the greater number is the later.
    pub(super) fn ends(&self, x: usize, batches: i64) -> (usize, i64) {
        let (q, at) = self.place[x];
        (q, at - (batches + self.stages[x]) * self.lengths[q])
    }

    /// True if `x` on batch m surely has finished when `y` on batch m + `batches` starts.
    pub(super) fn before(&self, x: usize, y: usize, batches: i64) -> bool {
        let steps = batches + self.stages[x] - self.stages[y];
        let (q, at) = self.place[x];
        self.finished[y * self.lengths.len() + q] >= at - steps * self.lengths[q]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::Action;
    use crate::op::{Dep, Op};
    use proptest::prelude::*;

    fn op(engine: Engine, priority: i32, stage: i32, deps: Vec<Dep>) -> Op {
        Op {
            name: String::new(),
            action: Action::Zero,
            reads: vec![],
            writes: vec![],
            engine,
            stage,
            microbatch: None,
            site: crate::attribute::Site::Home,
            deps,
            joined: false,
            priority,
            chunk: None,
            cost: crate::model::Cost::default(),
            start: 0,
            time: 0,
            lag: 0,
            reason: String::new(),
        }
    }

    /// All instances that come before the last step's, by walking backwards over unrolled steps.
    fn reachable(p: &Program, steps: i64) -> Vec<std::collections::BTreeSet<(i64, usize)>> {
        let leader = |i: usize| (0..=i).rev().find(|j| !p.ops[*j].joined).unwrap_or(0);
        let earlier = |step: i64, i: usize| {
            let i = leader(i);
            let same =
                |j: &usize| (p.ops[*j].engine, p.ops[*j].priority) == (p.ops[i].engine, p.ops[i].priority);
            let behind = (0..i).rev().find(same).map(|j| (step, j));
            let around = (0..p.ops.len()).rev().find(same).map(|j| (step - 1, j));
            let deps = p.ops[i].deps.iter().map(move |d| (step - i64::from(d.distance), d.op as usize));
            deps.chain(behind.or(around)).filter(|(s, _)| *s >= 0).collect::<Vec<_>>()
        };
        (0..p.ops.len())
            .map(|i| {
                let mut seen = std::collections::BTreeSet::new();
                let mut open = vec![(steps, i)];
                while let Some((step, j)) = open.pop() {
                    // What has ended has those of its launch that stand before it behind it, too.
                    let ended = (step, j) != (steps, i);
                    seen.extend((leader(j)..j).filter(|_| ended).map(|k| (step, k)));
                    open.extend(earlier(step, j).into_iter().filter(|x| seen.insert(*x)));
                }
                seen
            })
            .collect()
    }

    proptest! {
        /// Clocks know exactly what a walk over unrolled steps finds.
        #[test]
        fn clocks_agree_with_unrolled_steps(
            ops in prop::collection::vec((0..3usize, 0..2i32, -1..2i32, prop::collection::vec((0..1000u32, 0..3u32), 0..3), 0..4u8), 1..9)
        ) {
            let engines = [Engine::Host, Engine::Compute, Engine::CopyOut];
            let n = ops.len() as u32;
            let list: Vec<Op> = ops.iter().enumerate().map(|(i, (e, priority, stage, deps, _))| {
                let deps = deps.iter().filter_map(|(o, distance)| {
                    let within = if *distance == 0 { i as u32 } else { n };
                    let o = o.checked_rem(within)?;
                    Some(Dep { op: o, distance: *distance })
                });
                op(engines[*e], *priority, *stage, deps.collect())
            }).collect();
            let mut list = list;
            for i in (1..list.len()).filter(|i| ops[*i].4 == 0) {
                let before = &list[i - 1];
                let (engine, priority, stage) = (before.engine, before.priority, before.stage);
                list[i] = Op { joined: true, ..op(engine, priority, stage, vec![]) };
            }
            let p = Program { in_flight: 1, buffers: vec![], ops: list };
            let (clocks, last) = (Clocks::new(&p), 24);
            let seen = reachable(&p, last);
            for (y, seen) in seen.iter().enumerate() {
                for x in 0..p.ops.len() {
                    for steps in -1..8 {
                        let batches = steps - i64::from(p.ops[x].stage) + i64::from(p.ops[y].stage);
                        prop_assert_eq!(clocks.before(x, y, batches), seen.contains(&(last - steps, x)), "{} {} {}", x, y, steps);
                    }
                }
            }
        }
    }
}
