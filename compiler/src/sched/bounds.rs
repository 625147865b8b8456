//! Two lower bounds on the initiation interval (the time of a step), whatever the order: ResMII, the busiest engine's
//! work, and RecMII, the greatest ratio of time to batches over all dependency cycles.
//!
//! A cycle whose operations take t in all and whose edges span d batches forces d steps to take at least t. The
//! greatest ratio is found by raising a guess: while some cycle is longer than the guess allows (a positive cycle of
//! weights time - guess * distance), its ratio is the next guess. Each search relaxes longest paths in the reference
//! order of a batch, where one sweep settles all edges within a batch, so as many sweeps are needed as batches are
//! crossed.

use fs_schedule::Engine;

use super::graph::{Edge, Graph};

/// The bound of resources: the busiest engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ResMii {
    /// Which.
    pub engine: Engine,
    /// Its work in a step, in nanoseconds.
    pub time: u64,
}

/// Work of each engine that has some, in nanoseconds.
pub(crate) fn busy(engines: &[Engine], time: &[u64]) -> Vec<(Engine, u64)> {
    let mut sums: std::collections::BTreeMap<Engine, u64> = std::collections::BTreeMap::new();
    for (e, t) in engines.iter().zip(time) {
        *sums.entry(*e).or_insert(0) += t;
    }
    sums.into_iter().collect()
}

/// ResMII.
pub(crate) fn res_mii(engines: &[Engine], time: &[u64]) -> ResMii {
    let busy = busy(engines, time);
    let (engine, time) = busy.iter().rev().max_by_key(|b| b.1).copied().unwrap_or((Engine::Compute, 0));
    ResMii { engine, time }
}

/// The bound of recurrences.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct RecMii {
    /// Nanoseconds per step.
    pub time: f64,
    /// The cycle: each edge leads to the next operation; empty if there is none.
    pub cycle: Vec<Edge>,
}

/// A cycle without batches between its operations: no order satisfies it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("operations wait for each other in a cycle")]
pub(crate) struct Deadlock(pub Vec<u32>);

/// RecMII: the greatest ratio of time to distance over all cycles.
pub(crate) fn rec_mii(graph: &Graph, time: &[u64]) -> Result<RecMii, Deadlock> {
    let mut best = RecMii::default();
    loop {
        let Some(cycle) = positive_cycle(graph, time, best.time) else { return Ok(best) };
        let total: f64 = cycle.iter().map(|e| graph.until(time, e.from as usize)).sum();
        let batches: i64 = cycle.iter().map(|e| i64::from(e.distance)).sum();
        if batches <= 0 {
            return Err(Deadlock(cycle.iter().map(|e| e.from).collect()));
        }
        let ratio = total / batches as f64;
        if ratio <= best.time {
            return Ok(best);
        }
        best = RecMii { time: ratio, cycle };
    }
}

/// Below this many nanoseconds differences are rounding.
const EPSILON: f64 = 1e-3;

/// A cycle with time - ii * distance > 0.
fn positive_cycle(graph: &Graph, time: &[u64], ii: f64) -> Option<Vec<Edge>> {
    let mut length = vec![0f64; graph.n];
    let mut parent: Vec<Option<u32>> = vec![None; graph.n];
    let epsilon = EPSILON.max(ii * 1e-12);
    loop {
        let mut changed = false;
        for (k, e) in graph.edges.iter().enumerate() {
            let (from, to) = (e.from as usize, e.to as usize);
            let new = length[from] + graph.until(time, from) - ii * f64::from(e.distance);
            if new > length[to] + epsilon {
                length[to] = new;
                parent[to] = Some(k as u32);
                changed = true;
            }
        }
        if !changed {
            return None;
        }
        if let Some(cycle) = parent_cycle(graph, &parent) {
            return Some(cycle);
        }
    }
}

/// A cycle of the edges by which each operation got its length: there is one only if some cycle is positive.
fn parent_cycle(graph: &Graph, parent: &[Option<u32>]) -> Option<Vec<Edge>> {
    const NEW: u32 = 0;
    let mut seen = vec![NEW; graph.n];
    for start in 0..graph.n {
        let mark = start as u32 + 1;
        let mut at = start;
        while seen[at] == NEW {
            seen[at] = mark;
            match parent[at] {
                Some(k) => at = graph.edges[k as usize].from as usize,
                None => break,
            }
        }
        if seen[at] == mark && parent[at].is_some() {
            // `at` lies on a cycle unless the walk ended there.
            let mut cycle = Vec::new();
            let mut node = at;
            loop {
                let edge = graph.edges[parent[node]? as usize];
                cycle.push(edge);
                node = edge.from as usize;
                if node == at {
                    break;
                }
            }
            cycle.reverse();
            return Some(cycle);
        }
    }
    None
}

/// Earliest starts relative to the load of the same batch, if steps take `ii`: longest paths. `ii` must not
/// be below the recurrence bound.
pub(crate) fn earliest(graph: &Graph, time: &[u64], ii: f64) -> Vec<f64> {
    let mut start = vec![0f64; graph.n];
    for _ in 0..SWEEPS {
        let mut changed = false;
        for e in &graph.edges {
            let (from, to) = (e.from as usize, e.to as usize);
            let new = start[from] + graph.until(time, from) - ii * f64::from(e.distance);
            if new > start[to] + EPSILON {
                start[to] = new;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    start
}

/// How operations stand to one of them, `hub`, if steps take `ii`.
#[derive(Debug, Clone)]
pub(crate) struct Window {
    /// Earliest starts after the hub's; minus infinity for what does not wait for the hub.
    pub early: Vec<f64>,
    /// Latest starts such that the hub is not late; infinity for what the hub does not wait for.
    pub late: Vec<f64>,
}

impl Window {
    /// Room of an operation: how much the cycles through it and the hub are shorter than the batches that they span
    /// allow. Infinite for what lies on none.
    pub(crate) fn slack(&self, op: usize) -> f64 {
        (self.late[op] - self.early[op]).max(0.0)
    }
}

/// Windows around a hub: longest paths from it and to it. `ii` must not be below the recurrence bound.
pub(crate) fn window(graph: &Graph, time: &[u64], ii: f64, hub: usize) -> Window {
    let mut early = vec![f64::NEG_INFINITY; graph.n];
    let mut late = vec![f64::INFINITY; graph.n];
    (early[hub], late[hub]) = (0.0, 0.0);
    for _ in 0..SWEEPS {
        let mut changed = false;
        for e in &graph.edges {
            let (from, to) = (e.from as usize, e.to as usize);
            let new = early[from] + graph.until(time, from) - ii * f64::from(e.distance);
            if new > early[to] + EPSILON {
                early[to] = new;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    for _ in 0..SWEEPS {
        let mut changed = false;
        for op in (0..graph.n).rev() {
            let least = graph
                .after(op)
                .map(|e| late[e.to as usize] + ii * f64::from(e.distance) - graph.until(time, op))
                .fold(late[op], f64::min);
            if least < late[op] - EPSILON {
                late[op] = least;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    Window { early, late }
}

/// Batches that a path may cross before it is taken to be a rounding error's cycle.
const SWEEPS: usize = 200;

#[cfg(test)]
mod tests {
    use super::super::graph::Why;
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

    #[test]
    fn the_greatest_ratio_with_its_cycle() {
        // 0 -> 1 -> 2 -> 0 over one batch: 60; 2 -> 3 -> 2 over two: 35.
        let g = graph(4, &[(0, 1, 0), (1, 2, 0), (2, 0, 1), (2, 3, 0), (3, 2, 2)]);
        let r = rec_mii(&g, &[10, 20, 30, 40]).unwrap();
        assert_eq!(r.time, 60.0);
        assert_eq!(r.cycle.iter().map(|e| e.distance).sum::<i32>(), 1);
        assert_eq!(r.cycle.len(), 3);
        let r = rec_mii(&g, &[10, 20, 30, 140]).unwrap();
        assert_eq!(r.time, 85.0);
        assert_eq!(rec_mii(&graph(2, &[(0, 1, 0)]), &[5, 5]).unwrap(), RecMii::default());
    }

    #[test]
    fn cycles_within_a_batch_are_deadlocks() {
        assert!(rec_mii(&graph(2, &[(0, 1, 0), (1, 0, 0)]), &[5, 5]).is_err());
        // A negative distance that the rest of the cycle makes up for is not one.
        let g = graph(3, &[(0, 1, -1), (1, 2, 0), (2, 0, 3)]);
        assert_eq!(rec_mii(&g, &[4, 4, 4]).unwrap().time, 6.0);
    }

    #[test]
    fn slack_is_what_a_cycle_leaves() {
        // 0 -> 1 -> 0 takes 50 of 80; 2 runs beside 1; 3 only feeds 0, 4 is only fed by it.
        let g = graph(5, &[(0, 1, 0), (1, 0, 1), (0, 2, 0), (2, 0, 2), (3, 0, 0), (0, 4, 0)]);
        let w = window(&g, &[20, 30, 40, 5, 5], 80.0, 0);
        assert_eq!((w.slack(0), w.slack(1), w.slack(2)), (0.0, 30.0, 100.0));
        assert!(w.slack(3).is_infinite() && w.slack(4).is_infinite());
        assert_eq!((w.late[3], w.early[4]), (-5.0, 20.0));
    }

    /// Against all simple cycles of small random graphs.
    #[test]
    fn agrees_with_enumeration() {
        let mut state = 7u64;
        let mut next = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        for _ in 0..300 {
            let n = 5;
            let time: Vec<u64> = (0..n).map(|_| 1 + next(50)).collect();
            let mut edges = Vec::new();
            for _ in 0..9 {
                let (a, b) = (next(n as u64) as u32, next(n as u64) as u32);
                let back = i32::from(a >= b);
                edges.push((a, b, back + next(3) as i32));
            }
            let g = graph(n, &edges);
            let mut best = 0f64;
            for start in 0..n {
                let mut stack = vec![(start, 1u32 << start, time[start], 0i32)];
                while let Some((at, seen, total, batches)) = stack.pop() {
                    for e in g.after(at) {
                        let (to, d) = (e.to as usize, batches + e.distance);
                        if to == start {
                            best = best.max(total as f64 / f64::from(d));
                        } else if seen >> to & 1 == 0 {
                            stack.push((to, seen | 1 << to, total + time[to], d));
                        }
                    }
                }
            }
            assert!((rec_mii(&g, &time).unwrap().time - best).abs() < 1e-9);
        }
    }
}
