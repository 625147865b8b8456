//! Rules `frame`, `batch`, `in-flight`, `dense` and `parameter`: batches, dense parameters and their gradients.

use std::collections::BTreeMap;

use super::{Context, Report};
use crate::action::{Action, Effect, Facts, Phase, Programs, Sizes};
use crate::attribute::Site;
use crate::operand::Place;

pub(super) fn check(cx: &Context<'_>, r: &mut Report) {
    frame(cx, r);
    parameters(cx, r);
}

fn frame(cx: &Context<'_>, r: &mut Report) {
    let p = cx.p;
    let loads: Vec<u32> =
        (0..p.ops.len() as u32).filter(|i| p.ops[*i as usize].action.has(Effect::LoadsBatch)).collect();
    r.check(loads.len() == 1, "frame", || format!("a step loads one batch, this one {}", loads.len()));
    let (plans, assigns) = balance(cx, r);
    for (i, op) in (0..).zip(&p.ops) {
        let programs = op.action.facts().programs;
        let strange = programs == Programs::Training || op.stage != 0;
        r.check(!(cx.evaluation && strange), "frame", || {
            format!("`{}` trains or is staged in an evaluation", op.name)
        });
        r.check(cx.evaluation || programs != Programs::Evaluation, "frame", || {
            format!("`{}` ranks items in a training step", op.name)
        });
        let Some(&load) = loads.first().filter(|l| **l != i) else { continue };
        cx.need(load, i, 0, "batch", r, || "the first loads the batch that the second works on".into());
        if let Some(assigns) = assigns.filter(|_| op.site == Site::Assigned) {
            cx.need(assigns, i, 0, "batch", r, || {
                "the first brings the samples that the second works on".into()
            });
        }
        // Microbatches are planned, at home too.
        let brings = matches!(op.action.facts().phase, Phase::Load | Phase::Balance);
        let cut = cx.s.settings.microbatches > 1 && op.site == Site::Home && !brings;
        if let Some(plans) = plans.filter(|_| cut) {
            cx.need(plans, i, 0, "batch", r, || {
                "the first says which samples at home are of the second's microbatch".into()
            });
        }
        // Sizes of buffers of an earlier batch are needed as long.
        let oldest = op.reads.iter().map(|o| i64::from(o.batch)).min().unwrap_or(0).min(0);
        let replaced = i64::from(p.in_flight) + oldest;
        cx.need(i, load, replaced, "in-flight", r, || {
            format!("with {} batches in flight, that load replaces what the first uses", p.in_flight)
        });
    }
}

/// Samples are given to ranks once if the settings say so, and not at all otherwise. The operations that plan and that
/// bring them.
fn balance(cx: &Context<'_>, r: &mut Report) -> (Option<u32>, Option<u32>) {
    let wanted = usize::from(cx.s.settings.balance.is_some() && !cx.evaluation);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for op in cx.p.ops.iter().filter(|op| op.action.facts().phase == Phase::Balance) {
        *counts.entry(op.action.name()).or_default() += 1;
    }
    let steps = [Action::ShareLengths, Action::Assign, Action::Dispatch { moved: 0.0 }];
    for name in steps.map(|action| action.name()) {
        let found = counts.get(&name).copied().unwrap_or(0);
        r.check(found == wanted, "frame", || format!("a step has {wanted} of `{name}`, this one {found}"));
    }
    let first = |is: &dyn Fn(&Facts<'_>) -> bool| {
        (0..).zip(&cx.p.ops).find(|(_, op)| is(&op.action.facts())).map(|(i, _)| i)
    };
    (first(&|f| f.learns.sizes == Sizes::Assigned), first(&|f| f.effects.contains(&Effect::AssignsBatch)))
}

/// Who makes, reduces, uses for an update, and reads a parameter's gradient or the parameter.
#[derive(Default)]
struct Users {
    makers: Vec<u32>,
    reductions: Vec<u32>,
    updates: Vec<u32>,
    readers: Vec<u32>,
}

fn parameters(cx: &Context<'_>, r: &mut Report) {
    let mut all: BTreeMap<u32, Users> = BTreeMap::new();
    for &i in &cx.sorted {
        let op = &cx.p.ops[i as usize];
        let Facts { phase, results, .. } = op.action.facts();
        let paired = phase == Phase::DenseUpdate;
        for (o, w) in op.reads.iter().zip(&op.writes).filter(|_| paired) {
            let pair = match (o.place, w.place) {
                (Place::Gradient(a), Place::Gradient(b) | Place::Parameter(b)) => a == b,
                _ => false,
            };
            r.check(pair, "dense", || format!("`{}` makes {w} from {o}", op.name));
        }
        for (at, w) in op.writes.iter().enumerate() {
            match w.place {
                Place::Parameter(n) => all.entry(n).or_default().updates.push(i),
                Place::Gradient(n) if results.gradients.contains(&at) => {
                    all.entry(n).or_default().makers.push(i);
                }
                Place::Gradient(n) => all.entry(n).or_default().reductions.push(i),
                _ => {}
            }
        }
        for o in &op.reads {
            if let Place::Parameter(n) = o.place {
                all.entry(n).or_default().readers.push(i);
            }
        }
    }
    for (n, u) in &all {
        let name = &cx.s.parameters[*n as usize].name;
        let wanted = usize::from(!u.makers.is_empty() && !cx.evaluation);
        r.check(u.reductions.len() == wanted, "dense", || {
            format!("g{n} of `{name}` is summed over ranks {} times, must be {wanted}", u.reductions.len())
        });
        r.check(u.updates.len() == wanted, "dense", || {
            format!("p{n} `{name}` is updated {} times, must be {wanted}", u.updates.len())
        });
        let (Some(&reduction), Some(&update)) = (u.reductions.first(), u.updates.first()) else { continue };
        let rank = |op: u32| cx.rank[op as usize];
        for maker in &u.makers {
            r.check(rank(*maker) < rank(reduction), "dense", || {
                format!("`{}` adds to g{n} after `{}`", cx.name(*maker), cx.name(reduction))
            });
        }
        r.check(rank(reduction) < rank(update), "dense", || {
            format!("`{}` uses g{n} before `{}`", cx.name(update), cx.name(reduction))
        });
        for reader in &u.readers {
            cx.need(update, *reader, 1, "parameter", r, || format!("the second reads p{n} `{name}`"));
            cx.need(*reader, update, 0, "parameter", r, || format!("the first reads p{n} `{name}`"));
        }
        cx.need(update, update, 1, "parameter", r, || format!("both update p{n} `{name}`"));
    }
}
