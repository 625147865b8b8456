//! What one engine does in one period of the steady state: pieces of work, and idle times with their causes.

use fs_schedule::Op;

use super::views::{Gap, OpView, Piece, Predecessor, Reason};
use crate::sched::reasons::{duration, of_batch};

/// Below this many nanoseconds differences are rounding.
const EPSILON: f64 = 1.0;

/// An instance that has work left.
#[derive(Debug, Clone, Copy)]
struct Task {
    op: u32,
    step: i32,
    left: f64,
    begun: bool,
}

struct Sweep<'a> {
    ops: &'a [Op],
    now: f64,
    running: Option<Task>,
    /// Since when the running one runs.
    since: f64,
    waiting: Vec<Task>,
    pieces: Vec<Piece>,
}

impl Sweep<'_> {
    fn emit(&mut self, last: bool) {
        if let Some(t) = self.running.take() {
            let (start, end) = (self.since, self.now);
            self.pieces.push(Piece { op: t.op, step: t.step, start, end, first: !t.begun, last });
            if !last {
                self.waiting.push(Task { left: t.left - (end - start), begun: true, ..t });
            }
        }
    }

    /// Starts the most urgent of those that wait, the first that came among equals.
    fn next(&mut self) {
        let urgent = |i: &usize| (self.ops[self.waiting[*i].op as usize].priority, std::cmp::Reverse(*i));
        if let Some(i) = (0..self.waiting.len()).max_by_key(urgent) {
            self.running = Some(self.waiting.remove(i));
            self.since = self.now;
        }
    }

    /// Works until a time.
    fn advance(&mut self, to: f64) {
        while let Some(t) = self.running {
            let end = self.since + t.left;
            if end > to + EPSILON {
                break;
            }
            self.now = end;
            self.emit(true);
            self.next();
        }
        self.now = self.now.max(to);
    }

    fn arrive(&mut self, task: Task) {
        if let Some(r) = self.running {
            let (old, new) = (&self.ops[r.op as usize], &self.ops[task.op as usize]);
            if old.chunk.is_none() || new.priority <= old.priority {
                self.waiting.push(task);
                return;
            }
            self.emit(false);
        }
        self.running = Some(task);
        self.since = self.now;
    }
}

/// The pieces that begin in `[0, step)`, by start. `members`: the engine's operations.
pub(super) fn pieces(ops: &[Op], members: &[u32], step: f64) -> Vec<Piece> {
    let reach = members.iter().map(|i| ops[*i as usize].start + ops[*i as usize].time).max().unwrap_or(0);
    // Steps before this one of which something may still run, and one more, so that the pattern has settled.
    let back = (reach as f64 / step).floor() as i32 + 2;
    let mut arrivals: Vec<(f64, i32, u32)> = Vec::with_capacity(members.len() * (back as usize + 2));
    for k in -back..=1 {
        let at = f64::from(k) * step;
        arrivals.extend(members.iter().map(|i| (ops[*i as usize].start as f64 + at, k, *i)));
    }
    // The next period repeats this one; it is followed because its arrivals interrupt what began in this one.
    arrivals.retain(|a| a.0 < 2.0 * step);
    arrivals.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
    let first = arrivals.first().map_or(0.0, |a| a.0);
    let mut sweep =
        Sweep { ops, now: first, running: None, since: first, waiting: Vec::new(), pieces: Vec::new() };
    for (at, k, op) in arrivals {
        sweep.advance(at);
        let left = ops[op as usize].time as f64;
        sweep.arrive(Task { op, step: k, left, begun: false });
    }
    sweep.advance(f64::INFINITY);
    let mut pieces = sweep.pieces;
    pieces.retain(|p| p.start >= 0.0 && p.start < step && p.step <= 0);
    pieces.sort_by(|a, b| a.start.total_cmp(&b.start).then(a.op.cmp(&b.op)));
    pieces
}

/// Idle times between the pieces of a period, around it.
pub(super) fn gaps(ops: &[OpView], pieces: &[Piece], step: f64) -> Vec<Gap> {
    let latest = pieces.iter().map(|p| p.end).fold(f64::NEG_INFINITY, f64::max);
    if pieces.is_empty() {
        let text = "has nothing to do".to_owned();
        return vec![Gap { start: 0.0, end: step, op: None, waits_for: None, text }];
    }
    let mut free = latest - step;
    let mut gaps = Vec::new();
    for p in pieces {
        if p.start - free > EPSILON {
            let op = &ops[p.op as usize];
            let frame = f64::from(p.step) * step;
            let end = |l: &Predecessor| ops[l.op as usize].end - f64::from(l.distance) * step + frame;
            // What ended last, of what it needs: dependencies are sorted so. Its queue was not the reason.
            let cause = op.deps.iter().filter(|l| l.reason != Reason::Queue).find(|_| p.first);
            let cause = cause.filter(|l| end(l) > free + EPSILON).copied();
            let text = match cause {
                Some(l) => {
                    let steps = of_batch(l.distance as i32).replace("batch", "step");
                    format!("waits {} for {}{steps}", duration(p.start - free), ops[l.op as usize].name)
                }
                None => format!("idle for {}", duration(p.start - free)),
            };
            gaps.push(Gap { start: free, end: p.start, op: Some((p.op, p.step)), waits_for: cause, text });
        }
        free = free.max(p.end);
    }
    gaps
}

#[cfg(test)]
mod tests {
    use fs_schedule::{Action, Cost, Engine};

    use super::*;

    fn transfer(start: u64, time: u64, priority: i32, chunk: Option<u64>) -> Op {
        Op {
            name: format!("transfer {start}"),
            action: Action::AllReduce,
            reads: Vec::new(),
            writes: Vec::new(),
            engine: Engine::NicSend,
            stage: 0,
            microbatch: None,
            site: fs_schedule::Site::Home,
            deps: Vec::new(),
            joined: false,
            priority,
            chunk,
            cost: Cost::default(),
            start,
            time,
            lag: 0,
            reason: String::new(),
        }
    }

    fn swept(ops: &[Op], step: f64) -> Vec<(u32, i32, f64, f64)> {
        let members: Vec<u32> = (0..ops.len() as u32).collect();
        pieces(ops, &members, step).iter().map(|p| (p.op, p.step, p.start, p.end)).collect()
    }

    #[test]
    fn an_urgent_transfer_cuts_one_in_chunks() {
        let ops = [transfer(0, 100, 0, Some(8)), transfer(30, 10, 1, None), transfer(50, 5, 2, None)];
        let expected = [
            (0, 0, 0.0, 30.0),
            (1, 0, 30.0, 40.0),
            (0, 0, 40.0, 50.0),
            (2, 0, 50.0, 55.0),
            (0, 0, 55.0, 115.0),
        ];
        assert_eq!(swept(&ops, 200.0), expected);
        // In the next step if it lasts until then: the urgent one of that step cuts it again.
        let ops = [transfer(150, 100, 0, Some(8)), transfer(30, 10, 1, None)];
        assert_eq!(swept(&ops, 200.0), [(1, 0, 30.0, 40.0), (0, -1, 40.0, 60.0), (0, 0, 150.0, 230.0)]);
    }

    #[test]
    fn nothing_cuts_a_transfer_in_one_piece_or_of_the_same_priority() {
        for (chunk, priority) in [(None, 1), (Some(8), 0)] {
            let ops = [transfer(0, 100, 0, chunk), transfer(30, 10, priority, None)];
            assert_eq!(swept(&ops, 200.0), [(0, 0, 0.0, 100.0), (1, 0, 100.0, 110.0)]);
        }
    }
}
