//! How long an operation takes on a machine that was measured.
//!
//! Every operation of the profile is a point: its kind, its arithmetic and bytes by the cost formula, its time. An
//! operation takes the time of the nearest point of its kind, corrected by the kind's line: `line(here) / line(point)`.
//! So what ran before takes what was measured, a class of its rows or a microbatch of it in proportion, with the
//! kind's fixed cost.

use std::collections::BTreeMap;

use fs_schedule::action::Runs;
use fs_schedule::profile::{KindCost, OpCost, Rows, Work};
use fs_schedule::{Engine, Op, Profile, Schedule, Symbol};

use super::costs::{CostModel, Time, nanoseconds};
use super::evidence::Evidence;
use super::latency::ClusterCosts;
use super::sizes::Sizes;

/// The correction by a kind's line is trusted up to this factor beyond the ratio of sizes.
const MOST_CORRECTION: f64 = 4.0;
/// Sizes that differ by less than this are the same.
const SAME: f64 = 0.02;

/// A profile, prepared to be asked.
#[derive(Debug)]
pub(crate) struct Measured<'a> {
    profile: &'a Profile,
    /// The same, with what was drawn by it.
    evidence: Evidence<'a>,
    kinds: BTreeMap<&'a str, &'a KindCost>,
    ops: BTreeMap<&'a str, Vec<&'a OpCost>>,
    /// By table and part.
    rows: BTreeMap<(&'a str, u32), &'a Rows>,
    /// For what was not measured.
    otherwise: ClusterCosts<'a>,
}

impl CostModel for Measured<'_> {
    fn describe(&self) -> String {
        self.profile.describe()
    }

    fn sizes(&self, s: &Schedule) -> Sizes {
        let mut sizes = Sizes::measured(s, self.profile, self.evidence);
        let busiest = self.work(s, &sizes).busiest();
        sizes.busiest = busiest;
        sizes
    }

    fn time(&self, s: &Schedule, sizes: &Sizes, op: &Op) -> Time {
        self.measured(s, sizes, op).unwrap_or_else(|| {
            let time = self.otherwise.time(s, sizes, op);
            // What was measured ran on a CPU, which launches nothing.
            Time { whole: nanoseconds(time.whole) as f64 / 1e9, launch: 0.0, ..time }
        })
    }

    fn link(&self) -> (f64, f64) {
        let t = &self.profile.transfers;
        let per_byte = t.per_byte + t.link.map_or(0.0, |l| 1.0 / l.bandwidth);
        (1.0 / per_byte.max(1e-12), t.fixed + t.link.map_or(0.0, |l| l.latency))
    }

    /// By the processor time of transfers that overlap with compute, and the host's work on the next batch. In the run
    /// that was measured the host worked while cores were idle in transfers; of what overlaps nothing is left to it.
    fn slowdown(&self, engines: &[Engine], times: &[Time], overlaps: &dyn Fn(usize) -> bool) -> f64 {
        let (mut compute, mut taken, mut idle, mut left) = (0.0, 0.0, 0.0, 0.0);
        for (i, (engine, time)) in engines.iter().zip(times).enumerate() {
            match engine {
                Engine::Compute => compute += time.whole,
                Engine::Host => {}
                _ => {
                    idle += time.whole - time.core;
                    if overlaps(i) {
                        taken += time.core;
                    } else {
                        left += time.whole - time.core;
                    }
                }
            }
        }
        let host = self.profile.batch / f64::from(self.profile.ranks.max(1));
        taken += host.min(idle) - host.min(left);
        if compute > 0.0 { 1.0 + self.profile.sharing * taken / compute } else { 1.0 }
    }

    fn assumptions(&self, s: &Schedule, sizes: &Sizes) -> Vec<String> {
        let missing = s.train.ops.iter().find(|op| self.measured(s, sizes, op).is_none());
        let missing = missing.map(|op| {
            format!(
                "the profile has no time for operations such as `{}`: theirs follow from cluster {}",
                op.name,
                self.otherwise.name()
            )
        });
        missing.into_iter().collect()
    }
}

impl<'a> Measured<'a> {
    /// Of a profile that fits the schedule, and what to take for operations that it does not have.
    pub(crate) fn new(profile: &'a Profile, evidence: Evidence<'a>, otherwise: ClusterCosts<'a>) -> Self {
        let mut ops: BTreeMap<&str, Vec<&OpCost>> = BTreeMap::new();
        for op in &profile.ops {
            ops.entry(op.kind.as_str()).or_default().push(op);
        }
        let rows = profile.rows.iter().map(|rows| ((rows.table.as_str(), rows.part), rows)).collect();
        let kinds = profile.kinds.iter().map(|k| (k.kind.as_str(), k)).collect();
        Self { profile, evidence, kinds, ops, rows, otherwise }
    }

    fn work<'s>(
        &'s self,
        s: &'s Schedule,
        sizes: &'s Sizes,
    ) -> Work<'s, impl Fn(&Op, Symbol) -> f64, impl Fn(u32) -> Option<&'s Rows>> {
        let rows = |e: u32| {
            let x = s.exchanges.get(e as usize)?;
            let table = s.tables.get(x.table as usize)?.name.as_str();
            self.rows.get(&(table, x.part)).copied().or_else(|| self.profile.rows_of(table, x.part))
        };
        Work::new(s, s.ranks, |op: &Op, symbol| sizes.of(op, symbol), rows).uneven(sizes.uneven)
    }

    /// Seconds of an operation; `None` if nothing of its kind was measured.
    fn measured(&self, s: &Schedule, sizes: &Sizes, op: &Op) -> Option<Time> {
        let kind = op.action.name();
        if op.action.is_fused() && !self.kinds.contains_key(kind.as_str()) {
            return self.one_after_the_other(s, sizes, op);
        }
        let (flops, bytes) = self.work(s, sizes).of(op, sizes.busiest);
        if !op.cost.wire.is_zero() {
            let rounds = s.rounds(&s.train, op, false).len() as f64;
            return Some(self.transfer(op, &kind, (rounds, bytes)));
        }
        // The same operation in the schedule that ran has this many times the work.
        let parts = match op.microbatch {
            Some(_) => {
                f64::from(s.settings.microbatches.max(1)) / f64::from(self.profile.microbatches.max(1))
            }
            None => 1.0,
        };
        let (line, near) =
            (self.kinds.get(kind.as_str())?, self.nearest(&kind, op, (flops * parts, bytes * parts)));
        let correction = near.map_or(1.0, |n| {
            let expected = line.time(n.flops, n.bytes);
            if expected > 0.0 {
                let most = if n.name == op.name { f64::INFINITY } else { MOST_CORRECTION };
                (n.time / expected).clamp(1.0 / most, most)
            } else {
                1.0
            }
        });
        let exact = near.filter(|n| same(parts, 1.0) && same(n.flops, flops) && same(n.bytes, bytes));
        let seconds = exact.map_or(line.time(flops, bytes) * correction, |n| n.time);
        let runs = op.action.facts().runs;
        let seconds = if runs == Runs::Compute { seconds * sizes.crowded } else { seconds };
        let wake = if runs == Runs::Host { 2.0 * self.profile.overhead.wake } else { 0.0 };
        Some(Time::of(seconds + self.profile.overhead.dispatch + wake))
    }

    /// Of a fused operation where only its parts ran: they take as long, and are started once.
    fn one_after_the_other(&self, s: &Schedule, sizes: &Sizes, op: &Op) -> Option<Time> {
        let operand = |i: &usize| op.reads.iter().chain(&op.writes).nth(*i).copied();
        let mut whole = self.profile.overhead.dispatch;
        for part in op.action.parts(op.reads.len()) {
            let reads = part.operands.iter().filter_map(operand).collect();
            let writes = part.results.iter().filter_map(|i| op.writes.get(*i).copied()).collect();
            let mut own = Op { action: part.action, reads, writes, ..op.clone() };
            own.cost = s.cost(&s.train, &own);
            whole += self.measured(s, sizes, &own)?.whole - self.profile.overhead.dispatch;
        }
        Some(Time::of(whole))
    }

    /// Of bytes on the wire, by the line through all transfers, corrected by the nearest of its kind as other operations are.
    /// Waking its engine, and the one that waits for it, belongs to a transfer.
    fn transfer(&self, op: &Op, kind: &str, (rounds, wire): (f64, f64)) -> Time {
        let Profile { transfers, overhead, .. } = self.profile;
        let (core, whole) = transfers.time(rounds, wire);
        let list = self.ops.get(kind).into_iter().flatten();
        let exact = list.filter(|o| same(o.bytes, wire)).min_by_key(|o| (o.name != op.name, &o.name));
        let corrected = || {
            let near = self.nearest(kind, op, (0.0, wire));
            let correction = near.map_or(1.0, |o| o.time / transfers.time(rounds, o.bytes).1.max(1e-12));
            whole * correction.clamp(1.0 / MOST_CORRECTION, MOST_CORRECTION)
        };
        let whole = exact.map_or_else(corrected, |o| o.time);
        Time { core: core.min(whole), wire, ..Time::of(whole + 2.0 * overhead.wake) }
    }

    fn nearest(&self, kind: &str, op: &Op, (flops, bytes): (f64, f64)) -> Option<&'a OpCost> {
        let list = self.ops.get(kind)?;
        let far = |a: f64, b: f64| ((a + 1.0) / (b + 1.0)).ln().abs();
        let distance = |o: &OpCost| far(o.flops, flops) + far(o.bytes, bytes);
        // The operation itself, if it ran: others of about its size may work on other rows of memory.
        let own = list.iter().copied().find(|o| o.name == op.name);
        own.or_else(|| list.iter().copied().min_by(|a, b| distance(a).total_cmp(&distance(b))))
    }
}

fn same(a: f64, b: f64) -> bool {
    (a - b).abs() <= SAME * a.abs().max(b.abs()) + 1e-9
}
