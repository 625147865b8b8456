//! Cuts what ranks hold into microbatches.
//!
//! Ranks meet in every microbatch, so each takes as long as its dearest rank's part, its *level*, and a step takes the sum of
//! levels. Everything in one microbatch would make that sum least, and microbatches useless: so each has a *share* of what the
//! dearest rank has to do, a level below its share counts as the share, and this sum is made small. Shares are even, but
//! where a sample is dearer than that: it makes a microbatch long on its rank, and then all ranks may as well put more there.
//!
//! 1. Samples of all ranks, dearest first, go where the sum grows least; where several do not grow, to that which is farthest
//!    below its share on this rank (largest first of Graham 1969, for all ranks together).
//! 2. Each rank for itself moves and exchanges samples between its microbatches while the one that is most above its share
//!    gets closer to it.
//! 3. While a move or an exchange on one rank makes the sum less, the best is made.
//!
//! Where that leaves a step clearly longer, it is done again for longer first microbatches, within bounds.

use super::plan::Sample;

/// Ways that the last step looks at, at most. Of many samples it has little left to find.
const LOOKED_AT: usize = 1 << 16;
/// Longer first microbatches that are tried, beside the longest there may be.
const LONGER: usize = 4;
/// They are tried where microbatches make a step longer than the dearest rank's cost by more than one part of this, and taken
/// where they make it shorter by as much.
const WORTH: u64 = 100;
/// Quarters of its share that a longer one may be: what the longest holds is what a rank needs memory for.
const QUARTERS: u64 = 5;

/// A cut, and the storage of the next one.
#[derive(Debug, Default)]
pub(super) struct Cut {
    microbatches: usize,
    /// What each microbatch may cost for nothing.
    shares: Vec<i64>,
    /// By rank and microbatch.
    loads: Vec<i64>,
    /// The microbatch of each sample, as ranks hold them one after the other, and where each rank's begin.
    part: Vec<u32>,
    starts: Vec<usize>,
    /// The dearest rank's cost of each microbatch, or its share; without that rank; and the rank.
    levels: Vec<Level>,
    /// Microbatches and loads of another cut, while there are two.
    other: (Vec<u32>, Vec<i64>),
}

#[derive(Debug, Clone, Copy)]
struct Level {
    most: i64,
    without: i64,
    rank: usize,
}

/// A sample goes to another microbatch, and another may come back for it.
#[derive(Debug, Clone, Copy)]
struct Way {
    give: usize,
    to: usize,
    back: Option<usize>,
    cost: i64,
}

impl Cut {
    /// Cuts lists of samples, each dearest first, of which the dearest costs `most`. What is less than `slack` thousandths of
    /// a share above it is left.
    pub(super) fn cut(&mut self, held: &[Vec<Sample>], microbatches: usize, most: u64, slack: f64) {
        self.microbatches = microbatches;
        self.starts.clear();
        self.starts.push(0);
        for list in held {
            self.starts.push(self.starts.last().unwrap_or(&0) + list.len());
        }
        if microbatches == 1 {
            self.clear(held.len());
            self.loads.fill(most as i64);
            return;
        }
        self.share(held, most, 0);
        self.fill(held, slack);
        if self.most_in_turns() <= most + most / WORTH {
            return;
        }
        // A rank with dear samples that fit no share bounds all: with a longer first one all may put more there.
        let above = |rank: usize| (0..microbatches).map(|m| self.above(rank, m)).max();
        let bounds = (0..held.len()).rev().max_by_key(|rank| above(*rank)).unwrap_or(0);
        let first = self.shares[0] as u64;
        let longer = |long: &mut u64, s: &Sample| {
            *long += s.cost;
            Some(*long)
        };
        let most_first = first / 4 * QUARTERS;
        let longer =
            held[bounds].iter().scan(0, longer).filter(|long| (first + 1..=most_first).contains(long));
        let mut least = self.most_in_turns();
        let longest = self.turns().max().unwrap_or(0).max(most_first);
        for first in longer.take(LONGER).chain([most_first]) {
            self.swap();
            self.share(held, most, first);
            self.fill(held, slack);
            let even = self.turns().all(|turn| turn <= longest);
            if even && self.most_in_turns() + most / WORTH < least {
                least = self.most_in_turns();
            } else {
                self.swap();
            }
        }
    }

    /// Changes places with the other cut.
    fn swap(&mut self) {
        std::mem::swap(&mut self.part, &mut self.other.0);
        std::mem::swap(&mut self.loads, &mut self.other.1);
    }

    /// Everything in the first microbatch, of which no load is known.
    fn clear(&mut self, ranks: usize) {
        self.part.clear();
        self.part.resize(self.starts[ranks], 0);
        self.loads.clear();
        self.loads.resize(ranks * self.microbatches, 0);
    }

    /// Cuts by the shares as they are.
    fn fill(&mut self, held: &[Vec<Sample>], slack: f64) {
        self.clear(held.len());
        self.insert(held);
        let thousandths = |share: i64| (share as f64 * slack / 1000.0) as i64;
        for rank in 0..held.len() {
            self.even(held, rank, thousandths);
        }
        self.lower(held, thousandths(self.shares.iter().sum()));
    }

    /// The microbatch of each of a rank's samples.
    pub(super) fn parts(&self, rank: usize) -> &[u32] {
        &self.part[self.starts[rank]..self.starts[rank + 1]]
    }

    /// The sum over microbatches of what the dearest rank's part costs.
    pub(super) fn most_in_turns(&self) -> u64 {
        self.turns().sum()
    }

    fn turns(&self) -> impl Iterator<Item = u64> {
        let most = |m: usize| (0..self.starts.len() - 1).map(|rank| self.load(rank, m)).max();
        (0..self.microbatches).map(move |m| most(m).unwrap_or(0) as u64)
    }

    fn load(&self, rank: usize, m: usize) -> i64 {
        self.loads[rank * self.microbatches + m]
    }

    fn add(&mut self, rank: usize, m: usize, cost: i64) {
        self.loads[rank * self.microbatches + m] += cost;
    }

    /// How far a rank's microbatch is above its share.
    fn above(&self, rank: usize, m: usize) -> i64 {
        self.load(rank, m) - self.shares[m]
    }

    /// As much as any rank's dearest sample (second dearest, ...) makes a microbatch cost, and an even share of what is left.
    /// The first is at least so long.
    fn share(&mut self, held: &[Vec<Sample>], most: u64, first: u64) {
        self.shares.clear();
        let mut left = most;
        for m in 0..self.microbatches {
            let forced = held.iter().filter_map(|held| held.get(m)).map(|s| s.cost).max().unwrap_or(0);
            let forced = if m == 0 { forced.max(first) } else { forced };
            let share = forced.max(left.div_ceil((self.microbatches - m) as u64)).min(left);
            self.shares.push(share as i64);
            left -= share;
        }
    }

    fn insert(&mut self, held: &[Vec<Sample>]) {
        self.levels.clear();
        self.levels.extend(self.shares.iter().map(|share| Level { most: *share, without: 0, rank: 0 }));
        let longest = held.iter().map(Vec::len).max().unwrap_or(0);
        for (at, rank) in (0..longest).flat_map(|at| (0..held.len()).map(move |rank| (at, rank))) {
            let Some(s) = held[rank].get(at) else { continue };
            let cost = s.cost as i64;
            let growth = |m: usize| (self.load(rank, m) + cost - self.levels[m].most).max(0);
            let to = (0..self.microbatches).min_by_key(|m| (growth(*m), self.above(rank, *m))).unwrap_or(0);
            self.part[self.starts[rank] + at] = to as u32;
            self.add(rank, to, cost);
            self.levels[to].most = self.levels[to].most.max(self.load(rank, to));
        }
    }

    /// Brings the microbatches of a rank closer to their shares.
    fn even(&mut self, held: &[Vec<Sample>], rank: usize, allowed: impl Fn(i64) -> i64) {
        // Of two microbatches the greater excess falls each time, so there is an end; this one is for the time it takes.
        for _ in 0..4 * held[rank].len() {
            let from = (0..self.microbatches).rev().max_by_key(|m| self.above(rank, *m)).unwrap_or(0);
            let above = self.above(rank, from);
            if above <= allowed(self.shares[from]) {
                break;
            }
            let mut best: Option<(i64, Way)> = None;
            self.ways(held, rank, from, |way| {
                let (here, there) = (above - way.cost, self.above(rank, way.to) + way.cost);
                let worse = here.max(0) + there.max(0) > above + self.above(rank, way.to).max(0);
                if !worse && here.max(there) < best.map_or(above, |(least, _)| least) {
                    best = Some((here.max(there), way));
                    return here.max(there) <= allowed(self.shares[from].min(self.shares[way.to]));
                }
                false
            });
            let Some((_, way)) = best else { break };
            self.go(rank, from, way);
        }
    }

    /// Brings the sum of levels down.
    fn lower(&mut self, held: &[Vec<Sample>], allowed: i64) {
        let shares: i64 = self.shares.iter().sum();
        self.levels.clear();
        for m in 0..self.microbatches {
            let level = self.level(m);
            self.levels.push(level);
        }
        let mut looked_at = 0;
        while self.levels.iter().map(|level| level.most).sum::<i64>() > shares.saturating_add(allowed)
            && looked_at < LOOKED_AT
        {
            let mut best: Option<(i64, usize, Way)> = None;
            for (from, level) in self.levels.iter().enumerate().filter(|(_, l)| l.without < l.most) {
                let rank = level.rank;
                looked_at += self.ways(held, rank, from, |way| {
                    let here = level.without.max(self.load(rank, from) - way.cost);
                    let there = self.levels[way.to].most.max(self.load(rank, way.to) + way.cost);
                    let change = here - level.most + there - self.levels[way.to].most;
                    if change < best.map_or(0, |(least, ..)| least) {
                        best = Some((change, from, way));
                    }
                    false
                });
            }
            let Some((_, from, way)) = best else { break };
            self.go(self.levels[from].rank, from, way);
            for m in [from, way.to] {
                self.levels[m] = self.level(m);
            }
        }
    }

    fn level(&self, m: usize) -> Level {
        let mut level = Level { most: self.shares[m], without: self.shares[m], rank: 0 };
        for rank in 0..self.starts.len() - 1 {
            let load = self.load(rank, m);
            if load > level.most {
                level = Level { most: load, without: level.most, rank };
            } else {
                level.without = level.without.max(load);
            }
        }
        level
    }

    /// Ways to make a microbatch of a rank cheaper, alone or for a cheaper sample, until one will do; how many samples were
    /// looked at.
    fn ways(
        &self,
        held: &[Vec<Sample>],
        rank: usize,
        from: usize,
        mut will_do: impl FnMut(Way) -> bool,
    ) -> usize {
        let (list, parts) = (&held[rank], self.parts(rank));
        let mut looked_at = 0;
        for (give, s) in list.iter().enumerate().filter(|(at, _)| parts[*at] as usize == from) {
            for to in (0..self.microbatches).filter(|to| *to != from && s.cost > 0) {
                if will_do(Way { give, to, back: None, cost: s.cost as i64 }) {
                    return looked_at;
                }
            }
            // Lists fall, so what is cheaper stands behind it.
            for (back, other) in list.iter().enumerate().skip(give + 1) {
                let to = parts[back] as usize;
                let cost = (s.cost - other.cost) as i64;
                if to != from && cost > 0 && will_do(Way { give, to, back: Some(back), cost }) {
                    return looked_at;
                }
            }
            looked_at += list.len() - give;
        }
        looked_at
    }

    fn go(&mut self, rank: usize, from: usize, way: Way) {
        let start = self.starts[rank];
        self.part[start + way.give] = way.to as u32;
        if let Some(back) = way.back {
            self.part[start + back] = from as u32;
        }
        self.add(rank, from, -way.cost);
        self.add(rank, way.to, way.cost);
    }
}
