//! Matrix products, elementwise functions and normalisations.

mod common;

use common::{Grid, Source, assert_close, assert_gradient, plus_one};
use fs_kernels::elementwise::{self, Unary};
use fs_kernels::matmul::{linear, linear_grad_input, linear_grad_weight, matmul_nt};
use fs_kernels::norm::{l2_normalize, l2_normalize_grad, layer_norm, layer_norm_grad, softmax, softmax_grad};
use fs_kernels::simd::{Level, limit_level};
use fs_kernels::{Mat, MatMut, Real, Write};

const LEVELS: [Level; 3] = [Level::Portable, Level::Avx2, Level::Avx512];

fn product(a: &Grid<f64>, b: &Grid<f64>, ta: bool, tb: bool) -> Grid<f64> {
    let at = |x: &Grid<f64>, t: bool, i, j| if t { x.at(j, i) } else { x.at(i, j) };
    let (m, k) = if ta { (a.cols, a.rows) } else { (a.rows, a.cols) };
    let n = if tb { b.rows } else { b.cols };
    Grid::zeros(m, n, 1).with(|i, j| (0..k).map(|p| at(a, ta, i, p) * at(b, tb, p, j)).sum())
}

/// [rows, in, out], with every remainder of the tiles, blocks of depth and height, and the library's shapes.
const SHAPES: [[usize; 3]; 16] = [
    [0, 3, 4],
    [1, 1, 1],
    [5, 0, 3],
    [7, 3, 0],
    [13, 17, 31],
    [48, 64, 256],
    [11, 130, 19],
    [3, 300, 5],
    [500, 9, 33],
    [37, 64, 1],
    [25, 48, 80],
    [29, 50, 127],
    [2, 16, 112],
    [64, 700, 300],
    [20, 300, 700],
    [300, 600, 300],
];

#[test]
fn products_are_the_definition() {
    let mut source = Source::new(1);
    for [n, inputs, outputs] in SHAPES {
        let x = Grid::<f64>::random(&mut source, n, inputs, 3);
        let w = Grid::<f64>::random(&mut source, outputs, inputs, 2);
        let gy = Grid::<f64>::random(&mut source, n, outputs, 1);
        let bias = source.vec(outputs);
        let y = product(&x, &w, false, true);
        let with_bias = Grid::<f64>::zeros(n, outputs, 0).with(|i, j| y.at(i, j) + bias[j]);
        let gx = product(&gy, &w, false, false);
        let gw = product(&gy, &x, true, false);
        let gb = Grid::<f64>::zeros(1, outputs, 0).with(|_, j| (0..n).map(|i| gy.at(i, j)).sum());

        macro_rules! check {
            ($t:ty, $tolerance:expr) => {{
                let (x, w, gy): (Grid<$t>, Grid<$t>, Grid<$t>) = (x.cast(), w.cast(), gy.cast());
                let bias: Vec<$t> = bias.iter().map(|b| *b as $t).collect();
                let mut out = Grid::<$t>::zeros(n, outputs, 4).with(|_, _| 5.0);
                linear(x.view(), w.view(), Some(&bias), out.view_mut());
                assert_close("y with bias", &out, &with_bias, $tolerance);
                matmul_nt(x.view(), w.view(), out.view_mut());
                assert_close("y", &out, &y, $tolerance);
                let mut out = Grid::<$t>::zeros(n, inputs, 1).with(|_, _| 1.0);
                linear_grad_input(gy.view(), w.view(), out.view_mut(), Write::Add);
                assert_close("gx added", &out, &plus_one(&gx), $tolerance);
                linear_grad_input(gy.view(), w.view(), out.view_mut(), Write::Set);
                assert_close("gx", &out, &gx, $tolerance);
                let mut out = Grid::<$t>::zeros(outputs, inputs, 2).with(|_, _| 1.0);
                let mut out_b = Grid::<$t>::zeros(1, outputs, 0).with(|_, _| 1.0);
                linear_grad_weight(gy.view(), x.view(), out.view_mut(), Some(&mut out_b.data), Write::Add);
                assert_close("gw added", &out, &plus_one(&gw), $tolerance);
                assert_close("gb added", &out_b, &plus_one(&gb), $tolerance);
                linear_grad_weight(gy.view(), x.view(), out.view_mut(), Some(&mut out_b.data), Write::Set);
                assert_close("gw", &out, &gw, $tolerance);
                assert_close("gb", &out_b, &gb, $tolerance);
            }};
        }
        check!(f64, 1e-12);
        for level in LEVELS {
            limit_level(level);
            check!(f32, 2e-5);
        }
    }
}

#[test]
fn products_of_column_slices() {
    let mut source = Source::new(2);
    let buffer = Grid::<f64>::random(&mut source, 40, 96, 0);
    let w = Grid::<f64>::random(&mut source, 32, 32, 0);
    let mut out = vec![0.0; 40 * 96];
    let parts = MatMut::new(&mut out, 40, 96).split_columns(&[32, 32, 32]);
    for (k, part) in parts.into_iter().enumerate() {
        linear(buffer.view().columns(32 * k..32 * (k + 1)), w.view(), None, part);
    }
    for k in 0..3 {
        let x = Grid::<f64>::zeros(40, 32, 0).with(|i, j| buffer.at(i, 32 * k + j));
        let expect = product(&x, &w, false, true);
        let y = Mat::new(&out, 40, 96).columns(32 * k..32 * (k + 1));
        let y = Grid::<f64>::zeros(40, 32, 0).with(|i, j| y.row(i)[j]);
        assert_close("slice", &y, &expect, 1e-13);
    }
}

fn apply(kind: Unary, x: f64) -> f64 {
    match kind {
        Unary::Silu => x / (1.0 + (-x).exp()),
        Unary::Relu => x.max(0.0),
        Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        // Phi by Simpson's rule on the density: independent of any erf.
        Unary::Gelu => {
            let n = 2000;
            let h = x / f64::from(n);
            let phi = |t: f64| (-0.5 * t * t).exp() / std::f64::consts::TAU.sqrt();
            let inner: f64 = (1..n).map(|i| phi(f64::from(i) * h) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
            x * (0.5 + h / 3.0 * (phi(0.0) + inner + phi(x)))
        }
    }
}

const KINDS: [Unary; 4] = [Unary::Silu, Unary::Relu, Unary::Gelu, Unary::Sigmoid];

#[test]
fn activations() {
    let mut source = Source::new(3);
    for (rows, cols, gap) in [(0, 5, 0), (1, 1, 0), (4, 37, 3), (3, 64, 0), (5, 16, 16)] {
        let x = Grid::<f64>::random(&mut source, rows, cols, gap).with(|_, _| 6.0 * source.signed());
        let gy = Grid::<f64>::random(&mut source, rows, cols, 1);
        for kind in KINDS {
            let expect = Grid::<f64>::zeros(rows, cols, 0).with(|i, j| apply(kind, x.at(i, j)));
            let mut y = Grid::<f64>::zeros(rows, cols, 2);
            elementwise::unary(kind, x.view(), y.view_mut());
            assert_close("y", &y, &expect, 1e-12);
            let mut gx = Grid::<f64>::zeros(rows, cols, 4);
            elementwise::unary_grad(kind, x.view(), gy.view(), gx.view_mut(), Write::Set);
            assert_gradient("gx", &x, &gx, |x| {
                (0..rows).map(|i| (0..cols).map(|j| apply(kind, x.at(i, j)) * gy.at(i, j)).sum::<f64>()).sum()
            });
            let mut added = gx.clone();
            elementwise::unary_grad(kind, x.view(), gy.view(), added.view_mut(), Write::Add);
            let twice = Grid::<f64>::zeros(rows, cols, 0).with(|i, j| 2.0 * gx.at(i, j));
            assert_close("gx added", &added, &twice, 1e-13);
            for level in LEVELS {
                limit_level(level);
                let (x, gy) = (x.cast::<f32>(), gy.cast::<f32>());
                let mut y = Grid::<f32>::zeros(rows, cols, 1);
                elementwise::unary(kind, x.view(), y.view_mut());
                assert_close("y in f32", &y, &expect, 1e-6);
                let mut single = Grid::<f32>::zeros(rows, cols, 1);
                elementwise::unary_grad(kind, x.view(), gy.view(), single.view_mut(), Write::Set);
                assert_close("gx in f32", &single, &gx, 1e-6);
            }
        }
    }
}

#[test]
fn extreme_arguments_stay_finite() {
    let x: Vec<f32> = vec![-1e30, -1e4, -200.0, -88.0, -50.0, 0.0, 50.0, 88.0, 200.0, 1e4, 1e30];
    for level in LEVELS {
        limit_level(level);
        for kind in KINDS {
            let n = x.len();
            let (mut y, mut gx) = (vec![0.0f32; n], vec![0.0f32; n]);
            elementwise::unary(kind, Mat::new(&x, 1, n), MatMut::new(&mut y, 1, n));
            let ones = vec![1.0f32; n];
            elementwise::unary_grad(
                kind,
                Mat::new(&x, 1, n),
                Mat::new(&ones, 1, n),
                MatMut::new(&mut gx, 1, n),
                Write::Set,
            );
            for i in 0..n {
                let exact = match kind {
                    Unary::Sigmoid => 1.0 / (1.0 + (-f64::from(x[i])).exp()),
                    _ => f64::from(x[i]).max(0.0),
                };
                // Far out, silu and gelu are relu; at +-50 they already are within rounding.
                let got = f64::from(y[i]);
                assert!((got - exact).abs() <= 1e-6 * exact.abs() + 1e-5, "{kind:?}({}) = {got}", x[i]);
                assert!(gx[i].is_finite(), "{kind:?}'({}) = {}", x[i], gx[i]);
            }
        }
    }
}

#[test]
fn sums_products_and_copies() {
    let mut source = Source::new(4);
    for (rows, cols) in [(0, 3), (6, 37), (4, 16)] {
        let [a, b, c] = [0, 3, 1].map(|gap| Grid::<f64>::random(&mut source, rows, cols, gap));
        let expect = |f: &dyn Fn(usize, usize) -> f64| Grid::<f64>::zeros(rows, cols, 0).with(f);
        let mut y = Grid::<f64>::zeros(rows, cols, 2).with(|_, _| 7.0);
        elementwise::add(&[a.view(), b.view(), c.view()], y.view_mut());
        assert_close("sum", &y, &expect(&|i, j| a.at(i, j) + b.at(i, j) + c.at(i, j)), 0.0);
        elementwise::add(&[a.view()], y.view_mut());
        assert_close("copy", &y, &a, 0.0);
        elementwise::accumulate(b.view(), y.view_mut());
        assert_close("accumulate", &y, &expect(&|i, j| a.at(i, j) + b.at(i, j)), 0.0);
        elementwise::add(&[], y.view_mut());
        assert_close("nothing", &y, &expect(&|_, _| 0.0), 0.0);
        elementwise::mul(a.view(), b.view(), y.view_mut());
        assert_close("mul", &y, &expect(&|i, j| a.at(i, j) * b.at(i, j)), 0.0);
        elementwise::scale(a.view(), -0.5, y.view_mut(), Write::Set);
        elementwise::scale(b.view(), 2.0, y.view_mut(), Write::Add);
        assert_close("scale", &y, &expect(&|i, j| 2.0 * b.at(i, j) - 0.5 * a.at(i, j)), 1e-15);
        let (mut ga, mut gb) = (Grid::zeros(rows, cols, 1), Grid::zeros(rows, cols, 0).with(|_, _| 1.0));
        elementwise::mul_grad(
            a.view(),
            b.view(),
            c.view(),
            ga.view_mut(),
            Write::Set,
            gb.view_mut(),
            Write::Add,
        );
        assert_close("ga", &ga, &expect(&|i, j| b.at(i, j) * c.at(i, j)), 0.0);
        assert_close("gb", &gb, &expect(&|i, j| 1.0 + a.at(i, j) * c.at(i, j)), 1e-15);
    }
}

fn layer_norm_of(x: &Grid<f64>, weight: Option<&[f64]>, bias: Option<&[f64]>) -> Grid<f64> {
    let n = x.cols as f64;
    Grid::zeros(x.rows, x.cols, 0).with(|i, j| {
        let mean = (0..x.cols).map(|c| x.at(i, c)).sum::<f64>() / n;
        let var = (0..x.cols).map(|c| (x.at(i, c) - mean).powi(2)).sum::<f64>() / n;
        let xhat = (x.at(i, j) - mean) / (var + 1e-5).sqrt();
        xhat * weight.map_or(1.0, |w| w[j]) + bias.map_or(0.0, |b| b[j])
    })
}

#[test]
fn layer_norms() {
    let mut source = Source::new(5);
    for (rows, cols) in [(0, 4), (3, 1), (4, 37), (2, 64), (5, 7)] {
        for affine in [false, true] {
            let x = Grid::<f64>::random(&mut source, rows, cols, 3);
            let gy = Grid::<f64>::random(&mut source, rows, cols, 1);
            let (w, b) = (source.vec(cols), source.vec(cols));
            let (weight, bias) = if affine { (Some(&w[..]), Some(&b[..])) } else { (None, None) };
            let mut y = Grid::<f64>::zeros(rows, cols, 2);
            let mut stats = vec![0.0; 2 * rows];
            layer_norm(x.view(), weight, bias, 1e-5, y.view_mut(), &mut stats);
            let expect = layer_norm_of(&x, weight, bias);
            assert_close("y", &y, &expect, 1e-12);

            let mut gx = Grid::<f64>::zeros(rows, cols, 0);
            let (mut gw, mut gb) = (vec![9.0; cols], vec![9.0; cols]);
            let (ow, ob) = if affine { (Some(&mut gw[..]), Some(&mut gb[..])) } else { (None, None) };
            layer_norm_grad(x.view(), weight, &stats, gy.view(), gx.view_mut(), Write::Set, ow, ob);
            assert_gradient("gx", &x, &gx, |x| {
                layer_norm_of(x, weight, bias).dot(&Grid { gap: 0, ..gy.clone() }.with(|i, j| gy.at(i, j)))
            });
            if affine {
                let row = |v: &[f64]| Grid::<f64>::zeros(1, cols, 0).with(|_, j| v[j]);
                let plain = Grid::<f64>::zeros(rows, cols, 0).with(|i, j| gy.at(i, j));
                assert_gradient("gw", &row(&w), &row(&gw), |w| {
                    layer_norm_of(&x, Some(&w.data), bias).dot(&plain)
                });
                assert_gradient("gb", &row(&b), &row(&gb), |b| {
                    layer_norm_of(&x, weight, Some(&b.data)).dot(&plain)
                });
            }
            let mut added = gx.clone();
            layer_norm_grad(x.view(), weight, &stats, gy.view(), added.view_mut(), Write::Add, None, None);
            let twice = Grid::<f64>::zeros(rows, cols, 0).with(|i, j| 2.0 * gx.at(i, j));
            assert_close("gx added", &added, &twice, 1e-13);

            for level in LEVELS {
                limit_level(level);
                if cols == 1 {
                    continue; // x - mean is rounding noise there
                }
                let cast = |v: Option<&[f64]>| v.map(|v| v.iter().map(|x| *x as f32).collect::<Vec<_>>());
                let (w, b) = (cast(weight), cast(bias));
                let (x, gy) = (x.cast::<f32>(), gy.cast::<f32>());
                let mut y = Grid::<f32>::zeros(rows, cols, 0);
                let mut stats = vec![0.0; 2 * rows];
                layer_norm(x.view(), w.as_deref(), b.as_deref(), 1e-5, y.view_mut(), &mut stats);
                assert_close("y in f32", &y, &expect, 1e-5);
                let mut single = Grid::<f32>::zeros(rows, cols, 2);
                layer_norm_grad(
                    x.view(),
                    w.as_deref(),
                    &stats,
                    gy.view(),
                    single.view_mut(),
                    Write::Set,
                    None,
                    None,
                );
                assert_close("gx in f32", &single, &gx, 2e-5);
            }
        }
    }
}

#[test]
fn l2_norms_and_softmaxes() {
    let mut source = Source::new(6);
    for (rows, cols) in [(0, 4), (3, 1), (4, 37), (2, 64)] {
        let x = Grid::<f64>::random(&mut source, rows, cols, 3);
        let gy = Grid::<f64>::random(&mut source, rows, cols, 0);
        let l2 = |x: &Grid<f64>| {
            Grid::<f64>::zeros(rows, cols, 0).with(|i, j| {
                x.at(i, j) / (0..cols).map(|c| x.at(i, c).powi(2)).sum::<f64>().sqrt().max(1e-12)
            })
        };
        let soft = |x: &Grid<f64>| {
            Grid::<f64>::zeros(rows, cols, 0)
                .with(|i, j| 1.0 / (0..cols).map(|c| (x.at(i, c) - x.at(i, j)).exp()).sum::<f64>())
        };
        let (mut y, mut gx) = (Grid::<f64>::zeros(rows, cols, 2), Grid::<f64>::zeros(rows, cols, 1));
        let mut norms = vec![0.0; rows];
        l2_normalize(x.view(), 1e-12, y.view_mut(), &mut norms);
        assert_close("l2", &y, &l2(&x), 1e-14);
        l2_normalize_grad(y.view(), &norms, 1e-12, gy.view(), gx.view_mut(), Write::Set);
        assert_gradient("l2", &x, &gx, |x| l2(x).dot(&gy));
        softmax(x.view(), y.view_mut());
        assert_close("softmax", &y, &soft(&x), 1e-14);
        let mut gx = Grid::<f64>::zeros(rows, cols, 1).with(|_, _| 1.0);
        softmax_grad(y.view(), gy.view(), gx.view_mut(), Write::Add);
        let gx = Grid::<f64>::zeros(rows, cols, 0).with(|i, j| gx.at(i, j) - 1.0);
        assert_gradient("softmax", &x, &gx, |x| soft(x).dot(&gy));
        for level in LEVELS {
            limit_level(level);
            let x32 = x.cast::<f32>();
            let mut y = Grid::<f32>::zeros(rows, cols, 2);
            let mut norms = vec![0.0; rows];
            l2_normalize(x32.view(), 1e-12, y.view_mut(), &mut norms);
            assert_close("l2 in f32", &y, &l2(&x), 1e-6);
            softmax(x32.view(), y.view_mut());
            assert_close("softmax in f32", &y, &soft(&x), 1e-6);
        }
    }
}

#[test]
fn a_zero_row_has_a_finite_l2_gradient() {
    let (x, gy) = ([0.0f64; 3], [1.0, -2.0, 0.5]);
    let (mut y, mut gx, mut norms) = ([9.0; 3], [9.0; 3], [9.0]);
    l2_normalize(Mat::new(&x, 1, 3), 1e-12, MatMut::new(&mut y, 1, 3), &mut norms);
    assert_eq!((y, norms), ([0.0; 3], [1e-12]));
    let gx_view = MatMut::new(&mut gx, 1, 3);
    l2_normalize_grad(Mat::new(&y, 1, 3), &norms, 1e-12, Mat::new(&gy, 1, 3), gx_view, Write::Set);
    for (g, gy) in gx.iter().zip(gy) {
        assert!((g * 1e-12 - gy).abs() < 1e-12);
    }
}

#[test]
#[should_panic(expected = "needs 12 elements, the buffer has 11")]
fn a_view_past_its_buffer_is_refused() {
    let _ = Mat::with_stride(&[0.0f32; 11], 3, 2, 5);
}

#[test]
fn columns_of_a_matrix_without_rows() {
    let empty: [f32; 0] = [];
    let m = Mat::with_stride(&empty, 0, 8, 16).columns(4..8);
    assert_eq!((m.rows(), m.cols()), (0, 4));
}

#[test]
fn brain_floats_are_the_nearest() {
    // Above 256 only even numbers are brain floats, above 512 only multiples of four.
    for (x, nearest) in [
        (0.0f32, 0.0f32),
        (1.0, 1.0),
        (-1.0, -1.0),
        (256.9, 256.0),
        (257.0, 256.0),
        (257.1, 258.0),
        (259.0, 260.0),
        (-259.0, -260.0),
        (511.0, 512.0),
        (1.0 + 1.0 / 256.0, 1.0),
        (1.0 + 3.0 / 256.0, 1.0 + 4.0 / 256.0),
        (f32::MAX, f32::INFINITY),
        (f32::INFINITY, f32::INFINITY),
        (f32::NEG_INFINITY, f32::NEG_INFINITY),
        (f32::from_bits(0x0000_8000), 0.0),
        (f32::from_bits(0x0001_8000), f32::from_bits(0x0002_0000)),
    ] {
        assert_eq!(x.to_bf16(), nearest, "{x}");
        assert_eq!(f64::from(x).to_bf16(), f64::from(nearest), "{x} in double precision");
        assert_eq!(nearest.to_bf16(), nearest, "{nearest} is one");
    }
    assert!((-0.0f32).to_bf16().is_sign_negative());
    assert!(f32::NAN.to_bf16().is_nan() && f64::NAN.to_bf16().is_nan());
    assert!(f32::from_bits(0x7f80_0001).to_bf16().is_nan(), "not infinite");
}

#[test]
fn sums_of_brain_floats_are_rounded_after_each() {
    let parts = [[256.0f32, 1.0], [1.0, 0.5], [1.0, 0.25]];
    let mats: Vec<Mat<f32>> = parts.iter().map(|p| Mat::new(p, 1, 2)).collect();
    let mut y = [0.0f32; 2];
    elementwise::add_rounded(&mats, MatMut::new(&mut y, 1, 2));
    assert_eq!(y, [256.0, 1.75], "at once the first would be 258");
    elementwise::add_rounded(&mats[..1], MatMut::new(&mut y, 1, 2));
    assert_eq!(y, [256.0, 1.0]);
    elementwise::add_rounded(&[], MatMut::new(&mut y, 1, 2));
    assert_eq!(y, [0.0, 0.0]);
    let mut columns = [256.0f32, 7.0, 3.0, 7.0];
    elementwise::add_bias(&[1.0], MatMut::with_stride(&mut columns, 2, 1, 2));
    assert_eq!(columns, [257.0, 7.0, 4.0, 7.0]);
    elementwise::round_to_bf16(MatMut::with_stride(&mut columns, 2, 1, 2));
    assert_eq!(columns, [256.0, 7.0, 4.0, 7.0]);
}
