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
        let mut new = Op { name: "again".into(), ..s.train.ops[at].clone() };
        // Planned behind all that its queue has to do before.
        new.start = s.train.ops.iter().map(|op| op.start + op.time + op.lag).max()?;
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
    says("rows on their way at another site than what asks for them", "site", |s| {
        let at = find(s, |a| matches!(a, Action::Gather { .. }))?;
        let site = &mut s.train.ops[at].site;
        *site = if site.is_home() { Site::Assigned } else { Site::Home };
        Some(())
    }),
    says("an update of parameters at home", "site", |s| {
        let at = find(s, |a| matches!(a, Action::DenseUpdate))?;
        s.train.ops[at].site = Site::Home;
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
        // What else they wait for may come after it.
        let ids = s.train.ops.iter_mut().filter(|op| {
            let facts = op.action.facts();
            facts.phase == Phase::InputDist && facts.transfer.is_none()
        });
        ids.for_each(|op| op.deps.clear());
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

fn asks(action: &Action) -> bool {
    matches!(action, Action::UniqueFor { .. })
}

fn sends(action: &Action) -> bool {
    matches!(action, Action::AllToAllIdsFor { .. })
}

/// The `unique` of an exchange.
fn lists(s: &Schedule, exchange: u32) -> Option<usize> {
    find(s, |a| *a == Action::Unique { exchange })
}

/// A `unique_for`, and the operation that draws some of its ids.
fn drawn(s: &Schedule) -> Option<(usize, usize, usize)> {
    let at = find(s, asks)?;
    let draws = |o: &Operand| {
        let is = |op: &Op| matches!(op.action, Action::DrawNegatives { .. }) && op.writes[0].place == o.place;
        s.train.ops.iter().position(is)
    };
    let reads = s.train.ops[at].reads.iter().enumerate();
    reads.skip(1).find_map(|(n, o)| draws(o).map(|by| (at, n, by)))
}

/// For compiled models in which who reads samples asks for rows on behalf of who works on them; not all have a place for
/// each.
pub const FOLDED: &[Mutation] = &[
    says("asking on behalf of others for samples as assigned", "site", |s| {
        let at = find(s, asks)?;
        s.train.ops[at].site = Site::Assigned;
        Some(())
    }),
    says("a list of samples at home that others ask for too", "site", |s| {
        let at = find(s, |a| matches!(a, Action::Unique { .. }))?;
        s.train.ops[at].site = Site::Home;
        let inverses = s.train.ops[at].writes.len() - s.train.ops[at].reads.len();
        for w in &s.train.ops[at].writes[inverses..] {
            let Place::Buffer(b) = w.place else { continue };
            s.train.buffers[b as usize].site = Site::Home;
        }
        Some(())
    }),
    says("drawn ids of samples as assigned asked for by who read others", "site", |s| {
        let (at, n, _) = drawn(s)?;
        let Action::UniqueFor { exchange } = s.train.ops[at].action else { return None };
        let own = lists(s, exchange)?;
        s.train.ops[at].reads[n] = s.train.ops[own].reads[n - 1];
        Some(())
    }),
    says("drawn ids of samples at home listed by who works on others", "site", |s| {
        let (at, n, _) = drawn(s)?;
        let Action::UniqueFor { exchange } = s.train.ops[at].action else { return None };
        let own = lists(s, exchange)?;
        s.train.ops[own].reads[n - 1] = s.train.ops[at].reads[n];
        Some(())
    }),
    says("rows of other ids asked for on behalf of others", "model", |s| {
        let at = find(s, |a| *a == Action::UniqueFor { exchange: 0 })?;
        let inputs = s.train.ops[at].reads.iter_mut().skip(1).filter(|o| matches!(o.place, Place::Input(_)));
        let mut inputs: Vec<_> = inputs.collect();
        let first = inputs.first()?.place;
        let other = inputs.iter().map(|o| o.place).find(|place| *place != first)?;
        for o in &mut inputs {
            o.place = if o.place == first { other } else { first };
        }
        Some(())
    }),
    says("rows of some ids asked for on behalf of others", "model", |s| {
        let (at, n, _) = drawn(s)?;
        if s.settings.microbatches > 1 {
            return None;
        }
        s.train.ops[at].reads.remove(n);
        Some(())
    }),
    says("drawn ids of another microbatch asked for", "microbatch", |s| {
        let (at, n, _) = drawn(s)?;
        let op = &s.train.ops[at];
        let each = (op.reads.len() - 1) / s.settings.microbatches as usize;
        if s.settings.microbatches < 2 {
            return None;
        }
        s.train.ops[at].reads.swap(n, n + each);
        Some(())
    }),
    says("on behalf of whom lengths seem to say", "exchange", |s| {
        let (at, share) = (find(s, asks)?, find(s, |a| *a == Action::ShareLengths)?);
        let lengths = s.train.ops[share].writes[0];
        let Place::Buffer(b) = lengths.place else { return None };
        if s.train.buffers[b as usize].columns != 2 {
            return None;
        }
        s.train.ops[at].reads[0] = lengths;
        Some(())
    }),
    says("samples sent to whom lengths seem to say", "exchange", |s| {
        let (at, share) = (dispatch(s)?, find(s, |a| *a == Action::ShareLengths)?);
        let lengths = s.train.ops[share].writes[0];
        let Place::Buffer(b) = lengths.place else { return None };
        if s.train.buffers[b as usize].columns != 2 {
            return None;
        }
        s.train.ops[at].reads[0] = lengths;
        Some(())
    }),
    says("as many entries sent on behalf of others as a rank lists for itself", "collective", |s| {
        let at = find(s, sends)?;
        let own = lists(s, s.train.ops[at].action.exchanges()[0])?;
        s.train.ops[at].reads[1] = s.train.ops[own].writes[1];
        Some(())
    }),
    says("lists that ranks send for themselves beside what others ask for them", "exchange", |s| {
        let at = find(s, sends)?;
        let exchanges = s.train.ops[at].action.exchanges().to_vec();
        let uses = s.train.ops[at].reads.len() > 3 * exchanges.len();
        let mut reads = Vec::new();
        for exchange in &exchanges {
            let own = lists(s, *exchange)?;
            reads.extend_from_slice(&s.train.ops[own].writes[..2 + usize::from(uses)]);
        }
        let op = &mut s.train.ops[at];
        (op.action, op.reads) = (Action::AllToAllIds { exchanges }, reads);
        Some(())
    }),
    says("asking on behalf of others where each rank asks for itself", "exchange", |s| {
        s.exchanges.iter_mut().for_each(|x| x.folded = false);
        Some(())
    }),
    says("asking on behalf of others for rows that lie everywhere", "exchanges", |s| {
        let e = s.exchanges.iter().position(|x| x.folded)?;
        let table = s.exchanges[e].table as usize;
        s.tables[table].sharding = fs_schedule::Sharding::DataParallel;
        Some(())
    }),
    says("asking on behalf of others though nothing is balanced", "exchanges", |s| {
        s.settings.balance.take()?;
        s.reference.digest = s.reference_digest();
        Some(())
    }),
    says("nothing asked for on behalf of others", "exchange", |s| {
        // Of the last one more is wrong, which is said before.
        let [at, _, ..] = all(s, asks)[..] else { return None };
        remove(s, at);
        Some(())
    }),
    says("entries of an exchange that there is not", "indices", |s| {
        let at = find(s, asks)?;
        let Place::Buffer(b) = s.train.ops[at].writes[0].place else { return None };
        let none = s.exchanges.len() as u32;
        s.train.buffers[b as usize].rows = fs_schedule::Extent::Symbol(fs_schedule::Symbol::Asked(none));
        Some(())
    }),
    order("samples at home listed before they are planned", "fresh", |s| {
        let (at, plan) = (find(s, asks)?, find(s, |a| matches!(a, Action::Assign))?);
        super::unorder(s, plan, at, 0)
    }),
    order("microbatches at home listed before those are planned", "batch", |s| {
        let (at, plan) = (find(s, asks)?, find(s, |a| matches!(a, Action::Assign))?);
        if s.settings.microbatches < 2 {
            return None;
        }
        super::unorder(s, plan, at, 0)
    }),
    order("entries sent before they are listed", "fresh", |s| {
        let (at, list) = (find(s, sends)?, find(s, asks)?);
        super::unorder(s, list, at, 0)
    }),
    order("rows looked up before anybody has asked", "sizes", |s| {
        let sent = find(s, sends)?;
        let exchange = s.train.ops[sent].action.exchanges()[0];
        let at = find(s, |a| matches!(a, Action::Gather { exchange: e, .. } if *e == exchange))?;
        super::unorder(s, sent, at, 0)
    }),
];
