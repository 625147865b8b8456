//! Modulo scheduling of one batch: every engine has a reservation table, its time modulo the initiation interval (II).
//!
//! Operations are placed one by one, those with the least slack first, so that the longest cycle stands unbroken and
//! the rest fills what it leaves. After each placement the earliest and latest starts of all others are tightened
//! along the dependencies, so a choice within them never contradicts a dependency; all that can fail is that no gap
//! of an engine is long enough, and then the ii was too short.
//!
//! Where an operation has room it starts as late as possible if it works ahead (its values would only wait), and as
//! early as possible if it works behind (its operands would).

use std::collections::VecDeque;

use super::graph::{Edge, Graph};
use super::simulate::ENGINES;

/// Farther than any start.
pub(crate) const FAR: i64 = i64::MAX / 4;

/// Busy time of an engine modulo the initiation interval, sorted, without overlaps.
#[derive(Debug, Default)]
struct ReservationTable {
    busy: Vec<(i64, i64)>,
}

impl ReservationTable {
    fn add(&mut self, ii: i64, start: i64, time: i64) {
        let from = start.rem_euclid(ii);
        let to = from + time;
        self.insert(from, to.min(ii));
        if to > ii {
            self.insert(0, to - ii);
        }
    }

    fn insert(&mut self, from: i64, to: i64) {
        let at = self.busy.partition_point(|b| b.0 < from);
        let joins_left = at > 0 && self.busy[at - 1].1 == from;
        let joins_right = at < self.busy.len() && self.busy[at].0 == to;
        match (joins_left, joins_right) {
            (true, true) => {
                self.busy[at - 1].1 = self.busy[at].1;
                self.busy.remove(at);
            }
            (true, false) => self.busy[at - 1].1 = to,
            (false, true) => self.busy[at].0 = from,
            (false, false) => self.busy.insert(at, (from, to)),
        }
    }

    /// The first start at or after `from` with a gap of `time`, at most `until`.
    fn first(&self, ii: i64, from: i64, until: i64, time: i64) -> Option<i64> {
        if time > ii {
            return None;
        }
        let base = from.div_euclid(ii) * ii;
        let (mut at, end) = (from, until.min(from + ii - 1));
        let mut k = self.busy.partition_point(|b| b.1 + base <= from);
        let mut lap = base;
        while at <= end {
            if k == self.busy.len() {
                k = 0;
                lap += ii;
                if self.busy.is_empty() {
                    return Some(at);
                }
            }
            let (a, b) = self.busy[k];
            if at + time <= a + lap {
                return Some(at);
            }
            at = at.max(b + lap);
            k += 1;
        }
        None
    }

    /// The last start at or before `until` with a gap of `time`, at least `from`.
    fn last(&self, ii: i64, from: i64, until: i64, time: i64) -> Option<i64> {
        let mirror = self.mirror(ii);
        mirror.first(ii, -(until + time), -(from + time), time).map(|p| -p - time)
    }

    /// With time running backwards.
    fn mirror(&self, ii: i64) -> Self {
        Self { busy: self.busy.iter().rev().map(|(a, b)| (ii - b, ii - a)).collect() }
    }

    /// Like [`first`](Self::first), but if that leaves time unused before it, moved to the end of the gap, so that one
    /// piece of the gap is left instead of two.
    fn snug_first(&self, ii: i64, from: i64, until: i64, time: i64) -> Option<i64> {
        let at = self.first(ii, from, until, time)?;
        if self.busy.is_empty() || self.touches(ii, at) {
            return Some(at);
        }
        // The start of whatever is busy next.
        let base = at.div_euclid(ii) * ii;
        let k = self.busy.partition_point(|b| b.0 + base < at + time);
        let next = self.busy.get(k).map_or(self.busy[0].0 + base + ii, |b| b.0 + base);
        Some(if next - time <= until { next - time } else { at })
    }

    fn snug_last(&self, ii: i64, from: i64, until: i64, time: i64) -> Option<i64> {
        let mirror = self.mirror(ii);
        mirror.snug_first(ii, -(until + time), -(from + time), time).map(|p| -p - time)
    }

    /// True if something ends where this starts.
    fn touches(&self, ii: i64, at: i64) -> bool {
        let at = at.rem_euclid(ii);
        self.busy.iter().any(|b| b.1 == at || (at == 0 && b.1 == ii))
    }
}

/// What an operation takes: its engine for a while, and its queue for as long or longer.
struct Taken<'a> {
    engine: &'a ReservationTable,
    queue: &'a ReservationTable,
    time: i64,
    held: i64,
    ii: i64,
}

impl Taken<'_> {
    /// The first start at or after `from`, at most `until`.
    fn first(&self, mut from: i64, until: i64) -> Option<i64> {
        let until = until.min(from + self.ii - 1);
        loop {
            let at = self.engine.first(self.ii, from, until, self.time)?;
            from = self.queue.first(self.ii, at, until, self.held)?;
            if from == at {
                return Some(at);
            }
        }
    }

    /// The last start at or before `until`, at least `from`.
    fn last(&self, from: i64, mut until: i64) -> Option<i64> {
        let from = from.max(until - self.ii + 1);
        loop {
            let at = self.engine.last(self.ii, from, until, self.time)?;
            until = self.queue.last(self.ii, from, at, self.held)?;
            if until == at {
                return Some(at);
            }
        }
    }

    fn fits(&self, at: i64) -> bool {
        self.queue.first(self.ii, at, at, self.held).is_some()
    }

    /// Like [`first`](Self::first), without needless pieces of the engine's time.
    fn snug_first(&self, from: i64, until: i64) -> Option<i64> {
        let at = self.first(from, until)?;
        self.engine.snug_first(self.ii, at, until, self.time).filter(|snug| self.fits(*snug)).or(Some(at))
    }

    fn snug_last(&self, from: i64, until: i64) -> Option<i64> {
        let at = self.last(from, until)?;
        self.engine.snug_last(self.ii, from, at, self.time).filter(|snug| self.fits(*snug)).or(Some(at))
    }
}

/// What is to be placed.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    /// Dependencies.
    pub graph: &'a Graph,
    /// Nanoseconds of each operation.
    pub time: &'a [u64],
    /// Engine of each operation.
    pub engine: &'a [u8],
    /// Queue of each operation, counted from 0.
    pub queue: &'a [u16],
    /// Nanoseconds for which each holds up its queue after its end.
    pub hold: &'a [u64],
    /// Earliest starts without regard to engines, for operations that nothing else ties down.
    pub early: &'a [f64],
    /// Whether an operation works ahead of those that need it.
    pub ahead: &'a [bool],
    /// StartRanges below which a start is not moved for the sake of others.
    pub tight: i64,
    /// The operation that `wish` is relative to.
    pub hub: usize,
    /// Latest starts that leave a reserve before the value is needed, for what works ahead with much room.
    pub wish: &'a [i64],
}

/// Starts of all operations such that dependencies hold and engines do one thing at a time, if steps take `ii`.
/// What finds no room is placed first in the next try.
pub(crate) fn place(d: &Request<'_>, order: &[u32], ii: i64, tries: usize) -> Option<Vec<i64>> {
    let mut order = order.to_vec();
    let arcs = Arcs::new(d, ii);
    for _ in 0..tries {
        match attempt(d, &arcs, &order, ii) {
            Ok(positions) => return Some(positions),
            Err(failed) => {
                order.retain(|i| *i != failed);
                order.insert(0, failed);
            }
        }
    }
    None
}

/// The operation that finds no room is the error.
fn attempt(d: &Request<'_>, arcs: &Arcs, order: &[u32], ii: i64) -> Result<Vec<i64>, u32> {
    let mut room = StartRanges::new(arcs, d.graph.n);
    let tables =
        |n: usize| -> Vec<ReservationTable> { (0..n).map(|_| ReservationTable::default()).collect() };
    let mut engines = tables(ENGINES);
    let mut queues = tables(d.queue.iter().max().map_or(0, |q| *q as usize + 1));
    for i in order {
        let i = *i as usize;
        let (engine, queue) = (d.engine[i] as usize, d.queue[i] as usize);
        let (time, held) = (d.time[i] as i64, (d.time[i] + d.hold[i]) as i64);
        let taken = Taken { engine: &engines[engine], queue: &queues[queue], time, held, ii };
        let (from, until) = (room.low[i], room.high[i]);
        let at = match (from > -FAR, until < FAR) {
            (true, true) if until - from < d.tight => taken.first(from, until),
            (_, true) if d.ahead[i] && room.placed[d.hub] && d.wish[i] < FAR => {
                let from = from.max(until - ii + 1);
                let reserve = until.min(room.low[d.hub] + d.wish[i]).max(from);
                let early = taken.snug_last(from.max(reserve - ii + 1), reserve);
                early.or_else(|| taken.snug_last(from, until))
            }
            (true, true) if d.ahead[i] => taken.snug_last(from, until),
            (true, _) => taken.snug_first(from, until),
            (false, true) => taken.snug_last(until - ii + 1, until),
            (false, false) => {
                let from = d.early[i] as i64;
                taken.first(from, from + ii - 1)
            }
        };
        let Some(at) = at else { return Err(i as u32) };
        engines[engine].add(ii, at, time);
        queues[queue].add(ii, at, held);
        if !room.fix(i, at) {
            return Err(i as u32);
        }
    }
    Ok(room.low)
}

/// Dependencies at an initiation interval: how long after an operation's start another may start.
struct Arcs {
    /// Of each operation those that wait for it, and those that it waits for, with so many nanoseconds between.
    after: Vec<(u32, i64)>,
    before: Vec<(u32, i64)>,
    /// Where those of an operation begin in both, and end.
    ranges: Vec<[(u32, u32); 2]>,
}

impl Arcs {
    fn new(d: &Request<'_>, ii: i64) -> Self {
        let edges = d.graph.edges.len();
        let (mut after, mut before) = (Vec::with_capacity(edges), Vec::with_capacity(edges));
        let between = |e: &Edge| {
            let until = d.graph.until(d.time, e.from as usize) as i64;
            until - ii * i64::from(e.distance)
        };
        let ranges = (0..d.graph.n).map(|i| {
            let from = (after.len() as u32, before.len() as u32);
            after.extend(d.graph.after(i).map(|e| (e.to, between(e))));
            before.extend(d.graph.before(i).iter().map(|e| (e.from, between(e))));
            [(from.0, after.len() as u32), (from.1, before.len() as u32)]
        });
        let ranges = ranges.collect();
        Self { after, before, ranges }
    }

    fn after(&self, op: usize) -> &[(u32, i64)] {
        let (from, to) = self.ranges[op][0];
        &self.after[from as usize..to as usize]
    }

    fn before(&self, op: usize) -> &[(u32, i64)] {
        let (from, to) = self.ranges[op][1];
        &self.before[from as usize..to as usize]
    }
}

/// Earliest and latest starts of what is not placed yet.
struct StartRanges<'a> {
    arcs: &'a Arcs,
    low: Vec<i64>,
    high: Vec<i64>,
    placed: Vec<bool>,
    /// Operations whose bound changed and has to be carried on, each at most once.
    queue: VecDeque<u32>,
    queued: Vec<bool>,
}

impl<'a> StartRanges<'a> {
    fn new(arcs: &'a Arcs, n: usize) -> Self {
        let (low, high) = (vec![-FAR; n], vec![FAR; n]);
        Self { arcs, low, high, placed: vec![false; n], queue: VecDeque::new(), queued: vec![false; n] }
    }

    /// Places an operation and carries that to the bounds of those that are not placed; false if one has no room
    /// left, which rounding of the ii can cause.
    fn fix(&mut self, op: usize, at: i64) -> bool {
        (self.low[op], self.high[op]) = (at, at);
        self.placed[op] = true;
        self.raise(op) && self.lower(op)
    }

    fn raise(&mut self, from: usize) -> bool {
        self.queue.push_back(from as u32);
        while let Some(x) = self.queue.pop_front() {
            let x = x as usize;
            self.queued[x] = false;
            let start = self.low[x];
            for (to, between) in self.arcs.after(x) {
                let (i, least) = (*to as usize, start + between);
                if least > self.low[i] {
                    if self.placed[i] || least > self.high[i] {
                        return false;
                    }
                    self.low[i] = least;
                    if !std::mem::replace(&mut self.queued[i], true) {
                        self.queue.push_back(*to);
                    }
                }
            }
        }
        true
    }

    fn lower(&mut self, from: usize) -> bool {
        self.queue.push_back(from as u32);
        while let Some(x) = self.queue.pop_front() {
            self.queued[x as usize] = false;
            let start = self.high[x as usize];
            for (before, between) in self.arcs.before(x as usize) {
                let (i, most) = (*before as usize, start - between);
                if most < self.high[i] {
                    if self.placed[i] || most < self.low[i] {
                        return false;
                    }
                    self.high[i] = most;
                    if !std::mem::replace(&mut self.queued[i], true) {
                        self.queue.push_back(*before);
                    }
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::graph::{Edge, Why};
    use super::*;

    #[test]
    fn gaps_of_a_reservation_table() {
        let mut c = ReservationTable::default();
        assert_eq!(c.first(100, 250, 1000, 100), Some(250));
        c.add(100, 90, 20);
        c.add(100, 230, 10);
        assert_eq!(c.busy, vec![(0, 10), (30, 40), (90, 100)]);
        assert_eq!(c.first(100, 0, 1000, 20), Some(10));
        assert_eq!(c.first(100, 15, 1000, 20), Some(40));
        assert_eq!(c.first(100, 45, 139, 50), None, "the longest gap is from 40 to 90, seen from its middle");
        assert_eq!((c.snug_first(100, 45, 1000, 20), c.snug_first(100, 45, 69, 20)), (Some(70), Some(45)));
        assert_eq!((c.snug_last(100, 0, 65, 20), c.snug_last(100, 45, 65, 20)), (Some(40), Some(65)));
        assert_eq!(c.first(100, 41, 1000, 49), Some(41));
        assert_eq!(c.first(100, 80, 1000, 50), Some(140));
        assert_eq!(c.first(100, 80, 139, 50), None);
        assert_eq!(c.last(100, 0, 99, 20), Some(70));
        assert_eq!(c.last(100, -500, 35, 20), Some(10));
        assert_eq!(c.last(100, -500, 20, 50), Some(-60));
        assert_eq!(c.last(100, -59, 20, 50), None);
        c.add(100, 10, 20);
        c.add(100, 40, 50);
        assert_eq!(c.busy, vec![(0, 100)]);
        assert_eq!(c.first(100, 7, 1000, 1), None);
    }

    /// A cycle of two operations on one engine with a transfer between, and filler: the ii is the work itself.
    #[test]
    fn filler_goes_where_the_cycle_waits() {
        let edge = |from, to, distance| Edge { from, to, distance, why: Why::Data };
        let g =
            Graph::new(5, vec![edge(0, 1, 0), edge(1, 2, 0), edge(2, 0, 1), edge(3, 4, 0), edge(4, 0, 2)]);
        let early = [0.0; 5];
        let d = Request {
            graph: &g,
            time: &[30, 40, 20, 15, 25],
            engine: &[1, 3, 1, 1, 1],
            queue: &[0, 1, 0, 0, 0],
            hold: &[0; 5],
            early: &early,
            ahead: &[false, false, false, true, true],
            tight: 2,
            hub: 0,
            wish: &[FAR; 5],
        };
        let at = place(&d, &[0, 1, 2, 3, 4], 90, 1).expect("90 are enough");
        let start = |i: usize| at[i].rem_euclid(90);
        assert_eq!((at[1], at[2]), (30, 70));
        assert!((30..=70 - 15).contains(&start(3)) && (30..=70 - 25).contains(&start(4)));
        assert!(place(&d, &[0, 1, 2, 3, 4], 89, 9).is_none());
    }

    /// Two transfers of 10 that are 50 under way: in one queue a step takes 120, in two what the engine and the longest cycle take.
    #[test]
    fn a_queue_is_held_while_data_are_under_way() {
        let edge = |from, to, distance| Edge { from, to, distance, why: Why::Data };
        let g = Graph::new(3, vec![edge(0, 2, 0), edge(1, 2, 0), edge(2, 0, 2)]).lagging(vec![50, 50, 0]);
        let placed = |queue: &[u16], ii: i64| {
            let d = Request {
                graph: &g,
                time: &[10, 10, 5],
                engine: &[3, 3, 1],
                queue,
                hold: &g.lag,
                early: &[0.0; 3],
                ahead: &[false, true, false],
                tight: 2,
                hub: 0,
                wish: &[FAR; 3],
            };
            place(&d, &[0, 1, 2], ii, 9)
        };
        let at = placed(&[0, 0, 1], 120).expect("120 are enough for one queue");
        assert_eq!((at[0] - at[1]).rem_euclid(120), 60, "{at:?}");
        assert!(at[2] >= at[0].max(at[1]) + 60, "{at:?}");
        assert!(placed(&[0, 0, 1], 119).is_none());
        let at = placed(&[0, 2, 1], 60).expect("60 are enough for two");
        assert!((10..=50).contains(&(at[0] - at[1]).rem_euclid(60)), "{at:?}");
    }
}
