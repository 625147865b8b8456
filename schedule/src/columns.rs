//! Uses of a place, found by the columns that they concern.
//!
//! Side by side in one buffer may stand thousands of values (a concat, a split). Whoever uses some columns has to do with
//! the uses of the same columns only, so looking at all of them would be quadratic.

use std::collections::BTreeMap;

/// Half-open range of columns.
type Columns = (u32, u32);

/// Values by ranges of columns, which may overlap.
///
/// A few are a list. More are kept by their widths' powers of two: of one power those that can reach into a range start
/// within twice that power before it, so a query looks at few that do not.
#[derive(Debug, Clone)]
pub struct ByColumns<T> {
    /// All of them, as long as they are few.
    few: Vec<(Columns, u32, T)>,
    /// By power of two, start and number.
    ranges: BTreeMap<(u8, u32, u32), (u32, T)>,
    /// Powers that occur, a bit each.
    powers: u64,
    /// Number of the next.
    next: u32,
}

impl<T> Default for ByColumns<T> {
    fn default() -> Self {
        Self { few: Vec::new(), ranges: BTreeMap::new(), powers: 0, next: 0 }
    }
}

/// What is found faster by looking at all of them.
const FEW: usize = 12;

fn power(columns: Columns) -> u8 {
    (columns.1.saturating_sub(columns.0).max(1).ilog2()) as u8
}

/// True if two ranges have a column in common.
pub(crate) fn meet(a: Columns, b: Columns) -> bool {
    a.0 < b.1 && b.0 < a.1
}

impl<T> ByColumns<T> {
    /// Adds a value. Values are numbered in the order in which they are added.
    pub fn add(&mut self, columns: Columns, value: T) {
        let number = self.next;
        self.next += 1;
        if self.ranges.is_empty() && self.few.len() < FEW {
            self.few.push((columns, number, value));
            return;
        }
        for (columns, number, value) in
            std::mem::take(&mut self.few).into_iter().chain([(columns, number, value)])
        {
            let power = power(columns);
            self.powers |= 1 << power;
            self.ranges.insert((power, columns.0, number), (columns.1, value));
        }
    }

    /// Values whose columns meet a range, each with its columns and its number.
    pub fn meeting(&self, columns: Columns) -> impl Iterator<Item = (Columns, u32, &T)> {
        self.near(columns).filter(move |(of, ..)| meet(*of, columns))
    }

    /// What a query looks at.
    fn near(&self, columns: Columns) -> impl Iterator<Item = (Columns, u32, &T)> {
        let powers = (0..32u8).filter(|power| self.powers >> power & 1 == 1);
        let found = powers
            .flat_map(move |power| {
                // The widest of this power ends before the range if it starts before this.
                let start = u64::from(columns.0).saturating_sub((2 << power) - 2) as u32;
                let end = columns.1.max(start);
                self.ranges.range((power, start, 0)..(power, end, 0))
            })
            .map(|((_, start, number), (end, value))| ((*start, *end), *number, value));
        let few = self.few.iter().map(|(of, number, value)| (*of, *number, value));
        few.chain(found)
    }

    /// Removes those within a range that `gone` names.
    pub fn remove_within(&mut self, columns: Columns, mut gone: impl FnMut(&T) -> bool) {
        let within = |of: Columns| columns.0 <= of.0 && of.1 <= columns.1;
        self.few.retain(|(of, _, value)| !(within(*of) && gone(value)));
        if self.ranges.is_empty() {
            return;
        }
        let found: Vec<(u8, u32, u32)> = self
            .meeting(columns)
            .filter(|(of, _, value)| within(*of) && gone(value))
            .map(|(of, number, _)| (power(of), of.0, number))
            .collect();
        for key in found {
            self.ranges.remove(&key);
        }
    }

    /// All values.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.few.iter().map(|(.., value)| value).chain(self.ranges.values().map(|(_, value)| value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What is found is what looking at all of them finds.
        #[test]
        fn finds_what_a_scan_finds(
            ranges in prop::collection::vec((0..70u32, 1..40u32, any::<bool>()), 0..60),
            query in (0..70u32, 1..80u32),
        ) {
            let query = (query.0, query.0 + query.1);
            let (mut by, mut all) = (ByColumns::default(), Vec::new());
            for (n, (start, width, removes)) in ranges.into_iter().enumerate() {
                let of = (start, start + width);
                if removes {
                    by.remove_within(of, |n: &usize| !n.is_multiple_of(3));
                    all.retain(|(o, n): &((u32, u32), usize)| !(of.0 <= o.0 && o.1 <= of.1 && n % 3 > 0));
                }
                by.add(of, n);
                all.push((of, n));
            }
            let mut found: Vec<_> = by.meeting(query).map(|(of, number, n)| (number, of, *n)).collect();
            found.sort_unstable();
            let found: Vec<_> = found.into_iter().map(|(_, of, n)| (of, n)).collect();
            let scanned: Vec<_> = all.iter().copied().filter(|(of, _)| meet(*of, query)).collect();
            prop_assert_eq!(found, scanned);
            prop_assert_eq!(by.values().count(), all.len());
        }
    }

    /// Of thousands side by side a query looks at its own and its neighbour.
    #[test]
    fn looks_at_few() {
        for width in [1, 3, 4, 7] {
            let mut by = ByColumns::default();
            (0..10_000u32).for_each(|n| by.add((width * n, width * n + width), n));
            by.add((0, width * 10_000), 10_000);
            for n in 0..10_000 {
                let of = (width * n, width * n + width);
                let found: Vec<u32> = by.meeting(of).map(|(.., n)| *n).collect();
                assert!(found.len() == 2 && found.contains(&n) && found.contains(&10_000));
                assert!(by.near(of).count() <= 4);
            }
        }
    }
}
