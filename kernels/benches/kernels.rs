//! Kernel speed. A table of minima and shares of the matrix product's peak comes first (the numbers of
//! docs/kernels.md), then criterion's statistics: `cargo bench -p fs-kernels`, or with `-- table` the table only.
#![allow(clippy::print_stdout, reason = "a benchmark's output is its purpose")]
#![allow(missing_docs, reason = "criterion's macros generate undocumented items")]

use std::hint::black_box;
use std::time::Instant;

use criterion::{Criterion, criterion_group};
use fs_kernels::attention::{silu_attention, silu_attention_grad, softmax_attention};
use fs_kernels::dropout::dropout;
use fs_kernels::elementwise::{Unary, unary, unary_grad};
use fs_kernels::embedding::{expand_grad, gather};
use fs_kernels::loss::{sampled_softmax, sampled_softmax_grad};
use fs_kernels::matmul::{linear, linear_grad_input, linear_grad_weight};
use fs_kernels::norm::{layer_norm, layer_norm_grad};
use fs_kernels::optimizer::{RowUpdate, SparseKind, sparse_update};
use fs_kernels::partition::{Classes, Partition, Uses, forward};
use fs_kernels::random::{Init, RandomKey, fill};
use fs_kernels::unique::{Unique, unique_by_owner};
use fs_kernels::{Mat, MatMut, Scratch, Write};
use fs_workload::random::{normal, uniform_index};

const KEY: RandomKey = RandomKey { seed: 1, stream: 0, step: 0 };

/// One thing to time: its name, work (a unit and how much of it a call does), and the call.
struct Case {
    name: String,
    unit: &'static str,
    work: f64,
    call: Box<dyn FnMut()>,
}

fn case(name: impl Into<String>, unit: &'static str, work: f64, call: impl FnMut() + 'static) -> Case {
    Case { name: name.into(), unit, work, call: Box::new(call) }
}

fn random(n: usize) -> Vec<f32> {
    let mut x = vec![0.0; n];
    fill(Init::Normal { mean: 0.0, std: 1.0 }, KEY, 0, 64.min(n.max(1)), &mut x[..n / 64 * 64]);
    x
}

/// The library's own product, without packing or strides in its way.
fn library(m: usize, n: usize, k: usize) -> Case {
    let (a, b, mut c) = (random(m * k), random(k * n), vec![0.0f32; m * n]);
    case(format!("gemm library [{m},{k}]x[{k},{n}]"), "flop", 2.0 * (m * n * k) as f64, move || {
        // SAFETY: contiguous row-major operands of the shapes given.
        #[allow(unsafe_code, reason = "the library's interface is raw")]
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                c.as_mut_ptr(),
                1,
                n as isize,
                false,
                a.as_ptr(),
                1,
                k as isize,
                b.as_ptr(),
                1,
                n as isize,
                1.0,
                1.0,
                false,
                false,
                false,
                gemm::Parallelism::None,
            );
        }
        black_box(&c);
    })
}

fn products() -> Vec<Case> {
    let mut cases = Vec::new();
    for (n, inputs, outputs) in
        [(3200, 64, 256), (3200, 64, 64), (3200, 256, 64), (128, 512, 256), (3200, 512, 512)]
    {
        let flops = 2.0 * (n * inputs * outputs) as f64;
        cases.push(library(n, outputs, inputs));
        let (x, w, b) = (random(n * inputs), random(outputs * inputs), random(outputs));
        let gy = random(n * outputs);
        let (x2, w2, gy2) = (x.clone(), w.clone(), gy.clone());
        let mut y = vec![0.0; n * outputs];
        cases.push(case(format!("linear [{n},{inputs}]x[{inputs},{outputs}]"), "flop", flops, move || {
            let y = MatMut::new(&mut y, n, outputs);
            linear(Mat::new(&x, n, inputs), Mat::new(&w, outputs, inputs), Some(&b), y);
        }));
        let mut gx = vec![0.0; n * inputs];
        cases.push(case(
            format!("grad input [{n},{outputs}]x[{outputs},{inputs}]"),
            "flop",
            flops,
            move || {
                let gx = MatMut::new(&mut gx, n, inputs);
                linear_grad_input(Mat::new(&gy, n, outputs), Mat::new(&w2, outputs, inputs), gx, Write::Set);
            },
        ));
        let mut gw = vec![0.0; inputs * outputs];
        cases.push(case(format!("grad weight [{outputs},{n}]x[{n},{inputs}]"), "flop", flops, move || {
            let gw = MatMut::new(&mut gw, outputs, inputs);
            linear_grad_weight(Mat::new(&gy2, n, outputs), Mat::new(&x2, n, inputs), gw, None, Write::Set);
        }));
    }
    cases
}

/// Offsets of 16 lognormal lengths of mean 200, at most 1024.
fn lengths() -> Vec<usize> {
    let mut offsets = vec![0];
    for s in 0..16 {
        let sigma = 0.8;
        let len = 200.0 * (sigma * normal(KEY, 100 + s) - 0.5 * sigma * sigma).exp();
        offsets.push(offsets[s as usize] + (len as usize).clamp(1, 1024));
    }
    offsets
}

fn attention() -> Vec<Case> {
    let offsets = lengths();
    let (tokens, dim) = (offsets[16], 64);
    let pairs: f64 = offsets.windows(2).map(|w| ((w[1] - w[0]) * (w[1] - w[0] + 1) / 2) as f64).sum();
    let mut cases = Vec::new();
    for heads in [1, 2, 4] {
        let x = random(tokens * 4 * dim);
        let gy = random(tokens * dim);
        let (x2, x3, o2, o3) = (x.clone(), x.clone(), offsets.clone(), offsets.clone());
        let offsets = offsets.clone();
        let (mut y, mut y2) = (vec![0.0; tokens * dim], vec![0.0; tokens * dim]);
        let (mut scratch, mut scratch2, mut scratch3) = (Scratch::new(), Scratch::new(), Scratch::new());
        cases.push(case(
            format!("silu attention, {heads} heads, {tokens} tokens"),
            "flop",
            4.0 * dim as f64 * pairs,
            move || {
                let m = Mat::new(&x, tokens, 4 * dim);
                let [q, k, v] = [0, 1, 2].map(|i| m.columns(i * dim..(i + 1) * dim));
                silu_attention(q, k, v, &offsets, heads, MatMut::new(&mut y, tokens, dim), &mut scratch);
            },
        ));
        let mut g = vec![0.0; tokens * 4 * dim];
        cases.push(case(
            format!("silu attention backward, {heads} heads"),
            "flop",
            10.0 * dim as f64 * pairs,
            move || {
                let m = Mat::new(&x2, tokens, 4 * dim);
                let [q, k, v] = [0, 1, 2].map(|i| m.columns(i * dim..(i + 1) * dim));
                let [gq, gk, gv] = MatMut::new(&mut g, tokens, 4 * dim).split_columns_array([dim; 3]);
                let gy = Mat::new(&gy, tokens, dim);
                silu_attention_grad(q, k, v, &o2, heads, gy, gq, gk, gv, &mut scratch2);
            },
        ));
        let mut stats = vec![0.0; tokens * heads];
        cases.push(case(
            format!("softmax attention, {heads} heads"),
            "flop",
            4.0 * dim as f64 * pairs,
            move || {
                let m = Mat::new(&x3, tokens, 4 * dim);
                let [q, k, v] = [0, 1, 2].map(|i| m.columns(i * dim..(i + 1) * dim));
                let y = MatMut::new(&mut y2, tokens, dim);
                softmax_attention(q, k, v, &o3, heads, true, y, &mut stats, &mut scratch3);
            },
        ));
    }
    cases
}

fn rowwise() -> Vec<Case> {
    let mut cases = Vec::new();
    let n = 4096;
    for kind in [Unary::Silu, Unary::Gelu, Unary::Relu] {
        let (x, mut y) = (random(n), vec![0.0; n]);
        cases.push(case(format!("{kind:?} of 4096 in cache"), "number", n as f64, move || {
            unary(kind, Mat::new(&x, 64, 64), MatMut::new(&mut y, 64, 64));
        }));
    }
    let (rows, dim) = (3200, 64);
    let n = rows * dim;
    let (x, gy, w, b) = (random(n), random(n), random(dim), random(dim));
    let (mut y, mut gx, mut stats) = (vec![0.0; n], vec![0.0; n], vec![0.0; 2 * rows]);
    layer_norm(Mat::new(&x, rows, dim), Some(&w), Some(&b), 1e-5, MatMut::new(&mut y, rows, dim), &mut stats);
    let (x2, w2, stats2) = (x.clone(), w.clone(), stats.clone());
    let (x3, gy3, mut gx3) = (x.clone(), gy.clone(), gx.clone());
    let (x4, mut y4) = (x.clone(), y.clone());
    cases.push(case("layer norm [3200,64]", "number", n as f64, move || {
        let y = MatMut::new(&mut y, rows, dim);
        layer_norm(Mat::new(&x, rows, dim), Some(&w), Some(&b), 1e-5, y, &mut stats);
    }));
    let (mut gw, mut gb) = (vec![0.0; dim], vec![0.0; dim]);
    cases.push(case("layer norm backward [3200,64]", "number", n as f64, move || {
        let (x, gy, gx) =
            (Mat::new(&x2, rows, dim), Mat::new(&gy, rows, dim), MatMut::new(&mut gx, rows, dim));
        layer_norm_grad(x, Some(&w2), &stats2, gy, gx, Write::Set, Some(&mut gw), Some(&mut gb));
    }));
    cases.push(case("silu backward [3200,64]", "number", n as f64, move || {
        let (x, gy, gx) =
            (Mat::new(&x3, rows, dim), Mat::new(&gy3, rows, dim), MatMut::new(&mut gx3, rows, dim));
        unary_grad(Unary::Silu, x, gy, gx, Write::Set);
    }));
    let keys: Vec<u64> = (0..rows as u64).collect();
    cases.push(case("dropout [3200,64]", "number", n as f64, move || {
        dropout(Mat::new(&x4, rows, dim), 0.2, KEY, &keys, MatMut::new(&mut y4, rows, dim));
    }));
    cases
}

fn loss() -> Vec<Case> {
    let (n, count, dim, table) = (2700, 128, 64, 9000);
    let (h, rows) = (random(n * dim), random(table * dim));
    let index = |i: usize, salt: u64| uniform_index(KEY, i as u64 + (salt << 32), table as u64) as u32;
    let target: Vec<u32> = (0..n).map(|i| index(i, 1)).collect();
    let negatives: Vec<u32> = (0..n * count).map(|i| index(i, 2)).collect();
    let (h2, rows2, target2, negatives2) = (h.clone(), rows.clone(), target.clone(), negatives.clone());
    let dots = (n * (count + 1)) as f64;
    let mut d = vec![0.0; n * (count + 1)];
    sampled_softmax(
        Mat::new(&h, n, dim),
        Mat::new(&rows, table, dim),
        &target,
        &negatives,
        count,
        0.05,
        1.0,
        &mut d,
    );
    let d2 = d.clone();
    let (mut gh, mut gr) = (vec![0.0; n * dim], vec![0.0; table * dim]);
    vec![
        case("sampled softmax 2700 x 129 x 64", "dot", dots, move || {
            let (h, rows) = (Mat::new(&h, n, dim), Mat::new(&rows, table, dim));
            black_box(sampled_softmax(h, rows, &target, &negatives, count, 0.05, 1.0, &mut d));
        }),
        case("sampled softmax backward", "dot", dots, move || {
            let (h, rows) = (Mat::new(&h2, n, dim), Mat::new(&rows2, table, dim));
            let (gh, gr) = (MatMut::new(&mut gh, n, dim), MatMut::new(&mut gr, table, dim));
            sampled_softmax_grad(h, rows, &target2, &negatives2, count, &d2, gh, Write::Set, gr, Write::Set);
        }),
    ]
}

fn rows() -> Vec<Case> {
    let mut cases = Vec::new();
    for (n, distinct) in [(400_000, 9066), (10_000, 20_000_000)] {
        let ids: Vec<i64> = (0..n).map(|i| uniform_index(KEY, i, distinct) as i64).collect();
        let mut out = Unique::new();
        cases.push(case(format!("unique {n} ids of {distinct}"), "id", n as f64, move || {
            unique_by_owner(&[&ids], (distinct as usize).div_ceil(2), 2, &mut out).unwrap_or_default();
        }));
    }
    // Two batches of 20,000 rows: one bit a row, and (as for shards past 2^28 rows) sorted.
    for (name, rows, shard) in [
        ("bits of 2^21", 1u64 << 21, 1usize << 21),
        ("bits of 2^27", 1 << 27, 1 << 27),
        ("sorted", 1 << 27, 1 << 29),
    ] {
        let n = 20_000u64;
        let batch = |step: u64| -> Vec<u32> {
            let mut rows: Vec<u32> = (0..n).map(|i| uniform_index(KEY, step * n + i, rows) as u32).collect();
            rows.sort_unstable();
            rows
        };
        let (own, before) = (batch(0), batch(1));
        let (mut work, mut out) = (Partition::default(), vec![0; n as usize]);
        cases.push(case(format!("overlap of 20,000 rows, {name}"), "id", n as f64, move || {
            let classes = Classes { lookahead: 1, windows: 1, table: &[0, 1] };
            let before = Uses { rows: &before, uses: None };
            forward(Uses { rows: &own, uses: None }, &[before], shard, classes, &mut work, &mut out);
        }));
    }
    let (table_rows, dim, n) = (4_000_000usize, 64, 20_000usize);
    let mut rows: Vec<u32> = (0..n).map(|i| uniform_index(KEY, i as u64, table_rows as u64) as u32).collect();
    rows.sort_unstable();
    rows.dedup();
    let n = rows.len();
    let mut table = vec![0.0f32; table_rows * dim];
    fill(Init::Normal { mean: 0.0, std: 0.1 }, KEY, 0, dim, &mut table);
    let bytes = (n * dim * 4) as f64;
    let (rows2, table2) = (rows.clone(), table.clone());
    let mut y = vec![0.0; n * dim];
    cases.push(case("gather of 20,000 rows from 1 GB", "byte", 2.0 * bytes, move || {
        gather(Mat::new(&table2, table_rows, dim), &rows2, MatMut::new(&mut y, n, dim));
    }));
    let (inverse, gy) = (rows.iter().map(|r| r % 5000).collect::<Vec<u32>>(), random(n * dim));
    let gy2 = gy.clone();
    let mut grows = vec![0.0; 5000 * dim];
    cases.push(case("expand gradient of 20,000 rows into 5,000", "byte", 3.0 * bytes, move || {
        let grows = MatMut::new(&mut grows, 5000, dim);
        expand_grad(Mat::new(&gy2, n, dim), &inverse, grows, Write::Set);
    }));
    let mut state = vec![0.0; table_rows];
    let opt = RowUpdate::new(SparseKind::RowwiseAdagrad, 0.01);
    cases.push(case("rowwise adagrad on 20,000 rows of 1 GB", "byte", 3.0 * bytes, move || {
        let table = MatMut::new(&mut table, table_rows, dim);
        sparse_update(&opt, 1, table, &mut state, &mut [], &rows, Mat::new(&gy, n, dim));
    }));
    let mut x = vec![0.0f32; 1 << 20];
    cases.push(case("normal initial values", "number", (1 << 20) as f64, move || {
        fill(Init::Normal { mean: 0.0, std: 1.0 }, KEY, 0, 64, &mut x);
    }));
    cases
}

type Group = (&'static str, fn() -> Vec<Case>);

const GROUPS: [Group; 5] =
    [("products", products), ("attention", attention), ("rowwise", rowwise), ("loss", loss), ("rows", rows)];

/// Least seconds of a call, over about a third of a second.
fn least(call: &mut dyn FnMut()) -> f64 {
    let (begin, mut least) = (Instant::now(), f64::INFINITY);
    call();
    while begin.elapsed().as_secs_f64() < 0.35 {
        let start = Instant::now();
        call();
        least = least.min(start.elapsed().as_secs_f64());
    }
    least
}

/// Prints the table, of one group or of all.
fn table(only: &str) {
    // The best of some sizes, twice: large squares suffer when others use the memory.
    let squares = [512, 1024, 1536, 512, 1024].map(|n| {
        let mut square = library(n, n, n);
        square.work / least(&mut square.call) / 1e9
    });
    let peak = squares.into_iter().fold(0.0, f64::max);
    println!("peak of the library's matrix product: {peak:.1} GFLOP/s");
    println!("{:<52} {:>10} {:>14} {:>8}", "kernel", "us", "G/s", "of peak");
    for (group, cases) in GROUPS {
        if !only.is_empty() && group != only {
            continue;
        }
        for mut case in cases() {
            let seconds = least(&mut case.call);
            let rate = case.work / seconds / 1e9;
            let share = if case.unit == "flop" { format!("{:.2}", rate / peak) } else { String::new() };
            println!("{:<52} {:>10.1} {:>9.2} {:<4} {share:>8}", case.name, seconds * 1e6, rate, case.unit);
        }
    }
}

fn criterion(c: &mut Criterion) {
    for mut case in GROUPS.iter().flat_map(|(_, cases)| cases()) {
        c.bench_function(&case.name, |b| b.iter(|| (case.call)()));
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = criterion
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|a| a == "table") {
        table(arguments.get(at + 1).filter(|a| !a.starts_with('-')).map_or("", String::as_str));
        return;
    }
    if arguments.iter().any(|a| a == "--bench") {
        table("");
        benches();
        Criterion::default().configure_from_args().final_summary();
    }
}
