//! Plans under a limit that is tight: what a rank can hold comes before what it costs.

use super::plan::Sample;
use super::planner::{PlanError, Planner, Problem, dearest_first, most, sample};

impl Planner {
    /// All samples anew by size alone, largest first to the rank with most room: what is left to try when a limit is
    /// tight.
    pub(super) fn pack(&mut self, p: &Problem<'_>) -> Result<(), PlanError> {
        let mut pool = std::mem::take(&mut self.pool);
        pool.clear();
        self.held.iter_mut().for_each(Vec::clear);
        pool.extend((0..p.costs.len()).map(|index| sample(p, index)));
        pool.sort_unstable_by(|a, b| b.size.cmp(&a.size).then(a.index.cmp(&b.index)));
        self.sizes.fill(0);
        self.loads.fill((0..p.ranks).map(|_| 0));
        // For a while sizes take the place of loads.
        let mut room = std::mem::take(&mut self.by_size);
        room.fill((0..p.ranks).map(|_| 0));
        let mut result = Ok(());
        for s in &pool {
            let rank = room.least();
            if self.sizes[rank] + s.size > most(p) {
                result = Err(self.full(p, s));
                break;
            }
            self.put(p, rank, *s);
            room.set(rank, self.sizes[rank]);
        }
        (self.pool, self.by_size) = (pool, room);
        result
    }

    /// The last way: all samples anew by size, whether a rank can hold them or not, largest first to the rank that holds
    /// least, and then exchanges.
    pub(super) fn crowd(&mut self, p: &Problem<'_>) -> Result<(), PlanError> {
        let mut pool = std::mem::take(&mut self.pool);
        pool.clear();
        pool.extend((0..p.costs.len()).map(|index| sample(p, index)));
        pool.sort_unstable_by(|a, b| b.size.cmp(&a.size).then(a.index.cmp(&b.index)));
        self.held.iter_mut().for_each(Vec::clear);
        self.weigh();
        // With equal counts as many as are read there.
        let mut most = vec![if p.equal_counts { 0 } else { usize::MAX }; p.ranks];
        for home in p.home.iter().filter(|_| p.equal_counts) {
            most[*home as usize] += 1;
        }
        for s in &pool {
            let free = (0..p.ranks).filter(|r| self.held[*r].len() < most[*r]);
            let rank = free.min_by_key(|r| (self.sizes[*r], *r)).unwrap_or(0);
            self.put(p, rank, *s);
        }
        self.pool = pool;
        self.exchange_sizes(p)
    }

    /// Ranks above the limit exchange large samples for small ones.
    pub(super) fn exchange_sizes(&mut self, p: &Problem<'_>) -> Result<(), PlanError> {
        self.turn();
        self.refine(p, most(p), u64::MAX);
        let over = self.loads.most();
        let fits = self.loads.get(over) <= most(p);
        self.turn();
        if fits {
            return Ok(());
        }
        let largest = self.held[over].iter().max_by_key(|s| (s.size, std::cmp::Reverse(s.index))).copied();
        Err(self.full(p, &largest.unwrap_or(Sample { cost: 0, size: 0, index: 0, away: 0 })))
    }

    /// Sizes become costs, and costs sizes.
    fn turn(&mut self) {
        for held in &mut self.held {
            for s in held.iter_mut() {
                std::mem::swap(&mut s.cost, &mut s.size);
            }
            held.sort_unstable_by(dearest_first);
        }
        self.loads.fill(self.held.iter().map(|held| held.iter().map(|s| s.cost).sum()));
        for (size, held) in self.sizes.iter_mut().zip(&self.held) {
            *size = held.iter().map(|s| s.size).sum();
        }
    }
}
