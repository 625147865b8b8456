//! Engines at work: a discrete-event simulation of operations.
//!
//! Each engine executes one operation at a time: of those whose dependencies have finished, the one of the greatest
//! priority, and among these the one with the least key. A running operation is not interrupted, except that a
//! transfer in chunks lets one of a greater priority pass between two chunks.
//!
//! The same simulation searches (keys are deadlines, every batch's operations compete) and judges (keys are positions
//! in the finished list, queues are edges): what differs is the graph.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::graph::Graph;

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

/// When everything started and ended.
#[derive(Debug, Clone)]
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
}

type Ready = BinaryHeap<Reverse<(i64, i64, u32)>>;

#[derive(Debug, Clone, Copy)]
struct Running {
    instance: u32,
    since: u64,
    until: u64,
    priority: i32,
    /// An interruption has been arranged.
    stops: bool,
}

struct Simulator<'a> {
    work: &'a Tasks<'a>,
    key: &'a [i64],
    ii: i64,
    batches: usize,
    waits: Vec<u32>,
    left: Vec<u32>,
    rest: std::collections::BTreeMap<u32, u64>,
    ready: Vec<Ready>,
    running: Vec<Option<Running>>,
    events: BinaryHeap<Reverse<(u64, u8, u32)>>,
    times: Timing,
    version: Vec<u32>,
}

/// Simulates `batches` batches; instance m of an operation has the key `key + m * ii`.
pub(crate) fn simulate(work: &Tasks<'_>, key: &[i64], ii: i64, batches: usize) -> Timing {
    let n = work.graph.n;
    let mut waits = vec![0u32; n * batches];
    for e in &work.graph.edges {
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
    let mut p = Simulator {
        work,
        key,
        ii,
        batches,
        waits,
        left: vec![n as u32; batches],
        rest: std::collections::BTreeMap::new(),
        ready: (0..ENGINES).map(|_| Ready::new()).collect(),
        running: vec![None; ENGINES],
        events: BinaryHeap::new(),
        times: Timing { n, start: vec![u64::MAX; n * batches], end: vec![u64::MAX; n * batches] },
        version: vec![0; ENGINES],
    };
    p.run();
    p.times
}

impl Simulator<'_> {
    fn run(&mut self) {
        for i in 0..self.waits.len() {
            if self.waits[i] == 0 {
                self.enqueue(i as u32);
            }
        }
        for e in 0..ENGINES {
            self.dispatch(e, 0);
        }
        while let Some(Reverse((now, engine, version))) = self.events.pop() {
            let mut touched = [false; ENGINES];
            self.event(now, engine as usize, version, &mut touched);
            while let Some(Reverse((t, engine, version))) = self.events.peek().copied() {
                if t != now {
                    break;
                }
                self.events.pop();
                self.event(now, engine as usize, version, &mut touched);
            }
            for (e, _) in touched.iter().enumerate().filter(|(_, t)| **t) {
                self.dispatch(e, now);
            }
        }
    }

    fn op(&self, instance: u32) -> usize {
        instance as usize % self.work.graph.n
    }

    fn enqueue(&mut self, instance: u32) {
        let op = self.op(instance);
        let batch = (instance as usize / self.work.graph.n) as i64;
        let rank = -i64::from(self.work.priority[op]);
        let key = self.key[op] + batch * self.ii;
        self.ready[self.work.engine[op] as usize].push(Reverse((rank, key, instance)));
    }

    fn event(&mut self, now: u64, engine: usize, version: u32, touched: &mut [bool; ENGINES]) {
        if self.version[engine] != version {
            return;
        }
        let Some(r) = self.running[engine].take() else { return };
        touched[engine] = true;
        if r.stops {
            self.rest.insert(r.instance, r.until - now);
            self.enqueue(r.instance);
            return;
        }
        self.times.end[r.instance as usize] = now;
        let (n, op) = (self.work.graph.n, self.op(r.instance));
        let batch = r.instance as usize / n;
        let graph = self.work.graph;
        for e in graph.after(op) {
            let later = batch as i64 + i64::from(e.distance);
            if later >= 0 && later < self.batches as i64 {
                self.release((later as usize * n + e.to as usize) as u32, touched);
            }
        }
        self.left[batch] -= 1;
        if self.left[batch] == 0
            && let Some((load, f)) = self.work.in_flight
            && batch + f < self.batches
        {
            self.release(((batch + f) * n + load) as u32, touched);
        }
    }

    fn release(&mut self, instance: u32, touched: &mut [bool; ENGINES]) {
        let w = &mut self.waits[instance as usize];
        *w -= 1;
        if *w == 0 {
            self.enqueue(instance);
            touched[self.work.engine[self.op(instance)] as usize] = true;
        }
    }

    fn dispatch(&mut self, engine: usize, now: u64) {
        let Some(Reverse((rank, _, instance))) = self.ready[engine].peek().copied() else { return };
        if let Some(r) = self.running[engine] {
            let chunk = self.work.chunk[self.op(r.instance)];
            if chunk > 0 && !r.stops && rank < -i64::from(r.priority) {
                let boundary = r.since + (now - r.since).div_ceil(chunk).max(1) * chunk;
                if boundary < r.until {
                    self.version[engine] += 1;
                    self.running[engine] = Some(Running { stops: true, ..r });
                    self.events.push(Reverse((boundary, engine as u8, self.version[engine])));
                }
            }
            return;
        }
        self.ready[engine].pop();
        let op = self.op(instance);
        let time = self.rest.remove(&instance).unwrap_or(self.work.time[op]);
        let started = &mut self.times.start[instance as usize];
        *started = (*started).min(now);
        self.version[engine] += 1;
        let until = now + time;
        self.running[engine] =
            Some(Running { instance, since: now, until, priority: self.work.priority[op], stops: false });
        self.events.push(Reverse((until, engine as u8, self.version[engine])));
    }
}

#[cfg(test)]
mod tests {
    use super::super::graph::{Edge, Why};
    use super::*;

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
