//! The planner: see the [module](super)'s page for the steps.

use super::cut::Cut;
use super::differ::{self, Differ};
use super::exchange::{Exchange, Pair};
use super::loads::Loads;
use super::names::Names;
use super::plan::{Plan, Sample};
use super::search::{FEW, Item, Search};

/// Thousandths of the bound for which nothing is moved, if nobody says otherwise.
pub const SLACK: f64 = 2.0;

/// What is to be planned.
#[derive(Debug, Clone, Copy)]
pub struct Problem<'a> {
    /// Number of ranks.
    pub ranks: usize,
    /// Of each sample the rank that reads it.
    pub home: &'a [u32],
    /// Of each sample what working on it costs, in any unit.
    pub costs: &'a [u64],
    /// Of each sample the bytes that moving it takes.
    pub bytes: &'a [u64],
    /// What a rank can hold.
    pub limit: Option<Limit<'a>>,
    /// Every rank works on as many samples as it reads.
    pub equal_counts: bool,
    /// Microbatches into which each rank cuts its samples.
    pub microbatches: usize,
    /// How far above the bound a rank's cost may lie without anything being moved for it, in thousandths.
    pub slack: f64,
}

/// A limit of what the samples of a rank take up together.
#[derive(Debug, Clone, Copy)]
pub struct Limit<'a> {
    /// What each sample takes up: tokens, bytes.
    pub sizes: &'a [u64],
    /// What a rank can hold.
    pub most: u64,
}

/// Why there is no plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Sums would overflow.
    #[error("the {what} of all samples are no number of 63 bits together")]
    Overflow {
        /// Costs, sizes or bytes.
        what: &'static str,
    },
    /// One sample is too large.
    #[error("sample {sample}, which rank {rank} reads, takes up {size}, but a rank can hold {most}")]
    Sample {
        /// Which.
        sample: usize,
        /// The rank that reads it.
        rank: usize,
        /// Its size.
        size: u64,
        /// The limit.
        most: u64,
    },
    /// All together are too many, or none of the ways tried fits.
    #[error(
        "sample {sample}, which takes up {size}, fits nowhere: of the {most} that a rank can hold, rank {rank} \
             has most left and holds {held}"
    )]
    Full {
        /// The sample for which no place was found.
        sample: usize,
        /// Its size.
        size: u64,
        /// The rank with most room.
        rank: usize,
        /// What it holds already.
        held: u64,
        /// The limit.
        most: u64,
    },
}

/// Plans batches, and keeps its storage between them.
#[derive(Debug, Default)]
pub struct Planner {
    plan: Plan,
    /// Samples of each rank, dearest first.
    pub(super) held: Vec<Vec<Sample>>,
    /// The same of another plan, while there are two.
    other: Vec<Vec<Sample>>,
    /// Lists under other names.
    pub(super) spare: Vec<Vec<Sample>>,
    /// What each rank holds of the limit.
    pub(super) sizes: Vec<u64>,
    pub(super) loads: Loads,
    pub(super) by_size: Loads,
    pub(super) pool: Vec<Sample>,
    tried: Vec<(usize, u64)>,
    pub(super) names: Names,
    /// Samples that are not at home, and who has them.
    pub(super) away: Vec<Sample>,
    pub(super) at: Vec<u32>,
    /// The round in which a rank's list last changed.
    pub(super) changed: Vec<u32>,
    search: Search,
    cut: Cut,
    differ: Differ,
}

/// Ranks that are asked for an exchange before the best one is made; if none of them can help, all are asked.
const PARTNERS: usize = 8;
/// How many samples are looked at in asking more than [`PARTNERS`], for each sample of the batch: where ranks are full most that
/// are asked cannot help, and there must be an end.
const LOOKED_AT: usize = 1 << 9;
/// The same where only samples that fit may be exchanged, and single ones may go: more takes tenths of a point off the step, and
/// moves twice the bytes.
const LOOKED_AT_FULL: usize = 1 << 7;
/// What finding a partner takes, in samples looked at.
const ASKING: usize = 1 << 5;
/// Targets that are tried for few samples, and steps of the search for each.
const TARGETS: usize = 8;
const STEPS: u32 = 1 << 10;
/// Steps of the search for few samples under a limit that nothing else has met.
const LAST: u32 = 1 << 12;

pub(super) fn dearest_first(a: &Sample, b: &Sample) -> std::cmp::Ordering {
    b.cost.cmp(&a.cost).then(a.index.cmp(&b.index))
}

/// The sum, if it and all of its parts can be added and subtracted as signed numbers too.
fn total(what: &'static str, numbers: &[u64]) -> Result<u64, PlanError> {
    let sum = numbers.iter().try_fold(0u64, |sum, n| sum.checked_add(*n));
    sum.filter(|sum| i64::try_from(*sum).is_ok()).ok_or(PlanError::Overflow { what })
}

impl Planner {
    /// Plans a batch.
    ///
    /// # Errors
    /// If the limit can't be kept, or numbers are too large to be added.
    ///
    /// # Panics
    /// If there is no rank, lists of the problem are not equally long, or a home is no rank.
    pub fn plan(&mut self, problem: &Problem<'_>) -> Result<&Plan, PlanError> {
        let (goal, fits_at_home) = self.start(problem)?;
        let bound = self.plan.bound;
        if fits_at_home && self.plan.most_at_home <= goal {
            self.finish(problem);
            return Ok(&self.plan);
        }
        self.level(problem, goal, fits_at_home)?;
        let mut reached = self.greatest();
        if reached > goal {
            // Exchanges have found no better way from there. From elsewhere they may.
            for differ in [false, true] {
                if problem.equal_counts || reached <= goal {
                    break;
                }
                std::mem::swap(&mut self.held, &mut self.other);
                let begun = if differ { self.differ(problem).is_some() } else { self.anew(problem).is_ok() };
                if begun {
                    self.refine(problem, goal, most(problem));
                }
                // Which takes more bytes, so not for less than what nothing is moved for.
                if begun && self.greatest() + (goal - bound) < reached {
                    reached = self.greatest();
                } else {
                    std::mem::swap(&mut self.held, &mut self.other);
                    self.weigh();
                }
            }
            if reached > goal {
                self.search_below(problem, goal);
                reached = self.greatest();
            }
            self.settle(problem, reached.max(goal));
            // Nothing moves for a goal that is not reached.
            self.keep_home(problem, reached.max(goal));
        } else {
            self.settle(problem, goal);
        }
        self.finish(problem);
        Ok(&self.plan)
    }

    /// Whether a batch can be planned, which takes less time than the plan.
    ///
    /// # Panics
    /// As [`plan`](Self::plan).
    pub fn keeps(&mut self, problem: &Problem<'_>) -> bool {
        let begun = self.start(problem);
        begun.is_ok_and(|(goal, fits)| fits || self.fit(problem, goal, fits).is_ok())
    }

    /// From where samples are read to what exchanges reach, within the limit.
    fn level(&mut self, p: &Problem<'_>, goal: u64, fits: bool) -> Result<(), PlanError> {
        self.fit(p, goal, fits)?;
        self.refine(p, goal, most(p));
        Ok(())
    }

    /// From where samples are read into the limit.
    fn fit(&mut self, p: &Problem<'_>, goal: u64, fits: bool) -> Result<(), PlanError> {
        if p.equal_counts {
            if !fits && let Err(error) = self.exchange_sizes(p) {
                self.crowd(p).or_else(|_| self.search_sizes(p).ok_or(error))?;
            }
        } else {
            self.shed(p, goal);
            if self.place(p, goal).is_err() {
                // A tight limit: by exchanges only, or all anew.
                if fits {
                    self.at_home(p);
                } else if let Err(error) = self.pack(p) {
                    self.crowd(p).or_else(|_| self.search_sizes(p).ok_or(error))?;
                }
            }
        }
        Ok(())
    }

    /// The same from home for what can be reached, if that takes no more of any rank's time: fewer samples move.
    fn keep_home(&mut self, p: &Problem<'_>, reached: u64) {
        let away = self.bytes_away();
        std::mem::swap(&mut self.held, &mut self.other);
        self.at_home(p);
        let fits = self.sizes.iter().all(|size| *size <= most(p));
        if !fits || self.greatest() > reached {
            let found = self.level(p, reached, fits);
            let reaches = found.is_ok() && self.greatest() <= reached;
            if reaches {
                self.settle(p, reached);
            }
            if !reaches || self.bytes_away() > away {
                std::mem::swap(&mut self.held, &mut self.other);
                self.weigh();
            }
        }
    }

    /// Of few samples: a plan of less than what exchanges have come to, wherever samples are read. Nothing changes if there is
    /// none, or it takes too long to find.
    fn search_below(&mut self, p: &Problem<'_>, goal: u64) {
        if !self.begin_search(p, |s| (s.cost, s.size), most(p)) {
            return;
        }
        // What is not worth looking for: a part of what nothing is moved for.
        let worth = ((goal - self.plan.bound) / 4).max(1);
        let (mut least, mut reached, mut target) = (self.plan.bound, self.greatest(), goal);
        for _ in 0..TARGETS {
            if target.saturating_add(worth) > reached {
                break;
            }
            if let Some(found) = self.search.find(target, STEPS) {
                reached = found;
                self.take_found(p);
                if reached <= goal {
                    break;
                }
            } else {
                least = target;
            }
            target = least.midpoint(reached);
        }
    }

    /// Of few samples: one of the plans that keep the limit, if any does and is found.
    fn search_sizes(&mut self, p: &Problem<'_>) -> Option<()> {
        // Sizes take the place of costs.
        self.begin_search(p, |s| (s.size, 0), u64::MAX).then_some(())?;
        self.search.find(most(p), LAST)?;
        self.take_found(p);
        Some(())
    }

    fn begin_search(&mut self, p: &Problem<'_>, of: impl Fn(&Sample) -> Item, most: u64) -> bool {
        if p.costs.len() > FEW || p.ranks > FEW {
            return false;
        }
        self.pool.clear();
        self.pool.extend((0..p.costs.len()).map(|index| sample(p, index)));
        self.pool.sort_unstable_by_key(|s| (std::cmp::Reverse(of(s)), s.index));
        let counts = (0..p.ranks).filter(|_| p.equal_counts);
        let counts = counts.map(|rank| p.home.iter().filter(|home| **home as usize == rank).count());
        self.search.begin(self.pool.iter().map(of), (p.ranks, most), counts);
        true
    }

    /// Ranks hold what was found; samples are those that the search was begun with.
    fn take_found(&mut self, p: &Problem<'_>) {
        self.held.iter_mut().for_each(Vec::clear);
        self.weigh();
        let (search, pool) = (std::mem::take(&mut self.search), std::mem::take(&mut self.pool));
        for (rank, mask) in search.found() {
            for (_, s) in pool.iter().enumerate().filter(|(i, _)| mask >> i & 1 == 1) {
                self.put(p, rank, *s);
            }
        }
        (self.search, self.pool) = (search, pool);
    }

    fn bytes_away(&self) -> u64 {
        self.held.iter().flatten().map(|s| (-s.away).max(0) as u64).sum()
    }

    fn greatest(&self) -> u64 {
        self.loads.get(self.loads.most())
    }

    /// Every sample at home: the cost for which nothing moves, and whether ranks can hold what they read.
    fn start(&mut self, p: &Problem<'_>) -> Result<(u64, bool), PlanError> {
        let n = p.costs.len();
        assert!(
            p.ranks > 0 && p.home.len() == n && p.bytes.len() == n,
            "a problem has ranks and lists alike"
        );
        total("bytes", p.bytes)?;
        if let Some(limit) = p.limit {
            total("sizes", limit.sizes)?;
        }
        if let Some(limit) = p.limit {
            let large = |i: &usize| limit.sizes[*i] > limit.most;
            if let Some(sample) = (0..n).find(large) {
                let (rank, size) = (p.home[sample] as usize, limit.sizes[sample]);
                return Err(PlanError::Sample { sample, rank, size, most: limit.most });
            }
        }
        self.plan.total = total("costs", p.costs)?;
        self.at_home(p);
        let plan = &mut self.plan;
        let mean = plan.total.div_ceil(p.ranks as u64);
        let dearest = self.held.iter().filter_map(|held| held.first()).min_by(|a, b| dearest_first(a, b));
        plan.bounded_by = dearest.filter(|s| s.cost > mean).map(|s| s.index as usize);
        plan.bound = mean.max(dearest.map_or(0, |s| s.cost));
        plan.most_at_home = self.loads.get(self.loads.most());
        let goal = plan.bound.saturating_add((plan.bound as f64 * p.slack / 1000.0) as u64);
        let fits = self.sizes.iter().all(|size| *size <= most(p));
        if self.sizes.iter().sum::<u64>() > most(p).saturating_mul(p.ranks as u64) {
            // It finds the sample for which there is no room, and soon.
            self.pack(p)?;
        }
        Ok((goal, fits))
    }

    /// Every sample where it is read.
    fn at_home(&mut self, p: &Problem<'_>) {
        self.held.resize_with(p.ranks, Vec::new);
        self.held.iter_mut().for_each(Vec::clear);
        for (index, home) in p.home.iter().enumerate() {
            let away = p.bytes[index] as i64;
            self.held[*home as usize].push(Sample { away, ..sample(p, index) });
        }
        for held in &mut self.held {
            held.sort_unstable_by(dearest_first);
        }
        self.weigh();
    }

    /// Loads and sizes of what ranks hold.
    pub(super) fn weigh(&mut self) {
        self.loads.fill(self.held.iter().map(|held| held.iter().map(|s| s.cost).sum()));
        self.sizes.clear();
        self.sizes.extend(self.held.iter().map(|held| held.iter().map(|s| s.size).sum::<u64>()));
    }

    /// All samples anew, wherever they are read: dearest first to the rank with least to do.
    fn anew(&mut self, p: &Problem<'_>) -> Result<(), PlanError> {
        self.held.resize_with(p.ranks, Vec::new);
        self.held.iter_mut().for_each(Vec::clear);
        self.weigh();
        self.pool.clear();
        self.pool.extend((0..p.costs.len()).map(|index| sample(p, index)));
        self.pool.sort_unstable_by(dearest_first);
        self.place(p, 0)
    }

    /// The same by differencing, if that takes no long time and keeps the limit.
    fn differ(&mut self, p: &Problem<'_>) -> Option<()> {
        if p.costs.len() > differ::MOST {
            return None;
        }
        self.differ.find(p.costs, p.ranks);
        self.held.resize_with(p.ranks, Vec::new);
        self.held.iter_mut().for_each(Vec::clear);
        for (rank, index) in self.differ.found() {
            let home = p.home[index as usize] as usize;
            let bytes = p.bytes[index as usize] as i64;
            let away = if home == rank { bytes } else { -bytes };
            self.held[rank].push(Sample { away, ..sample(p, index as usize) });
        }
        self.held.iter_mut().for_each(|held| held.sort_unstable_by(dearest_first));
        self.weigh();
        self.sizes.iter().all(|size| *size <= most(p)).then_some(())
    }

    /// Ranks above the goal give away what they have too much.
    fn shed(&mut self, p: &Problem<'_>, goal: u64) {
        let most = most(p);
        self.pool.clear();
        for rank in 0..p.ranks {
            let (mut load, mut size) = (self.loads.get(rank), self.sizes[rank]);
            if load <= goal && size <= most {
                continue;
            }
            let pool = &mut self.pool;
            let mut give = |s: &Sample, load: &mut u64, size: &mut u64| {
                *load -= s.cost;
                *size -= s.size;
                pool.push(*s);
            };
            self.held[rank].retain(|s| {
                // What costs nothing takes nothing off.
                let over = load > goal && s.cost > 0 && s.cost <= load - goal;
                if over {
                    give(s, &mut load, &mut size);
                }
                !over
            });
            // What is left of the surplus is less than any sample: the cheapest goes.
            while load > goal || size > most {
                let of_cost = self.held[rank].partition_point(|s| s.cost > 0 || size > most);
                let Some(at) = of_cost.checked_sub(1) else { break };
                let s = self.held[rank].remove(at);
                give(&s, &mut load, &mut size);
            }
            self.loads.set(rank, load);
            self.sizes[rank] = size;
        }
        self.pool.sort_unstable_by(dearest_first);
    }

    /// What was given away goes to those with the least to do.
    fn place(&mut self, p: &Problem<'_>, goal: u64) -> Result<(), PlanError> {
        let most = most(p);
        let pool = std::mem::take(&mut self.pool);
        let mut result = Ok(());
        for s in &pool {
            let home = p.home[s.index as usize] as usize;
            let fits = |rank: usize, sizes: &[u64]| sizes[rank] + s.size <= most;
            let rank = if self.loads.get(home) + s.cost <= goal && fits(home, &self.sizes) {
                Some(home)
            } else {
                let least = self.loads.least();
                if fits(least, &self.sizes) {
                    Some(least)
                } else {
                    // Rare: the rank with least to do of those that have room.
                    let roomy = (0..p.ranks).filter(|r| fits(*r, &self.sizes));
                    roomy.min_by_key(|r| (self.loads.get(*r), *r))
                }
            };
            let Some(rank) = rank else {
                result = Err(self.full(p, s));
                break;
            };
            self.put(p, rank, *s);
        }
        self.pool = pool;
        result
    }

    pub(super) fn full(&self, p: &Problem<'_>, s: &Sample) -> PlanError {
        let rank = (0..p.ranks).min_by_key(|r| (self.sizes[*r], *r)).unwrap_or(0);
        let held = self.sizes[rank];
        PlanError::Full { sample: s.index as usize, size: s.size, rank, held, most: most(p) }
    }

    pub(super) fn put(&mut self, p: &Problem<'_>, rank: usize, mut s: Sample) {
        let bytes = p.bytes[s.index as usize] as i64;
        s.away = if p.home[s.index as usize] as usize == rank { bytes } else { -bytes };
        let held = &mut self.held[rank];
        let at = held.partition_point(|other| dearest_first(other, &s).is_lt());
        held.insert(at, s);
        self.loads.set(rank, self.loads.get(rank) + s.cost);
        self.sizes[rank] += s.size;
    }

    pub(super) fn take(&mut self, rank: usize, at: usize) -> Sample {
        let s = self.held[rank].remove(at);
        self.loads.set(rank, self.loads.get(rank) - s.cost);
        self.sizes[rank] -= s.size;
        s
    }

    /// The rank with most to do exchanges samples with those that have little, while it exceeds the goal.
    pub(super) fn refine(&mut self, p: &Problem<'_>, goal: u64, most: u64) {
        let each = if p.equal_counts || most == u64::MAX { LOOKED_AT } else { LOOKED_AT_FULL };
        let mut to_look_at = each * p.costs.len();
        // Each exchange brings the sum of squares down, so there is an end; this one is for the time it takes.
        for _ in 0..4 * p.costs.len() {
            let from = self.loads.most();
            let load = self.loads.get(from);
            if load <= goal {
                break;
            }
            let mut best: Option<(u64, usize, Exchange)> = None;
            for asked in 1..p.ranks {
                let to = self.loads.least();
                let gap = load - self.loads.get(to).min(load);
                if gap == 0 {
                    break;
                }
                let pair = Pair {
                    from: &self.held[from],
                    to: &self.held[to],
                    gap,
                    room: (most.saturating_sub(self.sizes[from]), most.saturating_sub(self.sizes[to])),
                    alone: !p.equal_counts,
                };
                if let Some((exchange, left)) = pair.best() {
                    let after = self.loads.get(to).midpoint(load) + left;
                    if best.is_none_or(|(a, ..)| after < a) {
                        best = Some((after, to, exchange));
                    }
                    if after <= goal {
                        break;
                    }
                }
                if asked >= PARTNERS {
                    if best.is_some_and(|(after, ..)| after < load) || to_look_at == 0 {
                        break;
                    }
                    to_look_at =
                        to_look_at.saturating_sub(self.held[from].len() + self.held[to].len() + ASKING);
                }
                self.tried.push((to, self.loads.get(to)));
                self.loads.set(to, u64::MAX);
            }
            for (rank, load) in self.tried.drain(..) {
                self.loads.set(rank, load);
            }
            let Some((_, to, exchange)) = best.filter(|(after, ..)| *after < load) else { break };
            let back = exchange.back.map(|at| self.take(to, at));
            let given = self.take(from, exchange.give);
            self.put(p, to, given);
            if let Some(back) = back {
                self.put(p, from, back);
            }
        }
    }

    fn finish(&mut self, p: &Problem<'_>) {
        self.plan.most = self.loads.get(self.loads.most());
        let microbatches = p.microbatches.max(1);
        self.cut.cut(&self.held, microbatches, self.plan.most, p.slack);
        self.plan.list(&self.held, |rank| self.cut.parts(rank), microbatches);
        self.plan.most_in_turns = self.cut.most_in_turns();
        (self.plan.moved, self.plan.moved_bytes) = (0, 0);
        for ((rank, home), bytes) in self.plan.rank.iter().zip(p.home).zip(p.bytes) {
            if rank != home {
                self.plan.moved += 1;
                self.plan.moved_bytes += bytes;
            }
        }
    }
}

/// A sample that no rank has yet.
pub(super) fn sample(p: &Problem<'_>, index: usize) -> Sample {
    let size = p.limit.map_or(0, |l| l.sizes[index]);
    Sample { cost: p.costs[index], size, index: index as u32, away: 0 }
}

/// What a rank can hold.
pub(super) fn most(p: &Problem<'_>) -> u64 {
    p.limit.map_or(u64::MAX, |limit| limit.most)
}
