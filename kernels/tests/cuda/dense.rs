//! Elementwise operations, normalisations and sums over rows.

use fs_kernels::cuda::catalogue::{elementwise as cuda, norm as rowwise};
use fs_kernels::cuda::sources::Precision;
use fs_kernels::cuda::{In, Out};
use fs_kernels::elementwise::{self, Unary};
use fs_kernels::reduce::sum_in_rank_order;
use fs_kernels::{Mat, MatMut, Write, norm};

use super::common::Source;
use super::device::{Device, Memory, POISON, PRECISIONS};
use super::matrix::{
    LAYOUTS, Matrix, SHAPES, assert_bits, assert_floats, assert_near, made, made_and_added, mat, random,
};

/// Runs a test for both precisions, all shapes and layouts, with and without something that is added to.
pub(crate) fn everywhere(seed: u64, mut test: impl FnMut(&Device, &mut Source, Case)) {
    let mut source = Source::new(seed);
    for precision in PRECISIONS {
        let device = Device::new(precision);
        for (rows, cols) in SHAPES {
            for (i, layout) in LAYOUTS.into_iter().enumerate() {
                for add in [false, true] {
                    let old = random(&mut source, &device, rows * cols);
                    // Operands lie differently from results.
                    let other = LAYOUTS[(i + 1) % LAYOUTS.len()];
                    test(&device, &mut source, Case { rows, cols, layout, other, old: add.then_some(old) });
                }
            }
        }
    }
}

pub(crate) struct Case {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) layout: (usize, usize),
    pub(crate) other: (usize, usize),
    pub(crate) old: Option<Vec<f32>>,
}

impl Case {
    pub(crate) fn n(&self) -> usize {
        self.rows * self.cols
    }
    pub(crate) fn size(&self) -> (u64, u64) {
        (self.rows as u64, self.cols as u64)
    }
    pub(crate) fn add(&self) -> u32 {
        u32::from(self.old.is_some())
    }
    fn mode(&self) -> Write {
        if self.old.is_some() { Write::Add } else { Write::Set }
    }
    pub(crate) fn of(&self, device: &Device, values: &[f32]) -> Matrix {
        Matrix::of(device, self.rows, self.cols, self.layout, values)
    }
    pub(crate) fn elsewhere(&self, device: &Device, values: &[f32]) -> Matrix {
        Matrix::of(device, self.rows, self.cols, self.other, values)
    }
    pub(crate) fn target(&self, device: &Device) -> Matrix {
        Matrix::target(device, self.rows, self.cols, self.layout, self.old.as_deref())
    }
}

const KINDS: [Unary; 4] = [Unary::Silu, Unary::Relu, Unary::Gelu, Unary::Sigmoid];

#[test]
fn activation_functions_and_their_gradients() {
    everywhere(1, |device, source, case| {
        let (rows, cols) = (case.rows, case.cols);
        let wide: Vec<f32> =
            random(source, device, case.n()).iter().map(|x| device.rounded(x * 6.0)).collect();
        let gy = random(source, device, case.n());
        let (x_in, gy_in) = (case.of(device, &wide), case.elsewhere(device, &gy));
        for (number, kind) in (0..).zip(KINDS) {
            let what = format!("{kind:?}");
            let mut y = case.target(device);
            device.run([cuda::unary(
                number,
                x_in.read(),
                x_in.stride(),
                y.write(),
                y.stride(),
                case.add(),
                case.size().0,
                case.size().1,
            )]);
            // In double precision: the CPU's error function for floats is less exact than a device's.
            let double = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
            let added = |values: &[f64]| -> Vec<f32> {
                let old = case.old.clone().unwrap_or_else(|| vec![0.0; case.n()]);
                values.iter().zip(old).map(|(x, old)| (x + f64::from(old)) as f32).collect()
            };
            let (x64, gy64) = (double(&wide), double(&gy));
            let mut out = vec![0.0f64; case.n()];
            let view = |x| Mat::new(x, rows, cols);
            elementwise::unary(kind, view(&x64), MatMut::new(&mut out, rows, cols));
            assert_near(device, &what, &y.values(), &added(&out));
            let mut gx = case.target(device);
            device.run([cuda::unary_grad(
                number,
                x_in.read(),
                x_in.stride(),
                gy_in.read(),
                gy_in.stride(),
                gx.write(),
                gx.stride(),
                case.add(),
                case.size().0,
                case.size().1,
            )]);
            let target = MatMut::new(&mut out, rows, cols);
            elementwise::unary_grad(kind, view(&x64), view(&gy64), target, Write::Set);
            let expect = added(&out);
            assert_near(device, &what, &gx.values(), &expect);
            if kind == Unary::Relu {
                assert_bits(device, &what, &gx.values(), &expect);
            }
        }
    });
}

#[test]
fn relu_at_zero_has_no_gradient() {
    for precision in PRECISIONS {
        let device = Device::new(precision);
        let x = device.reals(&[0.0, -0.0, 1.0]);
        let gy = device.reals(&[2.0; 3]);
        let mut gx = device.poisoned_reals(3);
        device.run([cuda::unary_grad(1, x.read(), 3, gy.read(), 3, gx.write(), 3, 0, 1, 3)]);
        assert_eq!(gx.values(), [0.0, 0.0, 2.0]);
    }
}

#[test]
fn products_copies_and_multiples() {
    everywhere(2, |device, source, case| {
        let (rows, cols) = (case.rows, case.cols);
        let [a, b, gy] = [(); 3].map(|()| random(source, device, case.n()));
        let (a_in, b_in, gy_in) = (case.of(device, &a), case.elsewhere(device, &b), case.of(device, &gy));
        let (m, n) = case.size();
        let mut y = case.target(device);
        device.run([cuda::mul(
            a_in.read(),
            a_in.stride(),
            b_in.read(),
            b_in.stride(),
            y.write(),
            y.stride(),
            case.add(),
            m,
            n,
        )]);
        let expect = made_and_added(rows, cols, case.old.as_deref(), |y| {
            elementwise::mul(mat(&a, rows, cols), mat(&b, rows, cols), y);
        });
        assert_bits(device, "mul", &y.values(), &expect);

        let (mut ga, mut gb) = (case.target(device), case.elsewhere(device, &vec![POISON; case.n()]));
        device.run([cuda::mul_grad(
            a_in.read(),
            a_in.stride(),
            b_in.read(),
            b_in.stride(),
            gy_in.read(),
            gy_in.stride(),
            ga.write(),
            ga.stride(),
            case.add(),
            gb.write(),
            gb.stride(),
            0,
            m,
            n,
        )]);
        let mut expect_b = vec![];
        let expect_a = made(rows, cols, case.old.as_deref(), |ga| {
            expect_b = made(rows, cols, None, |gb| {
                let [a, b, gy] = [&a, &b, &gy].map(|x| mat(x, rows, cols));
                elementwise::mul_grad(a, b, gy, ga, case.mode(), gb, Write::Set);
            });
        });
        assert_bits(device, "ga", &ga.values(), &expect_a);
        assert_bits(device, "gb", &gb.values(), &expect_b);

        let mut y = case.target(device);
        device.run([cuda::scale(-0.3, b_in.read(), b_in.stride(), y.write(), y.stride(), case.add(), m, n)]);
        let expect = made(rows, cols, case.old.as_deref(), |y| {
            elementwise::scale(mat(&b, rows, cols), -0.3, y, case.mode());
        });
        assert_bits(device, "scale", &y.values(), &expect);

        let mut y = case.target(device);
        device.run([cuda::copy(b_in.read(), b_in.stride(), y.write(), y.stride(), case.add(), m, n)]);
        let expect = made(rows, cols, case.old.as_deref(), |y| {
            elementwise::copy(mat(&b, rows, cols), y, case.mode());
        });
        assert_bits(device, "copy", &y.values(), &expect);

        let mut y = case.target(device);
        device.run([cuda::fill(0.25, y.write(), y.stride(), m, n)]);
        assert_eq!(y.values(), vec![0.25; case.n()]);
    });
}

#[test]
fn sums_of_one_to_eight() {
    everywhere(3, |device, source, case| {
        let (rows, cols) = (case.rows, case.cols);
        for count in [1, 2, 3, 8] {
            let values: Vec<Vec<f32>> = (0..count).map(|_| random(source, device, case.n())).collect();
            let inputs: Vec<Matrix> = values
                .iter()
                .enumerate()
                .map(|(i, v)| if i % 2 == 0 { case.of(device, v) } else { case.elsewhere(device, v) })
                .collect();
            let at = |i: usize| inputs.get(i).map_or(In::NULL, Matrix::read);
            let stride = |i: usize| inputs.get(i).map_or(0, Matrix::stride);
            let mut y = case.target(device);
            device.run([cuda::add(
                count,
                at(0),
                stride(0),
                at(1),
                stride(1),
                at(2),
                stride(2),
                at(3),
                stride(3),
                at(4),
                stride(4),
                at(5),
                stride(5),
                at(6),
                stride(6),
                at(7),
                stride(7),
                y.write(),
                y.stride(),
                case.add(),
                case.size().0,
                case.size().1,
            )]);
            let expect = made_and_added(rows, cols, case.old.as_deref(), |y| {
                let mats: Vec<_> = values.iter().map(|v| mat(v, rows, cols)).collect();
                match device.precision {
                    Precision::F32 => elementwise::add(&mats, y),
                    Precision::Bf16 => elementwise::add_rounded(&mats, y),
                }
            });
            assert_bits(device, "add", &y.values(), &expect);
        }
    });
}

#[test]
fn biases_and_conversions() {
    everywhere(4, |device, source, case| {
        let (m, n) = case.size();
        let exact: Vec<f32> = (0..case.n()).map(|_| source.signed() as f32).collect();
        let bias: Vec<f32> = (0..case.cols).map(|_| source.signed() as f32).collect();
        let bias_in = Memory::of(&bias);
        let old = random(source, device, case.n());
        let mut y = case.of(device, &old);
        device.run([cuda::add_bias(bias_in.read(), y.write(), y.stride(), m, n)]);
        let expect: Vec<f32> = old.iter().enumerate().map(|(i, x)| x + bias[i % case.cols]).collect();
        assert_bits(device, "bias", &y.values(), &expect);

        // Rows of floats have a gap too.
        let stride = case.cols + case.layout.1;
        let mut floats = vec![POISON; case.rows * stride];
        for (row, values) in floats.chunks_exact_mut(stride.max(1)).zip(exact.chunks_exact(case.cols.max(1)))
        {
            row[..case.cols].copy_from_slice(values);
        }
        let floats_in = Memory::of(&floats);
        let mut y = case.target(device);
        device.run([cuda::real_from_float(
            floats_in.read(),
            stride as u64,
            y.write(),
            y.stride(),
            case.add(),
            m,
            n,
        )]);
        let zero = vec![0.0; case.n()];
        let base = case.old.as_deref().unwrap_or(&zero);
        let expect: Vec<f32> = exact.iter().zip(base).map(|(x, old)| x + old).collect();
        assert_bits(device, "to activations", &y.values(), &expect);

        let x = case.of(device, &old);
        let mut out = Memory::filled(case.rows * stride, POISON);
        device.run([cuda::float_from_real(x.read(), x.stride(), out.write(), stride as u64, 0, m, n)]);
        for i in 0..case.rows {
            let (row, gap) = out[i * stride..][..stride].split_at(case.cols);
            assert_eq!(row, &old[i * case.cols..][..case.cols]);
            assert!(gap.iter().all(|x| *x == POISON));
        }
    });
}

#[test]
fn sums_over_ranks_keep_their_order() {
    let mut source = Source::new(5);
    for device in PRECISIONS.map(Device::new) {
        for n in [0, 1, 3, 4, 1001, 5000] {
            for ranks in [1, 2, 3, 7] {
                for shift in [0, 1] {
                    // Some elements are zeros of either sign in all parts.
                    let mut element = |i: usize| if i % 5 == 3 { -0.0 } else { source.signed() as f32 };
                    let parts: Vec<Vec<f32>> =
                        (0..ranks).map(|_| (0..n).map(&mut element).collect()).collect();
                    // One part lies off the packs' grid.
                    let memory: Vec<_> =
                        parts.iter().map(|p| device.reals(&[&vec![POISON; shift][..], p].concat())).collect();
                    let ahead = (device.precision.bytes() * shift) as u64;
                    let addresses: Vec<u64> = memory.iter().map(|m| m.read().0 + ahead).collect();
                    let addresses = Memory::of(&addresses);
                    let mut out = device.poisoned_reals(n);
                    device.run([cuda::sum_in_rank_order(addresses.read(), ranks, out.write(), n as u64)]);
                    let mut expect = vec![0.0; n];
                    let rounded = |p: &Vec<f32>| p.iter().map(|x| device.rounded(*x)).collect::<Vec<_>>();
                    let parts: Vec<_> = parts.iter().map(rounded).collect();
                    sum_in_rank_order(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut expect);
                    assert_bits(&device, "sum", &out.values(), &expect);
                }
            }
            let mut out = Memory::filled(n, POISON);
            device.run([cuda::fill_floats(0.5, out.write(), n as u64)]);
            assert_eq!(&out[..], vec![0.5; n]);
        }
    }
}

#[test]
fn layer_norm_and_its_gradients() {
    everywhere(6, |device, source, case| {
        let (rows, cols) = (case.rows, case.cols);
        let (m, n) = case.size();
        let [mut x, gy] = [(); 2].map(|()| random(source, device, case.n()));
        // Not around zero.
        for x in &mut x {
            *x = device.rounded(*x + 2.0);
        }
        let [weight, bias] = [(); 2].map(|()| (0..cols).map(|_| source.signed() as f32).collect::<Vec<_>>());
        let (weight_in, bias_in) = (Memory::of(&weight), Memory::of(&bias));
        let (x_in, gy_in) = (case.of(device, &x), case.elsewhere(device, &gy));
        for affine in [false, true] {
            let mut y = case.target(device);
            let mut stats = Memory::filled(2 * rows, POISON);
            let (w, b) = if affine { (weight_in.read(), bias_in.read()) } else { (In::NULL, In::NULL) };
            device.run([rowwise::layer_norm(
                x_in.read(),
                x_in.stride(),
                w,
                b,
                1e-5,
                y.write(),
                y.stride(),
                case.add(),
                stats.write(),
                m,
                n,
            )]);
            if cols == 0 {
                continue;
            }
            let (cpu_w, cpu_b) = (affine.then_some(&weight[..]), affine.then_some(&bias[..]));
            let mut cpu_stats = vec![0.0; 2 * rows];
            let expect = made_and_added(rows, cols, case.old.as_deref(), |y| {
                norm::layer_norm(mat(&x, rows, cols), cpu_w, cpu_b, 1e-5, y, &mut cpu_stats);
            });
            assert_near(device, "layer norm", &y.values(), &expect);
            assert_floats("statistics", &stats, &cpu_stats, 1e-5);

            let mut gx = case.target(device);
            let chunk = rowwise::rows_of_chunk(m);
            let chunks = rowwise::chunks(m);
            let mut partials = Memory::filled(2 * chunks as usize * cols, POISON);
            let [old_w, old_b] =
                [(); 2].map(|()| (0..cols).map(|_| source.signed() as f32).collect::<Vec<_>>());
            let [mut gw, mut gb] = if case.old.is_some() {
                [Memory::of(&old_w), Memory::of(&old_b)]
            } else {
                [(); 2].map(|()| Memory::filled(cols, POISON))
            };
            let half = In::at(partials.read().0 + 4 * n);
            let stats_in = Memory::of(&cpu_stats);
            device.run([
                rowwise::layer_norm_grad(
                    x_in.read(),
                    x_in.stride(),
                    w,
                    stats_in.read(),
                    gy_in.read(),
                    gy_in.stride(),
                    gx.write(),
                    gx.stride(),
                    case.add(),
                    m,
                    n,
                ),
                rowwise::layer_norm_grad_columns(
                    x_in.read(),
                    x_in.stride(),
                    stats_in.read(),
                    gy_in.read(),
                    gy_in.stride(),
                    chunk,
                    partials.write(),
                    m,
                    n,
                ),
                rowwise::fold_partials(partials.read(), 2 * n, chunks, gw.write(), case.add(), n),
                rowwise::fold_partials(half, 2 * n, chunks, gb.write(), case.add(), n),
            ]);
            let (mut cpu_gw, mut cpu_gb) = (vec![0.0; cols], vec![0.0; cols]);
            let expect = made(rows, cols, case.old.as_deref(), |gx| {
                let (gw, gb) = (Some(&mut cpu_gw[..]), Some(&mut cpu_gb[..]));
                let (x, gy) = (mat(&x, rows, cols), mat(&gy, rows, cols));
                norm::layer_norm_grad(x, cpu_w, &cpu_stats, gy, gx, case.mode(), gw, gb);
            });
            // Of a single column the gradient is a difference of equal numbers.
            if cols > 1 {
                assert_near(device, "gx", &gx.values(), &expect);
            }
            if case.old.is_some() {
                cpu_gw.iter_mut().zip(&old_w).for_each(|(g, old)| *g += old);
                cpu_gb.iter_mut().zip(&old_b).for_each(|(g, old)| *g += old);
            }
            if cols > 1 {
                assert_floats("gweight", &gw, &cpu_gw, 1e-5);
            }
            assert_floats("gbias", &gb, &cpu_gb, 1e-5);
        }
    });
}

#[test]
fn sums_over_rows() {
    let mut source = Source::new(7);
    for precision in PRECISIONS {
        let device = Device::new(precision);
        for (rows, cols) in [(0, 5), (1, 1), (64, 33), (65, 64), (1000, 3), (40_000, 2)] {
            let x = random(&mut source, &device, rows * cols);
            let x_in = Matrix::of(&device, rows, cols, (1, 2), &x);
            let (m, n) = (rows as u64, cols as u64);
            let chunks = rowwise::chunks(m);
            let mut partials = Memory::filled(chunks as usize * cols, POISON);
            let mut sums = Memory::filled(cols, POISON);
            let chunk = rowwise::rows_of_chunk(m);
            device.run([
                rowwise::column_sums(x_in.read(), x_in.stride(), chunk, partials.write(), m, n),
                rowwise::fold_partials(partials.read(), n, chunks, sums.write(), 0, n),
            ]);
            let expect: Vec<f32> = (0..cols)
                .map(|j| (0..rows).map(|i| f64::from(x[i * cols + j])).sum::<f64>() as f32)
                .collect();
            assert_floats("sums", &sums, &expect, 1e-5);
        }
    }
}

#[test]
fn rows_of_unit_length_and_their_gradients() {
    everywhere(8, |device, source, case| {
        let (rows, cols) = (case.rows, case.cols);
        let (m, n) = case.size();
        let [mut x, gy] = [(); 2].map(|()| random(source, device, case.n()));
        // A row whose norm is raised.
        if rows > 2 {
            x[cols..2 * cols].fill(device.rounded(1e-5));
        }
        let eps = 1e-3f32;
        let (x_in, gy_in) = (case.of(device, &x), case.elsewhere(device, &gy));
        let mut y = case.target(device);
        let mut norms = Memory::filled(rows, POISON);
        device.run([rowwise::l2_normalize(
            x_in.read(),
            x_in.stride(),
            eps,
            y.write(),
            y.stride(),
            case.add(),
            norms.write(),
            m,
            n,
        )]);
        let mut cpu_norms = vec![0.0; rows];
        let unit = made(rows, cols, None, |y| {
            norm::l2_normalize(mat(&x, rows, cols), f64::from(eps), y, &mut cpu_norms);
        });
        let expect = made_and_added(rows, cols, case.old.as_deref(), |mut y| {
            (0..rows).for_each(|i| y.row_mut(i).copy_from_slice(&unit[i * cols..][..cols]));
        });
        assert_near(device, "unit rows", &y.values(), &expect);
        assert_floats("norms", &norms, &cpu_norms, 1e-5);

        let unit: Vec<f32> = unit.iter().map(|x| device.rounded(*x)).collect();
        let (unit_in, norms_in) = (case.of(device, &unit), Memory::of(&cpu_norms));
        let mut gx = case.target(device);
        device.run([rowwise::l2_normalize_grad(
            unit_in.read(),
            unit_in.stride(),
            norms_in.read(),
            eps,
            gy_in.read(),
            gy_in.stride(),
            gx.write(),
            gx.stride(),
            case.add(),
            m,
            n,
        )]);
        let expect = made(rows, cols, case.old.as_deref(), |gx| {
            let (y, gy) = (mat(&unit, rows, cols), mat(&gy, rows, cols));
            norm::l2_normalize_grad(y, &cpu_norms, f64::from(eps), gy, gx, case.mode());
        });
        // Of a single column the gradient is a difference of equal numbers.
        if cols > 1 {
            assert_near(device, "gx", &gx.values(), &expect);
        }
    });
}

#[test]
fn softmax_and_its_gradient() {
    everywhere(9, |device, source, case| {
        let (rows, cols) = (case.rows, case.cols);
        let (m, n) = case.size();
        let x: Vec<f32> =
            random(source, device, case.n()).iter().map(|x| device.rounded(x * 9.0 - 50.0)).collect();
        let gy = random(source, device, case.n());
        let (x_in, gy_in) = (case.of(device, &x), case.elsewhere(device, &gy));
        let mut y = case.target(device);
        device.run([rowwise::softmax(x_in.read(), x_in.stride(), y.write(), y.stride(), case.add(), m, n)]);
        let shares = made(rows, cols, None, |y| norm::softmax(mat(&x, rows, cols), y));
        let expect = made_and_added(rows, cols, case.old.as_deref(), |mut y| {
            (0..rows).for_each(|i| y.row_mut(i).copy_from_slice(&shares[i * cols..][..cols]));
        });
        assert_near(device, "softmax", &y.values(), &expect);

        let shares: Vec<f32> = shares.iter().map(|x| device.rounded(*x)).collect();
        let y_in = case.of(device, &shares);
        let mut gx = case.target(device);
        device.run([rowwise::softmax_grad(
            y_in.read(),
            y_in.stride(),
            gy_in.read(),
            gy_in.stride(),
            gx.write(),
            gx.stride(),
            case.add(),
            m,
            n,
        )]);
        let expect = made(rows, cols, case.old.as_deref(), |gx| {
            norm::softmax_grad(mat(&shares, rows, cols), mat(&gy, rows, cols), gx, case.mode());
        });
        assert_near(device, "softmax's gradient", &gx.values(), &expect);
    });
}

/// Addresses of nothing are not read where there is nothing to do.
#[test]
fn no_rows_no_launch() {
    let device = Device::new(PRECISIONS[0]);
    device.run([
        cuda::copy(In::NULL, 0, Out::NULL, 0, 0, 0, 8),
        cuda::copy(In::NULL, 0, Out::NULL, 0, 0, 8, 0),
    ]);
}
