//! The steady state of a schedule, ready to be drawn.
//!
//! One period holds one instance of every operation. An operation of stage s works in step n on batch n + s, so the
//! instance of step n is drawn at `start + n * step`; [`Timeline::instances`] unrolls as many steps as wanted.
//! A transfer in chunks that an urgent one passes is drawn in [`Piece`]s, so that what an engine does never overlaps.
//! Times are in nanoseconds. Outputs draw this and nothing else, so they agree.

use std::fmt::Write as _;
use std::ops::Range;

use fs_schedule::{Engine, Op, Schedule, Stragglers, Strategy, Way};
use serde::Serialize;

use super::memory;
pub use super::memory::Curve;
use super::palette::{self, Purpose};
use super::sweep;
pub use super::views::{CycleLink, Gap, Instance, Lane, OpView, Piece, Predecessor, Reason, Size};
use crate::sched::graph::{self, Why};
use crate::sched::reasons::duration;
use crate::sched::sizes::Sizes;

/// Why a schedule cannot be drawn.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum VizError {
    /// No prediction.
    #[error("the schedule has no prediction; compile it again with this version's fsc")]
    NoPrediction,
    /// No operations.
    #[error("the schedule has no operations")]
    Empty,
    /// Times that no simulation of the schedule gives.
    #[error(
        "the schedule's times do not fit its step: `{op}` ends {end} after the start of a step of {step}; compile it again"
    )]
    Times {
        /// An operation.
        op: String,
        /// Its end, for people.
        end: String,
        /// The step, for people.
        step: String,
    },
    /// More work than time.
    #[error(
        "the schedule's times do not fit its step: {engine} works {busy} in a step of {step}; compile it again"
    )]
    Busy {
        /// The engine's name.
        engine: &'static str,
        /// Its work, for people.
        busy: String,
        /// The step, for people.
        step: String,
    },
}

/// Steps that an operation may end after the start of its own.
const MOST_STEPS: f64 = 64.0;

/// Part of a step by which an engine's work may exceed it: steps are means of several that were simulated.
const ROUNDING: f64 = 1e-3;

/// A schedule's steady state.
#[derive(Debug, Clone, Serialize)]
pub struct Timeline {
    /// Name of the model.
    pub model: String,
    /// Digest of the schedule.
    pub digest: String,
    /// Strategy.
    pub strategy: Strategy,
    /// Cluster that was planned for.
    pub cluster: String,
    /// Ranks that were planned for.
    pub ranks: u32,
    /// Parts of a batch.
    pub microbatches: u32,
    /// Batches in flight.
    pub in_flight: u32,
    /// One step: the period.
    pub step: f64,
    /// Work of the busiest engine in a step.
    pub resource_bound: f64,
    /// That engine.
    pub resource: Engine,
    /// Longest dependency cycle per step.
    pub recurrence_bound: f64,
    /// What both are together, if that is more.
    pub joint_bound: Option<f64>,
    /// Idle compute per step, as predicted.
    pub bubble: f64,
    /// What kept the schedule from being better, in sentences.
    pub limits: Vec<String>,
    /// Sizes assumed: symbol and mean value.
    pub sizes: Vec<(String, f64)>,
    /// Operations in the order of the schedule's list.
    pub ops: Vec<OpView>,
    /// One per engine, in the schedule's order.
    pub lanes: Vec<Lane>,
    /// The longest cycle: each operation with its link from the one before (around: the first follows the last).
    pub cycle: Vec<CycleLink>,
    /// Device memory over a step.
    pub memory: Curve,
    /// How unevenly samples load ranks.
    pub stragglers: Option<Stragglers>,
    /// Samples are given to ranks.
    pub balanced: bool,
}

impl Timeline {
    /// The greatest bound.
    pub(crate) fn bound(&self) -> f64 {
        self.resource_bound.max(self.recurrence_bound).max(self.joint_bound.unwrap_or(0.0))
    }

    /// The timeline of a schedule.
    pub fn of(s: &Schedule) -> Result<Self, VizError> {
        let p = s.prediction.as_ref().ok_or(VizError::NoPrediction)?;
        let ops = &s.train.ops;
        if ops.is_empty() {
            return Err(VizError::Empty);
        }
        let step = p.step * 1e9;
        let last = ops.iter().max_by_key(|o| o.end());
        if let Some(o) = last
            && (!step.is_finite() || step < 1.0 || o.end() as f64 > MOST_STEPS * step)
        {
            let end = duration(o.end() as f64);
            return Err(VizError::Times { op: o.name.clone(), end, step: duration(step) });
        }
        let sizes = Sizes::given(
            p.sizes.iter().filter_map(|(symbol, value)| Some((symbol.parse().ok()?, *value))),
            s.settings.microbatches,
        );
        let mut engines = s.engines.clone();
        for op in ops {
            if !engines.contains(&op.engine) {
                engines.push(op.engine);
            }
        }
        let order = batch_order(ops);
        let kinds = palette::kinds(s, &order);
        let links = links(s, &order);
        let mut on_cycle = vec![false; ops.len()];
        for d in &p.cycle {
            if let Some(on) = on_cycle.get_mut(d.op as usize) {
                *on = true;
            }
        }
        let mut views: Vec<OpView> = Vec::with_capacity(ops.len());
        for (i, (op, deps)) in ops.iter().zip(links).enumerate() {
            let size =
                |poly: &fs_schedule::Poly| (poly.to_string(), poly.eval(|symbol| sizes.of(op, symbol)));
            views.push(OpView {
                name: op.name.clone(),
                action: op.action.name(),
                kind: kinds[i],
                class: class_text(s, op),
                lane: engines.iter().position(|e| *e == op.engine).unwrap_or(0) as u32,
                stage: op.stage,
                microbatch: op.microbatch,
                priority: op.priority,
                chunk: op.chunk,
                start: op.start,
                time: op.time,
                lag: op.lag,
                end: op.end() as f64,
                size: Size {
                    flops: size(&op.cost.flops),
                    bytes: size(&op.cost.bytes),
                    wire: size(&op.cost.wire),
                },
                deps,
                reason: op.reason.clone(),
                on_cycle: on_cycle[i],
            });
        }
        let mut lanes: Vec<Lane> = Vec::new();
        for (l, engine) in engines.iter().enumerate() {
            let members: Vec<u32> =
                (0..ops.len() as u32).filter(|i| views[*i as usize].lane == l as u32).collect();
            let busy: f64 = members.iter().map(|i| ops[*i as usize].time as f64).sum();
            if busy > step * (1.0 + ROUNDING) + members.len() as f64 {
                let engine = engine.name();
                return Err(VizError::Busy { engine, busy: duration(busy), step: duration(step) });
            }
            let pieces = sweep::pieces(ops, &members, step);
            for piece in pieces.iter().filter(|p| p.last) {
                let view = &mut views[piece.op as usize];
                view.end = piece.end - f64::from(piece.step) * step + view.lag as f64;
            }
            lanes.push(Lane { engine: *engine, name: engine.name(), pieces, gaps: Vec::new(), busy });
        }
        for view in 0..views.len() {
            let mut deps = std::mem::take(&mut views[view].deps);
            let end = |d: &Predecessor| views[d.op as usize].end - f64::from(d.distance) * step;
            deps.sort_by(|a, b| end(b).total_cmp(&end(a)).then(a.op.cmp(&b.op)));
            views[view].deps = deps;
        }
        for lane in &mut lanes {
            lane.gaps = sweep::gaps(&views, &lane.pieces, step);
        }
        let cycle = cycle(&p.cycle, ops);
        Ok(Self {
            model: s.model.clone(),
            digest: s.digest.clone(),
            strategy: s.strategy,
            cluster: p.cluster.clone(),
            ranks: s.ranks,
            microbatches: s.settings.microbatches,
            in_flight: s.train.in_flight,
            step,
            resource_bound: p.resource_bound * 1e9,
            resource: p.resource,
            recurrence_bound: p.recurrence_bound * 1e9,
            joint_bound: p.joint.map(|joint| joint.time * 1e9),
            bubble: p.bubble * 1e9,
            limits: p.limits.clone(),
            sizes: p.sizes.clone(),
            stragglers: p.stragglers.clone(),
            balanced: s.settings.balance.is_some(),
            memory: memory::curve(s, &sizes, step, &views),
            ops: views,
            lanes,
            cycle,
        })
    }

    /// The lane's work in the periods `steps`, by start: from the start of the first to the end of the last, with what
    /// still runs from before the first. Pieces may reach beyond the ends.
    pub fn instances<'a>(&'a self, lane: &'a Lane, steps: Range<i64>) -> impl Iterator<Item = Instance> + 'a {
        let from = steps.start as f64 * self.step;
        (steps.start - 1..steps.end).flat_map(move |n| {
            let at = n as f64 * self.step;
            lane.pieces.iter().filter_map(move |p| {
                let step = n + i64::from(p.step);
                let stage = i64::from(self.ops.get(p.op as usize)?.stage);
                let (start, end) = (p.start + at, p.end + at);
                (end > from).then_some(Instance {
                    op: p.op,
                    step,
                    batch: step + stage,
                    start,
                    end,
                    first: p.first,
                    last: p.last,
                })
            })
        })
    }

    /// The compute engine's lane.
    pub fn compute(&self) -> Option<&Lane> {
        self.lanes.iter().find(|l| l.engine == Engine::Compute)
    }

    /// Kinds that occur, in the order of legends.
    pub fn kinds(&self) -> Vec<Purpose> {
        Purpose::ALL.into_iter().filter(|k| self.ops.iter().any(|o| o.kind == *k)).collect()
    }
}

/// Name of a strategy.
pub(crate) fn strategy_name(strategy: Strategy) -> &'static str {
    crate::sched::policy::of(strategy).name()
}

/// Operations in the order of one batch: by falling stage, then position.
fn batch_order(ops: &[Op]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..ops.len() as u32).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(ops[*i as usize].stage), *i));
    order
}

/// What each operation needs: what the data demand, what the schedule states, and who is before it in its queue.
fn links(s: &Schedule, order: &[u32]) -> Vec<Vec<Predecessor>> {
    let ops = &s.train.ops;
    let in_order: Vec<&Op> = order.iter().map(|i| &ops[*i as usize]).collect();
    let mut links: Vec<Vec<Predecessor>> = vec![Vec::new(); ops.len()];
    for e in &graph::build(s, &in_order).edges {
        let (from, to) = (order[e.from as usize], order[e.to as usize]);
        let distance = e.distance + ops[from as usize].stage - ops[to as usize].stage;
        let Ok(distance) = u32::try_from(distance) else { continue };
        let reason = match e.why {
            Why::Data => Reason::Data,
            Why::FreshRows | Why::EarlyUpdate | Why::UpdateOrder => Reason::Rows,
            Why::Parameter => Reason::Parameter,
            Why::Batch => Reason::Batch,
            Why::Blocking | Why::InFlight | Why::Memory | Why::Ahead => Reason::Order,
        };
        links[to as usize].push(Predecessor { op: from, distance, reason, stated: false });
    }
    // The last of each queue, and what all that one launch starts with it follows.
    let mut last: std::collections::BTreeMap<(Engine, i32), (u32, Option<u32>)> =
        std::collections::BTreeMap::new();
    // Twice around: the first of a queue follows its last of the step before.
    for round in 0..2 {
        for (i, op) in ops.iter().enumerate() {
            let queue = (op.engine, op.priority);
            let before = match last.get(&queue) {
                Some((_, before)) if op.joined => *before,
                last => last.map(|(op, _)| *op),
            };
            last.insert(queue, (i as u32, before));
            if round == 1
                && let Some(before) = before
            {
                let distance = u32::from(before >= i as u32);
                add(
                    &mut links[i],
                    Predecessor { op: before, distance, reason: Reason::Queue, stated: false },
                );
            }
        }
    }
    for (i, op) in ops.iter().enumerate() {
        for d in op.deps.iter().filter(|d| (d.op as usize) < ops.len()) {
            let stated = Predecessor { op: d.op, distance: d.distance, reason: Reason::Order, stated: true };
            add(&mut links[i], stated);
        }
    }
    links
}

/// Adds a link, or notes that a known one is stated.
fn add(links: &mut Vec<Predecessor>, link: Predecessor) {
    match links.iter_mut().find(|l| (l.op, l.distance) == (link.op, link.distance)) {
        Some(known) => known.stated |= link.stated,
        None => links.push(link),
    }
}

fn cycle(cycle: &[fs_schedule::Dep], ops: &[Op]) -> Vec<CycleLink> {
    let known: Vec<_> = cycle.iter().filter(|d| (d.op as usize) < ops.len()).collect();
    let stage = |i: usize| ops[known[i].op as usize].stage;
    let link = |(i, d): (usize, &&fs_schedule::Dep)| {
        let before = (i + known.len() - 1) % known.len();
        let distance = i64::from(d.distance) + i64::from(stage(before)) - i64::from(stage(i));
        CycleLink { op: d.op, distance: distance as i32, batches: d.distance }
    };
    known.iter().enumerate().map(link).collect()
}

/// `distance 1`, `distance > 2, used in microbatch 3 first`.
fn class_text(s: &Schedule, op: &Op) -> Option<String> {
    let (exchange, way, class) = palette::class(&op.action)?;
    let reuse = palette::reuse(s, exchange)?;
    let c = *reuse.classes(way).get(class as usize)?;
    let mut text = match c.distance {
        Some(d) => format!("reuse distance {d}"),
        None => format!("reuse distance > {}", reuse.lookahead),
    };
    if reuse.windows > 1 {
        let end = if way == Way::Forward { "first" } else { "last" };
        let (from, to) = (c.window * reuse.each, reuse.end(c.window));
        let _ = write!(text, ", {end} used in microbatch{} {from}", if from < to { "es" } else { "" });
        if from < to {
            let _ = write!(text, " to {to}");
        }
    }
    Some(text)
}
