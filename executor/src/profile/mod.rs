//! Measures what a model costs on this machine: [`measure`] runs a schedule and gives a [`Profile`], from which the
//! compiler predicts other schedules of the model.
//!
//! - The times of operations are those of [typical](mod@typical) batches on their slowest rank.
//! - Per kind of operation a [line](crate::fit) through all ranks' times tells what other sizes would take.
//! - Sizes and reuse distances are [counted](fs_data::count) in the data.
//! - So are costs of [samples](mod@samples), by which they are given to ranks.
//! - Kinds that the schedule does not run are [tried](probe) by themselves.
//! - With an emulated link the schedule runs with and without it: what it takes without is work of the processor, what
//!   the link adds are its latency and bandwidth.

mod probe;
mod samples;
mod typical;

use std::collections::BTreeMap;
use std::time::Instant;

use fs_schedule::profile::{self, Busiest, KindCost, LinkCost, OpCost, Overhead, Rows, Transfers, Work};
use fs_schedule::{Op, Profile, Schedule, Symbol};

use crate::data::count::Counter;
use crate::data::{GlobalBatch, Source};
use crate::error::Error;
use crate::fit::{Line, Point, fit, median};
use crate::runtime::plan::Plan;
use crate::runtime::record::Record;
use crate::session::Session;
use crate::step::StepEvent;
use typical::{Typical, typical};

/// Batches whose rows are counted.
const COUNTED: u64 = 12;
/// Points of one operation on a kind's line.
const BINS: usize = 4;
/// Sizes of a kind that are closer together than this tell nothing about its slope.
const SPREAD: f64 = 1.5;
/// Seconds of a call without work.
const NOTHING: f64 = 1e-6;
/// Greatest speed of a link: one that adds nothing.
const FASTEST: f64 = 1e15;

/// Steps of a profile, if nobody says how many.
pub const STEPS: std::ops::Range<u64> = 60..1000;
/// Seconds that they should take: other programs disturb short ones as a whole.
const SECONDS: f64 = 2.0;
/// Steps that are timed to find out.
const TIMED: u64 = 8;

/// A run with records.
struct Run {
    events: Vec<StepEvent>,
    records: Vec<Vec<Record>>,
}

/// Steps whose profile says enough: trains a few and takes their time.
pub fn enough(session: &mut Session<f32>) -> Result<u64, Error> {
    let events = session.advance(TIMED, &mut ())?;
    let each = median(events.iter().map(|e| e.seconds).collect());
    Ok(((SECONDS / each.max(1e-6)) as u64).clamp(STEPS.start, STEPS.end))
}

/// Runs a schedule for `steps` steps (and a few to warm up, and as many again without its emulated link) and gives
/// what it costs. The session has trained afterwards; steps that the data do not have cannot be measured.
pub fn measure(session: &mut Session<f32>, steps: u64) -> Result<Profile, Error> {
    if steps == 0 {
        return Err(Error::Settings("a profile needs at least one step".into()));
    }
    let schedule = session.shared_schedule();
    // One rank has nobody to talk to.
    let link = session.link().filter(|_| session.ranks() > 1);
    // Pipelines fill, caches and threads warm up.
    let edge = fill(&schedule) + 2;
    let with_link = run(session, steps, edge)?;
    let without = match link {
        Some(_) => {
            session.set_link(None);
            let outcome = run(session, steps, edge);
            session.set_link(link);
            Some(outcome?)
        }
        None => None,
    };
    let ranks = session.ranks();
    let engines = Plan::new(&schedule.train).engines;
    let times = typical(&schedule.train, &engines, &with_link.records);
    if times.instances.is_empty() {
        return Err(Error::Settings("the run was too short to measure; give more --steps".into()));
    }
    let first = times.instances.iter().map(|i| i.0).min().unwrap_or(0);
    let (source, seed) = session.source_and_seed();
    let counted = first..first + steps.min(COUNTED);
    let batch = seconds(source, counted.clone())?;
    let mut counter = Counter::new(&schedule, source, seed, ranks);
    let rows = counter.count(counted)?;
    let lengths = counter.sample_lengths(first..first + steps)?;
    let batches = counter.batch_sizes(&times.instances)?;
    let mut sizes = Sizes {
        mean: mean_sizes(&batches),
        rows: &rows,
        schedule: &schedule,
        ranks,
        busiest: Busiest::default(),
    };
    let busiest = sizes.of(&sizes.mean).busiest();
    sizes.busiest = busiest;
    let ops = op_costs(&schedule, &sizes, &times);
    let all: Vec<typical::Instance> =
        times.instances.iter().flat_map(|(step, _)| (0..ranks).map(|rank| (*step, rank))).collect();
    let each = counter.batch_sizes(&all)?;
    let per_instance: BTreeMap<typical::Instance, BTreeMap<Symbol, f64>> =
        all.into_iter().zip(each).collect();
    let mut points = kind_points(&schedule, &sizes, &with_link, &per_instance);
    for (kind, bytes, seconds) in probe::probes(&schedule, &rows, ranks) {
        // Measured in the run is better.
        if !ops.iter().any(|o| o.kind == kind) {
            points.entry(kind.to_owned()).or_default().push(Point { x: [1.0, 0.0, bytes], y: seconds });
        }
    }
    points.values_mut().for_each(anchor);
    let kinds = points.iter().filter_map(|(kind, points)| Some(kind_cost(kind, fit(points)?, points.len())));
    let alone = without.as_ref().map(|run| typical(&schedule.train, &engines, &run.records));
    let transfers = transfers(&schedule, &sizes, &times, alone.as_ref());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(Profile {
        format: profile::FORMAT.into(),
        version: profile::VERSION,
        model: schedule.model.clone(),
        shape: profile::shape(&schedule),
        ranks: ranks as u32,
        machine: format!("{ranks} ranks on {cores} cores"),
        link: link.map(|l| l.to_string()),
        strategy: schedule.strategy,
        microbatches: schedule.settings.microbatches.max(1),
        steps,
        step: median(with_link.events.iter().map(|e| e.seconds).collect()),
        scatter: scatter(with_link.events.iter().map(|e| e.seconds).collect()),
        kinds: kinds.collect(),
        sizes: sizes.mean.iter().map(|(s, n)| (s.to_string(), *n)).collect(),
        samples: samples::cost(schedule.lengths.len(), &per_instance, &times.worked),
        ops,
        transfers,
        overhead: Overhead { dispatch: times.dispatch, wake: times.wake },
        batch,
        sharing: ((2 * ranks) as f64 - cores as f64).max(0.0).min(ranks as f64) / ranks as f64,
        cores: Some(cores as u32),
        balanced: schedule.settings.balance.is_some(),
        lengths,
        rows,
    })
}

/// Median seconds of a core that producing one of these batches takes.
fn seconds(source: &mut dyn Source, steps: std::ops::Range<u64>) -> Result<f64, Error> {
    let mut batch = GlobalBatch::default();
    let mut each = Vec::new();
    for step in steps {
        let start = Instant::now();
        source.fill(step, &mut batch)?;
        each.push(start.elapsed().as_secs_f64());
    }
    Ok(median(each))
}

/// From the 10th to the 90th percentile, over the median.
fn scatter(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values.get((share * (values.len().saturating_sub(1)) as f64) as usize);
    let (low, high) = (at(0.1).copied().unwrap_or(0.0), at(0.9).copied().unwrap_or(0.0));
    (high - low) / median(values).max(1e-12)
}

/// Steps in which a pipeline fills.
fn fill(schedule: &Schedule) -> u64 {
    let stages = schedule.train.ops.iter().map(|o| o.stage);
    (stages.clone().max().unwrap_or(0) - stages.min().unwrap_or(0)) as u64
}

/// Trains with records of all steps but the first and last few.
fn run(session: &mut Session<f32>, steps: u64, edge: u64) -> Result<Run, Error> {
    let start = session.next_step() + edge;
    session.set_record(Some(start..start + steps));
    let outcome = session.advance(steps + 2 * edge, &mut ());
    session.set_record(None);
    let mut events = outcome?;
    let records = session.take_records();
    events.retain(|e| (start..start + steps).contains(&e.step));
    if (events.len() as u64) < steps {
        return Err(Error::Settings("stopped before everything was measured".into()));
    }
    Ok(Run { events, records })
}

/// Expected sizes, as the compiler will see them.
struct Sizes<'a> {
    mean: BTreeMap<Symbol, f64>,
    rows: &'a [Rows],
    schedule: &'a Schedule,
    ranks: usize,
    /// The rank with the most traffic.
    busiest: Busiest,
}

impl Sizes<'_> {
    fn of_exchange(&self, exchange: u32) -> Option<&Rows> {
        let x = self.schedule.exchanges.get(exchange as usize)?;
        let table = self.schedule.tables.get(x.table as usize)?;
        // Hot rows are those of their part.
        let part = x.part % table.sharding.parts();
        self.rows.iter().find(|r| r.table == table.name && r.part == part)
    }

    /// How much of all entries an exchange moves: of a table with hot rows its share, as often as these are asked for.
    fn share(&self, exchange: u32) -> f64 {
        let schedule = self.schedule;
        let of = |e: u32| schedule.exchanges.get(e as usize);
        let asks = of(exchange).and_then(|x| x.leg.within()).and_then(of).or_else(|| of(exchange));
        let Some(asks) = asks.filter(|x| x.of.is_some()) else { return 1.0 };
        let table = schedule.tables.get(asks.table as usize);
        let (Some(table), Some(rows)) = (table, self.of_exchange(exchange)) else { return 1.0 };
        let hot = rows.hot.iter().filter(|(row, _)| table.hot.binary_search(row).is_ok());
        let hot = (hot.map(|(_, n)| n).sum::<f64>() / rows.sent.max(f64::MIN_POSITIVE)).min(1.0);
        if table.is_hot(asks.part) { hot } else { 1.0 - hot }
    }

    /// A size of a microbatch, or of all, given the batch's own.
    fn get(&self, batch: &BTreeMap<Symbol, f64>, symbol: Symbol, microbatch: Option<u32>) -> f64 {
        let parts = f64::from(self.schedule.settings.microbatches.max(1));
        let of = |e: u32| {
            let leg = self.schedule.exchanges.get(e as usize)?.leg;
            self.of_exchange(e)?.of_leg(leg, self.schedule.settings.node)
        };
        let class = |e: u32, way, c: u32| {
            let microbatches = self.schedule.settings.microbatches;
            let reuse = self.schedule.exchanges.get(e as usize)?.reuse(microbatches)?;
            let counts = of(e)?.1.iter().find_map(|r| r.classes(reuse, way))?;
            counts.get(c as usize).map(|n| n * self.share(e))
        };
        let sent = |e: u32| of(e).map_or(0.0, |(sent, _)| sent * self.share(e));
        match symbol {
            Symbol::Ranks => self.ranks as f64,
            Symbol::Samples | Symbol::Tokens(_) | Symbol::Squares(_) => {
                let whole = batch.get(&symbol).copied().unwrap_or(0.0);
                if microbatch.is_some() { whole / parts } else { whole }
            }
            // Who reads samples asks for about as much as who works on them needs.
            Symbol::Sent(e) | Symbol::Received(e) | Symbol::Asked(e) => sent(e),
            Symbol::SentClass(e, way, c) | Symbol::ReceivedClass(e, way, c) => {
                class(e, way, c).unwrap_or(0.0)
            }
        }
    }

    fn of<'a>(
        &'a self,
        batch: &'a BTreeMap<Symbol, f64>,
    ) -> Work<'a, impl Fn(&Op, Symbol) -> f64, impl Fn(u32) -> Option<&'a Rows>> {
        let size = move |op: &Op, symbol| self.get(batch, symbol, op.microbatch);
        Work::new(self.schedule, self.ranks as u32, size, move |e| self.of_exchange(e))
    }

    /// Arithmetic and bytes of an operation for a batch; of transfers the busiest rank's.
    fn work(&self, batch: &BTreeMap<Symbol, f64>, op: &Op) -> (f64, f64) {
        self.of(batch).of(op, self.busiest)
    }
}

fn mean_sizes(batches: &[BTreeMap<Symbol, f64>]) -> BTreeMap<Symbol, f64> {
    let mut mean: BTreeMap<Symbol, f64> = BTreeMap::new();
    for batch in batches {
        for (symbol, n) in batch {
            *mean.entry(*symbol).or_insert(0.0) += n / batches.len() as f64;
        }
    }
    mean
}

fn op_costs(schedule: &Schedule, sizes: &Sizes<'_>, times: &Typical) -> Vec<OpCost> {
    let ops = schedule.train.ops.iter().enumerate();
    ops.map(|(i, op)| {
        let (flops, bytes) = sizes.work(&sizes.mean, op);
        let time = if op.action.is_transfer() { times.transfer(i, sizes.busiest) } else { times.whole[i] };
        OpCost { name: op.name.clone(), kind: op.action.name(), flops, bytes, time }
    })
    .collect()
}

/// Points of each kind of compute: each operation's executions, sorted by size, in a few bins of which medians count.
fn kind_points(
    schedule: &Schedule,
    sizes: &Sizes<'_>,
    run: &Run,
    batches: &BTreeMap<typical::Instance, BTreeMap<Symbol, f64>>,
) -> BTreeMap<String, Vec<Point>> {
    let ops = &schedule.train.ops;
    let mut executions: Vec<Vec<(f64, f64, f64)>> = vec![Vec::new(); ops.len()];
    for (rank, list) in run.records.iter().enumerate() {
        for r in list {
            let (Some(op), Some(batch)) = (ops.get(r.op as usize), batches.get(&(r.batch, rank))) else {
                continue;
            };
            if op.action.is_transfer() {
                continue;
            }
            let (flops, bytes) = sizes.work(batch, op);
            executions[r.op as usize].push((flops, bytes, r.end.saturating_sub(r.start) as f64 * 1e-9));
        }
    }
    let mut points: BTreeMap<String, Vec<Point>> = BTreeMap::new();
    for (op, mut list) in ops.iter().zip(executions) {
        list.sort_by(|a, b| (a.0 + a.1).total_cmp(&(b.0 + b.1)));
        let of = points.entry(op.action.name()).or_default();
        for bin in list.chunks(list.len().div_ceil(BINS).max(1)) {
            let mid = |f: fn(&(f64, f64, f64)) -> f64| median(bin.iter().map(f).collect());
            of.push(Point { x: [1.0, mid(|e| e.0), mid(|e| e.1)], y: mid(|e| e.2).max(1e-9) });
        }
    }
    points.retain(|_, list| !list.is_empty());
    points
}

/// Where all sizes are about the same (sequences of one length, one layer), a line could have any slope. Then it goes
/// through the time of a call that does nothing.
fn anchor(points: &mut Vec<Point>) {
    let size = |p: &Point| p.x[1] + p.x[2];
    let (least, most) = points.iter().map(size).fold((f64::INFINITY, 0.0), |(a, b), s| (s.min(a), s.max(b)));
    if most < SPREAD * least {
        points.push(Point { x: [1.0, 0.0, 0.0], y: NOTHING });
    }
}

fn kind_cost(kind: &str, line: Line, points: usize) -> KindCost {
    let [fixed, per_flop, per_byte] = line.coefficients;
    KindCost { kind: kind.to_owned(), fixed, per_flop, per_byte, points: points as u64, error: line.error }
}

/// The constants of transfers. `alone`: the same without the emulated link.
fn transfers(schedule: &Schedule, sizes: &Sizes<'_>, times: &Typical, alone: Option<&Typical>) -> Transfers {
    let list: Vec<(usize, f64, f64)> = (schedule.train.ops.iter().enumerate())
        .filter(|(_, op)| op.action.is_transfer())
        .map(|(i, op)| {
            let rounds = schedule.rounds(&schedule.train, op, false).len() as f64;
            (i, rounds, sizes.work(&sizes.mean, op).1)
        })
        .collect();
    let of = |t: &Typical| -> Vec<(f64, f64, f64)> {
        list.iter().map(|(i, r, b)| (*r, *b, t.transfer(*i, sizes.busiest))).collect()
    };
    let own = line(&of(alone.unwrap_or(times)));
    let mut transfers = Transfers { fixed: own.0, per_byte: own.1, link: None };
    if alone.is_some() {
        transfers.link = Some(link(&of(times), own));
    }
    transfers
}

/// Seconds per round and per byte of transfers (rounds, bytes, seconds).
pub(crate) fn line(transfers: &[(f64, f64, f64)]) -> (f64, f64) {
    let points: Vec<Point> =
        transfers.iter().map(|(r, b, t)| Point { x: [*r, *b, 0.0], y: t.max(1e-9) }).collect();
    fit(&points).map_or((0.0, 0.0), |l| (l.coefficients[0], l.coefficients[1]))
}

/// The constants of the link that transfers (rounds, bytes, seconds) took, beside the processor's own `(per round, per
/// byte)`.
pub(crate) fn link(transfers: &[(f64, f64, f64)], own: (f64, f64)) -> LinkCost {
    let beside = transfers.iter().map(|(r, b, t)| (*r, *b, t - r * own.0 - b * own.1));
    let beside: Vec<_> = beside.filter(|t| t.2 > 0.0).collect();
    let (latency, per_byte) = line(&beside);
    LinkCost { latency, bandwidth: 1.0 / per_byte.max(1.0 / FASTEST) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::link::EmulatedLink;
    use crate::transport::paced::Links;

    /// All-to-alls of `bytes` to each other rank over emulated links, by the links' own clock.
    fn all_to_all(link: EmulatedLink, ranks: usize, bytes: u64) -> f64 {
        let links = Links::new(link, ranks);
        let (mut there, mut asked) = (0, vec![0; ranks]);
        for other in 1..ranks {
            for (me, asked) in asked.iter_mut().enumerate() {
                let (free, arrived) = links.carry(me, (me + other) % ranks, bytes, *asked);
                *asked = free;
                there = there.max(arrived);
            }
        }
        there as f64 * 1e-9
    }

    #[test]
    fn the_constants_of_an_emulated_link_come_back() {
        for (text, ranks) in [("200 Mbit/s, 50 us", 2), ("10 Gbit/s, 5 us", 4), ("1 GB/s, 1 ms", 3)] {
            let known: EmulatedLink = text.parse().unwrap();
            let own = (12e-6, 1.0 / 7e9);
            let transfers: Vec<(f64, f64, f64)> = [3_000, 40_000, 250_000, 2_000_000]
                .into_iter()
                .enumerate()
                .map(|(i, bytes)| {
                    let rounds = 1.0 + (i % 2) as f64;
                    let sent = rounds * (bytes * (ranks - 1)) as f64;
                    let processor = rounds * own.0 + sent * own.1;
                    (rounds, sent, rounds * all_to_all(known, ranks, bytes as u64) + processor)
                })
                .collect();
            let found = link(&transfers, own);
            assert!((found.latency / known.latency - 1.0).abs() < 0.03, "{text}: {found:?}");
            assert!((found.bandwidth / known.bandwidth - 1.0).abs() < 0.03, "{text}: {found:?}");
        }
    }
}
