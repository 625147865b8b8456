//! A bound of the busiest engine and of recurrences together.
//!
//! ResMII knows nothing of what must wait for a transfer, RecMII nothing of what shares an engine. Take two operations of other
//! engines, a and b, and a chain of dependencies from the start of a to the end of b, `long` nanoseconds over `crossed` batches. What the busiest engine
//! does after b and before the a of `batches` batches later, whatever the order, fits between the two, one after the other:
//!
//! `long + sum of its times <= batches * II`
//!
//! An operation x is after b by so many batches as the shortest chain of dependencies from b to x has, and before a likewise; of
//! the instances between both, each counts. So sums of dense gradients with many hops bound a step although neither their cycle nor
//! compute's work does: all of a layer's gradients are made between the end of one sum and the start of the next.

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

/// The bound, if it is more than `known` nanoseconds, which no cycle may exceed.
pub(crate) fn joint(
    graph: &Graph,
    time: &[u64],
    engine: &[Engine],
    busiest: Engine,
    known: f64,
) -> Option<Joint> {
    let ends: Vec<usize> = (0..graph.n).filter(|i| engine[*i] != busiest).collect();
    if graph.n > OPERATIONS || ends.len() > ENDS {
        return None;
    }
    let work: Vec<usize> = (0..graph.n).filter(|i| engine[*i] == busiest).collect();
    let after: Vec<Vec<i64>> = ends.iter().map(|b| batches(graph, *b, false)).collect();
    let before: Vec<Vec<i64>> = ends.iter().map(|a| batches(graph, *a, true)).collect();
    // By chain's ends: what the busiest engine does between b and the a of `n` batches later, and the fewest n with any.
    let between = |a: usize, b: usize, n: i64| -> f64 {
        let one = |x: &usize| match (after[b][*x], before[a][*x]) {
            (NEVER, _) | (_, NEVER) => 0.0,
            (after, before) => (n - after - before + 1).max(0) as f64 * time[*x] as f64,
        };
        work.iter().map(one).sum()
    };
    let mut best = Joint { time: known, ends: (0, 0) };
    for _ in 0..ROUNDS {
        let ii = best.time;
        for (at, a) in ends.iter().enumerate() {
            let found = chains(graph, time, *a, ii)?;
            for (to, b) in ends.iter().enumerate() {
                let Some((long, crossed)) = found[*b] else { continue };
                let long = long + graph.until(time, *b);
                let apart = after[to][*a];
                if apart == NEVER {
                    continue;
                }
                for n in [apart, apart + 1] {
                    let (steps, work) = (n + crossed, between(at, to, n));
                    // Without any, nothing says that the first waits for the second, or a cycle does.
                    if steps < 1 || work == 0.0 {
                        continue;
                    }
                    let least = (long + work) / steps as f64;
                    if least > best.time + LEAST {
                        best = Joint { time: least, ends: (*a as u32, *b as u32) };
                    }
                }
            }
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
            let n = 5;
            let time: Vec<u64> = (0..n).map(|_| 1 + next(3)).collect();
            let engine: Vec<Engine> =
                (0..n).map(|i| if i < 3 { Engine::Compute } else { Engine::CopyOut }).collect();
            let lag: Vec<u64> = (0..n).map(|i| if i < 3 { 0 } else { next(6) }).collect();
            let mut edges = Vec::new();
            // Most of compute before the first transfer of its batch, and after that of the batch before.
            for i in 0..3 {
                edges.extend((next(4) > 0).then_some((i, 3, 0)));
                edges.extend((next(4) > 0).then_some((3, i, 1)));
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
