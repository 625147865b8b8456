//! Products of microbatches. Alone in their program: bits are compared, and which instructions the whole process uses is
//! set; allocations are counted.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Mutex;

use common::{Grid, Source};
use fs_kernels::MatMut;
use fs_kernels::matmul::linear;
use fs_kernels::simd::{Level, limit_level};

/// Counts what the calling thread allocates.
struct Counting;

thread_local! {
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is the system's; counting allocates nothing.
#[allow(unsafe_code, reason = "the only way to count allocations")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get() + 1);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(pointer, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Held while which instructions are used must not change: that is said for the whole process, and workspaces differ.
static LEVEL: Mutex<()> = Mutex::new(());

/// Batches vary: after the first, of whatever size, none asks for more memory.
#[test]
fn later_batches_need_no_more_memory() {
    let _same = LEVEL.lock();
    let mut source = Source::new(8);
    for [inputs, outputs] in [[64, 48], [13, 512], [300, 20], [128, 128]] {
        let w = Grid::<f32>::random(&mut source, outputs, inputs, 0);
        let x = Grid::<f32>::random(&mut source, 200, inputs, 0);
        let mut y = vec![0.0; 200 * outputs];
        for first in [1, 12, 200] {
            // A thread of its own has a workspace of its own.
            let (x, w, y) = (x.view(), w.view(), &mut y);
            let allocated = std::thread::scope(|scope| {
                let products = scope.spawn(move || {
                    let mut product = |n: usize| {
                        linear(x.rows_range(0..n), w, None, MatMut::new(&mut y[..n * outputs], n, outputs));
                    };
                    product(first);
                    let before = ALLOCATED.get();
                    (1..=200).for_each(product);
                    ALLOCATED.get() - before
                });
                products.join().expect("products of a thread")
            });
            assert_eq!(allocated, 0, "[{inputs}, {outputs}], first {first} rows");
        }
    }
}

/// A row's product has the same bits in a large batch and in a small one, where x is transposed and not w: microbatches
/// change no forward pass, and neither does how many samples a rank has.
#[test]
fn products_of_rows_are_those_of_a_batch() {
    let _same = LEVEL.lock();
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
