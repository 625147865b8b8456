//! Costs of samples by measured times, for plans that are to follow them.
//!
//! With the lengths of a batch every rank says what its compute engine worked for an earlier one, which it has ended since.
//! So all ranks know of that batch who worked on what and how long it took, and fit the same costs
//! ([`fs_workload::balance::Fit`]). What is heard with the lengths of a batch counts from its plan on, on every
//! rank, whatever came in earlier: plans of all ranks stay the same.

use fs_schedule::{CostModel, GroupCost};
use fs_workload::balance::{Fit, Fitted, Plan};

/// Points that are kept for each rank, and the most of all.
const KEPT: usize = 64;
const MOST: usize = 2048;
/// Steps between two fits.
const EVERY: u64 = 8;

/// Costs that follow measured times.
#[derive(Debug)]
pub(super) struct Measured {
    ranks: usize,
    /// How many batches before the one whose lengths it comes with a time belongs to.
    before: u64,
    fit: Fit,
    fitted: Fitted,
    /// Whether there is a fit.
    known: bool,
    /// Of the newest batches, at their step modulo the number kept.
    kept: Vec<Kept>,
    sums: Sums,
}

/// What is known of a batch.
#[derive(Debug, Clone, Default)]
struct Kept {
    /// Times that came with its lengths, in nanoseconds; 0: none.
    heard: Vec<u64>,
    heard_step: Option<u64>,
    /// What each rank works on.
    work: Vec<f64>,
    /// The times of ranks by the costs of the plan, if they were fitted.
    expected: Vec<f64>,
    planned_step: Option<u64>,
}

/// What times came to, in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq)]
struct Sums {
    /// Batches planned by given costs and by fitted ones: how many, the mean and the greatest of the ranks.
    given: [f64; 3],
    fitted: [f64; 3],
    /// Per rank, of batches planned by fitted costs: what was expected, what was measured.
    expected: Vec<f64>,
    measured: Vec<f64>,
    /// Differences of the two.
    off: f64,
}

/// What is told of fitted costs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FittedTotals {
    /// Nanoseconds of a rank's step whatever it works on.
    pub step_ns: f64,
    /// What samples cost, in nanoseconds.
    pub cost: CostModel,
    /// Batches that were planned by fitted costs and measured.
    pub batches: u64,
    /// Share of compute in which the mean rank would wait for the slowest, by measured times: of batches planned by
    /// given costs, and by fitted ones.
    pub waiting: [Option<f64>; 2],
    /// Per rank, the mean over these batches of what was expected and of what was measured, in nanoseconds.
    pub expected_ns: Vec<f64>,
    /// See there.
    pub measured_ns: Vec<f64>,
    /// The mean difference of the two, batch by batch, in parts of what was measured.
    pub off: f64,
}

impl Measured {
    /// Of so many ranks, which say with a batch's lengths what they worked for the one `before` it.
    pub(super) fn new(ranks: usize, groups: usize, before: usize) -> Self {
        let fit = Fit::new(groups, (KEPT * ranks).min(MOST.max(ranks)));
        let (work, numbers) = (ranks * fit.columns(), || vec![0.0; ranks]);
        let kept =
            Kept { heard: vec![0; ranks], work: vec![0.0; work], expected: numbers(), ..Kept::default() };
        let cost = CostModel { constant: 0.0, groups: vec![GroupCost::default(); groups] };
        Self {
            ranks,
            before: before as u64,
            fit,
            fitted: Fitted { step: 0.0, cost },
            known: false,
            // Lengths of later batches may be here before one is planned.
            kept: vec![kept; 2 * before + 2],
            sums: Sums { expected: numbers(), measured: numbers(), ..Sums::default() },
        }
    }

    /// The same, with costs to use until there are times to fit.
    pub(super) fn knowing(self, fitted: Fitted) -> Self {
        Self { fitted, known: true, ..self }
    }

    /// Fitted costs, if there are any.
    pub(super) fn fitted(&self) -> Option<&Fitted> {
        self.known.then_some(&self.fitted)
    }

    fn place(&self, step: u64) -> usize {
        (step % self.kept.len() as u64) as usize
    }

    /// A rank says with the lengths of a step what it worked; 0 if it does not know.
    pub(super) fn hear(&mut self, step: u64, rank: usize, time: u64) {
        let place = self.place(step);
        let kept = &mut self.kept[place];
        if kept.heard_step != Some(step) {
            kept.heard.fill(0);
            kept.heard_step = Some(step);
        }
        if let Some(own) = kept.heard.get_mut(rank) {
            *own = time;
        }
    }

    /// Before a step is planned: counts what came with its lengths.
    pub(super) fn plan(&mut self, step: u64) {
        let heard = self.place(step);
        let Some(measured) = step.checked_sub(self.before).map(|step| (step, self.place(step))) else {
            return;
        };
        let there = self.kept[heard].heard_step == Some(step)
            && self.kept[measured.1].planned_step == Some(measured.0)
            && self.kept[heard].heard.iter().all(|time| *time > 0);
        if !there {
            return;
        }
        let columns = self.fit.columns();
        let (mut most, mut sum) = (0.0, 0.0);
        for rank in 0..self.ranks {
            let time = self.kept[heard].heard[rank] as f64;
            let batch = &self.kept[measured.1];
            self.fit.push(&batch.work[rank * columns..(rank + 1) * columns], time);
            (most, sum) = (f64::max(most, time), sum + time);
            if batch.expected[rank] > 0.0 {
                self.sums.expected[rank] += batch.expected[rank];
                self.sums.measured[rank] += time;
                self.sums.off += (batch.expected[rank] - time).abs();
            }
        }
        let fitted = self.kept[measured.1].expected.iter().any(|time| *time > 0.0);
        let sums = if fitted { &mut self.sums.fitted } else { &mut self.sums.given };
        let mean = sum / self.ranks as f64;
        sums.iter_mut().zip([1.0, mean, most]).for_each(|(sum, x)| *sum += x);
        if step.is_multiple_of(EVERY) {
            self.known |= self.fit.fit(&mut self.fitted);
        }
    }

    /// Fitted costs; none as long as there are too few times, or of samples that could not be planned with them.
    pub(super) fn cost(&self, longest: impl IntoIterator<Item = u32>) -> Option<&CostModel> {
        Some(&self.fitted.cost).filter(|cost| self.known && cost.usable(longest))
    }

    /// A step was planned; by fitted costs or not.
    pub(super) fn planned<'a>(
        &mut self,
        step: u64,
        plan: &Plan,
        fitted: bool,
        lengths: impl Fn(usize) -> &'a [u32],
    ) {
        let (place, columns) = (self.place(step), self.fit.columns());
        let kept = &mut self.kept[place];
        kept.planned_step = Some(step);
        kept.work.fill(0.0);
        for (sample, rank) in plan.rank.iter().enumerate() {
            let work = &mut kept.work[*rank as usize * columns..(*rank as usize + 1) * columns];
            work[0] += 1.0;
            for (of, length) in work[1..].chunks_exact_mut(2).zip(lengths(sample)) {
                let length = f64::from(*length);
                of[0] += length;
                of[1] += length * length;
            }
        }
        for (time, work) in kept.expected.iter_mut().zip(kept.work.chunks_exact(columns)) {
            *time = if fitted { self.fitted.time(work) } else { 0.0 };
        }
    }

    /// What times came to since the last call.
    pub(super) fn take_totals(&mut self) -> Option<FittedTotals> {
        let zeros = || vec![0.0; self.ranks];
        let fresh = Sums { expected: zeros(), measured: zeros(), ..Sums::default() };
        let sums = std::mem::replace(&mut self.sums, fresh);
        if !self.known {
            return None;
        }
        let waiting = |[batches, mean, most]: [f64; 3]| (batches > 0.0).then_some(1.0 - mean / most);
        let batches = sums.fitted[0].max(1.0);
        let mean = |sums: &[f64]| sums.iter().map(|sum| sum / batches).collect();
        Some(FittedTotals {
            step_ns: self.fitted.step,
            cost: self.fitted.cost.clone(),
            batches: sums.fitted[0] as u64,
            waiting: [waiting(sums.given), waiting(sums.fitted)],
            expected_ns: mean(&sums.expected),
            measured_ns: mean(&sums.measured),
            off: sums.off / sums.measured.iter().sum::<f64>().max(1.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs_workload::balance::{Planner, Problem};
    use fs_workload::random::{RandomKey, uniform_f64, uniform_index};
    use proptest::prelude::*;

    const RANKS: usize = 3;
    const SAMPLES: usize = 12;
    const BEFORE: usize = 4;

    /// What one rank sees: costs by step, and who works on what.
    type Seen = (Vec<String>, Vec<Vec<u32>>);

    /// Plans steps by fitted costs. Times come in `ahead` steps early or not, ranks in any order.
    fn seen(seed: u64, steps: u64, arrival: impl Fn(u64) -> (u64, u64)) -> (Seen, FittedTotals) {
        let known = CostModel { constant: 900.0, groups: vec![GroupCost { linear: 40.0, square: 2.0 }] };
        let wrong = CostModel { constant: 1.0, groups: vec![GroupCost::default()] };
        let mut measured = Measured::new(RANKS, 1, BEFORE);
        let mut planner = Planner::default();
        let (mut heard, mut times) = (0, Vec::new());
        let mut seen: Seen = Default::default();
        for step in 0..steps {
            let key = |stream: u32| RandomKey { seed, stream, step };
            let lengths: Vec<[u32; 1]> =
                (0..SAMPLES as u64).map(|i| [(120.0 * uniform_f64(key(1), i).powi(2)) as u32]).collect();
            // Lengths of as many steps as may be in flight, with the times of batches that have ended.
            let (ahead, first) = arrival(step);
            while heard <= step + ahead.min(BEFORE as u64 - 1) {
                for i in 0..RANKS {
                    let rank = (first as usize + i) % RANKS;
                    let time = heard.checked_sub(BEFORE as u64).map_or(0, |s: u64| {
                        let times: &Vec<[u64; RANKS]> = &times;
                        times[s as usize][rank]
                    });
                    measured.hear(heard, rank, time);
                }
                heard += 1;
            }
            measured.plan(step);
            let fitted = measured.cost([200]).cloned();
            let cost = fitted.as_ref().unwrap_or(&wrong);
            let costs: Vec<f64> = lengths.iter().map(|l| cost.of(l.iter().copied())).collect();
            let mut scaled = Vec::new();
            cost.scaled(&costs, &mut scaled).expect("costs");
            let home: Vec<u32> = (0..SAMPLES).map(|i| (i * RANKS / SAMPLES) as u32).collect();
            let problem = Problem {
                ranks: RANKS,
                home: &home,
                costs: &scaled,
                bytes: &[1; SAMPLES],
                limit: None,
                equal_counts: false,
                microbatches: 1,
                slack: 2.0,
            };
            let plan = planner.plan(&problem).expect("a plan");
            measured.planned(step, plan, fitted.is_some(), |sample| &lengths[sample]);
            let mut own = [5_000.0; RANKS];
            for (sample, rank) in plan.rank.iter().enumerate() {
                own[*rank as usize] += known.of(lengths[sample].iter().copied());
            }
            times.push(std::array::from_fn(|rank| {
                let outlier = uniform_index(key(5), rank as u64, 5) == 0;
                let noise = 1.0 + 0.02 * (uniform_f64(key(6), rank as u64) - 0.5);
                (own[rank] * noise * if outlier { 3.0 } else { 1.0 }) as u64
            }));
            seen.0.push(format!("{fitted:?}"));
            seen.1.push(plan.rank.clone());
        }
        (seen, measured.take_totals().expect("fitted costs"))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn ranks_plan_alike_whenever_they_hear(seed in 0..1000u64) {
            let (expected, _) = seen(seed, 80, |_| (0, 0));
            let other = |step: u64| {
                let key = RandomKey { seed, stream: 9, step };
                (uniform_index(key, 0, BEFORE as u64), uniform_index(key, 1, RANKS as u64))
            };
            let (found, _) = seen(seed, 80, other);
            prop_assert!(found == expected);
            prop_assert!(expected.0[40] != "None", "there is a fit after {} points", 40 * RANKS);
        }
    }

    /// A fifth of the times are three times too long: costs come back, times are met and ranks have as much to do.
    #[test]
    fn wrong_costs_are_mended() {
        let (_, told) = seen(3, 600, |_| (0, 0));
        let group = told.cost.groups[0];
        assert!((group.square / 2.0 - 1.0).abs() < 0.15, "{told:?}");
        let ratio = told.cost.of([100]) / told.cost.of([20]);
        let known = (900.0 + 4_000.0 + 20_000.0) / (900.0 + 800.0 + 800.0);
        assert!((ratio / known - 1.0).abs() < 0.15, "{told:?}");
        let (given, fitted) = (told.waiting[0].expect("before"), told.waiting[1].expect("after"));
        assert!(told.batches > 500 && fitted < given, "{told:?}");
    }

    /// Times of steps that were not planned, or of which one rank's is missing, count for nothing.
    #[test]
    fn what_is_not_known_of_all_is_left_out() {
        let mut measured = Measured::new(2, 1, 3);
        for step in 0..20 {
            measured.hear(step, 0, 1000);
            measured.hear(step, 1, if step % 2 == 0 { 0 } else { 1000 });
            measured.hear(step, 7, 1);
            measured.plan(step);
        }
        assert_eq!(measured.fit.points(), 0);
        assert_eq!(measured.take_totals(), None);
    }

    #[test]
    fn costs_of_an_earlier_run_are_used_at_once() {
        let cost = CostModel { constant: 900.0, groups: vec![GroupCost { linear: 40.0, square: 2.0 }] };
        let known = Fitted { step: 5_000.0, cost };
        let mut measured = Measured::new(2, 1, 3).knowing(known.clone());
        measured.hear(0, 0, 0);
        measured.plan(0);
        assert_eq!((measured.cost([200]), measured.fitted()), (Some(&known.cost), Some(&known)));
        let fresh = Measured::new(2, 1, 3);
        assert_eq!((fresh.cost([200]), fresh.fitted()), (None, None));
    }
}
