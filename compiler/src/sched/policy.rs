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
        limits.push(format!("memory: a rank needs {needs} even one batch at a time, {} has {has}", p.cluster.name));
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
    let slack: Vec<f64> = late.iter().zip(&early).map(|(l, e)| l - e).collect();
    let least = slack.iter().copied().fold(f64::INFINITY, f64::min);
    slack.iter().map(|s| s - least).collect()
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

fn search(p: &Problem<'_>, graph: &Graph, options: &Options, limits: &mut Vec<String>) -> Result<Candidate, SchedError> {
    let recurrence = bounds::recurrence(graph, &p.time)
        .map_err(|_| SchedError::Defect("the strategy waits for itself".into()))?
        .time;
    let bound = recurrence.max(p.resource.time as f64);
    let least = p.history + 1;
    let most = options.in_flight.map(|f| f.max(least));
    if let Some(asked) = options.in_flight.filter(|f| *f < least) {
        limits.push(format!("in flight: {asked} asked for, {least} are needed to tell rows apart"));
    }
    let mut best: Option<Candidate> = None;
    let mut too_large: Option<Candidate> = None;
    let mut step = bound;
    'rounds: for _ in 0..ROUNDS {
        let early = bounds::earliest(graph, &p.time, step * 1.0001);
        let need = (horizon(p, &early) / step).ceil() as u32;
        let full = (need + MORE).max(least);
        let mut depths: Vec<u32> = (need.max(least)..=full).collect();
        if let Some(most) = most {
            depths.iter_mut().for_each(|d| *d = (*d).min(most));
            depths.dedup();
        }
        let mut k = 0;
        while k < depths.len() {
            let depth = depths[k];
            k += 1;
            let c = attempt(p, graph, step, depth)?;
            let fits = c.memory <= p.cluster.memory && most.is_none_or(|m| c.in_flight <= m);
            if fits {
                if best.as_ref().is_none_or(|b| better(&c, b)) {
                    best = Some(c);
                }
            } else {
                if too_large.as_ref().is_none_or(|b| better(&c, b)) {
                    too_large = Some(c);
                }
                // Fewer batches at once, as long as there are fewer.
                let fewer = depths.iter().copied().min().unwrap_or(depth).saturating_sub(1);
                if k == depths.len() && fewer >= least && best.is_none() {
                    depths.push(fewer);
                }
            }
            if best.as_ref().is_some_and(|b| b.step <= bound * ENOUGH) {
                break 'rounds;
            }
        }
        step = best.as_ref().or(too_large.as_ref()).map_or(step, |b| b.step).max(bound);
    }
    if let Some(large) = &too_large {
        let fitting = best.as_ref().map(|b| b.step);
        if fitting.is_none_or(|b| large.step < b * 0.999) {
            limits.push(if large.memory > p.cluster.memory {
                format!(
                    "memory: {} batches at once would take {:.3} ms a step and {}, {} has {}",
                    large.in_flight,
                    large.step / 1e6,
                    human(large.memory),
                    p.cluster.name,
                    human(p.cluster.memory)
                )
            } else {
                format!(
                    "in flight: {} batches at once would take {:.3} ms a step",
                    large.in_flight,
                    large.step / 1e6
                )
            });
        }
    }
    match best {
        Some(best) => Ok(best),
        None => serial_order(p, graph),
    }
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
fn attempt(p: &Problem<'_>, graph: &Graph, step: f64, depth: u32) -> Result<Candidate, SchedError> {
    let pace = step * 1.0001;
    let early = bounds::earliest(graph, &p.time, pace);
    let late = bounds::latest(graph, &p.time, pace, horizon(p, &early));
    let slack = {
        let slack: Vec<f64> = late.iter().zip(&early).map(|(l, e)| l - e).collect();
        let least = slack.iter().copied().fold(f64::INFINITY, f64::min);
        slack.iter().map(|s| s - least).collect::<Vec<f64>>()
    };
    let tiers = tiers(p, &slack, step);
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
    let period = ((mean(last) - mean(first)) / (last - first) as f64).ceil().max(step.floor());
    let position = (0..n).map(|i| times.start(i, last) as i64).collect();
    Candidate::build(p, graph, position, period as i64, tiers, true)
}
