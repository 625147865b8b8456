//! Losses, dot interaction, dropout and random numbers.

mod common;

use common::{Grid, Source, assert_close, assert_gradient};
use fs_kernels::dropout::{dropout, dropout_grad};
use fs_kernels::interaction::{dot_interaction, dot_interaction_grad};
use fs_kernels::loss::{bce_with_logits, sampled_softmax, sampled_softmax_grad};
use fs_kernels::random::{Init, RandomKey, fill, negatives};
use fs_kernels::simd::{Level, limit_level};
use fs_kernels::{Mat, MatMut, Write};
use fs_workload::random::{normal, philox, uniform_f64, uniform_index};

const KEY: RandomKey = RandomKey { seed: 42, stream: 3, step: 17 };

#[test]
fn binary_cross_entropy() {
    let mut source = Source::new(1);
    for n in [0, 1, 23] {
        let x = Grid::<f64>::random(&mut source, n, 1, 2).with(|_, _| 4.0 * source.signed());
        let labels: Vec<f32> = (0..n).map(|_| source.below(2) as f32).collect();
        let naive = |x: &Grid<f64>| -> f64 {
            let one = |i: usize| {
                let p = 1.0 / (1.0 + (-x.at(i, 0)).exp());
                let y = f64::from(labels[i]);
                -(y * p.ln() + (1.0 - y) * (1.0 - p).ln())
            };
            0.3 * (0..n).map(one).sum::<f64>()
        };
        let mut g = Grid::<f64>::zeros(n, 1, 1);
        let loss = bce_with_logits(x.view(), &labels, 0.3, Some(g.view_mut()));
        assert!((loss - naive(&x)).abs() < 1e-12, "{loss}");
        assert_eq!(bce_with_logits(x.view(), &labels, 0.3, None), loss);
        assert_gradient("logits", &x, &g, naive);
    }
    // Far from zero nothing overflows.
    let mut g = [0.0f32; 2];
    let loss =
        bce_with_logits(Mat::new(&[1e4, -1e4], 2, 1), &[0.0, 1.0], 1.0, Some(MatMut::new(&mut g, 2, 1)));
    assert_eq!((loss, g), (2e4, [1.0, -1.0]));
}

#[test]
fn sampled_softmaxes() {
    let mut source = Source::new(2);
    for (n, dim, count, table) in [(0, 4, 3, 5), (6, 20, 5, 4), (5, 64, 9, 30), (3, 100, 0, 7), (4, 16, 4, 1)]
    {
        let h = Grid::<f64>::random(&mut source, n, dim, 2);
        let rows = Grid::<f64>::random(&mut source, table, dim, 1);
        let mut index = |len: usize| -> Vec<u32> { (0..len).map(|_| source.below(table) as u32).collect() };
        let (target, negs) = (index(n), index(n * count));
        let naive = |h: &Grid<f64>, rows: &Grid<f64>| -> f64 {
            let logit =
                |t: usize, r: u32| (0..dim).map(|c| h.at(t, c) * rows.at(r as usize, c)).sum::<f64>() / 0.7;
            let one = |t: usize| {
                let own = logit(t, target[t]);
                let others = negs[t * count..][..count].iter().filter(|r| **r != target[t]);
                (own.exp() + others.map(|r| logit(t, *r).exp()).sum::<f64>()).ln() - own
            };
            0.25 * (0..n).map(one).sum::<f64>()
        };
        let mut d = vec![9.0; n * (count + 1)];
        let loss = sampled_softmax(h.view(), rows.view(), &target, &negs, count, 0.7, 0.25, &mut d);
        assert!((loss - naive(&h, &rows)).abs() < 1e-12, "{loss} {}", naive(&h, &rows));
        let (mut gh, mut gr) = (Grid::<f64>::zeros(n, dim, 1), Grid::<f64>::zeros(table, dim, 3));
        let mut run = |mode| {
            let (gh, gr) = (gh.view_mut(), gr.view_mut());
            sampled_softmax_grad(h.view(), rows.view(), &target, &negs, count, &d, gh, mode, gr, mode);
        };
        run(Write::Set);
        run(Write::Add);
        let half = |g: &Grid<f64>| Grid::<f64>::zeros(g.rows, g.cols, 0).with(|i, j| 0.5 * g.at(i, j));
        gh.assert_gaps();
        gr.assert_gaps();
        let expect = (half(&gh), half(&gr));
        assert_gradient("gh", &h, &expect.0, |h| naive(h, &rows));
        assert_gradient("grows", &rows, &expect.1, |rows| naive(&h, rows));
        for level in [Level::Portable, Level::Avx2, Level::Avx512] {
            limit_level(level);
            let (h, rows) = (h.cast::<f32>(), rows.cast::<f32>());
            let mut d = vec![9.0; n * (count + 1)];
            let single = sampled_softmax(h.view(), rows.view(), &target, &negs, count, 0.7, 0.25, &mut d);
            assert!((single - loss).abs() < 1e-5 * (1.0 + loss.abs()), "{single} {loss}");
            let (mut gh, mut gr) = (Grid::<f32>::zeros(n, dim, 1), Grid::<f32>::zeros(table, dim, 3));
            let (vh, vr) = (gh.view_mut(), gr.view_mut());
            sampled_softmax_grad(
                h.view(),
                rows.view(),
                &target,
                &negs,
                count,
                &d,
                vh,
                Write::Set,
                vr,
                Write::Set,
            );
            assert_close("gh in f32", &gh, &expect.0, 1e-5);
            assert_close("grows in f32", &gr, &expect.1, 1e-5);
        }
    }
}

#[test]
fn occurrences_summed_later_have_the_same_bits() {
    // One row an occurrence (targets, then negatives), summed in that order, is the shared row's gradient.
    let mut source = Source::new(3);
    let (n, dim, count, table) = (9, 64, 8, 6);
    let h = Grid::<f32>::random(&mut source, n, dim, 0);
    let rows = Grid::<f32>::random(&mut source, table, dim, 0);
    let target: Vec<u32> = (0..n).map(|_| source.below(table) as u32).collect();
    let negs: Vec<u32> = (0..n * count).map(|_| source.below(table) as u32).collect();
    let mut d = vec![0.0; n * (count + 1)];
    sampled_softmax(h.view(), rows.view(), &target, &negs, count, 0.1, 1.0, &mut d);
    let mut gh = Grid::<f32>::zeros(n, dim, 0);
    let mut gr = Grid::<f32>::zeros(table, dim, 0);
    let (vh, vr) = (gh.view_mut(), gr.view_mut());
    sampled_softmax_grad(h.view(), rows.view(), &target, &negs, count, &d, vh, Write::Set, vr, Write::Set);
    let mut expect = vec![0.0f32; table * dim];
    let targets = target.iter().enumerate().map(|(t, row)| (t, d[t * (count + 1)], row));
    let others =
        negs.iter().enumerate().map(|(i, row)| (i / count, d[i / count * (count + 1) + 1 + i % count], row));
    for (t, d, row) in targets.chain(others) {
        for c in 0..dim {
            expect[*row as usize * dim + c] += d * h.data[t * dim + c];
        }
    }
    assert_eq!(gr.data, expect);
}

#[test]
fn interactions() {
    let mut source = Source::new(4);
    for (features, rows, dim) in [(1, 3, 8), (2, 0, 8), (4, 3, 20), (7, 2, 64)] {
        let xs: Vec<Grid<f64>> = (0..features).map(|f| Grid::random(&mut source, rows, dim, f % 3)).collect();
        let pairs: Vec<(usize, usize)> =
            (0..features).flat_map(|i| (i + 1..features).map(move |j| (i, j))).collect();
        let gy = Grid::<f64>::random(&mut source, rows, pairs.len(), 1);
        let naive = |xs: &[Grid<f64>]| {
            Grid::<f64>::zeros(rows, pairs.len(), 0).with(|b, p| {
                let (i, j) = pairs[p];
                (0..dim).map(|c| xs[i].at(b, c) * xs[j].at(b, c)).sum()
            })
        };
        let views: Vec<Mat<f64>> = xs.iter().map(Grid::view).collect();
        let mut y = Grid::<f64>::zeros(rows, pairs.len(), 2);
        dot_interaction(&views, y.view_mut());
        assert_close("interaction", &y, &naive(&xs), 1e-13);
        let mut gxs: Vec<Grid<f64>> =
            (0..features).map(|_| Grid::zeros(rows, dim, 1).with(|_, _| 1.0)).collect();
        let modes: Vec<Write> =
            (0..features).map(|f| if f % 2 == 0 { Write::Set } else { Write::Add }).collect();
        let mut views_mut: Vec<MatMut<f64>> = gxs.iter_mut().map(Grid::view_mut).collect();
        dot_interaction_grad(&views, gy.view(), &mut views_mut, &modes);
        for f in 0..features {
            let before = if f % 2 == 0 { 0.0 } else { 1.0 };
            let g = Grid::<f64>::zeros(rows, dim, 0).with(|i, j| gxs[f].at(i, j) - before);
            assert_gradient("interaction", &xs[f], &g, |x| {
                let mut xs = xs.clone();
                xs[f] = x.clone();
                naive(&xs).dot(&gy)
            });
        }
    }
}

#[test]
fn philox_gives_the_published_answers() {
    // Random123, kat_vectors: philox4x32, 10 rounds.
    let cases = [
        ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
        ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
        (
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        ),
    ];
    for (counter, key, expect) in cases {
        assert_eq!(philox(counter, key), expect);
    }
}

#[test]
fn scalar_numbers_have_the_right_moments() {
    let n = 40_000;
    let (mut mean, mut square, mut high) = (0.0, 0.0, 0);
    for i in 0..n {
        let u = uniform_f64(KEY, i);
        assert!((0.0..1.0).contains(&u));
        let z = normal(KEY, i);
        mean += z;
        square += z * z;
        let k = uniform_index(KEY, i, 7);
        assert!(k < 7);
        high += u64::from(k == 6);
    }
    let n = n as f64;
    assert!((mean / n).abs() < 0.02, "{}", mean / n);
    assert!((square / n - 1.0).abs() < 0.03, "{}", square / n);
    assert!((high as f64 / n - 1.0 / 7.0).abs() < 0.01);
    let other = RandomKey { step: 18, ..KEY };
    assert_ne!(uniform_f64(KEY, 5), uniform_f64(other, 5));
    assert_ne!(uniform_f64(KEY, 5), uniform_f64(RandomKey { stream: 4, ..KEY }, 5));
    assert_ne!(uniform_f64(KEY, 5), uniform_f64(RandomKey { seed: 43, ..KEY }, 5));
}

#[test]
fn filled_values_depend_on_row_and_column_only() {
    for init in [
        Init::Normal { mean: 0.5, std: 2.0 },
        Init::Uniform { low: -1.0, high: 3.0 },
        Init::Hash { scale: 0.1, salt: 5 },
        Init::Constant(2.5),
        Init::Constant(0.0),
    ] {
        for cols in [1, 20, 64, 150] {
            let mut all = vec![0.0f32; 40 * cols];
            fill(init, KEY, 7, cols, &mut all);
            let mut parts = vec![0.0f32; 40 * cols];
            let (a, b) = parts.split_at_mut(13 * cols);
            fill(init, KEY, 7, cols, a);
            limit_level(Level::Portable);
            fill(init, KEY, 20, cols, b);
            limit_level(Level::Avx512);
            assert_eq!(all, parts, "{init:?}");
            let mut double = vec![0.0f64; 40 * cols];
            fill(init, KEY, 7, cols, &mut double);
            assert!(all.iter().zip(&double).all(|(a, b)| *a == *b as f32), "{init:?}");
        }
    }
    fill(Init::Constant(0.0), KEY, 0, 0, &mut [0.0f32; 0]);
}

#[test]
fn filled_values_have_their_distribution() {
    let (rows, cols) = (2000, 64);
    let n = (rows * cols) as f64;
    let mut x = vec![0.0f32; rows * cols];
    fill(Init::Normal { mean: 0.5, std: 2.0 }, KEY, 0, cols, &mut x);
    let moment = |x: &[f32], p: i32| x.iter().map(|x| ((f64::from(*x) - 0.5) / 2.0).powi(p)).sum::<f64>() / n;
    for (p, expect, room) in [(1, 0.0, 0.012), (2, 1.0, 0.02), (3, 0.0, 0.05), (4, 3.0, 0.15)] {
        assert!((moment(&x, p) - expect).abs() < room, "moment {p} is {}", moment(&x, p));
    }
    let within = x.iter().filter(|x| (f64::from(**x) - 0.5).abs() < 2.0).count() as f64 / n;
    assert!((within - 0.6827).abs() < 0.005, "{within}");
    assert!(x.iter().all(|x| x.is_finite()));
    // Neighbouring columns and rows are uncorrelated.
    for lag in [1, 16, 32, cols] {
        let c: f64 = x.windows(lag + 1).map(|w| f64::from(w[0] - 0.5) * f64::from(w[lag] - 0.5)).sum();
        assert!((c / n / 4.0).abs() < 0.012, "lag {lag}: {}", c / n / 4.0);
    }
    fill(Init::Uniform { low: -1.0, high: 3.0 }, KEY, 0, cols, &mut x);
    assert!(x.iter().all(|x| (-1.0..3.0).contains(x)));
    let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
    let var = x.iter().map(|x| (f64::from(*x) - 1.0).powi(2)).sum::<f64>() / n;
    assert!((mean - 1.0).abs() < 0.015 && (var - 16.0 / 12.0).abs() < 0.02, "{mean} {var}");
    fill(Init::Hash { scale: 0.25, salt: 3 }, KEY, 11, cols, &mut x);
    let h = (12u64 * 2_654_435_761 + 5 * 40_503 + 3 * 97) % (1 << 32);
    assert_eq!(x[cols + 5], ((h as f64 / 4_294_967_296.0 - 0.5) * 2.0 * 0.25) as f32);
}

#[test]
fn negatives_do_not_depend_on_the_split() {
    let keys: Vec<u64> = (0..30).map(|i| i * 1_000_003 + 5).collect();
    for (count, rows) in [(1, 10), (33, 9066), (128, 20_000_000), (0, 5)] {
        let mut all = vec![0; 30 * count];
        negatives(KEY, rows, &keys, count, &mut all);
        let mut parts = vec![0; 30 * count];
        let (a, b) = parts.split_at_mut(11 * count);
        negatives(KEY, rows, &keys[..11], count, a);
        negatives(KEY, rows, &keys[11..], count, b);
        assert_eq!(all, parts);
        assert!(all.iter().all(|id| (0..rows as i64).contains(id)));
        // A longer list begins with the shorter one.
        let mut longer = vec![0; count + 40];
        negatives(KEY, rows, &keys[..1], count + 40, &mut longer);
        assert_eq!(longer[..count], all[..count]);
    }
    let mut many = vec![0; 30 * 1000];
    negatives(KEY, 10, &keys, 1000, &mut many);
    for id in 0..10 {
        let share = many.iter().filter(|x| **x == id).count() as f64 / 30_000.0;
        assert!((share - 0.1).abs() < 0.01, "{id}: {share}");
    }
}

#[test]
fn dropout_masks() {
    let mut source = Source::new(5);
    let keys: Vec<u64> = (0..50).map(|i| i << 33 | i).collect();
    for cols in [1, 64, 100] {
        let x = Grid::<f64>::random(&mut source, 50, cols, 2);
        let mut y = Grid::<f64>::zeros(50, cols, 1);
        dropout(x.view(), 0.3, KEY, &keys, y.view_mut());
        y.assert_gaps();
        let mut dropped = 0;
        for i in 0..50 {
            for j in 0..cols {
                if y.at(i, j) == 0.0 {
                    dropped += 1;
                } else {
                    assert!((y.at(i, j) - x.at(i, j) / 0.7).abs() < 1e-14);
                }
            }
        }
        let share = f64::from(dropped) / (50 * cols) as f64;
        assert!((share - 0.3).abs() < 0.2 / (cols as f64).sqrt(), "{share}");
        // Rows in another order, in two calls: the same mask by key.
        let mut back = Grid::<f64>::zeros(50, cols, 0);
        for i in (0..50).rev() {
            let mut view = back.view_mut();
            let row = view.rows_range_mut(i..i + 1);
            dropout(x.view().rows_range(i..i + 1), 0.3, KEY, &keys[i..=i], row);
        }
        assert_close("by rows", &back, &y, 0.0);
        // Linear, so the gradient is the same map.
        let mut g = Grid::<f64>::zeros(50, cols, 1);
        dropout_grad(x.view(), 0.3, KEY, &keys, g.view_mut());
        assert_close("gradient", &g, &y, 0.0);
        dropout(x.view(), 0.0, KEY, &keys, y.view_mut());
        assert_close("p = 0", &y, &x, 0.0);
        dropout(x.view(), 1.0, KEY, &keys, y.view_mut());
        let ones = Grid::<f64>::zeros(50, cols, 0).with(|_, _| 1.0);
        assert_close("p = 1", &Grid::<f64>::zeros(50, cols, 0).with(|i, j| y.at(i, j) + 1.0), &ones, 0.0);
        let other = RandomKey { step: 18, ..KEY };
        let mut next = Grid::<f64>::zeros(50, cols, 1);
        dropout(x.view(), 0.3, other, &keys, next.view_mut());
        assert_ne!(next.data, g.data);
    }
}
