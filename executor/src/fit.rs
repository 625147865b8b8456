//! Lines through measured times.
//!
//! Times are positive and so are their causes: coefficients are not negative. What counts is the relative error, so
//! that a short operation weighs as much as a long one, and its absolute value rather than its square, so that a
//! disturbed measurement does not pull the line (least squares, weighted again a few times).

/// Most coefficients of a line.
pub(crate) const TERMS: usize = 3;

/// A measured point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Point {
    /// What the coefficients are multiplied with; unused ones are zero.
    pub x: [f64; TERMS],
    /// What was measured; positive.
    pub y: f64,
}

/// A fitted line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Line {
    /// Not negative.
    pub coefficients: [f64; TERMS],
    /// Median relative error at the points.
    pub error: f64,
}

impl Line {
    /// The line's value.
    #[cfg(test)]
    fn at(&self, x: [f64; TERMS]) -> f64 {
        self.coefficients.iter().zip(x).map(|(c, x)| c * x).sum()
    }
}

/// Weighted again so often.
const ROUNDS: usize = 30;
/// Relative errors below this count as equal.
const LEAST_ERROR: f64 = 1e-4;

/// The line with the least sum of relative errors, about; `None` without points.
pub(crate) fn fit(points: &[Point]) -> Option<Line> {
    let points: Vec<Point> = points
        .iter()
        .copied()
        .filter(|p| p.y > 0.0 && p.y.is_finite() && p.x.iter().all(|x| x.is_finite()))
        .collect();
    if points.is_empty() {
        return None;
    }
    // Each term relative to its greatest, and each point relative to its time.
    let mut scale = [0f64; TERMS];
    for p in &points {
        for (s, x) in scale.iter_mut().zip(p.x) {
            *s = s.max(x.abs());
        }
    }
    let typical = median(points.iter().map(|p| p.y).collect());
    let rows: Vec<[f64; TERMS]> = points
        .iter()
        .map(|p| {
            std::array::from_fn(|k| if scale[k] > 0.0 { p.x[k] / scale[k] * typical / p.y } else { 0.0 })
        })
        .collect();
    let mut weights = vec![1.0; rows.len()];
    let mut best = [0.0; TERMS];
    for _ in 0..ROUNDS {
        best = least_squares(&rows, &weights, scale);
        for (weight, row) in weights.iter_mut().zip(&rows) {
            *weight = 1.0 / residual(row, &best).abs().max(LEAST_ERROR);
        }
    }
    let error = median(rows.iter().map(|row| residual(row, &best).abs()).collect());
    let coefficients =
        std::array::from_fn(|k| if scale[k] > 0.0 { best[k] * typical / scale[k] } else { 0.0 });
    Some(Line { coefficients, error })
}

/// Relative error of a scaled point: its target is 1.
fn residual(row: &[f64; TERMS], c: &[f64; TERMS]) -> f64 {
    row.iter().zip(c).map(|(x, c)| x * c).sum::<f64>() - 1.0
}

/// Weighted least squares with coefficients that are not negative: of all subsets of terms the best whose own
/// solution is positive.
fn least_squares(rows: &[[f64; TERMS]], weights: &[f64], scale: [f64; TERMS]) -> [f64; TERMS] {
    let mut best = ([0.0; TERMS], f64::INFINITY);
    for subset in 1u32..1 << TERMS {
        let terms: Vec<usize> = (0..TERMS).filter(|k| subset >> k & 1 == 1).collect();
        if terms.iter().any(|k| scale[*k] == 0.0) {
            continue;
        }
        let Some(c) = normal_equations(rows, weights, &terms).filter(|c| c.iter().all(|c| *c >= 0.0)) else {
            continue;
        };
        let cost: f64 = rows.iter().zip(weights).map(|(row, w)| w * residual(row, &c).powi(2)).sum();
        // A term more must bring something.
        if cost < best.1 * (1.0 - 1e-9) {
            best = (c, cost);
        }
    }
    best.0
}

/// Solves for some of the terms by elimination; `None` if they cannot be told apart.
fn normal_equations(rows: &[[f64; TERMS]], weights: &[f64], terms: &[usize]) -> Option<[f64; TERMS]> {
    let n = terms.len();
    let mut a = [[0.0; TERMS + 1]; TERMS];
    for (row, w) in rows.iter().zip(weights) {
        for i in 0..n {
            for j in 0..n {
                a[i][j] += w * row[terms[i]] * row[terms[j]];
            }
            a[i][n] += w * row[terms[i]];
        }
    }
    let size = (0..n).map(|i| a[i][i]).fold(0.0, f64::max);
    for i in 0..n {
        let pivot = (i..n).max_by(|p, q| a[*p][i].abs().total_cmp(&a[*q][i].abs()))?;
        a.swap(i, pivot);
        if a[i][i].abs() <= 1e-10 * size {
            return None;
        }
        for r in 0..n {
            if r != i {
                let factor = a[r][i] / a[i][i];
                let pivot = a[i];
                for (x, p) in a[r].iter_mut().zip(&pivot).take(n + 1).skip(i) {
                    *x -= factor * p;
                }
            }
        }
    }
    let mut solution = [0.0; TERMS];
    for (i, term) in terms.iter().enumerate() {
        solution[*term] = a[i][n] / a[i][i];
    }
    Some(solution)
}

/// The middle value; 0 of none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uniform in [0, 1), the same for every run.
    fn numbers(mut state: u64) -> impl FnMut() -> f64 {
        move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as f64 / f64::from(1u32 << 31)
        }
    }

    fn close(found: f64, known: f64, tolerance: f64) {
        assert!((found / known - 1.0).abs() < tolerance, "{found:e} for {known:e}");
    }

    #[test]
    fn known_constants_come_back() {
        let known = [20e-6, 1.0 / 50e9, 1.0 / 8e9];
        let mut next = numbers(1);
        let points: Vec<Point> = (0..40)
            .map(|_| {
                let x = [1.0, 1e5 * 1e4f64.powf(next()), 1e3 * 1e4f64.powf(next())];
                Point { x, y: known.iter().zip(x).map(|(c, x)| c * x).sum() }
            })
            .collect();
        let line = fit(&points).unwrap();
        for (found, known) in line.coefficients.iter().zip(known) {
            close(*found, known, 1e-6);
        }
        assert!(line.error < 1e-6);
    }

    /// A fifth of the measurements took up to twenty times as long, the others are off by up to 5%.
    #[test]
    fn noise_and_outliers_do_not_pull() {
        let known = [15e-6, 0.0, 1.0 / 5e9];
        let mut next = numbers(7);
        let points: Vec<Point> = (0..200)
            .map(|i| {
                let x = [1.0, 0.0, 1e3 * 1e5f64.powf(next())];
                let exact: f64 = known.iter().zip(x).map(|(c, x)| c * x).sum();
                let factor = if i % 5 == 0 { 2.0 + 18.0 * next() } else { 0.95 + 0.1 * next() };
                Point { x, y: exact * factor }
            })
            .collect();
        let line = fit(&points).unwrap();
        close(line.coefficients[0], known[0], 0.03);
        close(line.coefficients[2], known[2], 0.03);
        assert_eq!(line.coefficients[1], 0.0);
    }

    #[test]
    fn coefficients_are_not_negative() {
        // Times that fall with size: only a constant can be.
        let points: Vec<Point> =
            (1..9).map(|i| Point { x: [1.0, f64::from(i), 0.0], y: 1.0 - 0.01 * f64::from(i) }).collect();
        let line = fit(&points).unwrap();
        assert_eq!(line.coefficients[1], 0.0);
        close(line.coefficients[0], 0.955, 0.02);
    }

    #[test]
    fn few_points_and_equal_terms() {
        assert_eq!(fit(&[]), None);
        assert_eq!(fit(&[Point { x: [1.0, 2.0, 3.0], y: f64::NAN }]), None);
        let one = fit(&[Point { x: [1.0, 5e6, 3e6], y: 1e-3 }]).unwrap();
        close(one.at([1.0, 5e6, 3e6]), 1e-3, 1e-9);
        // Two terms that are always in proportion.
        let points: Vec<Point> = (1..9)
            .map(|i| Point { x: [1.0, f64::from(i), 2.0 * f64::from(i)], y: 1.0 + f64::from(i) })
            .collect();
        let line = fit(&points).unwrap();
        close(line.at([1.0, 20.0, 40.0]), 21.0, 1e-6);
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(median(vec![3.0, 1.0]), 2.0);
        assert_eq!(median(vec![3.0, 9.0, 1.0]), 3.0);
    }
}
