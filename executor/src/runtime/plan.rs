//! A program prepared to run: everything that would otherwise be looked up at every step.
//!
//! Steps are counted from the first in which an operation works on a batch that exists, so that one number per
//! operation, the steps that it has done, answers every question about dependencies. In the first and last steps of a
//! run some operations have no batch. They do nothing then, but in their turn: what follows from order and
//! dependencies in every other step so holds in these too.

use crate::transport::Channel;
use fs_schedule::action::Effect;
use fs_schedule::{Dep, Engine, Op, Program};

/// A program prepared to run.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Engines that the program uses, rising.
    pub engines: Vec<Engine>,
    /// Per engine its queues, greatest priority first.
    pub queues: Vec<Vec<Queue>>,
    /// Per operation.
    pub ops: Vec<Planned>,
    /// A channel for each transfer.
    pub channels: Vec<Channel>,
    /// The operation that loads a batch.
    pub load: Option<usize>,
    /// Least and greatest stage.
    pub stages: (i64, i64),
    /// Number of operations that add to the loss.
    pub losses: usize,
    /// The engine whose time is accounted for: compute, if there is one.
    pub accounted: usize,
}

/// Operations of one engine and priority, in order.
#[derive(Debug)]
pub(crate) struct Queue {
    /// Their priority.
    pub priority: i32,
    /// Positions in the program.
    pub ops: Vec<u32>,
}

/// What the runtime needs to know about an operation.
#[derive(Debug)]
pub(crate) struct Planned {
    /// Position among the plan's engines.
    pub engine: usize,
    /// Batch offset.
    pub stage: i64,
    /// What must be done: operations, and how many steps before.
    pub deps: Vec<(u32, u64)>,
    /// The first of its launch, whose dependencies are those of all of it.
    pub launch: usize,
    /// The operation before it in its queue (for the first, the last).
    pub before: Option<usize>,
    /// It is the first of its queue.
    pub first: bool,
    /// Engines whose operations wait for this one.
    pub wakes: u32,
    /// The channel of a collective.
    pub channel: Option<usize>,
    /// It moves data only: its engine does other work while it waits.
    pub transfer: bool,
    /// Where its loss goes.
    pub loss: Option<usize>,
    /// The host must learn sizes of it.
    pub learns: bool,
    /// The last operation that one launch starts with it.
    pub last: usize,
}

/// Batches that are held at once. Operations that touch no input or size of their batch, such as dense updates, may
/// still run when the batch that replaces theirs is loaded: for them there are a few more than the schedule asks for.
pub(crate) fn ring(program: &Program) -> usize {
    let stages = program.ops.iter().map(|o| i64::from(o.stage));
    let span = stages.clone().max().unwrap_or(0) - stages.min().unwrap_or(0);
    program.in_flight.max(1) as usize + span as usize + 2
}

impl Plan {
    /// Prepares `program`.
    pub(crate) fn new(program: &Program) -> Self {
        let ops = &program.ops;
        let mut engines: Vec<Engine> = ops.iter().map(|o| o.engine).collect();
        engines.sort_unstable();
        engines.dedup();
        let engine_of = |op: &Op| engines.binary_search(&op.engine).unwrap_or(0);
        let mut queues: Vec<Vec<Queue>> = engines.iter().map(|_| Vec::new()).collect();
        for (i, op) in ops.iter().enumerate() {
            let own = &mut queues[engine_of(op)];
            match own.iter_mut().find(|q| q.priority == op.priority) {
                Some(queue) => queue.ops.push(i as u32),
                None => own.push(Queue { priority: op.priority, ops: vec![i as u32] }),
            }
        }
        for own in &mut queues {
            own.sort_by_key(|q| std::cmp::Reverse(q.priority));
        }
        let mut channels = Vec::new();
        let mut planned: Vec<Planned> = ops
            .iter()
            .enumerate()
            .map(|(i, op)| {
                let (engine, stage) = (engine_of(op), i64::from(op.stage));
                let dep = |d: &Dep| (d.op, u64::from(d.distance));
                let channel = op.action.facts().transfer.map(|_| channels.len());
                channels.extend(channel.map(|_| Channel { engine, priority: op.priority }));
                let deps = op.deps.iter().filter(|d| (d.op as usize) < ops.len()).map(dep).collect();
                let transfer = op.action.is_transfer();
                let learns = op.action.facts().tells_host();
                Planned {
                    engine,
                    stage,
                    deps,
                    launch: i.saturating_sub(ops[..=i].iter().rev().take_while(|op| op.joined).count()),
                    before: None,
                    first: false,
                    wakes: 0,
                    channel,
                    transfer,
                    loss: None,
                    learns,
                    last: i + ops[i + 1..].iter().take_while(|op| op.joined).count(),
                }
            })
            .collect();
        for i in 0..ops.len() {
            let waiting = 1u32 << planned[i].engine;
            for d in 0..planned[i].deps.len() {
                let other = planned[i].deps[d].0 as usize;
                planned[other].wakes |= waiting & !(1 << planned[other].engine);
            }
        }
        for queue in queues.iter().flatten() {
            let last = queue.ops.iter().cycle().skip(queue.ops.len() - 1);
            for (op, before) in queue.ops.iter().zip(last) {
                planned[*op as usize].before = Some(*before as usize);
            }
            planned[queue.ops[0] as usize].first = true;
        }
        let load = ops.iter().position(|o| o.action.has(Effect::LoadsBatch));
        if let Some(load) = load {
            // Nothing starts before its batch is there.
            planned[load].wakes = (1 << engines.len()) - 1;
        }
        // Losses are added in an order that no schedule changes.
        let mut losses: Vec<usize> =
            (0..ops.len()).filter(|i| ops[*i].action.has(Effect::AddsLoss)).collect();
        losses.sort_by_key(|i| (ops[*i].microbatch, &ops[*i].name));
        for (slot, op) in losses.iter().enumerate() {
            planned[*op].loss = Some(slot);
        }
        let stage = |f: fn(i64, i64) -> i64| planned.iter().map(|p| p.stage).reduce(f).unwrap_or(0);
        let stages = (stage(i64::min), stage(i64::max));
        let accounted = engines.iter().position(|e| *e == Engine::Compute).unwrap_or(0);
        Self { engines, queues, ops: planned, channels, load, stages, losses: losses.len(), accounted }
    }

    /// The operation, and its step, that loads the batch of another one's step; `None` for itself.
    pub(crate) fn load_of(&self, op: usize, step: u64) -> Option<(usize, u64)> {
        let load = self.load.filter(|load| *load != op)?;
        let at = step as i64 + self.ops[op].stage - self.ops[load].stage;
        u64::try_from(at).ok().map(|at| (load, at))
    }

    /// The instances of operations that must be done before another one's step.
    pub(crate) fn needs(&self, op: usize, step: u64) -> impl Iterator<Item = (usize, u64)> {
        let deps = self.ops[op].deps.iter();
        let deps =
            deps.filter_map(move |(other, distance)| Some((*other as usize, step.checked_sub(*distance)?)));
        deps.chain(self.load_of(op, step))
    }

    /// The instance before another one in its queue.
    pub(crate) fn before(&self, op: usize, step: u64) -> Option<(usize, u64)> {
        let before = self.ops[op].before?;
        Some((before, if self.ops[op].first { step.checked_sub(1)? } else { step }))
    }
}

#[cfg(test)]
mod tests {
    use fs_schedule::Action;

    use super::*;

    fn op(name: &str, action: Action, engine: Engine, stage: i32, deps: &[(u32, u32)]) -> Op {
        Op {
            stage,
            deps: deps.iter().map(|(op, distance)| Dep { op: *op, distance: *distance }).collect(),
            priority: i32::from(name.starts_with("urgent")),
            ..Op::new(name, action, engine)
        }
    }

    #[test]
    fn queues_and_wakes() {
        let program = Program {
            in_flight: 3,
            buffers: Vec::new(),
            ops: vec![
                op("load", Action::LoadBatch, Engine::Host, 2, &[(2, 1)]),
                op("ids", Action::AllToAllIds { exchanges: vec![0] }, Engine::CopyOut, 2, &[(0, 0)]),
                op("zero", Action::Zero, Engine::Compute, -1, &[(1, 1), (3, 0)]),
                op("urgent", Action::AllReduce, Engine::CopyOut, 0, &[]),
            ],
        };
        let plan = Plan::new(&program);
        assert_eq!(plan.engines, [Engine::Host, Engine::Compute, Engine::CopyOut]);
        assert_eq!(plan.stages, (-1, 2));
        assert_eq!(plan.queues[2].iter().map(|q| q.ops.clone()).collect::<Vec<_>>(), [vec![3], vec![1]]);
        assert_eq!((plan.ops[1].wakes, plan.ops[2].wakes, plan.ops[3].wakes), (0b010, 0b001, 0b010));
        assert_eq!((plan.ops[1].channel, plan.ops[3].channel), (Some(0), Some(1)));
        assert_eq!(plan.channels, [0, 1].map(|priority| Channel { engine: 2, priority }));
    }
}
