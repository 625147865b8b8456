//! Samples that are given to ranks: what the passes could not know of it, and what it is expected to buy.

use std::fmt::Write as _;

use fs_schedule::{Action, CostModel, Schedule, Stragglers};

use super::evidence::Evidence;
use super::policy;
use super::reasons::duration;
use super::sizes::Sizes;
use super::stragglers::{cost_of, draw};

/// Completes what the passes could not know: what a sample costs, unless the model says so, and how much is expected to
/// move. Operations must be priced, and are to be priced again.
pub(crate) fn complete(s: &mut Schedule, evidence: Evidence<'_>) {
    let cost = cost_of(s, evidence);
    let Some(balance) = &mut s.settings.balance else { return };
    if balance.cost == CostModel::default() {
        balance.cost = cost;
    }
    let moved = draw(s, evidence).map_or(0.0, |drawn| drawn.stragglers().moved);
    for op in &mut s.train.ops {
        if let Action::Dispatch { moved: share }
        | Action::DispatchRows { moved: share }
        | Action::Combine { moved: share } = &mut op.action
        {
            *share = moved;
        }
    }
}

/// For people: what giving samples to ranks buys, or would, where it sits, and what decided it; nothing where all ranks have
/// as much to do and nobody asks for more.
pub(crate) fn describe(s: &Schedule, e: &Stragglers) -> Option<String> {
    let waits = |most: f64| 100.0 * (1.0 - 1.0 / most.max(1.0));
    let unkept = unkept(s, e);
    if waits(e.at_home) < 0.05 {
        let same =
            || "what is known of lengths has them cost all ranks the same, and none is expected to move";
        return unkept.or_else(|| s.settings.balance.as_ref().map(|_| same().into()));
    }
    // Where transfers stop compute; otherwise once a batch.
    let microbatches = s.settings.microbatches;
    let meet = if microbatches > 1 && !policy::of(s.strategy).reorders() {
        format!(", in each of {microbatches} microbatches,")
    } else {
        String::new()
    };
    let home = format!(
        "{:.1}% of a step for the slowest{meet} if samples stay where they are read",
        waits(e.at_home)
    );
    let planned = format!("{:.1}% with {:.1}% of their bytes moved", waits(e.planned), 100.0 * e.moved);
    let assumed = s.prediction.as_ref().is_some_and(|p| Sizes::assumed(&p.limits));
    let mut text = match s.settings.balance {
        _ if unkept.is_some() => format!(
            "{}; the step is predicted as if samples stayed, which has ranks wait {home}",
            unkept.unwrap_or_default()
        ),
        Some(_) if assumed => {
            format!("lengths are not known; as assumed, ranks wait {planned}, and would wait {home}")
        }
        Some(_) => format!("ranks wait {planned}, and would wait {home}"),
        None if assumed => format!(
            "lengths are not known without data or a profile, so with `balance auto` samples stay; as \
             assumed, ranks wait {home}; they would wait {planned} (`balance on`)"
        ),
        None => format!("ranks wait {home}; they would wait {planned} (`balance on`)"),
    };
    if waits(e.bound) >= 0.5 {
        let _ =
            write!(text, "; no plan avoids {:.1}%, for which single samples are too long", waits(e.bound));
    }
    moves(s, e.unkept.is_some(), &mut text);
    if let Some(c) = e.compared {
        // As much of it as tells places apart.
        let ms = |seconds: f64| format!("{:.3} ms", seconds * 1e3);
        let _ = write!(
            text,
            "; chosen because a step of `serial` is expected to take {} balanced and {} not",
            ms(c.planned),
            ms(c.at_home)
        );
    }
    Some(text)
}

/// That ranks cannot hold what they are to work on, if that is expected.
pub(crate) fn unkept(s: &Schedule, e: &Stragglers) -> Option<String> {
    let (u, limit) = (e.unkept?, s.settings.balance.as_ref()?.limit?);
    let assumed = s.prediction.as_ref().is_some_and(|p| Sizes::assumed(&p.limits));
    let assumed = if assumed { "lengths are not known; as assumed, " } else { "" };
    let (most, unit) = (limit.most(), limit.unit());
    Some(format!(
        "{assumed}in {} of {} batches drawn no plan was found that keeps the limit of {most} {unit} a rank, and such a batch \
         ends the run; {} {unit} would do for these",
        u.batches, u.drawn, u.least
    ))
}

/// In which operations samples move (those of some batches, if `some`), and what is made of their rows where that moves instead
/// of ids.
fn moves(s: &Schedule, some: bool, text: &mut String) {
    let of = |is: fn(&Action) -> bool| s.train.ops.iter().filter(move |op| is(&op.action));
    let rows = of(|a| matches!(a, Action::DispatchRows { .. })).next().is_some();
    for op in of(|a| matches!(a, Action::Dispatch { .. })) {
        let ahead = match op.stage {
            n if n > 1 => format!(", {n} batches ahead"),
            1 => ", a batch ahead".into(),
            _ => String::new(),
        };
        let (name, engine, time) = (&op.name, op.engine.name(), duration(op.time as f64));
        let what = if rows { "what is not looked up moves" } else { "they move" };
        let which = if some { "where a plan is found " } else { "" };
        let _ = write!(text, "; {which}{what} in `{name}` ({engine}, {time}{ahead})");
    }
    let all = |is: fn(&Action) -> bool| {
        let time: u64 = of(is).map(|op| op.time).sum();
        let first = of(is).next()?;
        let more = match of(is).count() {
            1 => String::new(),
            n => format!(" and {} more", n - 1),
        };
        Some(format!("`{}`{more} ({}, {} a step)", first.name, first.engine.name(), duration(time as f64)))
    };
    if let Some(there) = all(|a| matches!(a, Action::DispatchRows { .. })) {
        let _ = write!(text, ", what is made of rows in {there}");
        if let Some(back) = all(|a| matches!(a, Action::Combine { .. })) {
            let _ = write!(text, ", and its gradients come back in {back}");
        }
    }
}
