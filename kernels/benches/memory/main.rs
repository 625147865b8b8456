//! Kernels that are bound by memory, beside what memory gives: the tables of docs/kernels.md. One thread.
//!
//! `cargo bench -p fs-kernels --bench memory` prints both parts, `-- rows` and `-- ids` one of them. Every round times
//! a copy and every kernel once; ratios are of one round, and their median is printed.
#![allow(clippy::print_stdout, reason = "a benchmark's output is its purpose")]

mod draw;
mod ids;
mod rows;

use std::time::Instant;

use fs_kernels::memory::Block;

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

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let has = |name: &str| arguments.iter().any(|a| a == name);
    let all = !has("rows") && !has("ids");
    if all || has("rows") {
        rows::table(&arguments);
    }
    if all || has("ids") {
        ids::table();
    }
}
