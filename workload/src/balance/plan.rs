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

    /// Lists what ranks hold by microbatch, of which `parts` says for each of a rank's samples.
    pub(super) fn list<'a>(
        &mut self,
        held: &[Vec<Sample>],
        parts: impl Fn(usize) -> &'a [u32],
        microbatches: usize,
    ) {
        self.microbatches = microbatches;
        self.order.clear();
        self.ends.clear();
        self.rank.clear();
        self.rank.resize(held.iter().map(Vec::len).sum(), 0);
        for (rank, held) in held.iter().enumerate() {
            for s in held {
                self.rank[s.index as usize] = rank as u32;
            }
            for m in 0..microbatches {
                let start = self.order.len();
                let own = held.iter().zip(parts(rank)).filter(|(_, part)| **part as usize == m);
                self.order.extend(own.map(|(s, _)| s.index));
                self.order[start..].sort_unstable();
                self.ends.push(self.order.len());
            }
        }
    }
}
