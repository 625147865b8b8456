//! A set of ids as a bitmap that gives each member its rank in ascending order.
//!
//! One bit an id, one summary bit for each word of 64, and for each touched word the number of smaller members.
//! Insertion and rank are a few instructions, members come out sorted without sorting, and clearing touches only
//! what was set. The price is a bit and a half for each id that could occur.

/// Ids above this are sorted: the bitmap would take 48 MiB.
const LARGEST: usize = 1 << 28;
/// Ids below this are never sorted: the bitmap stays in the caches.
const ALWAYS: usize = 1 << 25;
/// Between the two a bitmap pays from one id in so many on.
const SPARSE: usize = 512;

/// Whether `ids` ids below `space` are better found with a bitmap than by sorting (benchmark `memory`, `ids`).
pub(crate) fn pays(space: usize, ids: usize) -> bool {
    space <= ALWAYS || (space <= LARGEST && ids >= space / SPARSE)
}

/// The set.
#[derive(Debug, Default)]
pub(crate) struct IdSet {
    words: Vec<u64>,
    summary: Vec<u64>,
    before: Vec<u32>,
}

impl IdSet {
    /// Makes room for the ids below `space`.
    pub(crate) fn reserve(&mut self, space: usize) {
        let words = space.div_ceil(64);
        if self.words.len() < words {
            self.words.resize(words, 0);
            self.before.resize(words, 0);
            self.summary.resize(words.div_ceil(64), 0);
        }
    }

    /// Adds `id`, below the space reserved.
    #[inline(always)]
    pub(crate) fn insert(&mut self, id: usize) {
        let word = id >> 6;
        self.words[word] |= 1 << (id & 63);
        self.summary[word >> 6] |= 1 << (word & 63);
    }

    /// Whether `id`, below the space reserved, is a member.
    #[inline(always)]
    pub(crate) fn contains(&self, id: usize) -> bool {
        self.words[id >> 6] >> (id & 63) & 1 == 1
    }

    /// Calls `member` with every id, ascending, and prepares [`IdSet::rank`].
    #[inline(always)]
    pub(crate) fn number(&mut self, mut member: impl FnMut(usize)) {
        let mut count = 0u32;
        for (i, mut summary) in self.summary.iter().copied().enumerate() {
            while summary != 0 {
                let word = (i << 6) + summary.trailing_zeros() as usize;
                summary &= summary - 1;
                self.before[word] = count;
                let mut bits = self.words[word];
                while bits != 0 {
                    member((word << 6) + bits.trailing_zeros() as usize);
                    bits &= bits - 1;
                    count += 1;
                }
            }
        }
    }

    /// The number of members below `id`, after [`IdSet::number`].
    #[inline(always)]
    pub(crate) fn rank(&self, id: usize) -> u32 {
        let word = id >> 6;
        self.before[word] + (self.words[word] & ((1 << (id & 63)) - 1)).count_ones()
    }

    /// Empties the set.
    pub(crate) fn clear(&mut self) {
        for (i, summary) in self.summary.iter_mut().enumerate() {
            let mut bits = std::mem::take(summary);
            while bits != 0 {
                self.words[(i << 6) + bits.trailing_zeros() as usize] = 0;
                bits &= bits - 1;
            }
        }
    }
}
