//! An abstract interpreter of schedules: several ranks, random legal orders, symbolic values.
//!
//! The machine is that of docs/scheduling.md: an instance may start when its dependencies and what stands before it
//! in its queue have finished; operations take any time; ranks meet in collectives. A scheduler picks what starts and
//! finishes next, so that every interleaving can happen; it can be told to hold back some operations for as long as
//! anything else can move, which finds an order that is missing.
//!
//! Buffers are the physical cells of the schedule (slot and copy) and remember whose they are. A run fails on a race
//! (something is written while it is read or written), on reading what is not there, on results that differ from the
//! reference's (one batch after the other, unlimited storage), and on a deadlock. It knows nothing of the verifier,
//! and finds classes of reuse distance from ids.

mod folded;
mod nodes;
mod pieces;
mod relayed;
mod state;
mod used;
mod values;

use std::collections::{BTreeMap, BTreeSet};

use fs_schedule::action::{Effect, Phase, Scope, Sizes};
use fs_schedule::{Dep, Engine, Operand, Place, Schedule};

use folded::meet;
use pieces::{Data, Pieces, beside, cut, meets, width, without};
use relayed::compute;
pub use state::State;
pub use used::Workload;
use values::{Call, Wrong, word};

/// Memory that can be raced for.
type Key = (u8, u64, u64, u64);

struct Cell {
    owner: (Place, i64),
    pieces: Pieces,
}

/// Stand for all samples that a rank reads, and all that are assigned to it.
const HOME: Place = Place::Input(0);
const ASSIGNED: Place = Place::Input(1);
/// Which samples at home are of which microbatch, once that is planned.
const CUT: Place = Place::Input(2);

/// Memory of a rank.
struct Memory<'a> {
    s: &'a Schedule,
    /// Slots and copies, or a cell for every buffer of every batch.
    physical: bool,
    cells: BTreeMap<Key, Cell>,
    /// Versions of rows that were updated: table, part, row.
    rows: BTreeMap<(u32, u32, u64), u64>,
    /// Losses by batch: what the run reports.
    losses: BTreeMap<i64, Vec<u64>>,
}

/// An operation that runs.
struct Running {
    op: usize,
    batch: i64,
    reads: Vec<Option<Pieces>>,
    versions: BTreeMap<u64, u64>,
    /// Memory in use: what, which columns, of what, written.
    holds: Vec<(Key, Place, (u32, u32), bool)>,
    /// Rows in use: table, part, which, written.
    rows: Option<(u32, u32, BTreeSet<u64>, bool)>,
}

fn columns(s: &Schedule, o: &Operand) -> (u32, u32) {
    match o.place {
        Place::Buffer(b) => o.columns.unwrap_or((0, s.train.buffers[b as usize].columns)),
        _ => (0, 1),
    }
}

impl<'a> Memory<'a> {
    fn new(s: &'a Schedule, physical: bool) -> Self {
        let mut cells = BTreeMap::new();
        for n in 0..s.parameters.len() as u32 {
            let pieces = vec![((0, 1), Data::Word(u64::from(n)))];
            cells.insert((2, n.into(), 0, 0), Cell { owner: (Place::Parameter(n), 0), pieces });
        }
        Self { s, physical, cells, rows: BTreeMap::new(), losses: BTreeMap::new() }
    }

    /// The cell of a place in a batch, and whom it must belong to.
    fn key(&self, place: Place, batch: i64) -> (Key, (Place, i64)) {
        let around =
            |n: u32| if self.physical { batch.rem_euclid(i64::from(n)) as u64 } else { batch as u64 };
        match place {
            Place::Buffer(b) => {
                let x = &self.s.train.buffers[b as usize];
                let slot = if self.physical { u64::from(x.slot) } else { u64::from(b) };
                ((0, x.element as u64, slot, around(x.copies)), (place, batch))
            }
            Place::Gradient(n) => ((1, n.into(), around(1), 0), (place, batch)),
            Place::Parameter(n) | Place::Table(n) => ((2, n.into(), 0, 0), (place, 0)),
            // The batch as it is read, and as it is assigned.
            Place::Input(n) => ((3, around(self.s.train.in_flight), n.into(), 0), (place, batch)),
            Place::Lengths(_) => self.key(HOME, batch),
        }
    }

    fn read(&self, o: &Operand, batch: i64) -> Result<Pieces, Wrong> {
        let (key, owner) = self.key(o.place, batch);
        let cell = self.cells.get(&key).ok_or_else(|| format!("{o} of batch {batch} was never written"))?;
        if cell.owner != owner {
            return Err(format!(
                "{o} of batch {batch} is gone: there is {} of batch {}",
                cell.owner.0, cell.owner.1
            ));
        }
        let wanted = columns(self.s, o);
        let out = cut(&cell.pieces, wanted);
        if width(&out) != wanted.1 - wanted.0 {
            return Err(format!("{o} of batch {batch} is not all written"));
        }
        Ok(out)
    }

    /// Starts an operation: takes its operands and claims its results.
    fn begin(&mut self, work: &Workload, rank: u32, op: usize, batch: i64) -> Result<Running, Wrong> {
        let at = &self.s.train.ops[op];
        let exists = |b: i64| (0..work.batches).contains(&b);
        let mut run = Running {
            op,
            batch,
            reads: Vec::new(),
            versions: BTreeMap::new(),
            holds: Vec::new(),
            rows: None,
        };
        let loads = at.action.has(Effect::LoadsBatch);
        let assigns = at.action.has(Effect::AssignsBatch);
        let site = if at.site.is_home() { HOME } else { ASSIGNED };
        let facts = at.action.facts();
        let plans = facts.learns.sizes == Sizes::Assigned;
        let brings = matches!(facts.phase, Phase::Load | Phase::Balance);
        let parts = self.s.settings.microbatches > 1;
        let planned = parts && self.s.settings.balance.is_some() && at.site.is_home() && !brings;
        let mut cut = Data::Word(0);
        if planned && (at.microbatch.is_some() || facts.scope == Scope::Listed) {
            run.holds.push((self.key(CUT, batch).0, CUT, (0, 1), false));
            if let Some((_, data)) = self.read(&Operand::new(CUT), batch)?.into_iter().next() {
                cut = data;
            }
        }
        let mut used = BTreeSet::from([batch]);
        used.extend(at.reads.iter().map(|o| batch + i64::from(o.batch)).filter(|b| exists(*b)));
        let mut samples = Data::Word(0);
        for b in used {
            run.holds.push((self.key(site, b).0, site, (0, 1), loads));
            if !loads {
                let found = self.read(&Operand::new(site), b)?;
                if let (true, Some((_, data))) = (b == batch, found.into_iter().next()) {
                    samples = data;
                }
            }
        }
        if assigns {
            run.holds.push((self.key(ASSIGNED, batch).0, ASSIGNED, (0, 1), true));
        }
        if plans {
            run.holds.push((self.key(CUT, batch).0, CUT, (0, 1), true));
        }
        for o in &at.reads {
            let b = batch + i64::from(o.batch);
            if !exists(b) {
                run.reads.push(None);
                continue;
            }
            match o.place {
                Place::Input(_) | Place::Lengths(_) => {
                    let what = Data::Word(word(&(o.place, b, rank, at.microbatch, &samples, &cut)));
                    run.reads.push(Some(vec![((0, 1), what)]));
                    continue;
                }
                Place::Table(_) => {
                    run.reads.push(None);
                    continue;
                }
                _ => {}
            }
            run.reads.push(Some(self.read(o, b)?));
            run.holds.push((self.key(o.place, b).0, o.place, columns(self.s, o), false));
        }
        let updates = at.action.has(Effect::WritesParameter);
        if updates {
            // An update starts from what is there.
            for o in &at.writes {
                run.reads.push(Some(self.read(o, batch)?));
            }
        }
        let changes = at.action.has(Effect::WritesTable);
        if changes || at.action.has(Effect::ReadsTable) {
            let exchange = *at.action.exchanges().first().ok_or("a table without an exchange")?;
            let x = &self.s.exchanges[exchange as usize];
            let call = Call {
                s: self.s,
                op: at,
                rank,
                batch,
                work,
                reads: run.reads.clone(),
                rows: BTreeMap::new(),
            };
            let rows: BTreeSet<u64> = call.concerns()?.into_iter().collect();
            let version = |row: u64| {
                let known = self.rows.get(&(x.table, x.part, row));
                // A replica begins as its owner's row.
                let part = x.part % self.s.tables[x.table as usize].sharding.parts();
                known.copied().unwrap_or_else(|| word(&("initial", x.table, part, row)))
            };
            run.versions = rows.iter().map(|row| (*row, version(*row))).collect();
            run.rows = Some((x.table, x.part, rows, changes));
        }
        for o in at.writes.iter().filter(|o| !matches!(o.place, Place::Table(_))) {
            let (key, owner) = self.key(o.place, batch);
            let range = columns(self.s, o);
            run.holds.push((key, o.place, range, true));
            let begins = !o.accumulate && !at.action.facts().results.in_place && !updates;
            let cell = self.cells.entry(key).or_insert(Cell { owner, pieces: Vec::new() });
            if cell.owner != owner {
                if !begins {
                    return Err(format!(
                        "{o} is added to what is {} of batch {}",
                        cell.owner.0, cell.owner.1
                    ));
                }
                *cell = Cell { owner, pieces: Vec::new() };
            }
            if begins {
                cell.pieces = without(&cell.pieces, range);
            }
        }
        for (place, brings) in [(HOME, loads), (ASSIGNED, assigns), (CUT, plans)] {
            if brings {
                let (key, owner) = self.key(place, batch);
                // Of what is assigned, by what.
                let what = Data::Word(word(&run.reads));
                self.cells.insert(key, Cell { owner, pieces: vec![((0, 1), what)] });
            }
        }
        Ok(run)
    }

    fn call(&self, work: &'a Workload, rank: u32, run: &Running) -> Call<'a> {
        let op = &self.s.train.ops[run.op];
        Call {
            s: self.s,
            op,
            rank,
            batch: run.batch,
            work,
            reads: run.reads.clone(),
            rows: run.versions.clone(),
        }
    }

    /// Ends an operation: stores its results. Returns a hash of what its results hold then.
    fn end(&mut self, run: &Running, results: Vec<Data>) -> Result<u64, Wrong> {
        let op = &self.s.train.ops[run.op];
        let mut left = Vec::new();
        for (o, data) in op.writes.iter().zip(results) {
            if let (Place::Table(_), Some((table, part, ..)), Data::Rows(rows)) = (o.place, &run.rows, &data)
            {
                for (_, row, v) in rows.values() {
                    self.rows.insert((*table, *part, *row), *v);
                }
                left.push(data);
                continue;
            }
            let (key, owner) = self.key(o.place, run.batch);
            let range = columns(self.s, o);
            let cell = self.cells.get_mut(&key).filter(|c| c.owner == owner);
            let cell = cell.ok_or_else(|| format!("`{}` lost {o} while it ran", op.name))?;
            let old = cut(&cell.pieces, range);
            if o.accumulate && width(&old) != range.1 - range.0 {
                return Err(format!("`{}` adds to nothing in {o}", op.name));
            }
            // What several wrote, each its columns, may be added to as a whole. Rows that are not there are zero.
            let old = o.accumulate.then(|| beside(&old, true).into_owned());
            let data = match (old, data) {
                (None, data) => data,
                (Some(Data::Rows(mut rows)), Data::Rows(more)) => {
                    for (at, (f, r, v)) in more {
                        let sum = rows.get(&at).map_or(v, |old| word(&(old.2, v)));
                        rows.insert(at, (f, r, sum));
                    }
                    Data::Rows(rows)
                }
                (Some(old), data) => Data::Word(word(&(old, data))),
            };
            left.push(data.clone());
            cell.pieces = without(&cell.pieces, range);
            cell.pieces.push((range, data));
            cell.pieces.sort_by_key(|(r, _)| *r);
        }
        if op.action.facts().loss.is_some() {
            self.losses.entry(run.batch).or_default().push(word(&left));
        }
        Ok(word(&left))
    }

    /// Rows and parameters as they are.
    fn state(&self) -> State {
        let parameters = self.cells.iter().filter(|(k, _)| k.0 == 2);
        // Hot rows are of the part whose columns they have.
        let parts = |table: u32| self.s.tables[table as usize].sharding.parts();
        let whose = |(table, part, row): (u32, u32, u64)| (table, part % parts(table), row);
        State {
            rows: self.rows.iter().map(|(row, version)| (whose(*row), *version)).collect(),
            parameters: parameters.map(|(k, c)| (k.1, word(&c.pieces))).collect(),
            losses: self
                .losses
                .iter()
                .map(|(b, l)| (*b, l.iter().copied().collect::<BTreeSet<_>>(), l.len()))
                .collect(),
        }
    }
}

/// What the reference gives.
pub struct Reference {
    /// Hashes of results by rank, operation and batch.
    results: BTreeMap<(u32, usize, i64), u64>,
    /// The state of each rank at the end.
    pub states: Vec<State>,
}

/// Runs one batch after the other.
pub fn reference(s: &Schedule, work: &Workload) -> Result<Reference, Wrong> {
    let mut order: Vec<usize> = (0..s.train.ops.len()).collect();
    order.sort_by_key(|i| (-s.train.ops[*i].stage, *i));
    let mut this = Serial {
        s,
        work,
        memory: (0..work.ranks).map(|_| Memory::new(s, false)).collect(),
        done: BTreeSet::new(),
        results: BTreeMap::new(),
        order,
    };
    for batch in 0..work.batches {
        for op in this.order.clone() {
            this.ensure(op, batch)?;
        }
    }
    let states = this.memory.iter().map(Memory::state).collect();
    Ok(Reference { results: this.results, states })
}

struct Serial<'a> {
    s: &'a Schedule,
    work: &'a Workload,
    memory: Vec<Memory<'a>>,
    done: BTreeSet<(usize, i64)>,
    results: BTreeMap<(u32, usize, i64), u64>,
    order: Vec<usize>,
}

impl Serial<'_> {
    /// Computes an operation once, after what it reads of other batches.
    fn ensure(&mut self, op: usize, batch: i64) -> Result<(), Wrong> {
        if !(0..self.work.batches).contains(&batch) || !self.done.insert((op, batch)) {
            return Ok(());
        }
        for o in self.s.train.ops[op].reads.iter().filter(|o| o.batch != 0) {
            self.provide(o.place, batch + i64::from(o.batch))?;
        }
        let mut runs = Vec::new();
        for (rank, memory) in (0..).zip(&mut self.memory) {
            runs.push(memory.begin(self.work, rank, op, batch)?);
        }
        let calls: Vec<Call<'_>> =
            (0..).zip(&self.memory).zip(&runs).map(|((rank, m), run)| m.call(self.work, rank, run)).collect();
        let results = if self.s.train.ops[op].action.is_transfer() {
            meet(&calls)?
        } else {
            calls.iter().map(compute).collect::<Result<_, _>>()?
        };
        drop(calls);
        for ((rank, run), result) in (0..).zip(&runs).zip(results) {
            let hash = self.memory[rank as usize].end(run, result)?;
            self.results.insert((rank, op, batch), hash);
        }
        Ok(())
    }

    /// Has another batch compute a buffer, and what that needs.
    fn provide(&mut self, place: Place, batch: i64) -> Result<(), Wrong> {
        for op in self.order.clone() {
            let at = &self.s.train.ops[op];
            if at.writes.iter().any(|w| w.place == place) {
                for o in &at.reads {
                    self.provide(o.place, batch)?;
                }
                // The batch, and its samples where they are worked on.
                for first in self.order.clone() {
                    let phase = self.s.train.ops[first].action.facts().phase;
                    if matches!(phase, Phase::Load | Phase::Balance) {
                        self.ensure(first, batch)?;
                    }
                }
                self.ensure(op, batch)?;
            }
        }
        Ok(())
    }
}

/// How a random order is made.
#[derive(Debug, Clone, Default)]
pub struct Order {
    /// Fixes the order.
    pub seed: u64,
    /// Operations held back while anything else can move: on one rank, or on all.
    pub slow: BTreeSet<(Option<u32>, usize)>,
    /// The weaker reading of docs/scheduling.md: a wait for an instance whose batch does not exist is no wait.
    pub skipped_are_free: bool,
}

/// A collective: operands of the ranks that have come, results once all have.
#[derive(Default)]
struct Meeting {
    operands: BTreeMap<u32, Vec<Option<Pieces>>>,
    results: Vec<Vec<Data>>,
}

/// What a queue of a rank does: launches, one after the other, each of one operation or several.
struct Queue {
    launches: Vec<Vec<usize>>,
    step: i64,
    at: usize,
    running: Vec<Running>,
}

/// A list in a random order.
fn shuffled<T>(mut list: Vec<T>, random: u64) -> Vec<T> {
    for i in (1..list.len()).rev() {
        list.swap(i, (word(&(random, i as u64)) % (i as u64 + 1)) as usize);
    }
    list
}

/// Runs a schedule in an order, and compares with the reference. The error says what went wrong first.
pub fn run(s: &Schedule, work: &Workload, want: &Reference, order: &Order) -> Result<(), Wrong> {
    let stages = s.train.ops.iter().map(|op| i64::from(op.stage));
    let (low, high) = (stages.clone().min().unwrap_or(0), stages.max().unwrap_or(0));
    let (first, end) = (-high, work.batches - low);
    let mut by_queue: BTreeMap<(Engine, i32), Vec<Vec<usize>>> = BTreeMap::new();
    for (i, op) in s.train.ops.iter().enumerate() {
        let launches = by_queue.entry((op.engine, op.priority)).or_default();
        match launches.last_mut() {
            Some(launch) if op.joined => launch.push(i),
            _ => launches.push(vec![i]),
        }
    }
    let fresh = |launches: &Vec<Vec<usize>>| Queue {
        launches: launches.clone(),
        step: first,
        at: 0,
        running: Vec::new(),
    };
    let mut ranks: Vec<Vec<Queue>> =
        (0..work.ranks).map(|_| by_queue.values().map(fresh).collect()).collect();
    let mut memory: Vec<Memory<'_>> = (0..work.ranks).map(|_| Memory::new(s, true)).collect();
    let mut done = vec![vec![first - 1; s.train.ops.len()]; work.ranks as usize];
    let mut meetings: BTreeMap<(usize, i64), Meeting> = BTreeMap::new();
    let mut random = order.seed;
    loop {
        // What can start or finish now; held back if everything else goes first.
        let (mut moves, mut held) = (Vec::new(), Vec::new());
        let mut open = false;
        for (r, queues) in ranks.iter().enumerate() {
            for (q, queue) in queues.iter().enumerate() {
                let op = queue.launches[queue.at][0];
                let at = &s.train.ops[op];
                let can = match queue.running.first() {
                    Some(run) => {
                        let met = meetings.get(&(op, run.batch)).is_some_and(|m| !m.results.is_empty());
                        !at.action.is_transfer() || met
                    }
                    None if queue.step >= end => continue,
                    None => {
                        let exists = |d: &Dep| {
                            let step = queue.step - i64::from(d.distance);
                            (0..work.batches).contains(&(step + i64::from(s.train.ops[d.op as usize].stage)))
                        };
                        let skipped = !(0..work.batches).contains(&(queue.step + i64::from(at.stage)));
                        at.deps.iter().all(|d| {
                            let free = order.skipped_are_free && (skipped || !exists(d));
                            free || done[r][d.op as usize] >= queue.step - i64::from(d.distance)
                        })
                    }
                };
                open = true;
                let slow = order.slow.contains(&(None, op)) || order.slow.contains(&(Some(r as u32), op));
                if can {
                    if slow { held.push((r, q)) } else { moves.push((r, q)) }
                }
            }
        }
        if !open {
            break;
        }
        let choices = if moves.is_empty() { &held } else { &moves };
        if choices.is_empty() {
            return Err("deadlock".into());
        }
        random = word(&(random, 1));
        let (r, q) = choices[(random % choices.len() as u64) as usize];
        let rank = r as u32;
        let queue = &ranks[r][q];
        let launch = queue.launches[queue.at].clone();
        let op = launch[0];
        let batch = queue.step + i64::from(s.train.ops[op].stage);
        if queue.running.is_empty() && (0..work.batches).contains(&batch) {
            // What one launch starts is all under way before any of it ends.
            for op in shuffled(launch.clone(), random) {
                let named = |e: String| format!("rank {r}, `{}` of batch {batch}: {e}", s.train.ops[op].name);
                let new = memory[r].begin(work, rank, op, batch).map_err(named)?;
                for other in ranks[r].iter().flat_map(|q| &q.running) {
                    if races(&new, other) {
                        return Err(named(format!(
                            "races with `{}` of batch {}",
                            s.train.ops[other.op].name, other.batch
                        )));
                    }
                }
                ranks[r][q].running.push(new);
            }
            let named = |e: String| format!("rank {r}, `{}` of batch {batch}: {e}", s.train.ops[op].name);
            if s.train.ops[op].action.is_transfer() {
                let meeting = meetings.entry((op, batch)).or_default();
                meeting.operands.insert(rank, ranks[r][q].running[0].reads.clone());
                if meeting.operands.len() == work.ranks as usize {
                    let call = |(rank, reads): (&u32, &Vec<Option<Pieces>>)| Call {
                        s,
                        op: &s.train.ops[op],
                        rank: *rank,
                        batch,
                        work,
                        reads: reads.clone(),
                        rows: BTreeMap::new(),
                    };
                    let calls: Vec<Call<'_>> = meeting.operands.iter().map(call).collect();
                    meeting.results = meet(&calls).map_err(named)?;
                }
            }
            continue;
        }
        let running = std::mem::take(&mut ranks[r][q].running);
        for run in shuffled(running, random) {
            let op = run.op;
            let named = |e: String| format!("rank {r}, `{}` of batch {batch}: {e}", s.train.ops[op].name);
            let results = match meetings.get_mut(&(op, batch)) {
                Some(meeting) => std::mem::take(&mut meeting.results[r]),
                None => compute(&memory[r].call(work, rank, &run)).map_err(named)?,
            };
            let hash = memory[r].end(&run, results).map_err(named)?;
            if want.results.get(&(rank, op, batch)) != Some(&hash) {
                return Err(named("gives something else than the reference".into()));
            }
        }
        for op in launch {
            done[r][op] = ranks[r][q].step;
        }
        let queue = &mut ranks[r][q];
        queue.at += 1;
        if queue.at == queue.launches.len() {
            (queue.at, queue.step) = (0, queue.step + 1);
        }
    }
    for (r, (m, want)) in memory.iter().zip(&want.states).enumerate() {
        if m.state() != *want {
            return Err(format!("rank {r} ends with another state than the reference"));
        }
    }
    Ok(())
}

fn races(a: &Running, b: &Running) -> bool {
    let memory = a.holds.iter().any(|(key, place, range, writes)| {
        b.holds.iter().any(|(k, p, r, w)| {
            // Two buffers of one slot overlap whatever their columns.
            k == key && (*writes || *w) && (p != place || meets(*r, *range))
        })
    });
    let rows = match (&a.rows, &b.rows) {
        (Some((t, p, rows, writes)), Some((u, q, others, also))) => {
            (t, p) == (u, q) && (*writes || *also) && !rows.is_disjoint(others)
        }
        _ => false,
    };
    memory || rows
}
