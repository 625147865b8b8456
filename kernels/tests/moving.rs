//! Moving and summing rows at the edges: shapes on every path, memory that ends where the operands end, and results
//! so large that they take the paths for those.
#![allow(unsafe_code, reason = "memory without a neighbour comes from the system")]

mod common;

use common::Source;
use fs_kernels::embedding::{Pool, expand_grad, gather, pool, pool_grad};
use fs_kernels::memory::Block;
use fs_kernels::optimizer::{RowUpdate, SparseKind, sparse_update, state_sizes};
use fs_kernels::partition::{gather_at, scatter};
use fs_kernels::reduce::{Node, ReducedRows, sum_received};
use fs_kernels::{Mat, MatMut, Write};

/// Values with nothing after them: the next byte is on a page that must not be touched.
#[cfg(target_os = "linux")]
struct Guarded {
    map: *mut libc::c_void,
    bytes: usize,
    start: *mut f32,
    len: usize,
}

#[cfg(target_os = "linux")]
impl Guarded {
    fn new(values: &[f32]) -> Self {
        const PAGE: usize = 4096;
        let held = size_of_val(values).next_multiple_of(PAGE);
        let bytes = held + PAGE;
        // SAFETY: a fresh mapping, of which all but the last page is written below.
        unsafe {
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let map = libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0);
            assert!(map != libc::MAP_FAILED);
            assert_eq!(libc::mprotect(map.cast::<u8>().add(held).cast(), PAGE, libc::PROT_NONE), 0);
            let start = map.cast::<f32>().add(held / size_of::<f32>() - values.len());
            start.copy_from_nonoverlapping(values.as_ptr(), values.len());
            Guarded { map, bytes, start, len: values.len() }
        }
    }
    fn get(&mut self) -> &mut [f32] {
        // SAFETY: the values lie in the mapping, and `self` is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

#[cfg(target_os = "linux")]
impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; nothing borrows from it.
        unsafe { libc::munmap(self.map, self.bytes) };
    }
}

fn values(source: &mut Source, n: usize) -> Vec<f32> {
    source.vec(n).into_iter().map(|x| x as f32).collect()
}

/// Sums one row after another, as documented: within a source from +0 in position order, then source by source.
fn expected_sums(rows: &[u32], counts: &[usize], x: &[f32], dim: usize, n: usize, first: &[f32]) -> Vec<f32> {
    let mut total = first.to_vec();
    let mut start = 0;
    for (source, count) in counts.iter().enumerate() {
        let (mut part, mut held) = (vec![0.0f32; n * dim], vec![false; n]);
        for i in start..start + count {
            let row = rows[i] as usize;
            held[row] = true;
            let to = if source == 0 { &mut total } else { &mut part };
            (0..dim).for_each(|j| to[row * dim + j] += x[i * dim + j]);
        }
        if source > 0 {
            for row in (0..n).filter(|r| held[*r]) {
                (0..dim).for_each(|j| total[row * dim + j] += part[row * dim + j]);
            }
        }
        start += count;
    }
    total
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn nothing_past_the_operands_is_touched() {
    let mut source = Source::new(11);
    for dim in [1, 3, 8, 15, 16, 17, 31, 64, 65, 100, 300, 700] {
        for (table_rows, n) in [(1, 1), (5, 0), (70, 40), (3, 90)] {
            let table = values(&mut source, table_rows * dim);
            // The last row is always among them, at the end and at the start.
            let mut rows: Vec<u32> = (0..n).map(|_| source.below(table_rows) as u32).collect();
            if let [first, .., last] = &mut rows[..] {
                (*first, *last) = (table_rows as u32 - 1, table_rows as u32 - 1);
            }
            let expected: Vec<f32> =
                rows.iter().flat_map(|r| table[*r as usize * dim..][..dim].to_vec()).collect();
            let (mut t, mut y) = (Guarded::new(&table), Guarded::new(&vec![0.0; n * dim]));
            gather(Mat::new(t.get(), table_rows, dim), &rows, MatMut::new(y.get(), n, dim));
            assert_eq!(y.get(), expected, "gather of {n} rows of {dim}");
            y.get().fill(0.0);
            let at: Vec<u32> = (0..n as u32).collect();
            gather_at(Mat::new(t.get(), table_rows, dim), &rows, &at, MatMut::new(y.get(), n, dim));
            assert_eq!(y.get(), expected);

            let mut moved = Guarded::new(&vec![0.0; n * dim]);
            let backwards: Vec<u32> = (0..n as u32).rev().collect();
            scatter(Mat::new(y.get(), n, dim), &backwards, MatMut::new(moved.get(), n, dim));
            assert!((0..n).all(|i| moved.get()[(n - 1 - i) * dim..][..dim] == expected[i * dim..][..dim]));

            let mut sums = Guarded::new(&table);
            let first = expected_sums(&rows, &[n], &expected, dim, table_rows, &table);
            expand_grad(
                Mat::new(y.get(), n, dim),
                &rows,
                MatMut::new(sums.get(), table_rows, dim),
                Write::Add,
            );
            assert_eq!(bits(sums.get()), bits(&first));
            let offsets = [0, n];
            let mut one = Guarded::new(&vec![0.0; dim]);
            pool(
                Mat::new(t.get(), table_rows, dim),
                &rows,
                &offsets,
                Pool::Sum,
                MatMut::new(one.get(), 1, dim),
            );
            let (gy, g) = (Mat::new(one.get(), 1, dim), MatMut::new(sums.get(), table_rows, dim));
            pool_grad(gy, &rows, &offsets, Pool::Mean, g, Write::Set);

            let mut distinct = rows.clone();
            distinct.sort_unstable();
            distinct.dedup();
            let u = distinct.len();
            let mut grads = Guarded::new(&values(&mut source, u * dim));
            for kind in [SparseKind::Sgd, SparseKind::RowwiseAdagrad, SparseKind::Adagrad, SparseKind::Adam] {
                let (n1, n2) = state_sizes(kind, table_rows, dim);
                let (mut s1, mut s2) = (Guarded::new(&vec![0.0; n1]), Guarded::new(&vec![0.0; n2]));
                let opt = RowUpdate::new(kind, 0.1);
                let table = MatMut::new(t.get(), table_rows, dim);
                sparse_update(&opt, 1, table, s1.get(), s2.get(), &distinct, Mat::new(grads.get(), u, dim));
            }
        }
    }
}

#[test]
fn received_rows_are_summed_in_the_documented_order_on_every_path() {
    let mut source = Source::new(12);
    let mut out = ReducedRows::new();
    // Ascending sources and mixed ones, one source without entries; the last case fills 16 MiB and more.
    for (n, dim, entries, sorted) in [
        (9, 1, 40, false),
        (30, 37, 200, false),
        (30, 64, 60, true),
        (500, 16, 900, false),
        (70_000, 64, 90_000, true),
    ] {
        let counts = [entries / 3, 0, entries / 2, entries - entries / 3 - entries / 2];
        let mut rows: Vec<u32> = (0..entries).map(|_| source.below(n) as u32).collect();
        if sorted {
            let mut start = 0;
            for count in counts {
                rows[start..start + count].sort_unstable();
                start += count;
            }
        }
        // Zeros of both signs among them: a sum starts from +0.
        let x: Vec<f32> = (0..entries * dim)
            .map(|i| if i % 7 == 0 { -0.0 } else { (i as f32 * 0.37).sin() * 10f32.powi(i as i32 % 5) })
            .collect();
        let expected = expected_sums(&rows, &counts, &x, dim, n, &vec![0.0; n * dim]);
        for _ in 0..2 {
            sum_received(
                &rows,
                &counts,
                Node { ranks: counts.len(), rounds: false },
                Mat::new(&x, entries, dim),
                &mut out,
            );
            for (i, row) in out.rows.iter().enumerate() {
                let row = *row as usize;
                assert_eq!(
                    bits(&out.grads[i * dim..][..dim]),
                    bits(&expected[row * dim..][..dim]),
                    "row {row}"
                );
            }
            assert_eq!(out.grads.len(), out.rows.len() * dim);
        }
    }
    sum_received(&[], &[0, 0], Node { ranks: 2, rounds: false }, Mat::new(&[0.0f32; 0], 0, 4), &mut out);
    assert!(out.rows.is_empty() && out.grads.is_empty());
}

#[test]
fn large_sums_have_the_bits_of_small_ones() {
    let mut source = Source::new(13);
    // 1 MiB and more of sums are sorted by row; odd widths and misaligned starts take other stores.
    for (dim, shift) in [(64, 0), (64, 1), (37, 0), (1, 0)] {
        let (rows, n) = ((1 << 19) / dim, 3000);
        let to: Vec<u32> = (0..n).map(|i| if i % 3 == 0 { 5 } else { source.below(rows) as u32 }).collect();
        let x = values(&mut source, n * dim);
        let mut y = Block::<f32>::zeros(rows * dim + shift);
        y.iter_mut().enumerate().for_each(|(i, y)| *y = (i % 13) as f32 - 6.0);
        let before = y[shift..].to_vec();
        let gy = Mat::new(&x, n, dim);
        expand_grad(gy, &to, MatMut::new(&mut y[shift..], rows, dim), Write::Add);
        assert_eq!(bits(&y[shift..]), bits(&expected_sums(&to, &[n], &x, dim, rows, &before)));
        expand_grad(gy, &to, MatMut::new(&mut y[shift..], rows, dim), Write::Set);
        assert_eq!(bits(&y[shift..]), bits(&expected_sums(&to, &[n], &x, dim, rows, &vec![0.0; rows * dim])));
    }
}

#[test]
fn large_moves_are_exact() {
    // 16 MiB and more, on lines and off them, ascending (past the caches) and not.
    for (dim, shift) in [(64, 0), (64, 3), (33, 0)] {
        let n = (5 << 20) / dim;
        let mut x = Block::<f32>::zeros(n * dim);
        x.iter_mut().enumerate().for_each(|(i, x)| *x = i as f32);
        let ascending: Vec<u32> = (0..n as u32).collect();
        let descending: Vec<u32> = (0..n as u32).rev().collect();
        let mut y = Block::<f32>::zeros(n * dim + shift);
        for at in [&ascending, &descending] {
            y.fill(-1.0);
            scatter(Mat::new(&x, n, dim), at, MatMut::new(&mut y[shift..], n, dim));
            let mut back = Block::<f32>::zeros(n * dim);
            gather(Mat::new(&y[shift..], n, dim), at, MatMut::new(&mut back, n, dim));
            assert!(back.iter().zip(x.iter()).all(|(a, b)| a == b));
            assert!(y[shift..][..dim].iter().zip(&x[at[0] as usize * dim..]).all(|(a, b)| a == b));
        }
    }
}
