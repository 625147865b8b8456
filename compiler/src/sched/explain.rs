//! What a finished schedule says about itself: its bounds, its longest cycle, what every engine does and waits for.
//!
//! Works on the schedule alone: times and starts are the planned ones that stand in it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use fs_schedule::action::Effect;
use fs_schedule::counts::Counted;
use fs_schedule::{Engine, Op, Schedule, Search, Sent, Stragglers, Strategy};
use serde::Serialize;

use super::limits::human;
use super::reasons::{duration, of_batch};
use super::{balance, found};
use crate::distribution::At;

/// Idle time of an engine, ended by an operation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Gap {
    /// The operation that ends it.
    pub op: String,
    /// Nanoseconds.
    pub time: u64,
    /// What that operation waited for, and how many steps before it ran.
    pub waits_for: Option<(String, u32)>,
}

/// What an engine does in a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Usage {
    /// Which.
    pub engine: Engine,
    /// Share of the step that it works.
    pub busy: f64,
    /// Operations.
    pub operations: usize,
    /// Idle times, the longest first.
    pub gaps: Vec<Gap>,
}

/// An operation of the longest cycle.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct CycleOp {
    /// Its name.
    pub op: String,
    /// Nanoseconds.
    pub time: u64,
    /// Batches from the operation before it.
    pub distance: u32,
}

/// What is known of one operation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OpReport {
    /// Its name.
    pub op: String,
    /// What executes it.
    pub engine: Engine,
    /// Batch offset.
    pub stage: i32,
    /// Priority.
    pub priority: i32,
    /// Bytes of a chunk.
    pub chunk: Option<u64>,
    /// Start within the step, in nanoseconds.
    pub start: u64,
    /// Nanoseconds.
    pub time: u64,
    /// Dependencies: name and steps.
    pub deps: Vec<(String, u32)>,
    /// Why it stands here.
    pub reason: String,
}

/// The explanation of a schedule.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// Strategy.
    pub strategy: Strategy,
    /// Cluster that was planned for.
    pub cluster: String,
    /// Ranks that were planned for.
    pub ranks: u32,
    /// Seconds of a step.
    pub step: f64,
    /// The busiest engine's work, in seconds.
    pub resource_bound: f64,
    /// That engine.
    pub resource: Engine,
    /// The longest cycle, in seconds a step.
    pub recurrence_bound: f64,
    /// That cycle.
    pub(crate) cycle: Vec<CycleOp>,
    /// What both are together, in seconds a step, if that is more: a chain from one transfer to another, and compute's work until the
    /// first starts again.
    pub joint_bound: Option<(f64, String, String)>,
    /// Seconds a step in which compute idles.
    pub bubble: f64,
    /// Bytes of device memory.
    pub memory: u64,
    /// What a rank sends to others in a step, on average; none of schedules of earlier versions.
    pub sent: Option<Sent>,
    /// Batches in flight.
    pub in_flight: u32,
    /// Buffers that several batches share at once.
    pub copied_buffers: usize,
    /// How unevenly samples load ranks, and what giving them to ranks is expected to do.
    pub balance: Option<Stragglers>,
    /// The same in a sentence, where ranks have unlike amounts to do.
    pub(crate) samples: Option<String>,
    /// What is expected to end a run, in a sentence.
    pub warning: Option<String>,
    /// Where samples go to other ranks, and what it would cost elsewhere.
    pub(crate) moves: Option<String>,
    /// What kept the schedule from being better.
    pub limits: Vec<String>,
    /// In which data lengths and ids were counted, if they were.
    pub counted: Option<Counted>,
    /// How it was found, if others were compared.
    pub search: Option<Search>,
    /// Engines.
    pub(crate) engines: Vec<Usage>,
    /// Operations in the order of the list.
    pub operations: Vec<OpReport>,
}

/// Explains a schedule; `None` if it has no prediction.
pub fn explain(s: &Schedule) -> Option<Explanation> {
    let p = s.prediction.as_ref()?;
    let ops = &s.train.ops;
    let name = |i: u32| ops.get(i as usize).map_or_else(String::new, |o| o.name.clone());
    let place = |op: &Op| OpReport {
        op: op.name.clone(),
        engine: op.engine,
        stage: op.stage,
        priority: op.priority,
        chunk: op.chunk,
        start: op.start,
        time: op.time,
        deps: op.deps.iter().map(|d| (name(d.op), d.distance)).collect(),
        reason: op.reason.clone(),
    };
    // With all that one launch starts: the first stands for them.
    let link = |d: &fs_schedule::Dep| {
        let first = d.op as usize;
        let others = ops.iter().skip(first + 1).take_while(|o| o.joined);
        let launch = ops.get(first).into_iter().chain(others);
        let (time, lag) = launch.fold((0, 0), |(time, lag), o| (time + o.time, o.lag.max(lag)));
        CycleOp { op: name(d.op), time: time + lag, distance: d.distance }
    };
    Some(Explanation {
        strategy: s.strategy,
        cluster: p.cluster.clone(),
        ranks: s.ranks,
        step: p.step,
        resource_bound: p.resource_bound,
        resource: p.resource,
        recurrence_bound: p.recurrence_bound,
        cycle: p.cycle.iter().map(link).collect(),
        joint_bound: p.joint.map(|joint| (joint.time, name(joint.from), name(joint.to))),
        bubble: p.bubble,
        memory: p.memory,
        sent: p.sent,
        in_flight: s.train.in_flight,
        copied_buffers: s.train.buffers.iter().filter(|b| b.copies > 1).count(),
        balance: p.stragglers.clone(),
        samples: p.stragglers.as_ref().and_then(|e| balance::describe(s, e)),
        warning: p.stragglers.as_ref().and_then(|e| balance::unkept(s, e)),
        moves: moves(s),
        limits: p.limits.clone(),
        counted: s.counted.clone(),
        search: s.search.clone(),
        engines: usage(ops, p.step * 1e9),
        operations: ops.iter().map(place).collect(),
    })
}

/// Where samples go to other ranks: what was found when that was chosen, if it was.
fn moves(s: &Schedule) -> Option<String> {
    let op = s.train.ops.iter().find(|op| op.action.has(Effect::AssignsBatch))?;
    if s.ranks < 2 {
        return Some("samples stay: there is one rank".into());
    }
    let chosen = op.reason.find("samples move at ").and_then(|at| op.reason.get(at..));
    let at = At::of(s)?;
    let mut said = chosen.map_or_else(|| format!("samples move at `{at}`"), str::to_owned);
    // What was decided for all need not hold for each.
    let at_all = |at: At| said.starts_with(&format!("samples move at `{at}`"));
    let [folded, others] = At::folded(s);
    let (tables, who) = if at_all(At::Ids) {
        (folded, "those who read them")
    } else if at_all(At::Folded) {
        (others, "those who work on them")
    } else {
        return Some(said);
    };
    if !tables.is_empty() {
        let names: Vec<String> = tables.iter().map(|name| format!("`{name}`")).collect();
        let _ = write!(said, "; rows of {} are asked for by {who}", names.join(", "));
    }
    Some(said)
}

/// Work and idle times of every engine, around the step.
fn usage(ops: &[Op], step: f64) -> Vec<Usage> {
    let mut of: BTreeMap<Engine, Vec<usize>> = BTreeMap::new();
    for (i, op) in ops.iter().enumerate() {
        of.entry(op.engine).or_default().push(i);
    }
    let usage = |(engine, mut list): (Engine, Vec<usize>)| {
        list.sort_by_key(|i| (ops[*i].start, *i));
        let busy: u64 = list.iter().map(|i| ops[*i].time).sum();
        let mut gaps = Vec::new();
        // Work that went on when the step before ended.
        let last = list.iter().map(|i| ops[*i].start + ops[*i].time).max().unwrap_or(0);
        let mut free = last as f64 - step;
        for i in &list {
            let op = &ops[*i];
            let idle = op.start as f64 - free;
            if idle >= 1.0 {
                let ended = |d: &&fs_schedule::Dep| {
                    let on = &ops[d.op as usize];
                    (on.end() as f64 - f64::from(d.distance) * step) as i64
                };
                let cause = op.deps.iter().filter(|d| (d.op as usize) < ops.len()).max_by_key(ended);
                gaps.push(Gap {
                    op: op.name.clone(),
                    time: idle as u64,
                    waits_for: cause.map(|d| (ops[d.op as usize].name.clone(), d.distance)),
                });
            }
            free = free.max((op.start + op.time) as f64);
        }
        gaps.sort_by_key(|g| (std::cmp::Reverse(g.time), g.op.clone()));
        Usage { engine, busy: busy as f64 / step.max(1.0), operations: list.len(), gaps }
    };
    of.into_iter().map(usage).collect()
}

/// Gaps of an engine that are printed.
const GAPS: usize = 5;
/// Operations of the cycle that are printed at each end of a longer one.
const CYCLE: usize = 12;

impl Explanation {
    /// The summary that `fsc compile` prints.
    pub fn summary(&self) -> String {
        let mut t = String::new();
        let ns = |s: f64| duration(s * 1e9);
        let joint = self.joint_bound.as_ref().map_or(0.0, |joint| joint.0);
        let bound = self.resource_bound.max(self.recurrence_bound).max(joint);
        let above = if bound > 0.0 { ((self.step / bound - 1.0) * 100.0).max(0.0) } else { 0.0 };
        let _ = writeln!(
            t,
            "predicted step   {} on {} ({} ranks), {above:.1}% above the greater bound",
            ns(self.step),
            self.cluster,
            self.ranks
        );
        let _ = writeln!(
            t,
            "resource bound   {} ({} is the busiest engine)",
            ns(self.resource_bound),
            self.resource.name()
        );
        let cycle: i64 = self.cycle.iter().map(|l| i64::from(l.distance)).sum();
        let longest = self.cycle.iter().max_by_key(|l| l.time).map_or("", |l| l.op.as_str());
        let _ = match self.cycle.len() {
            0 => writeln!(t, "recurrence bound {} (no cycle)", ns(self.recurrence_bound)),
            n => writeln!(
                t,
                "recurrence bound {} ({n} operations over {cycle} batch{}, the longest `{longest}`)",
                ns(self.recurrence_bound),
                if cycle == 1 { "" } else { "es" }
            ),
        };
        if let Some((time, from, to)) = &self.joint_bound {
            let chain = if from == to { format!("`{from}`") } else { format!("`{from}` to `{to}`") };
            let _ = writeln!(
                t,
                "joint bound      {} ({chain}, and what {} must do between such chains)",
                ns(*time),
                // With another engine it is either's.
                if self.resource == Engine::Compute { "compute" } else { "an engine" }
            );
        }
        let _ = writeln!(t, "bubble           {} of compute", ns(self.bubble));
        let _ = writeln!(
            t,
            "memory           {} a rank, {} batch{} in flight, {} buffers with copies",
            human(self.memory),
            self.in_flight,
            if self.in_flight == 1 { "" } else { "es" },
            self.copied_buffers
        );
        if let Some(Sent { bytes, between_nodes }) = self.sent.filter(|sent| sent.bytes > 0.0) {
            let far = match between_nodes {
                0.0 => String::new(),
                far => format!(", {} of it to other nodes", human(far as u64)),
            };
            let _ = writeln!(t, "sent             {} a rank and step{far}", human(bytes as u64));
        }
        if let Some(Counted { digest, first, batches }) = &self.counted {
            let _ = writeln!(
                t,
                "planned for      lengths and ids counted in {batches} batch{} from step {first} of data {digest}",
                if *batches == 1 { "" } else { "es" }
            );
        }
        for l in &self.limits {
            let _ = writeln!(t, "limit            {l}");
        }
        t
    }

    /// Everything for people; of one operation only, if one is named.
    pub fn text(&self, only: Option<&str>) -> Option<String> {
        if let Some(name) = only {
            let op = self.operations.iter().find(|o| o.op == name)?;
            return Some(describe(op));
        }
        let mut t = self.summary();
        self.cycle_text(&mut t);
        if let Some(samples) = &self.samples {
            let _ = writeln!(t, "\nsamples: {samples}");
        }
        if let Some(moves) = &self.moves {
            let _ = writeln!(t, "{}{moves}", if self.samples.is_some() { "" } else { "\n" });
        }
        for u in &self.engines {
            let _ = writeln!(
                t,
                "\n{}: busy {:.1}% of the step, {} operations",
                u.engine.name(),
                u.busy * 100.0,
                u.operations
            );
            for g in u.gaps.iter().take(GAPS) {
                let cause = match &g.waits_for {
                    Some((op, 0)) => format!("waits for `{op}`"),
                    Some((op, d)) => {
                        format!("waits for `{op}`{}", of_batch(*d as i32).replace("batch", "step"))
                    }
                    None => "has nothing to do".into(),
                };
                let _ = writeln!(t, "  idle {:>9} before `{}`, which {cause}", duration(g.time as f64), g.op);
            }
            if u.gaps.len() > GAPS {
                let rest: u64 = u.gaps[GAPS..].iter().map(|g| g.time).sum();
                let _ = writeln!(
                    t,
                    "  and {} shorter waits of {} in all",
                    u.gaps.len() - GAPS,
                    duration(rest as f64)
                );
            }
        }
        if let Some(search) = &self.search {
            t.push_str(&found::text(search, self.sent));
        }
        let _ = writeln!(t, "\noperations in issue order (start, time, engine, batch offset):");
        for o in &self.operations {
            let _ = writeln!(
                t,
                "{:>10} {:>9}  {:<8} {:>+3}  {}: {}",
                duration(o.start as f64),
                duration(o.time as f64),
                o.engine.name(),
                o.stage,
                o.op,
                o.reason
            );
        }
        Some(t)
    }

    fn cycle_text(&self, t: &mut String) {
        let _ = writeln!(t, "\nlongest cycle:");
        let n = self.cycle.len();
        for (i, l) in self.cycle.iter().enumerate() {
            if n > 2 * CYCLE + 1 && i == CYCLE {
                let hidden = &self.cycle[CYCLE..n - CYCLE];
                let time: u64 = hidden.iter().map(|l| l.time).sum();
                let crossed: u32 = hidden.iter().map(|l| l.distance).sum();
                let _ = writeln!(
                    t,
                    "  {:>9}  ... {} operations over {crossed} batches",
                    duration(time as f64),
                    hidden.len()
                );
            }
            if n > 2 * CYCLE + 1 && (CYCLE..n - CYCLE).contains(&i) {
                continue;
            }
            let next = match l.distance {
                0 => String::new(),
                1 => "  (next batch)".into(),
                d => format!("  ({d} batches later)"),
            };
            let _ = writeln!(t, "  {:>9}  {}{next}", duration(l.time as f64), l.op);
        }
        if n == 0 {
            let _ = writeln!(t, "  none");
        }
    }
}

fn describe(op: &OpReport) -> String {
    let mut t = String::new();
    let _ = writeln!(t, "{}", op.op);
    let _ = writeln!(t, "  engine    {}, priority {}", op.engine.name(), op.priority);
    let _ = writeln!(t, "  batch     {:+} of the step's", op.stage);
    let _ = writeln!(
        t,
        "  start     {} into the step, takes {}",
        duration(op.start as f64),
        duration(op.time as f64)
    );
    if let Some(chunk) = op.chunk {
        let _ = writeln!(t, "  chunks    {}", human(chunk));
    }
    for (name, distance) in &op.deps {
        let of = match distance {
            0 => String::new(),
            d => of_batch(*d as i32).replace("batch", "step"),
        };
        let _ = writeln!(t, "  waits for {name}{of}");
    }
    let _ = writeln!(t, "  reason    {}", op.reason);
    t
}
