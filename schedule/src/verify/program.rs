//! Rules about one program.

use std::collections::{BTreeMap, BTreeSet};

use super::Report;
use crate::model::{InputKind, Program, Schedule};
use crate::op::{Action, Element, Extent, Normalize, Op, Operand, Place};
use crate::signature::{self, Shape};
use crate::size::Symbol;

/// Operations that each operation depends on, directly or not, within a step: bits by position.
struct Reach {
    words: usize,
    bits: Vec<u64>,
}

impl Reach {
    fn new(program: &Program) -> Self {
        let words = program.ops.len().div_ceil(64);
        let mut bits = vec![0u64; words * program.ops.len()];
        for (i, op) in program.ops.iter().enumerate() {
            let (before, rest) = bits.split_at_mut(i * words);
            let own = &mut rest[..words];
            for d in op.deps.iter().filter(|d| d.distance == 0) {
                let d = d.op as usize;
                own[d / 64] |= 1 << (d % 64);
                for (o, b) in own.iter_mut().zip(&before[d * words..(d + 1) * words]) {
                    *o |= b;
                }
            }
        }
        Self { words, bits }
    }
    /// True if `op` depends on `on`.
    fn depends(&self, op: usize, on: usize) -> bool {
        self.bits[op * self.words + on / 64] >> (on % 64) & 1 == 1
    }
}

pub(super) fn check(s: &Schedule, p: &Program, evaluation: bool, r: &mut Report) {
    let before = r.0.len();
    indices(s, p, r);
    if r.0.len() > before {
        return;
    }
    operands(s, p, r);
    order(p, r);
    if r.0.len() > before {
        return;
    }
    let reach = Reach::new(p);
    writes(p, r);
    fresh(p, &reach, r);
    storage(p, &reach, r);
    frame(p, &reach, evaluation, r);
    exchanges(p, &reach, r);
}

fn indices(s: &Schedule, p: &Program, r: &mut Report) {
    let symbol_ok = |e: Extent| match e {
        Extent::Symbol(Symbol::Tokens(g)) => (g as usize) < s.lengths.len(),
        Extent::Symbol(Symbol::Sent(e) | Symbol::Received(e)) => (e as usize) < s.exchanges.len(),
        Extent::Symbol(Symbol::SentClass(e, way, c) | Symbol::ReceivedClass(e, way, c)) => {
            s.exchanges.get(e as usize).and_then(|x| x.lookahead).is_some_and(|lookahead| {
                let reuse = crate::reuse::Reuse { lookahead, microbatches: s.settings.microbatches };
                (c as usize) < reuse.count(way)
            })
        }
        Extent::Symbol(Symbol::Squares(_)) => false,
        Extent::Symbol(Symbol::Ranks | Symbol::Samples) | Extent::Fixed(_) => true,
    };
    for (i, b) in p.buffers.iter().enumerate() {
        r.check(symbol_ok(b.rows), "indices", || format!("buffer b{i} `{}` has {} rows", b.name, b.rows));
        r.check((1..=1 << 24).contains(&b.columns), "indices", || {
            format!("buffer b{i} has {} columns", b.columns)
        });
        r.check((b.slot as usize) < p.buffers.len(), "indices", || {
            format!("buffer b{i} has slot {}", b.slot)
        });
    }
    for op in &p.ops {
        for o in op.reads.iter().chain(&op.writes) {
            let (n, count) = match o.place {
                Place::Buffer(n) => (n, p.buffers.len()),
                Place::Parameter(n) | Place::Gradient(n) => (n, s.parameters.len()),
                Place::Table(n) => (n, s.tables.len()),
                Place::Input(n) => (n, s.inputs.len()),
                Place::Lengths(n) => (n, s.lengths.len()),
            };
            let exists = (n as usize) < count;
            r.check(exists, "indices", || format!("`{}` uses {o}, there are {count}", op.name));
            let columns_ok = match (o.columns, o.place) {
                (None, _) => true,
                (Some((a, z)), Place::Buffer(b)) => exists && a < z && z <= p.buffers[b as usize].columns,
                _ => false,
            };
            r.check(columns_ok, "indices", || format!("`{}` uses {o}, which has no such columns", op.name));
        }
        for d in &op.deps {
            let exists = (d.op as usize) < p.ops.len();
            r.check(exists, "indices", || format!("`{}` depends on operation {}", op.name, d.op));
        }
        let normalize = match &op.action {
            Action::BceWithLogits { normalize } | Action::SampledSoftmax { normalize, .. } => {
                Some(*normalize)
            }
            _ => None,
        };
        let normalize_ok = match normalize {
            Some(Normalize::Tokens(g)) => (g as usize) < s.lengths.len(),
            Some(Normalize::Constant(c)) => c.is_finite() && c > 0.0,
            _ => true,
        };
        r.check(normalize_ok, "indices", || format!("`{}` is normalised by {normalize:?}", op.name));
        r.check(numbers_ok(&op.action), "indices", || {
            format!("`{}` has a number out of range: {:?}", op.name, op.action)
        });
    }
}

/// Numbers of actions in their ranges.
fn numbers_ok(action: &Action) -> bool {
    match action {
        Action::Dropout { p, .. } | Action::DropoutGrad { p, .. } => (0.0..1.0).contains(p),
        Action::LayerNorm { eps, .. } | Action::L2Normalize { eps } | Action::L2NormalizeGrad { eps } => {
            eps.is_finite() && *eps >= 0.0
        }
        Action::Scale { factor } => factor.is_finite(),
        Action::SampledSoftmax { temperature, negatives, .. } => {
            temperature.is_finite() && *temperature > 0.0 && (1..=1 << 20).contains(negatives)
        }
        Action::DrawNegatives { count, .. } => (1..=1 << 20).contains(count),
        _ => true,
    }
}

fn shape(s: &Schedule, p: &Program, o: &Operand) -> Shape {
    match o.place {
        Place::Buffer(n) => {
            let b = &p.buffers[n as usize];
            let columns = o.columns.map_or(b.columns, |(a, z)| z - a);
            Shape::Matrix { element: b.element, rows: b.rows, columns }
        }
        Place::Parameter(n) => {
            let p = &s.parameters[n as usize];
            Shape::Parameter { rows: p.rows, columns: p.columns }
        }
        Place::Gradient(n) => {
            let p = &s.parameters[n as usize];
            Shape::Gradient { rows: p.rows, columns: p.columns }
        }
        Place::Table(n) => Shape::Table { table: n, dim: s.tables[n as usize].dim },
        Place::Lengths(n) => Shape::Offsets { lengths: n },
        Place::Input(n) => input(s, s.inputs[n as usize].kind),
    }
}

fn input(s: &Schedule, kind: InputKind) -> Shape {
    match kind {
        InputKind::Ids { table, lengths } => Shape::Ids { table, lengths },
        // The `inputs` rule has seen to it that this refers to ids, so it ends.
        InputKind::Next { of } => input(s, s.inputs[of as usize].kind),
        InputKind::Dense { width } => Shape::Dense { width },
        InputKind::SampleLabel => Shape::Labels { rows: Extent::Symbol(Symbol::Samples) },
        InputKind::TokenLabel { lengths } => Shape::Labels { rows: Extent::Symbol(Symbol::Tokens(lengths)) },
    }
}

fn operands(s: &Schedule, p: &Program, r: &mut Report) {
    let columns: Vec<u32> = s.exchanges.iter().map(|e| e.columns(&s.tables)).collect();
    let cx = signature::Context {
        exchanges: &s.exchanges,
        columns: &columns,
        tables: s.tables.len(),
        microbatches: s.settings.microbatches,
    };
    let shapes = |list: &[Operand]| list.iter().map(|o| shape(s, p, o)).collect::<Vec<_>>();
    for op in &p.ops {
        if let Err(e) = signature::check(&op.action, &shapes(&op.reads), &shapes(&op.writes), &cx) {
            r.fail("operands", format!("`{}`: {e}", op.name));
        }
        if let Action::Positional | Action::PositionalGrad = op.action
            && let Some(Operand { place: Place::Lengths(g), .. }) = op.reads.get(1)
        {
            let weight = op.reads.get(2).or(op.writes.first());
            let rows = match weight.map(|w| shape(s, p, w)) {
                Some(Shape::Parameter { rows, .. } | Shape::Gradient { rows, .. }) => rows,
                _ => 0,
            };
            let max = s.lengths[*g as usize].max;
            r.check(rows >= max, "operands", || {
                format!("`{}` has {rows} positions, sequences have up to {max}", op.name)
            });
        }
    }
}

fn order(p: &Program, r: &mut Report) {
    let mut names = BTreeSet::new();
    for (i, op) in p.ops.iter().enumerate() {
        r.check(names.insert(&op.name), "names", || format!("two operations are called `{}`", op.name));
        for d in op.deps.iter().filter(|d| d.distance == 0) {
            r.check((d.op as usize) < i, "order", || {
                format!("`{}` depends on `{}`, which stands behind it", op.name, p.ops[d.op as usize].name)
            });
        }
        let distinct: BTreeSet<_> = op.deps.iter().collect();
        r.check(distinct.len() == op.deps.len(), "order", || format!("`{}` repeats a dependency", op.name));
    }
}

fn writes(p: &Program, r: &mut Report) {
    for op in &p.ops {
        for w in &op.writes {
            let may = match w.place {
                Place::Buffer(_) => true,
                Place::Gradient(_) => matches!(
                    op.action,
                    Action::LinearGradWeight { .. }
                        | Action::LayerNormGrad { .. }
                        | Action::PositionalGrad
                        | Action::AllReduce
                ),
                Place::Parameter(_) => matches!(op.action, Action::DenseUpdate),
                Place::Table(_) => matches!(op.action, Action::Apply { .. }),
                Place::Input(_) | Place::Lengths(_) => false,
            };
            r.check(may, "writes", || format!("`{}` may not write {w}", op.name));
            let adds = !w.accumulate || (matches!(w.place, Place::Buffer(_)) && can_add(&op.action));
            r.check(adds, "writes", || format!("`{}` cannot add into {w}", op.name));
            let reduces = matches!(op.action, Action::AllReduce);
            let both = op.reads.iter().any(|o| o.place == w.place);
            r.check(reduces || !both, "writes", || format!("`{}` reads and writes {}", op.name, w.place));
        }
        for (i, a) in op.writes.iter().enumerate() {
            let twice = op.writes[..i].iter().any(|b| overlap(a, b));
            r.check(!twice, "writes", || format!("`{}` writes {a} twice", op.name));
        }
    }
}

/// Actions that can add to what is there.
fn can_add(action: &Action) -> bool {
    matches!(
        action,
        Action::LinearGradInput
            | Action::LayerNormGrad { .. }
            | Action::UnaryGrad { .. }
            | Action::SoftmaxGrad
            | Action::MulGrad
            | Action::Scale { .. }
            | Action::Copy
            | Action::DropoutGrad { .. }
            | Action::L2NormalizeGrad { .. }
            | Action::ExpandGrad
            | Action::PoolGrad { .. }
            | Action::SampledSoftmaxGrad { .. }
    )
}

fn overlap(a: &Operand, b: &Operand) -> bool {
    let (Some((s, e)), Some((t, f))) = (a.columns, b.columns) else { return a.place == b.place };
    a.place == b.place && s < f && t < e
}

fn fresh(p: &Program, reach: &Reach, r: &mut Report) {
    // Who wrote which columns of each place since its buffer came to life.
    let mut written: BTreeMap<Place, Vec<(usize, u32, u32)>> = BTreeMap::new();
    let range = |o: &Operand| match o.place {
        Place::Buffer(b) => o.columns.unwrap_or((0, p.buffers[b as usize].columns)),
        _ => (0, 1),
    };
    for (i, op) in p.ops.iter().enumerate() {
        let added = op.writes.iter().filter(|w| w.accumulate);
        for o in op.reads.iter().chain(added) {
            if !matches!(o.place, Place::Buffer(_) | Place::Gradient(_)) {
                continue;
            }
            let (start, end) = range(o);
            let writers = written.get(&o.place).map(Vec::as_slice).unwrap_or_default();
            let covered = (start..end).all(|c| writers.iter().any(|(_, a, z)| (*a..*z).contains(&c)));
            r.check(covered, "fresh", || format!("`{}` reads {o}, which is not written before", op.name));
            for (w, a, z) in writers {
                let hit = *a < end && start < *z;
                r.check(!hit || reach.depends(i, *w), "fresh", || {
                    format!("`{}` reads {o} of `{}` without depending on it", op.name, p.ops[*w].name)
                });
            }
        }
        for w in &op.writes {
            let (start, end) = range(w);
            written.entry(w.place).or_default().push((i, start, end));
        }
    }
}

fn storage(p: &Program, reach: &Reach, r: &mut Report) {
    let mut uses: Vec<Vec<usize>> = vec![Vec::new(); p.buffers.len()];
    for (i, op) in p.ops.iter().enumerate() {
        for o in op.reads.iter().chain(&op.writes) {
            if let Place::Buffer(b) = o.place {
                uses[b as usize].push(i);
            }
        }
    }
    let mut slots: BTreeMap<(Element, u32), Vec<usize>> = BTreeMap::new();
    for (b, buffer) in p.buffers.iter().enumerate() {
        let covers = uses[b].iter().all(|i| (buffer.first as usize..=buffer.last as usize).contains(i));
        r.check(covers && buffer.first <= buffer.last, "storage", || {
            format!("b{b} `{}` is used outside its lifetime {}..={}", buffer.name, buffer.first, buffer.last)
        });
        slots.entry((buffer.element, buffer.slot)).or_default().push(b);
    }
    for list in slots.values_mut() {
        list.sort_by_key(|b| (p.buffers[*b].first, *b));
        for pair in list.windows(2) {
            let (a, b) = (&p.buffers[pair[0]], &p.buffers[pair[1]]);
            r.check(a.last < b.first, "storage", || {
                format!(
                    "b{} `{}` and b{} `{}` share a slot and live at once",
                    pair[0], a.name, pair[1], b.name
                )
            });
            let Some(first) = uses[pair[1]].first() else { continue };
            for last in &uses[pair[0]] {
                let waits = last < first && reach.depends(*first, *last);
                r.check(waits, "storage", || {
                    let (new, old) = (&p.ops[*first].name, &p.ops[*last].name);
                    format!(
                        "`{new}` reuses the slot of b{} without depending on `{old}`, which uses it",
                        pair[0]
                    )
                });
            }
        }
    }
}

fn frame(p: &Program, reach: &Reach, evaluation: bool, r: &mut Report) {
    let loads: Vec<usize> = p
        .ops
        .iter()
        .enumerate()
        .filter(|(_, o)| matches!(o.action, Action::LoadBatch))
        .map(|(i, _)| i)
        .collect();
    r.check(loads.len() == 1, "frame", || format!("a step loads one batch, this one {}", loads.len()));
    let mut reduced: BTreeMap<Place, usize> = BTreeMap::new();
    let mut updated: BTreeSet<Place> = BTreeSet::new();
    for (i, op) in p.ops.iter().enumerate() {
        let uses_batch = op.reads.iter().any(|o| matches!(o.place, Place::Input(_) | Place::Lengths(_)))
            || matches!(
                op.action,
                Action::DrawNegatives { .. } | Action::Dropout { .. } | Action::DropoutGrad { .. }
            );
        let loaded = loads.iter().all(|l| reach.depends(i, *l));
        r.check(!uses_batch || loaded, "batch", || {
            format!("`{}` reads the batch without depending on its load", op.name)
        });
        if matches!(op.action, Action::AllReduce) {
            for w in &op.writes {
                r.check(reduced.insert(w.place, i).is_none(), "frame", || format!("{w} is reduced twice"));
            }
        }
        update(op, &reduced, &mut updated, evaluation, r);
    }
}

fn update(
    op: &Op,
    reduced: &BTreeMap<Place, usize>,
    updated: &mut BTreeSet<Place>,
    evaluation: bool,
    r: &mut Report,
) {
    let updates = matches!(op.action, Action::Apply { .. } | Action::DenseUpdate);
    r.check(!(updates && evaluation), "frame", || format!("`{}` updates in an evaluation", op.name));
    r.check(evaluation || !matches!(op.action, Action::RankItems { .. }), "frame", || {
        format!("`{}` ranks items in a training step", op.name)
    });
    if !updates {
        return;
    }
    for w in &op.writes {
        r.check(updated.insert(w.place), "frame", || format!("{w} is updated twice"));
    }
    if matches!(op.action, Action::DenseUpdate) {
        for (g, w) in op.reads.iter().zip(&op.writes) {
            let pair = matches!((g.place, w.place), (Place::Gradient(a), Place::Parameter(b)) if a == b);
            r.check(pair, "frame", || format!("`{}` updates {w} with {g}", op.name));
            r.check(reduced.contains_key(&g.place), "frame", || {
                format!("{g} is not summed over ranks before `{}`", op.name)
            });
        }
    }
}

fn exchanges(p: &Program, reach: &Reach, r: &mut Report) {
    let mut last: BTreeMap<u32, (u32, usize)> = BTreeMap::new();
    for (i, op) in p.ops.iter().enumerate() {
        let (exchanges, stage) = match &op.action {
            Action::Unique { exchange } => (std::slice::from_ref(exchange), 1),
            Action::AllToAllIds { exchanges } => (&exchanges[..], 2),
            Action::AllToAllRows { exchanges, .. } => (&exchanges[..], 3),
            Action::AllToAllGrads { exchanges, .. } => (&exchanges[..], 4),
            _ => continue,
        };
        for &exchange in exchanges {
            let before = last.insert(exchange, (stage, i));
            let in_order = match before {
                None => stage == 1,
                Some((s, at)) => stage == s + 1 && reach.depends(i, at),
            };
            r.check(in_order, "exchange", || {
                format!("`{}` is out of the order of exchange {exchange}", op.name)
            });
        }
    }
}
