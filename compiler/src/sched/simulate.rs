//! Engines at work: a discrete-event simulation of operations.
//!
//! Each engine executes one operation at a time: of those whose dependencies have finished, the one of the greatest
//! priority, and among these the one with the least key. A running operation is not interrupted, except that a
//! transfer in chunks lets one of a greater priority pass between two chunks. What waits for one that has ended may have to
//! wait longer than its engine does (its *lag*): until data are there, or until the host has learned something of it. So does
//! what is next in its queue, because an executor has one operation of a queue under way, and what others of the queue are while it
//! lets one of another queue pass.
//!
//! The same simulation searches (keys are deadlines, every batch's operations compete) and judges (keys are positions
//! in the finished list, queues are edges): what differs is the graph. A search simulates the same operations hundreds
//! of times with other keys, so what does not depend on keys is laid out once ([`Simulator::new`]), and a run hardly
//! allocates. There are few engines and each runs one operation, so the next event is the least of their ends.

mod repeats;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use super::graph::{Edge, Graph};
use super::ready::{Ranks, Set};
use repeats::Repeats;

/// What is simulated.
#[derive(Debug)]
pub(crate) struct Tasks<'a> {
    /// Dependencies.
    pub graph: &'a Graph,
    /// Nanoseconds of each operation.
    pub time: &'a [u64],
    /// Engine of each operation, as a small number.
    pub engine: &'a [u8],
    /// Priority of each operation.
    pub priority: &'a [i32],
    /// Queue of each operation, counted from 0. Each is of one engine.
    pub queue: &'a [u16],
    /// Nanoseconds from the end of each operation until the next of its queue may start. A graph to plan with may have others wait
    /// longer.
    pub hold: &'a [u64],
    /// Nanoseconds of a chunk; 0: the operation is one piece.
    pub chunk: &'a [u64],
    /// Operations of batch m + f wait until all of batch m have finished, if they are this one: (operation, f).
    pub in_flight: Option<(usize, usize)>,
}

/// Number of engines that [`Tasks::engine`] may name.
pub(crate) const ENGINES: usize = 6;

/// When everything started and ended; `u64::MAX`: never, or not before the simulation was stopped.
#[derive(Debug)]
pub(crate) struct Timing {
    n: usize,
    start: Vec<u64>,
    end: Vec<u64>,
    /// Batches of which something was simulated.
    pub simulated: usize,
}

impl Timing {
    /// Start of an operation in a batch (a step, if the list of a step was simulated).
    pub(crate) fn start(&self, op: usize, batch: usize) -> u64 {
        self.start[batch * self.n + op]
    }
    /// Its end; others may have to wait a little longer.
    pub(crate) fn end(&self, op: usize, batch: usize) -> u64 {
        self.end[batch * self.n + op]
    }
    /// The mean start of a batch's operations.
    pub(crate) fn mean(&self, batch: usize) -> f64 {
        (0..self.n).map(|i| self.start(i, batch) as f64).sum::<f64>() / self.n.max(1) as f64
    }
}

/// An operation of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Instance {
    op: u32,
    batch: u32,
}

#[derive(Debug, Clone, Copy)]
struct Running {
    instance: Instance,
    since: u64,
    until: u64,
    priority: i32,
    /// When it lets another pass, which comes before it ends.
    stops: Option<u64>,
}

impl Running {
    fn next(&self) -> u64 {
        self.stops.unwrap_or(self.until)
    }
}

/// What simulates the same operations again and again.
#[derive(Debug)]
pub(crate) struct Simulator<'a> {
    work: &'a Tasks<'a>,
    batches: usize,
    /// Edges out of each operation: where they begin, then operation and distance.
    out_start: Vec<u32>,
    out: Vec<(u32, i32)>,
    /// What each instance waits for at first.
    waits_at_first: Vec<u32>,
    waits: Vec<u32>,
    /// What waits for nothing.
    ready_at_first: Vec<Instance>,
    left: Vec<u32>,
    /// Queues of each engine.
    queues: [Vec<u16>; ENGINES],
    /// In which order a run takes what is ready.
    ranks: Ranks,
    /// By queue: the rank of the interrupted instance, which goes on before all others, and nanoseconds that it still takes.
    rest: Vec<Option<(u32, u64)>>,
    /// By queue, ranks of what is ready.
    ready: Vec<Set>,
    /// By queue, when what ended last no longer holds it up.
    free: Vec<u64>,
    running: [Option<Running>; ENGINES],
    /// What has ended and others still wait for, or (false) only its queue, by when they no longer do.
    lagging: BinaryHeap<Reverse<(u64, u32, bool)>>,
    times: Timing,
    /// How many batches there are up to the last of which something has started.
    begun: usize,
    repeats: Repeats,
    /// Batches whose last start ends the simulation, and their operations that have not started.
    until: Option<([usize; 2], usize)>,
}

/// Steps that the search for implied edges may take over those that there are: of wider graphs all edges stay.
const LOOK: usize = 64;

/// Edges, as (to, from, distance), that two others say already: x before y and y before z is x before z. Nothing starts
/// earlier or later without them. The two must not lead back in time, or the batch between might not exist.
fn implied(graph: &Graph) -> HashSet<(u32, u32, i32)> {
    let forward = |e: &&Edge| e.distance >= 0;
    let all = graph.edges.iter().filter(forward);
    let looks: usize = all.clone().map(|e| graph.before(e.from as usize).len()).sum();
    let mut implied = HashSet::new();
    if looks > LOOK * graph.edges.len() {
        return implied;
    }
    for second in all {
        let direct = graph.before(second.to as usize);
        for first in graph.before(second.from as usize).iter().filter(forward) {
            let edge = (first.from, first.distance + second.distance);
            if direct.binary_search_by_key(&edge, |e| (e.from, e.distance)).is_ok() {
                implied.insert((second.to, edge.0, edge.1));
            }
        }
    }
    implied
}

impl<'a> Simulator<'a> {
    /// Of `batches` batches.
    pub(crate) fn new(work: &'a Tasks<'a>, batches: usize) -> Self {
        let n = work.graph.n;
        let implied = implied(work.graph);
        let needed = |e: &&Edge| !implied.contains(&(e.to, e.from, e.distance));
        let mut waits = vec![0u32; n * batches];
        for e in work.graph.edges.iter().filter(needed) {
            for m in 0..batches {
                let before = m as i64 - i64::from(e.distance);
                if before >= 0 && before < batches as i64 {
                    waits[m * n + e.to as usize] += 1;
                }
            }
        }
        if let Some((load, f)) = work.in_flight {
            (f..batches).for_each(|m| waits[m * n + load] += 1);
        }
        let instance = |at: usize| Instance { op: (at % n) as u32, batch: (at / n) as u32 };
        let ready_at_first = (0..n * batches).filter(|at| waits[*at] == 0).map(instance).collect();
        let mut out_start = Vec::with_capacity(n + 1);
        let mut out = Vec::with_capacity(work.graph.edges.len());
        for op in 0..n {
            out_start.push(out.len() as u32);
            out.extend(work.graph.after(op).filter(needed).map(|e| (e.to, e.distance)));
        }
        out_start.push(out.len() as u32);
        let mut queues: [Vec<u16>; ENGINES] = Default::default();
        for (queue, engine) in work.queue.iter().zip(work.engine) {
            let list = &mut queues[*engine as usize];
            if !list.contains(queue) {
                list.push(*queue);
            }
        }
        let count = work.queue.iter().max().map_or(0, |q| *q as usize + 1);
        Self {
            work,
            batches,
            out_start,
            out,
            waits: waits.clone(),
            ready_at_first,
            waits_at_first: waits,
            left: vec![n as u32; batches],
            queues,
            ranks: Ranks::default(),
            rest: vec![None; count],
            ready: vec![Set::new(n * batches); count],
            free: vec![0; count],
            running: [None; ENGINES],
            lagging: BinaryHeap::new(),
            times: Timing {
                n,
                start: vec![u64::MAX; n * batches],
                end: vec![u64::MAX; n * batches],
                simulated: 0,
            },
            begun: 0,
            repeats: Repeats::default(),
            until: None,
        }
    }

    /// Simulates all batches; instance m of an operation has the key `key + m * ii`.
    pub(crate) fn run(&mut self, key: &[i64], ii: i64) -> &Timing {
        self.start(key, ii, None, false)
    }

    /// The same of batches without end, as far as it does not repeat itself.
    pub(crate) fn run_on(&mut self, key: &[i64], ii: i64) -> &Timing {
        self.start(key, ii, None, true)
    }

    /// The same until all operations of two batches have started.
    pub(crate) fn run_until(&mut self, key: &[i64], ii: i64, batches: [usize; 2]) -> &Timing {
        self.start(key, ii, Some((batches, 2 * self.work.graph.n)), true)
    }

    /// What the last run found.
    pub(crate) fn into_times(self) -> Timing {
        self.times
    }

    fn start(&mut self, key: &[i64], ii: i64, until: Option<([usize; 2], usize)>, on: bool) -> &Timing {
        let n = self.work.graph.n;
        self.ranks.rank(self.work.priority, key, ii, self.batches);
        self.waits.copy_from_slice(&self.waits_at_first);
        self.left.fill(n as u32);
        self.rest.fill(None);
        self.free.fill(0);
        self.ready.iter_mut().for_each(Set::clear);
        self.running = [None; ENGINES];
        self.lagging.clear();
        self.times.start.fill(u64::MAX);
        self.times.end.fill(u64::MAX);
        (self.until, self.begun) = (until, 0);
        self.repeats.clear();
        for at in 0..self.ready_at_first.len() {
            self.enqueue(self.ready_at_first[at]);
        }
        for e in 0..ENGINES {
            self.dispatch(e, 0);
        }
        while self.until.is_none_or(|(_, left)| left > 0) {
            let running = self.running.iter().flatten().map(Running::next);
            let lagging = self.lagging.peek().map(|Reverse((at, ..))| *at);
            let Some(now) = running.chain(lagging).min() else { break };
            let mut touched = [false; ENGINES];
            while let Some(Reverse((_, at, lets_go))) = self.lagging.peek().copied().filter(|l| l.0.0 == now)
            {
                self.lagging.pop();
                let instance = Instance { op: at % n as u32, batch: at / n as u32 };
                touched[self.work.engine[instance.op as usize] as usize] = true;
                if lets_go {
                    self.let_go(instance, &mut touched);
                }
            }
            for e in 0..ENGINES {
                if let Some(running) = self.running[e].filter(|r| r.next() == now) {
                    self.running[e] = None;
                    touched[e] = true;
                    self.event(now, running, &mut touched);
                }
            }
            for (e, _) in touched.iter().enumerate().filter(|(_, t)| **t) {
                self.dispatch(e, now);
            }
            if on && self.repeats(now) {
                break;
            }
        }
        self.times.simulated = self.begun;
        &self.times
    }

    fn at(&self, Instance { op, batch }: Instance) -> usize {
        batch as usize * self.work.graph.n + op as usize
    }

    fn enqueue(&mut self, instance: Instance) {
        let rank = self.ranks.of(self.at(instance));
        self.ready[self.work.queue[instance.op as usize] as usize].insert(rank);
    }

    /// The rank of what an engine would do next, and its queue.
    fn first(&self, engine: usize, now: u64) -> Option<(u32, usize)> {
        let queues = self.queues[engine].iter().map(|q| *q as usize).filter(|q| self.free[*q] <= now);
        let head = |q: usize| {
            let rest = self.rest[q].map(|rest| rest.0);
            rest.or_else(|| self.ready[q].first()).map(|rank| (rank, q))
        };
        queues.filter_map(head).min()
    }

    /// An operation ends or lets another pass.
    fn event(&mut self, now: u64, r: Running, touched: &mut [bool; ENGINES]) {
        let instance = r.instance;
        let queue = self.work.queue[instance.op as usize] as usize;
        if r.stops.is_some() {
            self.rest[queue] = Some((self.ranks.of(self.at(instance)), r.until - now));
            return;
        }
        let ended = self.at(instance);
        self.times.end[ended] = now;
        let (lag, hold) = (self.work.graph.lag[instance.op as usize], self.work.hold[instance.op as usize]);
        self.free[queue] = now + hold;
        if hold > 0 && hold != lag {
            self.lagging.push(Reverse((now + hold, ended as u32, false)));
        }
        match lag {
            0 => self.let_go(instance, touched),
            lag => self.lagging.push(Reverse((now + lag, ended as u32, true))),
        }
    }

    /// Others no longer wait for an operation.
    fn let_go(&mut self, instance: Instance, touched: &mut [bool; ENGINES]) {
        let op = instance.op as usize;
        for k in self.out_start[op] as usize..self.out_start[op + 1] as usize {
            let (to, distance) = self.out[k];
            let later = i64::from(instance.batch) + i64::from(distance);
            if later >= 0 && later < self.batches as i64 {
                self.release(Instance { op: to, batch: later as u32 }, touched);
            }
        }
        let batch = instance.batch as usize;
        self.left[batch] -= 1;
        if self.left[batch] == 0
            && let Some((load, f)) = self.work.in_flight
            && batch + f < self.batches
        {
            self.release(Instance { op: load as u32, batch: (batch + f) as u32 }, touched);
        }
    }

    fn release(&mut self, instance: Instance, touched: &mut [bool; ENGINES]) {
        let at = self.at(instance);
        let w = &mut self.waits[at];
        *w -= 1;
        if *w == 0 {
            self.enqueue(instance);
            touched[self.work.engine[instance.op as usize] as usize] = true;
        }
    }

    fn dispatch(&mut self, engine: usize, now: u64) {
        // Nothing passes what is in one piece, or stops already.
        let passed = |r: &Running| r.stops.is_none() && self.work.chunk[r.instance.op as usize] > 0;
        if self.running[engine].as_ref().is_some_and(|r| !passed(r)) {
            return;
        }
        let Some((first, queue)) = self.first(engine, now) else { return };
        let (op, batch) = self.ranks.instance(first);
        let instance = Instance { op, batch };
        let op = instance.op as usize;
        let priority = self.work.priority[op];
        if let Some(r) = &mut self.running[engine] {
            let chunk = self.work.chunk[r.instance.op as usize];
            if priority > r.priority {
                let boundary = r.since + (now - r.since).div_ceil(chunk).max(1) * chunk;
                r.stops = (boundary < r.until).then_some(boundary);
            }
            return;
        }
        let time = if let Some((_, rest)) = self.rest[queue].take() {
            rest
        } else {
            self.ready[queue].remove(first);
            self.work.time[op]
        };
        let at = self.at(instance);
        let started = &mut self.times.start[at];
        if *started == u64::MAX {
            *started = now;
            self.begun = self.begun.max(batch as usize + 1);
            if let Some((batches, left)) = &mut self.until
                && batches.contains(&(instance.batch as usize))
            {
                *left -= 1;
            }
        }
        self.running[engine] =
            Some(Running { instance, since: now, until: now + time, priority, stops: None });
    }
}

#[cfg(test)]
mod tests;
