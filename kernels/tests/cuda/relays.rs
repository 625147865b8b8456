//! What relays do: rows that a node asks for, once each, and where they stand.

use fs_kernels::cuda::catalogue::{classes, ids};
use fs_kernels::cuda::lists::Bitmap;
use fs_kernels::cuda::sources::Precision;
use fs_kernels::unique::{Unique, unique_by_owner};

use super::common::Source;
use super::device::{Device, Memory};
use super::sums::aligned;

const STALE: u32 = 0xabab_abab;
const SIZES: [usize; 6] = [0, 1, 33, 257, 2049, 9000];

#[test]
fn rows_that_a_node_asks_for_once_each_with_their_uses() {
    let (mut source, device) = (Source::new(71), Device::new(Precision::F32));
    for n in SIZES {
        for (each, owners) in [(1, 1), (7, 3), (1000, 1), (333, 8), (70_000, 2)] {
            let rows = each * owners;
            let asked: Vec<u32> = (0..n).map(|_| source.below(rows) as u32).collect();
            let told: Vec<u8> = (0..2 * n).map(|_| source.below(255) as u8).collect();
            let wide: Vec<i64> = asked.iter().map(|row| i64::from(*row)).collect();
            let mut expect = Unique::new();
            unique_by_owner(&[&wide], each, owners, &mut expect).expect("all are in range");
            let limit = rows as u64;
            let (mut bits, mut before) =
                (aligned(Bitmap::words(limit)), Memory::filled(Bitmap::groups(limit) as usize, STALE));
            let mut tiles = Memory::filled(Bitmap::tiles(limit) as usize, STALE);
            let set = Bitmap { limit, bits: bits.write(), before: before.write(), sums: tiles.write() };
            let (list, mut members) = (Memory::of(&asked), Memory::filled(n, -7i64));
            let mut inverse = Memory::filled(n, STALE);
            let (count, fault) = (n as u32, device.fault());
            device.run(set.ids_of_rows(count, list.read(), members.write(), inverse.write(), fault));
            let found = expect.ids.len();
            assert_eq!(&members[..found], expect.ids, "{n} of {rows}");
            assert!(members[found..].iter().all(|x| *x == -7), "nothing is written behind them");
            assert_eq!(&inverse[..], expect.inverse);
            // From the first use by anybody to the last.
            let mut wanted = [u8::MAX, 0].repeat(found);
            for (at, pair) in expect.inverse.iter().zip(told.chunks_exact(2)) {
                let to = &mut wanted[2 * *at as usize..][..2];
                (to[0], to[1]) = (to[0].min(pair[0]), to[1].max(pair[1]));
            }
            let (uses, entries) = (Memory::of(&told), found as u32);
            let (mut first, mut last) = (Memory::filled(found, STALE), Memory::filled(found, STALE));
            let mut joined = Memory::filled(2 * found, 0xab_u8);
            let (low, high) = (first.write(), last.write());
            device.run([
                ids::uses_begin(entries, low, high),
                ids::uses_join(count, inverse.read(), uses.read(), entries, low, high, fault),
                ids::uses_end(entries, low.read(), high.read(), joined.write()),
            ]);
            assert_eq!(&joined[..], wanted, "uses of {found} rows");
        }
    }
}

#[test]
fn rows_that_there_are_not_are_told() {
    let device = Device::new(Precision::F32);
    let (list, limit) = (Memory::of(&[3u32, 40, 1]), 40);
    let (mut bits, mut before) =
        (aligned(Bitmap::words(limit)), Memory::filled(Bitmap::groups(limit) as usize, STALE));
    let mut tiles = Memory::filled(Bitmap::tiles(limit) as usize, STALE);
    let set = Bitmap { limit, bits: bits.write(), before: before.write(), sums: tiles.write() };
    let (mut members, mut inverse) = (Memory::filled(3, -7i64), Memory::filled(3, STALE));
    let fault = device.fault();
    assert_eq!(device.faults(set.ids_of_rows(3, list.read(), members.write(), inverse.write(), fault)), 2);
    assert_eq!(members[..], [1, 3, -7]);
    // An entry that there is not has no uses.
    let (at, told) = (Memory::of(&[0u32, 2]), Memory::of(&[1u8, 1, 2, 2]));
    let (mut first, mut last) = (Memory::filled(2, 9u32), Memory::filled(2, 0u32));
    let call = ids::uses_join(2, at.read(), told.read(), 2, first.write(), last.write(), device.fault());
    assert_eq!(device.faults([call]), 2);
    assert_eq!((&first[..], &last[..]), (&[1, 9][..], &[1, 0][..]));
}

#[test]
fn slots_come_in_the_order_of_relays_and_back() {
    let (mut source, device) = (Source::new(72), Device::new(Precision::F32));
    for n in SIZES {
        for (each, order) in [(1, vec![0u32]), (7, vec![2, 0, 1]), (100_000, vec![1, 3, 0, 2])] {
            let owners = order.len();
            let mut slots: Vec<i64> = (0..n).map(|_| source.below(each * owners) as i64).collect();
            // What is no slot stays: an id out of range, and what stands behind the last entry.
            slots.iter_mut().step_by(5).for_each(|slot| *slot = -1);
            let wanted: Vec<i64> = slots
                .iter()
                .map(|slot| match slot {
                    -1 => -1,
                    slot => i64::from(order[*slot as usize / each]) * each as i64 + slot % each as i64,
                })
                .collect();
            let mut back = vec![0u32; owners];
            (0..).zip(&order).for_each(|(owner, place)| back[*place as usize] = owner);
            let (to, from, mut memory) = (Memory::of(&order), Memory::of(&back), Memory::of(&slots));
            let (count, each, many) = (n as u32, each as u64, owners as u32);
            device.run([ids::slots_in_order(count, memory.write(), each, many, to.read())]);
            assert_eq!(&memory[..], wanted, "{n} slots of {owners} owners");
            device.run([ids::slots_in_order(count, memory.write(), each, many, from.read())]);
            assert_eq!(&memory[..], slots, "and back");
        }
    }
}

#[test]
fn places_within_a_class() {
    let (mut source, device) = (Source::new(73), Device::new(Precision::F32));
    for (n, all) in [(0, 1), (1, 1), (40, 7), (300, 257), (5000, 4000)] {
        // Each of `all` entries is of the class or not; positions ask for any of them.
        let there: Vec<u32> = (0..all as u32).filter(|i| *i == 0 || source.below(3) > 0).collect();
        let places: Vec<u32> = (0..n + 9).map(|_| source.below(all) as u32).collect();
        let asked: Vec<u32> = (0..places.len() as u32)
            .filter(|at| there.binary_search(&places[*at as usize]).is_ok())
            .collect();
        let wanted: Vec<u32> = asked
            .iter()
            .map(|at| there.binary_search(&places[*at as usize]).expect("it is there") as u32)
            .collect();
        let (a, p, t) = (Memory::of(&asked), Memory::of(&places), Memory::of(&there));
        let (count, limit, class) = (asked.len() as u32, places.len() as u32, there.len() as u32);
        let (mut found, fault) = (Memory::filled(asked.len(), STALE), device.fault());
        device.run([classes::places_in_class(
            count,
            a.read(),
            p.read(),
            limit,
            t.read(),
            class,
            found.write(),
            fault,
        )]);
        assert_eq!(&found[..], wanted, "{n} of {all}");
    }
    // Nobody's place, and a place that is not of the class.
    let (a, p, t) = (Memory::of(&[0u32, 1, 2, 9]), Memory::of(&[4u32, 5, 8]), Memory::of(&[4u32, 7, 8]));
    let mut found = Memory::filled(4, STALE);
    let call = classes::places_in_class(4, a.read(), p.read(), 3, t.read(), 3, found.write(), device.fault());
    assert_eq!(device.faults([call]), 2);
    assert_eq!(found[..], [0, 3, 2, 3]);
}
