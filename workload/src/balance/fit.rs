//! What working on a sample costs by measured times of ranks.
//!
//! A rank's step takes a time of its own and what its samples cost: with n samples whose sequences have T ids and Q pairs
//! of ids (of each length group), `step + constant n + linear T + square Q`. Coefficients are fitted to the last points
//! that were seen, and none is below zero. Times are disturbed by whatever else a machine does, so first sums of absolute
//! errors are made small (least squares, weighted again a few times), then points far off are left out and what remains is
//! fitted by least squares.
//!
//! All ranks fit the same points and must find the same coefficients to the bit: points are gone through in the order
//! in which they were given, and nothing is used that machines round differently. Nothing is allocated after [`Fit::new`].

use super::cost::{CostModel, GroupCost};

/// Coefficients fitted by measured times.
#[derive(Debug, Clone, PartialEq)]
pub struct Fitted {
    /// Of a rank's step, whatever it works on; in the unit of the times, like costs.
    pub step: f64,
    /// Of samples.
    pub cost: CostModel,
}

impl Fitted {
    /// The time of a rank.
    pub fn time(&self, work: &[f64]) -> f64 {
        let groups = self.cost.groups.iter().zip(work.get(1..).unwrap_or_default().chunks_exact(2));
        let own: f64 = groups.map(|(group, of)| group.linear * of[0] + group.square * of[1]).sum();
        self.step + self.cost.constant * work.first().copied().unwrap_or(0.0) + own
    }
}

/// Weighted again so often.
const ROUNDS: usize = 12;
/// Errors that are smaller, in parts of the median error, weigh no more.
const LEAST: f64 = 0.1;
/// Points off by more than so many median errors are left out: three standard deviations of a Gaussian.
const FAR: f64 = 4.5;
/// Points that each coefficient takes before there is a fit.
const POINTS: usize = 6;

/// Fits costs to the newest points.
#[derive(Debug, Clone)]
pub struct Fit {
    groups: usize,
    /// Points that are kept: of each its row, one number for every coefficient, and its time.
    rows: Vec<f64>,
    times: Vec<f64>,
    kept: usize,
    next: usize,
    weights: Vec<f64>,
    errors: Vec<f64>,
    sorted: Vec<f64>,
    solver: Solver,
}

impl Fit {
    /// For samples of so many length groups, by the newest `kept` points at most.
    pub fn new(groups: usize, kept: usize) -> Self {
        let columns = 2 + 2 * groups;
        let room = || Vec::with_capacity(kept);
        Self {
            groups,
            rows: Vec::with_capacity(kept * columns),
            times: room(),
            kept,
            next: 0,
            weights: room(),
            errors: room(),
            sorted: room(),
            solver: Solver::new(columns),
        }
    }

    /// Numbers that say what a rank worked on: samples, and of each length group ids and pairs of ids.
    pub fn columns(&self) -> usize {
        1 + 2 * self.groups
    }

    /// Points that are kept now.
    pub fn points(&self) -> usize {
        self.times.len()
    }

    /// A rank took a time for its work. Times that are no positive numbers are not taken.
    pub fn push(&mut self, work: &[f64], time: f64) {
        if !(time > 0.0 && time.is_finite()) || work.len() != self.columns() || self.kept == 0 {
            return;
        }
        let row = std::iter::once(1.0).chain(work.iter().copied());
        if self.times.len() < self.kept {
            self.rows.extend(row);
            self.times.push(time);
        } else {
            let columns = self.solver.columns;
            for (own, x) in self.rows[self.next * columns..].iter_mut().zip(row) {
                *own = x;
            }
            self.times[self.next] = time;
        }
        self.next = (self.next + 1) % self.kept;
    }

    /// The coefficients; false, and nothing is written, while there are too few points, or if they say that samples cost
    /// nothing.
    pub fn fit(&mut self, out: &mut Fitted) -> bool {
        let n = self.times.len();
        if n < POINTS * self.solver.columns {
            return false;
        }
        self.weights.clear();
        self.weights.resize(n, 1.0);
        for _ in 0..ROUNDS {
            let median = self.solve();
            let least = LEAST * median.max(f64::MIN_POSITIVE);
            for (weight, error) in self.weights.iter_mut().zip(&self.errors) {
                *weight = 1.0 / error.max(least);
            }
        }
        for _ in 0..2 {
            let median = self.measure();
            for (weight, error) in self.weights.iter_mut().zip(&self.errors) {
                *weight = if *error <= FAR * median { 1.0 } else { 0.0 };
            }
            self.solve();
        }
        let found = &self.solver.found;
        if found[1..].iter().all(|c| *c <= 0.0) || found.iter().any(|c| !c.is_finite()) {
            return false;
        }
        (out.step, out.cost.constant) = (found[0], found[1]);
        out.cost.groups.resize(self.groups, GroupCost::default());
        for (group, own) in out.cost.groups.iter_mut().zip(found[2..].chunks_exact(2)) {
            (group.linear, group.square) = (own[0], own[1]);
        }
        true
    }

    /// Weighted least squares; the median error.
    fn solve(&mut self) -> f64 {
        self.solver.clear();
        for ((row, time), weight) in
            self.rows.chunks_exact(self.solver.columns).zip(&self.times).zip(&self.weights)
        {
            if *weight > 0.0 {
                // Times scatter in parts of themselves, so that is what errors are counted in.
                self.solver.add(row, *time, *weight / (time * time));
            }
        }
        self.solver.solve();
        self.measure()
    }

    /// Errors of all points in parts of their times; their median.
    fn measure(&mut self) -> f64 {
        self.errors.clear();
        let found = &self.solver.found;
        let rows = self.rows.chunks_exact(self.solver.columns).zip(&self.times);
        self.errors.extend(rows.map(|(row, time)| {
            let at: f64 = row.iter().zip(found).map(|(x, c)| x * c).sum();
            (time - at).abs() / time
        }));
        self.sorted.clear();
        self.sorted.extend_from_slice(&self.errors);
        self.sorted.sort_unstable_by(f64::total_cmp);
        self.sorted[self.sorted.len() / 2]
    }
}

/// Least squares with coefficients that are not negative, by their normal equations (Lawson and Hanson 1974).
#[derive(Debug, Clone)]
struct Solver {
    columns: usize,
    /// Products of columns, and of columns with times.
    products: Vec<f64>,
    right: Vec<f64>,
    found: Vec<f64>,
    /// Coefficients that may be positive.
    free: Vec<bool>,
    trial: Vec<f64>,
    /// What is eliminated, a row longer than wide.
    work: Vec<f64>,
}

/// What is added to the diagonal, in parts of it: columns in proportion share what they explain.
const RIDGE: f64 = 1e-9;

impl Solver {
    fn new(columns: usize) -> Self {
        let zeros = |n: usize| vec![0.0; n];
        Self {
            columns,
            products: zeros(columns * columns),
            right: zeros(columns),
            found: zeros(columns),
            free: vec![false; columns],
            trial: zeros(columns),
            work: zeros(columns * (columns + 1)),
        }
    }

    fn clear(&mut self) {
        self.products.fill(0.0);
        self.right.fill(0.0);
    }

    fn add(&mut self, row: &[f64], time: f64, weight: f64) {
        for (i, x) in row.iter().enumerate() {
            let x = weight * x;
            self.right[i] += x * time;
            for (sum, y) in self.products[i * self.columns..].iter_mut().zip(row) {
                *sum += x * y;
            }
        }
    }

    fn solve(&mut self) {
        let n = self.columns;
        self.found.fill(0.0);
        self.free.fill(false);
        // Each coefficient is freed once or a few times.
        for _ in 0..3 * n {
            let Some(next) = self.steepest() else { break };
            self.free[next] = true;
            loop {
                self.eliminate();
                // As far from what was found towards what would be best as no coefficient falls below zero.
                let mut part = 1.0;
                let mut stops = None;
                for i in (0..n).filter(|i| self.free[*i] && self.trial[*i] <= 0.0) {
                    let to = self.found[i] / (self.found[i] - self.trial[i]);
                    let to = if to.is_finite() { to } else { 0.0 };
                    if stops.is_none() || to < part {
                        (part, stops) = (to, Some(i));
                    }
                }
                for i in (0..n).filter(|i| self.free[*i]) {
                    self.found[i] += part * (self.trial[i] - self.found[i]);
                }
                let Some(stops) = stops else { break };
                (self.found[stops], self.free[stops]) = (0.0, false);
            }
        }
    }

    /// The coefficient held at zero that would bring the error down the most, relative to its column; none if none would.
    fn steepest(&self) -> Option<usize> {
        let n = self.columns;
        let mut best: Option<(usize, f64)> = None;
        for i in (0..n).filter(|i| !self.free[*i]) {
            let own = self.products[i * n + i];
            if own <= 0.0 {
                continue;
            }
            let row = &self.products[i * n..(i + 1) * n];
            let explained: f64 = row.iter().zip(&self.found).map(|(a, c)| a * c).sum();
            let slope = self.right[i] - explained;
            // Less than rounding leaves is nothing.
            if slope <= 1e-11 * self.right[i].abs() {
                continue;
            }
            let gain = slope * slope / own;
            if best.is_none_or(|(_, g)| gain > g) {
                best = Some((i, gain));
            }
        }
        best.map(|(i, _)| i)
    }

    /// The best values of the free coefficients, whatever their signs.
    fn eliminate(&mut self) {
        let (n, wide) = (self.columns, self.columns + 1);
        for i in 0..n {
            for j in 0..n {
                let both = self.free[i] && self.free[j];
                let own = self.products[i * n + j];
                self.work[i * wide + j] = if i == j {
                    if both { own * (1.0 + RIDGE) } else { 1.0 }
                } else if both {
                    own
                } else {
                    0.0
                };
            }
            self.work[i * wide + n] = if self.free[i] { self.right[i] } else { 0.0 };
        }
        // Symmetric and positive, so the diagonal serves as pivots.
        for i in 0..n {
            let pivot = self.work[i * wide + i];
            for r in 0..n {
                let factor = self.work[r * wide + i] / pivot;
                if r == i || factor == 0.0 || !factor.is_finite() {
                    continue;
                }
                for j in i..wide {
                    self.work[r * wide + j] -= factor * self.work[i * wide + j];
                }
            }
        }
        for i in 0..n {
            let value = self.work[i * wide + n] / self.work[i * wide + i];
            self.trial[i] = if value.is_finite() { value } else { 0.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{RandomKey, normal, uniform_f64};

    fn empty() -> Fitted {
        Fitted { step: 0.0, cost: CostModel::default() }
    }

    /// Work of a rank with some samples of lengths between 1 and 200.
    fn work(seed: u64, point: u64, groups: usize) -> Vec<f64> {
        let draw = |stream: u32, i: u64| uniform_f64(RandomKey { seed, stream, step: point }, i);
        let samples = 4 + (draw(0, 0) * 9.0) as u64;
        let mut work = vec![samples as f64];
        for group in 0..groups {
            let lengths: Vec<f64> =
                (0..samples).map(|i| (1.0 + 199.0 * draw(1 + group as u32, i)).floor()).collect();
            work.extend([lengths.iter().sum::<f64>(), lengths.iter().map(|l| l * l).sum()]);
        }
        work
    }

    /// Points with a Gaussian error of 2%, of which a fifth took up to ten times as long.
    fn disturbed(fit: &mut Fit, known: &Fitted, seed: u64, points: u64) {
        for point in 0..points {
            let work = work(seed, point, known.cost.groups.len());
            let key = RandomKey { seed, stream: 77, step: point };
            let factor =
                if point % 5 == 3 { 1.5 + 8.5 * uniform_f64(key, 0) } else { 1.0 + 0.02 * normal(key, 1) };
            fit.push(&work, known.time(&work) * factor);
        }
    }

    #[test]
    fn known_costs_come_back_from_disturbed_times() {
        let known = Fitted {
            step: 30_000.0,
            cost: CostModel { constant: 2_000.0, groups: vec![GroupCost { linear: 400.0, square: 3.0 }] },
        };
        for seed in 0..10 {
            // So many that what is left of noise of 2% is no excuse.
            let (mut fit, mut found) = (Fit::new(1, 4000), empty());
            disturbed(&mut fit, &known, seed, 4000);
            assert!(fit.fit(&mut found));
            // What is asked of costs: ratios of samples.
            for (a, b) in [(10u32, 190u32), (50, 100), (1, 200)] {
                let ratio = |c: &CostModel| c.of([b]) / c.of([a]);
                let off = ratio(&found.cost) / ratio(&known.cost) - 1.0;
                assert!(off.abs() < 0.25, "seed {seed}: {a} against {b} ids is off by {off}: {found:?}");
            }
            // A short sample is lost in a rank's noise of 2%, and there is as little to plan with it: it is held against the
            // mean one.
            for length in [1u32, 200] {
                let off = found.cost.of([length]) - known.cost.of([length]);
                assert!(
                    off.abs() < 0.05 * known.cost.of([100]),
                    "seed {seed}: {length} ids are off by {off}: {found:?}"
                );
            }
            let group = found.cost.groups[0];
            assert!((group.square / 3.0 - 1.0).abs() < 0.15, "seed {seed}: {found:?}");
            for point in 0..50 {
                let work = work(99, point, 1);
                let off = found.time(&work) / known.time(&work) - 1.0;
                assert!(off.abs() < 0.02, "seed {seed}: a time is off by {off}");
            }
        }
    }

    #[test]
    fn exact_times_give_exact_costs() {
        for groups in 1..4 {
            let known = Fitted {
                step: 5.0,
                cost: CostModel {
                    constant: 3.0,
                    groups: (0..groups)
                        .map(|g| GroupCost { linear: 2.0 + g as f64, square: 0.5 / (1 + g) as f64 })
                        .collect(),
                },
            };
            let (mut fit, mut found) = (Fit::new(groups, 300), empty());
            for point in 0..300 {
                let work = work(1, point, groups);
                fit.push(&work, known.time(&work));
            }
            assert!(fit.fit(&mut found));
            for (a, b) in found.cost.groups.iter().zip(&known.cost.groups) {
                assert!((a.linear / b.linear - 1.0).abs() < 1e-3, "{found:?}");
                assert!((a.square / b.square - 1.0).abs() < 1e-3, "{found:?}");
            }
        }
    }

    /// Whatever is fitted has no cost below zero, and the newest points count.
    #[test]
    fn costs_are_not_negative_and_follow() {
        let (mut fit, mut found) = (Fit::new(1, 64), empty());
        for point in 0..64 {
            let work = work(3, point, 1);
            // Shorter, the more there is to do.
            fit.push(&work, 1e6 / (1.0 + work[1]));
        }
        assert!(!fit.fit(&mut found), "samples cost nothing: {found:?}");
        let known = Fitted {
            step: 0.0,
            cost: CostModel { constant: 0.0, groups: vec![GroupCost { linear: 1.0, square: 0.0 }] },
        };
        disturbed(&mut fit, &known, 8, 64);
        assert!(fit.fit(&mut found));
        let parts =
            [found.step, found.cost.constant, found.cost.groups[0].linear, found.cost.groups[0].square];
        assert!(parts.iter().all(|c| *c >= 0.0), "{found:?}");
        assert!((found.cost.of([100]) / 100.0 - 1.0).abs() < 0.1, "{found:?}");
    }

    /// Too few points, points that are no numbers, columns that are always in proportion.
    #[test]
    fn little_to_go_by() {
        let (mut fit, mut found) = (Fit::new(1, 100), empty());
        for time in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
            fit.push(&[1.0, 2.0, 4.0], time);
        }
        fit.push(&[1.0], 1.0);
        assert_eq!(fit.points(), 0);
        assert!(!fit.fit(&mut found));
        for _ in 0..100 {
            fit.push(&[4.0, 40.0, 400.0], 44.0);
        }
        assert!(fit.fit(&mut found) || found == empty());
        for point in 0..100 {
            let n = f64::from(1 + point % 7);
            fit.push(&[n, 10.0 * n, 100.0 * n], 3.0 * n);
        }
        assert!(fit.fit(&mut found));
        assert!((found.time(&[5.0, 50.0, 500.0]) / 15.0 - 1.0).abs() < 1e-6, "{found:?}");
    }

    /// Two ranks that see the same points find the same bits.
    #[test]
    fn the_same_points_give_the_same_bits() {
        let known = Fitted {
            step: 1.0,
            cost: CostModel { constant: 1.0, groups: vec![GroupCost { linear: 0.1, square: 0.01 }; 2] },
        };
        for seed in 0..20 {
            let fitted = |()| {
                let (mut fit, mut found) = (Fit::new(2, 100), empty());
                disturbed(&mut fit, &known, seed, 150);
                assert!(fit.fit(&mut found));
                format!("{found:?}")
            };
            assert_eq!(fitted(()), fitted(()));
        }
    }
}
