//! Work that does not depend on each other, on as many threads as there are: what comes of it is the same on one.

use std::num::NonZero;
use std::sync::LazyLock;

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// For all searches of a process: as many threads as there are processors, or as `RAYON_NUM_THREADS` says, at most [`MOST`], and as many as
/// there is room for where a process may not have all addresses. None for one thread, and where the system gives none.
static THREADS: LazyLock<Option<ThreadPool>> = LazyLock::new(|| {
    let asked = std::env::var("RAYON_NUM_THREADS").ok();
    let asked = asked.and_then(|asked| asked.trim().parse().ok()).filter(|threads| *threads > 0);
    let processors = || std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = asked.unwrap_or_else(processors).min(MOST).min(room());
    let build = || ThreadPoolBuilder::new().num_threads(threads).stack_size(STACK).build().ok();
    (threads > 1).then(build).flatten()
});
const MOST: usize = 16;
/// Bytes of a thread's stack, as a main thread has them.
const STACK: usize = 8 << 20;
/// Bytes of addresses that a thread takes: its stack, and what allocators ask for at once.
#[cfg(unix)]
const TAKES: u64 = 128 << 20;
/// Of what a process may have, the share that threads may take.
#[cfg(unix)]
const SHARE: u64 = 4;

/// For how many threads there is room where a process may not have all addresses.
#[cfg(unix)]
fn room() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current;
    limit.map_or(usize::MAX, |bytes| usize::try_from(bytes / SHARE / TAKES).unwrap_or(usize::MAX))
}

#[cfg(not(unix))]
fn room() -> usize {
    usize::MAX
}

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
