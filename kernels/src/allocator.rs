//! An allocator that ends the process with a line that says why.
//!
//! What cannot be had is an error to whoever can tell one: tables, states and buffers ask for memory with
//! [`tolerant`]. All others, thousands of places in this and other crates, cannot, and the process would be aborted in the
//! middle of whatever it writes. [`Ending`] is an allocator that says what was missing, lets the command remove what it has begun,
//! and ends it as any other error does.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// An allocator, such as the system's; what it does not give ends the process. For `#[global_allocator]`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ending<A>(pub A);

/// What to do about it, and what is done before the end.
static BEFORE: OnceLock<(&str, fn())> = OnceLock::new();
/// Memory that is given back for that: what lists a folder takes some.
static SPARE: Mutex<Vec<u8>> = Mutex::new(Vec::new());
const SPARE_BYTES: usize = 1 << 18;
/// Somebody ends the process.
static ENDS: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whoever asks for memory can do without.
    static TOLERANT: Cell<bool> = const { Cell::new(false) };
}

/// From now on this is done before the end, of which a line says what is missing and what to do: `advice`, of at most 100
/// bytes. It must be able to do with little memory.
pub fn before_end(advice: &'static str, what: fn()) {
    if let (Ok(mut spare), Ok(())) = (SPARE.lock(), BEFORE.set((advice, what))) {
        *spare = vec![0; SPARE_BYTES];
    }
}

/// Asks for memory that may not be there: whatever `ask` does, the process does not end for want of it here.
pub fn tolerant<R>(ask: impl FnOnce() -> R) -> R {
    let before = TOLERANT.replace(true);
    let found = ask();
    TOLERANT.set(before);
    found
}

/// Says what is missing, and ends the process.
#[cold]
fn missing(layout: Layout) {
    // A thread that is ending has no such words any more.
    if TOLERANT.try_with(Cell::get).unwrap_or(false) {
        return;
    }
    if ENDS.swap(true, Ordering::AcqRel) {
        // Another thread is doing so; if it is this one, which needs memory for that, the system's own end comes next.
        std::thread::sleep(Duration::from_secs(3));
        return;
    }
    let before = BEFORE.get();
    let mut line = [0; 200];
    let mut rest = &mut line[..];
    let advice = before.map_or("raise the limit of memory", |before| before.0);
    let _ = writeln!(rest, "error: {} bytes of memory cannot be had; {advice}", layout.size());
    let left = rest.len();
    let _ = std::io::stderr().write_all(&line[..line.len() - left]);
    if let Some((_, before)) = before {
        if let Ok(mut spare) = SPARE.try_lock() {
            drop(std::mem::take(&mut *spare));
        }
        before();
    }
    exit()
}

/// Without what a runtime does before: it waits for locks that this thread may hold, such as those under which threads begin and end.
#[cfg(target_os = "linux")]
fn exit() -> ! {
    // SAFETY: it takes a number, and nothing of the process runs after it.
    unsafe { libc::_exit(1) }
}

#[cfg(not(target_os = "linux"))]
fn exit() -> ! {
    std::process::exit(1)
}

// SAFETY: every call is the other allocator's, which keeps the contract; what it returns is returned, null included.
// Nothing unwinds: `missing` panics nowhere.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Ending<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the other allocator's.
        let found = unsafe { self.0.alloc(layout) };
        if found.is_null() {
            missing(layout);
        }
        found
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { self.0.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let found = unsafe { self.0.alloc_zeroed(layout) };
        if found.is_null() {
            missing(layout);
        }
        found
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        let found = unsafe { self.0.realloc(at, layout, size) };
        if found.is_null() {
            missing(Layout::from_size_align(size, layout.align()).unwrap_or(layout));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::alloc::System;

    use super::*;

    #[test]
    fn memory_comes_and_what_is_asked_for_with_care_ends_nothing() {
        let ending = Ending(System);
        let impossible = Layout::from_size_align(isize::MAX as usize / 64 * 64, 64).expect("a layout");
        // SAFETY: layouts have a size; what is returned is given back with its own.
        unsafe {
            assert!(tolerant(|| ending.alloc(impossible)).is_null());
            assert!(tolerant(|| ending.alloc_zeroed(impossible)).is_null());
            let small = Layout::from_size_align(64, 64).expect("a layout");
            let at = ending.alloc_zeroed(small);
            assert_eq!(*at, 0);
            assert!(tolerant(|| ending.realloc(at, small, impossible.size())).is_null());
            let at = ending.realloc(at, small, 128);
            ending.dealloc(at, Layout::from_size_align(128, 64).expect("a layout"));
        }
        assert!(!TOLERANT.get());
    }
}
