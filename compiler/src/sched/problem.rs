//! What is to be scheduled: a training program in reference order on a cluster, with sizes, times and dependencies.

use fs_dsl::checked::Cluster;
use fs_schedule::action::{Action, Effect, Phase};
use fs_schedule::{Engine, Op, Place, Schedule};

use super::bounds::{self, RecMii, ResMii};
use super::costs::{self, CostModel, Time};
use super::graph::{self, Graph};
use super::joined::Units;
use super::joint::{Joint, joint};
use super::limits::{self, ClusterLimits, Fixed, Limits};
use super::memo::Memo;
use super::policy::{self, Policy};
use super::resources::{ClusterEngines, Resources};
use super::sizes::Sizes;
use super::{Bound, BoundBy, LONGEST, Options, SchedError, Target};

/// Nanoseconds by which a simulated step may be less than what it settles to.
const SETTLED: f64 = 2.0;

/// Work of a training program on a cluster: what is known of it before its dependencies are, and what ResMII needs.
#[derive(Debug)]
pub(crate) struct Work<'a> {
    s: &'a Schedule,
    cluster: &'a Cluster,
    costs: Box<dyn CostModel + 'a>,
    sizes: Sizes,
    /// By operation.
    engine: Vec<Engine>,
    times: Vec<Time>,
    /// By how much compute is slowed.
    slowdown: f64,
    pub(super) units: Units,
    res_mii: ResMii,
    memo: Option<&'a Memo>,
}

impl<'a> Work<'a> {
    /// Finds sizes, engines and times.
    pub(crate) fn new(s: &'a Schedule, target: Target<'a>, options: &Options) -> Result<Self, SchedError> {
        let policy = options.policy;
        let cluster = target.cluster;
        let costs = target.costs(s.ranks);
        let resources = ClusterEngines::new(cluster, s.ranks);
        let sizes = costs.sizes(s);
        let ops = &s.train.ops;
        let engine: Vec<Engine> = ops.iter().map(|op| resources.engine(s, op)).collect();
        let times: Vec<Time> = ops.iter().map(|op| costs.time(s, &sizes, op)).collect();
        let slowdown = costs.slowdown(&engine, &times, &|i| !policy.blocks(&ops[i].action));
        let units = Units::wished(ops, &times);
        let time = nanoseconds(&units, &engine, &times, slowdown);
        if time.iter().fold(0, |sum: u64, t| sum.saturating_add(*t)) > LONGEST {
            return Err(SchedError::TooLong);
        }
        let res_mii = bounds::res_mii(&engine, &time);
        Ok(Self { s, cluster, costs, sizes, engine, times, slowdown, units, res_mii, memo: target.memo })
    }

    /// The same with each operation launched by itself.
    pub(crate) fn alone(self) -> Self {
        let units = Units::alone(self.times.len());
        let time = nanoseconds(&units, &self.engine, &self.times, self.slowdown);
        Self { units, res_mii: bounds::res_mii(&self.engine, &time), ..self }
    }

    /// ResMII, in seconds, if all can be launched together that should.
    pub(crate) fn lower_bound(&self) -> Bound {
        Bound { step: self.res_mii.time as f64 / 1e9, from: BoundBy::Engine(self.res_mii.engine) }
    }
}

/// Nanoseconds of each operation, as parts of units.
fn nanoseconds(units: &Units, engine: &[Engine], times: &[Time], slowdown: f64) -> Vec<u64> {
    let slowed = |i: usize, seconds: f64| {
        costs::nanoseconds(seconds * if engine[i] == Engine::Compute { slowdown } else { 1.0 })
    };
    units.times(times, slowed)
}

/// A scheduling problem. What is scheduled are units, which are mostly single operations.
#[derive(Debug)]
pub(crate) struct Problem<'a> {
    /// The schedule; the training program's operations stand in reference order, each buffer by itself.
    pub s: &'a Schedule,
    /// What is launched together.
    pub units: Units,
    /// Nanoseconds of each operation.
    pub op_time: Vec<u64>,
    /// Nanoseconds after the end of each operation in which others wait.
    pub op_lag: Vec<u64>,
    /// What waits for what.
    pub policy: &'static dyn Policy,
    /// How long operations take.
    pub costs: Box<dyn CostModel + 'a>,
    /// What the schedule must stay within.
    pub limits: Box<dyn Limits>,
    /// Its description.
    pub cluster: &'a Cluster,
    /// Expected sizes.
    pub sizes: Sizes,
    /// Engine of each unit, by which all that follows is counted.
    pub engine: Vec<Engine>,
    /// Nanoseconds that each occupies it.
    pub time: Vec<u64>,
    /// Nanoseconds after the end of each that should be planned with until the host has learned of it.
    pub room: Vec<u64>,
    /// Bytes on the link of each transfer.
    pub wire: Vec<f64>,
    /// What data demand.
    pub graph: Graph,
    /// What data and policy demand.
    pub blocking: Graph,
    /// The operation that loads the batch.
    pub load: Option<usize>,
    /// Batches before or after its own that operations read.
    pub history: u32,
    /// Whether an operation works ahead: it, or what it feeds, is rows on their way to their first use.
    pub ahead: Vec<bool>,
    /// Memory that no order changes.
    pub fixed: Fixed,
    /// Bytes of each buffer.
    pub buffer_bytes: Vec<f64>,
    /// The busiest engine.
    pub res_mii: ResMii,
    /// The longest cycle.
    pub rec_mii: RecMii,
    /// What both are together, if that is more.
    pub joint: Option<Joint>,
    /// Nanoseconds of a step from which the first good order will do.
    far: Option<f64>,
    /// Nanoseconds that a step must take less than not to be thrown away.
    pub below: Option<f64>,
    /// What belongs to the middle of a step: its stage 0 begins with the first of it.
    core: Vec<bool>,
    /// Where what is simulated is counted.
    memo: Option<&'a Memo>,
}

impl<'a> Problem<'a> {
    /// Finds dependencies and bounds.
    pub(crate) fn new(work: Work<'a>, options: &Options) -> Result<Self, SchedError> {
        let Work { s, cluster, costs, sizes, engine, times, slowdown, units, memo, .. } = work;
        let policy = options.policy;
        let ops = &s.train.ops;
        let some = |seconds: f64| if seconds > 0.0 { costs::nanoseconds(seconds) } else { 0 };
        let op_lag: Vec<u64> = times.iter().map(|time| some(time.latency) + some(time.learned)).collect();
        let least = some(costs.room());
        let room = |(op, time): (&Op, &Time)| {
            let least = if op.action.facts().learns.host_sync { least } else { 0 };
            some(time.latency) + some(time.learned).max(least)
        };
        let room: Vec<u64> = ops.iter().zip(&times).map(room).collect();
        let graph = graph::build(s, &ops.iter().collect::<Vec<_>>()).lagging(op_lag.clone());
        let time_of = |units: &Units| nanoseconds(units, &engine, &times, slowdown);
        let (units, graph) = join(units, graph, &engine, time_of)?;
        let op_time = time_of(&units);
        let time = units.sums(&op_time);
        let engine = units.firsts(&engine);
        let res_mii = bounds::res_mii(&engine, &time);
        let first = |unit: u32| &ops[units.members[unit as usize][0] as usize];
        let rec_mii = bounds::rec_mii(&graph, &time).map_err(|e| {
            let names: Vec<&str> = e.0.iter().map(|i| first(*i).name.as_str()).collect();
            SchedError::Defect(format!("{e}: {}", names.join(", ")))
        })?;
        let known = rec_mii.time.max(res_mii.time as f64);
        let mut works = vec![res_mii.engine, Engine::Compute];
        works.dedup();
        let joints = works.into_iter().filter_map(|works| joint(&graph, &time, &engine, works, known));
        let joint = joints.max_by(|a, b| a.time.total_cmp(&b.time));
        let offsets = ops.iter().flat_map(|o| &o.reads).map(|r| r.batch.unsigned_abs());
        Ok(Self {
            load: units.any(|i| ops[i].action.has(Effect::LoadsBatch)).iter().position(|load| *load),
            history: offsets.max().unwrap_or(0),
            fixed: Fixed::of(s, &sizes),
            buffer_bytes: limits::buffer_bytes(s, &sizes),
            core: units.any(|i| is_core(&ops[i])),
            ahead: units.any(|i| works_ahead(&ops[i].action)),
            room: units.greatest(&room),
            wire: units.firsts(&times).iter().map(|time| time.wire).collect(),
            blocking: policy::graph(
                policy,
                (0..units.members.len() as u32).map(|i| &first(i).action),
                &graph,
            ),
            units,
            op_time,
            op_lag,
            s,
            policy,
            costs,
            limits: Box::new(ClusterLimits { memory: cluster.memory, in_flight: options.in_flight }),
            cluster,
            sizes,
            engine,
            time,
            graph,
            res_mii,
            joint,
            rec_mii,
            far: options.far.map(|seconds| seconds * 1e9),
            below: options
                .below
                .filter(|_| options.only_better)
                .map(|seconds| seconds * 1e9)
                .into_iter()
                .chain(options.other)
                .reduce(f64::min),
            memo,
        })
    }

    /// Counts a simulation of so many batches.
    pub(crate) fn simulated(&self, batches: usize) {
        if let Some(memo) = self.memo {
            memo.simulate(self.time.len() * batches);
        }
    }

    /// The operation that stands for a unit: its first.
    pub(crate) fn op(&self, unit: usize) -> &'a Op {
        &self.s.train.ops[self.units.members[unit][0] as usize]
    }

    /// The operation that stands for each unit.
    pub(crate) fn ops(&self) -> impl Iterator<Item = &'a Op> + Clone {
        (0..self.units.members.len()).map(|unit| self.op(unit))
    }

    /// The batch before its own that a unit still reads, as a negative offset.
    pub(crate) fn reaches_back(&self, unit: usize) -> i32 {
        let members = self.units.members[unit].iter().map(|i| reaches_back(&self.s.train.ops[*i as usize]));
        members.min().unwrap_or(0)
    }

    /// The greater bound, in nanoseconds.
    pub(crate) fn mii(&self) -> f64 {
        let joint = self.joint.map_or(0.0, |joint| joint.time);
        self.rec_mii.time.max(self.res_mii.time as f64).max(joint)
    }

    /// Whether the first good order will do if its step is this one.
    pub(crate) fn is_far(&self, step: f64) -> bool {
        self.far.is_some_and(|far| step >= far)
    }

    /// Whether a step will be thrown away, so that room to spare and fewer batches in flight are not worth a search.
    pub(crate) fn loses(&self, step: f64) -> bool {
        self.below.is_some_and(|below| step >= below)
    }

    /// What no step under the policy is shorter than, in seconds. The policy's cycles are only looked at if the data's
    /// allow less than `below`.
    pub(crate) fn lower_bound(&self, below: f64) -> Result<Bound, SchedError> {
        let (engine, cycle) = (self.res_mii.time as f64, self.rec_mii.time);
        let data = if let Some(joint) = self.joint {
            Bound { step: joint.time / 1e9, from: BoundBy::Joint }
        } else if engine >= cycle {
            Bound { step: engine / 1e9, from: BoundBy::Engine(self.res_mii.engine) }
        } else {
            Bound { step: cycle / 1e9, from: BoundBy::Cycle }
        };
        if data.step >= below {
            return Ok(data);
        }
        let blocking = bounds::rec_mii(&self.blocking, &self.time)
            .map_err(|_| SchedError::Defect("the policy waits for itself".into()))?;
        // A simulation settles to a nanosecond.
        let blocking = (blocking.time - SETTLED) / 1e9;
        Ok(if blocking > data.step { Bound { step: blocking, from: BoundBy::Cycle } } else { data })
    }

    /// Where a step begins: with the first operation of a batch that works on rows or dense features.
    pub(crate) fn origin(&self, position: &[i64]) -> i64 {
        let core = self.core.iter().zip(position).filter(|(core, _)| **core).map(|(_, at)| *at).min();
        core.or_else(|| position.iter().copied().min()).unwrap_or(0)
    }
}

/// Lookups, and what comes before them.
fn works_ahead(action: &Action) -> bool {
    action.facts().phase <= Phase::OutputDist
}

/// Whether it is of the model and reads more than an input of the batch.
fn is_core(op: &Op) -> bool {
    let derived = op.reads.len() > 1 || op.reads.iter().any(|r| !matches!(r.place, Place::Input(_)));
    op.action.facts().phase == Phase::Model && derived
}

/// The batch before its own that an operation still reads, as a negative offset.
fn reaches_back(op: &Op) -> i32 {
    op.reads.iter().map(|r| r.batch).min().unwrap_or(0).min(0)
}

/// Units of those that are wished for, with what they wait for.
fn join(
    wished: Units,
    graph: Graph,
    engine: &[Engine],
    time_of: impl Fn(&Units) -> Vec<u64>,
) -> Result<(Units, Graph), SchedError> {
    if wished.is_plain() {
        return Ok((wished, graph));
    }
    let alone = time_of(&Units::alone(graph.n));
    // An operation that waits for itself is told of by the bound over units.
    let cycle = bounds::rec_mii(&graph, &alone).map_or(f64::INFINITY, |r| r.time);
    let busy = |times: &[u64]| bounds::res_mii(engine, times).time as f64;
    wished.possible(&graph, cycle, time_of, busy)
}
