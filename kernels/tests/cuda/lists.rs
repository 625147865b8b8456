//! Ids, sorting, classes, requests.

use fs_kernels::asked::{Request, group_by_owner, join};
use fs_kernels::cuda::catalogue::{classes, ids, sort};
use fs_kernels::cuda::lists::{Bitmap, bits_below, scan, scan_room, sort_by};
use fs_kernels::cuda::sources::Precision;
use fs_kernels::cuda::{In, Out};
use fs_kernels::partition::{self, Classes, Partition, Uses};
use fs_kernels::random::{RandomKey, negatives};
use fs_kernels::unique::{
    Unique, bucketize_by_owner, occurrences_by_owner, unique_by_owner, uses_of_entries,
};
use fs_workload::placement::{RowMap, RowPlacement};

use super::common::Source;
use super::device::{Device, Memory};
use super::sums::{Room, aligned};

const SIZES: [usize; 10] = [0, 1, 2, 31, 33, 255, 257, 2047, 2049, 9000];
const STALE: u32 = 0xabab_abab;

#[test]
fn scans() {
    let (mut source, device) = (Source::new(21), Device::new(Precision::F32));
    for n in SIZES.into_iter().chain([100_000]) {
        let numbers: Vec<u32> = (0..n).map(|_| source.below(7) as u32).collect();
        let (mut values, mut sums) = (Memory::of(&numbers), Memory::filled(scan_room(n as u32), STALE));
        let mut total = Memory::filled(1, STALE);
        let out = values.write();
        device.run(scan(n as u32, values.read(), out, sums.write(), total.write()));
        let mut before = 0;
        for (x, y) in numbers.iter().zip(values.iter()) {
            assert_eq!(*y, before);
            before += x;
        }
        assert_eq!(total[0], before, "{n}");
    }
}

#[test]
fn one_block_scans_more_than_it_has_threads() {
    let (mut source, device) = (Source::new(29), Device::new(Precision::F32));
    for n in [0, 1, 1024, 1025, 5000] {
        let numbers: Vec<u32> = (0..n).map(|_| source.below(9) as u32).collect();
        let (mut sums, mut total) = (Memory::of(&numbers), Memory::filled(1, STALE));
        device.run([sort::scan_top(n as u32, sums.write(), total.write())]);
        let ends: Vec<u32> =
            numbers.iter().scan(0, |end, x| Some(std::mem::replace(end, *end + x))).collect();
        assert_eq!((&sums[..], total[0]), (&ends[..], numbers.iter().sum()));
    }
}

#[test]
fn sorting_keeps_the_order_of_equals() {
    let (mut source, device) = (Source::new(22), Device::new(Precision::F32));
    for n in SIZES {
        for bits in [1, 8, 9, 17, 32] {
            let keys: Vec<u32> = (0..n)
                .map(|_| (source.below(1 << 20) as u32).wrapping_mul(4097))
                .map(|k| if bits == 32 { k } else { k & ((1 << bits) - 1) })
                .collect();
            let memory = Memory::of(&keys);
            let mut room = Room::new(n);
            let (calls, sorted) = sort_by(n as u32, bits, memory.read(), In::NULL, &room.sorting(), 0);
            device.run(calls);
            let mut expect: Vec<(u32, u32)> = keys.iter().copied().zip(0..).collect();
            expect.sort_unstable();
            let found: Vec<(u32, u32)> = room.keys_of(sorted.half).zip(room.values_of(sorted.half)).collect();
            assert_eq!(found, expect, "{n} keys of {bits} bits");
        }
    }
}

/// Ids below `rows`, some of them often.
fn some_ids(source: &mut Source, n: usize, rows: usize) -> Vec<i64> {
    (0..n)
        .map(|_| (if source.below(2) == 0 { source.below(rows.min(9)) } else { source.below(rows) }) as i64)
        .collect()
}

#[test]
fn ids_by_owner() {
    let (mut source, device) = (Source::new(23), Device::new(Precision::F32));
    for n in [0, 1, 33, 257, 5000] {
        for (each, owners) in [(1, 1), (7, 3), (1000, 1), (333, 8), (70_000, 2), (3, 300)] {
            let rows = each * owners;
            let list = some_ids(&mut source, n, rows);
            let features: [&[i64]; 2] = [&list[..n / 3], &list[n / 3..]];
            let (memory, limit) = (Memory::of(&list), rows as u64);
            let mut expect = Unique::new();
            // Unique.
            unique_by_owner(&features, each, owners, &mut expect).unwrap();
            let mut bits = aligned(Bitmap::words(limit));
            let mut before = Memory::filled(Bitmap::groups(limit) as usize, STALE);
            let mut tiles = Memory::filled(Bitmap::tiles(limit) as usize, STALE);
            let (mut members, mut inverse) = (Memory::filled(n, -7i64), Memory::filled(n, STALE));
            let (mut total, mut counts) = (Memory::filled(1, STALE), Memory::filled(owners, 99u64));
            let set = Bitmap { limit, bits: bits.write(), before: before.write(), sums: tiles.write() };
            let (count, fault) = (n as u32, device.fault());
            device.run(set.unique_ids(
                count,
                memory.read(),
                members.write(),
                inverse.write(),
                total.write(),
                fault,
            ));
            let found = total[0];
            assert_eq!(&members[..found as usize], expect.ids);
            assert!(members[found as usize..].iter().all(|x| *x == -7), "nothing is written behind them");
            assert_eq!(&inverse[..], expect.inverse);
            assert!(bits.iter().all(|word| *word == 0), "the set is empty again");
            device.run([ids::count_by_owner(
                owners as u32,
                found,
                members.read(),
                each as u64,
                counts.write(),
            )]);
            assert_eq!(counts.iter().map(|n| *n as usize).collect::<Vec<_>>(), expect.counts);
            // Uses of these entries by microbatch.
            let boundaries = [n / 4, n / 4, n / 2, n];
            let mut uses = vec![0xab; 2 * found as usize];
            uses_of_entries(&expect.inverse, &boundaries, found as usize, &mut uses);
            let ends = Memory::of(&boundaries.map(|b| b as u32));
            let (mut first, mut last) =
                (Memory::filled(found as usize, STALE), Memory::filled(found as usize, STALE));
            let mut pairs = Memory::filled(2 * found as usize, 0xab_u8);
            device.run([
                ids::uses_begin(found, first.write(), last.write()),
                ids::uses_mark(
                    count,
                    inverse.read(),
                    4,
                    ends.read(),
                    found,
                    first.write(),
                    last.write(),
                    fault,
                ),
                ids::uses_end(found, first.read(), last.read(), pairs.write()),
            ]);
            assert_eq!(&pairs[..], uses);
            // Rows of the owners' shards.
            let mut local = Memory::filled(n, STALE);
            device.run([ids::rows_of_entries(
                count,
                memory.read(),
                each as u64,
                owners as u32,
                local.write(),
            )]);
            assert!(list.iter().zip(local.iter()).all(|(id, row)| *id as usize % each == *row as usize));
            // Every occurrence, ascending: sorted by where its id stands.
            occurrences_by_owner(&features, each, owners, &mut expect).unwrap();
            let mut room = Room::new(n);
            let (calls, sorted) =
                sort_by(count, bits_below(n as u64), inverse.read(), In::NULL, &room.sorting(), 0);
            let mut placed = (Memory::filled(n, -7i64), Memory::filled(n, STALE));
            device.run(calls);
            let (entries, at) = (placed.0.write(), placed.1.write());
            device.run([ids::place_entries(count, sorted.values, memory.read(), entries, at, fault)]);
            assert_eq!((&placed.0[..], &placed.1[..]), (&expect.ids[..], &expect.inverse[..]));
            // Every occurrence, by owner.
            bucketize_by_owner(&features, each, owners, &mut expect).unwrap();
            let mut keys = Memory::filled(n, STALE);
            let own = owners as u32;
            device.run([ids::owners_of_ids(
                count,
                memory.read(),
                limit,
                each as u64,
                own,
                limit,
                keys.write(),
                fault,
            )]);
            let (calls, sorted) =
                sort_by(count, bits_below(owners as u64), keys.read(), In::NULL, &room.sorting(), 0);
            device.run(calls);
            let mut ends = Memory::filled(owners, STALE);
            let (entries, at) = (placed.0.write(), placed.1.write());
            device.run([
                ids::place_entries(count, sorted.values, memory.read(), entries, at, fault),
                sort::bounds_of(own, count, sorted.keys, ends.write()),
                sort::counts_of(own, ends.read(), counts.write()),
            ]);
            assert_eq!((&placed.0[..], &placed.1[..]), (&expect.ids[..], &expect.inverse[..]));
            assert_eq!(counts.iter().map(|n| *n as usize).collect::<Vec<_>>(), expect.counts);
        }
    }
}

#[test]
fn ids_that_no_row_has_are_told() {
    let device = Device::new(Precision::F32);
    let mut bits = aligned(8);
    for bad in [-1, 100, i64::MIN, i64::MAX] {
        let list = Memory::of(&[5i64, bad]);
        let mut keys = Memory::filled(2, STALE);
        let (read, fault) = (list.read(), device.fault());
        assert_eq!(device.faults([ids::bitmap_add_ids(2, read, 100, bits.write(), fault)]), 1);
        assert_eq!(device.faults([ids::owners_of_ids(2, read, 100, 50, 2, 100, keys.write(), fault)]), 1);
        let mut slots = Memory::filled(2, 0i64);
        let none = In::NULL;
        assert_eq!(
            device.faults([ids::slots_of_ids(
                2,
                read,
                100,
                none,
                none,
                0,
                In::NULL,
                0,
                slots.write(),
                fault
            )]),
            1
        );
    }
}

#[test]
fn slots_of_hashed_and_planned_tables() {
    let (mut source, device) = (Source::new(24), Device::new(Precision::F32));
    for rows in [1u64, 2, 100, 1000, 65_537] {
        let mut placements = vec![RowPlacement::Range, RowPlacement::Hashed];
        if rows >= 100 {
            placements.push(RowPlacement::Planned { hot: vec![vec![1, 5, 99], vec![], vec![0, 7, 50]] });
        }
        for placement in placements {
            let map = RowMap::new(&placement, rows, 3).unwrap();
            let list: Vec<i64> = (0..rows.min(3000))
                .map(|_| source.below(rows as usize) as i64)
                .chain([0, rows as i64 - 1])
                .collect();
            let n = list.len();
            let mut expect = vec![];
            map.slots(&list, rows, &mut expect).unwrap();
            let words = map.words().unwrap_or_default();
            let (permutation, there) = (Memory::of(&words.permutation), !map.is_range());
            let (slots_table, rows_table) = (Memory::of(&words.slots), Memory::of(&words.rows));
            let (memory, mut slots, mut back) =
                (Memory::of(&list), Memory::filled(n, -7i64), Memory::filled(n, -7i64));
            let p = if there { permutation.read() } else { In::NULL };
            let (places, fault, count) = ((words.slots.len() / 2) as u32, device.fault(), n as u32);
            device.run([ids::slots_of_ids(
                count,
                memory.read(),
                rows,
                p,
                slots_table.read(),
                places,
                In::NULL,
                0,
                slots.write(),
                fault,
            )]);
            assert_eq!(&slots[..], expect, "{rows} {placement:?}");
            device.run([ids::rows_of_slots(count, slots.read(), p, rows_table.read(), places, back.write())]);
            assert_eq!(&back[..], list);
            // On behalf of users.
            let users = Memory::of(&(0..n).map(|i| i as u32 % 5).collect::<Vec<_>>());
            device.run([ids::slots_of_ids(
                count,
                memory.read(),
                rows,
                p,
                slots_table.read(),
                places,
                users.read(),
                rows + 3,
                slots.write(),
                fault,
            )]);
            assert!(
                slots
                    .iter()
                    .zip(&expect)
                    .enumerate()
                    .all(|(i, (x, y))| *x == y + (i as i64 % 5) * (rows as i64 + 3))
            );
        }
    }
}

#[test]
fn negatives_are_those_of_the_cpu() {
    let (mut source, device) = (Source::new(25), Device::new(Precision::F32));
    for (n, count, rows) in [(0, 5, 10), (1, 1, 1), (7, 33, 1000), (100, 128, 1 << 40), (3, 1, 2)] {
        let key = RandomKey { seed: 5 << 40 | 3, stream: 9, step: 1 << 33 };
        let row_keys: Vec<u64> = (0..n).map(|_| (source.unit() * 1e18) as u64).collect();
        let mut expect = vec![0; n * count];
        negatives(key, rows, &row_keys, count, &mut expect);
        let (keys, mut out) = (Memory::of(&row_keys), Memory::filled(n * count, -7i64));
        let [a, b] = key.mixed();
        device.run([ids::negatives(n as u32, count as u32, a, b, rows, keys.read(), out.write())]);
        assert_eq!(&out[..], expect);
    }
}

/// A batch's rows of a shard with their uses.
fn batch(source: &mut Source, n: usize, shard: usize, microbatches: usize) -> (Vec<u32>, Vec<u8>) {
    let rows = some_ids(source, n, shard).iter().map(|id| *id as u32).collect();
    let uses = (0..n).flat_map(|_| {
        let (a, b) = (source.below(microbatches) as u8, source.below(microbatches) as u8);
        [a.min(b), a.max(b)]
    });
    (rows, uses.collect())
}

/// A set of rows and a value for each.
struct Valued {
    bits: Memory<u32>,
    before: Memory<u32>,
    values: Memory<u32>,
}

fn valued(device: &Device, rows: &Memory<u32>, uses: &Memory<u8>, shard: usize, greatest: bool) -> Valued {
    let (limit, n, fault) = (shard as u64, rows.len() as u32, device.fault());
    let (mut bits, mut before) =
        (aligned(Bitmap::words(limit)), Memory::filled(Bitmap::groups(limit) as usize, STALE));
    let (mut tiles, mut values) =
        (Memory::filled(Bitmap::tiles(limit) as usize, STALE), Memory::filled(rows.len(), STALE));
    let set = Bitmap { limit, bits: bits.write(), before: before.write(), sums: tiles.write() };
    device.run(set.of_rows(n, rows.read(), Out::NULL, Out::NULL, fault));
    let (most, bits_in, before_in) = (u32::from(greatest), bits.read(), before.read());
    device.run([
        classes::values_begin(n, most, values.write()),
        classes::values_mark(n, rows.read(), limit, uses.read(), most, bits_in, before_in, values.write()),
    ]);
    Valued { bits, before, values }
}

#[test]
fn classes_of_reuse_distance() {
    let (mut source, device) = (Source::new(26), Device::new(Precision::F32));
    let fault = device.fault();
    for n in [0, 1, 33, 257, 3000] {
        for (shard, lookahead, microbatches) in
            [(1, 1, 1), (300, 1, 1), (300, 3, 1), (5000, 3, 4), (40, 2, 2)]
        {
            let with_uses = microbatches > 1;
            let history = (lookahead as usize).div_ceil(microbatches) + 1;
            let batches: Vec<_> = (0..=history)
                .map(|b| batch(&mut source, if b == 1 { n / 2 } else { n }, shard, microbatches))
                .collect();
            let all: Vec<Uses<'_>> = batches
                .iter()
                .map(|(rows, uses)| Uses { rows, uses: with_uses.then_some(uses.as_slice()) })
                .collect();
            let table: Vec<u8> =
                (0..microbatches * (lookahead as usize + 1)).map(|i| (3 * i + 1) as u8).collect();
            let expect_with = Classes { lookahead, windows: microbatches as u32, table: &table };
            let (count, limit, m) = (n as u32, shard as u64, microbatches as u32);
            let own = (Memory::of(&batches[0].0), Memory::of(&batches[0].1));
            let numbers = Memory::of(&table);
            for forward in [true, false] {
                let mut expect = vec![0xab; n];
                let mut work = Partition::default();
                if forward {
                    partition::forward(all[0], &all[1..], shard, expect_with, &mut work, &mut expect);
                } else {
                    partition::backward(all[0], None, &all[1..], shard, expect_with, &mut work, &mut expect);
                }
                // Backward an entry's use is the last of its row by anybody.
                let mut last = Memory::filled(n, 0xab_u8);
                if !forward && with_uses {
                    let v = valued(&device, &own.0, &own.1, shard, true);
                    let (bits, before, values) = (v.bits.read(), v.before.read(), v.values.read());
                    device.run([classes::values_of(
                        count,
                        own.0.read(),
                        limit,
                        bits,
                        before,
                        values,
                        last.write(),
                        fault,
                    )]);
                    let mut wanted = vec![];
                    partition::last_uses(all[0], 0..n, shard, &mut work, &mut wanted);
                    assert_eq!(&last[..], wanted);
                }
                let (uses, stride) = match (with_uses, forward) {
                    (false, _) => (In::NULL, 0),
                    (true, true) => (own.1.read(), 2),
                    (true, false) => (last.read(), 1),
                };
                let mut distance = Memory::filled(n, 0u32);
                for (batches_away, (rows, others)) in (1..).zip(&batches[1..]) {
                    let (rows, others) = (Memory::of(rows), Memory::of(others));
                    let v = valued(&device, &rows, &others, shard, forward);
                    let values = if with_uses { v.values.read() } else { In::NULL };
                    let way = u32::from(forward);
                    device.run([classes::distance_mark(
                        count,
                        own.0.read(),
                        limit,
                        uses,
                        stride,
                        batches_away,
                        m,
                        way,
                        v.bits.read(),
                        v.before.read(),
                        values,
                        distance.write(),
                        fault,
                    )]);
                }
                let mut found = Memory::filled(n, 0xab_u8);
                device.run([classes::classes_of(
                    count,
                    uses,
                    stride,
                    distance.read(),
                    lookahead,
                    m,
                    numbers.read(),
                    found.write(),
                    fault,
                )]);
                assert_eq!(&found[..], expect, "{n} of {shard}, {lookahead} {microbatches} {forward}");
            }
        }
    }
}

#[test]
fn positions_by_class_with_counts_of_ranks() {
    let (mut source, device) = (Source::new(27), Device::new(Precision::F32));
    let fault = device.fault();
    for (counts, kinds) in [(vec![0u64, 0], 1), (vec![1], 3), (vec![5, 0, 2000, 300], 5), (vec![700; 9], 2)] {
        let n: usize = counts.iter().sum::<u64>() as usize;
        let list: Vec<u8> = (0..n).map(|_| source.below(kinds) as u8).collect();
        let (mut expect, mut numbers) = (vec![], vec![]);
        partition::positions(&list, &counts, kinds, &mut expect, &mut numbers);
        let (memory, mut keys, mut room) = (Memory::of(&list), Memory::filled(n, STALE), Room::new(n));
        let (ranks, k, count) = (counts.len() as u32, kinds as u32, n as u32);
        let (of_ranks, mut rank_ends) = (Memory::of(&counts), Memory::filled(counts.len(), STALE));
        let (mut ends, mut found) =
            (Memory::filled(kinds, STALE), Memory::filled(kinds * counts.len(), 99u64));
        device.run([
            classes::class_keys(count, memory.read(), k, keys.write(), fault),
            classes::ends_of_counts(ranks, of_ranks.read(), rank_ends.write()),
        ]);
        let (calls, sorted) =
            sort_by(count, bits_below(kinds as u64), keys.read(), In::NULL, &room.sorting(), 0);
        device.run(calls);
        let class_ends = ends.write();
        device.run([
            sort::bounds_of(k, count, sorted.keys, class_ends),
            classes::count_by_class(k, ranks, sorted.values, ends.read(), rank_ends.read(), found.write()),
        ]);
        let all: Vec<u32> = room.values_of(sorted.half).collect();
        assert_eq!(all, expect[..kinds].concat());
        assert_eq!(&found[..], numbers);
        if n > 0 {
            assert_eq!(device.faults([classes::class_keys(count, memory.read(), 0, keys.write(), fault)]), 4);
        }
    }
}

#[test]
fn rows_asked_for_on_behalf_of_others() {
    let (mut source, device) = (Source::new(28), Device::new(Precision::F32));
    let fault = device.fault();
    for (n, users, each, owners) in [(0, 2, 5, 2), (1, 1, 1, 1), (300, 3, 40, 4), (5000, 8, 1000, 8)] {
        let space = (each * owners) as u64;
        let mut entries: Vec<i64> = (0..n)
            .map(|_| (source.below(users) as u64 * space + source.below(each * owners) as u64) as i64)
            .collect();
        entries.sort_unstable();
        let uses: Vec<u8> = (0..2 * n).map(|_| source.below(4) as u8).collect();
        let (mut rows, mut whose, mut pairs) = (vec![0i64; n], vec![0u32; n], vec![0u8; 2 * n]);
        let (mut counts, mut next) = (vec![0u64; owners], vec![]);
        group_by_owner(&entries, space, each as u64, &mut counts, &mut next, |from, to, row, user| {
            (rows[to], whose[to]) = (row, user);
            pairs[2 * to..2 * to + 2].copy_from_slice(&uses[2 * from..2 * from + 2]);
        });
        let (memory, of_entries, count) = (Memory::of(&entries), Memory::of(&uses), n as u32);
        let (mut keys, mut room) = (Memory::filled(n, STALE), Room::new(n));
        let (own, limit) = (owners as u32, users as u64 * space);
        device.run([ids::owners_of_ids(
            count,
            memory.read(),
            space,
            each as u64,
            own,
            limit,
            keys.write(),
            fault,
        )]);
        let (calls, sorted) =
            sort_by(count, bits_below(owners as u64), keys.read(), In::NULL, &room.sorting(), 0);
        device.run(calls);
        let (mut a, mut b, mut c) =
            (Memory::filled(n, -7i64), Memory::filled(n, STALE), Memory::filled(2 * n, 0xab_u8));
        let mut ends = Memory::filled(owners, STALE);
        let mut found = Memory::filled(owners, 99u64);
        let mut sent = Memory::filled(2 * n, STALE);
        device.run([
            classes::place_asked(
                count,
                sorted.values,
                memory.read(),
                space,
                of_entries.read(),
                a.write(),
                b.write(),
                c.write(),
                fault,
            ),
            sort::bounds_of(own, count, sorted.keys, ends.write()),
            sort::counts_of(own, ends.read(), found.write()),
            classes::pack_asked(count, a.read(), b.read(), each as u64, own, sent.write()),
        ]);
        assert_eq!((&a[..], &b[..], &c[..], &found[..]), (&rows[..], &whose[..], &pairs[..], &counts[..]));
        assert!(
            sent.chunks_exact(2)
                .zip(rows.iter().zip(&whose))
                .all(|(s, (row, user))| s == [(*row as usize % each) as u32, *user])
        );
        // What an owner makes of what it is asked: here one that is asked for everything.
        for distinct in [false, true] {
            for with_uses in [false, true] {
                let requests: Vec<Request> = (0..n)
                    .map(|i| Request {
                        user: sent[2 * i + 1],
                        row: sent[2 * i],
                        first: if with_uses { c[2 * i].min(c[2 * i + 1]) } else { 0 },
                        last: if with_uses { c[2 * i].max(c[2 * i + 1]) } else { 0 },
                    })
                    .collect();
                let of: Vec<u8> = requests.iter().flat_map(|r| [r.first, r.last]).collect();
                let mut expect = requests.clone();
                join(&mut expect, distinct);
                let (of, pairs) = (Memory::of(&of), Memory::of(&sent));
                let u = if with_uses { of.read() } else { In::NULL };
                let mut order = In::NULL;
                let mut half = 0;
                for (which, bits) in [(2, 16), (0, bits_below(each as u64)), (1, bits_below(users as u64))] {
                    device.run([classes::request_keys(count, order, pairs.read(), u, which, keys.write())]);
                    let (calls, sorted) = sort_by(count, bits, keys.read(), order, &room.sorting(), half);
                    device.run(calls);
                    (order, half) = (sorted.values, 1 - sorted.half);
                }
                let (mut flags, mut total) = (Memory::filled(n, STALE), Memory::filled(1, STALE));
                let mut tiles = Memory::filled(scan_room(count), STALE);
                let d = u32::from(distinct);
                device.run([classes::join_flags(
                    count,
                    order,
                    pairs.read(),
                    d,
                    users as u32,
                    flags.write(),
                    fault,
                )]);
                let places = flags.write();
                device.run(scan(count, flags.read(), places, tiles.write(), total.write()));
                let (mut rows, mut whose, mut kept) =
                    (Memory::filled(n, STALE), Memory::filled(n, STALE), Memory::filled(2 * n, 0xab_u8));
                device.run([classes::join_requests(
                    count,
                    order,
                    pairs.read(),
                    u,
                    d,
                    flags.read(),
                    rows.write(),
                    whose.write(),
                    kept.write(),
                )]);
                let many = total[0] as usize;
                let found: Vec<Request> = (0..many)
                    .map(|i| Request {
                        user: whose[i],
                        row: rows[i],
                        first: if with_uses { kept[2 * i] } else { 0 },
                        last: if with_uses { kept[2 * i + 1] } else { 0 },
                    })
                    .collect();
                assert_eq!(found, expect, "{n} distinct {distinct} uses {with_uses}");
            }
        }
    }
}
