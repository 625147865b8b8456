//! Work that does not depend on each other, on as many threads as there are: what comes of it is the same on one.

use std::num::NonZero;
use std::sync::LazyLock;

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// For all searches of a process: as many threads as there are processors, at most so many, or as `RAYON_NUM_THREADS` says. None where the
/// system gives none.
static THREADS: LazyLock<Option<ThreadPool>> = LazyLock::new(|| {
    let asked = std::env::var_os("RAYON_NUM_THREADS").is_some();
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = if asked { 0 } else { processors.min(MOST) };
    ThreadPoolBuilder::new().num_threads(threads).stack_size(STACK).build().ok()
});
const MOST: usize = 16;
/// Bytes of a thread's stack, as a main thread has them.
const STACK: usize = 8 << 20;

/// Each item's result, in their order.
pub(crate) fn abreast<T: Send, R: Send>(items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let alone = items.len() < 2;
    let parallel = |items: Vec<T>| items.into_par_iter().with_max_len(1).map(&work).collect();
    // Whoever calls from threads of their own has said how many.
    if !alone && rayon::current_thread_index().is_some() {
        return parallel(items);
    }
    match THREADS.as_ref().filter(|_| !alone) {
        Some(threads) => threads.install(|| parallel(items)),
        None => items.into_iter().map(work).collect(),
    }
}
