//! Corruptions of schedules that give samples to ranks.

use fs_schedule::action::Phase;
use fs_schedule::{Action, Dep, Op, Place, Site};

use super::{Mutation, find, order, remove, says};

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
    says("samples without one of their inputs", "operands", |s| {
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
