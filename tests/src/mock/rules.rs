//! What must have ended before an operation may start, by what operations touch, whatever the schedule says.
//!
//! A need of Y is an operation X and a number of batches d: X of batch m - d must have ended when Y of batch m starts
//! (if there is such a batch). Batches go in order, so one number per operation, the batches that it has ended, answers
//! every question. Storage that buffers share, or that batches use in turn, is followed while the program runs instead:
//! [`Rules::users`] says who must be through with what a vector holds before something else is written there.

use std::collections::BTreeMap;

use fs_schedule::action::{Effect, Sizes};
use fs_schedule::{Action, Extent, Op, Operand, Place, Program, Schedule, Symbol};

/// Something that must have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Need {
    /// The operation.
    pub op: usize,
    /// Of so many batches before.
    pub batches: i64,
    /// Why.
    pub why: &'static str,
}

/// The needs of a program's operations.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// Per operation.
    pub needs: Vec<Vec<Need>>,
    /// Per operation: operations that learn how many rows an operand has, of which one must have ended, of so many
    /// batches before.
    pub sizes: Vec<Vec<(Vec<usize>, i64)>>,
    /// Per buffer: the operations that use it, with the batch of the operand relative to theirs.
    pub users: Vec<Vec<(usize, i64)>>,
}

/// A use of something: read, written, and which columns.
#[derive(Debug, Clone, Copy)]
struct Use {
    op: usize,
    columns: Option<(u32, u32)>,
    batch: i64,
    reads: bool,
    writes: bool,
}

impl Use {
    fn meets(&self, other: &Self) -> bool {
        match (self.columns, other.columns) {
            (Some(a), Some(b)) => a.0 < b.1 && b.0 < a.1,
            _ => true,
        }
    }
}

/// Whether an operation needs what is in a written operand.
fn keeps(op: &Op, operand: &Operand) -> bool {
    operand.accumulate || (op.action.facts().results.in_place && matches!(operand.place, Place::Gradient(_)))
}

impl Rules {
    /// Of a schedule's program.
    pub fn new(s: &Schedule, p: &Program) -> Self {
        let mut rules = Self {
            needs: vec![Vec::new(); p.ops.len()],
            sizes: vec![Vec::new(); p.ops.len()],
            users: vec![Vec::new(); p.buffers.len()],
        };
        let mut uses: BTreeMap<Place, Vec<Use>> = BTreeMap::new();
        for (i, op) in p.ops.iter().enumerate() {
            for o in &op.reads {
                let use_ =
                    Use { op: i, columns: o.columns, batch: i64::from(o.batch), reads: true, writes: false };
                uses.entry(o.place).or_default().push(use_);
            }
            for o in &op.writes {
                let use_ = Use { op: i, columns: o.columns, batch: 0, reads: keeps(op, o), writes: true };
                uses.entry(o.place).or_default().push(use_);
            }
        }
        for (place, uses) in &uses {
            match place {
                Place::Buffer(b) => {
                    rules.in_one_batch(p, uses);
                    rules.users[*b as usize] = uses.iter().map(|u| (u.op, u.batch)).collect();
                }
                Place::Gradient(_) => {
                    rules.in_one_batch(p, uses);
                    rules.between_batches(uses);
                }
                Place::Parameter(_) => rules.parameter(uses),
                Place::Table(_) | Place::Input(_) | Place::Lengths(_) => {}
            }
        }
        rules.tables(s, p);
        rules.sizes(p);
        if let Some(load) = p.ops.iter().position(|op| op.action == Action::LoadBatch) {
            (0..p.ops.len()).for_each(|y| rules.need(y, load, 0, "its batch"));
        }
        for needs in &mut rules.needs {
            needs.sort_unstable();
            needs.dedup_by_key(|n| (n.op, n.batches));
        }
        rules
    }

    fn need(&mut self, y: usize, x: usize, batches: i64, why: &'static str) {
        if x != y || batches > 0 {
            self.needs[y].push(Need { op: x, batches, why });
        }
    }

    /// In the order of one batch: reads after the writes before them, writes after the uses before them.
    fn in_one_batch(&mut self, p: &Program, uses: &[Use]) {
        let rank = |op: usize| (-p.ops[op].stage, op);
        for y in uses {
            for x in uses.iter().filter(|x| x.op != y.op && x.meets(y)) {
                if y.batch != 0 {
                    if x.writes {
                        self.need(y.op, x.op, -y.batch, "what another batch holds");
                    }
                } else if x.batch == 0 && rank(x.op) < rank(y.op) {
                    if x.writes && y.reads {
                        self.need(y.op, x.op, 0, "what it reads");
                    } else if y.writes {
                        self.need(y.op, x.op, 0, "a use of what it writes");
                    }
                }
            }
        }
    }

    /// Of what there is one of for all batches: overwritten only when all of the batch before are through.
    fn between_batches(&mut self, uses: &[Use]) {
        for y in uses.iter().filter(|y| y.writes && !y.reads) {
            for x in uses {
                self.need(y.op, x.op, 1, "a use of the batch before");
            }
        }
    }

    fn parameter(&mut self, uses: &[Use]) {
        for update in uses.iter().filter(|u| u.writes) {
            for reader in uses.iter().filter(|u| !u.writes) {
                self.need(reader.op, update.op, 1, "the update of the batch before");
                self.need(update.op, reader.op, 0, "a use of the parameter");
            }
            self.need(update.op, update.op, 1, "the update of the batch before");
        }
    }

    fn tables(&mut self, s: &Schedule, p: &Program) {
        let reuse = |e: u32| s.exchanges[e as usize].reuse(s.settings.microbatches);
        for (y, later) in p.ops.iter().enumerate() {
            for (x, earlier) in p.ops.iter().enumerate() {
                match (&earlier.action, &later.action) {
                    (Action::Apply { exchange: e, class: a }, Action::Gather { exchange: f, class: b })
                        if e == f =>
                    {
                        let d = reuse(*e).map_or(Some(1), |r| r.apply_before_gather(*a, *b));
                        if let Some(d) = d {
                            self.need(y, x, i64::from(d), "the update of rows that it looks up");
                        }
                    }
                    (Action::Gather { exchange: e, class: a }, Action::Apply { exchange: f, class: b })
                        if e == f && reuse(*e).is_none_or(|r| r.gather_before_apply(*a, *b)) =>
                    {
                        self.need(y, x, 0, "the lookup of rows that it updates");
                    }
                    (Action::Apply { exchange: e, class: a }, Action::Apply { exchange: f, class: b })
                        if e == f =>
                    {
                        let d = reuse(*e).map_or(Some(1), |r| r.apply_before_apply(*a, *b));
                        if let Some(d) = d {
                            self.need(y, x, i64::from(d), "the update of rows that it updates again");
                        }
                    }
                    (first, second)
                        if first.has(Effect::WritesUses)
                            && second.has(Effect::ReadsUses)
                            && second.exchanges().iter().any(|e| first.exchanges().contains(e)) =>
                    {
                        self.need(y, x, 0, "the last uses of rows");
                    }
                    _ => {}
                }
            }
        }
    }

    /// How many rows a buffer has must be known to whoever uses it.
    fn sizes(&mut self, p: &Program) {
        let symbol = |o: &Operand| match o.place {
            Place::Buffer(b) => match p.buffers[b as usize].rows {
                Extent::Symbol(symbol) => Some(symbol),
                Extent::Fixed(_) => None,
            },
            _ => None,
        };
        let mut learnt: BTreeMap<Symbol, Vec<usize>> = BTreeMap::new();
        for (i, op) in p.ops.iter().enumerate() {
            let kind = op.action.facts().learns.sizes;
            for symbol in op.writes.iter().filter_map(symbol) {
                let is = match symbol {
                    Symbol::Sent(_) => kind == Sizes::Sent,
                    Symbol::Received(_) => kind == Sizes::Received,
                    Symbol::Asked(_) => kind == Sizes::Asked,
                    Symbol::SentClass(..) | Symbol::ReceivedClass(..) => kind == Sizes::Classes,
                    Symbol::Ranks | Symbol::Samples | Symbol::Tokens(_) | Symbol::Squares(_) => false,
                };
                if is {
                    learnt.entry(symbol).or_default().push(i);
                }
            }
        }
        for (y, op) in p.ops.iter().enumerate() {
            for o in op.reads.iter().chain(&op.writes) {
                // Parts of a column-wise table have their entries in common: each learns how many there are.
                if let Some(learners) = symbol(o).and_then(|s| learnt.get(&s)).filter(|l| !l.contains(&y)) {
                    self.sizes[y].push((learners.clone(), -i64::from(o.batch)));
                }
            }
        }
    }
}
