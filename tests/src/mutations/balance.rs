//! Corruptions of schedules that give samples to ranks.

use fs_schedule::action::Phase;
use fs_schedule::{Action, Dep, Op, Operand, Place, Schedule, Site};

use super::{Mutation, all, find, order, remove, says};

/// A small model of two tables, with dense features, that gives samples to ranks.
pub const BALANCED_MODEL: &str = "model click {
      table a { rows 60  dim 8  init normal(0, 0.5)  optimizer adagrad(lr: 0.05)  sharding table_wise }
      table b { rows 40  dim 8  init normal(0, 0.5)  optimizer adagrad(lr: 0.05)  sharding row_wise }
      input x: ids(a) { max 9 }
      input y: ids(b) { max 5 }
      input features: dense(3)
      input click: label
      let h = pool(x, sum) + pool(y, mean) + linear(features, 8)
      loss bce_with_logits(linear(dropout(relu(h), 0.2), 1), click, normalize: samples)
    }
    train { batch 12  steps 6  optimizer adam(lr: 1e-2)  balance on }
    workload w { generate { lengths uniform(0, 7)  ids zipf(1.05)  labels bernoulli(0.5)  samples 31 } }";

fn dispatch(s: &fs_schedule::Schedule) -> Option<usize> {
    find(s, |a| matches!(a, Action::Dispatch { .. }))
}

/// For a compiled model that gives samples to ranks; the same form as [`super::mutations`].
pub const BALANCED: &[Mutation] = &[
    says("samples given to ranks without a plan in the settings", "frame", |s| {
        s.settings.balance.take()?;
        s.reference.digest = s.reference_digest();
        Some(())
    }),
    says("a balance under the digest of none", "reference", |s| s.settings.balance.take().map(drop)),
    says("costs of length groups that there are not", "settings", |s| {
        s.settings.balance.as_mut()?.cost.groups.pop()?;
        Some(())
    }),
    says("a cost below zero", "settings", |s| {
        s.settings.balance.as_mut()?.cost.groups.first_mut()?.linear = -1.0;
        Some(())
    }),
    says("a cost that is too large for the longest sample", "settings", |s| {
        s.settings.balance.as_mut()?.cost.groups.first_mut()?.square = 1e308;
        Some(())
    }),
    says("a slack that is no number", "settings", |s| {
        s.settings.balance.as_mut()?.slack = f64::NAN;
        Some(())
    }),
    says("ranks that hold no token", "settings", |s| {
        s.settings.balance.as_mut()?.limit = Some(fs_schedule::RankLimit::Tokens(0));
        Some(())
    }),
    says("samples that move more than all", "indices", |s| {
        let at = dispatch(s)?;
        s.train.ops[at].action = Action::Dispatch { moved: 1.5 };
        Some(())
    }),
    says("samples planned twice", "frame", |s| {
        let at = find(s, |a| matches!(a, Action::Assign))?;
        let new = Op { name: "again".into(), ..s.train.ops[at].clone() };
        s.train.ops.push(new);
        Some(())
    }),
    says("samples that nobody brings", "site", |s| {
        let at = dispatch(s)?;
        remove(s, at);
        Some(())
    }),
    says("samples without one of their inputs", "inputs", |s| {
        let at = dispatch(s)?;
        s.train.ops[at].reads.pop()?;
        Some(())
    }),
    says("samples with one input twice", "inputs", |s| {
        let at = dispatch(s)?;
        let n = s.train.ops[at].reads.len();
        s.train.ops[at].reads[n - 1] = s.train.ops[at].reads[1];
        Some(())
    }),
    says("lengths of other groups", "inputs", |s| {
        let at = find(s, |a| matches!(a, Action::ShareLengths))?;
        s.train.ops[at].reads.swap(0, 1);
        Some(())
    }),
    says("a plan of samples as assigned", "site", |s| {
        let at = find(s, |a| matches!(a, Action::Assign))?;
        s.train.ops[at].site = Site::Assigned;
        Some(())
    }),
    says("work on samples at home where they are as assigned", "site", |s| {
        let at = find(s, |a| matches!(a, Action::Linear { .. }))?;
        s.train.ops[at].site = Site::Home;
        Some(())
    }),
    says("a result of samples at home where they are as assigned", "site", |s| {
        let at = find(s, |a| matches!(a, Action::Linear { .. }))?;
        let Place::Buffer(b) = s.train.ops[at].writes[0].place else { return None };
        s.train.buffers[b as usize].site = Site::Home;
        Some(())
    }),
    says("everything at home though samples are assigned", "site", |s| {
        s.train.ops.iter_mut().for_each(|op| op.site = Site::Home);
        s.train.buffers.iter_mut().for_each(|b| b.site = Site::Home);
        Some(())
    }),
    order("work on samples before they are brought", "batch", |s| {
        let at = dispatch(s)? as u32;
        let waits = |d: &Dep| d.op == at;
        let before = s.train.ops.iter().filter(|op| op.action.facts().phase == Phase::InputDist);
        before.map(|op| op.deps.iter().filter(|d| waits(d)).count()).find(|n| *n > 0)?;
        s.train.ops.iter_mut().for_each(|op| op.deps.retain(|d| !waits(d)));
        Some(())
    }),
];

/// A small model whose rows are looked up and classes of a sampled softmax.
pub const CLASSES_MODEL: &str = "model next {
      table a { rows 90  dim 8  init normal(0, 0.5)  optimizer rowwise_adagrad(lr: 0.05)  sharding row_wise }
      table b { rows 40  dim 8  init normal(0, 0.5)  optimizer sgd(lr: 0.05)  sharding table_wise }
      input x: ids(a) { max 9 }
      input y: ids(b) like x
      input following: next(x)
      let g = linear(positional(lookup(x)), 8) + linear(lookup(y), 8)
      loss sampled_softmax(g, a, following, negatives: 5, normalize: tokens)
    }
    train { batch 12  steps 6  optimizer adam(lr: 1e-2)  balance on }
    workload w { generate { lengths uniform(0, 7)  ids zipf(1.05)  labels bernoulli(0.5)  samples 31 } }";

fn is_dispatch(action: &Action) -> bool {
    matches!(action, Action::DispatchRows { .. })
}

fn is_combine(action: &Action) -> bool {
    matches!(action, Action::Combine { .. })
}

/// Takes an operation that brings values elsewhere away: what it brought is read where it was.
fn stay(s: &mut Schedule, is: fn(&Action) -> bool) -> Option<()> {
    let at = find(s, is)?;
    let (from, to) = (s.train.ops[at].reads[1], s.train.ops[at].writes[0].place);
    for op in &mut s.train.ops {
        op.reads.iter_mut().filter(|o| o.place == to).for_each(|o| o.place = from.place);
    }
    remove(s, at);
    Some(())
}

/// Gives two operations of a kind and of one microbatch each other's values.
fn exchange(s: &mut Schedule, is: fn(&Action) -> bool) -> Option<()> {
    let list = all(s, is);
    let buffer = |o: Operand| match o.place {
        Place::Buffer(b) => s.train.buffers.get(b as usize),
        _ => None,
    };
    let (a, b) = list.iter().flat_map(|a| list.iter().map(move |b| (*a, *b))).find(|(a, b)| {
        let (x, y) = (s.train.ops[*a].reads[1], s.train.ops[*b].reads[1]);
        let (p, q) = (buffer(x), buffer(y));
        x.place != y.place
            && x.columns == y.columns
            && p.zip(q)
                .is_some_and(|(p, q)| (p.rows, p.columns, p.microbatch) == (q.rows, q.columns, q.microbatch))
    })?;
    let (x, y) = (s.train.ops[a].reads[1], s.train.ops[b].reads[1]);
    (s.train.ops[a].reads[1], s.train.ops[b].reads[1]) = (y, x);
    Some(())
}

/// For compiled models whose rows travel to the ranks that work on samples; not all have a place for each.
pub const CARRIED: &[Mutation] = &[
    says("values of rows that stay at home", "site", |s| stay(s, is_dispatch)),
    says("gradients that stay as assigned", "site", |s| stay(s, is_combine)),
    says("values of another lookup brought", "model", |s| exchange(s, is_dispatch)),
    says("gradients of another lookup brought back", "model", |s| {
        let at = find(s, is_combine)?;
        let is = s.train.ops[at].reads[1];
        let of = |o: &Operand| match o.place {
            Place::Buffer(b) => Some(s.train.buffers[b as usize].clone()),
            _ => None,
        };
        let want = of(&is)?;
        let mut others = s.train.ops.iter().flat_map(|op| &op.writes);
        let other = *others.find(|o| {
            o.place != is.place
                && of(o).is_some_and(|b| {
                    (b.element, b.rows, b.columns, b.microbatch, b.site)
                        == (want.element, want.rows, want.columns, want.microbatch, want.site)
                })
        })?;
        s.train.ops[at].reads[1] = Operand { accumulate: false, ..other };
        Some(())
    }),
    says("values brought by an operation as assigned", "site", |s| {
        let at = find(s, is_dispatch)?;
        s.train.ops[at].site = Site::Assigned;
        Some(())
    }),
    says("brought values that are still at home", "site", |s| {
        let at = find(s, is_dispatch)?;
        let Place::Buffer(b) = s.train.ops[at].writes[0].place else { return None };
        s.train.buffers[b as usize].site = Site::Home;
        Some(())
    }),
    says("gradients brought the wrong way", "site", |s| {
        let at = find(s, is_combine)?;
        s.train.ops[at].action = Action::DispatchRows { moved: 0.5 };
        Some(())
    }),
    says("rows expanded for samples as assigned", "site", |s| {
        let at = find(s, |a| matches!(a, Action::Expand | Action::Pool { .. }))?;
        s.train.ops[at].site = Site::Assigned;
        Some(())
    }),
    says("the model at home where its samples are as assigned", "site", |s| {
        s.train.ops.iter_mut().for_each(|op| op.site = Site::Home);
        Some(())
    }),
    says("rows on their way as assigned", "site", |s| {
        let b = s.train.buffers.iter().position(|b| !b.rows.of_samples())?;
        s.train.buffers[b].site = Site::Assigned;
        Some(())
    }),
    says("ids of samples at home for classes as assigned", "site", |s| {
        let at = find(s, |a| *a == Action::CopyIds)?;
        let Place::Buffer(b) = s.train.ops[at].writes[0].place else { return None };
        s.train.ops[at].site = Site::Home;
        s.train.buffers[b as usize].site = Site::Home;
        Some(())
    }),
    says("places of ids where the ids are not", "site", |s| {
        let at = find(s, |a| matches!(a, Action::Unique { .. }))?;
        let Place::Buffer(b) = s.train.ops[at].writes.last()?.place else { return None };
        let site = &mut s.train.buffers[b as usize].site;
        *site = if site.is_home() { Site::Assigned } else { Site::Home };
        Some(())
    }),
    says("ids of another table copied", "exchange", |s| {
        let at = find(s, |a| *a == Action::CopyIds)?;
        let other = s.inputs.iter().position(|i| i.name == "y")?;
        s.train.ops[at].reads[0].place = Place::Input(other as u32);
        let dispatch = dispatch(s)?;
        let list = (0..s.inputs.len() as u32).map(|i| Operand::new(Place::Input(i)));
        s.train.ops[dispatch].reads.truncate(1);
        s.train.ops[dispatch].reads.extend(list);
        Some(())
    }),
    says("ids of another sequence copied", "model", |s| {
        let at = find(s, |a| *a == Action::CopyIds)?;
        s.train.ops[at].reads[0].place = Place::Input(0);
        let dispatch = dispatch(s)?;
        s.train.ops[dispatch].reads.insert(1, Operand::new(Place::Input(0)));
        Some(())
    }),
    says("samples without what is read as assigned", "inputs", |s| {
        let at = dispatch(s)?;
        s.train.ops[at].reads.pop()?;
        if s.train.ops[at].reads.len() == 1 {
            s.train.ops[at].reads.push(Operand::new(Place::Input(0)));
        }
        Some(())
    }),
    says("rows that move more than all", "indices", |s| {
        let at = find(s, is_dispatch)?;
        s.train.ops[at].action = Action::DispatchRows { moved: -0.5 };
        Some(())
    }),
    says("values brought in another microbatch", "microbatch", |s| {
        let at = find(s, is_dispatch)?;
        let m = s.train.ops[at].microbatch?;
        s.train.ops[at].microbatch = Some((m + 1) % s.settings.microbatches);
        Some(())
    }),
    says("values of entries brought", "operands", |s| {
        let at = find(s, is_combine)?;
        let sums = find(s, |a| matches!(a, Action::ExpandGrad | Action::PoolGrad { .. }))?;
        s.train.ops[at].reads[1] = Operand { accumulate: false, ..s.train.ops[sums].writes[0] };
        Some(())
    }),
    says("values brought though nothing is balanced", "frame", |s| {
        s.settings.balance.take()?;
        s.reference.digest = s.reference_digest();
        Some(())
    }),
    order("samples at home by microbatch before those are planned", "batch", |s| {
        let at = find(s, |a| matches!(a, Action::Assign))? as u32;
        if s.settings.microbatches < 2 {
            return None;
        }
        let waits = |d: &Dep| d.op == at;
        let unique = |op: &&Op| matches!(op.action, Action::Unique { .. });
        s.train.ops.iter().filter(unique).find(|op| op.deps.iter().any(waits))?;
        s.train.ops.iter_mut().for_each(|op| op.deps.retain(|d| !waits(d)));
        Some(())
    }),
    order("values brought before they are made", "fresh", |s| {
        let list = all(s, is_dispatch);
        let at = list.into_iter().find(|at| {
            let op = &s.train.ops[*at];
            op.deps
                .iter()
                .any(|d| s.train.ops[d.op as usize].writes.iter().any(|w| w.place == op.reads[1].place))
        })?;
        s.train.ops[at].deps.clear();
        Some(())
    }),
];
