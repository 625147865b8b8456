//! Random numbers: dropout's masks, and initial values.

use fs_kernels::cuda::In;
use fs_kernels::cuda::catalogue::{dropout as cuda, initial};
use fs_kernels::dropout::dropout;
use fs_kernels::random::{Init, RandomKey, fill};

use super::common::Source;
use super::device::{Device, Memory, POISON, PRECISIONS};
use super::matrix::{LAYOUTS, Matrix, SHAPES, assert_bits, made_and_added, mat, random};

const KEY: RandomKey = RandomKey { seed: 0x1234_5678_9abc, stream: 7, step: 1 << 33 };

/// What the host makes of a probability: the threshold of words, whether all are dropped, and the factor of the others.
fn threshold(p: f64) -> (u32, u32, f32) {
    let all = 4_294_967_296.0;
    let threshold = (p * all).clamp(0.0, all) as u64;
    (threshold as u32, u32::from(threshold == 1 << 32), (1.0 / (1.0 - p)) as f32)
}

#[test]
fn masks_are_those_of_the_cpu() {
    let mut source = Source::new(21);
    for precision in PRECISIONS {
        let device = Device::new(precision);
        for (rows, cols) in SHAPES.into_iter().chain([(4, 200)]) {
            for (i, layout) in LAYOUTS.into_iter().enumerate() {
                let x = random(&mut source, &device, rows * cols);
                let old = random(&mut source, &device, rows * cols);
                // Keys of more than 32 bits.
                let keys: Vec<u64> = (0..rows as u64).map(|r| r * 0x1_0000_0003 + 5).collect();
                let keys_in = Memory::of(&keys);
                for (p, add) in [(0.3, false), (0.5, true), (0.0, false), (1.0, false)] {
                    let x_in = Matrix::of(&device, rows, cols, LAYOUTS[(i + 1) % LAYOUTS.len()], &x);
                    let old = add.then_some(&old[..]);
                    let mut y = Matrix::target(&device, rows, cols, layout, old);
                    let [key0, key1] = KEY.mixed();
                    let (threshold, all, factor) = threshold(p);
                    device.run([cuda::dropout(
                        key0,
                        key1,
                        threshold,
                        all,
                        factor,
                        keys_in.read(),
                        x_in.read(),
                        x_in.stride(),
                        y.write(),
                        y.stride(),
                        u32::from(add),
                        rows as u64,
                        cols as u64,
                    )]);
                    let expect = made_and_added(rows, cols, old, |y| {
                        dropout(mat(&x, rows, cols), p, KEY, &keys, y);
                    });
                    assert_bits(&device, "dropout", &y.values(), &expect);
                }
            }
        }
    }
}

/// The arguments of `initial_random`.
fn scale_and_shift(init: Init) -> (u32, f32, f32) {
    match init {
        Init::Normal { mean, std } => (1, std as f32, mean as f32),
        Init::Uniform { low, high } => (0, (high - low) as f32, low as f32),
        _ => unreachable!("other values are not random"),
    }
}

#[test]
fn initial_values_are_those_of_the_cpu() {
    let device = Device::new(PRECISIONS[0]);
    let [key0, key1] = KEY.mixed();
    for (rows, cols) in [(0usize, 4usize), (1, 1), (3, 64), (50, 16), (9, 130), (7, 200)] {
        let first_row = u64::from(u32::MAX) - 3;
        for init in [
            Init::Normal { mean: 0.5, std: 0.1 },
            Init::Uniform { low: -0.25, high: 0.75 },
            Init::Hash { scale: 0.3, salt: 11 },
        ] {
            let mut expect = vec![0.0f32; rows * cols];
            fill(init, KEY, first_row, cols, &mut expect);
            let run = |first_row: u64, numbers: In<u64>, first_column: u32, cols: usize| {
                let mut out = Memory::filled(rows * cols, POISON);
                let (rows, cols) = (rows as u64, cols as u64);
                device.run([if let Init::Hash { scale, salt } = init {
                    initial::initial_hash(
                        salt,
                        scale,
                        first_row,
                        numbers,
                        first_column,
                        out.write(),
                        rows,
                        cols,
                    )
                } else {
                    let (normal, scale, shift) = scale_and_shift(init);
                    initial::initial_random(
                        key0,
                        key1,
                        normal,
                        scale,
                        shift,
                        first_row,
                        numbers,
                        first_column,
                        out.write(),
                        rows,
                        cols,
                    )
                }]);
                out.to_vec()
            };
            assert_bits(&device, "a range of rows", &run(first_row, In::NULL, 0, cols), &expect);
            // Listed rows.
            let numbers = Memory::of(&(0..rows as u64).map(|r| first_row + r).collect::<Vec<_>>());
            assert_bits(&device, "listed rows", &run(0, numbers.read(), 0, cols), &expect);
            // Some of the columns.
            let (from, some) = (cols / 3, cols - cols / 3);
            let part: Vec<f32> = expect.chunks_exact(cols).flat_map(|row| row[from..].to_vec()).collect();
            assert_bits(&device, "columns", &run(first_row, In::NULL, from as u32, some), &part);
        }
    }
}
