//! Which row an id of the data has.
//!
//! Ids may be any text; the n-th distinct one has row n. Texts lie one after the other in one vector, and the way back
//! from an id to its number is a table of numbers alone, so 20 million ids need no allocation each.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

/// Ids and their numbers.
#[derive(Debug, Clone, Default)]
pub struct Vocabulary {
    /// Texts of all ids, one after the other.
    text: Vec<u8>,
    /// Where each text begins, and the end of the last.
    offsets: Vec<i64>,
    numbers: HashTable<u32>,
    hasher: RandomState,
}

/// Texts and offsets that are no vocabulary.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadVocabulary {
    /// Offsets that do not cut the text into ids.
    #[error("offset {at} is {found}, outside of {}..={}", .within.0, .within.1)]
    Offset {
        /// Which one.
        at: usize,
        /// The offset.
        found: i64,
        /// Where it must lie.
        within: (i64, i64),
    },
    /// The same id again.
    #[error("ids {first} and {second} are both `{id}`")]
    Twice {
        /// The first of the two.
        first: u32,
        /// The second.
        second: u32,
        /// The start of their text.
        id: String,
    },
    /// More ids than row numbers.
    #[error("more ids than 32 bits can number")]
    TooMany,
}

impl Vocabulary {
    /// No ids.
    pub fn new() -> Self {
        Self { offsets: vec![0], ..Self::default() }
    }

    /// Ids from their texts and where these begin, as [`text`](Self::text) and [`offsets`](Self::offsets) give them.
    pub fn from_parts(text: Vec<u8>, offsets: Vec<i64>) -> Result<Self, BadVocabulary> {
        let end = text.len() as i64;
        let mut least = 0;
        for (at, &found) in offsets.iter().enumerate() {
            let within = match at {
                0 => (0, 0),
                _ if at + 1 == offsets.len() => (end.max(least), end),
                _ => (least, end),
            };
            if found < within.0 || found > within.1 {
                return Err(BadVocabulary::Offset { at, found, within });
            }
            least = found;
        }
        if offsets.is_empty() || (offsets.len() == 1 && end > 0) {
            return Err(BadVocabulary::Offset { at: offsets.len(), found: 0, within: (0, end) });
        }
        let count = u32::try_from(offsets.len() - 1).map_err(|_| BadVocabulary::TooMany)?;
        let mut own = Self {
            text,
            offsets,
            numbers: HashTable::with_capacity(count as usize),
            hasher: RandomState::new(),
        };
        for n in 0..count {
            let Self { text, offsets, numbers, hasher } = &mut own;
            let of = |n: u32| slice(text, offsets, n);
            let id = of(n);
            match numbers.entry(hasher.hash_one(id), |m| of(*m) == id, |m| hasher.hash_one(of(*m))) {
                Entry::Vacant(place) => drop(place.insert(n)),
                Entry::Occupied(first) => {
                    let id = super::error::cut(&String::from_utf8_lossy(id));
                    return Err(BadVocabulary::Twice { first: *first.get(), second: n, id });
                }
            }
        }
        Ok(own)
    }

    /// Number of ids.
    pub fn ids(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// The text of an id.
    pub fn id(&self, number: u32) -> &[u8] {
        slice(&self.text, &self.offsets, number)
    }

    /// The number of an id.
    pub fn number(&self, id: &[u8]) -> Option<u32> {
        self.numbers.find(self.hasher.hash_one(id), |n| self.id(*n) == id).copied()
    }

    /// The number of an id, which is the next one if it is new; `None` if there is none left.
    pub fn add(&mut self, id: &[u8]) -> Option<u32> {
        let Self { text, offsets, numbers, hasher } = self;
        let hash = hasher.hash_one(id);
        if let Some(n) = numbers.find(hash, |n| slice(text, offsets, *n) == id) {
            return Some(*n);
        }
        let n = u32::try_from(offsets.len() - 1).ok()?;
        text.extend_from_slice(id);
        offsets.push(text.len() as i64);
        numbers.insert_unique(hash, n, |m| hasher.hash_one(slice(text, offsets, *m)));
        Some(n)
    }

    /// Bytes that it takes at most while ids of so many bytes, no more than so many, are added: lists are copied as they
    /// grow.
    pub fn growth(&self, bytes: u64, ids: usize) -> u64 {
        /// Of a place for a number, and what tells whether it is taken; an eighth of all places stays free.
        const PLACE: u64 = 6;
        let list = |capacity: usize, length: usize, more: u64, size: u64| match (capacity - length) as u64 {
            spare if spare >= more => 0,
            _ => size * (2 * capacity as u64).max(length as u64 + more),
        };
        let Self { text, offsets, numbers, .. } = self;
        list(text.capacity(), text.len(), bytes, 1)
            + list(offsets.capacity(), offsets.len(), ids as u64, size_of::<i64>() as u64)
            + list(numbers.capacity(), numbers.len(), ids as u64, PLACE)
    }

    /// Texts of all ids, one after the other.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Where each text begins, and the end of the last: one more than there are ids.
    pub fn offsets(&self) -> &[i64] {
        &self.offsets
    }
}

fn slice<'t>(text: &'t [u8], offsets: &[i64], number: u32) -> &'t [u8] {
    let at = number as usize;
    &text[offsets[at] as usize..offsets[at + 1] as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_numbered_by_first_appearance() {
        let mut v = Vocabulary::new();
        let numbers: Vec<_> = [&b"b"[..], b"", b"a", b"b", b"ab", b""].map(|id| v.add(id)).into();
        assert_eq!(numbers, [0, 1, 2, 0, 3, 1].map(Some));
        assert_eq!((v.ids(), v.text(), v.offsets()), (4, &b"baab"[..], &[0, 1, 1, 2, 4][..]));
        let again = Vocabulary::from_parts(v.text().to_vec(), v.offsets().to_vec()).unwrap();
        assert_eq!(
            [&b"ab"[..], b"a", b"", b"b", b"c"].map(|id| again.number(id)),
            [Some(3), Some(2), Some(1), Some(0), None]
        );
        assert!(Vocabulary::from_parts(Vec::new(), vec![0]).unwrap().ids() == 0);
    }

    #[test]
    fn what_is_no_vocabulary_is_refused() {
        for (text, offsets) in [
            (&b"ab"[..], &[][..]),
            (b"ab", &[0]),
            (b"ab", &[1, 2]),
            (b"ab", &[0, 1]),
            (b"ab", &[0, 3]),
            (b"ab", &[0, 2, 1, 2]),
            (b"ab", &[0, -1, 2]),
            (b"ab", &[0, i64::MAX, 2]),
            (b"ab", &[0, 2, i64::MIN]),
        ] {
            let found = Vocabulary::from_parts(text.to_vec(), offsets.to_vec());
            assert!(matches!(found, Err(BadVocabulary::Offset { .. })), "{text:?} {offsets:?}: {found:?}");
        }
        let twice = Vocabulary::from_parts(b"xyx".to_vec(), vec![0, 1, 2, 3]).unwrap_err();
        assert_eq!(twice.to_string(), "ids 0 and 2 are both `x`");
    }
}
