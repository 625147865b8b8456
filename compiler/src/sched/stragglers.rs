//! How much more than the mean rank the slowest one has to do: batches are drawn with the lengths that are expected, dealt
//! to ranks as the executor deals them, every sample at home and as planned, and the rank that costs most is looked at.
//!
//! A step is as long as its slowest rank's, so that rank's sizes are those of a step. Its work is attention's squares more
//! than it is tokens, so each size has a factor of its own.

use std::sync::Arc;

use fs_schedule::action::Scope;
use fs_schedule::{CostModel, Data, GroupCost, LengthDistribution, RankWork, Schedule, Symbol, Unkept};
use fs_workload::balance::{Limit, Plan, Planner, Problem};
use fs_workload::lengths::LengthLaw;
use fs_workload::random::RandomKey;

use super::evidence::Evidence;
use super::memo::{Drawn, Question, Spread};
use super::policy;

/// Samples to draw about, in all batches, and in one at most. Of larger batches some of each rank's stand for all: of these many
/// at least, and if they are still too many, for fewer ranks than there are.
const SAMPLES: usize = 1 << 15;
const MOST: usize = 1 << 16;
const EACH: usize = 1 << 11;
/// Lengths to draw about, in all batches: of models with many lists of ids fewer batches are drawn.
const LENGTHS: usize = 1 << 20;
/// Batches to draw at least and at most.
const BATCHES: std::ops::RangeInclusive<usize> = 8..=128;
/// Ranks that are listed at most.
const SHOWN: usize = 8;
/// The random stream of expected lengths; models number theirs from 0.
const STREAM: u32 = 0xF500_0002;

/// What is to be drawn for a schedule whose operations are priced.
fn question(s: &Schedule, evidence: Evidence<'_>) -> Question {
    let mut balance = s.settings.balance.clone().unwrap_or_default();
    // Put down by itself, so that it is one question whether the schedule has it yet or not.
    let given = std::mem::take(&mut balance.cost);
    let cost = if given == CostModel::default() { cost_of(s, evidence) } else { given };
    let microbatches = s.settings.microbatches.max(1) as usize;
    // Where transfers stop compute ranks meet in every microbatch.
    let meets = !policy::of(s.strategy).reorders();
    let law = match &s.data {
        Some(Data::Generate { lengths, .. }) => Some(*lengths),
        _ => None,
    };
    Question {
        ranks: s.ranks,
        read: s.settings.batch / s.ranks.max(1),
        law,
        groups: s.lengths.iter().map(|g| g.max).collect(),
        cost,
        microbatches,
        units: if meets { microbatches } else { 1 },
        travel: s.travel(),
        takes: balance.limit.map(|limit| s.sample_size(limit)),
        balance,
    }
}

/// Where lengths come from.
#[derive(Debug)]
enum Known<'a> {
    Laws(Vec<LengthLaw>),
    /// Of the data's own samples, a list for each group.
    Counted(Vec<&'a [u32]>),
}

impl<'a> Known<'a> {
    fn of(q: &Question, evidence: Evidence<'a>) -> Self {
        let lists = evidence.lengths();
        if !lists.is_empty() {
            return Self::Counted(lists);
        }
        Self::Laws(q.groups.iter().map(|max| lengths_of(q.law, *max)).collect())
    }

    fn vary(&self) -> bool {
        match self {
            Self::Laws(laws) => laws.iter().any(|law| law.varies()),
            Self::Counted(lists) => lists.iter().any(|list| list.iter().any(|n| Some(n) != list.first())),
        }
    }

    /// Lengths of a sample of a batch of `n`.
    fn lengths(&self, (batch, n, sample): (u64, usize, u64), out: &mut Vec<u32>) {
        match self {
            Self::Laws(laws) => {
                let key = |g: usize| RandomKey { seed: batch << 32 | sample, stream: STREAM, step: g as u64 };
                out.extend(laws.iter().enumerate().map(|(g, law)| law.draw(key(g))));
            }
            Self::Counted(lists) => {
                let at = |list: &&[u32]| list[(batch as usize * n + sample as usize) % list.len()];
                out.extend(lists.iter().map(at));
            }
        }
    }
}

/// The law of a group's lengths: the workload's, if it has one that lengths can be drawn from.
pub(crate) fn lengths_of(lengths: Option<LengthDistribution>, max: u32) -> LengthLaw {
    let law = lengths.and_then(|lengths| LengthLaw::new(lengths, max).ok());
    law.unwrap_or_else(|| LengthLaw::assumed(max))
}

/// Whether lengths are known, by the workload's law or by counting, and not only assumed.
pub(crate) fn known(s: &Schedule, evidence: Evidence<'_>) -> bool {
    matches!(s.data, Some(Data::Generate { .. })) || !evidence.lengths().is_empty()
}

/// What a sample costs by the times of a profile; without them by the arithmetic of a step whose operations are priced.
pub(crate) fn cost_of(s: &Schedule, evidence: Evidence<'_>) -> CostModel {
    let longest = || s.lengths.iter().map(|l| l.max);
    if let Some(measured) =
        evidence.profile.and_then(|p| p.samples.as_ref()).filter(|cost| cost.usable(longest()))
    {
        return measured.clone();
    }
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

/// What ranks of some batches have to do. A unit is what ranks do before they wait for each other: a microbatch where every
/// transfer is waited for, else a batch.
struct Work {
    ranks: usize,
    units: usize,
    /// Samples, tokens and squares of each group.
    sizes: usize,
    cost: Vec<u64>,
    of: Vec<f64>,
    /// Sums over batches: the slowest rank's sizes, its work, the mean rank's, and when the slowest is done on shared cores.
    /// A dear batch counts as what it costs, as a report of a run counts it.
    slowest: Vec<f64>,
    alone: f64,
    mean: f64,
    shared: f64,
    finish: Vec<u64>,
    /// Work of the rank with most to do to that with least.
    falling: Vec<f64>,
}

impl Work {
    fn new(ranks: usize, units: usize, groups: usize) -> Self {
        let sizes = 1 + 2 * groups;
        Self {
            ranks,
            units,
            sizes,
            cost: Vec::new(),
            of: Vec::new(),
            slowest: vec![0.0; sizes],
            alone: 0.0,
            mean: 0.0,
            shared: 0.0,
            finish: Vec::new(),
            falling: vec![0.0; ranks],
        }
    }

    fn clear(&mut self) {
        self.cost.clear();
        self.cost.resize(self.ranks * self.units, 0);
        self.of.clear();
        self.of.resize(self.ranks * self.units * self.sizes, 0.0);
    }

    fn add(&mut self, rank: usize, unit: usize, cost: u64, lengths: &[u32]) {
        let at = rank * self.units + unit.min(self.units - 1);
        self.cost[at] += cost;
        let of = &mut self.of[at * self.sizes..][..self.sizes];
        of[0] += 1.0;
        for (g, n) in lengths.iter().enumerate() {
            let n = f64::from(*n);
            of[1 + 2 * g] += n;
            of[2 + 2 * g] += n * n;
        }
    }

    /// Ends a batch. Costs are integers of which one is `worth` so much, in the same unit for all batches.
    fn count(&mut self, worth: f64, cores: Option<u32>) {
        for unit in 0..self.units {
            let at = |rank: usize| rank * self.units + unit;
            let slowest = (0..self.ranks).rev().max_by_key(|rank| self.cost[at(*rank)]).unwrap_or(0);
            self.alone += self.cost[at(slowest)] as f64 * worth;
            let of = &self.of[at(slowest) * self.sizes..][..self.sizes];
            self.slowest.iter_mut().zip(of).for_each(|(sum, x)| *sum += x);
            self.finish.clear();
            self.finish.extend((0..self.ranks).map(|rank| self.cost[at(rank)]));
            self.finish.sort_unstable();
            self.shared += shared(&self.finish, cores) * worth;
            let falling = self.finish.iter().rev();
            self.falling.iter_mut().zip(falling).for_each(|(sum, work)| *sum += *work as f64 * worth);
        }
        self.mean += self.cost.iter().sum::<u64>() as f64 / self.ranks as f64 * worth;
    }

    fn spread(&self, mean: &[f64], fewer: f64) -> Spread {
        let over = |i: usize| over(self.slowest[i], mean[i], fewer);
        let groups = (self.sizes - 1) / 2;
        Spread {
            most: self::over(self.alone, self.mean, fewer),
            crowded: if self.alone > 0.0 { self.shared / self.alone } else { 1.0 },
            samples: over(0),
            tokens: (0..groups).map(|g| over(1 + 2 * g)).collect(),
            squares: (0..groups).map(|g| over(2 + 2 * g)).collect(),
        }
    }
}

/// A sum over batches, in means. Sums of more samples than were drawn differ less, by `fewer` (the root of what part was drawn).
fn over(sum: f64, mean: f64, fewer: f64) -> f64 {
    if mean > 0.0 { 1.0 + (sum / mean - 1.0) * fewer } else { 1.0 }
}

/// When the last of some ranks is done whose work is given, rising, if those at work share so many cores evenly.
fn shared(work: &[u64], cores: Option<u32>) -> f64 {
    let (mut time, mut before) = (0.0, 0);
    for (i, w) in work.iter().enumerate() {
        let at_work = (work.len() - i) as f64;
        let slower = cores.map_or(1.0, |cores| (at_work / f64::from(cores.max(1))).max(1.0));
        time += (w - before) as f64 * slower;
        before = *w;
    }
    time
}

/// A limit that a batch keeps which keeps no lower one that was tried; from one on that another batch asks for. To a hundredth.
fn least_limit(planner: &mut Planner, problem: &Problem<'_>, from: u64) -> u64 {
    let Some(limit) = problem.limit else { return from };
    let mut keeps = |most| planner.keeps(&Problem { limit: Some(Limit { most, ..limit }), ..*problem });
    let all: u64 = limit.sizes.iter().sum();
    let largest = limit.sizes.iter().copied().max().unwrap_or(0);
    let mut most = from.max(largest).max(all.div_ceil(problem.ranks as u64));
    // A limit that is nearly met takes longest, so not one more than it takes.
    let mut step = (most / 100).max(1);
    if keeps(most) {
        return most;
    }
    let mut below = most;
    while most < all && !keeps(most) {
        below = most;
        most = most.saturating_add(step).min(all);
        step *= 2;
    }
    while most - below > (below / 100).max(1) {
        let middle = below.midpoint(most);
        *(if keeps(middle) { &mut most } else { &mut below }) = middle;
    }
    most
}

/// Draws, plans and compares; `None` where all ranks have the same to do, or costs are no numbers.
pub(crate) fn draw(s: &Schedule, evidence: Evidence<'_>) -> Option<Arc<Drawn>> {
    let question = question(s, evidence);
    match evidence.memo {
        Some(memo) => memo.drawn(&question, || answer(&question, evidence)),
        None => answer(&question, evidence).map(Arc::new),
    }
}

fn answer(q: &Question, evidence: Evidence<'_>) -> Option<Drawn> {
    let (read, units, microbatches, balance, cost) = (q.read, q.units, q.microbatches, &q.balance, &q.cost);
    let each = (read as usize).min(EACH.max(MOST / q.ranks.max(1) as usize));
    let ranks = (q.ranks as usize).min(MOST / each.max(1));
    let (n, groups) = (ranks * each, q.groups.len());
    // Of a rank that reads more than are drawn, a part of what it can hold.
    let part = |most: u64| (u128::from(most) * each as u128 / u128::from(read.max(1))) as u64;
    let whole = |most: u64| (u128::from(most) * u128::from(read) / each.max(1) as u128) as u64;
    let known = Known::of(q, evidence);
    // Samples that are all alike may still be more than a rank can hold.
    if n == 0 || ranks < 2 || !(known.vary() || balance.limit.is_some()) {
        return None;
    }
    let cores = evidence.profile.and_then(|p| p.cores);
    let homes: Vec<u32> = (0..n).map(|i| (i * ranks / n) as u32).collect();
    let enough = (SAMPLES / n).min(LENGTHS / (n * groups.max(1)));
    let batches = enough.clamp(*BATCHES.start(), *BATCHES.end());
    let mut planner = Planner::default();
    let (mut home, mut planned) = (Work::new(ranks, units, groups), Work::new(ranks, units, groups));
    let (mut all, mut bound, mut bytes, mut moved) = (vec![0.0; 1 + 2 * groups], 0.0, 0u64, 0u64);
    let mut unkept: Option<Unkept> = None;
    let (mut costs, mut sizes, mut limited, mut scaled) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut lengths: Vec<u32> = Vec::new();
    for batch in 0..batches as u64 {
        costs.clear();
        sizes.clear();
        limited.clear();
        lengths.clear();
        // By far the most that is kept, where there are many lists.
        lengths.reserve_exact(n * groups);
        for sample in 0..n {
            known.lengths((batch, n, sample as u64), &mut lengths);
            let own = &lengths[sample * groups..];
            costs.push(cost.of(own.iter().copied()));
            sizes.push(q.travel.bytes(own));
            limited.extend(q.takes.as_ref().map(|takes| takes.bytes(own)));
            all[0] += 1.0;
            for (g, n) in own.iter().enumerate() {
                all[1 + 2 * g] += f64::from(*n);
                all[2 + 2 * g] += f64::from(*n) * f64::from(*n);
            }
        }
        let worth = cost.scaled(&costs, &mut scaled).ok()?;
        let total: u64 = scaled.iter().sum();
        let own = |sample: usize| &lengths[sample * groups..(sample + 1) * groups];
        home.clear();
        for (sample, rank) in homes.iter().enumerate() {
            let place = sample - *rank as usize * each;
            home.add(*rank as usize, place * units / each, scaled[sample], own(sample));
        }
        home.count(worth, cores);
        let problem = Problem {
            ranks,
            home: &homes,
            costs: &scaled,
            bytes: &sizes,
            limit: balance.limit.map(|limit| Limit { sizes: &limited, most: part(limit.most()) }),
            equal_counts: balance.equal_counts,
            microbatches,
            slack: balance.slack,
        };
        let dearest = scaled.iter().copied().max().unwrap_or(0);
        bound += total.div_ceil(ranks as u64).max(dearest) as f64 * worth;
        // A limit that lengths break is an error of the run, which names the sample.
        let Ok(plan) = planner.plan(&problem) else {
            let u = unkept.get_or_insert(Unkept { drawn: batches as u32, batches: 0, least: 0 });
            u.batches += 1;
            u.least = least_limit(&mut planner, &problem, u.least);
            continue;
        };
        planned.clear();
        assign(plan, &mut planned, |sample| (scaled[sample], own(sample)));
        planned.count(worth, cores);
        bytes += sizes.iter().sum::<u64>();
        moved += plan.moved_bytes;
    }
    let unkept = unkept.map(|unkept| Unkept { least: whole(unkept.least), ..unkept });
    let keeps = unkept.is_none();
    if keeps && !known.vary() {
        return None;
    }
    let mean: Vec<f64> = all.iter().map(|x| x / ranks as f64).collect();
    let planned_falling = if keeps { &planned.falling } else { &home.falling };
    let falling = home.falling.iter().zip(planned_falling);
    let fewer = (each as f64 / f64::from(read.max(1))).sqrt();
    let in_means = |work: f64| over(work, home.mean, fewer);
    let falling: Vec<RankWork> =
        falling.map(|(a, b)| RankWork { at_home: in_means(*a), planned: in_means(*b) }).collect();
    let some = ranks.min(SHOWN);
    let bound = in_means(bound);
    let home = home.spread(&mean, fewer);
    Some(Drawn {
        ranks: (0..some).map(|i| falling[i * (ranks - 1) / (some - 1)]).collect(),
        planned: keeps.then(|| planned.spread(&mean, fewer)),
        bound,
        unkept,
        moved: moved as f64 / bytes.max(1) as f64 * fewer,
        home,
    })
}

fn assign<'a>(plan: &Plan, work: &mut Work, of: impl Fn(usize) -> (u64, &'a [u32])) {
    for rank in 0..work.ranks {
        for m in 0..plan.microbatches() {
            for sample in plan.samples(rank, m) {
                let (cost, lengths) = of(*sample as usize);
                work.add(rank, m, cost, lengths);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fs_schedule::Strategy;

    use super::*;
    use crate::sched::memo::Memo;
    use crate::{CompileOptions, compile_with};

    /// What may differ between two models.
    #[derive(Clone, Copy)]
    struct Model {
        max: u32,
        lengths: &'static str,
        wide: u32,
        inputs: &'static str,
        settings: &'static str,
        ranks: u32,
        strategy: Strategy,
    }

    fn compiled(m: Model) -> Schedule {
        let Model { max, lengths, wide, inputs, settings, ranks, strategy } = m;
        let text = format!(
            "model tokens {{
               table a {{ rows 300  dim 16  optimizer sgd(lr: 0.05)  sharding row_wise }}
               input x: ids(a) {{ max {max} }}
               {inputs}
               input click: label like x
               let h = lookup(x)
               loss bce_with_logits(linear(silu(linear(h, {wide})), 1), click, normalize: tokens)
             }}
             train {{ steps 6  optimizer sgd(lr: 0.1)  {settings} }}
             workload w {{ generate {{ lengths {lengths}  ids uniform }} }}"
        );
        let program = fs_dsl::check_text("model.fs", &text).program.expect("the model checks");
        compile_with(&program, &CompileOptions::new(strategy, ranks)).expect("it compiles").schedule
    }

    /// Answers to models that differ in one thing are theirs, whichever was asked for before.
    #[test]
    fn what_is_remembered_is_what_is_drawn() {
        let all_settings = [
            "batch 96  microbatches 2  balance on",
            "batch 48  microbatches 2  balance on",
            "batch 96  microbatches 4  balance on",
            "batch 96  microbatches 2  balance off",
            "batch 96  microbatches 2  balance on(equal_counts: on)",
            "batch 96  microbatches 2  balance on(limit: 700 tokens)",
            "batch 96  microbatches 2  balance on(limit: 600 tokens)",
            "batch 96  microbatches 2  balance on(limit: 6000 B)",
            "batch 96  microbatches 2  balance cost(c0: 1, c1: 0, c2: 0)",
            "batch 96  microbatches 2  balance cost(c0: 0, c1: 1, c2: 5)",
        ];
        let first = Model {
            max: 40,
            lengths: "lognormal(mean: 15, sigma: 1)",
            wide: 32,
            inputs: "",
            settings: all_settings[0],
            ranks: 4,
            strategy: Strategy::Pec,
        };
        let mut models: Vec<Model> =
            all_settings.iter().map(|settings| Model { settings, ..first }).collect();
        models.extend([
            Model { max: 60, ..first },
            Model { lengths: "lognormal(mean: 12, sigma: 1)", ..first },
            Model { lengths: "uniform(1, 30)", ..first },
            Model { lengths: "fixed(20)", ..first },
            Model { ranks: 3, ..first },
            // Of as many samples of a rank.
            Model { ranks: 8, settings: "batch 192  microbatches 2  balance on", ..first },
            Model { strategy: Strategy::Serial, ..first },
            // Of the same costs of a token, and others.
            Model { wide: 64, ..first },
            Model { inputs: "input more: dense(9)", ..first },
            Model { inputs: "input more: dense(9)", settings: all_settings[7], ..first },
        ]);
        let schedules: Vec<Schedule> = models.into_iter().map(compiled).collect();
        let alone = |s: &Schedule| draw(s, Evidence::default());
        let expected: Vec<_> = schedules.iter().map(alone).collect();
        for backwards in [false, true] {
            let memo = Memo::default();
            let evidence = Evidence { memo: Some(&memo), ..Evidence::default() };
            let of = |n: usize| {
                let n = if backwards { schedules.len() - 1 - n } else { n };
                assert_eq!(draw(&schedules[n], evidence), expected[n], "model {n}");
            };
            (0..schedules.len()).for_each(of);
            for s in &schedules {
                memo.drawn(&question(s, evidence), || panic!("what was answered is asked for once"));
            }
        }
        let mut different: Vec<_> = expected.iter().flatten().collect();
        different.dedup();
        assert!(different.len() >= 12, "models that differ have other answers: {}", different.len());
    }

    #[test]
    fn ranks_share_cores_until_they_wait() {
        // Two cores: 1 of each at half speed, then 1 of three at two thirds, then two and one alone.
        assert!((shared(&[1, 2, 4, 7], Some(2)) - (2.0 + 1.5 + 2.0 + 3.0)).abs() < 1e-12);
        assert!((shared(&[5, 5, 5, 5], Some(2)) - 10.0).abs() < 1e-12);
        assert!((shared(&[3, 9], Some(2)) - 9.0).abs() < 1e-12);
        assert!((shared(&[1, 2, 4, 7], None) - 7.0).abs() < 1e-12);
    }

    /// Two batches of two ranks: 3 and 1 of a unit of 10, and 5 and 5 of a unit of 1. The second is worth little.
    #[test]
    fn batches_count_by_what_they_cost() {
        let mut work = Work::new(2, 1, 1);
        for (costs, worth) in [([3, 1], 10.0), ([5, 5], 1.0)] {
            work.clear();
            costs.iter().enumerate().for_each(|(rank, cost)| work.add(rank, 0, *cost, &[2]));
            work.count(worth, Some(1));
        }
        let spread = work.spread(&[2.0, 4.0, 8.0], 1.0);
        // 30 and 5 of the slowest, 20 and 5 of the mean, all of them one after the other.
        assert!((spread.most - 35.0 / 25.0).abs() < 1e-12, "{spread:?}");
        assert!((spread.crowded - 50.0 / 35.0).abs() < 1e-12, "{spread:?}");
        assert_eq!(work.falling, [35.0, 15.0]);
        assert!((work.spread(&[2.0, 4.0, 8.0], 0.5).most - 1.2).abs() < 1e-12);
    }
}
