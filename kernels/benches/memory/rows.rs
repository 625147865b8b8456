//! Moving rows of a table of 2 GiB.
//!
//! Useful bytes of a call, each counted once: gather and merge read and write every row once; a segment sum reads
//! every gradient and writes every sum once; row-wise Adagrad reads every gradient, reads and writes every row, and
//! reads and writes a number of state. Ids are not counted.

use fs_kernels::embedding::{expand_grad, gather};
use fs_kernels::memory::Block;
use fs_kernels::optimizer::{RowUpdate, SparseKind, sparse_update};
use fs_kernels::partition::scatter;
use fs_kernels::reduce::{Node, ReducedRows, sum_received};
use fs_kernels::{Mat, MatMut, Write};

use crate::draw::{Draw, rows, shuffled, unique};
use crate::{Case, case, copy, copy_past, median, seconds};

/// Elements of the table.
const TABLE: usize = 1 << 29;
/// Elements of the rows that a call moves: 128 MiB.
const MOVED: usize = 1 << 25;
const ROUNDS: usize = 7;

fn filled(n: usize) -> Block<f32> {
    let mut block = Block::zeros(n);
    block.iter_mut().enumerate().for_each(|(i, x)| *x = (i % 97) as f32 * 0.01);
    block
}

/// The table lives as long as the program, so that all cases share it.
fn cases(dim: usize, draw: Draw, table: *mut Block<f32>) -> Vec<Case> {
    // SAFETY: the caller keeps the table, and cases run one after another.
    #[allow(unsafe_code, reason = "cases own what they use, but there is memory for only one table")]
    let table_of = move || unsafe { &mut *table };
    let (table_rows, n) = (TABLE / dim, MOVED / dim);
    let drawn = rows(draw, n, table_rows, 0);
    let (distinct, inverse) = unique(&drawn);
    let (u, row) = (distinct.len(), (4 * dim) as f64);
    let mixed = shuffled(&distinct);
    let mut cases = Vec::new();

    let (mut y, ids) = (filled(n * dim), drawn.clone());
    cases.push(case("gather, as drawn", 2.0 * n as f64 * row, move || {
        gather(Mat::new(table_of(), table_rows, dim), &ids, MatMut::new(&mut y, n, dim));
    }));
    let (mut y, ids) = (filled(u * dim), distinct.clone());
    cases.push(case("gather, unique ascending", 2.0 * u as f64 * row, move || {
        gather(Mat::new(table_of(), table_rows, dim), &ids, MatMut::new(&mut y, u, dim));
    }));

    // Two classes whose rows alternate at random, as an overlapping batch has them.
    let (x, mut y) = (filled(n * dim), filled(n * dim));
    let early = |i: &u32| drawn[*i as usize].is_multiple_of(3);
    let places: [Vec<u32>; 2] =
        [(0..n as u32).filter(early).collect(), (0..n as u32).filter(|i| !early(i)).collect()];
    cases.push(case("merge of two classes", 2.0 * n as f64 * row, move || {
        let mut start = 0;
        for at in &places {
            let part = Mat::new(&x[start * dim..], at.len(), dim);
            scatter(part, at, MatMut::new(&mut y, n, dim));
            start += at.len();
        }
    }));
    let (x, at) = (filled(u * dim), mixed.clone());
    cases.push(case("merge, random places of the table", 2.0 * u as f64 * row, move || {
        scatter(Mat::new(&x, u, dim), &at, MatMut::new(table_of(), table_rows, dim));
    }));

    let (gy, mut grows) = (filled(n * dim), filled(u * dim));
    cases.push(case("segment sum", (n + u) as f64 * row, move || {
        let grows = MatMut::new(&mut grows, u, dim);
        expand_grad(Mat::new(&gy, n, dim), &inverse, grows, Write::Set);
    }));
    // Two ranks that summed their occurrences already; half a batch each.
    let parts: Vec<Vec<u32>> = drawn.chunks(n / 2).map(|half| unique(half).0).collect();
    let counts: Vec<usize> = parts.iter().map(Vec::len).collect();
    let entries = parts.concat();
    let (gy, mut out) = (filled(entries.len() * dim), ReducedRows::new());
    cases.push(case("segment sum of two ranks' rows", (entries.len() + u) as f64 * row, move || {
        sum_received(
            &entries,
            &counts,
            Node { ranks: counts.len(), rounds: false },
            Mat::new(&gy, entries.len(), dim),
            &mut out,
        );
    }));

    for (name, ids) in [("as drawn", mixed), ("ascending", distinct)] {
        let (gy, mut state) = (filled(u * dim), Block::<f32>::zeros(table_rows));
        state.fill(0.1);
        let opt = RowUpdate::new(SparseKind::RowwiseAdagrad, 1e-6);
        cases.push(case(format!("row-wise Adagrad, {name}"), u as f64 * (3.0 * row + 8.0), move || {
            let table = MatMut::new(table_of(), table_rows, dim);
            sparse_update(&opt, 1, table, &mut state, &mut [], &ids, Mat::new(&gy, u, dim));
        }));
    }
    cases
}

/// Prints the table; arguments may name dims.
pub(crate) fn table(arguments: &[String]) {
    let dims = [64, 128, 256];
    let asked: Vec<usize> =
        arguments.iter().filter_map(|a| a.parse().ok()).filter(|d| dims.contains(d)).collect();
    let only = |draw: &str| {
        !arguments.iter().any(|a| a == "uniform" || a == "zipf") || arguments.iter().any(|a| a == draw)
    };
    let mut table = filled(TABLE);
    let (mut plain, mut past) = (copy(), copy_past());
    println!(
        "{:<8} {:>4} {:<36} {:>8} {:>8} {:>8} {:>8}",
        "rows", "dim", "kernel", "GB/s", "of copy", "of past", "of best"
    );
    for dim in if asked.is_empty() { dims.to_vec() } else { asked } {
        for draw in [Draw::Uniform, Draw::Zipf] {
            let name = format!("{draw:?}").to_lowercase();
            if !only(&name) {
                continue;
            }
            let mut cases = cases(dim, draw, &raw mut table);
            cases.insert(0, copy_past());
            if let Some(part) = arguments.iter().find_map(|a| a.strip_prefix("only=")) {
                cases.retain(|c| c.name.contains(part));
            }
            cases.iter_mut().chain([&mut plain, &mut past]).for_each(|c| (c.call)());
            let mut found = vec![[const { Vec::new() }; 3]; cases.len()];
            let mut copies = Vec::new();
            for _ in 0..ROUNDS {
                let rates = [&mut plain, &mut past].map(|c| c.work / seconds(&mut c.call));
                copies.push(rates[0] / 1e9);
                for (case, found) in cases.iter_mut().zip(&mut found) {
                    let rate = case.work / seconds(&mut case.call);
                    let values = [rate / 1e9, rate / rates[0], rate / rates[1]];
                    found.iter_mut().zip(values).for_each(|(list, x)| list.push(x));
                }
            }
            println!("{name:<8} {dim:>4} {:<36} {:>8.1}", plain.name, median(copies.clone()));
            for (case, found) in cases.iter().zip(found) {
                let best = found[0].iter().fold(0.0f64, |a, b| a.max(*b))
                    / copies.iter().fold(0.0f64, |a, b| a.max(*b));
                let [rate, share, past] = found.map(median);
                println!(
                    "{name:<8} {dim:>4} {:<36} {rate:>8.1} {share:>8.2} {past:>8.2} {best:>8.2}",
                    case.name
                );
            }
        }
    }
}
