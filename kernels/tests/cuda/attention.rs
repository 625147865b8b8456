//! Attention over jagged sequences, forward and backward.

use fs_kernels::attention::{silu_attention, silu_attention_grad, softmax_attention, softmax_attention_grad};
use fs_kernels::cuda::catalogue::attention::{Attention, Score, WIDTHS, tiles, width};
use fs_kernels::cuda::sources::Precision;
use fs_kernels::{MatMut, Scratch};

use super::common::Source;
use super::device::{Device, Memory, POISON, PRECISIONS};
use super::matrix::{LAYOUTS, Matrix, assert_floats, assert_near, mat, random};

const SCORES: [Score; 3] = [Score::Silu, Score::Softmax { causal: true }, Score::Softmax { causal: false }];

/// What an attention makes of its inputs.
#[derive(PartialEq, Debug)]
struct Results {
    y: Vec<f32>,
    stats: Vec<f32>,
    gq: Vec<f32>,
    gk: Vec<f32>,
    gv: Vec<f32>,
}

struct Inputs {
    offsets: Vec<usize>,
    heads: usize,
    dim: usize,
    /// q, k, v, gy.
    values: [Vec<f32>; 4],
    /// What y, gq, gk and gv are added to.
    old: Option<[Vec<f32>; 4]>,
}

impl Inputs {
    fn new(
        source: &mut Source,
        device: &Device,
        lengths: &[usize],
        heads: usize,
        dim: usize,
        add: bool,
    ) -> Self {
        let mut offsets = vec![0];
        for length in lengths {
            offsets.push(offsets[offsets.len() - 1] + length);
        }
        let n = offsets[lengths.len()] * heads * dim;
        let mut draw = || [(); 4].map(|()| random(source, device, n));
        let (mut values, old) = (draw(), draw());
        // Scores that spread over several units.
        for x in &mut values[0] {
            *x = device.rounded(*x * 6.0);
        }
        Inputs { offsets, heads, dim, values, old: add.then_some(old) }
    }

    fn tokens(&self) -> usize {
        self.offsets[self.offsets.len() - 1]
    }

    fn cpu(&self, score: Score) -> Results {
        let (tokens, heads, columns) = (self.tokens(), self.heads, self.heads * self.dim);
        let [q, k, v, gy] = self.values.each_ref().map(|x| mat(x, tokens, columns));
        let [mut y, mut gq, mut gk, mut gv] = [(); 4].map(|()| vec![f32::NAN; tokens * columns]);
        let mut stats = vec![0.0; tokens * heads];
        let mut scratch = Scratch::default();
        let offsets = &self.offsets;
        {
            let view = |x| MatMut::new(x, tokens, columns);
            let (y, gq, gk, gv) = (view(&mut y), view(&mut gq), view(&mut gk), view(&mut gv));
            match score {
                Score::Silu => {
                    silu_attention(q, k, v, offsets, heads, y, &mut scratch);
                    silu_attention_grad(q, k, v, offsets, heads, gy, gq, gk, gv, &mut scratch);
                }
                Score::Softmax { causal } => {
                    softmax_attention(q, k, v, offsets, heads, causal, y, &mut stats, &mut scratch);
                    softmax_attention_grad(
                        q,
                        k,
                        v,
                        &stats,
                        offsets,
                        heads,
                        causal,
                        gy,
                        gq,
                        gk,
                        gv,
                        &mut scratch,
                    );
                }
            }
        }
        let mut results = [y, gq, gk, gv];
        for (result, old) in results.iter_mut().zip(self.old.iter().flatten()) {
            result.iter_mut().zip(old).for_each(|(x, old)| *x += old);
        }
        let [y, gq, gk, gv] = results;
        Results { y, stats, gq, gk, gv }
    }

    /// On the device, with operands that lie as `layouts` say.
    fn device(&self, device: &Device, score: Score, layouts: [(usize, usize); 2]) -> Results {
        let (tokens, columns) = (self.tokens(), self.heads * self.dim);
        let place = |i: usize| Matrix::of(device, tokens, columns, layouts[i % 2], &self.values[i]);
        let (q, k, v, gy) = (place(0), place(1), place(2), place(3));
        let mut results = [0, 1, 2, 3].map(|i| {
            let old = self.old.as_ref().map(|old| &old[i][..]);
            Matrix::target(device, tokens, columns, layouts[(i + 1) % 2], old)
        });
        let offsets = Memory::of(&self.offsets.iter().map(|o| *o as u64).collect::<Vec<_>>());
        let attention = Attention {
            score,
            q: (q.read(), q.stride()),
            k: (k.read(), k.stride()),
            v: (v.read(), v.stride()),
            offsets: offsets.read(),
            sequences: self.offsets.len() as u64 - 1,
            tokens: tokens as u64,
            heads: self.heads as u32,
            dim: self.dim as u32,
            precision: device.precision,
        };
        let add = u32::from(self.old.is_some());
        let softmax = score != Score::Silu;
        let fill = if softmax { POISON } else { 0.0 };
        let mut stats = Memory::filled(tokens * self.heads, fill);
        let mut dots = Memory::filled(tokens * self.heads, POISON);
        let gy = (gy.read(), gy.stride());
        let stride = results.each_ref().map(Matrix::stride);
        let [y, gq, gk, gv] = results.each_mut().map(Matrix::write);
        device.run([attention.forward((y, stride[0]), add, stats.write()).unwrap()]);
        if softmax {
            // The gradient reads the result alone, without what it was added to.
            let mut alone = Matrix::target(device, tokens, columns, layouts[0], None);
            let target = (alone.write(), alone.stride());
            device.run([attention.forward(target, 0, stats.write()).unwrap()]);
            device.run([attention.dots((alone.read(), alone.stride()), gy, dots.write())]);
        }
        let (stats_in, dots_in) = (stats.read(), dots.read());
        device.run([
            attention.grad_q(gy, stats_in, dots_in, (gq, stride[1]), add).unwrap(),
            attention.grad_kv(gy, stats_in, dots_in, (gk, stride[2], add), (gv, stride[3], add)).unwrap(),
        ]);
        let [y, gq, gk, gv] = results.each_ref().map(Matrix::values);
        Results { y, stats: stats.to_vec(), gq, gk, gv }
    }

    fn check(&self, device: &Device, score: Score, layouts: [(usize, usize); 2]) {
        let (got, expect) = (self.device(device, score, layouts), self.cpu(score));
        let what = |name: &str| {
            format!("{name} of {score:?}, {} heads of {}, {:?}", self.heads, self.dim, self.offsets)
        };
        assert_near(device, &what("y"), &got.y, &expect.y);
        // Sums of exponentials are floats, whatever activations are.
        assert_floats(&what("statistics"), &got.stats, &expect.stats, 1e-5);
        assert_near(device, &what("gv"), &got.gv, &expect.gv);
        let (scores, grads) = ([&got.gq, &got.gk], [&expect.gq, &expect.gk]);
        // A softmax over one key is 1, whatever the score: its gradient is a difference of equal numbers.
        let longest = self.offsets.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0);
        if longest > 1 || score == Score::Silu {
            assert_near(device, &what("gq"), scores[0], grads[0]);
            assert_near(device, &what("gk"), scores[1], grads[1]);
        }
    }
}

#[test]
fn short_and_empty_sequences() {
    let mut source = Source::new(51);
    for precision in PRECISIONS {
        let device = Device::new(precision);
        let lengths: [&[usize]; 7] =
            [&[], &[0], &[1], &[0, 1, 0, 2, 0], &[3, 0, 17, 1], &[31, 33, 0, 64, 65], &[130, 0, 5]];
        for (i, lengths) in lengths.into_iter().enumerate() {
            for score in SCORES {
                let inputs = Inputs::new(&mut source, &device, lengths, 1 + i % 3, 16, i % 2 == 1);
                inputs.check(&device, score, [LAYOUTS[i % 4], LAYOUTS[(i + 1) % 4]]);
            }
        }
    }
}

/// Every width of the kernels, full and partly filled; rows that copies of 16 bytes take and such that they don't.
#[test]
fn heads_of_all_widths() {
    let mut source = Source::new(52);
    for precision in PRECISIONS {
        let device = Device::new(precision);
        for (i, dim) in [1, 8, 16, 20, 32, 33, 64, 72, 128].into_iter().enumerate() {
            // The rounding of a result of one column is in its row's gradient as a whole.
            if dim == 1 && precision == Precision::Bf16 {
                continue;
            }
            for score in SCORES {
                let inputs = Inputs::new(&mut source, &device, &[70, 1, 40], 2, dim, i % 2 == 1);
                inputs.check(&device, score, [LAYOUTS[i % 2], LAYOUTS[1]]);
                if i % 3 == 0 {
                    inputs.check(&device, score, [LAYOUTS[2], LAYOUTS[3]]);
                }
            }
        }
        assert_eq!(width(128), Some(WIDTHS[3]));
        assert_eq!(width(129), None);
    }
}

#[test]
fn long_sequences() {
    let mut source = Source::new(53);
    for precision in PRECISIONS {
        let device = Device::new(precision);
        for (lengths, dim) in [(&[2050][..], 16), (&[300, 513, 2], 32)] {
            for score in SCORES {
                let inputs = Inputs::new(&mut source, &device, lengths, 1, dim, false);
                inputs.check(&device, score, [LAYOUTS[0], LAYOUTS[1]]);
            }
        }
    }
}

/// Neither the order of blocks and threads nor the other sequences of a batch change a bit.
#[test]
fn results_depend_on_the_sequence_alone() {
    let mut source = Source::new(54);
    for precision in PRECISIONS {
        let device = Device::new(precision);
        for score in SCORES {
            let inputs = Inputs::new(&mut source, &device, &[5, 90, 33], 1, 16, false);
            let first = inputs.device(&device, score, [LAYOUTS[0]; 2]);
            device.emulation.set_seed(99);
            assert_eq!(first, inputs.device(&device, score, [LAYOUTS[0]; 2]));
            let part = 5 * 16..95 * 16;
            let alone = Inputs {
                offsets: vec![0, 90],
                values: inputs.values.each_ref().map(|x| x[part.clone()].to_vec()),
                ..inputs
            };
            let alone = alone.device(&device, score, [LAYOUTS[0]; 2]);
            assert_eq!(alone.y, first.y[part.clone()]);
            assert_eq!(alone.gk, first.gk[part.clone()]);
            assert_eq!(alone.gv, first.gv[part.clone()]);
            assert_eq!(alone.gq, first.gq[part]);
        }
    }
}

/// Every tile of every sequence has a number below the number of tiles.
#[test]
fn tiles_are_enough() {
    let mut source = Source::new(55);
    for precision in [Precision::F32, Precision::Bf16] {
        for _ in 0..2000 {
            let longest = 1 + source.below(300);
            let sequences = source.below(20);
            let offsets = source.offsets(sequences, longest);
            let tokens = offsets[sequences] as u64;
            for head in WIDTHS {
                let all = tiles(precision, head, tokens, sequences as u64);
                let rows = match (precision, head) {
                    (Precision::Bf16, _) => 64,
                    (Precision::F32, 128) => 16,
                    (Precision::F32, _) => 32,
                };
                let mut free = 0;
                for (s, w) in offsets.windows(2).enumerate() {
                    if w[0] == w[1] {
                        continue;
                    }
                    let (first, needed) = (w[0] / rows + s, (w[1] - w[0]).div_ceil(rows));
                    assert!(first >= free, "two sequences share a number");
                    free = first + needed;
                }
                assert!(free as u64 <= all, "{free} numbers, {all} blocks");
            }
        }
    }
}
