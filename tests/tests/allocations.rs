//! In steady state a step allocates nothing: buffers, outboxes and workspaces have grown to their size.
//!
//! All allocations of the process are counted from step to step. What remains are a few of the threads that read
//! data and put the ranks' messages together, however many operations a step has.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use fs_compiler::{CompileOptions, Strategy, compile_with};
use fs_executor::{Observer, Options, Session, StepEvent};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is left to the system's allocator.
#[allow(unsafe_code, reason = "the only way to count allocations")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The count after each step.
#[derive(Default)]
struct Counts(Vec<u64>);

impl Observer for Counts {
    fn training(&mut self, steps: u64) {
        self.0.reserve(steps as usize);
    }
    fn step(&mut self, _: &StepEvent) {
        self.0.push(ALLOCATIONS.load(Ordering::Relaxed));
    }
}

const MODEL: &str = "model small {
  table a { rows 400  dim 16  init normal(0, 0.5)  optimizer rowwise_adagrad(lr: 0.05)  sharding row_wise }
  input x: ids(a) { max 9 }
  input following: next(x)
  let h = lookup(x)
  let g = layer_norm(h + silu_attention(linear(h, 16), linear(h, 16), linear(h, 16), heads: 2))
  loss sampled_softmax(linear(silu(g), 16), a, following, negatives: 8, temperature: 0.5, similarity: cosine, normalize: tokens)
}
train { batch 8  steps 240  optimizer adam(lr: 1e-2) }
workload w { generate { lengths fixed(6)  ids zipf(1.05)  labels hash } }";

#[test]
fn steps_allocate_nothing() {
    let loaded = fs_dsl::check_text("model.fs", MODEL);
    let Some(program) = &loaded.program else {
        panic!("{}", fs_dsl::render(&loaded.diagnostics, &loaded.sources, false))
    };
    for (strategy, microbatches) in [(Strategy::Serial, 1), (Strategy::Pec, 1), (Strategy::Pec, 2)] {
        let options = CompileOptions { microbatches: Some(microbatches), ..CompileOptions::new(strategy, 2) };
        let schedule = compile_with(program, &options).unwrap_or_else(|e| panic!("{e}")).schedule;
        let operations = schedule.train.ops.len() as u64;
        let options = Options { ranks: Some(2), evaluate: false, ..Options::default() };
        let mut session = Session::<f32>::new(schedule, options).unwrap_or_else(|e| panic!("{e}"));
        let mut counts = Counts::default();
        session.run(&mut counts).unwrap_or_else(|e| panic!("{e}"));
        // Sizes vary a little, so now and then something grows: the quietest ten steps show what every step does.
        let least = counts.0.windows(11).map(|w| w[10] - w[0]).min().unwrap_or(u64::MAX);
        assert!(least <= 10 * 5, "{strategy:?}: {least} allocations in 10 steps of {operations} operations");
    }
}
