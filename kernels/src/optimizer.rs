//! Optimizers: sparse ones on the touched rows of a table, dense ones on whole parameters.

use fs_workload::SparseOptimizer;

use crate::mat::{Mat, MatMut};
use crate::real::Real;
use crate::rows::{ahead, assert_rows, prefetch};
use crate::simd::{Kernel, Simd, for_lanes};

/// Rules for updating the rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SparseKind {
    /// w -= lr g
    Sgd,
    /// One state value a row: state += mean(g^2); w -= lr g / (sqrt(state) + eps)
    RowwiseAdagrad,
    /// One state value an element: state += g^2; w -= lr g / (sqrt(state) + eps)
    Adagrad,
    /// Adam whose moments move only for touched rows, as PyTorch's SparseAdam:
    /// w -= lr sqrt(1 - beta2^step) / (1 - beta1^step) m / (sqrt(v) + eps)
    Adam,
}

/// How the rows of a table are updated: a rule, and the settings that it uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowUpdate {
    /// The rule.
    pub kind: SparseKind,
    /// Learning rate.
    pub lr: f64,
    /// Added to the root in the denominator.
    pub eps: f64,
    /// Decay of the first moment (Adam).
    pub beta1: f64,
    /// Decay of the second moment (Adam).
    pub beta2: f64,
    /// `weight_decay * w` is added to the gradient of a touched row.
    pub weight_decay: f64,
}

impl RowUpdate {
    /// The usual settings: eps 1e-8 (1e-10 for Adagrad), betas 0.9 and 0.999, no weight decay.
    pub fn new(kind: SparseKind, lr: f64) -> Self {
        let eps = if kind == SparseKind::Adagrad { 1e-10 } else { 1e-8 };
        RowUpdate { kind, lr, eps, beta1: 0.9, beta2: 0.999, weight_decay: 0.0 }
    }
}

impl From<SparseOptimizer> for RowUpdate {
    fn from(optimizer: SparseOptimizer) -> Self {
        match optimizer {
            SparseOptimizer::Sgd { lr } => Self::new(SparseKind::Sgd, lr),
            SparseOptimizer::RowwiseAdagrad { lr, eps } => {
                Self { eps, ..Self::new(SparseKind::RowwiseAdagrad, lr) }
            }
            SparseOptimizer::Adagrad { lr, eps } => Self { eps, ..Self::new(SparseKind::Adagrad, lr) },
            SparseOptimizer::Adam { lr, beta1, beta2, eps } => {
                Self { eps, beta1, beta2, ..Self::new(SparseKind::Adam, lr) }
            }
        }
    }
}

/// Elements of the first and second state of a table of `rows` x `dim`.
pub fn state_sizes(kind: SparseKind, rows: usize, dim: usize) -> (usize, usize) {
    match kind {
        SparseKind::Sgd => (0, 0),
        SparseKind::RowwiseAdagrad => (rows, 0),
        SparseKind::Adagrad => (rows * dim, 0),
        SparseKind::Adam => (rows * dim, rows * dim),
    }
}

/// Updates the given rows of a table with their summed gradients. `rows` are distinct (sorted is fastest),
/// `grads[i]` belongs to `rows[i]`, `step` counts from 1. States have the sizes of [`state_sizes`] and start
/// from 0.
pub fn sparse_update<T: Real>(
    opt: &RowUpdate,
    step: u64,
    table: MatMut<T>,
    state1: &mut [T],
    state2: &mut [T],
    rows: &[u32],
    grads: Mat<T>,
) {
    assert!(
        (grads.rows(), grads.cols()) == (rows.len(), table.cols()),
        "gradients {grads:?} of {} rows do not fit {table:?}",
        rows.len()
    );
    assert!(
        (state1.len(), state2.len()) == state_sizes(opt.kind, table.rows(), table.cols()),
        "optimizer states of {} and {} elements do not fit {table:?}",
        state1.len(),
        state2.len()
    );
    assert_rows(rows.iter().copied(), table.rows());
    T::dispatch(SparseUpdate { opt: *opt, step, table, state1, state2, rows, grads });
}

struct SparseUpdate<'a, T> {
    opt: RowUpdate,
    step: u64,
    table: MatMut<'a, T>,
    state1: &'a mut [T],
    state2: &'a mut [T],
    rows: &'a [u32],
    grads: Mat<'a, T>,
}

impl<T: Real> Kernel<T> for SparseUpdate<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = T>>(self, s: S) {
        // Compiled for each rule, so that no row asks which.
        match self.opt.kind {
            SparseKind::Sgd => self.update(s, SparseKind::Sgd),
            SparseKind::RowwiseAdagrad => self.update(s, SparseKind::RowwiseAdagrad),
            SparseKind::Adagrad => self.update(s, SparseKind::Adagrad),
            SparseKind::Adam => self.update(s, SparseKind::Adam),
        }
    }
}

impl<T: Real> SparseUpdate<'_, T> {
    #[inline(always)]
    fn update<S: Simd<T = T>>(mut self, s: S, kind: SparseKind) {
        let opt = self.opt;
        let (cols, stride) = (self.table.cols(), self.table.stride());
        let table = self.table.as_mut_ptr();
        let (state1, state2) = (self.state1.as_mut_ptr(), self.state2.as_mut_ptr());
        let splat = |x: f64| s.splat(T::from_f64(x));
        let (lr, eps, decay) = (splat(opt.lr), splat(opt.eps), splat(opt.weight_decay));
        let (keep1, keep2) = (splat(1.0 - opt.beta1), splat(1.0 - opt.beta2));
        let adam_lr = splat(adam_rate(opt.lr, opt.beta1, opt.beta2, self.step));
        let decays = opt.weight_decay != 0.0;
        let ahead = ahead::<T>(cols);
        for (i, row) in self.rows.iter().enumerate() {
            if let Some(next) = self.rows.get(i + ahead) {
                let next = *next as usize;
                prefetch(table.wrapping_add(next * stride), cols);
                match kind {
                    SparseKind::Sgd => {}
                    SparseKind::RowwiseAdagrad => prefetch(state1.wrapping_add(next), 1),
                    SparseKind::Adagrad => prefetch(state1.wrapping_add(next * cols), cols),
                    SparseKind::Adam => {
                        prefetch(state1.wrapping_add(next * cols), cols);
                        prefetch(state2.wrapping_add(next * cols), cols);
                    }
                }
            }
            let row = *row as usize;
            let g = self.grads.row(i).as_ptr();
            // SAFETY: row indices, the gradients' width and the states' sizes were checked.
            unsafe {
                let w = table.add(row * stride);
                let mut row_lr = lr;
                if kind == SparseKind::RowwiseAdagrad {
                    let mut squares = s.splat(T::ZERO);
                    for_lanes!(S, cols, |j, n| {
                        let mut gv = s.load_up_to(g.add(j), n);
                        if decays {
                            gv = s.fma(decay, s.load_up_to(w.add(j), n), gv);
                        }
                        squares = s.fma(gv, gv, squares);
                    });
                    let state = &mut *state1.add(row);
                    *state += s.sum(squares) / T::from_f64(cols as f64);
                    row_lr = s.splat(T::from_f64(opt.lr) / (state.sqrt() + T::from_f64(opt.eps)));
                }
                for_lanes!(S, cols, |j, n| {
                    let wv = s.load_up_to(w.add(j), n);
                    let mut gv = s.load_up_to(g.add(j), n);
                    if decays {
                        gv = s.fma(decay, wv, gv);
                    }
                    let change = match kind {
                        SparseKind::Sgd | SparseKind::RowwiseAdagrad => s.mul(row_lr, gv),
                        SparseKind::Adagrad => {
                            let p = state1.add(row * cols + j);
                            let state = s.fma(gv, gv, s.load_up_to(p, n));
                            s.store_up_to(p, n, state);
                            s.div(s.mul(lr, gv), s.add(s.sqrt(state), eps))
                        }
                        SparseKind::Adam => {
                            let (pm, pv) = (state1.add(row * cols + j), state2.add(row * cols + j));
                            let (m0, v0) = (s.load_up_to(pm, n), s.load_up_to(pv, n));
                            let m = s.fma(keep1, s.sub(gv, m0), m0);
                            let v = s.fma(keep2, s.sub(s.mul(gv, gv), v0), v0);
                            s.store_up_to(pm, n, m);
                            s.store_up_to(pv, n, v);
                            s.div(s.mul(adam_lr, m), s.add(s.sqrt(v), eps))
                        }
                    };
                    s.store_up_to(w.add(j), n, s.sub(wv, change));
                });
            }
        }
    }
}

/// The rate of a table's Adam in a step, which counts from 1: lr sqrt(1 - beta2^step) / (1 - beta1^step).
pub fn adam_rate(lr: f64, beta1: f64, beta2: f64, step: u64) -> f64 {
    let step = step.max(1).min(i32::MAX as u64) as i32;
    lr * (1.0 - beta2.powi(step)).sqrt() / (1.0 - beta1.powi(step))
}

/// What a dense parameter's Adam multiplies with in a step, which counts from 1: lr / (1 - beta1^step) the first moment,
/// and 1 / sqrt(1 - beta2^step) the root of the second.
pub fn dense_adam_factors(lr: f64, beta1: f64, beta2: f64, step: u64) -> (f64, f64) {
    let step = step.max(1).min(i32::MAX as u64) as i32;
    (lr / (1.0 - beta1.powi(step)), 1.0 / (1.0 - beta2.powi(step)).sqrt())
}

/// w -= lr b with b = momentum b + g; g includes `weight_decay * w`. Without a momentum buffer b = g. The buffer
/// starts from 0.
pub fn dense_sgd<T: Real>(
    w: &mut [T],
    g: &[T],
    buffer: Option<&mut [T]>,
    lr: f64,
    momentum: f64,
    weight_decay: f64,
) {
    assert!(w.len() == g.len(), "{} gradients of {} parameters", g.len(), w.len());
    let (lr, momentum, decay) = (T::from_f64(lr), T::from_f64(momentum), T::from_f64(weight_decay));
    match buffer {
        Some(buffer) => {
            assert!(buffer.len() == w.len(), "a momentum of {} for {} parameters", buffer.len(), w.len());
            for ((w, g), b) in w.iter_mut().zip(g).zip(buffer) {
                *b = momentum * *b + (*g + decay * *w);
                *w -= lr * *b;
            }
        }
        None => {
            for (w, g) in w.iter_mut().zip(g) {
                *w -= lr * (*g + decay * *w);
            }
        }
    }
}

/// Adam as in PyTorch: m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2,
/// w -= lr / (1 - beta1^step) m / (sqrt(v) / sqrt(1 - beta2^step) + eps); g includes `weight_decay * w`.
/// `step` counts from 1; m and v start from 0.
pub fn dense_adam<T: Real>(
    w: &mut [T],
    g: &[T],
    m: &mut [T],
    v: &mut [T],
    lr: f64,
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    step: u64,
) {
    assert!(
        w.len() == g.len() && w.len() == m.len() && w.len() == v.len(),
        "{} gradients and moments of {} and {} for {} parameters",
        g.len(),
        m.len(),
        v.len(),
        w.len()
    );
    T::dispatch(DenseAdam { w, g, m, v, lr, beta1, beta2, eps, weight_decay, step });
}

struct DenseAdam<'a, T> {
    w: &'a mut [T],
    g: &'a [T],
    m: &'a mut [T],
    v: &'a mut [T],
    lr: f64,
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    step: u64,
}

impl<T: Real> Kernel<T> for DenseAdam<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = T>>(self, s: S) {
        let splat = |x: f64| s.splat(T::from_f64(x));
        let (rate, root) = dense_adam_factors(self.lr, self.beta1, self.beta2, self.step);
        let (rate, root) = (splat(rate), splat(root));
        let (keep1, keep2) = (splat(1.0 - self.beta1), splat(1.0 - self.beta2));
        let (eps, decay) = (splat(self.eps), splat(self.weight_decay));
        let (w, g) = (self.w.as_mut_ptr(), self.g.as_ptr());
        let (m, v) = (self.m.as_mut_ptr(), self.v.as_mut_ptr());
        // SAFETY: all four slices have the same length.
        unsafe {
            for_lanes!(S, self.g.len(), |j, n| {
                let wv = s.load_up_to(w.add(j), n);
                let gv = s.fma(decay, wv, s.load_up_to(g.add(j), n));
                let (m0, v0) = (s.load_up_to(m.add(j), n), s.load_up_to(v.add(j), n));
                let mv = s.fma(keep1, s.sub(gv, m0), m0);
                let vv = s.fma(keep2, s.sub(s.mul(gv, gv), v0), v0);
                s.store_up_to(m.add(j), n, mv);
                s.store_up_to(v.add(j), n, vv);
                let change = s.div(s.mul(rate, mv), s.fma(s.sqrt(vv), root, eps));
                s.store_up_to(w.add(j), n, s.sub(wv, change));
            });
        }
    }
}
