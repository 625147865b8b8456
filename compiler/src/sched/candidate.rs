//! A finished step: frozen positions with storage, dependencies, and the initiation interval that they reach in
//! simulation.

use fs_schedule::Dep;

use super::ahead;
use super::deps::{self, Before, Queues};
use super::freeze::{Frozen, freeze};
use super::graph::{Edge, Graph, Why};
use super::problem::Problem;
use super::simulate::{Simulator, Tasks, Timing};
use super::storage::{self, Storage};
use super::{SchedError, Takes};

/// How transfers share their engine.
#[derive(Debug, Clone)]
pub(crate) struct Tiers {
    /// Priority of each operation.
    pub priority: Vec<i32>,
    /// Bytes of a chunk, of those that let others pass.
    pub chunk: Vec<Option<u64>>,
    /// The same in nanoseconds, 0 for those in one piece.
    pub chunk_time: Vec<u64>,
}

impl Tiers {
    /// The queue of each operation in a step that begins with what works on rows.
    pub(crate) fn queues(&self, p: &Problem<'_>) -> Vec<u16> {
        let mut priority = self.priority.clone();
        ahead::queue(p, &mut priority);
        Queues::new(p.engine.iter().copied().zip(priority)).of
    }

    /// Everything in one piece and equally urgent.
    pub(crate) fn flat(n: usize) -> Self {
        Self { priority: vec![0; n], chunk: vec![None; n], chunk_time: vec![0; n] }
    }
}

/// A finished step. Operations are numbered as in the problem, in `deps` and `times` by position in the list.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    /// Stages and order.
    pub frozen: Frozen,
    /// Priorities and chunks.
    pub tiers: Tiers,
    /// Copies and slots.
    pub storage: Storage,
    /// Batches whose inputs and sizes are held.
    pub in_flight: u32,
    /// Dependencies of the list.
    pub deps: Vec<Vec<Dep>>,
    /// Nanoseconds of a step in the steady state.
    pub step: f64,
    /// Start within the step, by position in the list.
    pub start: Vec<u64>,
    /// Device memory in bytes.
    pub memory: u64,
}

/// Steps that are simulated before the initiation interval is read, and at most.
const STEPS: (usize, usize) = (10, 40);
/// Instances that one simulation may have: of a larger program fewer steps are simulated.
const INSTANCES: usize = 1_000_000;

impl Candidate {
    /// Freezes positions and finishes the step.
    pub(crate) fn build(
        p: &Problem<'_>,
        graph: &Graph,
        position: Vec<i64>,
        ii: i64,
        mut tiers: Tiers,
        staged: bool,
    ) -> Result<Self, SchedError> {
        if staged {
            ahead::queue(p, &mut tiers.priority);
        }
        let frozen = freeze(graph, &p.time, position, ii.max(1), |at| if staged { p.origin(at) } else { 0 })
            .map_err(|_| SchedError::Defect("positions cannot be made periodic".into()))?;
        let place = inverse(&frozen.order);
        let queues =
            Queues::new(frozen.order.iter().map(|i| (p.engine[*i as usize], tiers.priority[*i as usize])));
        let queue: Vec<u16> = (0..p.time.len()).map(|i| queues.of[place[i] as usize]).collect();
        let until: Vec<u64> = p.time.iter().zip(&p.graph.lag).map(|(time, lag)| time + lag).collect();
        // All operations of a unit have its time.
        let of_ops = frozen.spread(&p.units);
        let (until, of_queue) = (p.units.spread(&until), p.units.spread(&queue));
        let ops = &p.s.train.ops;
        let storage = storage::assign(&p.s.train.buffers, ops, &until, &of_ops, &of_queue, &p.buffer_bytes);
        let memory_edges: Vec<Edge> = storage.edges.iter().map(|e| p.units.edge(e)).collect();
        let (in_flight, held) = in_flight(p, &frozen, &queue);
        let before = |e: &Edge| Before {
            from: place[e.from as usize],
            to: place[e.to as usize],
            steps: frozen.steps(e.from as usize, e.to as usize, e.distance),
        };
        let needed = graph.edges.iter().filter(|e| e.why != Why::Ahead);
        let relations = needed.chain(&memory_edges).chain(&held).map(before);
        let relations = relations.chain(ahead::behind(p, &frozen.order).filter(|_| staged));
        let deps = deps::reduce(&queues, relations).map_err(|c| {
            SchedError::Defect(format!(
                "{c}: {} after {}",
                p.op(frozen.order[c.0.to as usize] as usize).name,
                p.op(frozen.order[c.0.from as usize] as usize).name
            ))
        })?;
        let memory = p.fixed.total(storage.bytes, in_flight);
        let mut this = Self { frozen, tiers, storage, in_flight, deps, step: 0.0, start: Vec::new(), memory };
        this.settle(p, &queues);
        Ok(this)
    }

    /// What a step takes.
    pub(crate) fn takes(&self) -> Takes {
        Takes { step: self.step / 1e9, memory: self.memory, in_flight: self.in_flight }
    }

    /// Simulates the finished list until it repeats.
    fn settle(&mut self, p: &Problem<'_>, queues: &Queues) {
        let n = self.frozen.order.len();
        let by_place = |of: &dyn Fn(usize) -> u64| {
            self.frozen.order.iter().map(|i| of(*i as usize)).collect::<Vec<u64>>()
        };
        let time = by_place(&|i| p.time[i]);
        let chunk = by_place(&|i| self.tiers.chunk_time[i]);
        let engine: Vec<u8> = self.frozen.order.iter().map(|i| p.engine[*i as usize] as u8).collect();
        let priority: Vec<i32> = self.frozen.order.iter().map(|i| self.tiers.priority[*i as usize]).collect();
        let lag = by_place(&|i| p.graph.lag[i]);
        let (step, times, steps) = steady(&self.deps, queues, (&time, lag), &engine, &priority, &chunk);
        // Simulated steps settle: one may be a little shorter (9 parts in 100,000 were seen, 4 ns of 46 us) than what no order can beat.
        self.step = step.max(p.mii());
        let base = (0..n).map(|i| times.start(i, steps - 1)).min().unwrap_or(0);
        self.start = (0..n).map(|i| times.start(i, steps - 1) - base).collect();
    }
}

/// Simulates a list of operations of such times, and of such lags from their ends until others may go on, until two steps are
/// alike: nanoseconds of a step, and the times of all simulated steps.
pub(crate) fn steady(
    deps: &[Vec<Dep>],
    queues: &Queues,
    (time, lag): (&[u64], Vec<u64>),
    engine: &[u8],
    priority: &[i32],
    chunk: &[u64],
) -> (f64, Timing, usize) {
    let n = time.len();
    let mut edges: Vec<Edge> = Vec::new();
    let edge = |from: u32, to: u32, distance: i32| Edge { from, to, distance, why: Why::Data };
    for (to, list) in deps.iter().enumerate() {
        edges.extend(list.iter().map(|d| edge(d.op, to as u32, d.distance as i32)));
    }
    for members in &queues.members {
        edges.extend(members.windows(2).map(|w| edge(w[0], w[1], 0)));
        if let (Some(first), Some(last)) = (members.first(), members.last()) {
            edges.push(edge(*last, *first, 1));
        }
    }
    let graph = Graph::new(n, edges).lagging(lag);
    let key: Vec<i64> = (0..n as i64).collect();
    let queue = &queues.of;
    let hold = &graph.lag;
    let work = Tasks { graph: &graph, time, engine, priority, queue, hold, chunk, in_flight: None };
    let most = (INSTANCES / n.max(1)).clamp(5, STEPS.1);
    let mut steps = STEPS.0.min(most);
    loop {
        let mut simulator = Simulator::new(&work, steps);
        simulator.run(&key, n as i64);
        let times = simulator.into_times();
        let (a, b, c) = (times.mean(steps - 3), times.mean(steps - 2), times.mean(steps - 1));
        let settled = ((c - b) - (b - a)).abs() <= 1.0;
        if settled || steps >= most {
            let from = if settled { steps - 2 } else { steps / 2 };
            return ((c - times.mean(from)) / (steps - 1 - from) as f64, times, steps);
        }
        steps = (steps * 2).min(most);
    }
}

/// Where each operation stands in an order.
pub(crate) fn inverse(order: &[u32]) -> Vec<u32> {
    let mut place = vec![0; order.len()];
    for (at, op) in order.iter().enumerate() {
        place[*op as usize] = at as u32;
    }
    place
}

/// Batches whose inputs and sizes must be held, and what the load of a batch therefore waits for: per queue the last
/// operation that uses the batch that it replaces.
fn in_flight(p: &Problem<'_>, frozen: &Frozen, queue: &[u16]) -> (u32, Vec<Edge>) {
    let Some(load) = p.load else { return (1, Vec::new()) };
    let ii = frozen.ii;
    let mut last: std::collections::BTreeMap<u16, (i64, usize, i32)> = std::collections::BTreeMap::new();
    let mut most = 1i64;
    for (i, queue) in queue.iter().enumerate() {
        let back = p.reaches_back(i);
        let at = frozen.position[i] - i64::from(back) * ii;
        let end = at + p.graph.until(&p.time, i) as i64 - frozen.position[load];
        most = most.max((end + ii - 1).div_euclid(ii));
        let entry = last.entry(*queue).or_insert((at, i, back));
        if (at, i) > (entry.0, entry.1) {
            *entry = (at, i, back);
        }
    }
    let edges = last.values().map(|(_, i, back)| Edge {
        from: *i as u32,
        to: load as u32,
        distance: most as i32 + back,
        why: Why::InFlight,
    });
    (most as u32, edges.collect())
}
