//! Data to compute terms with, and terms of it.

pub(crate) mod counted;

use std::collections::BTreeMap;

use fs_compiler::distribution::build::{Distribution, Listed, Numbered};
use fs_compiler::distribution::reference::{Part, World, joined};
use fs_compiler::distribution::ty::Sharded;
use fs_compiler::distribution::{Choice, Id, Op, Terms};
use fs_schedule::{Element, Extent, Sharding, Symbol, Way, WirePrecision};
use proptest::prelude::*;

/// Columns of the table.
pub(crate) const DIM: u32 = 4;

/// Batches that data is drawn for: the one in question, and what partitions look at.
const AROUND: std::ops::RangeInclusive<i32> = -4..=4;

/// Sizes of random data: ranks and nodes, rows of the table, microbatches, sequences of a microbatch, lookahead.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) ranks: usize,
    pub(crate) nodes: usize,
    pub(crate) rows: u64,
    pub(crate) microbatches: u32,
    pub(crate) sequences: u32,
    pub(crate) lookahead: u32,
    pub(crate) seed: u64,
    pub(crate) wire: WirePrecision,
    /// Samples are worked on by other ranks than read them.
    pub(crate) moved: bool,
}

impl Sizes {
    /// Whether a row may be asked for once per occurrence: not where each occurrence's gradient would be rounded.
    pub(crate) fn repeats(self) -> bool {
        self.wire.gradients == Element::Real
    }
    /// Windows of a batch by which rows may be told apart.
    pub(crate) fn windows(self) -> Vec<u32> {
        (1..=self.microbatches).filter(|windows| self.microbatches.is_multiple_of(*windows)).collect()
    }
    /// Whether there may be relays: those of one node would round a sum that owners of one node do not.
    pub(crate) fn relays(self) -> bool {
        self.nodes > 1 || self.repeats()
    }
}

/// What rows and gradients may be on their way.
pub(crate) fn wires() -> impl Strategy<Value = WirePrecision> {
    let rows = prop_oneof![Just(Element::Real), Just(Element::Bf16), Just(Element::Mxint8)];
    let gradients = prop_oneof![Just(Element::Real), Just(Element::Bf16)];
    (rows, gradients).prop_map(|(rows, gradients)| WirePrecision {
        rows,
        gradients,
        ..WirePrecision::default()
    })
}

prop_compose! {
    pub(crate) fn sizes()(
        (nodes, each) in prop_oneof![Just((1, 1)), Just((1, 3)), Just((2, 1)), Just((2, 2)), Just((2, 2)), Just((3, 2))],
        rows in 1..=12u64,
        microbatches in 1..=4u32,
        sequences in 1..=2u32,
        lookahead in 1..=3u32,
        seed in any::<u64>(),
        wire in wires(),
        moved in any::<bool>(),
    ) -> Sizes {
        Sizes { ranks: nodes * each, nodes, rows, microbatches, sequences, lookahead, seed, wire, moved }
    }
}

/// A generator of numbers, good enough for data.
struct Draws(u64, f32);

impl Draws {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n.max(1)
    }
    fn row(&mut self) -> Vec<f32> {
        (0..DIM).map(|_| (self.below(64) as f32 - 32.0) / self.1).collect()
    }
}

/// Data, with terms of its ids, offsets and gradients where samples are worked on.
pub(crate) struct Data {
    pub(crate) world: World,
    pub(crate) terms: Terms,
    pub(crate) ids: Vec<Id>,
    pub(crate) offsets: Vec<Id>,
    pub(crate) gradients: Vec<Id>,
    pub(crate) pooled: Vec<Id>,
}

impl Data {
    /// Of small whole numbers: their sums are exact in any order.
    pub(crate) fn new(s: Sizes) -> Self {
        Self::divided(s, 1.0)
    }

    /// Of thirds: their sums depend on the order.
    pub(crate) fn of_thirds(s: Sizes) -> Self {
        Self::divided(s, 3.0)
    }

    fn divided(s: Sizes, by: f32) -> Self {
        let mut draws = Draws(s.seed, by);
        let mut terms = Terms::default();
        let mut world = World {
            ranks: s.ranks,
            nodes: s.nodes,
            table: (0..s.rows).map(|_| draws.row()).collect(),
            // Some rows, none or all.
            hot: (0..s.rows).filter(|row| s.seed >> (row % 61) & 1 == 1).collect(),
            ids: BTreeMap::new(),
            offsets: BTreeMap::new(),
            gradients: BTreeMap::new(),
            assigned: BTreeMap::new(),
            wire: s.wire,
        };
        let (mut ids, mut offsets) = (Vec::new(), Vec::new());
        let (mut gradients, mut pooled) = (Vec::new(), Vec::new());
        let tokens = Extent::Symbol(Symbol::Tokens(0));
        // Two samples are read on each rank, in this batch and those around it.
        let mut plans = Draws(!s.seed, 1.0);
        for batch in AROUND {
            let mut rank = || plans.below(s.ranks as u64) as usize;
            let plan = (0..s.ranks).map(|_| vec![rank(), rank()]).collect();
            world.assigned.insert(batch, plan);
        }
        for source in 0..s.microbatches * s.sequences {
            let microbatch = source / s.sequences;
            for batch in AROUND {
                let lengths: Vec<usize> = (0..s.ranks).map(|_| draws.below(7) as usize).collect();
                let of = lengths.iter().map(|n| (0..*n).map(|_| vec![draws.below(s.rows)]).collect());
                let by_rank: Vec<Vec<Vec<u64>>> = of.collect();
                let cuts = lengths.iter().map(|n| vec![0, draws.below(*n as u64 + 1) as usize, *n]);
                world.offsets.insert((source, batch), cuts.collect());
                if batch == 0 {
                    let given = lengths.iter().map(|n| (0..*n).map(|_| draws.row()).collect());
                    let given: Vec<Vec<Vec<f32>>> = given.collect();
                    world.gradients.insert(source, given);
                    let of_samples = (0..s.ranks).map(|_| vec![draws.row(), draws.row()]).collect();
                    world.gradients.insert(1000 + source, of_samples);
                }
                world.ids.insert((source, batch), by_rank);
            }
            let at_home = terms.add(Op::Offsets { source }, &[]).expect("a leaf");
            let mut add = |op, each: bool| {
                let leaf = terms.add(op, &[]).expect("a leaf");
                let operands: &[Id] = if each { &[leaf, at_home] } else { &[leaf] };
                if s.moved { terms.add(Op::Dispatch, operands).expect("of samples at home") } else { leaf }
            };
            ids.push(add(Op::Ids { source, rows: tokens, columns: 1, microbatch }, true));
            offsets.push(add(Op::Offsets { source }, false));
            gradients.push(add(Op::Given { source, rows: tokens, columns: DIM }, true));
            let rows = Extent::Symbol(Symbol::Samples);
            pooled.push(add(Op::Given { source: 1000 + source, rows, columns: DIM }, false));
        }
        Self { world, terms, ids, offsets, gradients, pooled }
    }

    /// With hot rows beside those of a choice.
    pub(crate) fn build_with_hot(&mut self, choice: &Choice, first: u32, microbatches: u32) -> Distribution {
        let cuts: Vec<(u32, u32)> = match &choice.sharding {
            Sharding::ColumnWise { .. } => vec![(0, 1), (1, DIM)],
            _ => vec![(0, DIM)],
        };
        let parts = (first + 1..).zip(cuts).map(|(exchange, columns)| {
            let between = choice.relayed.then_some(exchange + 2);
            Numbered { exchange, between, columns }
        });
        let (parts, listed) = (parts.collect::<Vec<_>>(), Listed { list: first, hot: first + 5 });
        let ids = self.ids.clone();
        Distribution::with_hot(&mut self.terms, 0, choice, (&parts, Some(listed)), &ids, Some(microbatches))
            .expect("well-typed")
    }

    pub(crate) fn build(&mut self, choice: &Choice, first: u32, microbatches: u32) -> Distribution {
        let cuts: Vec<(u32, u32)> = match &choice.sharding {
            Sharding::ColumnWise { .. } => vec![(0, 1), (1, DIM)],
            _ => vec![(0, DIM)],
        };
        let parts = (first..).zip(cuts).map(|(exchange, columns)| {
            // As a context numbers them that knows of both parts.
            Numbered { exchange, between: choice.relayed.then_some(exchange + 2), columns }
        });
        let parts: Vec<Numbered> = parts.collect();
        Distribution::build(&mut self.terms, 0, choice, &parts, &self.ids.clone(), Some(microbatches))
            .expect("well-typed")
    }

    pub(crate) fn add(&mut self, op: Op, children: &[Id]) -> Id {
        self.terms.add(op, children).expect("well-typed")
    }

    pub(crate) fn eval(&self, id: Id) -> Vec<Part> {
        self.world.eval(&self.terms, id).expect("computable")
    }

    /// Rows of each sequence, per id and pooled, as a distribution brings them.
    pub(crate) fn used(&mut self, d: &Distribution, microbatches: u32, sequences: u32) -> Vec<Vec<Part>> {
        let mut all = Vec::new();
        for round in 0..microbatches {
            let rows = d.rows(&mut self.terms, round).expect("well-typed");
            for i in (round * sequences..(round + 1) * sequences).map(|i| i as usize) {
                let inverse = self.add(Op::Inverse, &[d.entries, self.ids[i]]);
                for id in [
                    self.add(Op::Expand, &[rows, inverse]),
                    self.add(Op::Pool { mean: false }, &[rows, inverse, self.offsets[i]]),
                    self.add(Op::Pool { mean: true }, &[rows, inverse, self.offsets[i]]),
                ] {
                    all.push(self.eval(id));
                }
            }
        }
        all
    }

    /// What a distribution adds up for each row of the table, over all classes and parts.
    pub(crate) fn totals(&mut self, d: &Distribution) -> BTreeMap<u64, Vec<f32>> {
        let mut sums = Vec::new();
        for i in 0..self.ids.len() {
            let inverse = self.add(Op::Inverse, &[d.entries, self.ids[i]]);
            sums.push(self.add(Op::ExpandGrad, &[self.gradients[i], inverse]));
            let pool = Op::PoolGrad { mean: false };
            sums.push(self.add(pool, &[self.pooled[i], inverse, self.offsets[i]]));
        }
        let sum = self.add(Op::Sum, &sums);
        let classes: Vec<Option<u32>> = match d.reuse {
            None => vec![None],
            Some(reuse) => (0..reuse.count(Way::Backward) as u32).map(Some).collect(),
        };
        let mut all: BTreeMap<u64, Vec<f32>> = BTreeMap::new();
        for (part, p) in d.parts.iter().chain(&d.hot).enumerate() {
            let sharded = if p.own.is_some() { Sharded::Replicated } else { Sharded::Owner };
            for class in &classes {
                let total = d.total(&mut self.terms, part, *class, sum).expect("well-typed");
                let of_class = joined(sharded, &self.eval(total)).expect("one owner each");
                for (row, sum) in of_class {
                    let whole = all.entry(row).or_insert_with(|| vec![f32::NAN; DIM as usize]);
                    let columns = &mut whole[p.columns.0 as usize..p.columns.1 as usize];
                    assert!(columns.iter().all(|x| x.is_nan()), "row {row} is in two classes");
                    columns.copy_from_slice(&sum);
                }
            }
        }
        all
    }
}

pub(crate) fn choice(unique: bool, lookahead: Option<u32>, sharding: Sharding) -> Choice {
    Choice { unique, lookahead, windows: None, sharding, relayed: false, folded: false }
}

/// All ways that one table can be distributed.
pub(crate) fn choices(s: Sizes) -> Vec<Choice> {
    let mut all = Vec::new();
    let cut = Sharding::ColumnWise { ranks: vec![0, 0] };
    for sharding in [Sharding::RowWise, cut, Sharding::DataParallel] {
        // A block of columns is not cut.
        if matches!(sharding, Sharding::ColumnWise { .. }) && s.wire.rows == Element::Mxint8 {
            continue;
        }
        for unique in [true, false].into_iter().filter(|unique| *unique || s.repeats()) {
            let together = (None, None);
            let fewer =
                s.windows().into_iter().map(|n| (Some(s.lookahead), (n < s.microbatches).then_some(n)));
            for (told_apart, windows) in std::iter::once(together).chain(fewer) {
                let choice = Choice { windows, ..choice(unique, told_apart, sharding.clone()) };
                if sharding != Sharding::DataParallel && s.relays() {
                    all.push(Choice { relayed: true, ..choice.clone() });
                }
                if sharding != Sharding::DataParallel && s.moved {
                    all.push(Choice { folded: true, ..choice.clone() });
                }
                all.push(choice);
            }
        }
    }
    all
}
