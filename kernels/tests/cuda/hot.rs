//! Hot rows: slots of their own, and entries in two shares.

use fs_kernels::cuda::catalogue::ids;
use fs_kernels::cuda::sources::Precision;
use fs_kernels::cuda::{In, Out};
use fs_workload::placement::HotRows;

use super::common::Source;
use super::device::{Device, Memory};

const SIZES: [usize; 6] = [0, 1, 33, 257, 2049, 9000];

#[test]
fn slots_of_hot_rows_are_behind_all_others() {
    let (mut source, device) = (Source::new(81), Device::new(Precision::F32));
    let mut moved = 0;
    for n in SIZES {
        for (rows, many) in [(1usize, 1usize), (40, 1), (40, 40), (100_000, 900)] {
            let hot: Vec<u64> = (0..many).map(|i| (i * (rows / many)) as u64).collect();
            let numbers = HotRows::new(&hot).expect("some");
            // Among them ids that no row has, which other kernels tell of.
            let list: Vec<i64> = (0..n)
                .map(|i| match i % 11 {
                    10 => [-1, i64::MIN, i64::MAX, rows as i64][source.below(4)],
                    0..5 => hot[source.below(many)] as i64,
                    _ => source.below(rows) as i64,
                })
                .collect();
            let base = rows as u64 + 9;
            let wanted: Vec<i64> = (0i64..)
                .zip(&list)
                .map(|(i, row)| match numbers.number(*row as u64).filter(|_| *row >= 0) {
                    Some(number) => (base + number) as i64,
                    None => -i,
                })
                .collect();
            moved += wanted.iter().filter(|slot| **slot >= base as i64).count();
            let words = numbers.words();
            let (ids, pairs) = (Memory::of(&list), Memory::of(&words));
            let mut slots = Memory::of(&(0..n as i64).map(|i| -i).collect::<Vec<_>>());
            let (count, places) = (n as u32, (words.len() / 2) as u32);
            device.run([ids::slots_of_hot(count, ids.read(), pairs.read(), places, base, slots.write())]);
            assert_eq!(&slots[..], wanted, "{n} ids, {many} hot rows of {rows}");
        }
    }
    assert!(moved > 9000, "{moved}");
}

#[test]
fn entries_and_their_uses_are_cut_in_two() {
    let (mut source, device) = (Source::new(82), Device::new(Precision::F32));
    let (base, limit) = (5000u64, 5000 + 777);
    for n in SIZES {
        for owned in [0, n / 3, n] {
            for all in [owned, n - (n - owned) / 2, n] {
                // Those of owners in any order; behind the last what is none.
                let mut list: Vec<i64> = (0..owned).map(|_| source.below(base as usize) as i64).collect();
                list.extend((owned..all).map(|_| (base as usize + source.below(777)) as i64));
                list.resize(n, -1);
                let told: Vec<u8> = (0..2 * n).map(|_| source.below(250) as u8).collect();
                let (entries, uses) = (Memory::of(&list), Memory::of(&told));
                let [mut low, mut high] = [(); 2].map(|()| Memory::filled(n, -7i64));
                let [mut low_uses, mut high_uses] = [(); 2].map(|()| Memory::filled(2 * n, 0xab_u8));
                let (count, from) = (n as u32, entries.read());
                device.run([ids::shares_of_entries(
                    count,
                    from,
                    uses.read(),
                    base,
                    limit,
                    low.write(),
                    low_uses.write(),
                    high.write(),
                    high_uses.write(),
                )]);
                let what = format!("{owned} of {all} of {n}");
                assert_eq!(&low[..owned], &list[..owned], "{what}");
                let numbers: Vec<i64> = list[owned..all].iter().map(|slot| slot - base as i64).collect();
                assert_eq!(&high[..all - owned], numbers, "{what}");
                assert_eq!(&low_uses[..2 * owned], &told[..2 * owned], "{what}");
                assert_eq!(&high_uses[..2 * (all - owned)], &told[2 * owned..2 * all], "{what}");
                let beyond = [&low[owned..], &high[all - owned..]].concat();
                assert!(beyond.iter().all(|id| *id == -7), "{what}: nothing is written behind them");
                let beyond = [&low_uses[2 * owned..], &high_uses[2 * (all - owned)..]].concat();
                assert!(beyond.iter().all(|byte| *byte == 0xab), "{what}: nothing is written behind them");
                // Without uses.
                let mut again = Memory::filled(n, -7i64);
                let (low, none) = (low.write(), Out::NULL);
                device.run([ids::shares_of_entries(
                    count,
                    from,
                    In::NULL,
                    base,
                    limit,
                    low,
                    none,
                    again.write(),
                    none,
                )]);
                assert_eq!(&again[..all - owned], numbers, "{what}");
            }
        }
    }
}
