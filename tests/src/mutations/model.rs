//! Schedules of another model than their reference, or of a reference that is not one.

use fs_schedule::reference::Term;
use fs_schedule::{
    Action, Buffer, DenseOptimizer, Dep, Element, Engine, Extent, Init, Normalize, Op, Operand, Place,
    Schedule, Symbol,
};

use super::{Mutation, adds, again, all, find, insert, rank, remove, says};

/// Operations that make gradients of a later microbatch, added to what is there.
fn later(s: &Schedule, fits: impl Fn(&Action) -> bool) -> Option<usize> {
    all(s, fits).into_iter().rev().find(|i| {
        let op = &s.train.ops[*i];
        op.writes.first().is_some_and(|w| adds(op, w.place))
    })
}

/// Zeros in a buffer whose rows are such a size, in a queue of their own after the load only.
fn zeros_too_early(s: &mut Schedule, fits: impl Fn(Symbol) -> bool) -> Option<()> {
    let load = find(s, |a| matches!(a, Action::LoadBatch))?;
    let sized = |b: &&Buffer| b.element == Element::Real && matches!(b.rows, Extent::Symbol(s) if fits(s));
    let like = s.train.buffers.iter().find(sized)?.clone();
    let (buffer, at) = (s.train.buffers.len() as u32, s.train.ops.len() as u32);
    s.train.buffers.push(Buffer { name: "early".into(), slot: buffer, first: at, last: at, ..like });
    let mut zero = Op::new("zero early", Action::Zero, Engine::Compute);
    zero.writes = vec![Operand::new(Place::Buffer(buffer))];
    zero.priority = 5;
    zero.deps = vec![Dep { op: load as u32, distance: u32::try_from(s.train.ops[load].stage).ok()? }];
    s.train.ops.push(zero);
    Some(())
}

pub(super) const MUTATIONS: &[Mutation] = &[
    says("buffers of many elements together", "indices", |s| {
        let like = s.train.buffers[0].clone();
        let buffer = |slot| Buffer {
            name: format!("large{slot}"),
            element: Element::Real,
            rows: Extent::Fixed(1 << 10),
            columns: 1 << 20,
            microbatch: None,
            copies: 1,
            slot,
            ..like.clone()
        };
        let n = s.train.buffers.len() as u32;
        s.train.buffers.extend((n..n + 3).map(buffer));
        Some(())
    }),
    says("a buffer made before it is known how large", "sizes", |s| {
        // A queue of its own, after the load only; the sum then starts from these zeros.
        let load = find(s, |a| matches!(a, Action::LoadBatch))?;
        let sum = all(s, |a| matches!(a, Action::ExpandGrad))
            .into_iter()
            .find(|i| !s.train.ops[*i].writes[0].accumulate)?;
        let distance = u32::try_from(s.train.ops[load].stage).ok()?;
        let mut zero = Op::new("zero", Action::Zero, Engine::Compute);
        zero.writes = vec![s.train.ops[sum].writes[0]];
        zero.priority = 5;
        zero.deps = vec![Dep { op: load as u32, distance }];
        s.train.ops[sum].writes[0].accumulate = true;
        let Place::Buffer(b) = zero.writes[0].place else { return None };
        // Right in front of the sum in the list, which orders nothing.
        insert(s, sum, zero);
        s.train.buffers[b as usize].first = sum as u32;
        s.train.ops[sum + 1].deps.push(Dep { op: sum as u32, distance: 0 });
        Some(())
    }),
    says("rows that arrive, before it is known how many", "sizes", |s| {
        zeros_too_early(s, |size| matches!(size, Symbol::Received(_)))
    }),
    says("rows of a class, before it is known how many", "sizes", |s| {
        zeros_too_early(s, |size| matches!(size, Symbol::SentClass(..) | Symbol::ReceivedClass(..)))
    }),
    says("another learning rate than the model's", "reference", |s| {
        s.settings.optimizer = DenseOptimizer::Sgd { lr: 0.25, momentum: 0.0, weight_decay: 0.0 };
        Some(())
    }),
    says("other initial values than the model's", "reference", |s| {
        s.tables[0].init = Init::Constant(0.125);
        Some(())
    }),
    says("another reference with the digest of the first", "reference", |s| {
        let normalize = Normalize::Constant(3.5);
        let loss = s.reference.actions.iter_mut().find(|a| matches!(a, Action::BceWithLogits { .. }))?;
        *loss = Action::BceWithLogits { normalize };
        Some(())
    }),
    says("a term of what comes later", "reference", |s| {
        let last = s.reference.train.len() as u32 - 1;
        layer(s)?.operands[0] = format!("v{last}").parse().ok()?;
        resealed(s)
    }),
    says("a term whose operands do not fit", "reference", |s| {
        layer(s)?.operands.reverse();
        resealed(s)
    }),
    says("a model that trains nothing", "reference", |s| {
        s.reference.train.clear();
        s.reference.updates.clear();
        resealed(s)
    }),
    says("a parameter that the reference does not train", "model", |s| {
        s.reference.updates.pop();
        resealed(s)
    }),
    says("a parameter that nothing trains", "model", |s| {
        let of = Operand::new(Place::Gradient(1));
        let gone = |op: &Op| op.reads.contains(&of) || op.writes.iter().any(|w| w.place == of.place);
        while let Some(at) = s.train.ops.iter().position(|op| gone(op) && op.writes.len() == 1) {
            remove(s, at);
        }
        (!s.train.ops.iter().any(gone)).then_some(())
    }),
    says("a constant of another model", "model", |s| {
        let at = find(s, |a| matches!(a, Action::BceWithLogits { .. }))?;
        s.train.ops[at].action = Action::BceWithLogits { normalize: Normalize::Constant(3.5) };
        Some(())
    }),
    says("a loss that is counted twice", "model", |s| {
        let at = find(s, |a| matches!(a, Action::BceWithLogits { .. }))?;
        again(s, at);
        Some(())
    }),
    says("operands of equal shape exchanged", "model", |s| {
        let at = all(s, |a| matches!(a, Action::LinearGradWeight { .. }))
            .into_iter()
            .find(|i| s.train.ops[*i].writes[0].place == Place::Gradient(0))
            .filter(|i| alike(s, &s.train.ops[*i].reads[0], &s.train.ops[*i].reads[1]))?;
        s.train.ops[at].reads.swap(0, 1);
        Some(())
    }),
    says("a layer left out", "model", |s| {
        let hidden = find(s, |a| matches!(a, Action::Linear { .. }))?;
        let (x, y) = (s.train.ops[hidden].reads[0], s.train.ops[hidden].writes[0]);
        let at = s.train.ops.iter().position(|op| op.reads.contains(&y)).filter(|_| alike(s, &x, &y))?;
        s.train.ops[at].reads.iter_mut().filter(|o| **o == y).for_each(|o| *o = x);
        Some(())
    }),
    says("a sum in another order", "model", |s| {
        let at = s.train.ops.iter().position(|op| op.action == Action::Add && op.reads.len() > 1)?;
        s.train.ops[at].reads.swap(0, 1);
        Some(())
    }),
    says("a gradient that overwrites those of earlier microbatches", "model", |s| {
        let at = later(s, |a| matches!(a, Action::LinearGradWeight { .. }))?;
        s.train.ops[at].writes.iter_mut().for_each(|w| w.accumulate = false);
        Some(())
    }),
    says("row gradients that overwrite those of earlier microbatches", "model", |s| {
        let at = later(s, |a| matches!(a, Action::ExpandGrad))?;
        s.train.ops[at].writes[0].accumulate = false;
        Some(())
    }),
    says("a microbatch's gradient left out", "model", |s| {
        let at = later(s, |a| matches!(a, Action::LinearGradWeight { .. }))?;
        remove(s, at);
        Some(())
    }),
    says("a microbatch's row gradients left out", "model", |s| {
        let at = later(s, |a| matches!(a, Action::ExpandGrad))?;
        remove(s, at);
        Some(())
    }),
    says("pooled rows' gradients left out", "model", |s| {
        let at = find(s, |a| matches!(a, Action::PoolGrad { .. }))?;
        remove(s, at);
        Some(())
    }),
    says("zeros over finished row gradients", "model", |s| {
        let sum = all(s, |a| matches!(a, Action::ExpandGrad)).into_iter().max_by_key(|i| rank(s, *i))?;
        let place = s.train.ops[sum].writes[0].place;
        let users = (0..s.train.ops.len()).filter(|i| {
            *i > sum && s.train.ops[*i].reads.iter().any(|o| o.place == place) && s.train.ops[*i].stage == 0
        });
        users.max()?;
        let mut zero = Op::new("zero", Action::Zero, Engine::Compute);
        zero.writes = vec![Operand::new(place)];
        zero.stage = s.train.ops[sum].stage;
        zero.start = s.train.ops[sum].start;
        insert(s, sum + 1, zero);
        Some(())
    }),
    says("row gradients of one table summed for another", "model", |s| {
        let a = all(s, |a| matches!(a, Action::ExpandGrad));
        let (x, y) =
            (*a.first()?, *a.iter().find(|i| s.train.ops[**i].reads[1] != s.train.ops[a[0]].reads[1])?);
        let other = s.train.ops[y].writes[0];
        if s.train.ops[x].microbatch != s.train.ops[y].microbatch
            || columns(s, &other) != columns(s, &s.train.ops[x].writes[0])
        {
            return None;
        }
        s.train.ops[y].writes[0] = s.train.ops[x].writes[0];
        s.train.ops[x].writes[0] = other;
        Some(())
    }),
];

fn columns(s: &Schedule, o: &Operand) -> Option<u32> {
    let Place::Buffer(b) = o.place else { return None };
    Some(o.columns.map_or(s.train.buffers[b as usize].columns, |(start, end)| end - start))
}

/// Whether two operands have as many columns and rows.
fn alike(s: &Schedule, x: &Operand, y: &Operand) -> bool {
    let rows = |o: &Operand| match o.place {
        Place::Buffer(b) => Some(s.train.buffers[b as usize].rows),
        _ => None,
    };
    x != y && columns(s, x) == columns(s, y) && rows(x) == rows(y)
}

/// The reference's first linear layer.
fn layer(s: &mut Schedule) -> Option<&mut Term> {
    let linear = s.reference.actions.iter().position(|a| matches!(a, Action::Linear { .. }))? as u32;
    s.reference.train.iter_mut().find(|t| t.action == Some(linear))
}

/// The reference with its own digest.
fn resealed(s: &mut Schedule) -> Option<()> {
    s.reference.digest = s.reference_digest();
    Some(())
}
