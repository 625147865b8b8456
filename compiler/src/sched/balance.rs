//! Samples that are given to ranks: what the passes could not know of it, and what it is expected to buy.

use std::fmt::Write as _;

use fs_schedule::{Action, CostModel, Profile, Schedule, Stragglers};

use super::reasons::duration;
use super::stragglers::{cost_of, draw};

/// Completes what the passes could not know: what a sample costs, unless the model says so, and how much is expected to
/// move. Operations must be priced, and are to be priced again.
pub(crate) fn complete(s: &mut Schedule, profile: Option<&Profile>) {
    let cost = cost_of(s, profile);
    let Some(balance) = &mut s.settings.balance else { return };
    if balance.cost == CostModel::default() {
        balance.cost = cost;
    }
    let moved = draw(s, profile).map_or(0.0, |drawn| drawn.stragglers().moved);
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
/// as much to do.
pub(crate) fn describe(s: &Schedule, e: &Stragglers) -> Option<String> {
    let waits = |most: f64| 100.0 * (1.0 - 1.0 / most.max(1.0));
    if waits(e.at_home) < 0.05 {
        return None;
    }
    let home =
        format!("{:.1}% of a step for the slowest if samples stay where they are read", waits(e.at_home));
    let planned = format!("{:.1}% with {:.1}% of their bytes moved", waits(e.planned), 100.0 * e.moved);
    let mut text = match s.settings.balance {
        Some(_) => format!("ranks wait {planned}, and would wait {home}"),
        None => format!("ranks wait {home}; they would wait {planned} (`balance on`)"),
    };
    for op in s.train.ops.iter().filter(|op| matches!(op.action, Action::Dispatch { .. })) {
        let ahead = match op.stage {
            n if n > 1 => format!(", {n} batches ahead"),
            1 => ", a batch ahead".into(),
            _ => String::new(),
        };
        let (name, engine, time) = (&op.name, op.engine.name(), duration(op.time as f64));
        let _ = write!(text, "; they move in `{name}` ({engine}, {time}{ahead})");
    }
    if let Some(c) = e.compared {
        let ms = |seconds: f64| duration(seconds * 1e9);
        let _ = write!(
            text,
            "; chosen because a step of `serial` is expected to take {} balanced and {} not",
            ms(c.planned),
            ms(c.at_home)
        );
    }
    Some(text)
}
