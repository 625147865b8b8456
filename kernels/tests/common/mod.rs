//! Random matrices, and gradients held against differences.
#![allow(dead_code, reason = "each test binary uses its part")]

use fs_kernels::{Mat, MatMut, Real};
use fs_workload::random::{RandomKey, uniform_f64};

/// A reproducible source of numbers.
pub(crate) struct Source {
    key: RandomKey,
    next: u64,
}

impl Source {
    pub(crate) fn new(seed: u64) -> Self {
        Source { key: RandomKey { seed, stream: 77, step: 0 }, next: 0 }
    }
    pub(crate) fn unit(&mut self) -> f64 {
        self.next += 1;
        uniform_f64(self.key, self.next)
    }
    /// In (-1, 1).
    pub(crate) fn signed(&mut self) -> f64 {
        2.0 * self.unit() - 1.0
    }
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.unit() * n as f64) as usize
    }
    pub(crate) fn vec(&mut self, n: usize) -> Vec<f64> {
        (0..n).map(|_| self.signed()).collect()
    }
    /// Offsets of sequences of random lengths up to `longest`, some of them empty.
    pub(crate) fn offsets(&mut self, sequences: usize, longest: usize) -> Vec<usize> {
        let mut offsets = vec![0];
        for s in 0..sequences {
            let len = if s % 3 == 1 { 0 } else { self.below(longest + 1) };
            offsets.push(offsets[s] + len);
        }
        offsets
    }
}

/// An owned matrix with a gap after each row, so that views are strided.
#[derive(Clone, Debug)]
pub(crate) struct Grid<T> {
    pub data: Vec<T>,
    pub rows: usize,
    pub cols: usize,
    pub gap: usize,
}

impl<T: Real> Grid<T> {
    pub(crate) fn zeros(rows: usize, cols: usize, gap: usize) -> Self {
        // The gap holds a marker: a kernel that writes it, or sums it, is found out.
        Grid { data: vec![T::from_f64(1e6); rows * (cols + gap)], rows, cols, gap }.with(|_, _| 0.0)
    }
    pub(crate) fn random(source: &mut Source, rows: usize, cols: usize, gap: usize) -> Self {
        Self::zeros(rows, cols, gap).with(|_, _| source.signed())
    }
    pub(crate) fn with(mut self, mut f: impl FnMut(usize, usize) -> f64) -> Self {
        for i in 0..self.rows {
            for j in 0..self.cols {
                self.data[i * (self.cols + self.gap) + j] = T::from_f64(f(i, j));
            }
        }
        self
    }
    pub(crate) fn at(&self, i: usize, j: usize) -> f64 {
        self.data[i * (self.cols + self.gap) + j].to_f64()
    }
    pub(crate) fn view(&self) -> Mat<'_, T> {
        Mat::with_stride(&self.data, self.rows, self.cols, self.cols + self.gap)
    }
    pub(crate) fn view_mut(&mut self) -> MatMut<'_, T> {
        MatMut::with_stride(&mut self.data, self.rows, self.cols, self.cols + self.gap)
    }
    pub(crate) fn cast<U: Real>(&self) -> Grid<U> {
        Grid::zeros(self.rows, self.cols, self.gap).with(|i, j| self.at(i, j))
    }
    pub(crate) fn assert_gaps(&self) {
        for i in 0..self.rows {
            for j in self.cols..self.cols + self.gap {
                assert_eq!(self.at(i, j), 1e6, "the gap after row {i} was written");
            }
        }
    }
    /// Sum of the elements times those of `other`.
    pub(crate) fn dot(&self, other: &Grid<T>) -> f64 {
        let mut sum = 0.0;
        for i in 0..self.rows {
            for j in 0..self.cols {
                sum += self.at(i, j) * other.at(i, j);
            }
        }
        sum
    }
}

/// Asserts |a - b| <= tolerance (1 + |b|) for all elements, and untouched gaps.
pub(crate) fn assert_close<T: Real, U: Real>(what: &str, a: &Grid<T>, b: &Grid<U>, tolerance: f64) {
    assert_eq!((a.rows, a.cols), (b.rows, b.cols), "{what}");
    a.assert_gaps();
    for i in 0..a.rows {
        for j in 0..a.cols {
            let (x, y) = (a.at(i, j), b.at(i, j));
            assert!(
                (x - y).abs() <= tolerance * (1.0 + y.abs()),
                "{what}[{i},{j}] is {x}, not {y} (off by {})",
                (x - y).abs()
            );
        }
    }
}

/// Asserts that `grad` is the gradient of `f` at `x`, by central differences.
pub(crate) fn assert_gradient(
    what: &str,
    x: &Grid<f64>,
    grad: &Grid<f64>,
    mut f: impl FnMut(&Grid<f64>) -> f64,
) {
    assert_eq!((x.rows, x.cols), (grad.rows, grad.cols), "{what}");
    grad.assert_gaps();
    let step = 1e-5;
    for i in 0..x.rows {
        for j in 0..x.cols {
            let mut moved = x.clone();
            let at = i * (x.cols + x.gap) + j;
            moved.data[at] = x.data[at] + step;
            let up = f(&moved);
            moved.data[at] = x.data[at] - step;
            let down = f(&moved);
            let expect = (up - down) / (2.0 * step);
            let got = grad.at(i, j);
            assert!(
                (got - expect).abs() <= 1e-6 * (1.0 + expect.abs()),
                "{what}[{i},{j}]: gradient {got}, by differences {expect}"
            );
        }
    }
}

/// Adds 1 to a copy, to see that `Write::Add` adds.
pub(crate) fn plus_one(x: &Grid<f64>) -> Grid<f64> {
    let mut y = x.clone();
    for i in 0..x.rows {
        for j in 0..x.cols {
            y.data[i * (x.cols + x.gap) + j] += 1.0;
        }
    }
    y
}
