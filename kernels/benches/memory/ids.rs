//! Unique ids and overlap, in ns per id, beside their floor and beside other ways to find them.
//!
//! The floor is measured too: the ids are read and what is asked for is written at the speed of a copy, and every id
//! reads one word at random of as many bits as there are rows, which no other access waits for.

use std::hint::black_box;

use fs_kernels::partition::{Classes, Partition, Uses, forward};
use fs_kernels::unique::{Unique, bucketize_by_owner, unique_by_owner};

use crate::draw::{Draw, rows, unique};
use crate::{Case, case, copy, median, seconds};

const ROUNDS: usize = 21;
/// Rows past which ids are sorted.
const SORTED: usize = (1 << 28) + 1;

/// One word at random for each id, of a bitmap of the rows.
fn touch(ids: &[i64], rows: usize) -> Case {
    let (bits, ids) = (vec![1u64; rows.div_ceil(64)], ids.to_vec());
    case("floor, one word at random", ids.len() as f64, move || {
        black_box(ids.iter().fold(0, |sum, id| sum + bits[*id as usize >> 6]));
    })
}

/// An open-addressing table from ids to the order of their first occurrence; then sorted, as the others are.
struct Hash {
    slots: Vec<(i64, u32)>,
    distinct: Vec<i64>,
    inverse: Vec<u32>,
    order: Vec<(i64, u32)>,
    place: Vec<u32>,
}

impl Hash {
    fn new(ids: usize) -> Self {
        let slots = vec![(-1, 0); (2 * ids).next_power_of_two()];
        Hash { slots, distinct: vec![], inverse: vec![], order: vec![], place: vec![] }
    }

    fn unique(&mut self, ids: &[i64], ascending: bool) {
        let Hash { slots, distinct, inverse, order, place } = self;
        slots.fill((-1, 0));
        distinct.clear();
        inverse.clear();
        let (shift, mask) = (64 - slots.len().trailing_zeros(), slots.len() - 1);
        for id in ids {
            let mut at = ((*id as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> shift) as usize;
            loop {
                let slot = &mut slots[at];
                if slot.0 == *id {
                    inverse.push(slot.1);
                    break;
                }
                if slot.0 < 0 {
                    *slot = (*id, distinct.len() as u32);
                    inverse.push(slot.1);
                    distinct.push(*id);
                    break;
                }
                at = (at + 1) & mask;
            }
        }
        if ascending {
            order.clear();
            order.extend(distinct.iter().copied().zip(0..));
            order.sort_unstable();
            place.resize(distinct.len(), 0);
            for (new, (id, old)) in order.iter().enumerate() {
                place[*old as usize] = new as u32;
                distinct[new] = *id;
            }
            for i in inverse.iter_mut() {
                *i = place[*i as usize];
            }
        }
    }
}

fn cases(drawn: &[u32], rows: usize) -> Vec<Case> {
    let ids: Vec<i64> = drawn.iter().map(|r| i64::from(*r)).collect();
    let n = ids.len() as f64;
    let mut cases = vec![touch(&ids, rows)];
    for (name, space) in [("unique, as chosen", rows), ("unique, sorted", SORTED)] {
        let (ids, mut out) = (ids.clone(), Unique::new());
        cases
            .push(case(name, n, move || unique_by_owner(&[&ids], space, 1, &mut out).expect("ids are rows")));
    }
    for (name, ascending) in
        [("unique, hash, in order of occurrence", false), ("unique, hash, ascending", true)]
    {
        let (ids, mut hash) = (ids.clone(), Hash::new(ids.len()));
        cases.push(case(name, n, move || hash.unique(&ids, ascending)));
    }
    let (all, mut out) = (ids.clone(), Unique::new());
    cases.push(case("group by owner, keeping duplicates", n, move || {
        bucketize_by_owner(&[&all], rows.div_ceil(4), 4, &mut out).expect("ids are rows");
    }));
    // The batch before: half of the same ids, half of others.
    let (own, _) = unique(drawn);
    let other: Vec<u32> =
        own.iter().enumerate().map(|(i, r)| if i % 2 == 0 { *r } else { (r ^ 1) % rows as u32 }).collect();
    let other = unique(&other).0;
    for (name, space) in [("overlap with the batch before, as chosen", rows), ("overlap, sorted", SORTED)] {
        let (own, other, mut work) = (own.clone(), other.clone(), Partition::default());
        let mut out = vec![0; own.len()];
        cases.push(case(name, own.len() as f64, move || {
            let classes = Classes { lookahead: 1, windows: 1, table: &[0, 1] };
            let other = Uses { rows: &other, uses: None };
            forward(Uses { rows: &own, uses: None }, &[other], space, classes, &mut work, &mut out);
        }));
    }
    cases
}

/// Prints the table.
pub(crate) fn table() {
    let mut reference = copy();
    (reference.call)();
    let bandwidth = reference.work / seconds(&mut reference.call);
    println!("copy: {:.1} GB/s; floors read 8 bytes an id and write 12", bandwidth / 1e9);
    println!("{:<8} {:>9} {:>8} {:<42} {:>9}", "ids", "of rows", "number", "kernel", "ns an id");
    for (rows_held, n) in [
        (1usize << 20, 20_000usize),
        (1 << 23, 20_000),
        (1 << 23, 400_000),
        (1 << 27, 20_000),
        (1 << 27, 400_000),
    ] {
        for draw in [Draw::Uniform, Draw::Zipf] {
            let mut cases = cases(&rows(draw, n, rows_held, 3), rows_held);
            for case in &mut cases {
                (case.call)();
            }
            let mut found = vec![Vec::new(); cases.len()];
            for _ in 0..ROUNDS {
                for (case, found) in cases.iter_mut().zip(&mut found) {
                    let mut time = seconds(&mut case.call) / case.work * 1e9;
                    if case.name.starts_with("floor") {
                        time += 20.0 / bandwidth * 1e9;
                    }
                    found.push(time);
                }
            }
            let name = format!("{draw:?}").to_lowercase();
            for (case, found) in cases.iter().zip(found) {
                println!("{name:<8} {rows_held:>9} {n:>8} {:<42} {:>9.2}", case.name, median(found));
            }
        }
    }
}
