//! Products of microbatches. Alone in its program: it compares bits, and sets which instructions the whole process uses.

mod common;

use common::{Grid, Source};
use fs_kernels::MatMut;
use fs_kernels::matmul::linear;
use fs_kernels::simd::{Level, limit_level};

/// A row's product has the same bits in a large batch and in a small one, where x is transposed and not w: microbatches
/// change no forward pass, and neither does how many samples a rank has.
#[test]
fn products_of_rows_are_those_of_a_batch() {
    let mut source = Source::new(7);
    for [inputs, outputs] in [[512, 256], [13, 300], [130, 33], [700, 40], [42, 128], [1, 90]] {
        let n = 300;
        let x = Grid::<f32>::random(&mut source, n, inputs, 3);
        let w = Grid::<f32>::random(&mut source, outputs, inputs, 2);
        let bias: Vec<f32> = source.vec(outputs).iter().map(|b| *b as f32).collect();
        for (level, bias) in [Level::Portable, Level::Avx2, Level::Avx512]
            .into_iter()
            .flat_map(|level| [(level, None), (level, Some(&*bias))])
        {
            limit_level(level);
            let mut whole = vec![0.0; n * outputs];
            linear(x.view(), w.view(), bias, MatMut::new(&mut whole, n, outputs));
            for rows in [1, 7, 32, 33, 75] {
                // What is there before does not count.
                let mut cut = vec![f32::NAN; n * outputs];
                for (i, y) in cut.chunks_mut(rows * outputs).enumerate() {
                    let own = y.len() / outputs;
                    let x = x.view().rows_range(rows * i..rows * i + own);
                    linear(x, w.view(), bias, MatMut::new(y, own, outputs));
                }
                let differs = cut.iter().zip(&whole).position(|(a, b)| a.to_bits() != b.to_bits());
                assert_eq!(differs, None, "{level:?}, {rows} rows of [{inputs}, {outputs}]");
            }
        }
    }
}
