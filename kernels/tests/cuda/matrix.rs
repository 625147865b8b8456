//! Matrices of activations that lie in wider buffers, and how results are held against the CPU's.

use fs_kernels::cuda::In;
use fs_kernels::cuda::catalogue::{Out, Real};
use fs_kernels::cuda::sources::Precision;
use fs_kernels::{Mat, MatMut};

use super::common::Source;
use super::device::{Device, POISON, Reals};

/// Columns before a matrix and after it in its buffer: none; whole packs of 16 bytes; neither addresses nor strides of
/// whole packs; strides alone.
pub(crate) const LAYOUTS: [(usize, usize); 4] = [(0, 0), (8, 16), (3, 2), (0, 1)];

/// Rows and columns: none, one, odd, whole packs, a wide row, many rows.
pub(crate) const SHAPES: [(usize, usize); 9] =
    [(0, 8), (3, 0), (1, 1), (1, 4), (3, 37), (33, 64), (9, 130), (5, 1000), (700, 24)];

/// A matrix in a buffer of its own, whose other columns are poisoned.
pub(crate) struct Matrix {
    pub rows: usize,
    pub cols: usize,
    skip: usize,
    stride: usize,
    bytes: usize,
    memory: Reals,
}

impl Matrix {
    /// With values, rows one after the other.
    pub(crate) fn of(
        device: &Device,
        rows: usize,
        cols: usize,
        layout: (usize, usize),
        values: &[f32],
    ) -> Self {
        assert_eq!(values.len(), rows * cols);
        let (skip, stride) = (layout.0, layout.0 + cols + layout.1);
        let mut buffer = vec![POISON; rows * stride];
        for i in 0..rows {
            buffer[i * stride + skip..][..cols].copy_from_slice(&values[i * cols..][..cols]);
        }
        let memory = device.reals(&buffer);
        Matrix { rows, cols, skip, stride, bytes: device.precision.bytes(), memory }
    }

    /// To be written: poisoned, or with what is added to.
    pub(crate) fn target(
        device: &Device,
        rows: usize,
        cols: usize,
        layout: (usize, usize),
        old: Option<&[f32]>,
    ) -> Self {
        let poison = vec![POISON; rows * cols];
        Self::of(device, rows, cols, layout, old.unwrap_or(&poison))
    }

    pub(crate) fn read(&self) -> In<Real> {
        In::at(self.memory.read().0 + (self.skip * self.bytes) as u64)
    }

    pub(crate) fn write(&mut self) -> Out<Real> {
        Out::at(self.memory.write().0 + (self.skip * self.bytes) as u64)
    }

    pub(crate) fn stride(&self) -> u64 {
        self.stride as u64
    }

    /// Its values; what is around them must be as it was.
    #[track_caller]
    pub(crate) fn values(&self) -> Vec<f32> {
        let buffer = self.memory.values();
        let mut values = vec![];
        for i in 0..self.rows {
            let row = &buffer[i * self.stride..][..self.stride];
            values.extend_from_slice(&row[self.skip..][..self.cols]);
            let around = row[..self.skip].iter().chain(&row[self.skip + self.cols..]);
            assert!(around.into_iter().all(|x| *x == POISON), "something beside row {i} was written");
        }
        values
    }
}

/// Random activations in (-1, 1).
pub(crate) fn random(source: &mut Source, device: &Device, n: usize) -> Vec<f32> {
    (0..n).map(|_| device.rounded(source.signed() as f32)).collect()
}

/// What a CPU kernel writes.
pub(crate) fn made(rows: usize, cols: usize, old: Option<&[f32]>, f: impl FnOnce(MatMut<f32>)) -> Vec<f32> {
    let mut values = old.map_or_else(|| vec![f32::NAN; rows * cols], <[f32]>::to_vec);
    f(MatMut::new(&mut values, rows, cols));
    values
}

/// The same, added to what was there.
pub(crate) fn made_and_added(
    rows: usize,
    cols: usize,
    old: Option<&[f32]>,
    f: impl FnOnce(MatMut<f32>),
) -> Vec<f32> {
    let mut values = made(rows, cols, None, f);
    for (value, old) in values.iter_mut().zip(old.unwrap_or_default()) {
        *value += *old;
    }
    values
}

pub(crate) fn mat(values: &[f32], rows: usize, cols: usize) -> Mat<'_, f32> {
    Mat::new(values, rows, cols)
}

/// |a - b| / |b|, 0 for nothing.
fn distance(got: &[f32], expect: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let apart: f64 = got.iter().zip(expect).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    let norm: f64 = expect.iter().map(|b| square(f64::from(*b))).sum();
    if apart == 0.0 { 0.0 } else { (apart / norm).sqrt() }
}

/// Floats within 1e-5 of the norm.
#[track_caller]
pub(crate) fn assert_floats(what: &str, got: &[f32], expect: &[f32], tolerance: f64) {
    assert_eq!(got.len(), expect.len(), "{what}");
    let off = distance(got, expect);
    assert!(off <= tolerance, "{what}: off by {off:e} of the norm, at most {tolerance:e}");
}

/// Results of activations: within 1e-5 of the norm for floats, 1e-2 for brain floats.
#[track_caller]
pub(crate) fn assert_near(device: &Device, what: &str, got: &[f32], expect: &[f32]) {
    let tolerance = if device.precision == Precision::F32 { 1e-5 } else { 1e-2 };
    assert_floats(what, got, expect, tolerance);
}

/// Floats in every bit; brain floats in every bit of what the CPU's result is rounded to.
#[track_caller]
pub(crate) fn assert_bits(device: &Device, what: &str, got: &[f32], expect: &[f32]) {
    assert_eq!(got.len(), expect.len(), "{what}");
    for (i, (a, b)) in got.iter().zip(expect).enumerate() {
        let b = device.rounded(*b);
        assert!(a.to_bits() == b.to_bits(), "{what}: element {i} is {a}, not {b}");
    }
}
