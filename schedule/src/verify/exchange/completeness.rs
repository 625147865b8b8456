//! Everything that an exchange needs is there, once.

use std::collections::{BTreeMap, BTreeSet};

use super::{Flow, Side, Value, per_entry};
use crate::action::{Action, At, Entries};
use crate::attribute::Way;
use crate::operand::Operand;
use crate::reuse::Reuse;
use crate::verify::Report;

/// Merges and updates of an exchange, by operation and class.
#[derive(Default)]
struct Ends {
    merges: Vec<(u32, Vec<u32>, Operand)>,
    applies: Vec<(u32, Option<u32>)>,
}

pub(super) fn check(flow: &Flow<'_>, r: &mut Report) {
    let cx = flow.cx;
    for (value, makers) in &flow.made {
        // A `unique` has several inverses by itself.
        let once = makers.len() == 1 || matches!(value, Value::Inverse(_));
        r.check(once, "exchange", || {
            format!("{value} are made twice, by `{}` and `{}`", cx.name(makers[0]), cx.name(makers[1]))
        });
    }
    let mut ends: BTreeMap<u32, Ends> = BTreeMap::new();
    let mut mentioned: BTreeSet<u32> = BTreeSet::new();
    let mut summed = BTreeSet::new();
    for &i in &cx.sorted {
        let op = &cx.p.ops[i as usize];
        mentioned.extend(op.action.exchanges());
        match &op.action {
            Action::Merge { exchange, classes } => {
                ends.entry(*exchange).or_default().merges.push((i, classes.clone(), op.writes[0]));
            }
            Action::Apply { exchange, class } => {
                ends.entry(*exchange).or_default().applies.push((i, *class));
            }
            action => {
                if let Some(Entries { rows: At::Written(n), .. }) = action.facts().entries {
                    summed.extend(per_entry(cx, &op.writes[n]));
                }
            }
        }
    }
    let known: BTreeSet<Value> = flow.made.keys().map(|v| v.canonical(&cx.s.exchanges)).collect();
    let nothing = Ends::default();
    for (e, x) in (0..).zip(&cx.s.exchanges) {
        if cx.evaluation && !mentioned.contains(&e) {
            continue;
        }
        let ends = ends.get(&e).unwrap_or(&nothing);
        // Whose entries others have shares of is theirs to bring.
        if x.shares.is_some() {
            r.check(flow.made.contains_key(&Value::Entries(e)), "exchange", || {
                format!("no operation makes {}", Value::Entries(e))
            });
            continue;
        }
        let need = |value: Value, r: &mut Report| {
            r.check(flow.made.contains_key(&value), "exchange", || format!("no operation makes {value}"));
        };
        need(Value::Entries(x.entries), r);
        if cx.folded(e) {
            need(Value::Asked(x.entries), r);
        }
        need(Value::Rows(e), r);
        lookups(flow, e, ends, r);
        // What relays send are sums of what their node's ranks send them.
        let asks = x.leg.within().and_then(|within| cx.s.exchanges.get(within as usize)).unwrap_or(x);
        gradients(flow, e, ends, summed.contains(&asks.list()), &known, r);
    }
}

/// The classes that something is made for: `None` alone, or every class; anything else is a violation.
fn classes(
    flow: &Flow<'_>,
    e: u32,
    way: Way,
    what: &str,
    made: impl Fn(Option<u32>) -> bool,
    r: &mut Report,
) -> bool {
    let reuse = flow.cx.reuse(e);
    let count = reuse.map_or(0, |k: Reuse| k.count(way)) as u32;
    let missing: Vec<u32> = (0..count).filter(|c| !made(Some(*c))).collect();
    if made(None) {
        r.check(missing.len() == count as usize, "exchange", || {
            format!("{what} of exchange {e} are there for all classes together and for one of them")
        });
        return false;
    }
    r.check(missing.is_empty() && count > 0, "exchange", || match missing.first() {
        Some(c) => format!("{what} of class {c} of exchange {e} are missing"),
        None => format!("{what} of exchange {e} are missing"),
    });
    true
}

fn lookups(flow: &Flow<'_>, e: u32, ends: &Ends, r: &mut Report) {
    let cx = flow.cx;
    let made = |value: Value| flow.made.contains_key(&value);
    let split = classes(flow, e, Way::Forward, "lookups", |c| made(Value::Gathered(e, c)), r);
    if cx.replicated(e) {
        let most = usize::from(!cx.hot(e));
        r.check(ends.merges.len() <= most, "exchange", || {
            format!("rows of exchange {e} are merged more than {most} times")
        });
        r.check(!split, "exchange", || format!("lookups of replicated rows (exchange {e}) need no classes"));
        return;
    }
    let sent = classes(flow, e, Way::Forward, "row transfers", |c| made(Value::Arrived(e, c)), r);
    r.check(split == sent, "exchange", || {
        format!("rows of exchange {e} are looked up and sent by different classes")
    });
    // A relay hands each class on by itself.
    if cx.exchange(e).leg.within().is_some() {
        return;
    }
    let mut merged: BTreeMap<Option<u32>, u32> = BTreeMap::new();
    for (n, (op, classes, target)) in ends.merges.iter().enumerate() {
        let all = classes.is_empty().then_some(None);
        for c in classes.iter().copied().map(Some).chain(all) {
            if let Some(before) = merged.insert(c, *op) {
                let what = c.map_or("all".into(), |c| format!("class {c}"));
                r.fail(
                    "exchange",
                    format!(
                        "`{}` merges {what} of exchange {e}, which `{}` has merged",
                        cx.name(*op),
                        cx.name(before)
                    ),
                );
            }
        }
        let first = &ends.merges[0].2;
        let same = (target.place, target.columns) == (first.place, first.columns);
        r.check(same && target.accumulate == (n > 0), "exchange", || {
            let how = if n > 0 { "add to what earlier merges made" } else { "begin with the first" };
            format!("`{}` must {how}, for exchange {e}", cx.name(*op))
        });
        let arrived = if classes.is_empty() { 1 } else { 2 * classes.len() };
        let brings = cx.p.ops[*op as usize].reads.len() > arrived;
        r.check(brings == (n == 0 && cx.hot_of(e).is_some()), "exchange", || {
            format!(
                "`{}` must bring hot rows if it is the first merge of a share, and else none",
                cx.name(*op)
            )
        });
    }
    if cx.hot_of(e).is_some() && ends.merges.is_empty() {
        r.fail("exchange", format!("no operation merges rows of exchange {e}"));
    }
    let count = cx.reuse(e).map_or(0, |k| k.count(Way::Forward)) as u32;
    let missing = (0..count).find(|c| split && !merged.contains_key(&Some(*c)));
    if let Some(c) = missing {
        r.fail("exchange", format!("no operation merges class {c} of exchange {e}"));
    }
}

fn gradients(flow: &Flow<'_>, e: u32, ends: &Ends, summed: bool, known: &BTreeSet<Value>, r: &mut Report) {
    let cx = flow.cx;
    let made = |value: Value| flow.made.contains_key(&value);
    let mut applied: BTreeMap<Option<u32>, u32> = BTreeMap::new();
    for (op, class) in &ends.applies {
        if let Some(before) = applied.insert(*class, *op) {
            r.fail(
                "exchange",
                format!(
                    "`{}` and `{}` apply the same gradients of exchange {e}",
                    cx.name(before),
                    cx.name(*op)
                ),
            );
        }
    }
    if !summed || cx.evaluation {
        let none = applied.is_empty() && !made(Value::Gradients(e, None));
        r.check(none, "exchange", || format!("exchange {e} sends or applies gradients that nothing makes"));
        return;
    }
    let split = if let Some(between) = cx.exchange(e).leg.between() {
        r.check(applied.is_empty(), "exchange", || {
            format!("gradients of exchange {e} are applied by relays, which own no rows")
        });
        classes(flow, e, Way::Backward, "node's gradients", |c| made(Value::Summed(between, c)), r)
    } else {
        classes(flow, e, Way::Backward, "updates", |c| applied.contains_key(&c), r)
    };
    let sent = classes(flow, e, Way::Backward, "gradient transfers", |c| made(Value::Gradients(e, c)), r);
    r.check(split == sent, "exchange", || {
        format!("gradients of exchange {e} are sent and applied by different classes")
    });
    if split {
        for side in [Side::Asking, Side::Owning] {
            let value = Value::Classes(e, Way::Backward, side).canonical(&cx.s.exchanges);
            r.check(known.contains(&value), "exchange", || format!("no operation makes {value}"));
        }
    }
}
