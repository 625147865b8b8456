//! Reuse distances, positions by class and moving rows of a class, against naive versions.

mod common;

use common::{Grid, Source};
use fs_kernels::partition::{
    Classes, Partition, Uses, backward, forward, gather_at, last_uses, positions, scatter,
};
use fs_kernels::unique::uses_of_entries;
use proptest::prelude::*;

/// Entries of a batch: rows, and first and last microbatch of each.
type Entries = Vec<(u32, u8, u8)>;

fn entries(rows: u32, microbatches: u8) -> impl Strategy<Value = Entries> {
    let entry = (0..rows, 0..microbatches, 0..microbatches);
    prop::collection::vec(entry.prop_map(|(row, a, b)| (row, a.min(b), a.max(b))), 0..40)
}

struct Lists {
    rows: Vec<u32>,
    uses: Vec<u8>,
}

fn lists(entries: &Entries) -> Lists {
    Lists {
        rows: entries.iter().map(|e| e.0).collect(),
        uses: entries.iter().flat_map(|e| [e.1, e.2]).collect(),
    }
}

impl Lists {
    fn uses(&self, microbatches: u32) -> Uses<'_> {
        Uses { rows: &self.rows, uses: (microbatches > 1).then_some(&self.uses) }
    }
}

/// One class per microbatch and distance, the last for everything beyond the lookahead.
fn table(lookahead: u32, microbatches: u32) -> Vec<u8> {
    (0..(lookahead + 1) * microbatches).map(|c| c as u8).collect()
}

fn class(lookahead: u32, microbatch: u32, distance: Option<u32>) -> u8 {
    let d = distance.filter(|d| *d <= lookahead).map_or(lookahead, |d| d - 1);
    (microbatch * (lookahead + 1) + d) as u8
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn distances_are_those_of_a_search(
        m in 1..4u32,
        k in 1..6u32,
        shard in prop::sample::select(&[7u32, 40, 5000][..]),
        // The largest is past what a bitmap is used for.
        space in prop::sample::select(&[0usize, 1 << 29][..]),
        seed in prop::collection::vec(entries(7, 3), 5),
    ) {
        let clip = |batch: &Entries| -> Entries {
            let cut = |x: u8| x.min(m as u8 - 1);
            batch.iter().map(|(row, a, b)| (row * 997 % shard, cut(*a), cut(*b))).collect()
        };
        let batches: Vec<Entries> = seed.iter().map(clip).collect();
        let all: Vec<Lists> = batches.iter().map(lists).collect();
        let history = k.div_ceil(m).min(4) as usize;
        let shard = space.max(shard as usize);
        let numbers = table(k, m);
        let classes = Classes { lookahead: k, windows: m, table: &numbers };
        let others: Vec<Uses> = all[1..=history].iter().map(|l| l.uses(m)).collect();
        let mut work = Partition::default();
        let mut out = vec![0; batches[0].len()];

        forward(all[0].uses(m), &others, shard, classes, &mut work, &mut out);
        for ((row, first, _), found) in batches[0].iter().zip(&out) {
            let distance = (1..=history).find_map(|h| {
                let last = batches[h].iter().filter(|e| e.0 == *row).map(|e| e.2).max()?;
                Some(h as u32 * m + u32::from(*first) - u32::from(last))
            });
            prop_assert_eq!(*found, class(k, (*first).into(), distance));
        }

        let last_of = |row: u32| batches[0].iter().filter(|e| e.0 == row).map(|e| e.2).max().unwrap();
        backward(all[0].uses(m), None, &others, shard, classes, &mut work, &mut out);
        for ((row, ..), found) in batches[0].iter().zip(&out) {
            let last = last_of(*row);
            let distance = (1..=history).find_map(|h| {
                let first = batches[h].iter().filter(|e| e.0 == *row).map(|e| e.1).min()?;
                Some(h as u32 * m + u32::from(first) - u32::from(last))
            });
            prop_assert_eq!(*found, class(k, last.into(), distance));
        }

        // A part of the entries, told the last uses of all.
        let (half, mut known, mut some) = (batches[0].len() / 2, Vec::new(), vec![0; batches[0].len() / 2]);
        last_uses(all[0].uses(m), 0..half, shard, &mut work, &mut known);
        let part = Lists { rows: all[0].rows[..half].to_vec(), uses: all[0].uses[..2 * half].to_vec() };
        let told = (m > 1).then_some(known.as_slice());
        backward(part.uses(m), told, &others, shard, classes, &mut work, &mut some);
        prop_assert_eq!(&some, &out[..half]);
    }

    #[test]
    fn positions_list_every_entry_once(
        groups in prop::collection::vec(prop::collection::vec(0..4u8, 0..9), 1..5),
    ) {
        let classes: Vec<u8> = groups.concat();
        let counts: Vec<u64> = groups.iter().map(|g| g.len() as u64).collect();
        let (mut found, mut numbers) = (vec![vec![9; 3]; 6], vec![7; 2]);
        positions(&classes, &counts, 4, &mut found, &mut numbers);
        for c in 0..4u8 {
            let expected: Vec<u32> = (0..classes.len() as u32).filter(|i| classes[*i as usize] == c).collect();
            prop_assert_eq!(&found[c as usize], &expected);
            let of = |g: &Vec<u8>| g.iter().map(|x| u64::from(*x == c)).sum::<u64>();
            let expected: Vec<u64> = groups.iter().map(of).collect();
            prop_assert_eq!(&numbers[c as usize * counts.len()..][..counts.len()], &expected);
        }
    }

    #[test]
    fn uses_are_first_and_last(parts in prop::collection::vec(prop::collection::vec(0..6u32, 0..8), 1..5)) {
        let inverse = parts.concat();
        let ends: Vec<usize> = (1..=parts.len()).map(|i| parts[..i].iter().map(Vec::len).sum()).collect();
        let mut uses = vec![1; 12];
        uses_of_entries(&inverse, &ends, 6, &mut uses);
        for entry in 0..6u32 {
            let of: Vec<u8> = (0..parts.len() as u8).filter(|m| parts[*m as usize].contains(&entry)).collect();
            if let (Some(first), Some(last)) = (of.first(), of.last()) {
                prop_assert_eq!(&uses[2 * entry as usize..][..2], &[*first, *last]);
            }
        }
    }
}

#[test]
fn rows_of_a_class_come_and_go() {
    let mut source = Source::new(3);
    for dim in [1, 16, 37] {
        let table = Grid::<f64>::random(&mut source, 50, dim, 2);
        let rows: Vec<u32> = (0..30).map(|_| source.below(50) as u32).collect();
        let at: Vec<u32> = (0..30).filter(|i| i % 3 != 1).collect();
        let mut y = Grid::<f64>::zeros(at.len(), dim, 1);
        gather_at(table.view(), &rows, &at, y.view_mut());
        let mut all = Grid::<f64>::zeros(30, dim, 3).with(|_, _| -1.0);
        scatter(y.view(), &at, all.view_mut());
        for i in 0..30u32 {
            for j in 0..dim {
                let expected = if at.contains(&i) { table.at(rows[i as usize] as usize, j) } else { -1.0 };
                assert_eq!(all.at(i as usize, j), expected);
            }
        }
    }
}

#[test]
#[should_panic(expected = "class 4 of 4")]
fn unknown_classes_are_refused() {
    positions(&[0, 4], &[2], 4, &mut Vec::new(), &mut Vec::new());
}
