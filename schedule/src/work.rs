//! How much an action does: arithmetic, memory traffic, bytes on the wire, as polynomials in the sizes that its
//! operands' shapes name. The only place that says so: the compiler's cost model, the costs in schedule.json, exported
//! traces and the profiler's points all ask here.
//!
//! *Arithmetic* counts additions and multiplications, a function such as an exponential as a few.
//!
//! *Memory traffic* is what an operation reads and writes in device memory. Most pass once over what they are given.
//! Where operands are only partly touched, or more than once, this counts what is touched:
//!
//! - `gather` and `split` read only the rows that they pick, not the matrix that they pick from;
//! - an adding `merge` reads and writes only the rows that it brings;
//! - `expand` reads a row for each that it writes: between two uses of a row others have passed;
//! - updates read and write values *and* optimizer states: as many states per value as the optimizer keeps (a state per
//!   row counts as none);
//! - with microbatches, `unique` lists each microbatch's ids, which together are one batch.
//!
//! *Bytes on the wire* are those of a round with destinations spread evenly, a rank's own part included: only who knows
//! the number of ranks, the owners and the links can say what of it stays where it is. Numbers of entries travel too,
//! but a few bytes per rank are left out.

use std::collections::BTreeSet;

use crate::action::{Action, At, Flops, Memory, Operands, Payload, Peers};
use crate::model::{Cost, InputKind, RankLimit, Table, WirePrecision};
use crate::node::Nodes;
use crate::op::Op;
use crate::operand::{Element, Extent, Operand, Place};
use crate::program::{Program, Schedule};
use crate::ranking::Rounds;
use crate::signature::OperandType;
use crate::size::{Poly, Symbol};

/// What a transfer moves for one exchange, or one gradient of a sum over ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Section {
    /// The exchange, if it is of one.
    pub exchange: Option<u32>,
    /// Bytes of an entry.
    pub entry: f64,
    /// Entries that a rank sends, its own included.
    pub sent: Extent,
    /// Entries that it receives.
    pub received: Extent,
}

/// Bytes on the wire of one round.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Wire {
    /// What leaves a rank; where everyone gets everything, what arrives.
    pub sent: Poly,
    /// What arrives.
    pub received: Poly,
}

/// What memory traffic depends on beside the operands' shapes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Surroundings<'a> {
    /// Which results are added into.
    pub adds: &'a [bool],
    /// Microbatches that the operands are listed for.
    pub parts: u32,
    /// Optimizer states per value of the table or parameters that it updates.
    pub states: f64,
}

fn sum<'s>(shapes: impl IntoIterator<Item = &'s OperandType>) -> Poly {
    shapes.into_iter().map(OperandType::bytes).sum()
}

/// Bytes of an f32.
const REAL: f64 = 4.0;

/// What an operand's numbers are; tables are f32.
fn element(x: &OperandType) -> Element {
    match x {
        OperandType::Matrix { element, .. } => *element,
        _ => Element::Real,
    }
}

impl Action {
    /// Floating-point operations.
    pub(crate) fn flops(&self, o: &Operands<'_>) -> Poly {
        let at = |at: At| match at {
            At::Read(n) => o.reads.get(n),
            At::Written(n) => o.writes.get(n),
        };
        let elements = |a: At| at(a).map_or_else(Poly::zero, OperandType::elements);
        match self.facts().flops {
            Flops::None => Poly::zero(),
            Flops::Each(c, a) => elements(a).times(c),
            Flops::Product(c, a, b) => {
                elements(a).times(c * f64::from(at(b).map_or(0, OperandType::columns)))
            }
            Flops::Pairs(c) => match o.reads.first() {
                Some(OperandType::Matrix { rows: Extent::Symbol(Symbol::Tokens(g)), columns, .. }) => {
                    Poly::term(c * f64::from(*columns), &[Symbol::Squares(*g)])
                }
                _ => Poly::zero(),
            },
            Flops::Crossed => {
                let n = o.reads.len() as f64;
                elements(At::Read(0)).times(n * (n - 1.0))
            }
        }
    }

    /// The sizes among its results' that are known only when it has run.
    pub fn learned(&self, writes: &[OperandType]) -> Vec<Symbol> {
        let sizes = self.facts().learns.sizes;
        let symbol = |shape: &OperandType| match shape.rows() {
            Extent::Symbol(symbol) => Some(symbol),
            Extent::Fixed(_) => None,
        };
        let mut learned: Vec<Symbol> = writes.iter().filter_map(symbol).filter(|s| sizes.holds(*s)).collect();
        learned.sort_unstable();
        learned.dedup();
        learned
    }

    /// Bytes read and written in device memory.
    pub(crate) fn memory(&self, o: &Operands<'_>, around: Surroundings<'_>) -> Poly {
        let Operands { reads, writes } = *o;
        let adds = |n: usize| around.adds.get(n).copied().unwrap_or(false);
        let once = || {
            let again = writes.iter().enumerate().filter(|(n, _)| adds(*n)).map(|(_, w)| w);
            sum(reads.iter().chain(writes).chain(again))
        };
        let of = |shape: Option<&OperandType>| shape.map_or_else(Poly::zero, OperandType::bytes);
        // As many numbers of another kind.
        let as_if = |shape: Option<&OperandType>, of: Element| {
            shape.map_or_else(Poly::zero, |s| s.rows().poly().times(of.row_bytes(s.columns()) as f64))
        };
        // A position in a list for each row.
        let listed = |rows: Option<&OperandType>, lists: usize| {
            let rows = rows.map_or_else(Poly::zero, |r| r.rows().poly());
            rows.times(lists as f64 * Element::Index.row_bytes(1) as f64)
        };
        match self.facts().memory {
            Memory::Placed if adds(0) => {
                let [rows, positions] = [0, 1].map(|n| sum(reads.iter().skip(n).step_by(2)));
                // What rows are put among is f32, however they travel.
                let placed = reads.iter().step_by(2).map(|r| as_if(Some(r), Element::Real)).sum::<Poly>();
                rows.plus(&placed).plus(&positions)
            }
            Memory::Once | Memory::Placed => once(),
            Memory::Listed => {
                let listed = self.facts().listed(reads.len());
                let places = !self.facts().asks_for_others();
                let of_parts = |w: &&OperandType| {
                    places && matches!(w, OperandType::Matrix { element: Element::Index, .. })
                };
                let (before, lists) = reads.split_at(listed.start);
                let parts = sum(lists.iter().chain(writes.iter().filter(of_parts)));
                let whole = sum(before.iter().chain(writes.iter().filter(|w| !of_parts(w))));
                whole.plus(&parts.times(1.0 / f64::from(around.parts.max(1))))
            }
            // Lists of rows and positions stand behind what is picked from.
            Memory::Picked => {
                let lists = reads.len().saturating_sub(1);
                let picked = as_if(writes.first(), reads.first().map_or(Element::Real, element));
                of(writes.first()).plus(&picked).plus(&listed(writes.first(), lists))
            }
            Memory::Repeated => of(writes.first()).times(2.0).plus(&sum(reads.iter().skip(1))),
            Memory::UpdatedRows => {
                // Rows, positions?, counts, gradients.
                let [lists @ .., counts, gradients] = reads else { return Poly::zero() };
                // Tables and states are f32, however gradients travel.
                let rows = as_if(Some(gradients), Element::Real).times(2.0 * (1.0 + around.states));
                gradients
                    .bytes()
                    .plus(&rows)
                    .plus(&counts.bytes())
                    .plus(&listed(Some(gradients), lists.len()))
            }
            Memory::UpdatedParameters => sum(reads).plus(&sum(writes).times(2.0 * (1.0 + around.states))),
        }
    }

    /// What a transfer moves in each of its rounds, in the order of its exchanges (gradients, which travel as `precision` says); nothing
    /// for other actions, nor for the ranking of items, whose rounds differ.
    pub fn sections(&self, o: &Operands<'_>, precision: WirePrecision) -> Vec<Section> {
        let facts = self.facts();
        let Some(transfer) = facts.transfer else { return Vec::new() };
        let exchanges = facts.of.exchanges;
        let each = |list: &[OperandType], n: usize| {
            let size = list.len() / exchanges.len().max(1);
            list.get(n * size..(n + 1) * size).map(<[OperandType]>::to_vec).unwrap_or_default()
        };
        let of_exchanges = |entry: &dyn Fn(&[OperandType]) -> f64| -> Vec<Section> {
            let section = |(n, exchange): (usize, &u32)| {
                let (reads, writes) = (each(o.reads, n), each(o.writes, n));
                let rows = |list: &[OperandType]| list.first().map_or(Extent::Fixed(0), OperandType::rows);
                Section {
                    exchange: Some(*exchange),
                    entry: entry(&reads),
                    sent: rows(&reads),
                    received: rows(&writes),
                }
            };
            exchanges.iter().enumerate().map(section).collect()
        };
        let real = REAL;
        match transfer.payload {
            // Ids travel as rows of the owner's shard; windows of use are two bytes.
            // For whom they are asked is another number.
            Payload::Ids | Payload::Asked => of_exchanges(&|reads| {
                let uses = reads.iter().find_map(|r| match r {
                    OperandType::Matrix { element: Element::Byte, columns, .. } => Some(*columns),
                    _ => None,
                });
                let numbers = if transfer.payload == Payload::Asked { 2 } else { 1 };
                (Element::Index.row_bytes(numbers) + Element::Byte.row_bytes(uses.unwrap_or(0))) as f64
            }),
            Payload::Classes => of_exchanges(&|_| Element::Byte.row_bytes(1) as f64),
            Payload::Rows | Payload::Gradients => {
                of_exchanges(&|reads| reads.first().map_or(0.0, |r| element(r).row_bytes(r.columns()) as f64))
            }
            Payload::Sums => {
                let section = |g: &OperandType| Section {
                    exchange: None,
                    entry: precision.dense.row_bytes(g.columns()) as f64,
                    sent: g.rows(),
                    received: g.rows(),
                };
                o.reads.iter().map(section).collect()
            }
            Payload::Lengths => {
                let (groups, received) =
                    o.writes.first().map_or((0, Extent::Fixed(0)), |w| (w.columns(), w.rows()));
                let entry = Element::Index.row_bytes(groups) as f64;
                vec![Section { exchange: None, entry, sent: Extent::Symbol(Symbol::Samples), received }]
            }
            // Ids as rows of the table, features and labels as reals: four bytes each.
            Payload::Samples => {
                let moved = if let Self::Dispatch { moved } = self { *moved } else { 1.0 };
                let section = |input: &OperandType| {
                    let (rows, entry) = (input.rows(), real * f64::from(input.columns()) * moved);
                    Section { exchange: None, entry, sent: rows, received: rows }
                };
                o.reads.iter().skip(1).map(section).collect()
            }
            Payload::Values => {
                let moved = match self {
                    Self::DispatchRows { moved } | Self::Combine { moved } => *moved,
                    _ => 1.0,
                };
                let section = |x: &OperandType| {
                    let (rows, entry) = (x.rows(), real * f64::from(x.columns()) * moved);
                    Section { exchange: None, entry, sent: rows, received: rows }
                };
                o.reads.iter().skip(1).map(section).collect()
            }
            // No two of its rounds are alike.
            Payload::Ranks => Vec::new(),
        }
    }

    /// Bytes on the wire in each round; none for what is not a transfer, nor for the ranking of items.
    pub(crate) fn wire(&self, o: &Operands<'_>, precision: WirePrecision) -> Wire {
        let sections = self.sections(o, precision);
        let bytes = |of: fn(&Section) -> Extent| sections.iter().map(|s| of(s).poly().times(s.entry)).sum();
        let (sent, received): (Poly, Poly) = (bytes(|s| s.sent), bytes(|s| s.received));
        match self.facts().transfer.map(|t| t.peers) {
            Some(Peers::Everyone) => Wire { sent: received.clone(), received },
            Some(
                Peers::ToOwners | Peers::FromOwners | Peers::ToAssigned | Peers::FromAssigned | Peers::Reduce,
            ) => Wire { sent, received },
            None => Wire::default(),
        }
    }
}

/// Bytes that a sample takes on its way between ranks, or what it takes up of a limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Travel {
    /// However long it is.
    pub constant: u64,
    /// Of each token of a length group.
    pub tokens: Vec<u64>,
}

impl Travel {
    /// Of a sample with so many ids in each length group.
    pub fn bytes(&self, lengths: &[u32]) -> u64 {
        let tokens = self.tokens.iter().zip(lengths).map(|(each, n)| each * u64::from(*n));
        self.constant + tokens.sum::<u64>()
    }
}

impl Schedule {
    /// The table whose ids an input holds.
    pub fn input_table(&self, input: usize) -> Option<&Table> {
        let table = match self.inputs[input].kind {
            InputKind::Ids { table, .. } => table,
            InputKind::Next { of } => match self.inputs[of as usize].kind {
                InputKind::Ids { table, .. } => table,
                _ => return None,
            },
            InputKind::Dense { .. } | InputKind::SampleLabel | InputKind::TokenLabel { .. } => return None,
        };
        self.tables.get(table as usize)
    }

    /// Numbers of 32 bits that a value of an input takes on its way between ranks: two for ids of tables with more rows than
    /// one can tell apart.
    pub fn input_words(&self, input: usize) -> usize {
        if self.input_table(input).is_some_and(|t| t.rows > 1 << 32) { 2 } else { 1 }
    }

    /// What a sample takes along when it moves, by what travels with it in a step: its inputs, and what is made of
    /// rows with its gradients. A schedule that moves none says what its inputs would take.
    pub fn travel(&self) -> Travel {
        let mut travel = Travel { constant: 0, tokens: vec![0; self.lengths.len()] };
        let mut samples = false;
        for op in &self.train.ops {
            match op.action.facts().transfer.map(|t| t.payload) {
                Some(Payload::Samples) => {
                    samples = true;
                    op.reads.iter().for_each(|o| self.carry(&self.train, o, &mut travel));
                }
                Some(Payload::Values) if op.microbatch.unwrap_or(0) == 0 => {
                    op.reads.iter().skip(1).for_each(|o| self.carry(&self.train, o, &mut travel));
                }
                _ => {}
            }
        }
        if !samples {
            let inputs = (0..self.inputs.len() as u32).map(|i| Operand::new(Place::Input(i)));
            inputs.for_each(|o| self.carry(&self.train, &o, &mut travel));
        }
        travel
    }

    /// Adds four bytes for every number of an operand that is of samples or tokens.
    fn carry(&self, p: &Program, o: &Operand, travel: &mut Travel) {
        let words = match o.place {
            Place::Input(i) => self.input_words(i as usize),
            _ => 1,
        };
        let Some(shape) = self.shape(p, o) else { return };
        let bytes = 4 * words as u64 * u64::from(shape.columns());
        match shape.rows() {
            Extent::Symbol(Symbol::Samples) => travel.constant += bytes,
            Extent::Symbol(Symbol::Tokens(group)) => {
                if let Some(each) = travel.tokens.get_mut(group as usize) {
                    *each += bytes;
                }
            }
            _ => {}
        }
    }

    /// Bytes that all inputs of a sample take on their way between ranks.
    fn sample_bytes(&self) -> Travel {
        let mut bytes = Travel { constant: 0, tokens: vec![0; self.lengths.len()] };
        for (i, input) in self.inputs.iter().enumerate() {
            let each = 4 * self.input_words(i) as u64;
            let of = match input.kind {
                InputKind::Next { of } => match self.inputs[of as usize].kind {
                    InputKind::Ids { lengths, .. } => Some(lengths),
                    _ => None,
                },
                InputKind::Ids { lengths, .. } | InputKind::TokenLabel { lengths } => Some(lengths),
                InputKind::Dense { width } => {
                    bytes.constant += each * u64::from(width);
                    None
                }
                InputKind::SampleLabel => {
                    bytes.constant += each;
                    None
                }
            };
            if let Some(tokens) = of.and_then(|lengths| bytes.tokens.get_mut(lengths as usize)) {
                *tokens += each;
            }
        }
        bytes
    }

    /// What a sample takes up of a limit, in its unit.
    pub fn sample_size(&self, limit: RankLimit) -> Travel {
        match limit {
            RankLimit::Tokens(_) => Travel { constant: 0, tokens: vec![1; self.lengths.len()] },
            RankLimit::Bytes(_) => self.sample_bytes(),
        }
    }

    /// The shape of an operand of a program; `None` if it names what does not exist.
    pub(crate) fn shape(&self, p: &Program, o: &Operand) -> Option<OperandType> {
        Some(match o.place {
            Place::Buffer(n) => {
                let b = p.buffers.get(n as usize)?;
                let columns = o.columns.map_or(Some(b.columns), |(a, z)| z.checked_sub(a))?;
                OperandType::Matrix { element: b.element, rows: b.rows, columns }
            }
            Place::Parameter(n) => {
                let p = self.parameters.get(n as usize)?;
                OperandType::Parameter { rows: p.rows, columns: p.columns }
            }
            Place::Gradient(n) => {
                let p = self.parameters.get(n as usize)?;
                OperandType::Gradient { rows: p.rows, columns: p.columns }
            }
            Place::Table(n) => OperandType::Table { table: n, dim: self.tables.get(n as usize)?.dim },
            Place::Lengths(n) => OperandType::Offsets { lengths: n },
            Place::Input(n) => self.input_shape(n)?,
        })
    }

    fn input_shape(&self, input: u32) -> Option<OperandType> {
        let mut kind = self.inputs.get(input as usize)?.kind;
        // What follows a sequence is shaped as it is; more steps than inputs would go round in a circle.
        for _ in 0..=self.inputs.len() {
            return Some(match kind {
                InputKind::Ids { table, lengths } => OperandType::Ids { table, lengths },
                InputKind::Dense { width } => OperandType::Dense { width },
                InputKind::SampleLabel => OperandType::Labels { rows: Extent::Symbol(Symbol::Samples) },
                InputKind::TokenLabel { lengths } => {
                    OperandType::Labels { rows: Extent::Symbol(Symbol::Tokens(lengths)) }
                }
                InputKind::Next { of } => {
                    kind = self.inputs.get(of as usize)?.kind;
                    continue;
                }
            });
        }
        None
    }

    /// The shapes of an operation's operands and results; what does not exist is left out.
    pub fn shapes(&self, p: &Program, op: &Op) -> (Vec<OperandType>, Vec<OperandType>) {
        let list = |operands: &[Operand]| operands.iter().filter_map(|o| self.shape(p, o)).collect();
        (list(&op.reads), list(&op.writes))
    }

    /// Expected work of an operation of one of its programs.
    pub fn cost(&self, p: &Program, op: &Op) -> Cost {
        let (reads, writes) = self.shapes(p, op);
        let o = Operands { reads: &reads, writes: &writes };
        let adds: Vec<bool> = op.writes.iter().map(|w| w.accumulate).collect();
        let part = |o: &Operand| match o.place {
            Place::Buffer(b) => p.buffers.get(b as usize)?.microbatch,
            _ => None,
        };
        let parts: BTreeSet<u32> = op.writes.iter().filter_map(part).collect();
        // Who asks for others has a list for each microbatch, and no result that is of one.
        let asks = op.action.facts().asks_for_others();
        let parts = if asks { self.settings.microbatches } else { parts.len() as u32 };
        let states = op.writes.iter().find_map(|w| match w.place {
            Place::Table(t) => self.tables.get(t as usize).map(|t| t.optimizer.states().per_value),
            Place::Parameter(_) => Some(self.settings.optimizer.states()),
            _ => None,
        });
        let around = Surroundings { adds: &adds, parts: parts.max(1), states: states.map_or(0.0, f64::from) };
        Cost {
            flops: op.action.flops(&o),
            bytes: op.action.memory(&o, around),
            wire: match op.action.facts().transfer {
                None => Poly::zero(),
                Some(transfer) => match self.ranking(op, false) {
                    Some((rounds, table)) => rounds.total(table),
                    None => self.wire(p, op).sent.times(self.crossings(op, transfer.rounds.into())),
                },
            },
        }
    }

    /// Bytes on the wire in each round of an operation of one of its programs, for a full batch; the first batch of an
    /// evaluation may have a round that later ones have not. Nothing for what moves nothing between ranks.
    pub fn rounds(&self, p: &Program, op: &Op, first: bool) -> Vec<Wire> {
        let Some(transfer) = op.action.facts().transfer else { return Vec::new() };
        let Some((rounds, table)) = self.ranking(op, first) else {
            let wire = self.wire(p, op);
            if op.action.facts().sums_over_ranks() && self.sums().count() > 1 {
                let between = self.relayed_share();
                let part =
                    |share: f64| Wire { sent: wire.sent.times(share), received: wire.received.times(share) };
                return [1.0, between, between, 1.0].map(part).to_vec();
            }
            return vec![wire; transfer.rounds as usize];
        };
        let list = (0..).map_while(|n| rounds.round(n)).map(|round| rounds.bytes(round, table));
        list.map(|bytes| Wire { sent: bytes.clone(), received: bytes }).collect()
    }

    /// Nodes by which dense gradients are summed: one if they are summed at once.
    pub fn sums(&self) -> Nodes {
        Nodes::new(self.ranks, self.settings.node.filter(|_| self.settings.sums_by_node))
    }

    /// The part of dense gradients that the mean rank sends to other nodes' owners, and back: a node's sums are there once for all of
    /// its ranks.
    fn relayed_share(&self) -> f64 {
        f64::from(self.sums().count()) / f64::from(self.ranks.max(1))
    }

    /// How many times what an operation moves in a round it moves in all rounds.
    fn crossings(&self, op: &Op, rounds: f64) -> f64 {
        let by_node = op.action.facts().sums_over_ranks() && self.sums().count() > 1;
        if by_node { 2.0 * (1.0 + self.relayed_share()) } else { rounds }
    }

    /// The rounds of an operation that ranks items of a table.
    fn ranking(&self, op: &Op, first: bool) -> Option<(Rounds, &Table)> {
        let Action::RankItems { cosine } = op.action else { return None };
        let table = op.reads.iter().find_map(|o| match o.place {
            Place::Table(t) => self.tables.get(t as usize),
            _ => None,
        })?;
        Some((Rounds::new(table, cosine, first, self.settings.batch as usize, 0), table))
    }

    /// Bytes on the wire in each of the rounds of an operation of one of its programs, where they are alike.
    pub fn wire(&self, p: &Program, op: &Op) -> Wire {
        let (reads, writes) = self.shapes(p, op);
        op.action.wire(&Operands { reads: &reads, writes: &writes }, self.settings.wire)
    }
}
