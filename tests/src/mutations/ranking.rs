//! Corruptions of schedules that rank items: with a sampled softmax, biases and an evaluation.

use fs_schedule::{Action, Op};

use super::{Mutation, again, find, remove, says};

/// For a compiled model with a sampled softmax; the same form as [`super::mutations`].
pub const RANKING: &[Mutation] = &[
    says("rows of a sampled softmax once per occurrence", "exchange", |s| {
        s.exchanges.iter_mut().for_each(|e| e.unique = false);
        s.reference.digest = s.reference_digest();
        Some(())
    }),
    says("rows once per occurrence under the digest of unique ones", "reference", |s| {
        s.exchanges.iter_mut().for_each(|e| e.unique = false);
        Some(())
    }),
    says("items ranked twice", "model", |s| {
        let p = s.evaluation.as_mut()?;
        let at = p.ops.iter().position(|op| matches!(op.action, Action::RankItems { .. }))?;
        let new = Op { name: "again".into(), ..p.ops[at].clone() };
        p.ops.push(new);
        Some(())
    }),
    says("items ranked by nobody", "model", |s| {
        let evaluation = s.evaluation.take()?;
        let train = std::mem::replace(&mut s.train, evaluation);
        if let Some(at) = find(s, |a| matches!(a, Action::RankItems { .. })) {
            remove(s, at);
        }
        s.evaluation = Some(std::mem::replace(&mut s.train, train));
        Some(())
    }),
    says("no evaluation of a model that has one", "reference", |s| s.evaluation.take().map(drop)),
    says("items ranked by another measure", "model", |s| {
        let p = s.evaluation.as_mut()?;
        let rank = p.ops.iter_mut().find_map(|op| match &mut op.action {
            Action::RankItems { cosine } => Some(cosine),
            _ => None,
        })?;
        *rank = !*rank;
        Some(())
    }),
    says("one gradient added to and one overwritten", "writes", |s| {
        let at = find(s, |a| matches!(a, Action::LinearGradWeight { bias: true }))?;
        s.train.ops[at].writes[0].accumulate = !s.train.ops[at].writes[0].accumulate;
        Some(())
    }),
    says("another temperature", "model", |s| {
        let at = find(s, |a| matches!(a, Action::SampledSoftmax { .. }))?;
        if let Action::SampledSoftmax { temperature, .. } = &mut s.train.ops[at].action {
            *temperature *= 2.0;
        }
        Some(())
    }),
    says("dropout with another mask than its gradient's", "model", |s| {
        let at = find(s, |a| matches!(a, Action::DropoutGrad { .. }))?;
        if let Action::DropoutGrad { p, .. } = &mut s.train.ops[at].action {
            *p /= 2.0;
        }
        Some(())
    }),
    says("results of equal shape exchanged", "model", |s| {
        let at = s.train.ops.iter().position(|op| {
            matches!(op.action, Action::SiluAttentionGrad { .. } | Action::SoftmaxAttentionGrad { .. })
        })?;
        s.train.ops[at].writes.swap(0, 1);
        Some(())
    }),
    says("a sampled softmax that is counted twice", "model", |s| {
        let at = find(s, |a| matches!(a, Action::SampledSoftmax { .. }))?;
        again(s, at);
        Some(())
    }),
];
