//! What goes first.
//!
//! With steps of a given length every operation has an earliest and a latest start in its batch (longest paths over
//! all dependencies). Their difference is its slack. The engines are played forward over many batches at once, each
//! taking the ready operation whose latest start, in absolute time, comes first: rows that somebody waits for before
//! others, and work ahead and behind where nothing is urgent. Transfers with little slack are a tier of their own that
//! passes the others between chunks.
//!
//! A play gives a pace; with that pace the slacks are found again, for some rounds, with more and fewer batches in
//! flight. The best step that the limits allow is kept.

use fs_schedule::{Engine, Strategy};

use super::bounds;
use super::candidate::{Candidate, Tiers, reaches_back};
use super::graph::{Edge, Graph, Why};
use super::limits::human;
use super::modulo::{Demand, place};
use super::play::{Work, play};
use super::problem::Problem;
use super::{Options, SchedError};

/// Share of a step below which slack is urgent.
const URGENT: f64 = 0.15;
/// Steps this close to a bound are not worth another search.
const ENOUGH: f64 = 1.005;
/// Rounds of play and slack.
const ROUNDS: usize = 3;
/// Batches in flight beyond those needed that are tried.
const MORE: u32 = 2;
/// Instances that one play may have.
const INSTANCES: usize = 1_500_000;

/// The outcome of the search.
#[derive(Debug)]
pub struct Chosen {
    /// The step.
    pub candidate: Candidate,
    /// What kept it from being better, in sentences.
    pub limits: Vec<String>,
    /// Slack of each operation at the step's own pace, in nanoseconds, above that of the most urgent.
    pub slack: Vec<f64>,
}

/// Schedules a program.
pub fn choose(p: &Problem<'_>, options: &Options) -> Result<Chosen, SchedError> {
    let graph = p.strategy_graph(options.strategy);
    let mut limits = Vec::new();
    let candidate = match options.strategy {
        Strategy::Serial => {
            limits.push("strategy serial: everything waits for each transfer".into());
            serial(p)?
        }
        _ => search(p, &graph, options, &mut limits)?,
    };
    if candidate.memory > p.cluster.memory {
        let (needs, has) = (human(candidate.memory), human(p.cluster.memory));
        limits.push(format!(
            "memory: a rank needs {needs} even one batch at a time, {} has {has}",
            p.cluster.name
        ));
    }
    let slack = slack(p, &graph, candidate.step);
    Ok(Chosen { candidate, limits, slack })
}

/// One batch after the other, in reference order.
fn serial(p: &Problem<'_>) -> Result<Candidate, SchedError> {
    let mut at = 0;
    let position: Vec<i64> = p
        .time
        .iter()
        .map(|t| {
            at += *t as i64;
            at - *t as i64
        })
        .collect();
    let graph = p.strategy_graph(Strategy::Serial);
    Candidate::build(p, &graph, position, at, Tiers::flat(p.time.len()), false)
}

/// Slack of every operation if steps take `step`, less the least.
fn slack(p: &Problem<'_>, graph: &Graph, step: f64) -> Vec<f64> {
    let early = bounds::earliest(graph, &p.time, step);
    let late = bounds::latest(graph, &p.time, step, horizon(p, &early));
    spread(&early, &late)
}

fn horizon(p: &Problem<'_>, early: &[f64]) -> f64 {
    early.iter().zip(&p.time).map(|(e, t)| e + *t as f64).fold(0.0, f64::max)
}

/// Transfers with little slack pass the others.
fn tiers(p: &Problem<'_>, slack: &[f64], step: f64) -> Tiers {
    let n = p.time.len();
    let transfer = |i: usize| matches!(p.engine[i], Engine::CopyOut | Engine::NicSend);
    let urgent = |i: usize| slack[i] < URGENT * step;
    let mixed = (0..n).any(|i| transfer(i) && urgent(i)) && (0..n).any(|i| transfer(i) && !urgent(i));
    let mut tiers = Tiers::flat(n);
    if !mixed {
        return tiers;
    }
    let bytes = p.machine.chunk(step / 1e9);
    for i in (0..n).filter(|i| transfer(*i)) {
        if urgent(i) {
            tiers.priority[i] = 1;
        } else if p.wire[i] > bytes as f64 {
            tiers.chunk[i] = Some(bytes);
            tiers.chunk_time[i] = ((p.time[i] as f64 * bytes as f64 / p.wire[i]) as u64).max(1);
        }
    }
    tiers
}

/// Factors by which a period exceeds its bound, tried in turn.
const STRETCH: [f64; 12] = [1.0, 1.002, 1.005, 1.01, 1.015, 1.02, 1.03, 1.04, 1.06, 1.08, 1.12, 1.2];
/// Orders of placement that are tried for each period.
const TRIES: usize = 40;
/// Operations up to which placement on a circle is tried: its cost grows with their square.
const CIRCLE: usize = 4000;

fn search(
    p: &Problem<'_>,
    graph: &Graph,
    options: &Options,
    limits: &mut Vec<String>,
) -> Result<Candidate, SchedError> {
    let least = p.history + 1;
    if let Some(asked) = options.in_flight.filter(|f| *f < least) {
        limits.push(format!("in flight: {asked} asked for, {least} are needed to tell rows apart"));
    }
    let most = options.in_flight.map(|f| f.max(least));
    // Without limits first; if that holds too much, with fewer and fewer batches at once.
    let free = at_depth(p, graph, None)?;
    let fits = |c: &Candidate| c.memory <= p.cluster.memory && most.is_none_or(|m| c.in_flight <= m);
    if fits(&free) {
        return Ok(free);
    }
    let mut found = None;
    let mut depth = most.unwrap_or(free.in_flight).min(free.in_flight);
    while depth >= least && found.is_none() {
        found = Some(at_depth(p, graph, Some(depth))?).filter(fits);
        depth -= 1;
    }
    let slower = found.as_ref().is_none_or(|c| c.step > free.step * 1.001);
    if slower && free.memory > p.cluster.memory {
        limits.push(format!(
            "memory: {} batches at once would take {:.3} ms a step and {}, {} has {}",
            free.in_flight,
            free.step / 1e6,
            human(free.memory),
            p.cluster.name,
            human(p.cluster.memory)
        ));
    } else if slower {
        limits.push(format!(
            "in flight: {} batches at once would take {:.3} ms a step",
            free.in_flight,
            free.step / 1e6
        ));
    }
    found.map_or_else(|| serial_order(p, graph), Ok)
}

/// The best step with at most so many batches in flight, memory aside.
fn at_depth(p: &Problem<'_>, graph: &Graph, depth: Option<u32>) -> Result<Candidate, SchedError> {
    let held = depth.and_then(|d| Some((d, p.load?))).map(|(d, load)| {
        let ops = p.s.train.ops.iter().enumerate();
        ops.map(move |(i, op)| Edge {
            from: i as u32,
            to: load as u32,
            distance: d as i32 + reaches_back(op),
            why: Why::InFlight,
        })
    });
    let held = held.map(|edges| graph.with(edges));
    let graph = held.as_ref().unwrap_or(graph);
    let recurrence = bounds::recurrence(graph, &p.time)
        .map_err(|_| SchedError::Defect("the strategy waits for itself".into()))?
        .time;
    let bound = recurrence.max(p.resource.time as f64);
    let mut best: Option<Candidate> = None;
    let keep = |c: Candidate, best: &mut Option<Candidate>| {
        if best.as_ref().is_none_or(|b| better(&c, b)) {
            *best = Some(c);
        }
    };
    if p.time.len() <= CIRCLE {
        for stretch in STRETCH {
            let found = on_a_circle(p, graph, (bound * stretch).ceil())?;
            if let Some(c) = found {
                keep(c, &mut best);
                break;
            }
        }
    }
    let mut step = bound;
    for _ in 0..ROUNDS {
        if best.as_ref().is_some_and(|b| b.step <= bound * ENOUGH) {
            break;
        }
        let early = bounds::earliest(graph, &p.time, step * 1.0001);
        let need = ((horizon(p, &early) / step).ceil() as u32).max(p.history + 1);
        let mut depths: Vec<u32> =
            (need..=need + MORE).map(|d| depth.map_or(d, |most| d.min(most))).collect();
        depths.dedup();
        for depth in depths {
            keep(attempt(p, graph, step, bound, depth)?, &mut best);
        }
        step = best.as_ref().map_or(step, |b| b.step).max(bound);
    }
    best.ok_or_else(|| SchedError::Defect("no play gave a step".into()))
}

/// Places one batch on a circle of this period, operations with the least slack first.
fn on_a_circle(p: &Problem<'_>, graph: &Graph, period: f64) -> Result<Option<Candidate>, SchedError> {
    let early = bounds::earliest(graph, &p.time, period);
    let late = bounds::latest(graph, &p.time, period, horizon(p, &early));
    let slack = spread(&early, &late);
    let tiers = tiers(p, &slack, period);
    let mut order: Vec<u32> = (0..p.time.len() as u32).collect();
    // Slack in coarse steps: within one of them, what comes first is placed first.
    let key = |i: &u32| ((slack[*i as usize] / (period * 0.02)) as i64, early[*i as usize] as i64, *i);
    order.sort_by_key(key);
    let engine: Vec<u8> = p.engine.iter().map(|e| *e as u8).collect();
    let demand = Demand {
        graph,
        time: &p.time,
        engine: &engine,
        early: &early,
        ahead: &p.ahead,
        tight: (period * 0.02) as i64,
    };
    match place(&demand, &order, period as i64, TRIES) {
        None => Ok(None),
        Some(position) => Candidate::build(p, graph, position, period as i64, tiers, true).map(Some),
    }
}

/// Slack above the least.
fn spread(early: &[f64], late: &[f64]) -> Vec<f64> {
    let slack: Vec<f64> = late.iter().zip(early).map(|(l, e)| l - e).collect();
    let least = slack.iter().copied().fold(f64::INFINITY, f64::min);
    slack.iter().map(|s| s - least).collect()
}

/// A better step; of about equal ones the one that holds less.
fn better(a: &Candidate, b: &Candidate) -> bool {
    let much = 0.002 * a.step.min(b.step);
    if (a.step - b.step).abs() > much {
        return a.step < b.step;
    }
    (a.in_flight, a.memory) < (b.in_flight, b.memory)
}

/// The operations of a batch one after the other, if nothing else fits.
fn serial_order(p: &Problem<'_>, graph: &Graph) -> Result<Candidate, SchedError> {
    let mut at = 0;
    let mut position = Vec::with_capacity(p.time.len());
    for t in &p.time {
        position.push(at);
        at += *t as i64;
    }
    Candidate::build(p, graph, position, at, Tiers::flat(p.time.len()), true)
}

/// Plays with slacks of a pace and so many batches in flight, and freezes what comes out.
fn attempt(
    p: &Problem<'_>,
    graph: &Graph,
    step: f64,
    bound: f64,
    depth: u32,
) -> Result<Candidate, SchedError> {
    let pace = step * 1.0001;
    let early = bounds::earliest(graph, &p.time, pace);
    let late = bounds::latest(graph, &p.time, pace, horizon(p, &early));
    let tiers = tiers(p, &spread(&early, &late), step);
    let key: Vec<i64> = late.iter().map(|l| *l as i64).collect();
    let engine: Vec<u8> = p.engine.iter().map(|e| *e as u8).collect();
    // Operations that read batches before their own keep those in flight.
    let held = p.s.train.ops.iter().enumerate().filter_map(|(i, op)| {
        let back = reaches_back(op);
        let load = p.load?;
        (back < 0).then_some(Edge {
            from: i as u32,
            to: load as u32,
            distance: depth as i32 + back,
            why: Why::InFlight,
        })
    });
    let played = graph.with(held);
    let work = Work {
        graph: &played,
        time: &p.time,
        engine: &engine,
        priority: &tiers.priority,
        chunk: &tiers.chunk_time,
        in_flight: p.load.map(|l| (l, depth as usize)),
    };
    let depth = depth as usize;
    let wanted = 3 * depth + 10;
    let batches = wanted.min((INSTANCES / p.time.len().max(1)).max(2 * depth + 4));
    let times = play(&work, &key, pace as i64, batches);
    let n = p.time.len();
    let mean = |m: usize| (0..n).map(|i| times.start(i, m) as f64).sum::<f64>() / n.max(1) as f64;
    let last = batches - 1 - depth;
    let first = (depth + 1).min(last - 1);
    let period = ((mean(last) - mean(first)) / (last - first) as f64).ceil().max(bound.ceil());
    let position = (0..n).map(|i| times.start(i, last) as i64).collect();
    Candidate::build(p, graph, position, period as i64, tiers, true)
}
