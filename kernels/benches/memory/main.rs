//! Kernels that are bound by memory, beside what memory gives: the tables of docs/kernels.md. One thread.
//!
//! `cargo bench -p fs-kernels --bench memory` prints both parts, `-- rows` and `-- ids` one of them; `rows` takes dims and
//! `uniform` or `zipf`, and `4k` turns huge pages off. Every round times two copies and every kernel once; ratios are
//! of one round, and their median is printed.
#![allow(clippy::print_stdout, reason = "a benchmark's output is its purpose")]

mod draw;
mod ids;
mod rows;

use std::time::Instant;

use fs_kernels::memory::Block;
use fs_kernels::{Mat, MatMut};

/// One thing to time: its name, how much a call does (bytes or ids), and the call.
struct Case {
    name: String,
    work: f64,
    call: Box<dyn FnMut()>,
}

fn case(name: impl Into<String>, work: f64, call: impl FnMut() + 'static) -> Case {
    Case { name: name.into(), work, call: Box::new(call) }
}

fn seconds(call: &mut dyn FnMut()) -> f64 {
    let start = Instant::now();
    call();
    start.elapsed().as_secs_f64()
}

fn median(mut x: Vec<f64>) -> f64 {
    x.sort_by(f64::total_cmp);
    x[x.len() / 2]
}

/// A copy far beyond the caches, and its bytes: each is counted once as read and once as written, as in STREAM.
fn copy() -> Case {
    let n = 64 << 20;
    let (mut from, mut to) = (Block::<f32>::zeros(n), Block::<f32>::zeros(n));
    from.fill(1.0);
    to.fill(2.0);
    case("copy of 256 MiB", (2 * 4 * n) as f64, move || {
        to.copy_from_slice(&from);
        std::hint::black_box(&to[n / 2]);
    })
}

/// The same with stores past the caches, which the C library's copy does not use here: its destination need not be
/// read first.
fn copy_past() -> Case {
    let (rows, cols) = (1 << 14, 1 << 12);
    let n = rows * cols;
    let (mut from, mut to) = (Block::<f32>::zeros(n), Block::<f32>::zeros(n));
    from.fill(1.0);
    to.fill(2.0);
    let all: Vec<u32> = (0..rows as u32).collect();
    case("the same past the caches", (2 * 4 * n) as f64, move || {
        fs_kernels::partition::scatter(Mat::new(&from, rows, cols), &all, MatMut::new(&mut to, rows, cols));
    })
}

/// Turns huge pages off for this process.
#[cfg(target_os = "linux")]
fn small_pages() {
    // SAFETY: takes numbers only.
    #[allow(unsafe_code, reason = "a setting of the process, before it holds memory worth mentioning")]
    unsafe {
        libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0);
    }
}

#[cfg(not(target_os = "linux"))]
fn small_pages() {}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let has = |name: &str| arguments.iter().any(|a| a == name);
    if has("4k") {
        small_pages();
    }
    let all = !has("rows") && !has("ids");
    if all || has("rows") {
        rows::table(&arguments);
    }
    if all || has("ids") {
        ids::table();
    }
}
