//! A bound of an engine and of recurrences together.
//!
//! ResMII knows nothing of what must wait for a transfer, RecMII nothing of what shares an engine. Take two operations of other
//! engines, a and b. What an engine must do after b and before the a of n batches later, whatever the order, fits between the
//! two, one after the other, so that a starts no earlier than
//!
//! `the end of b + the sum of its times - n * II`.
//!
//! That is an edge as dependencies are, from b to a, and cycles of such edges and of chains of dependencies bound a step as any
//! cycle does: nanoseconds over batches.
//!
//! An operation x is after b by so many batches as the shortest chain of dependencies from b to x has, and before a likewise; of
//! the instances between both, each counts. So sums of dense gradients with many hops bound a step although neither their cycle nor
//! compute's work does: all of a layer's gradients are made between the end of one sum and the start of the next. And rows that are
//! updated and looked up in parts, between gradients that arrive together and rows that leave together, take the time of all parts.

use fs_schedule::Engine;

use super::graph::Graph;

/// What a step cannot be shorter than.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Joint {
    /// Nanoseconds per step.
    pub time: f64,
    /// Where the chain starts and ends.
    pub ends: (u32, u32),
}

/// Operations up to which the bound is looked for, and of other engines than the busiest.
const OPERATIONS: usize = 1200;
const ENDS: usize = 80;
/// Times that chains are looked for again, with the bound that was found.
const ROUNDS: usize = 8;
/// Less is rounding.
const LEAST: f64 = 1.0;
/// No chain leads there.
const NEVER: i64 = i64::MAX / 4;

/// The longest chain from one operation, to each: nanoseconds and batches.
fn chains(graph: &Graph, time: &[u64], from: usize, ii: f64) -> Option<Vec<Option<(f64, i64)>>> {
    let mut found: Vec<Option<(f64, i64)>> = vec![None; graph.n];
    found[from] = Some((0.0, 0));
    let worth = |(long, batches): (f64, i64)| long - ii * batches as f64;
    for _ in 0..graph.n {
        let mut changed = false;
        for e in &graph.edges {
            let Some((long, batches)) = found[e.from as usize] else { continue };
            let next = (long + graph.until(time, e.from as usize), batches + i64::from(e.distance));
            let known = &mut found[e.to as usize];
            if known.is_none_or(|known| worth(next) > worth(known) + 1e-3) {
                *known = Some(next);
                changed = true;
            }
        }
        if !changed {
            return Some(found);
        }
    }
    None
}

/// The fewest batches by which each operation is after one, or before it.
fn batches(graph: &Graph, of: usize, before: bool) -> Vec<i64> {
    let mut found = vec![NEVER; graph.n];
    found[of] = 0;
    loop {
        let mut changed = false;
        for e in &graph.edges {
            let (near, far) = if before { (e.to, e.from) } else { (e.from, e.to) };
            if found[near as usize] < NEVER {
                let next = found[near as usize] + i64::from(e.distance);
                if next < found[far as usize] {
                    found[far as usize] = next;
                    changed = true;
                }
            }
        }
        if !changed {
            return found;
        }
    }
}

/// That `to` starts `time` nanoseconds after `from` or later, so many batches on. Both are places among the ends.
struct Arc {
    from: usize,
    to: usize,
    time: f64,
    batches: i64,
    /// Of dependencies; else of an engine's work.
    chain: bool,
}

/// Nanoseconds and batches of a cycle, and where its longest chain starts and ends.
type Cycle = ((f64, i64), (usize, usize));

/// A cycle that takes longer than `ii` nanoseconds a batch.
fn longer(arcs: &[Arc], n: usize, ii: f64) -> Option<Cycle> {
    let mut late = vec![0.0; n];
    let mut by: Vec<Option<usize>> = vec![None; n];
    let mut last = None;
    for _ in 0..=n {
        last = None;
        for (i, arc) in arcs.iter().enumerate() {
            let next = late[arc.from] + arc.time - ii * arc.batches as f64;
            if next > late[arc.to] + 1e-3 {
                (late[arc.to], by[arc.to], last) = (next, Some(i), Some(arc.to));
            }
        }
        last?;
    }
    // So many steps back is on the cycle.
    let before = |at: usize| by[at].map(|i| arcs[i].from);
    let start = (0..n).try_fold(last?, |at, _| before(at))?;
    let (mut at, mut sum, mut longest) = (start, (0.0, 0), (f64::NEG_INFINITY, (start, start)));
    loop {
        let arc = &arcs[by[at]?];
        sum = (sum.0 + arc.time, sum.1 + arc.batches);
        if arc.chain && arc.time > longest.0 {
            longest = (arc.time, (arc.from, arc.to));
        }
        at = arc.from;
        if at == start {
            return Some((sum, longest.1));
        }
    }
}

/// The bound with what one engine does, if it is more than `known` nanoseconds, which no cycle of dependencies may exceed.
pub(crate) fn joint(
    graph: &Graph,
    time: &[u64],
    engine: &[Engine],
    works: Engine,
    known: f64,
) -> Option<Joint> {
    let ends: Vec<usize> = (0..graph.n).filter(|i| engine[*i] != works).collect();
    if graph.n > OPERATIONS || ends.len() > ENDS {
        return None;
    }
    let work: Vec<usize> = (0..graph.n).filter(|i| engine[*i] == works).collect();
    let after: Vec<Vec<i64>> = ends.iter().map(|b| batches(graph, *b, false)).collect();
    let before: Vec<Vec<i64>> = ends.iter().map(|a| batches(graph, *a, true)).collect();
    // By the ends' places: what the engine does between b and the a of `n` batches later.
    let between = |a: usize, b: usize, n: i64| -> f64 {
        let one = |x: &usize| match (after[b][*x], before[a][*x]) {
            (NEVER, _) | (_, NEVER) => 0.0,
            (after, before) => (n - after - before + 1).max(0) as f64 * time[*x] as f64,
        };
        work.iter().map(one).sum()
    };
    let mut arcs = Vec::new();
    for b in 0..ends.len() {
        for a in 0..ends.len() {
            let apart = after[b][ends[a]];
            if apart == NEVER {
                continue;
            }
            for n in [apart, apart + 1] {
                let between = between(a, b, n);
                // Without any, dependencies say as much.
                if between > 0.0 {
                    let time = graph.until(time, ends[b]) + between;
                    arcs.push(Arc { from: b, to: a, time, batches: n, chain: false });
                }
            }
        }
    }
    let worked = arcs.len();
    let mut best = Joint { time: known, ends: (0, 0) };
    for _ in 0..ROUNDS {
        let ii = best.time;
        arcs.truncate(worked);
        for (from, a) in ends.iter().enumerate() {
            let found = chains(graph, time, *a, ii)?;
            let to = ends.iter().enumerate().filter(|(to, _)| *to != from);
            arcs.extend(to.filter_map(|(to, b)| {
                let (time, batches) = found[*b]?;
                Some(Arc { from, to, time, batches, chain: true })
            }));
        }
        while let Some(((time, batches), (from, to))) = longer(&arcs, ends.len(), best.time) {
            let least = time / batches as f64;
            if batches < 1 || least <= best.time + LEAST {
                break;
            }
            best = Joint { time: least, ends: (ends[from] as u32, ends[to] as u32) };
        }
        if best.time <= ii {
            break;
        }
    }
    (best.time > known).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::super::bounds::{rec_mii, res_mii};
    use super::super::graph::{Edge, Why};
    use super::*;

    fn graph(n: usize, edges: &[(u32, u32, i32)], lag: Vec<u64>) -> Graph {
        let edge = |(from, to, distance): &(u32, u32, i32)| Edge {
            from: *from,
            to: *to,
            distance: *distance,
            why: Why::Data,
        };
        Graph::new(n, edges.iter().map(edge).collect()).lagging(lag)
    }

    /// Three operations of compute (0, 1, 2) between the sum (3) of a batch and the next, of which a chain has two; 4 needs none.
    #[test]
    fn what_lies_between_two_sums_takes_its_time() {
        let g = graph(
            5,
            &[(0, 1, 0), (0, 2, 0), (1, 3, 0), (2, 3, 0), (3, 0, 1), (4, 4, 1)],
            vec![0, 0, 0, 50, 0],
        );
        let time = [10, 20, 30, 5, 40];
        let engine = [Engine::Compute, Engine::Compute, Engine::Compute, Engine::CopyOut, Engine::Compute];
        let known = rec_mii(&g, &time).unwrap().time.max(res_mii(&engine, &time).time as f64);
        assert_eq!(known, 100.0);
        let found = joint(&g, &time, &engine, Engine::Compute, known).unwrap();
        assert_eq!(found, Joint { time: 115.0, ends: (3, 3) });
        // With less on the way compute is the bound.
        let g = g.lagging(vec![0, 0, 0, 30, 0]);
        assert_eq!(joint(&g, &time, &engine, Engine::Compute, 100.0), None);
    }

    /// Two transfers (0, 1) that two operations of compute each lie between, forwards (2, 3) and until the next batch (4, 5).
    #[test]
    fn work_on_both_ways_between_two_transfers_counts() {
        let edges = [(0, 2, 0), (0, 3, 0), (2, 1, 0), (3, 1, 0), (1, 4, 0), (1, 5, 0), (4, 0, 1), (5, 0, 1)];
        let g = graph(6, &edges, vec![0; 6]);
        let time = [100, 200, 10, 20, 30, 40];
        let mut engine = [Engine::Compute; 6];
        (engine[0], engine[1]) = (Engine::NicSend, Engine::NicReceive);
        let known = rec_mii(&g, &time).unwrap().time;
        assert_eq!(known, 360.0);
        let found = joint(&g, &time, &engine, Engine::Compute, known).unwrap();
        assert_eq!(found.time, 400.0);
    }

    /// No order of small random graphs is shorter: of all of them, each operation at each of some times.
    #[test]
    fn no_order_is_shorter() {
        let mut state = 11u64;
        let mut next = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        let (mut beyond, mut met) = (0, 0);
        for _ in 0..400 {
            let n = 5 + next(2) as usize;
            let time: Vec<u64> = (0..n).map(|_| 1 + next(3)).collect();
            let engine: Vec<Engine> =
                (0..n).map(|i| if i < 3 { Engine::Compute } else { Engine::CopyOut }).collect();
            let lag: Vec<u64> = (0..n).map(|i| if i < 3 { 0 } else { next(6) }).collect();
            let mut edges = Vec::new();
            // Most of compute before the first transfer of its batch, and after that, or the last, of the batch before.
            let last = 3 + next(n as u64 - 3) as u32;
            for i in 0..3 {
                edges.extend((next(4) > 0).then_some((i, 3, 0)));
                edges.extend((next(4) > 0).then_some((last, i, 1)));
            }
            for _ in 0..4 {
                let (a, b) = (next(n as u64) as u32, next(n as u64) as u32);
                edges.push((a, b, i32::from(a >= b) + i32::from(next(4) == 0)));
            }
            let g = graph(n, &edges, lag);
            let known = rec_mii(&g, &time).unwrap().time.max(res_mii(&engine, &time).time as f64);
            let Some(found) = joint(&g, &time, &engine, Engine::Compute, known) else { continue };
            beyond += 1;
            let shorter =
                (known.ceil() as i64..found.time.ceil() as i64).find(|ii| fits(&g, &time, &engine, *ii));
            assert_eq!(shorter, None, "{edges:?} {time:?} {:?}: not less than {found:?}", g.lag);
            met += usize::from(fits(&g, &time, &engine, found.time.ceil() as i64));
        }
        assert!(beyond > 20 && met * 2 > beyond, "{met} of {beyond}");
    }

    /// Whether steps of so many nanoseconds are possible: all ways in which compute's operations stand in a step, and then the earliest starts.
    fn fits(g: &Graph, time: &[u64], engine: &[Engine], ii: i64) -> bool {
        let work: Vec<usize> = (0..g.n).filter(|i| engine[*i] == Engine::Compute).collect();
        let places = (ii as u64).pow(work.len() as u32);
        (0..places).any(|mut code| {
            let at: Vec<i64> = work
                .iter()
                .map(|_| {
                    let place = code % ii as u64;
                    code /= ii as u64;
                    place as i64
                })
                .collect();
            let apart = |i: usize, j: usize| {
                let ahead = (at[j] - at[i]).rem_euclid(ii);
                ahead >= time[work[i]] as i64 && ii - ahead >= time[work[j]] as i64
            };
            let clash = (0..work.len()).any(|i| (i + 1..work.len()).any(|j| !apart(i, j)));
            !clash && starts(g, time, &work, &at, ii)
        })
    }

    /// Whether operations can start at these times modulo a step, all others at any.
    fn starts(g: &Graph, time: &[u64], work: &[usize], at: &[i64], ii: i64) -> bool {
        let mut start = vec![0i64; g.n];
        for (i, place) in work.iter().zip(at) {
            start[*i] = *place;
        }
        for _ in 0..40 {
            let mut changed = false;
            for e in &g.edges {
                let (from, to) = (e.from as usize, e.to as usize);
                let mut least = start[from] + g.until(time, from) as i64 - ii * i64::from(e.distance);
                if let Some(place) = work.iter().position(|w| *w == to) {
                    least += (at[place] - least).rem_euclid(ii);
                }
                if least > start[to] {
                    start[to] = least;
                    changed = true;
                }
            }
            if !changed {
                return true;
            }
        }
        false
    }
}
