//! What must come before what: the dependencies of one batch's operations, within the batch and between batches.
//!
//! An edge `(x, y, d)` says that x of batch m has finished before y of batch m + d starts, for every m; d may be
//! negative (gradients are told apart by the ids of batches to come). Edges come from
//!
//! - buffers: a read waits for the writes that it sees, a write for earlier reads and writes of its columns. Buffers
//!   of another batch count too. That a buffer is free again is not here: buffers get as many copies as they need.
//! - tables: lookups and updates of classes that can hold the same row ([`fs_schedule::reuse`]);
//! - parameters and gradients, whose storage there is once;
//! - the batch: what reads it waits for its load, and loads are in order.
//!
//! Operations are numbered in the reference order of one batch, so edges with d = 0 point forwards.

use std::collections::BTreeMap;

use fs_schedule::action::{Effect, Facts, Phase, Sizes};
use fs_schedule::columns::ByColumns;
use fs_schedule::{Op, Operand, Place, Reuse, Schedule, Site};

/// What a dependency is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Why {
    /// A value in a buffer or gradient: written, then read; or read, then overwritten.
    Data,
    /// An update of rows, then a lookup that may meet them.
    FreshRows,
    /// A lookup, then the update of the same batch.
    EarlyUpdate,
    /// Two updates of rows in batch order.
    UpdateOrder,
    /// An update of parameters, then their use, or the other way round.
    Parameter,
    /// The load of a batch, then what reads it.
    Batch,
    /// The strategy waits.
    Blocking,
    /// The batch's inputs and sizes are replaced.
    InFlight,
    /// A buffer's memory is used again.
    Memory,
    /// What the host learns a batch ahead. Only planned with: nothing waits for it when the schedule runs.
    Ahead,
}

/// A dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Edge {
    /// What comes first.
    pub from: u32,
    /// What waits.
    pub to: u32,
    /// Batches between them.
    pub distance: i32,
    /// For what.
    pub why: Why,
}

/// Edges by their ends.
#[derive(Debug, Clone, Default)]
pub(crate) struct Graph {
    /// Number of operations.
    pub n: usize,
    /// All edges, sorted by `to`, then `from`, then distance.
    pub edges: Vec<Edge>,
    /// Nanoseconds of each operation from its end, when its engine is free, until what waits for it may start.
    pub lag: Vec<u64>,
    into: Vec<u32>,
    out: Vec<u32>,
    out_start: Vec<u32>,
}

impl Graph {
    /// From a list of edges; of equal ones the first is kept.
    pub(crate) fn new(n: usize, mut edges: Vec<Edge>) -> Self {
        edges.sort_unstable_by_key(|e| (e.to, e.from, e.distance, e.why));
        edges.dedup_by_key(|e| (e.to, e.from, e.distance));
        let mut into = vec![0u32; n + 1];
        let mut out_start = vec![0u32; n + 1];
        for e in &edges {
            into[e.to as usize + 1] += 1;
            out_start[e.from as usize + 1] += 1;
        }
        for i in 0..n {
            into[i + 1] += into[i];
            out_start[i + 1] += out_start[i];
        }
        let mut next = out_start.clone();
        let mut out = vec![0u32; edges.len()];
        for (k, e) in edges.iter().enumerate() {
            let at = &mut next[e.from as usize];
            out[*at as usize] = k as u32;
            *at += 1;
        }
        Self { n, edges, lag: vec![0; n], into, out, out_start }
    }

    /// Nanoseconds from the start of an operation, one of these times, until what waits for it may start.
    pub(crate) fn until(&self, time: &[u64], op: usize) -> f64 {
        (time[op] + self.lag[op]) as f64
    }

    /// Edges into an operation.
    pub(crate) fn before(&self, op: usize) -> &[Edge] {
        &self.edges[self.into[op] as usize..self.into[op + 1] as usize]
    }

    /// Edges out of an operation.
    pub(crate) fn after(&self, op: usize) -> impl Iterator<Item = &Edge> {
        self.out[self.out_start[op] as usize..self.out_start[op + 1] as usize]
            .iter()
            .map(|k| &self.edges[*k as usize])
    }

    /// With more edges.
    #[must_use]
    pub(crate) fn with(&self, more: impl IntoIterator<Item = Edge>) -> Self {
        let mut edges = self.edges.clone();
        edges.extend(more);
        Self::new(self.n, edges).lagging(self.lag.clone())
    }

    /// With what operations let others wait for beyond their ends.
    #[must_use]
    pub(crate) fn lagging(mut self, lag: Vec<u64>) -> Self {
        self.lag = lag;
        self
    }
}

/// Uses of a place that later uses may have to wait for, by their operations.
#[derive(Debug, Default)]
struct Uses {
    writes: ByColumns<u32>,
    reads: ByColumns<u32>,
    /// Writes that no earlier use of the batch comes before.
    first: Vec<u32>,
    /// Reads that no write of the batch comes before: only parameters have them.
    open: Vec<u32>,
}

impl Uses {
    fn read(&mut self, op: u32, columns: (u32, u32), edges: &mut Vec<Edge>) {
        let mut found = false;
        for (.., before) in self.writes.meeting(columns).filter(|(.., before)| **before != op) {
            found = true;
            edges.push(edge(*before, op, 0, Why::Data));
        }
        if !found {
            self.open.push(op);
        }
        self.reads.add(columns, op);
    }

    fn write(&mut self, op: u32, columns: (u32, u32), edges: &mut Vec<Edge>) {
        let known = edges.len();
        for uses in [&mut self.writes, &mut self.reads] {
            let before = uses.meeting(columns).filter(|(.., before)| **before != op);
            edges.extend(before.map(|(.., before)| edge(*before, op, 0, Why::Data)));
            uses.remove_within(columns, |before| *before != op);
        }
        if edges.len() == known {
            self.first.push(op);
        }
        self.writes.add(columns, op);
    }
}

fn edge(from: u32, to: u32, distance: i32, why: Why) -> Edge {
    Edge { from, to, distance, why }
}

/// True for actions that read the batch's keys without an operand that says so.
pub(crate) fn reads_batch(op: &Op) -> bool {
    op.reads.iter().any(|o| matches!(o.place, Place::Input(_) | Place::Lengths(_)))
        || op.action.has(Effect::Random)
}

/// The dependencies of a training program whose operations stand in reference order.
pub(crate) fn build(s: &Schedule, ops: &[&Op]) -> Graph {
    let mut edges: Vec<Edge> = Vec::new();
    places(s, ops, &mut edges);
    tables(s, ops, &mut edges);
    batches(ops, &mut edges);
    Graph::new(ops.len(), edges)
}

fn columns(s: &Schedule, o: &Operand) -> (u32, u32) {
    match o.place {
        Place::Buffer(b) => {
            o.columns.unwrap_or((0, s.train.buffers.get(b as usize).map_or(1, |b| b.columns)))
        }
        _ => (0, 1),
    }
}

fn places(s: &Schedule, ops: &[&Op], edges: &mut Vec<Edge>) {
    let mut uses: BTreeMap<Place, Uses> = BTreeMap::new();
    let mut elsewhere: Vec<(u32, Place, i32)> = Vec::new();
    let counted = |p: Place| matches!(p, Place::Buffer(_) | Place::Gradient(_) | Place::Parameter(_));
    for (i, op) in ops.iter().enumerate() {
        let i = i as u32;
        for r in op.reads.iter().filter(|r| counted(r.place)) {
            if r.batch != 0 {
                elsewhere.push((i, r.place, r.batch));
                continue;
            }
            uses.entry(r.place).or_default().read(i, columns(s, r), edges);
        }
        for w in op.writes.iter().filter(|w| counted(w.place)) {
            uses.entry(w.place).or_default().write(i, columns(s, w), edges);
        }
    }
    for (op, place, offset) in elsewhere {
        let Some(u) = uses.get(&place) else { continue };
        edges.extend(u.writes.values().map(|write| edge(*write, op, -offset, Why::Data)));
    }
    for (place, u) in &uses {
        match place {
            // The gradient of a batch is free after the last use of the batch before.
            Place::Gradient(_) => {
                for last in u.writes.values().chain(u.reads.values()) {
                    edges.extend(u.first.iter().map(|f| edge(*last, *f, 1, Why::Data)));
                }
            }
            Place::Parameter(_) => {
                for update in u.writes.values() {
                    let later = u.open.iter().chain(std::iter::once(update));
                    edges.extend(later.map(|r| edge(*update, *r, 1, Why::Parameter)));
                }
            }
            _ => {}
        }
    }
    // Uses of a parameter before its update are of that kind too.
    let updates: Vec<bool> = ops.iter().map(|o| o.action.has(Effect::WritesParameter)).collect();
    for e in edges.iter_mut().filter(|e| e.distance == 0 && updates[e.to as usize]) {
        let reads_gradient =
            ops[e.from as usize].writes.iter().any(|w| matches!(w.place, Place::Gradient(_)));
        if !reads_gradient {
            e.why = Why::Parameter;
        }
    }
}

/// How rows are told apart, kind of order, and two classes.
type Question = (Reuse, u8, Option<u32>, Option<u32>);

fn tables(s: &Schedule, ops: &[&Op], edges: &mut Vec<Edge>) {
    // Parts of a table share no columns, so each exchange stands for itself.
    let mut gathers: BTreeMap<u32, Vec<(u32, Option<u32>)>> = BTreeMap::new();
    let mut applies: BTreeMap<u32, Vec<(u32, Option<u32>)>> = BTreeMap::new();
    for (i, op) in ops.iter().enumerate() {
        let Facts { of, effects, .. } = op.action.facts();
        for exchange in of.exchanges {
            let class = of.classes.first().copied();
            if effects.contains(&Effect::ReadsTable) {
                gathers.entry(*exchange).or_default().push((i as u32, class));
            }
            if effects.contains(&Effect::WritesTable) {
                applies.entry(*exchange).or_default().push((i as u32, class));
            }
        }
    }
    let mut known: BTreeMap<Question, Option<u32>> = BTreeMap::new();
    for (exchange, updates) in &applies {
        let Some(x) = s.exchanges.get(*exchange as usize) else { continue };
        let microbatches = s.settings.microbatches.max(1);
        let reuse = x.reuse(microbatches).unwrap_or(Reuse::new(0, microbatches));
        let mut ask = |kind: u8, a: Option<u32>, b: Option<u32>| {
            *known.entry((reuse, kind, a, b)).or_insert_with(|| match kind {
                0 => reuse.apply_before_gather(a, b),
                1 => reuse.gather_before_apply(a, b).then_some(0),
                _ => reuse.apply_before_apply(a, b),
            })
        };
        let lookups = gathers.get(exchange).map(Vec::as_slice).unwrap_or_default();
        for (a, class) in updates {
            for (g, of) in lookups {
                if let Some(d) = ask(0, *class, *of) {
                    edges.push(edge(*a, *g, d as i32, Why::FreshRows));
                }
                if ask(1, *of, *class).is_some() {
                    edges.push(edge(*g, *a, 0, Why::EarlyUpdate));
                }
            }
            for (b, of) in updates {
                if let Some(d) = ask(2, *class, *of) {
                    edges.push(edge(*a, *b, d as i32, Why::UpdateOrder));
                }
            }
        }
    }
}

fn batches(ops: &[&Op], edges: &mut Vec<Edge>) {
    let Some(load) = ops.iter().position(|o| o.action.has(Effect::LoadsBatch)) else { return };
    let load = load as u32;
    let mut fed = vec![false; ops.len()];
    for e in edges.iter().filter(|e| e.distance == 0 && e.why == Why::Data) {
        fed[e.to as usize] = true;
    }
    let assigns = ops.iter().position(|o| o.action.has(Effect::AssignsBatch)).map(|i| i as u32);
    // Samples at home form microbatches once they are planned.
    let cut = ops.iter().any(|o| o.microbatch.is_some());
    let plans = ops.iter().position(|o| o.action.facts().learns.sizes == Sizes::Assigned).filter(|_| cut);
    for (i, op) in ops.iter().enumerate() {
        // Values that come to samples as assigned come to all that these have.
        let there = op.action.facts().carries().is_some_and(|(_, to)| to == Site::Assigned);
        // What nothing feeds still has the sizes of its batch.
        if i as u32 != load && (reads_batch(op) || !fed[i] || there) {
            let brings = match op.site {
                Site::Assigned => assigns,
                Site::Home if there => assigns,
                Site::Home => plans.filter(|_| op.action.facts().phase != Phase::Balance).map(|i| i as u32),
            };
            edges.push(edge(brings.unwrap_or(load), i as u32, 0, Why::Batch));
        }
    }
    edges.push(edge(load, load, 1, Why::Batch));
}
