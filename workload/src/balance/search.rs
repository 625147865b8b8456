//! Few samples, wherever they are read: the greatest cost of a rank is brought below a target by trying.
//!
//! Ranks are filled one after the other (sequential partitioning; Korf 2009): the first gets the dearest sample that is left
//! and more of the others, such that neither it exceeds the target nor what it leaves is more than the other ranks can
//! have; so on with the next. The dearest that fit are tried first. Where nothing is left to try there is no such plan; but
//! after so many steps the search gives up, always after as many, so that all ranks find the same.

/// Samples and ranks up to which it is tried.
pub(super) const FEW: usize = 64;

/// What is known of a sample: its cost, and what it takes up.
pub(super) type Item = (u64, u64);

/// A plan of few samples, and room to look for one.
#[derive(Debug, Default)]
pub(super) struct Search {
    items: Vec<Item>,
    /// How many samples each rank must have; empty: any.
    counts: Vec<usize>,
    ranks: usize,
    /// Ranks in the order in which they are filled, and samples of each as bits.
    order: Vec<usize>,
    masks: Vec<u64>,
    levels: Vec<Level>,
    target: u64,
    most: u64,
    steps: u32,
}

/// What is left when a rank is filled.
#[derive(Debug, Default, Clone)]
struct Level {
    /// Samples, dearest first.
    left: Vec<u8>,
    /// What the first of them cost together.
    sums: Vec<u64>,
    size: u64,
    least: u64,
}

/// What a rank that is being filled has.
#[derive(Debug, Default, Clone, Copy)]
struct Filled {
    mask: u64,
    cost: u64,
    size: u64,
    count: usize,
}

impl Search {
    /// Of what samples, dearest first, for so many ranks, which can hold so much each, and have so many samples each if
    /// `counts` is not empty.
    pub(super) fn begin(
        &mut self,
        items: impl Iterator<Item = Item>,
        (ranks, most): (usize, u64),
        counts: impl Iterator<Item = usize>,
    ) {
        self.items.clear();
        self.items.extend(items);
        self.counts.clear();
        self.counts.extend(counts);
        (self.ranks, self.most) = (ranks, most);
        self.levels.resize(ranks, Level::default());
    }

    /// Looks for a plan whose greatest cost is at most so much, in so many steps at most; what it comes to.
    pub(super) fn find(&mut self, target: u64, steps: u32) -> Option<u64> {
        (self.target, self.steps) = (target, steps);
        self.order.clear();
        self.order.extend(0..self.ranks);
        self.masks.clear();
        self.masks.resize(self.ranks, 0);
        let all = u64::MAX.checked_shr(64 - self.items.len() as u32).unwrap_or(0);
        if !self.fill(0, all) {
            return None;
        }
        let cost =
            |mask: &u64| (0..self.items.len()).filter(|i| mask >> i & 1 == 1).map(|i| self.items[i].0).sum();
        self.masks.iter().map(cost).max()
    }

    /// Ranks and which of the samples each has, as bits.
    pub(super) fn found(&self) -> impl Iterator<Item = (usize, u64)> {
        self.order.iter().copied().zip(self.masks.iter().copied())
    }

    /// Fills the ranks from the `nth` on with the samples that are left.
    fn fill(&mut self, nth: usize, left: u64) -> bool {
        let Some(ranks) = self.ranks.checked_sub(nth).filter(|ranks| *ranks > 0) else { return left == 0 };
        if left == 0 {
            self.masks[nth..].fill(0);
            return self.order[nth..].iter().all(|rank| self.counts.get(*rank).is_none_or(|n| *n == 0));
        }
        let level = &mut self.levels[nth];
        level.left.clear();
        level.sums.clear();
        level.sums.push(0);
        let (mut sum, mut size) = (0, 0u64);
        for i in (0..self.items.len()).filter(|i| left >> i & 1 == 1) {
            sum += self.items[i].0;
            size = size.saturating_add(self.items[i].1);
            level.left.push(i as u8);
            level.sums.push(sum);
        }
        let others = ranks as u64 - 1;
        level.least = sum.saturating_sub(self.target.saturating_mul(others));
        level.size = size.saturating_sub(self.most.saturating_mul(others));
        if level.least > self.target || level.size > self.most {
            return false;
        }
        let first = level.left[0] as usize;
        let (cost, size) = self.items[first];
        let begun = Filled { mask: 1 << first, cost, size, count: 1 };
        if cost > self.target || size > self.most {
            return false;
        }
        if self.counts.is_empty() {
            return self.choose(nth, 1, begun);
        }
        // The dearest one is on some rank: one of each number of samples is tried.
        for at in nth..self.ranks {
            let wanted = |rank: usize| self.counts[self.order[rank]];
            if wanted(at) == 0 || (nth..at).any(|before| wanted(before) == wanted(at)) {
                continue;
            }
            self.order.swap(nth, at);
            if self.choose(nth, 1, begun) {
                return true;
            }
            self.order.swap(nth, at);
        }
        false
    }

    /// Gives a rank more of the samples from a place on.
    fn choose(&mut self, nth: usize, mut at: usize, has: Filled) -> bool {
        if self.steps == 0 {
            return false;
        }
        self.steps -= 1;
        let level = &self.levels[nth];
        let n = level.left.len();
        let wanted = self.counts.get(self.order[nth]).map(|wanted| wanted - has.count);
        while at < n && has.cost + self.items[level.left[at] as usize].0 > self.target {
            at += 1;
        }
        let full = if let Some(more) = wanted {
            if n - at < more {
                return false;
            }
            let greatest = has.cost + level.sums[at + more] - level.sums[at];
            let least = has.cost + level.sums[n] - level.sums[n - more];
            if greatest < level.least || least > self.target {
                return false;
            }
            more == 0
        } else {
            if has.cost + level.sums[n] - level.sums[at] < level.least {
                return false;
            }
            at == n
        };
        if full {
            if has.cost < level.least || has.size < level.size {
                return false;
            }
            let left = level.left.iter().fold(0, |left, i| left | 1u64 << i) & !has.mask;
            self.masks[nth] = has.mask;
            return self.fill(nth + 1, left);
        }
        let i = level.left[at] as usize;
        let (cost, size) = self.items[i];
        // Of samples that are alike the first ones go.
        let alike =
            level.left[at..].iter().take_while(|other| self.items[**other as usize] == (cost, size)).count();
        if has.size + size <= self.most {
            let with = Filled {
                mask: has.mask | 1 << i,
                cost: has.cost + cost,
                size: has.size + size,
                count: has.count + 1,
            };
            if self.choose(nth, at + 1, with) {
                return true;
            }
        }
        self.choose(nth, at + alike, has)
    }
}
