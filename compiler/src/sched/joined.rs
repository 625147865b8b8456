//! One launch for several tables: horizontal fusion.
//!
//! Tables have operations of the same kinds, and where a table has little to do a launch takes longer than the work. The same
//! operation of several tables, ready at about the same time, is then planned as one: a *unit*, which waits for what any of its
//! operations waits for, occupies its engine for one launch and the work of all, and then lets all go on. The scheduler sees units only; in
//! the finished schedule they are operations that stand together, of which all but the first are `joined`.
//!
//! Joined are operations of compute whose work is no longer than their launch, until their work is [`MOST`] launches long: nobody
//! waits much longer for others than the launch that is spared. A unit that would make operations wait for each other is taken apart
//! again; those on a cycle of dependencies that is longer than the busiest engine's work are halved as long as that makes a
//! step's bounds less.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

use fs_schedule::{Op, Place};

use super::SchedError;
use super::bounds;
use super::costs::Time;
use super::graph::{Edge, Graph};

/// Launches that the work of a unit may take together.
const MOST: f64 = 4.0;

/// What is launched together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Units {
    /// Operations of each unit, in reference order.
    pub members: Vec<Vec<u32>>,
    /// The unit of each operation.
    pub of: Vec<u32>,
}

/// Exchanges and classes whose rows it concerns.
fn rows(op: &Op) -> impl Iterator<Item = (u32, Vec<u32>)> {
    let of = op.action.facts().of;
    of.exchanges.iter().map(move |x| (*x, of.classes.to_vec()))
}

/// The values that it takes rows from.
fn source(op: &Op) -> Option<Place> {
    op.reads.first().map(|o| o.place).filter(|p| matches!(p, Place::Buffer(_)))
}

/// Tables that it updates.
fn updated(op: &Op) -> impl Iterator<Item = Place> {
    op.writes.iter().map(|o| o.place).filter(|p| matches!(p, Place::Table(_)))
}

/// What it adds into: sums have an order.
fn summed(op: &Op) -> impl Iterator<Item = Place> {
    op.writes.iter().filter(|o| o.accumulate).map(|o| o.place)
}

/// Operations that may become a unit.
#[derive(Debug, Default)]
struct Open {
    members: Vec<u32>,
    /// Classes of rows.
    classes: Vec<u32>,
    /// Exchanges with those.
    rows: BTreeSet<(u32, Vec<u32>)>,
    /// What the operations read first.
    sources: BTreeSet<Place>,
    tables: BTreeSet<Place>,
    /// What they write.
    sums: BTreeSet<Place>,
    work: f64,
}

impl Open {
    /// Another operation of the same samples, if it may be one launch with these.
    fn join(&mut self, ops: &[Op], i: usize, work: f64) -> bool {
        let (op, first) = (&ops[i], &ops[self.members[0] as usize]);
        let of = op.action.facts().of;
        // Rows of other classes come or go at another time, but for those of gradients that are there.
        let at_once = of.classes == self.classes || source(op).is_some_and(|s| self.sources.contains(&s));
        let fits = op.action.joins(&first.action)
            && at_once
            && rows(op).all(|of| !self.rows.contains(&of))
            && updated(op).all(|t| !self.tables.contains(&t))
            && summed(op).all(|place| !self.sums.contains(&place));
        if fits {
            self.add(op, i, work);
        }
        fits
    }

    fn add(&mut self, op: &Op, i: usize, work: f64) {
        self.members.push(i as u32);
        self.rows.extend(rows(op));
        self.sources.extend(source(op));
        self.tables.extend(updated(op));
        self.sums.extend(op.writes.iter().map(|o| o.place));
        self.work += work;
    }
}

impl Units {
    /// Each operation by itself.
    pub(crate) fn alone(n: usize) -> Self {
        Self::of_lists((0..n as u32).map(|i| vec![i]).collect(), n)
    }

    fn of_lists(members: Vec<Vec<u32>>, n: usize) -> Self {
        let mut of = vec![0; n];
        for (unit, list) in members.iter().enumerate() {
            for i in list {
                of[*i as usize] = unit as u32;
            }
        }
        Self { members, of }
    }

    /// Units of operations that take so long, whatever they wait for.
    pub(crate) fn wished(ops: &[Op], times: &[Time]) -> Self {
        let mut units: Vec<Open> = Vec::new();
        // Those with room, by what must be alike.
        let mut open: HashMap<_, Vec<usize>> = HashMap::new();
        let mut all: Vec<Vec<u32>> = Vec::new();
        for (i, (op, time)) in ops.iter().zip(times).enumerate() {
            let (work, most) = (time.whole - time.launch, MOST * time.launch);
            if time.launch <= 0.0 || work > time.launch || !op.action.may_join() {
                all.push(vec![i as u32]);
                continue;
            }
            let alike = (std::mem::discriminant(&op.action), op.microbatch, op.site.is_home());
            let open = open.entry(alike).or_default();
            open.retain(|unit| units[*unit].work + work <= most);
            if open.iter().any(|unit| units[*unit].join(ops, i, work)) {
                continue;
            }
            let mut unit = Open { classes: op.action.facts().of.classes.to_vec(), ..Open::default() };
            unit.add(op, i, work);
            open.push(units.len());
            units.push(unit);
        }
        all.extend(units.into_iter().map(|unit| unit.members));
        all.sort_unstable();
        Self::of_lists(all, ops.len())
    }

    /// Whether no two operations are launched together.
    pub(crate) fn is_plain(&self) -> bool {
        self.members.len() == self.of.len()
    }

    /// Nanoseconds of each operation: all but the first of a unit are spared their launch. `slowed` are its nanoseconds if it takes
    /// so many seconds.
    pub(crate) fn times(&self, times: &[Time], slowed: impl Fn(usize, f64) -> u64) -> Vec<u64> {
        let mut all = vec![0; times.len()];
        for list in &self.members {
            for (at, i) in list.iter().enumerate() {
                let (i, Time { whole, launch, .. }) = (*i as usize, times[*i as usize]);
                all[i] = slowed(i, if at == 0 { whole } else { whole - launch });
            }
        }
        all
    }

    /// The sum over each unit.
    pub(crate) fn sums(&self, of: &[u64]) -> Vec<u64> {
        self.each(|list| list.iter().map(|i| of[*i as usize]).sum())
    }

    /// The greatest of each unit.
    pub(crate) fn greatest(&self, of: &[u64]) -> Vec<u64> {
        self.each(|list| list.iter().map(|i| of[*i as usize]).max().unwrap_or(0))
    }

    /// Something of each.
    fn each<T>(&self, one: impl Fn(&[u32]) -> T) -> Vec<T> {
        self.members.iter().map(|list| one(list)).collect()
    }

    /// Whether an operation of each unit is such.
    pub(crate) fn any(&self, is: impl Fn(usize) -> bool) -> Vec<bool> {
        self.each(|list| list.iter().any(|i| is(*i as usize)))
    }

    /// What the first operation of each has.
    pub(crate) fn firsts<T: Clone>(&self, of: &[T]) -> Vec<T> {
        self.each(|list| of[list[0] as usize].clone())
    }

    /// What a unit has, for each operation.
    pub(crate) fn spread<T: Clone>(&self, of: &[T]) -> Vec<T> {
        self.of.iter().map(|unit| of[*unit as usize].clone()).collect()
    }

    /// An edge between operations as one between their units.
    pub(crate) fn edge(&self, e: &Edge) -> Edge {
        Edge { from: self.of[e.from as usize], to: self.of[e.to as usize], ..*e }
    }

    /// What units wait for, beside themselves within a batch.
    fn graph(&self, graph: &Graph) -> Graph {
        Graph::new(self.members.len(), graph.edges.iter().map(|e| self.edge(e)).collect())
            .lagging(self.greatest(&graph.lag))
    }

    /// Those of them that some order allows, in an order in which a batch can do them, and what they wait for. Where a cycle over units
    /// is longer than `cycle`, the longest over operations, and than the busiest engine's work, its units are halved until none is; of all
    /// that come by, those of which the longer of both is the shortest. `times` are nanoseconds of operations, by units, and
    /// `busy` is the busiest engine's by those.
    pub(crate) fn possible(
        mut self,
        graph: &Graph,
        cycle: f64,
        times: impl Fn(&Self) -> Vec<u64>,
        busy: impl Fn(&[u64]) -> f64,
    ) -> Result<(Self, Graph), SchedError> {
        let mut best: Option<(f64, Self)> = None;
        loop {
            let times = times(&self);
            let busy = busy(&times);
            // Each part is a launch more, so this only grows.
            if best.as_ref().is_some_and(|(least, _)| *least <= busy) {
                break;
            }
            let (long, parts) = match bounds::rec_mii(&self.graph(graph), &self.sums(&times)) {
                Err(deadlock) => (deadlock.0, usize::MAX),
                Ok(r) => {
                    let bound = r.time.max(busy);
                    if best.as_ref().is_none_or(|(least, _)| bound < *least) {
                        best = Some((bound, self.clone()));
                    }
                    if r.time <= cycle.max(busy) {
                        break;
                    }
                    (r.cycle.iter().map(|e| e.to).collect(), 2)
                }
            };
            let long: BTreeSet<u32> = long.into_iter().collect();
            let apart = self.apart(&long, parts);
            if apart == self {
                break;
            }
            self = apart;
        }
        self = best.map_or_else(|| Self::alone(graph.n), |(_, units)| units);
        if self.is_plain() {
            return Ok((Self::alone(graph.n), graph.clone()));
        }
        let members = self.in_order(&self.graph(graph))?;
        let this = Self::of_lists(members, self.of.len());
        let of_units = this.graph(graph);
        Ok((this, of_units))
    }

    /// With some units in so many parts, or as many as they have operations.
    fn apart(&self, which: &BTreeSet<u32>, parts: usize) -> Self {
        let mut members = Vec::new();
        for (unit, list) in self.members.iter().enumerate() {
            let parts = if which.contains(&(unit as u32)) { parts.min(list.len()) } else { 1 };
            members.extend(list.chunks(list.len().div_ceil(parts)).map(<[u32]>::to_vec));
        }
        members.sort_unstable();
        Self::of_lists(members, self.of.len())
    }

    /// Units in an order in which each comes after what it waits for of its batch, as near to the reference's as that allows.
    fn in_order(&self, graph: &Graph) -> Result<Vec<Vec<u32>>, SchedError> {
        let within = |e: &&Edge| e.distance == 0;
        let mut waits: Vec<usize> =
            (0..graph.n).map(|unit| graph.before(unit).iter().filter(within).count()).collect();
        let mut ready: BinaryHeap<Reverse<(u32, usize)>> = BinaryHeap::new();
        let first = |unit: usize| Reverse((self.members[unit][0], unit));
        ready.extend((0..graph.n).filter(|unit| waits[*unit] == 0).map(first));
        let mut order = Vec::with_capacity(graph.n);
        while let Some(Reverse((_, unit))) = ready.pop() {
            order.push(self.members[unit].clone());
            for e in graph.after(unit).filter(within) {
                let to = e.to as usize;
                waits[to] -= 1;
                if waits[to] == 0 {
                    ready.push(first(to));
                }
            }
        }
        if order.len() < graph.n {
            return Err(SchedError::Defect("what one launch starts waits for itself".into()));
        }
        Ok(order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::graph::Why;

    fn edge(from: u32, to: u32) -> Edge {
        Edge { from, to, distance: 0, why: Why::Data }
    }

    #[test]
    fn who_waits_for_a_unit_waits_for_all_of_it() {
        // The second of what is launched together must be learned of last, and the third waits for the first only.
        let graph = Graph::new(3, vec![edge(0, 2)]).lagging(vec![3, 50, 7]);
        let wished = Units::of_lists(vec![vec![0, 1], vec![2]], 3);
        let (units, of_units) =
            wished.possible(&graph, f64::INFINITY, |_| vec![10; 3], |_| 0.0).expect("an order");
        assert_eq!(units.members, [vec![0, 1], vec![2]]);
        assert_eq!(of_units.lag, [50, 7]);
        let ends: Vec<_> = of_units.edges.iter().map(|e| (e.from, e.to)).collect();
        assert_eq!(ends, [(0, 1)]);
    }

    #[test]
    fn what_would_wait_for_itself_is_taken_apart() {
        // What is launched together waits for an operation that waits for its first.
        let graph = Graph::new(3, vec![edge(0, 1), edge(1, 2)]);
        let wished = || Units::of_lists(vec![vec![0, 2], vec![1]], 3);
        let (units, of_units) =
            wished().possible(&graph, f64::INFINITY, |_| vec![10; 3], |_| 0.0).expect("an order");
        assert!(units.is_plain() && of_units.edges == graph.edges);
        // As it is where it makes a cycle over batches longer than what bounds a step anyway: 40 in the place of 30.
        let around = Edge { distance: 1, ..edge(2, 0) };
        let graph = Graph::new(4, vec![edge(0, 1), edge(1, 2), around]);
        let wished = || Units::of_lists(vec![vec![0], vec![1, 3], vec![2]], 4);
        let plain = |busy: f64| {
            wished().possible(&graph, 30.0, |_| vec![10; 4], move |_| busy).expect("an order").0.is_plain()
        };
        assert!(plain(39.0) && !plain(40.0));
    }

    /// What is spared by a unit is worth more than the cycle that it makes longer, or less; or half of it is worth most.
    #[test]
    fn units_on_long_cycles_are_as_large_as_bounds_are_least() {
        // The first two of eight alike are on a cycle with the last operation, which waits 30 in all.
        let graph = Graph::new(9, vec![edge(0, 8), Edge { distance: 1, ..edge(8, 0) }]);
        let sizes = |launch: u64| {
            let wished = Units::of_lists(vec![(0..8).collect(), vec![8]], 9);
            // A launch and 2 of work each, and 18 of another engine.
            let times = move |units: &Units| {
                let mut times = vec![18; 9];
                for list in &units.members {
                    for i in list {
                        times[*i as usize] = if *i == 8 { 18 } else { 2 };
                    }
                    times[list[0] as usize] += if list[0] == 8 { 0 } else { launch };
                }
                times
            };
            let busy = |times: &[u64]| times[..8].iter().sum::<u64>() as f64;
            let (units, _) = wished.possible(&graph, 20.0 + launch as f64, times, busy).expect("an order");
            units.members.iter().map(Vec::len).collect::<Vec<_>>()
        };
        // All together: 34 + launch around and 16 + launch of work; in halves 26 + launch and 16 + 2 launches; the first of these in halves 22 +
        // launch and 16 + 3 launches; the first of these in halves 20 + launch and 16 + 4 launches.
        assert_eq!(sizes(1), [1, 1, 2, 4, 1]);
        assert_eq!(sizes(3), [2, 2, 4, 1]);
        assert_eq!(sizes(12), [4, 4, 1]);
        assert_eq!(sizes(30), [8, 1]);
    }
}
