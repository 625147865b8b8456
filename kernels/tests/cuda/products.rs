//! Matrix products, interactions, positions and optimizers.

use fs_kernels::cuda::In;
use fs_kernels::cuda::catalogue::{dense_optimizers, interaction as pairs, matmul, positional as positions};
use fs_kernels::cuda::sources::Precision;
use fs_kernels::interaction::{dot_interaction, dot_interaction_grad};
use fs_kernels::matmul::{linear, linear_grad_input, linear_grad_weight};
use fs_kernels::optimizer::{dense_adam, dense_sgd};
use fs_kernels::positional::{positional, positional_grad};
use fs_kernels::simd::{Level, level};
use fs_kernels::{Mat, MatMut, Write};

use super::common::Source;
use super::device::{Device, Memory, POISON, PRECISIONS};
use super::matrix::{
    LAYOUTS, Matrix, assert_bits, assert_floats, assert_near, made, made_and_added, mat, random,
};

#[test]
fn products_with_either_side_transposed() {
    let mut source = Source::new(31);
    for precision in PRECISIONS {
        let device = Device::new(precision);
        for (n, inputs, outputs) in [
            (0, 3, 4),
            (1, 1, 1),
            (5, 0, 3),
            (7, 3, 0),
            (13, 17, 31),
            (64, 64, 64),
            (65, 130, 67),
            (200, 16, 5),
            (3, 300, 129),
        ] {
            for (i, layout) in LAYOUTS.into_iter().enumerate() {
                let other = LAYOUTS[(i + 1) % LAYOUTS.len()];
                let x = random(&mut source, &device, n * inputs);
                let w = random(&mut source, &device, outputs * inputs);
                let gy = random(&mut source, &device, n * outputs);
                let bias: Vec<f32> = (0..outputs).map(|_| source.signed() as f32).collect();
                let bias_in = Memory::of(&bias);
                let x_in = Matrix::of(&device, n, inputs, layout, &x);
                let w_in = Matrix::of(&device, outputs, inputs, other, &w);
                let gy_in = Matrix::of(&device, n, outputs, other, &gy);
                let (rows, ins, outs) = (n as u64, inputs as u64, outputs as u64);

                // y = x w^T + b
                let mut y = Matrix::target(&device, n, outputs, layout, None);
                device.run([matmul::matmul(
                    x_in.read(),
                    x_in.stride(),
                    1,
                    w_in.read(),
                    1,
                    w_in.stride(),
                    bias_in.read(),
                    y.write(),
                    y.stride(),
                    0,
                    rows,
                    outs,
                    ins,
                )]);
                let expect = made(n, outputs, None, |y| {
                    linear(mat(&x, n, inputs), mat(&w, outputs, inputs), Some(&bias), y);
                });
                assert_near(&device, "y", &y.values(), &expect);

                // gx += gy w
                let old = random(&mut source, &device, n * inputs);
                let mut gx = Matrix::target(&device, n, inputs, other, Some(&old));
                device.run([matmul::matmul(
                    gy_in.read(),
                    gy_in.stride(),
                    1,
                    w_in.read(),
                    w_in.stride(),
                    1,
                    In::NULL,
                    gx.write(),
                    gx.stride(),
                    1,
                    rows,
                    ins,
                    outs,
                )]);
                let expect = made(n, inputs, Some(&old), |gx| {
                    linear_grad_input(mat(&gy, n, outputs), mat(&w, outputs, inputs), gx, Write::Add);
                });
                assert_near(&device, "gx", &gx.values(), &expect);

                // gw = gy^T x, in floats
                let mut gw = Memory::filled(outputs * inputs, POISON);
                device.run([matmul::matmul_to_float(
                    gy_in.read(),
                    1,
                    gy_in.stride(),
                    x_in.read(),
                    x_in.stride(),
                    1,
                    gw.write(),
                    ins,
                    0,
                    outs,
                    ins,
                    rows,
                )]);
                let expect = made(outputs, inputs, None, |gw| {
                    linear_grad_weight(mat(&gy, n, outputs), mat(&x, n, inputs), gw, None, Write::Set);
                });
                assert_floats("gw", &gw, &expect, 1e-5);
            }
        }
    }
}

#[test]
fn interactions_of_features_and_their_gradients() {
    let mut source = Source::new(32);
    for precision in PRECISIONS {
        let device = Device::new(precision);
        for (samples, features, cols) in
            [(0, 3, 4), (1, 1, 8), (2, 2, 1), (5, 3, 32), (9, 27, 64), (3, 7, 33), (2, 40, 70), (1, 127, 5)]
        {
            let pair_count = features * (features - 1) / 2;
            let xs: Vec<Vec<f32>> =
                (0..features).map(|_| random(&mut source, &device, samples * cols)).collect();
            let gy = random(&mut source, &device, samples * pair_count);
            let layout = |i: usize| LAYOUTS[i % LAYOUTS.len()];
            let inputs: Vec<Matrix> = xs
                .iter()
                .enumerate()
                .map(|(i, x)| Matrix::of(&device, samples, cols, layout(i), x))
                .collect();
            let addresses = Memory::of(&inputs.iter().map(|x| x.read().0).collect::<Vec<_>>());
            let strides = Memory::of(&inputs.iter().map(Matrix::stride).collect::<Vec<_>>());
            let mats: Vec<Mat<f32>> = xs.iter().map(|x| mat(x, samples, cols)).collect();
            for add in [false, true] {
                let old = random(&mut source, &device, samples * pair_count);
                let old = add.then_some(&old[..]);
                let mut y = Matrix::target(&device, samples, pair_count, (3, 2), old);
                device.run([pairs::dot_interaction(
                    addresses.read(),
                    strides.read(),
                    features as u32,
                    y.write(),
                    y.stride(),
                    u32::from(add),
                    samples as u64,
                    cols as u64,
                )]);
                let expect = made_and_added(samples, pair_count, old, |y| dot_interaction(&mats, y));
                assert_near(&device, "pairs", &y.values(), &expect);
            }

            let gy_in = Matrix::of(&device, samples, pair_count, (3, 2), &gy);
            let adds: Vec<u8> = (0..features).map(|i| (i % 3 == 1) as u8).collect();
            let olds: Vec<Vec<f32>> =
                (0..features).map(|_| random(&mut source, &device, samples * cols)).collect();
            let mut gxs: Vec<Matrix> = (0..features)
                .map(|i| {
                    let old = (adds[i] == 1).then_some(&olds[i][..]);
                    Matrix::target(&device, samples, cols, layout(i + 1), old)
                })
                .collect();
            let grad_addresses = Memory::of(&gxs.iter_mut().map(|g| g.write().0).collect::<Vec<_>>());
            let grad_strides = Memory::of(&gxs.iter().map(Matrix::stride).collect::<Vec<_>>());
            let adds_in = Memory::of(&adds);
            device.run([pairs::dot_interaction_grad(
                addresses.read(),
                strides.read(),
                features as u32,
                gy_in.read(),
                gy_in.stride(),
                grad_addresses.read(),
                grad_strides.read(),
                adds_in.read(),
                samples as u64,
                cols as u64,
            )]);
            let mut expect = olds;
            let modes: Vec<Write> =
                adds.iter().map(|a| if *a == 1 { Write::Add } else { Write::Set }).collect();
            let mut views: Vec<MatMut<f32>> =
                expect.iter_mut().map(|g| MatMut::new(g, samples, cols)).collect();
            dot_interaction_grad(&mats, mat(&gy, samples, pair_count), &mut views, &modes);
            for (gx, expect) in gxs.iter().zip(&expect) {
                assert_near(&device, "gx", &gx.values(), expect);
            }
        }
    }
}

#[test]
fn positions_and_their_gradients() {
    let mut source = Source::new(33);
    for precision in PRECISIONS {
        let device = Device::new(precision);
        for (sequences, longest, cols) in [(0, 1, 4), (1, 1, 1), (7, 20, 37), (40, 33, 64), (3, 500, 8)] {
            let offsets = source.offsets(sequences, longest);
            let tokens = offsets[sequences];
            let device_offsets = Memory::of(&offsets.iter().map(|o| *o as u64).collect::<Vec<_>>());
            let table: Vec<f32> = (0..longest * cols).map(|_| source.signed() as f32).collect();
            let table_in = Memory::of(&table);
            for layout in LAYOUTS {
                let x = random(&mut source, &device, tokens * cols);
                let x_in = Matrix::of(&device, tokens, cols, layout, &x);
                for add in [false, true] {
                    let old = random(&mut source, &device, tokens * cols);
                    let old = add.then_some(&old[..]);
                    let mut y = Matrix::target(&device, tokens, cols, layout, old);
                    device.run([positions::positional(
                        x_in.read(),
                        x_in.stride(),
                        device_offsets.read(),
                        sequences as u64,
                        table_in.read(),
                        longest as u64,
                        y.write(),
                        y.stride(),
                        u32::from(add),
                        tokens as u64,
                        cols as u64,
                        device.fault(),
                    )]);
                    let expect = made_and_added(tokens, cols, old, |y| {
                        positional(mat(&x, tokens, cols), &offsets, mat(&table, longest, cols), y);
                    });
                    assert_bits(&device, "y", &y.values(), &expect);

                    let old: Vec<f32> = (0..longest * cols).map(|_| source.signed() as f32).collect();
                    let mut gtable =
                        if add { Memory::of(&old) } else { Memory::filled(longest * cols, POISON) };
                    device.run([positions::positional_grad(
                        x_in.read(),
                        x_in.stride(),
                        device_offsets.read(),
                        sequences as u64,
                        gtable.write(),
                        u32::from(add),
                        longest as u64,
                        cols as u64,
                    )]);
                    let expect = made_and_added(longest, cols, add.then_some(&old[..]), |g| {
                        positional_grad(mat(&x, tokens, cols), &offsets, g);
                    });
                    let same = gtable.iter().zip(&expect).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "the table's gradient");
                }
            }
        }
        // A table that is too short.
        let (offsets, table) = (Memory::of(&[0u64, 3]), Memory::of(&[1.0f32; 8]));
        let x = device.reals(&[1.0; 12]);
        let mut y = device.poisoned_reals(12);
        let faults = device.faults([positions::positional(
            x.read(),
            4,
            offsets.read(),
            1,
            table.read(),
            2,
            y.write(),
            4,
            0,
            3,
            4,
            device.fault(),
        )]);
        assert_ne!(faults, 0);
        assert_eq!(y.values(), [[2.0; 8].as_slice(), &[1.0; 4]].concat());
    }
}

#[test]
fn optimizers_of_parameters() {
    let mut source = Source::new(34);
    for precision in PRECISIONS {
        let device = Device::new(precision);
        for n in [0, 1, 5, 1000, 4099] {
            let draw = |source: &mut Source| -> Vec<f32> { (0..n).map(|_| source.signed() as f32).collect() };
            let (w, m) = (draw(&mut source), draw(&mut source));
            let v: Vec<f32> = draw(&mut source).iter().map(|x| x * x).collect();
            let g = draw(&mut source);
            let g_in = Memory::of(&g);
            for momentum in [0.0, 0.9] {
                let (mut w_out, mut b_out) = (Memory::of(&w), Memory::of(&m));
                let mut rounded = device.poisoned_reals(n);
                let buffer = if momentum > 0.0 { b_out.write() } else { fs_kernels::cuda::Out::NULL };
                device.run([dense_optimizers::dense_sgd(
                    w_out.write(),
                    g_in.read(),
                    buffer,
                    rounded.write(),
                    0.1,
                    momentum,
                    0.01,
                    n as u64,
                )]);
                let (mut expect, mut buffer) = (w.clone(), m.clone());
                let state = (momentum > 0.0).then_some(&mut buffer[..]);
                let (momentum, decay) = (f64::from(momentum), f64::from(0.01f32));
                dense_sgd(&mut expect, &g, state, f64::from(0.1f32), momentum, decay);
                assert_eq!(&w_out[..], &expect[..]);
                assert_eq!(&b_out[..], &buffer[..]);
                assert_bits(&device, "rounded", &rounded.values(), &expect);
            }
            for (step, decay) in [(1u64, 0.0), (1000, 0.01)] {
                let (lr, beta1, beta2, eps) = (1e-3f64, 0.9f64, 0.999f64, 1e-8f64);
                let power = |b: f64| b.powi(step as i32);
                let (mut w_out, mut m_out, mut v_out) = (Memory::of(&w), Memory::of(&m), Memory::of(&v));
                let mut rounded = device.poisoned_reals(n);
                device.run([dense_optimizers::dense_adam(
                    w_out.write(),
                    g_in.read(),
                    m_out.write(),
                    v_out.write(),
                    rounded.write(),
                    (lr / (1.0 - power(beta1))) as f32,
                    (1.0 / (1.0 - power(beta2)).sqrt()) as f32,
                    (1.0 - beta1) as f32,
                    (1.0 - beta2) as f32,
                    eps as f32,
                    decay as f32,
                    n as u64,
                )]);
                let [mut cpu_w, mut cpu_m, mut cpu_v] = [w.clone(), m.clone(), v.clone()];
                dense_adam(&mut cpu_w, &g, &mut cpu_m, &mut cpu_v, lr, beta1, beta2, eps, decay, step);
                for (what, got, expect) in
                    [("w", &w_out, &cpu_w), ("m", &m_out, &cpu_m), ("v", &v_out, &cpu_v)]
                {
                    assert_floats(what, got, expect, 1e-6);
                    // Plain arrays don't fuse.
                    if level() != Level::Portable {
                        assert_eq!(&got[..], &expect[..], "{what}");
                    }
                }
                if precision == Precision::F32 {
                    assert_eq!(rounded.values(), &w_out[..]);
                }
            }
        }
    }
}
