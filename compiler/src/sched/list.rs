//! List scheduling by simulation, iterated: each run learns from what the busiest engine waited for.
//!
//! A [simulation](super::simulate) takes ready operations in the order of their keys, as a list scheduler does. Latest
//! starts are good keys as long as nothing stands in a queue; they know nothing of the time that queues take. So keys
//! are changed after each run:
//!
//! - *iterate*: whenever the busiest engine stood still, the operation that it waited for gets an earlier key, and so
//!   does everything before it that had stood in a queue;
//! - *hill climbing*: a few keys are changed at random, and what is no worse is kept. The random numbers are always the
//!   same.
//!
//! For slack, microbatches are taken to come one after the other. Nothing demands that, but all of them share an
//! engine, and without it every operation of a small microbatch seems to have almost a whole step of room.

use std::collections::BTreeMap;

use fs_schedule::action::At;
use fs_schedule::{Engine, Op};

use super::SchedError;
use super::bounds::{self, Window};
use super::candidate::{Candidate, Tiers};
use super::graph::{Edge, Graph, Why};
use super::problem::Problem;
use super::simulate::{Simulator, Tasks, Timing};
use super::slack::{self, ENOUGH};

/// Instances that one simulation may have.
const INSTANCES: usize = 1_500_000;
/// Shares of their slack by which operations may come before their latest start, tried in turn.
const ADVANCES: [f64; 3] = [0.0, 0.4, 0.7];
/// Simulations of [`ListScheduler::iterate`], and instances of all of them together.
const RUNS: usize = 40;
const BUDGET: usize = 1_000_000;
/// Simulations without a better step after which keys are not changed further.
const STALE: usize = 6;
/// Of the time that an operation stood in a queue: how much earlier it is made.
const SHARE: f64 = 0.25;
/// Simulations of [`ListScheduler::hill_climb`], and instances of all of them together.
const CLIMBS: usize = 400;
const CLIMB_BUDGET: usize = 500_000;
/// Simulations without a shorter step after which it ends: more than half of all random changes move nothing. What fewer cost and save is
/// in docs/measurements.md.
const CLIMB_STALE: usize = 60;
/// Greatest random change of a key, over the step.
const CHANGE: f64 = 0.3;

/// A search with a number of batches in flight.
#[derive(Debug)]
pub(crate) struct ListScheduler<'a> {
    p: &'a Problem<'a>,
    graph: Graph,
    window: Window,
    tiers: Tiers,
    engine: Vec<u8>,
    queue: Vec<u16>,
    /// Nanoseconds for which each holds up its queue after its end, likewise.
    hold: Vec<u64>,
    /// Nanoseconds of each operation, transfers with a margin.
    time: Vec<u64>,
    hub: usize,
    ii: f64,
    bound: f64,
    depth: usize,
    batches: usize,
    /// Batches between which the initiation interval is read.
    first: usize,
    last: usize,
}

/// The best simulation so far.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// Nanoseconds from one batch to the next.
    pub ii: f64,
    position: Vec<i64>,
    key: Vec<i64>,
}

impl<'a> ListScheduler<'a> {
    /// With slacks of steps that take `step`, and `depth` batches in flight.
    pub(crate) fn new(
        p: &'a Problem<'a>,
        graph: &Graph,
        hub: usize,
        step: f64,
        bound: f64,
        depth: u32,
    ) -> Self {
        Self::with_margin(p, graph, hub, step, bound, depth, 1.0)
    }

    /// The same for transfers that take `margin` times as long as expected. An order that hides those hides the real
    /// ones too if compute turns out faster or a transfer starts late.
    pub(crate) fn with_margin(
        p: &'a Problem<'a>,
        graph: &Graph,
        hub: usize,
        step: f64,
        bound: f64,
        depth: u32,
        margin: f64,
    ) -> Self {
        let longer = |of: &[u64]| -> Vec<u64> {
            let one = |(time, engine): (&u64, &Engine)| match engine {
                Engine::Compute | Engine::Host => *time,
                _ => (*time as f64 * margin) as u64,
            };
            of.iter().zip(&p.engine).map(one).collect()
        };
        let (time, lag) = (longer(&p.time), longer(&graph.lag));
        let ii = step * 1.0001;
        let microbatch_order = graph.with(microbatch_order(p));
        let window = match bounds::rec_mii(&microbatch_order, &p.time) {
            Ok(r) if r.time <= step => slack::windows(p, &microbatch_order, slack::hub(p, &r.cycle), ii),
            _ => slack::windows(p, graph, hub, ii),
        };
        let tiers = slack::tiers(p, &slack::slacks(&window), step);
        // Operations that read batches before their own keep those in flight.
        let held = (0..p.time.len()).filter_map(|i| {
            let back = p.reaches_back(i);
            let load = p.load?;
            (back < 0).then_some(Edge {
                from: i as u32,
                to: load as u32,
                distance: depth as i32 + back,
                why: Why::InFlight,
            })
        });
        let depth = depth as usize;
        let batches = (3 * depth + 10).min((INSTANCES / p.time.len().max(1)).max(2 * depth + 4));
        let last = batches - 1 - depth;
        Self {
            p,
            graph: graph.with(held).lagging(lag),
            window,
            queue: tiers.queues(p),
            hold: longer(&p.graph.lag),
            tiers,
            engine: p.engine.iter().map(|e| *e as u8).collect(),
            time,
            hub,
            ii,
            bound,
            depth,
            batches,
            first: (depth + 1).min(last - 1),
            last,
        }
    }

    fn tasks(&self) -> Tasks<'_> {
        Tasks {
            graph: &self.graph,
            time: &self.time,
            engine: &self.engine,
            priority: &self.tiers.priority,
            queue: &self.queue,
            hold: &self.hold,
            chunk: &self.tiers.chunk_time,
            in_flight: self.p.load.map(|l| (l, self.depth)),
        }
    }

    /// The initiation interval of a simulation: of the batches between which it is read all must have started.
    fn interval(&self, times: &Timing) -> f64 {
        let ii = (times.mean(self.last) - times.mean(self.first)) / (self.last - self.first) as f64;
        ii.ceil().max(self.bound.ceil())
    }

    fn found(&self, ii: f64, times: &Timing, key: &[i64]) -> Found {
        let position = (0..self.p.time.len()).map(|i| times.start(i, self.last) as i64).collect();
        Found { ii, position, key: key.to_vec() }
    }

    fn runs(&self, most: usize, instances: usize) -> usize {
        (instances / (self.p.time.len() * self.batches).max(1)).min(most)
    }

    /// When each operation should start: its latest start, or earlier by a share of its slack. What nobody waits for
    /// comes when the rest has been served.
    fn keys(&self, advance: f64) -> Vec<i64> {
        let w = &self.window;
        let key = |i: usize| match (w.late[i], w.early[i]) {
            (late, early) if late.is_finite() && early.is_finite() => {
                (late - advance * (late - early)) as i64
            }
            (late, _) if late.is_finite() => late as i64,
            (_, early) if early.is_finite() => (early + 2.0 * self.ii) as i64,
            _ => (2.0 * self.ii) as i64,
        };
        (0..w.late.len()).map(key).collect()
    }

    /// Simulations with keys that are made earlier where the busiest engine waits.
    pub(crate) fn iterate(&self) -> Found {
        let mut left = self.runs(RUNS, BUDGET).max(1);
        let mut best: Option<Found> = None;
        let tasks = self.tasks();
        let mut simulator = Simulator::new(&tasks, self.batches);
        for advance in ADVANCES {
            let mut key = self.keys(advance);
            let mut stale = 0;
            while left > 0 {
                left -= 1;
                let times = simulator.run_on(&key, self.ii as i64);
                self.p.simulated(times.simulated);
                let ii = self.interval(times);
                if best.as_ref().is_none_or(|b| ii < b.ii * 0.9995) {
                    best = Some(self.found(ii, times, &key));
                    stale = 0;
                }
                stale += 1;
                let enough = ii <= self.bound * ENOUGH;
                if enough {
                    left = 0;
                }
                if enough || stale > STALE || !self.earlier(times, ii, &mut key) {
                    break;
                }
            }
        }
        let nothing = || Found { ii: f64::INFINITY, position: vec![0; self.p.time.len()], key: Vec::new() };
        best.unwrap_or_else(nothing)
    }

    /// Earlier keys for what the busiest engine waited for. False if there is nothing to change.
    fn earlier(&self, times: &Timing, ii: f64, key: &mut [i64]) -> bool {
        let (n, busiest) = (self.p.time.len(), self.p.res_mii.engine);
        let from = times.start(self.hub, self.last);
        let until = from + ii as u64;
        let mut ran: Vec<(u64, u64, usize, usize)> = Vec::new();
        for i in (0..n).filter(|i| self.p.engine[*i] == busiest) {
            for m in self.last.saturating_sub(self.depth)..=self.last + self.depth {
                let (start, end) = (times.start(i, m), times.end(i, m));
                if (from..until).contains(&start) && end != u64::MAX {
                    ran.push((start, end, i, m));
                }
            }
        }
        ran.sort_unstable();
        let least = (ii * 0.001) as u64;
        let mut amounts: BTreeMap<usize, i64> = BTreeMap::new();
        for pair in ran.windows(2) {
            let gap = pair[1].0.saturating_sub(pair[0].1);
            if gap <= least {
                continue;
            }
            let (mut op, mut batch) = (pair[1].2, pair[1].3);
            // Two intervals back the chain repeats.
            let horizon = pair[1].0.saturating_sub(2 * ii as u64);
            for _ in 0..n {
                let before = self.graph.before(op).iter().filter_map(|e| {
                    let m = usize::try_from(batch as i64 - i64::from(e.distance)).ok()?;
                    let (from, m) = (e.from as usize, Some(m).filter(|m| *m < self.batches)?);
                    Some((times.end(from, m).saturating_add(self.graph.lag[from]), from, m))
                });
                let Some((ready, other, m)) = before.max() else { break };
                if ready == u64::MAX || ready < horizon {
                    break;
                }
                let waited = times.start(op, batch).saturating_sub(ready);
                if waited > least {
                    let amount = amounts.entry(op).or_insert(0);
                    *amount = (*amount).max(gap.max((waited as f64 * SHARE) as u64) as i64);
                }
                (op, batch) = (other, m);
            }
        }
        for (op, amount) in &amounts {
            key[*op] -= amount;
        }
        !amounts.is_empty()
    }

    /// Simulations with a few keys changed at random.
    pub(crate) fn hill_climb(&self, mut best: Found) -> Found {
        let n = self.p.time.len();
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = |below: u64| {
            // xorshift64*
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % below.max(1)
        };
        if best.key.len() != n {
            return best;
        }
        let tasks = self.tasks();
        let mut simulator = Simulator::new(&tasks, self.batches);
        let mut stale = 0;
        for _ in 0..self.runs(CLIMBS, CLIMB_BUDGET) {
            if best.ii <= self.bound * ENOUGH || stale == CLIMB_STALE {
                break;
            }
            let mut key = best.key.clone();
            for _ in 0..=random(3) {
                let most = (self.ii * CHANGE) as u64;
                key[random(n as u64) as usize] += random(2 * most) as i64 - most as i64;
            }
            // What starts after the batches that are looked at does not matter.
            let times = simulator.run_until(&key, self.ii as i64, [self.first, self.last]);
            self.p.simulated(times.simulated);
            let ii = self.interval(times);
            stale = if ii < best.ii { 0 } else { stale + 1 };
            if ii <= best.ii {
                best = self.found(ii, times, &key);
            }
        }
        best
    }

    /// The step that a simulation found, with the dependencies of the strategy.
    pub(crate) fn freeze(&self, graph: &Graph, found: &Found) -> Result<Candidate, SchedError> {
        let (position, ii) = (found.position.clone(), found.ii as i64);
        Candidate::build(self.p, graph, position, ii, self.tiers.clone(), true)
    }
}

/// From the last gradient of rows of a microbatch to what uses rows in the next.
fn microbatch_order(p: &Problem<'_>) -> Vec<Edge> {
    // Rows that are all that an operation works on: the loss has them beside its scores.
    let rows = |op: &Op| op.action.facts().entries.map(|e| e.rows);
    let mut ends: BTreeMap<u32, u32> = BTreeMap::new();
    for (i, op) in p.ops().enumerate() {
        if let (Some(At::Written(0)), Some(m)) = (rows(op), op.microbatch) {
            ends.insert(m, i as u32);
        }
    }
    let starts = p.ops().enumerate().filter_map(|(i, op)| {
        let uses = rows(op) == Some(At::Read(0));
        let before = op.microbatch.filter(|_| uses)?.checked_sub(1)?;
        Some(Edge { from: *ends.get(&before)?, to: i as u32, distance: 0, why: Why::Blocking })
    });
    starts.collect()
}
