//! Engines at work: a discrete-event simulation of operations.
//!
//! Each engine executes one operation at a time: of those whose dependencies have finished, the one of the greatest
//! priority, and among these the one with the least key. A running operation is not interrupted, except that a
//! transfer in chunks lets one of a greater priority pass between two chunks.
//!
//! The same simulation searches (keys are deadlines, every batch's operations compete) and judges (keys are positions
//! in the finished list, queues are edges): what differs is the graph. A search simulates the same operations hundreds
//! of times with other keys, so what does not depend on keys is laid out once ([`Simulator::new`]), and no run
//! allocates. There are few engines and each runs one operation, so the next event is the least of their ends.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use super::graph::{Edge, Graph};

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
}

impl Timing {
    /// Start of an operation in a batch (a step, if the list of a step was simulated).
    pub(crate) fn start(&self, op: usize, batch: usize) -> u64 {
        self.start[batch * self.n + op]
    }
    /// Its end.
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

/// A ready instance: the greatest priority first, then the least key, the earliest batch and the first operation. One
/// number, because most of a simulation is comparing them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Ready(u128);

impl Ready {
    fn new(priority: i32, key: i64, instance: u32) -> Self {
        // Signed numbers in the order of unsigned ones.
        let rank = u128::from(!(priority as u32 ^ 1 << 31));
        let key = u128::from(key as u64 ^ 1 << 63);
        Self(rank << 96 | key << 32 | u128::from(instance))
    }
    fn priority(self) -> i32 {
        (!((self.0 >> 96) as u32) ^ 1 << 31) as i32
    }
    fn instance(self) -> u32 {
        self.0 as u32
    }
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
    left: Vec<u32>,
    /// Nanoseconds that interrupted instances still take.
    rest: Vec<(Instance, u64)>,
    ready: [BinaryHeap<Reverse<Ready>>; ENGINES],
    running: [Option<Running>; ENGINES],
    times: Timing,
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

/// Keys of a run: instance m of an operation has the key `key + m * ii`.
#[derive(Debug, Clone, Copy)]
struct Keys<'a> {
    key: &'a [i64],
    ii: i64,
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
        let mut out_start = Vec::with_capacity(n + 1);
        let mut out = Vec::with_capacity(work.graph.edges.len());
        for op in 0..n {
            out_start.push(out.len() as u32);
            out.extend(work.graph.after(op).filter(needed).map(|e| (e.to, e.distance)));
        }
        out_start.push(out.len() as u32);
        Self {
            work,
            batches,
            out_start,
            out,
            waits: waits.clone(),
            waits_at_first: waits,
            left: vec![n as u32; batches],
            rest: Vec::new(),
            ready: Default::default(),
            running: [None; ENGINES],
            times: Timing { n, start: vec![u64::MAX; n * batches], end: vec![u64::MAX; n * batches] },
            until: None,
        }
    }

    /// Simulates all batches; instance m of an operation has the key `key + m * ii`.
    pub(crate) fn run(&mut self, key: &[i64], ii: i64) -> &Timing {
        self.start(Keys { key, ii }, None)
    }

    /// The same until all operations of two batches have started: times up to then are those of [`Self::run`].
    pub(crate) fn run_until(&mut self, key: &[i64], ii: i64, batches: [usize; 2]) -> &Timing {
        self.start(Keys { key, ii }, Some((batches, 2 * self.work.graph.n)))
    }

    /// What the last run found.
    pub(crate) fn into_times(self) -> Timing {
        self.times
    }

    fn start(&mut self, keys: Keys<'_>, until: Option<([usize; 2], usize)>) -> &Timing {
        let n = self.work.graph.n;
        self.waits.copy_from_slice(&self.waits_at_first);
        self.left.fill(n as u32);
        self.rest.clear();
        self.ready.iter_mut().for_each(BinaryHeap::clear);
        self.running = [None; ENGINES];
        self.times.start.fill(u64::MAX);
        self.times.end.fill(u64::MAX);
        self.until = until;
        for batch in 0..self.batches {
            for op in 0..n {
                if self.waits_at_first[batch * n + op] == 0 {
                    self.enqueue(keys, Instance { op: op as u32, batch: batch as u32 });
                }
            }
        }
        for e in 0..ENGINES {
            self.dispatch(e, 0);
        }
        while self.until.is_none_or(|(_, left)| left > 0) {
            let Some(now) = self.running.iter().flatten().map(Running::next).min() else { break };
            let mut touched = [false; ENGINES];
            for e in 0..ENGINES {
                if let Some(running) = self.running[e].filter(|r| r.next() == now) {
                    self.running[e] = None;
                    touched[e] = true;
                    self.event(keys, now, running, &mut touched);
                }
            }
            for (e, _) in touched.iter().enumerate().filter(|(_, t)| **t) {
                self.dispatch(e, now);
            }
        }
        &self.times
    }

    fn at(&self, Instance { op, batch }: Instance) -> usize {
        batch as usize * self.work.graph.n + op as usize
    }

    fn enqueue(&mut self, keys: Keys<'_>, instance: Instance) {
        let op = instance.op as usize;
        let key = keys.key[op] + i64::from(instance.batch) * keys.ii;
        let ready = Ready::new(self.work.priority[op], key, self.at(instance) as u32);
        self.ready[self.work.engine[op] as usize].push(Reverse(ready));
    }

    /// An operation ends or lets another pass.
    fn event(&mut self, keys: Keys<'_>, now: u64, r: Running, touched: &mut [bool; ENGINES]) {
        let instance = r.instance;
        if r.stops.is_some() {
            self.rest.push((instance, r.until - now));
            self.enqueue(keys, instance);
            return;
        }
        let ended = self.at(instance);
        self.times.end[ended] = now;
        let op = instance.op as usize;
        for k in self.out_start[op] as usize..self.out_start[op + 1] as usize {
            let (to, distance) = self.out[k];
            let later = i64::from(instance.batch) + i64::from(distance);
            if later >= 0 && later < self.batches as i64 {
                self.release(keys, Instance { op: to, batch: later as u32 }, touched);
            }
        }
        let batch = instance.batch as usize;
        self.left[batch] -= 1;
        if self.left[batch] == 0
            && let Some((load, f)) = self.work.in_flight
            && batch + f < self.batches
        {
            self.release(keys, Instance { op: load as u32, batch: (batch + f) as u32 }, touched);
        }
    }

    fn release(&mut self, keys: Keys<'_>, instance: Instance, touched: &mut [bool; ENGINES]) {
        let at = self.at(instance);
        let w = &mut self.waits[at];
        *w -= 1;
        if *w == 0 {
            self.enqueue(keys, instance);
            touched[self.work.engine[instance.op as usize] as usize] = true;
        }
    }

    fn dispatch(&mut self, engine: usize, now: u64) {
        let Some(Reverse(first)) = self.ready[engine].peek().copied() else { return };
        if let Some(r) = &mut self.running[engine] {
            let chunk = self.work.chunk[r.instance.op as usize];
            if chunk > 0 && r.stops.is_none() && first.priority() > r.priority {
                let boundary = r.since + (now - r.since).div_ceil(chunk).max(1) * chunk;
                r.stops = (boundary < r.until).then_some(boundary);
            }
            return;
        }
        self.ready[engine].pop();
        let (at, n) = (first.instance(), self.work.graph.n as u32);
        let instance = Instance { op: at % n, batch: at / n };
        let op = instance.op as usize;
        let rest = self.rest.iter().position(|(other, _)| *other == instance);
        let time = rest.map_or(self.work.time[op], |k| self.rest.swap_remove(k).1);
        let started = &mut self.times.start[at as usize];
        if *started == u64::MAX {
            *started = now;
            if let Some((batches, left)) = &mut self.until
                && batches.contains(&(instance.batch as usize))
            {
                *left -= 1;
            }
        }
        let priority = self.work.priority[op];
        self.running[engine] =
            Some(Running { instance, since: now, until: now + time, priority, stops: None });
    }
}

#[cfg(test)]
mod tests {
    use super::super::graph::Why;
    use super::*;

    fn simulate(work: &Tasks<'_>, key: &[i64], ii: i64, batches: usize) -> Timing {
        let mut simulator = Simulator::new(work, batches);
        simulator.run(key, ii);
        simulator.into_times()
    }

    fn graph(n: usize, edges: &[(u32, u32, i32)]) -> Graph {
        let edge = |(from, to, distance): &(u32, u32, i32)| Edge {
            from: *from,
            to: *to,
            distance: *distance,
            why: Why::Data,
        };
        Graph::new(n, edges.iter().map(edge).collect())
    }

    /// A long transfer (1) is under way when an urgent one (2) gets ready.
    fn transfers(chunk: u64) -> Timing {
        let g = graph(3, &[(0, 2, 0)]);
        let work = Tasks {
            graph: &g,
            time: &[25, 100, 10],
            engine: &[1, 3, 3],
            priority: &[0, 0, 1],
            chunk: &[0, chunk, 0],
            in_flight: None,
        };
        simulate(&work, &[0, 1, 2], 10, 1)
    }

    #[test]
    fn an_urgent_transfer_passes_between_chunks() {
        let t = transfers(10);
        assert_eq!((t.start(2, 0), t.end(2, 0), t.end(1, 0)), (30, 40, 110));
    }

    #[test]
    fn nothing_passes_a_transfer_in_one_piece() {
        let t = transfers(0);
        assert_eq!((t.start(2, 0), t.end(1, 0)), (100, 100));
    }

    /// Times of the same simulation with every edge, followed one instant after the other.
    fn plainly(work: &Tasks<'_>, key: &[i64], ii: i64, batches: usize) -> (Vec<u64>, Vec<u64>) {
        let n = work.graph.n;
        let (mut start, mut end) = (vec![u64::MAX; n * batches], vec![u64::MAX; n * batches]);
        let mut rest: Vec<u64> = (0..n * batches).map(|i| work.time[i % n]).collect();
        let mut running: [Option<(usize, u64)>; ENGINES] = [None; ENGINES];
        for now in 0..100_000u64 {
            for slot in &mut running {
                if let Some((i, since)) = *slot
                    && now - since == rest[i]
                {
                    end[i] = now;
                    *slot = None;
                }
            }
            let ready = |i: usize, end: &[u64]| {
                let (op, m) = (i % n, (i / n) as i64);
                let edges = work.graph.before(op).iter().all(|e| {
                    let before = m - i64::from(e.distance);
                    !(0..batches as i64).contains(&before)
                        || end[before as usize * n + e.from as usize] <= now
                });
                let whole = |m: usize| end[m * n..(m + 1) * n].iter().all(|t| *t <= now);
                let free = work
                    .in_flight
                    .is_none_or(|(load, f)| op != load || m < f as i64 || whole(m as usize - f));
                edges && free
            };
            for (e, slot) in running.iter_mut().enumerate() {
                let waits = (0..n * batches).filter(|i| {
                    let idle = slot.is_none_or(|(other, _)| other != *i);
                    work.engine[i % n] as usize == e && end[*i] == u64::MAX && idle && ready(*i, &end)
                });
                let first =
                    waits.min_by_key(|i| (-work.priority[i % n], key[i % n] + (i / n) as i64 * ii, *i));
                let Some(first) = first else { continue };
                if let Some((i, since)) = *slot {
                    let chunk = work.chunk[i % n];
                    let urgent = work.priority[first % n] > work.priority[i % n];
                    if chunk == 0 || !urgent || now == since || (now - since) % chunk != 0 {
                        continue;
                    }
                    rest[i] -= now - since;
                }
                start[first] = start[first].min(now);
                *slot = Some((first, now));
            }
            if end.iter().all(|t| *t != u64::MAX) {
                break;
            }
        }
        (start, end)
    }

    #[test]
    fn all_times_are_those_of_a_plain_simulation() {
        let mut state = 11u64;
        let mut next = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        let mut fewer = 0;
        for _ in 0..300 {
            let n = 7;
            let mut edges = Vec::new();
            for _ in 0..18 {
                let (a, b) = (1 + next(n as u64 - 1) as u32, 1 + next(n as u64 - 1) as u32);
                edges.push((a, b, i32::from(a >= b) + next(2) as i32));
            }
            // The load, and one batch that is looked at ahead.
            edges.extend([(0, 1, 0), (0, 2, -1), (0, 0, 1), (1, 2, 0)]);
            let g = graph(n, &edges);
            fewer += implied(&g).len();
            let draw = |next: &mut dyn FnMut(u64) -> u64, from: u64, below: u64| {
                (0..n).map(|_| from + next(below)).collect::<Vec<u64>>()
            };
            let time = draw(&mut next, 1, 12);
            let engine: Vec<u8> = draw(&mut next, 0, 3).into_iter().map(|e| e as u8).collect();
            let priority: Vec<i32> = draw(&mut next, 0, 3).into_iter().map(|p| p as i32 - 1).collect();
            let chunk: Vec<u64> = draw(&mut next, 0, 5);
            let key: Vec<i64> = draw(&mut next, 0, 60).into_iter().map(|k| k as i64 - 30).collect();
            let depth = 2 + next(2) as usize;
            let work = Tasks {
                graph: &g,
                time: &time,
                engine: &engine,
                priority: &priority,
                chunk: &chunk,
                in_flight: Some((0, depth)),
            };
            let (start, end) = plainly(&work, &key, 20, 6);
            let mut simulator = Simulator::new(&work, 6);
            // Another run before leaves nothing behind.
            simulator.run(&vec![0; n], 3);
            let times = simulator.run(&key, 20);
            assert_eq!((&times.start, &times.end), (&start, &end));
            // Until two batches have started everything is the same.
            let times = simulator.run_until(&key, 20, [1, 3]);
            for batch in [1, 3] {
                let begun = batch * n..(batch + 1) * n;
                assert_eq!(times.start[begun.clone()], start[begun]);
            }
            // Nor does a run that was stopped leave anything behind.
            let times = simulator.run(&key, 20);
            assert_eq!((&times.start, &times.end), (&start, &end));
        }
        assert!(fewer > 100, "{fewer} edges were left out");
    }

    #[test]
    fn a_pipeline_of_two_engines_reaches_the_busier_ones_pace() {
        let g = graph(2, &[(0, 1, 0), (0, 0, 1), (1, 1, 1)]);
        let work = Tasks {
            graph: &g,
            time: &[30, 50],
            engine: &[0, 1],
            priority: &[0, 0],
            chunk: &[0, 0],
            in_flight: Some((0, 2)),
        };
        let t = simulate(&work, &[0, 1], 50, 10);
        assert_eq!(t.start(1, 9) - t.start(1, 8), 50);
        let alone = Tasks { in_flight: Some((0, 1)), ..work };
        let t = simulate(&alone, &[0, 1], 50, 10);
        assert_eq!(t.start(1, 9) - t.start(1, 8), 80, "one batch at a time leaves nothing to overlap");
    }
}
