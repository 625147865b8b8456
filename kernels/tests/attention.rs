//! Attention against its definition and against differences.

mod common;

use common::{Grid, Source, assert_close, assert_gradient};
use fs_kernels::attention::{silu_attention, silu_attention_grad, softmax_attention, softmax_attention_grad};
use fs_kernels::simd::{Level, limit_level};
use fs_kernels::{Real, Scratch};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Scoring {
    Silu,
    Softmax(bool),
}

const KINDS: [Scoring; 3] = [Scoring::Silu, Scoring::Softmax(true), Scoring::Softmax(false)];

/// y by the definition, in double precision.
fn naive(
    kind: Scoring,
    q: &Grid<f64>,
    k: &Grid<f64>,
    v: &Grid<f64>,
    offsets: &[usize],
    heads: usize,
) -> Grid<f64> {
    let dim = q.cols / heads;
    let mut y = Grid::zeros(q.rows, q.cols, 3);
    for w in offsets.windows(2) {
        for head in 0..heads {
            for i in w[0]..w[1] {
                let end = if kind == Scoring::Softmax(false) { w[1] } else { i + 1 };
                let score = |j: usize| {
                    let dot: f64 = (0..dim).map(|c| q.at(i, head * dim + c) * k.at(j, head * dim + c)).sum();
                    dot / (dim as f64).sqrt()
                };
                let scores: Vec<f64> = (w[0]..end).map(score).collect();
                let weights: Vec<f64> = match kind {
                    Scoring::Silu => {
                        scores.iter().map(|s| s / (1.0 + (-s).exp()) / (w[1] - w[0]) as f64).collect()
                    }
                    Scoring::Softmax(_) => {
                        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                        let sum: f64 = scores.iter().map(|s| (s - top).exp()).sum();
                        scores.iter().map(|s| (s - top).exp() / sum).collect()
                    }
                };
                for c in head * dim..(head + 1) * dim {
                    let sum: f64 = weights.iter().zip(w[0]..).map(|(a, j)| a * v.at(j, c)).sum();
                    y.data[i * (q.cols + 3) + c] = sum;
                }
            }
        }
    }
    y
}

fn forward<T: Real>(
    kind: Scoring,
    q: &Grid<T>,
    k: &Grid<T>,
    v: &Grid<T>,
    offsets: &[usize],
    heads: usize,
) -> (Grid<T>, Vec<T>) {
    let mut y = Grid::zeros(q.rows, q.cols, 3);
    let mut stats = vec![T::ZERO; q.rows * heads];
    let mut scratch = Scratch::new();
    let (q, k, v) = (q.view(), k.view(), v.view());
    match kind {
        Scoring::Silu => silu_attention(q, k, v, offsets, heads, y.view_mut(), &mut scratch),
        Scoring::Softmax(causal) => {
            softmax_attention(q, k, v, offsets, heads, causal, y.view_mut(), &mut stats, &mut scratch);
        }
    }
    (y, stats)
}

fn backward<T: Real>(
    kind: Scoring,
    q: &Grid<T>,
    k: &Grid<T>,
    v: &Grid<T>,
    stats: &[T],
    offsets: &[usize],
    heads: usize,
    gy: &Grid<T>,
) -> [Grid<T>; 3] {
    let [mut gq, mut gk, mut gv] = [0, 1, 2].map(|gap| Grid::zeros(q.rows, q.cols, gap).with(|_, _| 9.0));
    let mut scratch = Scratch::new();
    let (q, k, v, gy) = (q.view(), k.view(), v.view(), gy.view());
    let (mq, mk, mv) = (gq.view_mut(), gk.view_mut(), gv.view_mut());
    match kind {
        Scoring::Silu => silu_attention_grad(q, k, v, offsets, heads, gy, mq, mk, mv, &mut scratch),
        Scoring::Softmax(causal) => {
            softmax_attention_grad(q, k, v, stats, offsets, heads, causal, gy, mq, mk, mv, &mut scratch);
        }
    }
    [gq, gk, gv]
}

fn operands(source: &mut Source, tokens: usize, cols: usize) -> [Grid<f64>; 4] {
    [5, 0, 2, 7].map(|gap| Grid::random(source, tokens, cols, gap).with(|_, _| 1.5 * source.signed()))
}

#[test]
fn forward_is_the_definition() {
    let mut source = Source::new(1);
    for (heads, dim, longest) in
        [(1, 8, 30), (2, 32, 150), (3, 20, 70), (1, 128, 65), (2, 5, 200), (1, 48, 64)]
    {
        let offsets = source.offsets(5, longest);
        let [q, k, v, _] = operands(&mut source, offsets[5], heads * dim);
        for kind in KINDS {
            let expect = naive(kind, &q, &k, &v, &offsets, heads);
            let (y, _) = forward(kind, &q, &k, &v, &offsets, heads);
            assert_close("y", &y, &expect, 1e-12);
            for level in [Level::Avx512, Level::Avx2, Level::Portable] {
                limit_level(level);
                let (y, _) = forward(kind, &q.cast::<f32>(), &k.cast(), &v.cast(), &offsets, heads);
                assert_close("y in f32", &y, &expect, 2e-6);
            }
        }
    }
}

#[test]
fn every_length_is_covered() {
    let mut source = Source::new(2);
    for len in (0..=70).chain([95, 96, 97, 127, 128, 129, 191, 192, 193]) {
        let offsets = [0, len];
        let [q, k, v, gy] = operands(&mut source, len, 16);
        for kind in KINDS {
            let (y, stats) = forward(kind, &q, &k, &v, &offsets, 1);
            assert_close("y", &y, &naive(kind, &q, &k, &v, &offsets, 1), 1e-12);
            let grads = backward(kind, &q, &k, &v, &stats, &offsets, 1, &gy);
            let (q, k, v, gy) = (q.cast::<f32>(), k.cast(), v.cast(), gy.cast());
            let (_, stats) = forward(kind, &q, &k, &v, &offsets, 1);
            let single = backward(kind, &q, &k, &v, &stats, &offsets, 1, &gy);
            for (a, b) in single.iter().zip(&grads) {
                assert_close("gradient in f32", a, b, 5e-6);
            }
        }
    }
}

#[test]
fn gradients_agree_with_differences() {
    let mut source = Source::new(3);
    for (heads, dim, longest) in [(2, 8, 9), (1, 20, 17), (1, 5, 64)] {
        let offsets = source.offsets(4, longest);
        let [q, k, v, gy] = operands(&mut source, offsets[4], heads * dim);
        for kind in KINDS {
            let (_, stats) = forward(kind, &q, &k, &v, &offsets, heads);
            let [gq, gk, gv] = backward(kind, &q, &k, &v, &stats, &offsets, heads, &gy);
            let loss = |q: &_, k: &_, v: &_| naive(kind, q, k, v, &offsets, heads).dot(&gy);
            assert_gradient("gq", &q, &gq, |q| loss(q, &k, &v));
            assert_gradient("gk", &k, &gk, |k| loss(&q, k, &v));
            assert_gradient("gv", &v, &gv, |v| loss(&q, &k, v));
        }
    }
}

#[test]
fn gradients_agree_with_differences_across_blocks() {
    let mut source = Source::new(5);
    let offsets = [0, 150, 150, 215];
    let [q, k, v, gy] = operands(&mut source, 215, 2);
    for kind in KINDS {
        let (_, stats) = forward(kind, &q, &k, &v, &offsets, 1);
        let [gq, gk, gv] = backward(kind, &q, &k, &v, &stats, &offsets, 1, &gy);
        let loss = |q: &_, k: &_, v: &_| naive(kind, q, k, v, &offsets, 1).dot(&gy);
        assert_gradient("gq", &q, &gq, |q| loss(q, &k, &v));
        assert_gradient("gk", &k, &gk, |k| loss(&q, k, &v));
        assert_gradient("gv", &v, &gv, |v| loss(&q, &k, v));
    }
}

#[test]
fn gradients_in_single_precision() {
    let mut source = Source::new(4);
    for (heads, dim, longest) in [(2, 32, 150), (3, 20, 70), (1, 128, 100), (1, 8, 200)] {
        let offsets = source.offsets(5, longest);
        let [q, k, v, gy] = operands(&mut source, offsets[5], heads * dim);
        for kind in KINDS {
            let (_, stats) = forward(kind, &q, &k, &v, &offsets, heads);
            let expect = backward(kind, &q, &k, &v, &stats, &offsets, heads, &gy);
            let (q, k, v, gy) = (q.cast::<f32>(), k.cast(), v.cast(), gy.cast());
            for level in [Level::Avx512, Level::Avx2, Level::Portable] {
                limit_level(level);
                let (_, stats) = forward(kind, &q, &k, &v, &offsets, heads);
                let grads = backward(kind, &q, &k, &v, &stats, &offsets, heads, &gy);
                for (a, b) in grads.iter().zip(&expect) {
                    assert_close("gradient in f32", a, b, 1e-5);
                }
            }
        }
    }
}
