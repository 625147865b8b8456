//! Attention over jagged sequences, pointwise (HSTU's SiLU) and softmax.
//!
//! For each sequence and head the operands are packed once: queries, keys and values by rows padded to whole
//! vectors, keys (and values, in the backward pass) also transposed into panels. Query rows are then taken in
//! blocks; a block's scores against a chunk of keys live in a small buffer and are computed again in the backward
//! pass, so nothing of size L x L exists. All products run in the matrix micro-kernel. Under a causal mask only
//! the lower half is computed: a block stops at its own diagonal, which is cut finer than the block.

mod pack;
mod weigh;

use std::ops::Range;

use pack::{Part, Unpack, pack, unpack};
use weigh::{Weigh, WeighGrad};

use crate::mat::{Mat, MatMut, check_offsets, sequence};
use crate::micro::Product;
use crate::real::Real;
use crate::scratch::Scratch;

/// Query rows in a block.
const BLOCK: usize = 64;
/// Keys in a transposed panel.
const PANEL: usize = 64;
/// Rows between cuts along the diagonal: blocks, panels and vectors all begin at multiples of it.
const STEP: usize = 16;
/// Padding of rows: the longest vector.
const PAD: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Score {
    /// silu(s) / L, causal.
    Silu,
    /// softmax of s over the keys.
    Softmax { causal: bool },
}

impl Score {
    fn causal(self) -> bool {
        !matches!(self, Score::Softmax { causal: false })
    }
}

/// HSTU's pointwise attention: y_i = sum over j <= i of silu(q_i . k_j / sqrt(d)) / L * v_j, for each sequence of
/// length L and each head. All matrices are [tokens, heads * d]; head h is columns h d .. (h + 1) d.
pub fn silu_attention<T: Real>(
    q: Mat<T>,
    k: Mat<T>,
    v: Mat<T>,
    offsets: &[usize],
    heads: usize,
    y: MatMut<T>,
    scratch: &mut Scratch<T>,
) {
    let mut none = [];
    forward(Score::Silu, q, k, v, offsets, heads, y, &mut none, scratch);
}

/// Gradients of [`silu_attention`]; gq, gk and gv are overwritten.
pub fn silu_attention_grad<T: Real>(
    q: Mat<T>,
    k: Mat<T>,
    v: Mat<T>,
    offsets: &[usize],
    heads: usize,
    gy: Mat<T>,
    gq: MatMut<T>,
    gk: MatMut<T>,
    gv: MatMut<T>,
    scratch: &mut Scratch<T>,
) {
    backward(Score::Silu, q, k, v, &[], offsets, heads, gy, gq, gk, gv, scratch);
}

/// Scaled dot-product attention: y_i = sum over j of p_ij v_j with p_i = softmax(q_i . k_j / sqrt(d)) over the
/// keys of the same sequence, those up to i only where `causal`. `stats` ([tokens, heads]) receives the logarithm
/// of each row's sum of exponentials, for the gradient.
pub fn softmax_attention<T: Real>(
    q: Mat<T>,
    k: Mat<T>,
    v: Mat<T>,
    offsets: &[usize],
    heads: usize,
    causal: bool,
    y: MatMut<T>,
    stats: &mut [T],
    scratch: &mut Scratch<T>,
) {
    assert!(stats.len() == q.rows() * heads, "{} statistics for {q:?} with {heads} heads", stats.len());
    forward(Score::Softmax { causal }, q, k, v, offsets, heads, y, stats, scratch);
}

/// Gradients of [`softmax_attention`], given its `stats`; gq, gk and gv are overwritten.
pub fn softmax_attention_grad<T: Real>(
    q: Mat<T>,
    k: Mat<T>,
    v: Mat<T>,
    stats: &[T],
    offsets: &[usize],
    heads: usize,
    causal: bool,
    gy: Mat<T>,
    gq: MatMut<T>,
    gk: MatMut<T>,
    gv: MatMut<T>,
    scratch: &mut Scratch<T>,
) {
    assert!(stats.len() == q.rows() * heads, "{} statistics for {q:?} with {heads} heads", stats.len());
    backward(Score::Softmax { causal }, q, k, v, stats, offsets, heads, gy, gq, gk, gv, scratch);
}

/// Checks shapes; returns the head's width and the longest sequence.
fn measure<T>(like: Mat<T>, others: &[Mat<T>], offsets: &[usize], heads: usize) -> (usize, usize) {
    for other in others {
        assert!(
            (other.rows(), other.cols()) == (like.rows(), like.cols()),
            "{other:?} differs in shape from the queries {like:?}"
        );
    }
    assert!(heads > 0 && like.cols().is_multiple_of(heads), "{} columns for {heads} heads", like.cols());
    check_offsets(offsets, like.rows());
    let longest = offsets.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0);
    (like.cols() / heads, longest)
}

/// One head of one sequence: its size and how its score blocks are laid out.
#[derive(Clone, Copy)]
struct HeadShape {
    score: Score,
    /// Length of the sequence.
    len: usize,
    /// Width of the head, and padded.
    dim: usize,
    wide: usize,
    /// Keys in a chunk, the row stride of a score block.
    chunk: usize,
}

impl HeadShape {
    fn new(score: Score, len: usize, dim: usize) -> Self {
        let chunk = match score {
            Score::Silu => PANEL.min(len.next_multiple_of(PAD)),
            // A softmax needs its whole row.
            Score::Softmax { .. } => len.next_multiple_of(PANEL),
        };
        HeadShape { score, len, dim, wide: dim.next_multiple_of(PAD), chunk }
    }

    /// Keys that the query rows below `end` see.
    fn keys(self, end: usize) -> usize {
        if self.score.causal() { end } else { self.len }
    }

    /// Elements of packed rows, with room for a transposition's squares.
    fn rows(self) -> usize {
        self.len.next_multiple_of(PAD) * self.wide
    }

    /// Elements of transposed panels.
    fn panels(self) -> usize {
        self.len.next_multiple_of(PANEL) * self.wide
    }

    /// scores = A B^T for the block's rows and the chunk's keys, B in panels. Computes whole vectors: columns
    /// past the mask hold numbers that mean nothing.
    fn scores<T: Real>(self, a: &[T], panels: &[T], block: Range<usize>, chunk: Range<usize>, out: &mut [T]) {
        for first in chunk.clone().step_by(PANEL) {
            let last = (first + PANEL).min(chunk.end);
            let mut rows = block.start..block.end;
            while rows.start < block.end {
                // Along the diagonal every few rows see more keys; elsewhere the block is one piece.
                let mut seen = last;
                rows.end = block.end;
                if self.score.causal() && last > rows.start + STEP {
                    rows.end = (rows.start + STEP).min(block.end);
                    seen = last.min(rows.end);
                }
                if seen > first {
                    let n = (seen - first).next_multiple_of(PAD).min(PANEL).min(self.chunk);
                    let (a, b) =
                        (&a[rows.start * self.wide..rows.end * self.wide], &panels[first * self.wide..]);
                    let at = (rows.start - block.start) * self.chunk + first - chunk.start;
                    let out = &mut out[at..];
                    debug_assert!(out.len() >= (rows.len() - 1) * self.chunk + n);
                    debug_assert!(b.len() >= self.wide * PANEL);
                    // SAFETY: the slices above hold the operands; `out` is another buffer.
                    unsafe {
                        Product {
                            m: rows.len(),
                            n,
                            k: self.dim,
                            a: a.as_ptr(),
                            a_row: self.wide,
                            a_step: 1,
                            b: b.as_ptr(),
                            b_row: PANEL,
                            c: out.as_mut_ptr(),
                            c_row: self.chunk,
                            start: std::ptr::null(),
                            start_row: 0,
                        }
                        .run();
                    }
                }
                rows.start = rows.end;
            }
        }
    }

    /// out[rows of the block] (+)= scores B[keys of the chunk].
    fn by_rows<T: Real>(
        self,
        scores: &[T],
        b: &[T],
        block: Range<usize>,
        chunk: Range<usize>,
        out: &mut [T],
        add: bool,
    ) {
        let mut rows = block.start..block.end;
        while rows.start < block.end {
            let mut seen = chunk.end;
            rows.end = block.end;
            if self.score.causal() && chunk.end > rows.start + STEP {
                rows.end = (rows.start + STEP).min(block.end);
                seen = chunk.end.min(rows.end);
            }
            let k = seen.saturating_sub(chunk.start);
            let scores = &scores[(rows.start - block.start) * self.chunk..];
            let b = &b[chunk.start * self.wide..(chunk.start + k) * self.wide];
            let out = &mut out[(rows.start - block.start) * self.wide..(rows.end - block.start) * self.wide];
            debug_assert!(k == 0 || scores.len() >= (rows.len() - 1) * self.chunk + k);
            let c = out.as_mut_ptr();
            // SAFETY: the slices above hold the operands, in three buffers.
            unsafe {
                Product {
                    m: rows.len(),
                    n: self.wide,
                    k,
                    a: scores.as_ptr(),
                    a_row: self.chunk,
                    a_step: 1,
                    b: b.as_ptr(),
                    b_row: self.wide,
                    c,
                    c_row: self.wide,
                    start: if add { c.cast_const() } else { std::ptr::null() },
                    start_row: self.wide,
                }
                .run();
            }
            rows.start = rows.end;
        }
    }

    /// out[keys of the chunk] += scores^T B[rows of the block].
    fn by_keys<T: Real>(
        self,
        scores: &[T],
        b: &[T],
        block: Range<usize>,
        chunk: Range<usize>,
        out: &mut [T],
    ) {
        let mut keys = chunk.start..chunk.end;
        while keys.start < chunk.end {
            // Keys past the block's first row are seen from their own row on.
            let mut first = block.start;
            keys.end = chunk.end;
            if self.score.causal() && chunk.end > block.start + 1 {
                if keys.start < block.start {
                    keys.end = block.start;
                } else {
                    keys.end = (keys.start + STEP).min(chunk.end);
                    first = keys.start;
                }
            }
            let scores = &scores[(first - block.start) * self.chunk + keys.start - chunk.start..];
            let b = &b[first * self.wide..block.end * self.wide];
            let out = &mut out[keys.start * self.wide..keys.end * self.wide];
            debug_assert!(scores.len() >= (block.end - first - 1) * self.chunk + keys.len());
            let c = out.as_mut_ptr();
            // SAFETY: the slices above hold the operands, in three buffers.
            unsafe {
                Product {
                    m: keys.len(),
                    n: self.wide,
                    k: block.end - first,
                    a: scores.as_ptr(),
                    a_row: 1,
                    a_step: self.chunk,
                    b: b.as_ptr(),
                    b_row: self.wide,
                    c,
                    c_row: self.wide,
                    start: c.cast_const(),
                    start_row: self.wide,
                }
                .run();
            }
            keys.start = keys.end;
        }
    }
}

fn forward<T: Real>(
    score: Score,
    q: Mat<T>,
    k: Mat<T>,
    v: Mat<T>,
    offsets: &[usize],
    heads: usize,
    mut y: MatMut<T>,
    stats: &mut [T],
    scratch: &mut Scratch<T>,
) {
    let (dim, longest) = measure(q, &[k, v, y.as_mat()], offsets, heads);
    if dim == 0 || longest == 0 {
        return;
    }
    let most = HeadShape::new(score, longest, dim);
    let rows = most.rows();
    let [qp, kp, vp, kt, yp, scores] =
        scratch.parts([rows, rows, rows, most.panels(), BLOCK * most.wide, BLOCK * most.chunk]);
    let root = T::ONE / T::from_f64(dim as f64).sqrt();
    let mut rows_stats = [(T::ZERO, T::ZERO); BLOCK];
    for s in 0..offsets.len() - 1 {
        let tokens = sequence(offsets, s);
        if tokens.is_empty() {
            continue;
        }
        let shape = HeadShape::new(score, tokens.len(), dim);
        for head in 0..heads {
            let columns = head * dim..(head + 1) * dim;
            let wide = shape.wide;
            let part = Part { tokens: tokens.clone(), columns: columns.clone() };
            pack(q, &part, root, wide, qp, None);
            pack(k, &part, T::ONE, wide, kp, Some(kt));
            pack(v, &part, T::ONE, wide, vp, None);
            for start in (0..shape.len).step_by(BLOCK) {
                let block = start..(start + BLOCK).min(shape.len);
                let keys = shape.keys(block.end);
                for first in (0..keys).step_by(shape.chunk) {
                    let chunk = first..(first + shape.chunk).min(keys);
                    shape.scores(qp, kt, block.clone(), chunk.clone(), scores);
                    T::dispatch(Weigh {
                        shape,
                        block: block.clone(),
                        chunk: chunk.clone(),
                        scores,
                        stats: &mut rows_stats,
                    });
                    shape.by_rows(scores, vp, block.clone(), chunk, yp, first > 0);
                }
                let tokens = tokens.start + block.start..tokens.start + block.end;
                match score {
                    Score::Silu => {
                        let factor = T::ONE / T::from_f64(shape.len as f64);
                        unpack(yp, Part { tokens, columns: columns.clone() }, factor, wide, y.reborrow());
                    }
                    Score::Softmax { .. } => {
                        for (token, (top, sum)) in tokens.clone().zip(rows_stats) {
                            stats[token * heads + head] = top + sum.ln();
                        }
                        let part = Part { tokens, columns: columns.clone() };
                        let (packed, sums, y) = (&*yp, Some(&rows_stats[..]), y.reborrow());
                        T::dispatch(Unpack { packed, part, factor: T::ONE, sums, wide, y });
                    }
                }
            }
        }
    }
}

fn backward<T: Real>(
    score: Score,
    q: Mat<T>,
    k: Mat<T>,
    v: Mat<T>,
    stats: &[T],
    offsets: &[usize],
    heads: usize,
    gy: Mat<T>,
    mut gq: MatMut<T>,
    mut gk: MatMut<T>,
    mut gv: MatMut<T>,
    scratch: &mut Scratch<T>,
) {
    let (dim, longest) = measure(q, &[k, v, gy, gq.as_mat(), gk.as_mat(), gv.as_mat()], offsets, heads);
    if dim == 0 || longest == 0 {
        return;
    }
    let most = HeadShape::new(score, longest, dim);
    let (rows, panels, cell) = (most.rows(), most.panels(), BLOCK * most.chunk);
    let [qp, kp, vp, gyp, kt, vt, gqp, gkp, gvp, weights, grads] =
        scratch.parts([rows, rows, rows, rows, panels, panels, BLOCK * most.wide, rows, rows, cell, cell]);
    let root = T::ONE / T::from_f64(dim as f64).sqrt();
    for s in 0..offsets.len() - 1 {
        let tokens = sequence(offsets, s);
        if tokens.is_empty() {
            continue;
        }
        let shape = HeadShape::new(score, tokens.len(), dim);
        let (len, wide) = (shape.len, shape.wide);
        // The pointwise weights' 1 / L goes into gy, once an element instead of once a score.
        let gy_factor = if score == Score::Silu { T::ONE / T::from_f64(len as f64) } else { T::ONE };
        for head in 0..heads {
            let columns = head * dim..(head + 1) * dim;
            let part = Part { tokens: tokens.clone(), columns: columns.clone() };
            pack(q, &part, root, wide, qp, None);
            pack(k, &part, T::ONE, wide, kp, Some(kt));
            pack(v, &part, T::ONE, wide, vp, Some(vt));
            pack(gy, &part, gy_factor, wide, gyp, None);
            gkp[..len * wide].fill(T::ZERO);
            gvp[..len * wide].fill(T::ZERO);
            for start in (0..len).step_by(BLOCK) {
                let block = start..(start + BLOCK).min(len);
                let keys = shape.keys(block.end);
                let mut lse = [T::ZERO; BLOCK];
                if score != Score::Silu {
                    for (lse, i) in lse.iter_mut().zip(block.clone()) {
                        *lse = stats[(tokens.start + i) * heads + head];
                    }
                }
                for first in (0..keys).step_by(shape.chunk) {
                    let chunk = first..(first + shape.chunk).min(keys);
                    shape.scores(qp, kt, block.clone(), chunk.clone(), weights);
                    shape.scores(gyp, vt, block.clone(), chunk.clone(), grads);
                    T::dispatch(WeighGrad {
                        shape,
                        block: block.clone(),
                        chunk: chunk.clone(),
                        weights,
                        grads,
                        lse: &lse,
                    });
                    shape.by_rows(grads, kp, block.clone(), chunk.clone(), gqp, first > 0);
                    shape.by_keys(weights, gyp, block.clone(), chunk.clone(), gvp);
                    shape.by_keys(grads, qp, block.clone(), chunk, gkp);
                }
                let tokens = tokens.start + block.start..tokens.start + block.end;
                unpack(gqp, Part { tokens, columns: columns.clone() }, root, wide, gq.reborrow());
            }
            unpack(gkp, part.clone(), T::ONE, wide, gk.reborrow());
            unpack(gvp, part, T::ONE, wide, gv.reborrow());
        }
    }
}
