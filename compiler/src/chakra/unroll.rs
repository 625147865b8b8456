//! A schedule's step, written out batch by batch: which instance of an operation waits for which.
//!
//! For N batches the steps run from the first in which an operation works ahead on batch 0 to the last in which one
//! works behind on batch N - 1; in each step an operation of stage s works on batch n + s, if there is one. An
//! instance without a batch does nothing but keeps its turn: order passes through it. What an instance must come
//! after is therefore one number per queue, the farthest instance of that queue that does something.

use std::collections::BTreeMap;

use fs_schedule::{Op, Schedule};

use crate::sched::deps::Queues;
use crate::sched::graph::{self, Why};

/// An instance that does something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Instance {
    /// Its operation.
    pub op: u32,
    /// Its batch, from 0.
    pub batch: u64,
    /// Its step, from 0 for the first in which anything is done.
    pub step: u64,
    /// Instances that must have finished (positions in [`unroll`]'s list): dependencies, and the one before in the
    /// queue.
    pub order: Vec<u32>,
    /// Instances whose results it reads. Order demands them already, perhaps through others.
    pub data: Vec<u32>,
}

/// Number of steps and instances of `batches` batches.
pub(crate) fn extent(s: &Schedule, batches: u64) -> (u64, u64) {
    let ahead = s.train.ops.iter().map(|o| o.stage).max().unwrap_or(0).max(0);
    let behind = s.train.ops.iter().map(|o| o.stage).min().unwrap_or(0).min(0);
    let steps = batches.saturating_add(u64::from(ahead.unsigned_abs()) + u64::from(behind.unsigned_abs()));
    (steps, batches.saturating_mul(s.train.ops.len() as u64))
}

/// The instances of `batches` batches, each after all that it waits for.
pub(crate) fn unroll(s: &Schedule, batches: u64) -> Vec<Instance> {
    let ops = &s.train.ops;
    let n = ops.len();
    let (steps, count) = extent(s, batches);
    let first = -i64::from(ops.iter().map(|o| o.stage).max().unwrap_or(0).max(0));
    let queues = Queues::new(ops.iter().map(|o| (o.engine, o.priority)));
    let flow = flow(s);
    let mut list: Vec<Instance> = Vec::with_capacity(count as usize);
    // What is known to have finished once an instance of a step has had its turn: by queue, the farthest.
    let mut turns: Vec<Vec<(u16, u32)>> = Vec::with_capacity(steps as usize * n);
    let mut last: Vec<Option<usize>> = vec![None; queues.members.len()];
    let mut of_batch: BTreeMap<(u64, u32), u32> = BTreeMap::new();
    let mut farthest: BTreeMap<u16, u32> = BTreeMap::new();
    for step in 0..steps {
        for (i, op) in ops.iter().enumerate() {
            farthest.clear();
            let mut pass = |turn: &[(u16, u32)]| {
                for (q, instance) in turn {
                    let known = farthest.entry(*q).or_insert(*instance);
                    *known = (*known).max(*instance);
                }
            };
            let queue = queues.of[i];
            if let Some(before) = last[queue as usize] {
                pass(&turns[before]);
            }
            for d in op.deps.iter().filter(|d| u64::from(d.distance) <= step) {
                let at = (step - u64::from(d.distance)) as usize * n + d.op as usize;
                if let Some(turn) = turns.get(at) {
                    pass(turn);
                }
            }
            last[queue as usize] = Some(turns.len());
            let batch = first + step as i64 + i64::from(op.stage);
            if !(0..batches as i64).contains(&batch) {
                turns.push(farthest.iter().map(|(q, i)| (*q, *i)).collect());
                continue;
            }
            let batch = batch as u64;
            let data = flow[i].iter().filter_map(|(from, distance)| {
                let m = batch.checked_add_signed(-i64::from(*distance))?;
                of_batch.get(&(m, *from)).copied()
            });
            let mut data: Vec<u32> = data.collect();
            data.sort_unstable();
            data.dedup();
            let instance = list.len() as u32;
            of_batch.insert((batch, i as u32), instance);
            turns.push(vec![(queue, instance)]);
            let order = farthest.values().copied().collect();
            list.push(Instance { op: i as u32, batch, step, order, data });
        }
    }
    list
}

/// For each operation those whose results it reads, and the batches between.
fn flow(s: &Schedule) -> Vec<Vec<(u32, i32)>> {
    let ops = &s.train.ops;
    let mut reference: Vec<u32> = (0..ops.len() as u32).collect();
    reference.sort_by_key(|i| (-ops[*i as usize].stage, *i));
    let list: Vec<&Op> = reference.iter().map(|i| &ops[*i as usize]).collect();
    let mut flow = vec![Vec::new(); ops.len()];
    for e in graph::build(s, &list).edges {
        let (from, to) = (list[e.from as usize], list[e.to as usize]);
        let reads = match e.why {
            Why::Data | Why::Parameter => {
                to.reads.iter().any(|r| from.writes.iter().any(|w| w.place == r.place))
            }
            Why::FreshRows | Why::Batch => true,
            _ => false,
        };
        if reads {
            flow[reference[e.to as usize] as usize].push((reference[e.from as usize], e.distance));
        }
    }
    flow
}
