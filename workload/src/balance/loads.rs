//! Loads of ranks, with the greatest and the least of them at hand.

/// A tree over ranks whose nodes know the rank of greatest and of least load below them; ties go to the lower rank.
#[derive(Debug, Default)]
pub(super) struct Loads {
    ranks: usize,
    of: Vec<u64>,
    /// Node n has children 2n and 2n + 1; the leaves are ranks, from `leaves` on.
    nodes: Vec<(u32, u32)>,
    leaves: usize,
}

impl Loads {
    /// Sets all loads.
    pub(crate) fn fill(&mut self, loads: impl IntoIterator<Item = u64>) {
        self.of.clear();
        self.of.extend(loads);
        self.ranks = self.of.len();
        self.leaves = self.ranks.next_power_of_two().max(1);
        self.nodes.clear();
        self.nodes.resize(2 * self.leaves, (0, 0));
        for leaf in 0..self.leaves {
            // Leaves beyond the last rank stand for it; only nodes above its own leaf ever change by it.
            let rank = leaf.min(self.ranks.saturating_sub(1)) as u32;
            self.nodes[self.leaves + leaf] = (rank, rank);
        }
        for node in (1..self.leaves).rev() {
            self.join(node);
        }
    }

    fn join(&mut self, node: usize) {
        let ((most_a, least_a), (most_b, least_b)) = (self.nodes[2 * node], self.nodes[2 * node + 1]);
        let most = if self.of[most_b as usize] > self.of[most_a as usize] { most_b } else { most_a };
        let least = if self.of[least_b as usize] < self.of[least_a as usize] { least_b } else { least_a };
        self.nodes[node] = (most, least);
    }

    pub(crate) fn get(&self, rank: usize) -> u64 {
        self.of[rank]
    }

    pub(crate) fn set(&mut self, rank: usize, load: u64) {
        self.of[rank] = load;
        let mut node = (self.leaves + rank) >> 1;
        while node > 0 {
            self.join(node);
            node /= 2;
        }
    }

    pub(crate) fn most(&self) -> usize {
        self.nodes[1].0 as usize
    }

    pub(crate) fn least(&self) -> usize {
        self.nodes[1].1 as usize
    }
}
