//! Fused neighbours against the kernels that they are made of, in every bit.

use fs_kernels::cuda::In;
use fs_kernels::cuda::catalogue::{elementwise, norm};

use super::dense::everywhere;
use super::device::{Memory, POISON};
use super::matrix::{assert_bits, random};

#[test]
fn bias_and_function() {
    everywhere(21, |device, source, case| {
        if case.old.is_some() {
            return;
        }
        let (m, n) = case.size();
        let product = random(source, device, case.n());
        let bias = Memory::of(&(0..case.cols).map(|_| source.signed() as f32).collect::<Vec<_>>());
        for function in 0..4 {
            let (mut z, mut y) = (case.of(device, &product), case.target(device));
            let (mut fused_z, mut fused_y) = (case.of(device, &product), case.target(device));
            device.run([
                elementwise::add_bias(bias.read(), z.write(), z.stride(), m, n),
                elementwise::unary(function, z.read(), z.stride(), y.write(), y.stride(), 0, m, n),
                elementwise::bias_unary(
                    function,
                    bias.read(),
                    fused_z.write(),
                    fused_z.stride(),
                    fused_y.write(),
                    fused_y.stride(),
                    m,
                    n,
                ),
            ]);
            assert_bits(device, "z", &fused_z.values(), &z.values());
            assert_bits(device, "y", &fused_y.values(), &y.values());
        }
    });
}

#[test]
fn sum_and_norm() {
    everywhere(22, |device, source, case| {
        if case.old.is_some() || case.cols == 0 {
            return;
        }
        let (m, n) = case.size();
        let [a, b] = [(); 2].map(|()| random(source, device, case.n()));
        let (a, b) = (case.elsewhere(device, &a), case.of(device, &b));
        let [weight, bias] =
            [(); 2].map(|()| Memory::of(&(0..case.cols).map(|_| source.signed() as f32).collect::<Vec<_>>()));
        for affine in [false, true] {
            let (w, c) = if affine { (weight.read(), bias.read()) } else { (In::NULL, In::NULL) };
            let [mut sum, mut y, mut fused_sum, mut fused_y] = [(); 4].map(|()| case.target(device));
            let [mut stats, mut fused_stats] = [(); 2].map(|()| Memory::filled(2 * case.rows, POISON));
            let (x, none) = ((a.read(), a.stride()), (In::NULL, 0));
            device.run([
                elementwise::add(
                    2,
                    x.0,
                    x.1,
                    b.read(),
                    b.stride(),
                    none.0,
                    none.1,
                    none.0,
                    none.1,
                    none.0,
                    none.1,
                    none.0,
                    none.1,
                    none.0,
                    none.1,
                    none.0,
                    none.1,
                    sum.write(),
                    sum.stride(),
                    0,
                    m,
                    n,
                ),
                norm::layer_norm(
                    sum.read(),
                    sum.stride(),
                    w,
                    c,
                    1e-5,
                    y.write(),
                    y.stride(),
                    0,
                    stats.write(),
                    m,
                    n,
                ),
                norm::add_layer_norm(
                    x.0,
                    x.1,
                    b.read(),
                    b.stride(),
                    w,
                    c,
                    1e-5,
                    fused_sum.write(),
                    fused_sum.stride(),
                    fused_y.write(),
                    fused_y.stride(),
                    fused_stats.write(),
                    m,
                    n,
                ),
            ]);
            assert_bits(device, "sum", &fused_sum.values(), &sum.values());
            assert_bits(device, "y", &fused_y.values(), &y.values());
            assert_eq!(fused_stats.to_vec(), stats.to_vec());
        }
    });
}

#[test]
fn norm_and_gate() {
    everywhere(23, |device, source, case| {
        if case.old.is_some() || case.cols == 0 {
            return;
        }
        let (m, n) = case.size();
        let [x, gate] = [(); 2].map(|()| random(source, device, case.n()));
        let (x, gate) = (case.of(device, &x), case.elsewhere(device, &gate));
        let [weight, bias] =
            [(); 2].map(|()| Memory::of(&(0..case.cols).map(|_| source.signed() as f32).collect::<Vec<_>>()));
        for affine in [false, true] {
            let (w, c) = if affine { (weight.read(), bias.read()) } else { (In::NULL, In::NULL) };
            let [mut z, mut y, mut fused_z, mut fused_y] = [(); 4].map(|()| case.target(device));
            let [mut stats, mut fused_stats] = [(); 2].map(|()| Memory::filled(2 * case.rows, POISON));
            device.run([
                norm::layer_norm(
                    x.read(),
                    x.stride(),
                    w,
                    c,
                    1e-5,
                    z.write(),
                    z.stride(),
                    0,
                    stats.write(),
                    m,
                    n,
                ),
                elementwise::mul(
                    z.read(),
                    z.stride(),
                    gate.read(),
                    gate.stride(),
                    y.write(),
                    y.stride(),
                    0,
                    m,
                    n,
                ),
                norm::layer_norm_mul(
                    x.read(),
                    x.stride(),
                    w,
                    c,
                    1e-5,
                    gate.read(),
                    gate.stride(),
                    fused_z.write(),
                    fused_z.stride(),
                    fused_y.write(),
                    fused_y.stride(),
                    fused_stats.write(),
                    m,
                    n,
                ),
            ]);
            assert_bits(device, "z", &fused_z.values(), &z.values());
            assert_bits(device, "y", &fused_y.values(), &y.values());
            assert_eq!(fused_stats.to_vec(), stats.to_vec());
        }
    });
}
