//! What was planned.

/// A sample as a list of a rank has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sample {
    pub cost: u64,
    pub size: u64,
    pub index: u32,
    /// Bytes that more would be away from home if the sample left the rank; negative if it is away already.
    pub away: i64,
}

/// A plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Of each sample the rank that works on it.
    pub rank: Vec<u32>,
    /// The greatest cost of a rank.
    pub most: u64,
    /// The greatest cost of a rank if every sample stayed at home.
    pub most_at_home: u64,
    /// Cost of all samples.
    pub total: u64,
    /// No plan's greatest cost is below this.
    pub bound: u64,
    /// The sample that makes up the bound alone, if one costs more than the mean of the ranks.
    pub bounded_by: Option<usize>,
    /// Samples that are not at home.
    pub moved: usize,
    /// Their bytes.
    pub moved_bytes: u64,
    /// The greatest costs of a microbatch, added up over microbatches.
    pub most_in_turns: u64,
    /// Samples by rank and microbatch, ascending within each.
    order: Vec<u32>,
    /// Where those of each rank and microbatch end.
    ends: Vec<usize>,
    microbatches: usize,
    /// What each microbatch should cost, and what is left of that on a rank.
    shares: Vec<u64>,
    left: Vec<i64>,
    /// Of each sample of a rank its microbatch.
    part: Vec<u32>,
    /// The greatest cost of each microbatch.
    longest: Vec<u64>,
}

impl Plan {
    /// The samples of a rank's microbatch, ascending.
    pub fn samples(&self, rank: usize, microbatch: usize) -> &[u32] {
        let at = rank * self.microbatches + microbatch;
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.order[start..self.ends[at]]
    }

    /// Microbatches of a rank.
    pub fn microbatches(&self) -> usize {
        self.microbatches
    }

    /// Cuts the samples of each rank (dearest first) into microbatches. Ranks meet in each, so a microbatch takes as long
    /// as the dearest of all ranks': a sample that is dearer than a microbatch's share makes the first one long on its rank,
    /// and then all ranks may as well put more into their first.
    pub(super) fn list(&mut self, held: &[Vec<Sample>], microbatches: usize) {
        self.microbatches = microbatches;
        self.order.clear();
        self.ends.clear();
        self.rank.clear();
        self.rank.resize(held.iter().map(Vec::len).sum(), 0);
        self.share(held, microbatches);
        self.longest.clear();
        self.longest.resize(microbatches, 0);
        for (rank, held) in held.iter().enumerate() {
            self.left.clear();
            self.left.extend(self.shares.iter().map(|share| *share as i64));
            self.part.clear();
            for s in held {
                self.rank[s.index as usize] = rank as u32;
                let most =
                    (0..microbatches).max_by_key(|m| (self.left[*m], std::cmp::Reverse(*m))).unwrap_or(0);
                self.left[most] -= s.cost as i64;
                self.part.push(most as u32);
            }
            for m in 0..microbatches {
                self.longest[m] = self.longest[m].max(self.shares[m].saturating_add_signed(-self.left[m]));
                let start = self.order.len();
                let own = held.iter().zip(&self.part).filter(|(_, part)| **part as usize == m);
                self.order.extend(own.map(|(s, _)| s.index));
                self.order[start..].sort_unstable();
                self.ends.push(self.order.len());
            }
        }
        self.most_in_turns = self.longest.iter().sum();
    }

    /// What each microbatch should cost on every rank: as much as any rank's dearest sample (second dearest, ...) makes it
    /// cost, and an even share of what is left.
    fn share(&mut self, held: &[Vec<Sample>], microbatches: usize) {
        self.shares.clear();
        let mut left = self.most;
        for m in 0..microbatches {
            let forced = held.iter().filter_map(|held| held.get(m)).map(|s| s.cost).max().unwrap_or(0);
            let share = forced.max(left.div_ceil((microbatches - m) as u64)).min(left);
            self.shares.push(share);
            left -= share;
        }
    }
}
