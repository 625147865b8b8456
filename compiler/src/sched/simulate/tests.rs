//! Simulations of a few operations, and of random ones beside a plain simulation.

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
        queue: &[0, 1, 2],
        hold: &[0; 3],
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

/// Two transfers (0 and 1) that nothing joins, each 10 long and 30 under way, in one queue and in two; 2 waits for both.
fn under_way(priority: &[i32], queue: &[u16]) -> Timing {
    let g = graph(3, &[(0, 2, 0), (1, 2, 0)]).lagging(vec![30, 30, 0]);
    let (time, engine, chunk) = (&[10, 10, 5], &[3, 3, 1], &[0; 3]);
    let hold = &g.lag;
    let work = Tasks { graph: &g, time, engine, priority, queue, hold, chunk, in_flight: None };
    simulate(&work, &[0, 1, 2], 10, 1)
}

#[test]
fn a_queue_waits_for_what_is_under_way_and_its_engine_does_not() {
    let t = under_way(&[0; 3], &[0, 0, 1]);
    assert_eq!((t.end(0, 0), t.start(1, 0), t.end(1, 0), t.start(2, 0)), (10, 40, 50, 80));
    let t = under_way(&[1, 0, 0], &[0, 2, 1]);
    assert_eq!((t.end(0, 0), t.start(1, 0), t.end(1, 0), t.start(2, 0)), (10, 10, 20, 50));
}

/// Times of the same simulation with every edge, followed one instant after the other.
fn plainly(work: &Tasks<'_>, key: &[i64], ii: i64, batches: usize) -> (Vec<u64>, Vec<u64>) {
    let n = work.graph.n;
    let (mut start, mut end) = (vec![u64::MAX; n * batches], vec![u64::MAX; n * batches]);
    let mut rest: Vec<u64> = (0..n * batches).map(|i| work.time[i % n]).collect();
    let mut running: [Option<(usize, u64)>; ENGINES] = [None; ENGINES];
    let queues = work.queue.iter().max().map_or(0, |q| *q as usize + 1);
    let (mut free, mut interrupted) = (vec![0; queues], vec![None; queues]);
    for now in 0..100_000u64 {
        for slot in &mut running {
            if let Some((i, since)) = *slot
                && now - since == rest[i]
            {
                end[i] = now;
                free[work.queue[i % n] as usize] = now + work.hold[i % n];
                *slot = None;
            }
        }
        let gone = |i: usize, end: &[u64]| end[i].saturating_add(work.graph.lag[i % n]) <= now;
        let ready = |i: usize, end: &[u64]| {
            let (op, m) = (i % n, (i / n) as i64);
            let edges = work.graph.before(op).iter().all(|e| {
                let before = m - i64::from(e.distance);
                !(0..batches as i64).contains(&before) || gone(before as usize * n + e.from as usize, end)
            });
            let whole = |m: usize| (m * n..(m + 1) * n).all(|i| gone(i, end));
            let room =
                work.in_flight.is_none_or(|(load, f)| op != load || m < f as i64 || whole(m as usize - f));
            edges && room
        };
        for (e, slot) in running.iter_mut().enumerate() {
            let waits = (0..n * batches).filter(|i| {
                let idle = slot.is_none_or(|(other, _)| other != *i);
                let queue = work.queue[i % n] as usize;
                let next = free[queue] <= now && interrupted[queue].is_none_or(|other| other == *i);
                work.engine[i % n] as usize == e && end[*i] == u64::MAX && idle && next && ready(*i, &end)
            });
            let first = waits.min_by_key(|i| (-work.priority[i % n], key[i % n] + (i / n) as i64 * ii, *i));
            let Some(first) = first else { continue };
            if let Some((i, since)) = *slot {
                let chunk = work.chunk[i % n];
                let urgent = work.priority[first % n] > work.priority[i % n];
                if chunk == 0 || !urgent || now == since || (now - since) % chunk != 0 {
                    continue;
                }
                rest[i] -= now - since;
                interrupted[work.queue[i % n] as usize] = Some(i);
            }
            interrupted[work.queue[first % n] as usize].take_if(|other| *other == first);
            start[first] = start[first].min(now);
            *slot = Some((first, now));
        }
        if end.iter().all(|t| *t != u64::MAX) {
            break;
        }
    }
    (start, end)
}

/// Operations of a step that are drawn at random, with a load and one batch that is looked at ahead.
struct Drawn {
    graph: Graph,
    time: Vec<u64>,
    engine: Vec<u8>,
    priority: Vec<i32>,
    queue: Vec<u16>,
    /// Less than others wait, or more.
    hold: Vec<u64>,
    chunk: Vec<u64>,
    key: Vec<i64>,
    depth: usize,
}

impl Drawn {
    /// With everything behind the load of its batch, or not.
    fn of(next: &mut dyn FnMut(u64) -> u64, n: usize, loaded: bool) -> Self {
        let behind = |i: u32| (0, i, 0);
        let mut edges: Vec<(u32, u32, i32)> = (1..n as u32).filter(|_| loaded).map(behind).collect();
        for _ in 0..11 + n {
            let (a, b) = (1 + next(n as u64 - 1) as u32, 1 + next(n as u64 - 1) as u32);
            edges.push((a, b, i32::from(a >= b) + next(2) as i32));
        }
        edges.extend([(0, 1, 0), (0, 2, -1), (0, 0, 1), (1, 2, 0)]);
        let lag = (0..n).map(|_| next(9).saturating_sub(4)).collect();
        let graph = graph(n, &edges).lagging(lag);
        let mut draw = |from: u64, below: u64| (0..n).map(|_| from + next(below)).collect::<Vec<u64>>();
        let time = draw(1, 12);
        let engine: Vec<u8> = draw(0, 3).into_iter().map(|e| e as u8).collect();
        let priority: Vec<i32> = draw(0, 3).into_iter().map(|p| p as i32 - 1).collect();
        let queue = engine.iter().zip(&priority).map(|(e, p)| u16::from(*e) * 3 + (*p + 1) as u16);
        let queue: Vec<u16> = queue.collect();
        let chunk = draw(0, 5);
        let hold = draw(0, 9).iter().map(|h| h.saturating_sub(4)).collect();
        let key = draw(0, 60).into_iter().map(|k| k as i64 - 30).collect();
        let depth = 2 + next(2) as usize;
        Self { graph, time, engine, priority, queue, hold, chunk, key, depth }
    }

    fn work(&self) -> Tasks<'_> {
        Tasks {
            graph: &self.graph,
            time: &self.time,
            engine: &self.engine,
            priority: &self.priority,
            queue: &self.queue,
            hold: &self.hold,
            chunk: &self.chunk,
            in_flight: Some((0, self.depth)),
        }
    }
}

/// Numbers below others.
fn random(mut state: u64) -> impl FnMut(u64) -> u64 {
    move |n| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % n
    }
}

/// What repeats itself is not simulated, and all times are those of simulating more batches than are looked at.
#[test]
fn what_repeats_itself_goes_on_so() {
    const BATCHES: usize = 24;
    let mut next = random(3);
    let (mut repeated, mut interrupted, mut lagged, mut free) = (0, 0, 0, 0);
    for _ in 0..4000 {
        let n = 3 + [next(6), next(60)][next(2) as usize] as usize;
        // What is behind no load runs ahead, as far as there are batches.
        let loaded = next(4) > 0;
        let drawn = Drawn::of(&mut next, n, loaded);
        let work = drawn.work();
        // As many as a step takes, or fewer or more.
        let ii = 1 + next(40) as i64;
        let [some, all] = [BATCHES, 2 * BATCHES].map(|batches| simulate(&work, &drawn.key, ii, batches));
        let mut simulator = Simulator::new(&work, BATCHES);
        for until in [None, Some([3, BATCHES - 8])] {
            let times = match until {
                None => simulator.run_on(&drawn.key, ii),
                Some(until) => simulator.run_until(&drawn.key, ii, until),
            };
            // What does not repeat itself before the last batch has begun is simulated to the end.
            let repeats = times.simulated < BATCHES;
            let known = until.map_or(BATCHES, |[_, last]| last + 1) * n;
            let (some, all) = (&some, if repeats { &all } else { &some });
            let same = |other: &Timing| times.start[..known] == other.start[..known];
            match until {
                None => assert!(same(all)),
                // An end of so many batches is none to those that are looked at.
                Some(_) if loaded => assert!(same(some)),
                // It may have been stopped by either.
                Some(_) => assert!(same(some) || same(all)),
            }
            if repeats && until.is_none() {
                repeated += 1;
                free += usize::from(!loaded);
                interrupted += usize::from((0..n).any(|i| all.end(i, 20) - all.start(i, 20) > drawn.time[i]));
                lagged += usize::from(drawn.graph.lag.iter().any(|lag| *lag > 0));
                assert_eq!(times.end[..known], all.end[..known]);
            }
        }
    }
    let told = format!(
        "{repeated} of 4000, {interrupted} with interruptions, {lagged} with lags, {free} without a load"
    );
    eprintln!("{told}");
    assert!(repeated > 2000 && interrupted > 300 && lagged > 1000 && free > 100, "{told}");
}

#[test]
fn all_times_are_those_of_a_plain_simulation() {
    let mut next = random(11);
    let mut fewer = 0;
    for _ in 0..300 {
        let n = 7;
        let drawn = Drawn::of(&mut next, n, false);
        let (work, key) = (drawn.work(), drawn.key.clone());
        fewer += implied(&drawn.graph).len();
        let (start, end) = plainly(&work, &key, 20, 6);
        let mut simulator = Simulator::new(&work, 6);
        // Another run before leaves nothing behind.
        simulator.run(&vec![0; n], 3);
        let times = simulator.run(&key, 20);
        assert_eq!((&times.start, &times.end), (&start, &end));
        // Nor does one that was stopped.
        simulator.run_until(&key, 20, [1, 3]);
        let times = simulator.run(&key, 20);
        assert_eq!((&times.start, &times.end), (&start, &end));
    }
    assert!(fewer > 100, "{fewer} edges were left out");
}

/// A finished list has its queues as edges: where operations come in the order in which a search found them, all times are
/// those of the search.
#[test]
fn edges_between_the_operations_of_a_queue_change_nothing() {
    let mut next = random(5);
    let (mut held, n) = (0, 24);
    for _ in 0..300 {
        let edges: Vec<(u32, u32, i32)> = (0..20)
            .map(|_| (next(n as u64) as u32, next(n as u64) as u32))
            .filter(|(a, b)| a < b)
            .map(|(a, b)| (a, b, 0))
            .collect();
        let lag: Vec<u64> = (0..n).map(|_| next(40).saturating_sub(20)).collect();
        let mut draw = |from: u64, below: u64| (0..n).map(|_| from + next(below)).collect::<Vec<u64>>();
        let (time, chunk) = (draw(1, 12), draw(0, 5));
        let engine: Vec<u8> = draw(0, 3).into_iter().map(|e| e as u8).collect();
        let priority: Vec<i32> = draw(0, 3).into_iter().map(|p| p as i32 - 1).collect();
        let queue = engine.iter().zip(&priority).map(|(e, p)| u16::from(*e) * 3 + (*p + 1) as u16);
        let queue: Vec<u16> = queue.collect();
        let key: Vec<i64> = draw(0, 60).into_iter().map(|k| k as i64).collect();
        let work = |graph: &Graph, queue: &[u16]| {
            let (time, engine, priority, chunk) = (&time, &engine, &priority, &chunk);
            let hold = &graph.lag;
            let work = Tasks { graph, time, engine, priority, queue, hold, chunk, in_flight: None };
            simulate(&work, &key, 0, 1)
        };
        let found = work(&graph(n, &edges).lagging(lag.clone()), &queue);
        let mut order: Vec<u32> = (0..n as u32).collect();
        order.sort_by_key(|i| (queue[*i as usize], found.start(*i as usize, 0)));
        let pairs = order.windows(2).filter(|w| queue[w[0] as usize] == queue[w[1] as usize]);
        let list: Vec<(u32, u32, i32)> = pairs.map(|w| (w[0], w[1], 0)).collect();
        held += list
            .iter()
            .filter(|(a, b, _)| {
                let free = found.end(*a as usize, 0) + lag[*a as usize];
                lag[*a as usize] > 0 && found.start(*b as usize, 0) == free
            })
            .count();
        let all = graph(n, &[edges, list].concat()).lagging(lag);
        let alone: Vec<u16> = (0..n as u16).collect();
        let finished = work(&all, &alone);
        assert_eq!((&finished.start, &finished.end), (&found.start, &found.end));
    }
    assert!(held > 500, "{held} operations waited for what was under way in their queue");
}

#[test]
fn a_pipeline_of_two_engines_reaches_the_busier_ones_pace() {
    let g = graph(2, &[(0, 1, 0), (0, 0, 1), (1, 1, 1)]);
    let work = Tasks {
        graph: &g,
        time: &[30, 50],
        engine: &[0, 1],
        priority: &[0, 0],
        queue: &[0, 1],
        hold: &[0; 2],
        chunk: &[0, 0],
        in_flight: Some((0, 2)),
    };
    let t = simulate(&work, &[0, 1], 50, 10);
    assert_eq!(t.start(1, 9) - t.start(1, 8), 50);
    let alone = Tasks { in_flight: Some((0, 1)), ..work };
    let t = simulate(&alone, &[0, 1], 50, 10);
    assert_eq!(t.start(1, 9) - t.start(1, 8), 80, "one batch at a time leaves nothing to overlap");
}
