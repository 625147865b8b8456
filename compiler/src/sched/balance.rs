//! What giving samples to ranks is expected to buy: batches are drawn from the workload's law of lengths, planned as the
//! executor plans them, and compared with leaving every sample where it is read.

use fs_schedule::action::{Phase, Scope};
use fs_schedule::{Action, Balance, CostModel, Data, GroupCost, Schedule, Symbol};
use fs_workload::balance::{PlanError, Planner, Problem};
use fs_workload::random::RandomKey;

use super::sizes::lengths_of;

/// Samples to draw at most, in all batches and in one. Of larger batches the samples of some ranks stand for all.
const SAMPLES: usize = 1 << 17;
const MOST: usize = 1 << 14;
/// Batches to draw at most.
const BATCHES: usize = 16;
/// The random stream of expected lengths; models number theirs from 0.
const STREAM: u32 = 0xF500_0002;

/// Means over some batches: the cost of the rank with most to do over the mean of all.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct Expected {
    /// If every sample stays at home.
    pub at_home: f64,
    /// As planned.
    pub planned: f64,
    /// No plan is below this.
    pub bound: f64,
    /// Share of the bytes that move.
    pub moved: f64,
}

/// For people: what giving samples to ranks buys, or would; nothing where all ranks have as much to do.
pub(crate) fn describe(s: &Schedule, e: Expected) -> Option<String> {
    let waits = |most: f64| 100.0 * (1.0 - 1.0 / most.max(1.0));
    if waits(e.at_home) < 0.05 {
        return None;
    }
    let home =
        format!("{:.1}% of a step for the slowest if samples stay where they are read", waits(e.at_home));
    let planned = format!("{:.1}% with {:.1}% of their bytes moved", waits(e.planned), 100.0 * e.moved);
    Some(match s.settings.balance {
        Some(_) => format!("ranks wait {planned}, and would wait {home}"),
        None => format!("ranks wait {home}; they would wait {planned} (`balance on`)"),
    })
}

/// What a sample costs by the arithmetic of a step whose operations are priced.
pub(crate) fn cost_of(s: &Schedule) -> CostModel {
    let mut cost = CostModel { constant: 0.0, groups: vec![GroupCost::default(); s.lengths.len()] };
    for op in s.train.ops.iter().filter(|op| op.action.facts().scope == Scope::Samples) {
        for (c, symbols) in op.cost.flops.terms() {
            match *symbols {
                [Symbol::Samples] => cost.constant += c,
                [Symbol::Tokens(g)] => add(&mut cost, g, |group| group.linear += c),
                [Symbol::Squares(g)] => add(&mut cost, g, |group| group.square += c),
                _ => {}
            }
        }
    }
    cost
}

fn add(cost: &mut CostModel, group: u32, change: impl FnOnce(&mut GroupCost)) {
    if let Some(group) = cost.groups.get_mut(group as usize) {
        change(group);
    }
}

/// Completes what the passes could not know: what a sample costs, unless the model says so, and how much is expected to
/// move. Operations must be priced, and are to be priced again.
pub(crate) fn complete(s: &mut Schedule) {
    let cost = cost_of(s);
    let Some(balance) = &mut s.settings.balance else { return };
    if balance.cost == CostModel::default() {
        balance.cost = cost;
    }
    let moved = expect(s).map_or(1.0, |e| e.moved);
    for op in s.train.ops.iter_mut().filter(|op| op.action.facts().phase == Phase::Balance) {
        if let Action::Dispatch { moved: share } = &mut op.action {
            *share = moved;
        }
    }
}

/// Draws, plans and compares; `None` where costs cannot be planned.
pub(crate) fn expect(s: &Schedule) -> Option<Expected> {
    let each = (s.settings.batch / s.ranks.max(1)) as usize;
    let ranks = (s.ranks as usize).min(MOST / each.max(1));
    let n = ranks * each;
    if ranks < 2 {
        // A single rank waits for nobody, and so many samples come to the same on any rank.
        return Some(Expected { at_home: 1.0, planned: 1.0, bound: 1.0, moved: 0.0 });
    }
    let own = cost_of(s);
    let settings = s.settings.balance.clone().unwrap_or_else(|| Balance { cost: own, ..Balance::default() });
    let law = match &s.data {
        Some(Data::Generate { lengths, .. }) => Some(*lengths),
        _ => None,
    };
    let laws: Vec<_> = s.lengths.iter().map(|g| lengths_of(law, g.max)).collect();
    let home: Vec<u32> = (0..n).map(|i| (i * ranks / n) as u32).collect();
    let batches = (SAMPLES / n.max(1)).clamp(1, BATCHES);
    let (mut planner, mut sum) = (Planner::default(), Expected::default());
    let (mut costs, mut sizes, mut scaled) = (Vec::new(), Vec::new(), Vec::new());
    for batch in 0..batches as u64 {
        costs.clear();
        sizes.clear();
        for sample in 0..n as u64 {
            let key = |g: usize| RandomKey { seed: batch << 32 | sample, stream: STREAM, step: g as u64 };
            let lengths: Vec<u32> = laws.iter().enumerate().map(|(g, law)| law.draw(key(g))).collect();
            costs.push(settings.cost.of(lengths.iter().copied()));
            sizes.push(s.sample_bytes(&lengths));
        }
        settings.cost.scaled(&costs, &mut scaled).ok()?;
        let problem = Problem {
            ranks,
            home: &home,
            costs: &scaled,
            bytes: &sizes,
            limit: None,
            equal_counts: settings.equal_counts,
            microbatches: s.settings.microbatches as usize,
            slack: settings.slack,
        };
        let plan = match planner.plan(&problem) {
            Ok(plan) => plan,
            Err(PlanError::Overflow { .. } | PlanError::Sample { .. } | PlanError::Full { .. }) => {
                return None;
            }
        };
        let mean = (plan.total as f64 / ranks as f64).max(1.0);
        let share = plan.moved_bytes as f64 / sizes.iter().sum::<u64>().max(1) as f64;
        for (sum, x) in [
            (&mut sum.at_home, plan.most_at_home as f64 / mean),
            (&mut sum.planned, plan.most as f64 / mean),
            (&mut sum.bound, plan.bound as f64 / mean),
            (&mut sum.moved, share),
        ] {
            *sum += x / batches as f64;
        }
    }
    Some(sum)
}
