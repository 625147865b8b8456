//! The modulo scheduler: in which order, how far ahead and on which engine the operations of a step run.
//!
//! Four parts: *latency* (expected sizes and times), *resources* (engines and their reservation tables), *policy* (what
//! waits for what, what goes first), *limits* (memory, batches in flight). See docs/scheduling.md. It works on the schedule's own operations, in
//! reference order and with a buffer for every value, and gives the finished program: order, stages, priorities,
//! chunks, dependencies, storage, and for every operation the reason why it stands where it stands.

mod ahead;
mod answers;
pub(crate) mod balance;
mod bounds;
mod candidate;
mod costs;
pub(crate) mod deps;
pub(crate) mod evidence;
pub mod explain;
mod found;
mod freeze;
pub(crate) mod graph;
mod joined;
mod joint;
mod latency;
pub(crate) mod limits;
mod list;
mod measured;
pub(crate) mod memo;
mod modulo;
mod order;
pub(crate) mod owners;
pub mod policy;
mod problem;
mod ready;
pub(crate) mod reasons;
pub(crate) mod relays;
mod resources;
pub(crate) mod rows;
mod simulate;
pub(crate) mod sizes;
mod slack;
mod storage;
pub(crate) mod stragglers;
mod traffic;

use std::collections::BTreeMap;

use fs_dsl::checked::Cluster;
use fs_schedule::counts::Counts;
use fs_schedule::{Busy, Dep, Engine, JointBound, Place, Prediction, Profile, Schedule, Stragglers};

use costs::CostModel;
use evidence::Evidence;
use latency::ClusterCosts;
use measured::Measured;
use memo::Memo;
use order::Chosen;
use policy::Policy;
use problem::{Problem, Work};

/// Why there is no schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchedError {
    /// A defect of the compiler.
    #[error("the scheduler failed: {0}")]
    Defect(String),
    /// Nanoseconds of a step that cannot be added up: the sizes that are expected are no training step's.
    #[error("a step is expected to take over {} days; use a smaller batch, shorter sequences or more ranks", LONGEST / 86_400_000_000_000)]
    TooLong,
}

/// Nanoseconds that the operations of a step may take together: positions of hundreds of steps still fit into an `i64`.
pub(crate) const LONGEST: u64 = 1 << 52;

/// What may be asked of the scheduler.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    /// What waits for what.
    pub policy: &'static dyn Policy,
    /// Most batches in flight.
    pub in_flight: Option<u32>,
    /// Seconds that a step must take less than; if no order can, none is searched for.
    pub below: Option<f64>,
    /// Seconds of a step: where the first good order takes as long or longer no better one is looked for, and it is not written down.
    pub far: Option<f64>,
    /// What is no shorter than `below` will be thrown away: no more is done for it than finding that, and it is not written down.
    pub only_better: bool,
    /// Nanoseconds of another order that there is: likewise.
    pub other: Option<f64>,
}

impl Options {
    /// A policy, with as many batches in flight as help.
    pub(crate) fn new(policy: &'static dyn Policy) -> Self {
        Self { policy, in_flight: None, below: None, far: None, only_better: false, other: None }
    }

    /// With at most so many batches in flight.
    #[must_use]
    pub(crate) fn in_flight(mut self, most: impl Into<Option<u32>>) -> Self {
        self.in_flight = most.into();
        self
    }

    /// With no more than what the first good order takes, if that is so many seconds or more.
    #[must_use]
    pub(crate) fn far(mut self, seconds: impl Into<Option<f64>>) -> Self {
        self.far = seconds.into();
        self
    }

    /// With what is no shorter than `below` thrown away, or not.
    #[must_use]
    pub(crate) fn only_better(mut self, only_better: bool) -> Self {
        self.only_better = only_better;
        self
    }

    /// With a step of less than so many seconds, or none.
    #[must_use]
    pub(crate) fn below(mut self, seconds: impl Into<Option<f64>>) -> Self {
        self.below = seconds.into();
        self
    }
}

/// What came of scheduling.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    /// It has an order.
    Scheduled {
        /// For each position of the new list where its operation stood.
        order: Vec<u32>,
        /// What the first good order takes; none if it is not known.
        first: Option<Takes>,
    },
    /// It has none that is wanted; the program is as it was.
    Refused(Refused),
}

/// Why there is no order that is wanted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Refused {
    /// No step of this program and policy is as short as was asked for.
    Beyond(Bound),
    /// None that was found is.
    Worse(Takes),
}

/// What a step takes in some order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Takes {
    /// Seconds.
    pub step: f64,
    /// Bytes of a rank.
    pub memory: u64,
    /// Batches at once.
    pub in_flight: u32,
}

/// A lower bound on the step of a program under a policy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bound {
    /// Seconds.
    pub step: f64,
    /// Where it comes from.
    pub from: BoundBy,
}

impl Bound {
    /// That of a schedule's data and engines which says that no order of it is shorter than so many seconds, if one does.
    pub(crate) fn of(s: &Schedule, step: f64) -> Option<Self> {
        let p = s.prediction.as_ref()?;
        let bounds = [
            Some((p.resource_bound, BoundBy::Engine(p.resource))),
            p.joint.map(|joint| (joint.time, BoundBy::Joint)),
            Some((p.recurrence_bound, BoundBy::Cycle)),
        ];
        let excludes = |bound: &(f64, BoundBy)| bound.0 >= step;
        bounds.into_iter().flatten().find(excludes).map(|(step, from)| Self { step, from })
    }
}

/// What a step cannot be shorter than.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoundBy {
    /// ResMII: the work of this engine.
    Engine(Engine),
    /// RecMII: the longest cycle of dependencies.
    Cycle,
    /// Chains of dependencies with what an engine must do between them.
    Joint,
}

/// What is scheduled for: a cluster, and what was measured on one of its kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a> {
    /// Engines, memory and, without a profile, speeds.
    pub cluster: &'a Cluster,
    /// Times and sizes instead of those that follow from the cluster and the workload.
    pub profile: Option<&'a Profile>,
    /// Sizes instead of those that follow from the workload, where there is no profile.
    pub counts: Option<&'a Counts>,
    /// What was drawn for other schedules of this target.
    pub memo: Option<&'a Memo>,
}

impl<'a> From<&'a Cluster> for Target<'a> {
    fn from(cluster: &'a Cluster) -> Self {
        Self { cluster, profile: None, counts: None, memo: None }
    }
}

impl<'a> Target<'a> {
    /// How long operations take there for so many ranks: as was measured, or else as the cluster's description says.
    fn costs(self, ranks: u32) -> Box<dyn CostModel + 'a> {
        let cluster = ClusterCosts::new(self.cluster, ranks);
        match self.profile {
            Some(profile) => Box::new(Measured::new(profile, self.evidence(), cluster)),
            None => Box::new(cluster.by(self.evidence())),
        }
    }

    /// How unevenly samples of a schedule whose operations are priced are expected to load ranks; none if they do not.
    pub(crate) fn stragglers(self, s: &Schedule) -> Option<Stragglers> {
        let evidence = self.evidence();
        let drawn = stragglers::draw(s, evidence)?;
        // What was measured is not compared with what is only assumed.
        let says = self.profile.is_none() || stragglers::known(s, evidence);
        says.then(|| drawn.stragglers())
    }

    /// What is known beside the model.
    pub(crate) fn evidence(self) -> Evidence<'a> {
        let counts = self.counts.filter(|_| self.profile.is_none());
        Evidence { profile: self.profile, counts, memo: self.memo }
    }
}

/// Schedules a training program whose operations stand in reference order with a buffer for every value: fills in
/// everything that is decided here, and the prediction.
pub(crate) fn schedule<'a>(
    s: &mut Schedule,
    target: impl Into<Target<'a>>,
    options: &Options,
) -> Result<Outcome, SchedError> {
    let (problem, chosen) = match best(s, target.into(), options)? {
        Ok(solved) => solved,
        Err(bound) => return Ok(Outcome::Refused(Refused::Beyond(bound))),
    };
    let takes = chosen.candidate.takes();
    if problem.is_far(chosen.candidate.step) || problem.loses(chosen.candidate.step) {
        return Ok(Outcome::Refused(Refused::Worse(takes)));
    }
    let first = chosen.first;
    let reasons = reasons::explain(&problem, &chosen);
    let order = chosen.candidate.frozen.spread(&problem.units).order;
    // Where each unit of the list has its first and last operations.
    let mut ends: Vec<(u32, u32)> = Vec::with_capacity(problem.time.len());
    for unit in &chosen.candidate.frozen.order {
        let before = ends.last().map_or(0, |(_, last)| last + 1);
        ends.push((before, before + problem.units.members[*unit as usize].len() as u32 - 1));
    }
    let prediction = prediction(&problem, &chosen, &ends);
    let (units, engine) = (problem.units.clone(), problem.engine.clone());
    let (time, lag) = (problem.op_time.clone(), problem.op_lag.clone());
    drop(problem);
    let Chosen { candidate: c, .. } = chosen;
    let old = std::mem::take(&mut s.train.ops);
    let mut old: Vec<Option<fs_schedule::Op>> = old.into_iter().map(Some).collect();
    for (place, unit) in c.frozen.order.iter().enumerate() {
        let unit = *unit as usize;
        let mut start = c.start[place];
        for (at, i) in units.members[unit].iter().enumerate() {
            let i = *i as usize;
            let Some(mut op) = old[i].take() else { continue };
            op.engine = engine[unit];
            (op.time, op.lag) = (time[i], lag[i]);
            op.stage = c.frozen.stage[unit];
            op.priority = c.tiers.priority[unit];
            op.chunk = c.tiers.chunk[unit];
            op.joined = at > 0;
            op.start = start;
            start += op.time;
            if op.joined {
                let first = &s.train.ops[ends[place].0 as usize].name;
                op.reason = format!("one launch with `{first}`");
            } else {
                op.deps = c.deps[place].iter().map(|d| Dep { op: ends[d.op as usize].1, ..*d }).collect();
                op.reason.clone_from(&reasons[unit]);
            }
            s.train.ops.push(op);
        }
    }
    s.train.in_flight = c.in_flight;
    lifetimes(s, &c);
    s.prediction = Some(prediction);
    conflicts(s, options.policy);
    Ok(Outcome::Scheduled { order, first })
}

/// What came of a problem: an order, or why there is none.
type Solved<'a> = Result<(Problem<'a>, Chosen), Bound>;

/// The best order with operations launched together, or each by itself where those come nowhere near their bound.
fn best<'a>(s: &'a Schedule, target: Target<'a>, options: &Options) -> Result<Solved<'a>, SchedError> {
    let work = Work::new(s, target, options)?;
    if work.units.is_plain() {
        return solve(work, options);
    }
    let together = solve(work, options)?;
    // Where the first order is all that is asked for, none is looked for with each by itself.
    let first = together.as_ref().ok().and_then(|(_, chosen)| chosen.first);
    let again = match &together {
        // What all must do is less for none.
        Err(bound) => !matches!(bound.from, BoundBy::Engine(_)),
        Ok((p, chosen)) => {
            let step = chosen.candidate.step;
            step > p.mii() * slack::ENOUGH && !p.is_far(step) && options.policy.reorders()
        }
    };
    if !again {
        return Ok(together);
    }
    let other = together.as_ref().ok().map(|(_, chosen)| chosen.candidate.step);
    let mut alone = solve(Work::new(s, target, options)?.alone(), &Options { other, ..*options })?;
    if let Ok((_, chosen)) = &mut alone {
        chosen.first = first;
    }
    // No order of either is shorter than the smaller bound.
    if let (Err(a), Err(b)) = (&alone, &together) {
        return Ok(Err(if a.step < b.step { *a } else { *b }));
    }
    let step = |solved: &Solved<'_>| solved.as_ref().map_or(f64::INFINITY, |(_, c)| c.candidate.step);
    Ok(if step(&alone) < step(&together) { alone } else { together })
}

/// The best order of some work, unless none is as short as is asked for.
fn solve<'a>(work: Work<'a>, options: &Options) -> Result<Solved<'a>, SchedError> {
    let other = options.other.map(|other| other / 1e9);
    let below = options.below.into_iter().chain(other).reduce(f64::min);
    // Dependencies are not looked at where the work alone takes longer.
    if let Some(bound) = below.and_then(|below| Some(work.lower_bound()).filter(|b| b.step >= below)) {
        return Ok(Err(bound));
    }
    let problem = Problem::new(work, options)?;
    if let Some(below) = below {
        let bound = problem.lower_bound(below)?;
        if bound.step >= below {
            return Ok(Err(bound));
        }
    }
    let chosen = order::choose(&problem)?;
    Ok(Ok((problem, chosen)))
}

/// Above this many times the greater bound a schedule says which waits keep it there.
const CLOSE: f64 = 1.02;

/// If the bound is not met, says where its engine idles.
fn conflicts(s: &mut Schedule, policy: &dyn Policy) {
    let Some(explanation) = explain::explain(s) else { return };
    let Some(p) = s.prediction.as_mut() else { return };
    if !policy.reorders() || p.step <= CLOSE * p.bound() {
        return;
    }
    let busiest = explanation.engines.iter().find(|u| u.engine == p.resource);
    for gap in busiest.iter().flat_map(|u| u.gaps.iter().take(2)) {
        let cause =
            gap.waits_for.as_ref().map_or_else(String::new, |(op, _)| format!(", which waits for `{op}`"));
        p.limits.push(format!(
            "engines: {} idles {} before `{}`{cause}",
            p.resource.name(),
            reasons::duration(gap.time as f64),
            gap.op
        ));
    }
}

/// Copies, slots and lifetimes of buffers.
fn lifetimes(s: &mut Schedule, c: &candidate::Candidate) {
    let mut order: Vec<u32> = (0..s.train.ops.len() as u32).collect();
    order.sort_by_key(|i| (-s.train.ops[*i as usize].stage, *i));
    let mut ends: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
    for i in &order {
        let op = &s.train.ops[*i as usize];
        for o in op.reads.iter().chain(&op.writes) {
            if let Place::Buffer(b) = o.place {
                ends.entry(b).or_insert((*i, *i)).1 = *i;
            }
        }
    }
    for (b, buffer) in s.train.buffers.iter_mut().enumerate() {
        buffer.copies = c.storage.copies[b];
        buffer.slot = c.storage.slot[b];
        (buffer.first, buffer.last) = ends.get(&(b as u32)).copied().unwrap_or((0, 0));
    }
}

fn prediction(p: &Problem<'_>, chosen: &Chosen, ends: &[(u32, u32)]) -> Prediction {
    let c = &chosen.candidate;
    let place = candidate::inverse(&c.frozen.order);
    let busy: Vec<Busy> = bounds::busy(&p.engine, &p.time)
        .into_iter()
        .map(|(engine, t)| Busy { engine, time: t as f64 / 1e9 })
        .collect();
    let compute = busy.iter().find(|b| b.engine == fs_schedule::Engine::Compute).map_or(0.0, |b| b.time);
    let cycle = p.rec_mii.cycle.iter();
    let mut limits = chosen.limits.clone();
    limits.extend(p.sizes.assumptions.iter().cloned());
    limits.extend(p.costs.assumptions(p.s, &p.sizes));
    let sent = traffic::expect(p.s, &p.sizes, p.cluster.gpus_per_node);
    Prediction {
        cluster: p.costs.describe(),
        step: c.step / 1e9,
        resource_bound: p.res_mii.time as f64 / 1e9,
        resource: p.res_mii.engine,
        recurrence_bound: p.rec_mii.time / 1e9,
        // Each operation with the batches from the one before it in the cycle.
        cycle: cycle
            .map(|e| Dep { op: ends[place[e.to as usize] as usize].0, distance: e.distance.unsigned_abs() })
            .collect(),
        joint: p.joint.map(|joint| {
            let at = |unit: u32| ends[place[unit as usize] as usize].0;
            JointBound { time: joint.time / 1e9, from: at(joint.ends.0), to: at(joint.ends.1) }
        }),
        bubble: (c.step / 1e9 - compute).max(0.0),
        busy,
        memory: c.memory,
        sent: Some(sent),
        limits,
        sizes: p.sizes.list(),
        stragglers: p.sizes.stragglers.clone(),
    }
}
