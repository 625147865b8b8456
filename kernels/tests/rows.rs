//! Embedding rows: lookup, pooling, positions, unique ids, ordered sums, optimizers.

mod common;

use std::collections::BTreeMap;

use common::{Grid, Source, assert_close, assert_gradient, plus_one};
use fs_kernels::Real;
use fs_kernels::embedding::{Pool, expand, expand_grad, gather, pool, pool_grad};
use fs_kernels::optimizer::{RowUpdate, SparseKind, dense_adam, dense_sgd, sparse_update, state_sizes};
use fs_kernels::positional::{positional, positional_grad};
use fs_kernels::reduce::{Node, ReducedRows, sum_by_group, sum_in_rank_order, sum_received};
use fs_kernels::unique::{IdOutOfRange, Unique, bucketize_by_owner, unique_by_owner};
use fs_kernels::{Mat, MatMut, Write};
use proptest::prelude::*;

#[test]
fn lookup_and_its_gradient() {
    let mut source = Source::new(1);
    for (table_rows, positions, dim) in [(5, 0, 4), (1, 9, 64), (30, 100, 37), (7, 40, 16)] {
        let table = Grid::<f64>::random(&mut source, table_rows, dim, 2);
        let rows: Vec<u32> = (0..positions).map(|_| source.below(table_rows) as u32).collect();
        let gy = Grid::<f64>::random(&mut source, positions, dim, 1);
        let expect = Grid::<f64>::zeros(positions, dim, 0).with(|i, j| table.at(rows[i] as usize, j));
        let mut y = Grid::<f64>::zeros(positions, dim, 3);
        gather(table.view(), &rows, y.view_mut());
        assert_close("gather", &y, &expect, 0.0);
        expand(table.view(), &rows, y.view_mut());
        assert_close("expand", &y, &expect, 0.0);
        let expect = Grid::<f64>::zeros(table_rows, dim, 0).with(|r, j| {
            (0..positions).filter(|i| rows[*i] as usize == r).fold(0.0, |sum, i| sum + gy.at(i, j))
        });
        let mut g = Grid::<f64>::zeros(table_rows, dim, 3).with(|_, _| 1.0);
        expand_grad(gy.view(), &rows, g.view_mut(), Write::Add);
        assert_close("added", &g, &plus_one(&expect), 1e-14);
        expand_grad(gy.view(), &rows, g.view_mut(), Write::Set);
        assert_close("set: position order, same bits", &g, &expect, 0.0);
    }
}

#[test]
#[should_panic(expected = "row 5 of a matrix of 5 rows")]
fn a_gradient_past_the_rows_is_refused() {
    expand_grad(Mat::new(&[1.0f32], 1, 1), &[5], MatMut::new(&mut [0.0; 5], 5, 1), Write::Add);
}

#[test]
fn pooling_and_its_gradient() {
    let mut source = Source::new(2);
    for (bags, dim) in [(0, 4), (7, 37), (10, 64)] {
        let offsets = source.offsets(bags, 6);
        let positions = offsets[bags];
        let inverse: Vec<u32> = (0..positions).map(|_| source.below(9) as u32).collect();
        let rows = Grid::<f64>::random(&mut source, 9, dim, 1);
        let gy = Grid::<f64>::random(&mut source, bags, dim, 2);
        for kind in [Pool::Sum, Pool::Mean] {
            let pooled = |rows: &Grid<f64>| {
                Grid::<f64>::zeros(bags, dim, 0).with(|b, j| {
                    let bag = &inverse[offsets[b]..offsets[b + 1]];
                    let sum: f64 = bag.iter().map(|r| rows.at(*r as usize, j)).sum();
                    if kind == Pool::Mean { sum / bag.len().max(1) as f64 } else { sum }
                })
            };
            let mut y = Grid::<f64>::zeros(bags, dim, 2).with(|_, _| 3.0);
            pool(rows.view(), &inverse, &offsets, kind, y.view_mut());
            assert_close("pool", &y, &pooled(&rows), 1e-14);
            let mut g = Grid::<f64>::zeros(9, dim, 2).with(|_, _| 3.0);
            pool_grad(gy.view(), &inverse, &offsets, kind, g.view_mut(), Write::Set);
            assert_gradient("pool", &rows, &g, |rows| pooled(rows).dot(&gy));
            let mut added = Grid::<f64>::zeros(9, dim, 0).with(|_, _| 1.0);
            pool_grad(gy.view(), &inverse, &offsets, kind, added.view_mut(), Write::Add);
            assert_close("added", &added, &plus_one(&g), 1e-14);
        }
    }
}

#[test]
fn positions() {
    let mut source = Source::new(3);
    let offsets = source.offsets(6, 12);
    let tokens = offsets[6];
    let x = Grid::<f64>::random(&mut source, tokens, 20, 2);
    let table = Grid::<f64>::random(&mut source, 14, 20, 1);
    let position = |i: usize| i - offsets.iter().rev().find(|o| **o <= i).unwrap();
    let mut y = Grid::<f64>::zeros(tokens, 20, 3);
    positional(x.view(), &offsets, table.view(), y.view_mut());
    let expect = Grid::<f64>::zeros(tokens, 20, 0).with(|i, j| x.at(i, j) + table.at(position(i), j));
    assert_close("positional", &y, &expect, 0.0);
    let gy = Grid::<f64>::random(&mut source, tokens, 20, 0);
    let mut g = Grid::<f64>::zeros(14, 20, 0).with(|_, _| 4.0);
    positional_grad(gy.view(), &offsets, g.view_mut());
    let expect = Grid::<f64>::zeros(14, 20, 0)
        .with(|p, j| (0..tokens).filter(|i| position(*i) == p).fold(0.0, |s, i| s + gy.at(i, j)));
    assert_close("positional gradient", &g, &expect, 0.0);
}

/// Ids over a small or (for the sorting path) an enormous table.
fn features() -> impl Strategy<Value = (Vec<Vec<i64>>, usize, usize)> {
    let table = prop_oneof![Just((4usize, 3usize)), Just((1000, 4)), Just((70_000, 1)), Just((1 << 27, 5))];
    (table, 1usize..4).prop_flat_map(|((per_owner, owners), features)| {
        let rows = (per_owner * owners) as i64;
        let id = prop_oneof![0..rows, 0..rows.min(50)];
        (prop::collection::vec(prop::collection::vec(id, 0..60), features), Just(per_owner), Just(owners))
    })
}

proptest! {
    #[test]
    fn unique_ids_are_those_of_a_set((features, per_owner, owners) in features()) {
        let parts: Vec<&[i64]> = features.iter().map(Vec::as_slice).collect();
        let all = parts.concat();
        let mut out = Unique::new();
        // Twice: the second call meets a used workspace.
        for _ in 0..2 {
            unique_by_owner(&parts, per_owner, owners, &mut out).unwrap();
            let expect: Vec<i64> = all.iter().copied().collect::<std::collections::BTreeSet<_>>().into_iter().collect();
            prop_assert_eq!(&out.ids, &expect);
            let counts: Vec<usize> = (0..owners)
                .map(|o| expect.iter().filter(|id| **id as usize / per_owner == o).count())
                .collect();
            prop_assert_eq!(&out.counts, &counts);
            let back: Vec<i64> = out.inverse.iter().map(|i| out.ids[*i as usize]).collect();
            prop_assert_eq!(&back, &all);
        }
        bucketize_by_owner(&parts, per_owner, owners, &mut out).unwrap();
        let expect: Vec<i64> = (0..owners)
            .flat_map(|o| all.iter().copied().filter(move |id| *id as usize / per_owner == o))
            .collect();
        prop_assert_eq!(&out.ids, &expect);
        let back: Vec<i64> = out.inverse.iter().map(|i| out.ids[*i as usize]).collect();
        prop_assert_eq!(&back, &all);
        let mut places = out.inverse.clone();
        places.sort_unstable();
        prop_assert!(places.iter().enumerate().all(|(i, p)| i == *p as usize));
    }

    #[test]
    fn sums_have_one_order(
        sources in prop::collection::vec(prop::collection::vec((0u32..40, -100i32..100), 0..50), 1..8),
        dim in 1usize..20,
        node in 1usize..9,
        rounds in any::<bool>(),
    ) {
        type Sums = BTreeMap<u32, Vec<f32>>;
        let grad = |x: i32, c: usize| (x as f32 * 0.37 + c as f32).sin() * 10f32.powi(x % 5);
        let add = |all: &mut Sums, part: &Sums| {
            for (row, sum) in part {
                let total = all.entry(*row).or_insert_with(|| vec![0.0; dim]);
                total.iter_mut().zip(sum).for_each(|(t, s)| *t += s);
            }
        };
        // The reference: within a source in position order from +0, then across sources, then across nodes.
        let (mut expect, mut presummed, mut nodes) = (Sums::new(), Vec::new(), Vec::new());
        for sources in sources.chunks(node) {
            let mut own_node = Sums::new();
            for source in sources {
                let mut own = Sums::new();
                for (row, x) in source {
                    let sum = own.entry(*row).or_insert_with(|| vec![0.0; dim]);
                    for (c, s) in sum.iter_mut().enumerate() {
                        *s += grad(*x, c);
                    }
                }
                add(&mut own_node, &own);
                presummed.push(own);
            }
            // As a relay sums them.
            let rows: Vec<u32> = own_node.keys().copied().collect();
            let all = || sources.iter().flatten();
            let groups: Vec<u32> = all().map(|(row, _)| rows.binary_search(row).unwrap() as u32).collect();
            let grads: Vec<f32> = all().flat_map(|(_, x)| (0..dim).map(|c| grad(*x, c))).collect();
            let counts: Vec<usize> = sources.iter().map(Vec::len).collect();
            let mut sums = vec![9.0f32; rows.len() * dim];
            sum_by_group(&groups, &counts, Mat::new(&grads, groups.len(), dim), MatMut::new(&mut sums, rows.len(), dim), &mut ReducedRows::new());
            let sums = rows.into_iter().zip(sums.chunks(dim).map(<[f32]>::to_vec)).collect::<Sums>();
            let bits = |sums: &Sums| sums.values().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&sums), bits(&own_node));
            let mut sums = sums;
            if rounds {
                sums.values_mut().flatten().for_each(|x| *x = x.to_bf16());
            }
            add(&mut expect, &sums);
            nodes.push(sums);
        }
        let rows: Vec<u32> = expect.keys().copied().collect();
        let bits: Vec<u32> = expect.values().flatten().map(|x| x.to_bits()).collect();
        let mut out = ReducedRows::new();
        let mut check = |recv_rows: &[u32], counts: &[usize], node: usize, grads: &[f32]| {
            sum_received(recv_rows, counts, Node { ranks: node, rounds }, Mat::new(grads, recv_rows.len(), dim), &mut out);
            prop_assert_eq!(&out.rows, &rows);
            prop_assert_eq!(out.grads.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), bits.clone());
            Ok(())
        };
        let flat: Vec<(u32, i32)> = sources.iter().flatten().copied().collect();
        let each: Vec<u32> = flat.iter().map(|(row, _)| *row).collect();
        let grads: Vec<f32> = flat.iter().flat_map(|(_, x)| (0..dim).map(|c| grad(*x, c))).collect();
        check(&each, &sources.iter().map(Vec::len).collect::<Vec<_>>(), node, &grads)?;
        let each: Vec<u32> = presummed.iter().flat_map(|s| s.keys().copied()).collect();
        let grads: Vec<f32> = presummed.iter().flat_map(|s| s.values().flatten().copied()).collect();
        check(&each, &presummed.iter().map(BTreeMap::len).collect::<Vec<_>>(), node, &grads)?;
        // Relays send one sum a node and row, and any one rank of a node may be the relay.
        let each: Vec<u32> = nodes.iter().flat_map(|s| s.keys().copied()).collect();
        let grads: Vec<f32> = nodes.iter().flat_map(|s| s.values().flatten().copied()).collect();
        for relay in 0..node {
            let mut counts = vec![0; nodes.len() * node];
            nodes.iter().enumerate().for_each(|(n, sums)| counts[n * node + relay] = sums.len());
            check(&each, &counts, node, &grads)?;
        }
    }
}

#[test]
fn ids_out_of_range_are_named() {
    let mut out = Unique::new();
    for bad in [-1, 20, i64::MAX] {
        let expect = Err(IdOutOfRange { id: bad, position: 3, rows: 20 });
        assert_eq!(unique_by_owner(&[&[1, 2], &[3, bad, 4]], 10, 2, &mut out), expect);
        assert_eq!(bucketize_by_owner(&[&[1, 2], &[3, bad, 4]], 10, 2, &mut out), expect);
        // And leave nothing behind.
        unique_by_owner(&[&[7, 7]], 10, 2, &mut out).unwrap();
        assert_eq!((&out.ids[..], &out.inverse[..], &out.counts[..]), (&[7][..], &[0, 0][..], &[1, 0][..]));
    }
}

#[test]
fn parts_are_added_in_rank_order() {
    let parts: [&[f32]; 3] = [&[1e8, 1.0], &[-1e8, 2.0], &[1.0, 3.0]];
    let mut out = [9.0; 2];
    sum_in_rank_order(&parts, &mut out);
    assert_eq!(out, [1.0, 6.0]);
    sum_in_rank_order(&[&[-0.0_f32, 0.0], &[-0.0, -0.0]], &mut out);
    assert_eq!(out.map(f32::to_bits), [-0.0_f32, 0.0].map(f32::to_bits));
    sum_in_rank_order(&[], &mut out);
    assert_eq!(out, [0.0, 0.0]);
}

/// The formulas, one element at a time, in double precision.
fn expect_sparse(opt: &RowUpdate, step: i32, w: &mut [f64], s1: &mut [f64], s2: &mut [f64], g: &[f64]) {
    let g: Vec<f64> = g.iter().zip(&*w).map(|(g, w)| g + opt.weight_decay * w).collect();
    match opt.kind {
        SparseKind::Sgd => w.iter_mut().zip(&g).for_each(|(w, g)| *w -= opt.lr * g),
        SparseKind::RowwiseAdagrad => {
            s1[0] += g.iter().map(|g| g * g).sum::<f64>() / g.len() as f64;
            w.iter_mut().zip(&g).for_each(|(w, g)| *w -= opt.lr * g / (s1[0].sqrt() + opt.eps));
        }
        SparseKind::Adagrad => {
            for i in 0..g.len() {
                s1[i] += g[i] * g[i];
                w[i] -= opt.lr * g[i] / (s1[i].sqrt() + opt.eps);
            }
        }
        SparseKind::Adam => {
            let rate = opt.lr * (1.0 - opt.beta2.powi(step)).sqrt() / (1.0 - opt.beta1.powi(step));
            for i in 0..g.len() {
                s1[i] = opt.beta1 * s1[i] + (1.0 - opt.beta1) * g[i];
                s2[i] = opt.beta2 * s2[i] + (1.0 - opt.beta2) * g[i] * g[i];
                w[i] -= rate * s1[i] / (s2[i].sqrt() + opt.eps);
            }
        }
    }
}

#[test]
fn sparse_optimizers_follow_their_formulas() {
    use SparseKind::{Adagrad, Adam, RowwiseAdagrad, Sgd};
    let mut source = Source::new(4);
    let (n, dim) = (50, 37);
    for kind in [Sgd, RowwiseAdagrad, Adagrad, Adam] {
        for weight_decay in [0.0, 0.01] {
            let opt = RowUpdate { weight_decay, ..RowUpdate::new(kind, 0.05) };
            let (n1, n2) = state_sizes(kind, n, dim);
            let mut w = Grid::<f64>::random(&mut source, n, dim, 0);
            let mut single = w.cast::<f32>();
            let (mut s1, mut s2) = (vec![0.0; n1], vec![0.0; n2]);
            let mut expect = (w.data.clone(), s1.clone(), s2.clone());
            let (mut f1, mut f2) = (vec![0.0f32; n1], vec![0.0f32; n2]);
            for step in 1..=5 {
                let rows: Vec<u32> = (0..n as u32).filter(|_| source.unit() < 0.6).collect();
                let g = Grid::<f64>::random(&mut source, rows.len(), dim, 2);
                sparse_update(&opt, step, w.view_mut(), &mut s1, &mut s2, &rows, g.view());
                let g32 = g.cast::<f32>();
                sparse_update(&opt, step, single.view_mut(), &mut f1, &mut f2, &rows, g32.view());
                for (i, row) in rows.iter().enumerate() {
                    let row = *row as usize;
                    let part = |len: usize| (row * len / n)..((row + 1) * len / n);
                    let (w, s1, s2) = &mut expect;
                    let wide = row * dim..(row + 1) * dim;
                    let grad: Vec<f64> = (0..dim).map(|j| g.at(i, j)).collect();
                    let (r1, r2) = (part(n1), part(n2));
                    expect_sparse(&opt, step as i32, &mut w[wide], &mut s1[r1], &mut s2[r2], &grad);
                }
            }
            let expect = Grid { data: expect.0, rows: n, cols: dim, gap: 0 };
            assert_close(&format!("{kind:?}"), &w, &expect, 1e-12);
            assert_close(&format!("{kind:?} in f32"), &single, &expect, 1e-5);
        }
    }
}

#[test]
fn dense_optimizers_follow_their_formulas() {
    let mut source = Source::new(5);
    let n = 77;
    let mut w = source.vec(n);
    let mut expect = w.clone();
    let (mut m, mut v, mut em, mut ev) = (vec![0.0; n], vec![0.0; n], vec![0.0; n], vec![0.0; n]);
    for step in 1..=4 {
        let g = source.vec(n);
        dense_adam(&mut w, &g, &mut m, &mut v, 1e-2, 0.9, 0.999, 1e-8, 0.1, step);
        for i in 0..n {
            let g = g[i] + 0.1 * expect[i];
            em[i] = 0.9 * em[i] + 0.1 * g;
            ev[i] = 0.999 * ev[i] + 0.001 * g * g;
            let mhat = em[i] / (1.0 - 0.9f64.powi(step as i32));
            let vhat = ev[i] / (1.0 - 0.999f64.powi(step as i32));
            expect[i] -= 1e-2 * mhat / (vhat.sqrt() + 1e-8);
        }
        for (a, b) in w.iter().zip(&expect) {
            assert!((a - b).abs() < 1e-12, "{a} {b}");
        }
    }
    let (mut buffer, mut b) = (vec![0.0; n], vec![0.0; n]);
    for _ in 0..3 {
        let g = source.vec(n);
        dense_sgd(&mut w, &g, Some(&mut buffer), 0.1, 0.9, 0.01);
        for i in 0..n {
            b[i] = 0.9 * b[i] + g[i] + 0.01 * expect[i];
            expect[i] -= 0.1 * b[i];
        }
        dense_sgd(&mut w, &g, None, 0.1, 0.0, 0.0);
        for i in 0..n {
            expect[i] -= 0.1 * g[i];
        }
        for (a, b) in w.iter().zip(&expect) {
            assert!((a - b).abs() < 1e-12, "{a} {b}");
        }
    }
}
