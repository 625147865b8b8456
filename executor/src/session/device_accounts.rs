//! Where the time of some steps went on devices that have a clock of their own: what an engine's thread accounts for while it
//! runs ([`account`](crate::runtime::account)), done once all is known.
//!
//! Compute works while any operation of its queues does. What stands between is explained as elsewhere, backwards from the
//! operation that came next.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use fs_schedule::{Engine, Op, Program};

use crate::runtime::Plan;
use crate::runtime::account::{Gap, Ledger, Split, Stamps, TimeUse, Times};
use crate::runtime::profile::{OpTime, Profile};
use crate::runtime::record::Record;
use crate::step::{Account, StepEvent};

/// The accounts of a rank: of each step where it began and ended and what that time went to, and per operation what compute waited for
/// it.
struct Accounts {
    steps: Vec<(u64, u64, Split)>,
    exposed: Vec<u64>,
}

/// How long the host took to enqueue all operations, in the mean of the ranks, by its own clock: without what loads batches, which waits for
/// data, and transfers of which it must learn something, which wait for the device.
pub(super) fn issued(program: &Program, profiles: &[Profile]) -> Duration {
    let of = |(op, time): (&Op, &OpTime)| match op.action.facts() {
        _ if !op.action.is_transfer() => time.issued,
        facts if facts.learns.host_sync => Duration::ZERO,
        _ => time.busy.saturating_sub(time.waited),
    };
    let of = |profile: &Profile| -> Duration { program.ops.iter().zip(&profile.ops).map(of).sum() };
    profiles.iter().map(of).sum::<Duration>() / profiles.len().max(1) as u32
}

/// Puts accounts of the steps `wanted` that are whole, and times of their operations, in the place of what the host knew; `first`: the
/// first step of the run. Records are of all ranks, by start. Which steps these are; none, if none is whole.
pub(super) fn put(
    plan: &Plan,
    first: u64,
    wanted: &Range<u64>,
    records: &[Vec<Record>],
    (events, profiles): (&mut [StepEvent], &mut [Profile]),
) -> Option<Range<u64>> {
    let steps = wanted.start.max(first)..wanted.end.min(first + events.len() as u64);
    let ranks: Vec<Accounts> = records.iter().map(|own| of_rank(plan, first, &steps, own)).collect();
    let whole = ranks.iter().map(|own| own.steps.len()).min().unwrap_or(0);
    let steps = steps.start..steps.start + whole as u64;
    if steps.is_empty() {
        // The host's times say nothing of the device's.
        for time in profiles.iter_mut().flat_map(|profile| &mut profile.ops) {
            *time = OpTime { sent: time.sent, count: time.count, ..OpTime::default() };
        }
        return None;
    }
    let world = ranks.len() as f64;
    let mut ended = None;
    for (i, event) in events[(steps.start - first) as usize..][..whole].iter_mut().enumerate() {
        let of = |rank: &Accounts| rank.steps[i];
        for (account, rank) in event.accounts.iter_mut().zip(&ranks) {
            *account = account_of(of(rank));
        }
        let mean =
            |part: fn(&Account) -> u64| event.accounts.iter().map(part).sum::<u64>() as f64 * 1e-9 / world;
        let since = ranks.iter().map(|rank| of(rank).0).max().unwrap_or(0);
        let until = ranks.iter().map(|rank| of(rank).1).max().unwrap_or(0);
        *event = StepEvent {
            seconds: until.saturating_sub(ended.replace(until).unwrap_or(since)) as f64 * 1e-9,
            compute: mean(|a| a.compute),
            exposed: mean(|a| a.exposed),
            waited: mean(|a| a.straggler),
            host: mean(|a| a.host),
            other: mean(|a| a.other),
            ..std::mem::take(event)
        };
    }
    for ((records, accounts), profile) in records.iter().zip(&ranks).zip(profiles) {
        let mut timed = Profile::new(plan.ops.len());
        for r in records.iter().filter(|r| steps.contains(&r.batch)) {
            timed.record(r.op as usize, r.end - r.start, r.met - r.start);
            let event = &mut events[(r.batch - first) as usize];
            event.busy[plan.ops[r.op as usize].engine] += (r.end - r.met) as f64 * 1e-9 / world;
        }
        for ((timed, all), exposed) in timed.ops.iter_mut().zip(&profile.ops).zip(&accounts.exposed) {
            timed.exposed = Duration::from_nanos(*exposed);
            timed.sent = (all.sent as f64 * timed.count as f64 / all.count.max(1) as f64).round() as u64;
        }
        *profile = timed;
    }
    Some(steps)
}

fn account_of((since, at, split): (u64, u64, Split)) -> Account {
    let of = |kind: TimeUse| split[kind as usize];
    Account {
        time: at - since,
        compute: of(TimeUse::Compute),
        exposed: of(TimeUse::Exposed),
        straggler: of(TimeUse::Straggler),
        host: of(TimeUse::Host),
        other: of(TimeUse::Other),
    }
}

/// A rank's time, covered in order and cut where steps end.
struct Tally<'a> {
    plan: &'a Plan,
    stamps: Stamps,
    ledger: Ledger,
    /// Where the first step begins, then where each ends; the next one last.
    cuts: Vec<u64>,
    begun: bool,
    steps: Vec<(u64, u64, Split)>,
}

impl Tally<'_> {
    fn cover(&mut self, until: u64, kind: TimeUse, op: Option<usize>) {
        while let Some(cut) = self.cuts.pop_if(|cut| *cut <= until) {
            self.ledger.cover(cut, kind, op);
            if std::mem::replace(&mut self.begun, true) {
                self.steps.push(self.ledger.cut());
            } else {
                self.ledger.begin(cut);
            }
        }
        if !self.cuts.is_empty() {
            self.ledger.cover(until, kind, op);
        }
    }

    /// Covers what compute stood still for.
    fn gap(&mut self, gap: Gap, until: u64) {
        if self.ledger.at() >= until || self.cuts.is_empty() {
            return;
        }
        let segments = self.ledger.explain(self.plan, &self.stamps, gap, until);
        for segment in segments.iter().rev() {
            self.cover(segment.until, segment.kind, segment.op);
        }
        self.ledger.give_back(segments);
    }
}

fn of_rank(plan: &Plan, first: u64, steps: &Range<u64>, records: &[Record]) -> Accounts {
    let ops = plan.ops.len();
    // Steps of the plan count from the first in which an operation works on a batch that there is.
    let step = |r: &Record| {
        let stage = plan.ops[r.op as usize].stage;
        ((r.batch - first) as i64 + plan.stages.1 - stage) as u64
    };
    let range = records.iter().map(step).fold((u64::MAX, 0), |(a, b), step| (a.min(step), b.max(step)));
    let stamps = Stamps::new(ops, (range.1 + 1).saturating_sub(range.0).max(1) as usize);
    for r in records {
        stamps.set(r.op as usize, step(r), Times { start: r.start, met: r.met, end: r.end });
    }
    let mut batches = BTreeMap::<u64, (usize, u64)>::new();
    for r in records {
        let (count, end) = batches.entry(r.batch).or_default();
        (*count, *end) = (*count + 1, r.end.max(*end));
    }
    let end = |batch: u64| batches.get(&batch).filter(|(count, _)| *count == ops).map(|(_, end)| *end);
    let load = |batch: u64| records.iter().find(|r| r.batch == batch && plan.load == Some(r.op as usize));
    let begin = match steps.start.checked_sub(1).filter(|before| *before >= first) {
        Some(before) => end(before),
        // The first step of a run begins when its data is there.
        None => load(steps.start).map(|r| r.end),
    };
    let ends = begin.into_iter().chain(steps.clone().map_while(end).take_while(|_| begin.is_some()));
    let mut cuts: Vec<u64> = ends
        .scan(0, |at, end| {
            *at = end.max(*at);
            Some(*at)
        })
        .collect();
    cuts.reverse();
    let mut tally = Tally { plan, stamps, ledger: Ledger::new(ops), cuts, begun: false, steps: Vec::new() };
    for r in records.iter().filter(|r| plan.engines[plan.ops[r.op as usize].engine] == Engine::Compute) {
        let op = r.op as usize;
        tally.gap(Gap::Before(op, step(r)), r.start);
        if plan.ops[op].transfer {
            tally.cover(r.met, TimeUse::Straggler, Some(op));
            tally.cover(r.end, TimeUse::Exposed, Some(op));
        } else {
            tally.cover(r.end, TimeUse::Compute, Some(op));
        }
    }
    // Compute has no more to do, and the last steps end with something else.
    let last = records.iter().filter(|r| steps.contains(&r.batch)).max_by_key(|r| r.end);
    if let Some(last) = last {
        tally.gap(Gap::During(last.op as usize, step(last)), last.end);
    }
    Accounts { exposed: tally.ledger.exposed().to_vec(), steps: tally.steps }
}
