//! Where the time of a step goes.
//!
//! Every operation is stamped when it starts, when the last rank has begun (transfers) and when it ends. The time of
//! the compute engine is covered without a gap: by its operations, and whenever it goes on after standing still, the
//! gap is explained backwards, by the dependency that ended last, then by what that one had waited for, until the gap
//! is filled. The part of a transfer before all ranks had begun is *straggler* time, the rest is *exposed*
//! communication; work of the host is *host* time. What remains is the runtime's own: waking up and choosing, and
//! other engines of this rank.
//!
//! Where a step ends, the time is cut, so the parts of a step add up to it to the nanosecond.

use std::sync::atomic::{AtomicU64, Ordering};

use fs_schedule::Engine;

use super::plan::Plan;

/// Times of an operation's execution, in nanoseconds of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Times {
    /// It started.
    pub start: u64,
    /// All ranks had begun.
    pub met: u64,
    /// It ended.
    pub end: u64,
}

/// Times of the last executions of every operation: as many as can be asked for, so that a question about one never
/// gets the times of another.
#[derive(Debug)]
pub(crate) struct Stamps {
    /// Per operation and step, modulo the number kept: 1 + the step, start, met, end.
    slots: Vec<[AtomicU64; 4]>,
    kept: u64,
}

impl Stamps {
    /// For a program of which at most `kept` steps are under way at once.
    pub(crate) fn new(ops: usize, kept: usize) -> Self {
        let kept = kept.next_power_of_two();
        let slot = || std::array::from_fn(|_| AtomicU64::new(0));
        Self { slots: (0..ops * kept).map(|_| slot()).collect(), kept: kept as u64 }
    }

    fn slot(&self, op: usize, step: u64) -> &[AtomicU64; 4] {
        &self.slots[op * self.kept as usize + (step & (self.kept - 1)) as usize]
    }

    /// States the times of an operation's step; to be published by counting it as done.
    pub(crate) fn set(&self, op: usize, step: u64, times: Times) {
        let [tag, start, met, end] = self.slot(op, step);
        tag.store(step + 1, Ordering::Relaxed);
        start.store(times.start, Ordering::Relaxed);
        met.store(times.met, Ordering::Relaxed);
        end.store(times.end, Ordering::Relaxed);
    }

    /// The times of an operation's step that is done; `None` if they are no longer kept.
    pub(crate) fn get(&self, op: usize, step: u64) -> Option<Times> {
        let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let [tag, start, met, end] = self.slot(op, step);
        (load(tag) == step + 1).then(|| Times { start: load(start), met: load(met), end: load(end) })
    }
}

/// What the compute engine's time goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeUse {
    /// Transfers that compute waited for.
    Exposed,
    /// Ranks that began later.
    Straggler,
    /// The host.
    Host,
    /// Everything else that compute waited for.
    Other,
    /// Its own work.
    Compute,
}

/// Number of kinds.
pub(crate) const KINDS: usize = 5;

/// Nanoseconds of each [`TimeUse`], in its order.
pub(crate) type Split = [u64; KINDS];

/// A part of a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Where it ends; it starts where the one before ends.
    pub until: u64,
    /// What it goes to.
    pub kind: TimeUse,
    /// The operation that was waited for.
    pub op: Option<usize>,
}

/// Longest chain of operations that explains one gap.
const CHAIN: usize = 64;

/// What stood in the way.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Gap {
    /// This operation's step could not start before the end of the gap.
    Before(usize, u64),
    /// Nothing was left to do but this operation's step, on another engine.
    During(usize, u64),
}

/// Explains why the compute engine stood still from `begin` to `until`: segments, last one first.
pub(crate) fn explain(
    plan: &Plan,
    stamps: &Stamps,
    gap: Gap,
    (begin, mut until): (u64, u64),
    out: &mut Vec<Segment>,
) {
    out.clear();
    let mut push = |from: u64, to: u64, kind: TimeUse, op: Option<usize>| {
        if from < to {
            out.push(Segment { until: to, kind, op });
        }
    };
    let mut gap = gap;
    for link in 0..CHAIN {
        let latest = match gap {
            Gap::During(op, step) => stamps.get(op, step).map(|times| (times, op, step)),
            Gap::Before(op, step) => {
                // A transfer also waits for the one before it in its queue.
                let before = plan.before(op, step).filter(|_| link > 0);
                let candidates = plan.needs(op, step).chain(before);
                let stamped = candidates.filter_map(|(op, step)| Some((stamps.get(op, step)?, op, step)));
                stamped.max_by_key(|(times, ..)| times.end)
            }
        };
        let Some((times, op, step)) = latest else { break };
        let end = times.end.min(until);
        if end <= begin {
            break;
        }
        push(end, until, TimeUse::Other, None);
        let start = times.start.clamp(begin, end);
        if plan.ops[op].transfer {
            let met = times.met.clamp(start, end);
            push(met, end, TimeUse::Exposed, Some(op));
            push(start, met, TimeUse::Straggler, Some(op));
        } else if plan.engines[plan.ops[op].engine] == Engine::Host {
            push(start, end, TimeUse::Host, Some(op));
        } else {
            push(start, end, TimeUse::Other, Some(op));
        }
        until = start;
        if until <= begin {
            return;
        }
        gap = Gap::Before(op, step);
    }
    push(begin, until, TimeUse::Other, None);
}

/// The compute engine's time, covered up to a moment and cut at the ends of steps.
#[derive(Debug)]
pub(crate) struct Ledger {
    at: u64,
    /// Where the present step starts; none before the first batch is there.
    since: Option<u64>,
    split: Split,
    /// Per operation, exposed time of the whole run.
    exposed: Vec<u64>,
    segments: Vec<Segment>,
}

impl Ledger {
    /// For a program of `ops` operations, from the start of the run.
    pub(crate) fn new(ops: usize) -> Self {
        let segments = Vec::with_capacity(3 * CHAIN + 1);
        Self { at: 0, since: None, split: [0; KINDS], exposed: vec![0; ops], segments }
    }

    /// Up to where time is accounted for.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Exposed time of each operation.
    pub(crate) fn exposed(&self) -> &[u64] {
        &self.exposed
    }

    /// Counts what comes from now on: the first batch was there at `begin`.
    pub(crate) fn begin(&mut self, begin: u64) {
        if self.since.is_none() {
            self.at = self.at.max(begin);
            self.since = Some(self.at);
        }
    }

    /// Covers the time up to `until`.
    pub(crate) fn cover(&mut self, until: u64, kind: TimeUse, op: Option<usize>) {
        let time = until.saturating_sub(self.at);
        self.at += time;
        if self.since.is_none() {
            return;
        }
        self.split[kind as usize] += time;
        if let Some(op) = op.filter(|_| kind == TimeUse::Exposed) {
            self.exposed[op] += time;
        }
    }

    /// Ends a step where time is covered to: where it started, where it ends, and what its time went to.
    pub(crate) fn cut(&mut self) -> (u64, u64, Split) {
        let since = self.since.replace(self.at).unwrap_or(self.at);
        (since, self.at, std::mem::take(&mut self.split))
    }

    /// The segments of the gap from where time is covered to up to `until`, last one first; to be given back.
    pub(crate) fn explain(&mut self, plan: &Plan, stamps: &Stamps, gap: Gap, until: u64) -> Vec<Segment> {
        let mut segments = std::mem::take(&mut self.segments);
        explain(plan, stamps, gap, (self.at, until), &mut segments);
        segments
    }

    /// Takes the segments back for the next gap.
    pub(crate) fn give_back(&mut self, segments: Vec<Segment>) {
        self.segments = segments;
    }
}

/// Adds to a sum that one thread writes.
pub(crate) fn add(sum: &AtomicU64, n: u64) {
    sum.store(sum.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs_schedule::{Action, Dep, Op, Program};

    fn op(name: &str, action: Action, engine: Engine, deps: &[(u32, u32)]) -> Op {
        Op {
            deps: deps.iter().map(|(op, distance)| Dep { op: *op, distance: *distance }).collect(),
            ..Op::new(name, action, engine)
        }
    }

    /// A batch is loaded, two collectives on one engine follow, the second of which compute waits for.
    fn plan() -> Plan {
        let rows = |class| Action::AllToAllRows { exchanges: vec![0], class };
        Plan::new(&Program {
            in_flight: 2,
            buffers: Vec::new(),
            ops: vec![
                op("load", Action::LoadBatch, Engine::Host, &[(4, 1)]),
                op("first", rows(Some(0)), Engine::CopyOut, &[(0, 0)]),
                op("second", rows(Some(1)), Engine::CopyOut, &[(0, 0)]),
                op("early", Action::Zero, Engine::Compute, &[(0, 0)]),
                op("late", Action::Zero, Engine::Compute, &[(2, 0)]),
            ],
        })
    }

    const STEP: u64 = 10_000;

    fn stamps(steps: u64) -> Stamps {
        let stamps = Stamps::new(5, 4);
        for step in 0..steps {
            let at = |start, met, end| Times {
                start: step * STEP + start,
                met: step * STEP + met,
                end: step * STEP + end,
            };
            stamps.set(0, step, at(0, 0, 100));
            stamps.set(1, step, at(110, 150, 400));
            stamps.set(2, step, at(407, 407, 900));
            stamps.set(3, step, at(120, 120, 200));
        }
        stamps
    }

    /// Time of each kind, and exposed time of each operation.
    fn sums(begin: u64, segments: &[Segment]) -> (Split, Vec<u64>) {
        let mut ledger = Ledger::new(5);
        ledger.begin(begin);
        for s in segments.iter().rev() {
            ledger.cover(s.until, s.kind, s.op);
        }
        (ledger.cut().2, ledger.exposed().to_vec())
    }

    #[test]
    fn gaps_are_explained_to_the_nanosecond() {
        let (plan, mut out) = (plan(), Vec::new());
        // Other instances have run since: those of step 1 are explained by the times of step 1.
        for steps in [2, 4] {
            explain(&plan, &stamps(steps), Gap::Before(4, 1), (STEP + 200, STEP + 930), &mut out);
            let (split, exposed) = sums(STEP + 200, &out);
            // 30 until the second was noticed, 7 between both, and what is left of the first.
            assert_eq!(split, [493 + 200, 0, 0, 30 + 7, 0]);
            assert_eq!(exposed, [0, 200, 493, 0, 0]);
            explain(&plan, &stamps(steps), Gap::Before(4, 1), (STEP + 20, STEP + 930), &mut out);
            let (split, exposed) = sums(STEP + 20, &out);
            assert_eq!(split, [493 + 250, 40, 80, 30 + 7 + 10, 0]);
            assert_eq!(exposed, [0, 250, 493, 0, 0]);
        }
    }

    #[test]
    fn times_that_are_no_longer_kept_explain_nothing() {
        let (plan, mut out) = (plan(), Vec::new());
        explain(&plan, &stamps(6), Gap::Before(4, 1), (STEP + 200, STEP + 930), &mut out);
        assert_eq!(out, [Segment { until: STEP + 930, kind: TimeUse::Other, op: None }]);
    }

    #[test]
    fn the_end_of_a_run_is_explained_by_what_is_still_running() {
        let (plan, mut out) = (plan(), Vec::new());
        explain(&plan, &stamps(1), Gap::During(2, 0), (300, 900), &mut out);
        assert_eq!(sums(300, &out).0, [493 + 100, 0, 0, 7, 0]);
    }

    #[test]
    fn cuts_divide_time_between_steps() {
        let mut ledger = Ledger::new(5);
        ledger.cover(30, TimeUse::Other, None);
        ledger.begin(50);
        ledger.cover(80, TimeUse::Compute, None);
        assert_eq!(
            ledger.cut(),
            (50, 80, [0, 0, 0, 0, 30]),
            "what was before the first batch does not count"
        );
        ledger.cover(70, TimeUse::Host, None);
        ledger.cover(95, TimeUse::Exposed, Some(1));
        assert_eq!((ledger.cut(), ledger.exposed()[1]), ((80, 95, [15, 0, 0, 0, 0]), 15));
    }
}
