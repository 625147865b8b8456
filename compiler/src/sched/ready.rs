//! What is ready, in order.
//!
//! A simulation takes the first of what is ready of a queue as many times as there are operations, and knows the keys of all
//! of them before it begins. So instances are numbered once in the order in which they would be taken if all were ready
//! ([`Ranks`]), and what is ready is a set of small numbers ([`Set`]), of which the least is found in as many looks as it has levels:
//! a heap would compare and move keys all the time.

/// In which order instances are taken: the greatest priority first, then the least key, the earliest batch and the first operation.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    /// Of each instance, its rank.
    of: Vec<u32>,
    /// Of each rank, the operation and the batch.
    at: Vec<(u32, u32)>,
    ops: Vec<u32>,
    places: Vec<Place>,
    /// Of each turn, where its next instance goes.
    next: Vec<u32>,
}

/// Where an operation stands among others: by priority, by what is left of its key within a turn, by turns before it.
type Place = (std::cmp::Reverse<i32>, i64, i64, u32);

/// Turns of a priority for each operation of which instances are counted instead of sorted, about.
const TURNS: i64 = 8;

impl Ranks {
    /// Of so many batches, whose instance m of an operation has the key `key + m * ii`; instances are numbered by batch, then operation.
    pub(super) fn rank(&mut self, priority: &[i32], key: &[i64], ii: i64, batches: usize) {
        let n = key.len();
        let Self { of, at, ops, places, next } = self;
        of.resize(n * batches, 0);
        at.resize(n * batches, (0, 0));
        // A key is a turn of `ii` and what is left of it, so that a batch later is a turn later. Of equal keys the earlier batch is that
        // of the later turn.
        let each = ii.max(1);
        let place = |op: u32| {
            let key = key[op as usize];
            (std::cmp::Reverse(priority[op as usize]), key.rem_euclid(each), -key.div_euclid(each), op)
        };
        places.clear();
        places.extend((0..n as u32).map(place));
        places.sort_unstable();
        ops.clear();
        ops.extend(places.iter().map(|place| place.3));
        let turn = |op: u32| key[op as usize].div_euclid(each);
        let same = |a: &u32, b: &u32| priority[*a as usize] == priority[*b as usize];
        let mut base = 0;
        for alike in ops.chunk_by(same) {
            let turns = alike.iter().map(|op| turn(*op));
            let (least, most) = turns.fold((i64::MAX, i64::MIN), |(a, b), t| (a.min(t), b.max(t)));
            let all = most.saturating_sub(least).saturating_add(batches as i64);
            let first = base;
            base += (alike.len() * batches) as u32;
            if ii < 1 || all > TURNS * (alike.len() * batches) as i64 {
                let instances = alike.iter().flat_map(|op| (0..batches).map(move |m| (*op, m)));
                let key = |(op, m): (u32, usize)| {
                    (i128::from(key[op as usize]) + i128::from(ii) * m as i128, m, op)
                };
                let mut sorted: Vec<(u32, usize)> = instances.collect();
                sorted.sort_unstable_by_key(|instance| key(*instance));
                for (rank, (op, m)) in (first..).zip(sorted) {
                    (of[m * n + op as usize], at[rank as usize]) = (rank, (op, m as u32));
                }
                continue;
            }
            // How many of each turn there are, and then where they begin.
            next.clear();
            next.resize(all as usize + 1, 0);
            for op in alike {
                let from = (turn(*op) - least) as usize;
                next[from] = next[from].wrapping_add(1);
                next[from + batches] = next[from + batches].wrapping_sub(1);
            }
            let (mut of_turn, mut before) = (0u32, first);
            for begins in next.iter_mut() {
                of_turn = of_turn.wrapping_add(*begins);
                *begins = before;
                before += of_turn;
            }
            for op in alike {
                let from = (turn(*op) - least) as usize;
                for (m, free) in next[from..from + batches].iter_mut().enumerate() {
                    let (instance, rank) = (m * n + *op as usize, *free);
                    (of[instance], at[rank as usize]) = (rank, (*op, m as u32));
                    *free += 1;
                }
            }
        }
    }

    /// Of an instance.
    pub(super) fn of(&self, instance: usize) -> u32 {
        self.of[instance]
    }

    /// The operation of a rank, and of which batch.
    pub(super) fn instance(&self, rank: u32) -> (u32, u32) {
        self.at[rank as usize]
    }
}

/// Numbers below a limit: a bit each, and for each word of bits one that says whether it has any, and so on.
#[derive(Debug, Clone)]
pub(super) struct Set {
    /// Bits of numbers first; the last has one word.
    levels: Vec<Vec<u64>>,
    /// The least, which is asked for more often than it changes.
    least: Option<u32>,
}

impl Set {
    /// Of none of so many.
    pub(super) fn new(limit: usize) -> Self {
        let mut levels = Vec::new();
        let mut words = limit;
        loop {
            words = words.div_ceil(64).max(1);
            levels.push(vec![0; words]);
            if words == 1 {
                return Self { levels, least: None };
            }
        }
    }

    /// Without any.
    pub(super) fn clear(&mut self) {
        self.levels.iter_mut().for_each(|level| level.fill(0));
        self.least = None;
    }

    /// With one that it did not have.
    pub(super) fn insert(&mut self, number: u32) {
        if self.least.is_none_or(|least| number < least) {
            self.least = Some(number);
        }
        let mut at = number as usize;
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            let any = *word != 0;
            *word |= 1 << (at % 64);
            if any {
                return;
            }
            at /= 64;
        }
    }

    /// Without one that it has.
    pub(super) fn remove(&mut self, number: u32) {
        let mut at = number as usize;
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            *word &= !(1 << (at % 64));
            if *word != 0 {
                break;
            }
            at /= 64;
        }
        if self.least == Some(number) {
            self.least = self.find();
        }
    }

    /// The least.
    pub(super) fn first(&self) -> Option<u32> {
        self.least
    }

    fn find(&self) -> Option<u32> {
        let mut at = 0;
        for level in self.levels.iter().rev() {
            let word = level[at];
            // Only the last may be empty: of all others it is known that they are not.
            if word == 0 {
                return None;
            }
            at = at * 64 + word.trailing_zeros() as usize;
        }
        Some(at as u32)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Ranks are those of sorting all instances, whatever keys there are and however far apart.
        #[test]
        fn ranks_are_places_in_order(
            ops in prop::collection::vec((-1..=1i32, prop_oneof![-20..20i64, Just(1_000_000_000), any::<i32>().prop_map(i64::from)]), 0..12),
            ii in 0..=9i64,
            batches in 0..6usize,
        ) {
            let (priority, key): (Vec<i32>, Vec<i64>) = ops.iter().copied().unzip();
            let mut ranks = Ranks::default();
            // What was ranked before leaves nothing.
            ranks.rank(&[0; 3], &[7, -1, 0], 2, 4);
            ranks.rank(&priority, &key, ii, batches);
            let n = ops.len();
            let mut sorted: Vec<usize> = (0..n * batches).collect();
            sorted.sort_by_key(|i| (-priority[i % n], key[i % n] + (i / n) as i64 * ii, *i));
            for (rank, instance) in (0..).zip(sorted) {
                prop_assert_eq!((ranks.of(instance), ranks.instance(rank)), (rank, ((instance % n) as u32, (instance / n) as u32)));
            }
        }

        /// A set is what a set is.
        #[test]
        fn the_least_of_a_set_is_found(
            (limit, numbers) in (1..300_000u32).prop_flat_map(|limit| (Just(limit), prop::collection::vec(0..limit, 0..60))),
        ) {
            let (mut set, mut known) = (Set::new(limit as usize), BTreeSet::new());
            for number in numbers.iter().chain(numbers.iter().take(20)) {
                if known.insert(*number) {
                    set.insert(*number);
                } else {
                    known.remove(number);
                    set.remove(*number);
                }
                prop_assert_eq!(set.first(), known.first().copied());
            }
            set.clear();
            prop_assert_eq!(set.first(), None);
        }
    }
}
