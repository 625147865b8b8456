//! Ranking of items: what `rank_items` on the CPU computes, piece by piece.

use fs_kernels::cuda::In;
use fs_kernels::cuda::catalogue::ranking;
use fs_kernels::cuda::sources::Precision;

use super::common::Source;
use super::device::{Device, Memory, POISON, PRECISIONS};

#[test]
fn norms_and_scales() {
    let (mut source, device) = (Source::new(41), Device::new(Precision::F32));
    for (n, cols) in [(0, 3), (1, 1), (9, 37), (70, 64), (3, 200)] {
        let mut x: Vec<f32> = (0..n * cols).map(|_| source.signed() as f32).collect();
        if n > 2 {
            x[cols..2 * cols].fill(0.0);
        }
        let (memory, mut inverse, mut sums) =
            (Memory::of(&x), Memory::filled(n, POISON), Memory::filled(n, 0.5f32));
        let (count, c, stride) = (n as u32, cols as u32, cols as u64);
        device.run([
            ranking::inverse_norms(count, c, memory.read(), stride, 1e-12, inverse.write()),
            ranking::add_squares(count, c, memory.read(), stride, sums.write()),
        ]);
        let mut roots = Memory::of(&sums);
        device.run([ranking::inverse_roots(count, 1e-12, roots.write())]);
        for (i, row) in x.chunks_exact(cols).enumerate() {
            let square: f64 = row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
            let close = |x: f32, y: f64| (f64::from(x) - y).abs() <= 1e-5 * (1.0 + y.abs());
            assert!(close(inverse[i], 1.0 / square.sqrt().max(1e-12)), "{i}: {}", inverse[i]);
            assert!(close(sums[i], 0.5 + square) && close(roots[i], 1.0 / (0.5 + square).sqrt()));
        }
        let factors = Memory::of(&(0..n.max(cols)).map(|i| i as f32 + 1.0).collect::<Vec<_>>());
        let (mut by_row, mut by_column) = (Memory::of(&x), Memory::of(&x));
        device.run([
            ranking::scale_rows(count, c, factors.read(), by_row.write(), stride),
            ranking::scale_columns(count, c, factors.read(), by_column.write(), stride),
        ]);
        for (i, x) in x.iter().enumerate() {
            assert_eq!(by_row[i], x * factors[i / cols]);
            assert_eq!(by_column[i], x * factors[i % cols]);
        }
    }
}

#[test]
fn queries_are_the_last_tokens() {
    let mut source = Source::new(42);
    for precision in PRECISIONS {
        let device = Device::new(precision);
        for (samples, cols) in [(0, 4), (1, 1), (30, 20)] {
            let offsets = source.offsets(samples, 5);
            let h: Vec<f32> =
                (0..offsets[samples] * cols).map(|_| device.rounded(source.signed() as f32)).collect();
            let ends = Memory::of(&offsets.iter().map(|o| *o as u32).collect::<Vec<_>>());
            let (h_memory, mut queries) = (device.reals(&h), Memory::filled(samples * cols, POISON));
            let (s, c) = (samples as u32, cols as u32);
            device.run([ranking::last_tokens(
                s,
                c,
                h_memory.read(),
                cols as u64,
                ends.read(),
                queries.write(),
            )]);
            for (span, query) in offsets.windows(2).zip(queries.chunks_exact(cols)) {
                let expect = if span[0] < span[1] {
                    h[(span[1] - 1) * cols..][..cols].to_vec()
                } else {
                    vec![0.0; cols]
                };
                assert_eq!(query, expect);
            }
        }
    }
}

#[test]
fn better_rows_are_counted_and_ties_go_by_id() {
    let (mut source, device) = (Source::new(43), Device::new(Precision::F32));
    let fault = device.fault();
    for (queries, rows, first_id) in [(0, 5, 0), (1, 1, 0), (4, 300, 1000), (20, 37, 5)] {
        // Few different scores, so that many are equal.
        let scores: Vec<f32> = (0..queries * rows).map(|_| source.below(5) as f32).collect();
        let local: Vec<u32> =
            (0..queries).map(|q| if q % 3 == 2 { u32::MAX } else { source.below(rows) as u32 }).collect();
        let range: Vec<i64> = (0..rows).map(|r| first_id + r as i64).collect();
        let hashed: Vec<i64> = (0..rows).map(|r| ((r * 7 + 3) % rows) as i64).collect();
        for ids in [None, Some(&hashed)] {
            let id_of = ids.unwrap_or(&range);
            let targets: Vec<i64> =
                local.iter().map(|r| if *r == u32::MAX { 17 } else { id_of[*r as usize] }).collect();
            let (s, l, t) = (Memory::of(&scores), Memory::of(&local), Memory::of(&targets));
            let mut target_scores = Memory::filled(queries, 2.0f32);
            let (q, r) = (queries as u32, rows as u32);
            device.run([ranking::target_scores(q, r, s.read(), l.read(), target_scores.write(), fault)]);
            for (i, l) in local.iter().enumerate() {
                assert_eq!(
                    target_scores[i],
                    if *l == u32::MAX { 2.0 } else { scores[i * rows + *l as usize] }
                );
            }
            let (mut better, mut known) = (Memory::filled(queries, 99u64), Memory::filled(queries, 99u64));
            let ids_memory = ids.map(|ids| Memory::of(ids));
            let ids_in = ids_memory.as_ref().map_or(In::NULL, Memory::read);
            // What users have seen: some of it elsewhere, the target among it.
            let offsets = source.offsets(queries, 400);
            let rows_seen: Vec<u32> = (0..offsets[queries])
                .map(|_| if source.below(4) == 0 { u32::MAX } else { source.below(rows) as u32 })
                .collect();
            let seen: Vec<i64> =
                rows_seen.iter().map(|r| if *r == u32::MAX { -5 } else { id_of[*r as usize] }).collect();
            let ends = Memory::of(&offsets.iter().map(|o| *o as u32).collect::<Vec<_>>());
            let (seen_memory, rows_memory) = (Memory::of(&seen), Memory::of(&rows_seen));
            let ts = target_scores.read();
            device.run([
                ranking::count_better(q, r, s.read(), ts, t.read(), ids_in, first_id, better.write()),
                ranking::count_known(
                    q,
                    r,
                    s.read(),
                    ts,
                    t.read(),
                    ends.read(),
                    seen_memory.read(),
                    rows_memory.read(),
                    known.write(),
                    fault,
                ),
            ]);
            for i in 0..queries {
                let better_than = |r: usize| {
                    let score = scores[i * rows + r];
                    score > target_scores[i] || (score == target_scores[i] && id_of[r] < targets[i])
                };
                assert_eq!(better[i], (0..rows).filter(|r| better_than(*r)).count() as u64);
                let own = offsets[i]..offsets[i + 1];
                let among = own.filter(|k| {
                    rows_seen[*k] != u32::MAX && seen[*k] != targets[i] && better_than(rows_seen[*k] as usize)
                });
                assert_eq!(known[i], among.count() as u64);
            }
        }
    }
}
