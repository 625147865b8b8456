//! Which tables travel together, and in how many parts dense gradients are summed.
//!
//! Rule `together` lets any transfers that do the same be one. One starts once, but waits for the operands of all and ends for
//! all at once: what a table's rows are needed for may have to wait for those of a larger one. By default tables travel
//! together whose operands are ready at once, and dense gradients in about eight parts. Tried are, from what sends most on:
//! other parts of the dense gradients, tables apart from the rest, in halves, each by itself, and two kinds together.

use std::collections::BTreeMap;

use fs_schedule::{Engine, Prediction, Schedule};

use super::GAIN;
use super::asked::{Asked, Change};
use super::climb::Move;
use super::outcome::Way;
use crate::compile::CompileOptions;
use crate::sched::policy;

/// Kinds of tables of which pairs are tried.
const PAIRED: usize = 4;
/// Tables of a kind that may travel each by itself.
const ALONE: usize = 8;
/// Into how many parts dense gradients may be cut, about.
const PARTS: [u64; 5] = [1, 2, 4, 16, 32];
/// What they may have at least, in bytes.
const LEAST: u64 = 1 << 14;

/// Alike tables, and what a rank sends of all of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind<'a> {
    pub tables: &'a [String],
    /// Bytes, and those to other nodes.
    pub wire: f64,
    pub far: f64,
}

/// By how much a step may be longer with each table alone, and a climb from there be worth it: other changes gain more there.
const WORTH: f64 = 1.1;
/// Where compute is busy but for so little no transfer holds much up.
const BUSY: f64 = 1.005;

fn busy(s: &Schedule) -> bool {
    let busy = |p: &Prediction| p.resource == Engine::Compute && p.step <= BUSY * p.resource_bound;
    s.prediction.as_ref().is_none_or(busy)
}

/// From where a climb may begin as well, and how many times as long the step may be there: all tables together wherever their
/// operands are ready; and every table, or every kind of many, by itself. None where somebody has said something of it.
pub(super) fn starts(
    kinds: &[Kind<'_>],
    s: &Schedule,
    asked: &Asked,
    options: &CompileOptions,
) -> Vec<(Move, f64)> {
    let tables: Vec<String> = kinds.iter().flat_map(|kind| kind.tables).cloned().collect();
    // Telling rows apart is work, which other strategies do not have.
    let busy = busy(s) && !policy::of(s.strategy).tells_rows_apart();
    if busy || tables.len() < 2 || !options.tables.groups.is_empty() {
        return Vec::new();
    }
    let sum = |of: fn(&Kind<'_>) -> f64| kinds.iter().map(of).sum();
    let all = Kind { tables: &tables, wire: sum(|kind| kind.wire), far: sum(|kind| kind.far) };
    let start = |to: &str, numbered| regroup(all, &asked.tables.groups, to.into(), numbered);
    let one = tables.iter().map(|t| (t.clone(), 0)).collect();
    let mut starts = vec![(start("travelling all together", one), 1.0 / GAIN)];
    let of_kind = |(tables, n): (&[String], u32)| tables.iter().map(|t| (t.clone(), n)).collect::<Vec<_>>();
    if kinds.len() > 1 && tables.len() <= ALONE {
        starts.push((start("travelling each alone", tables.iter().cloned().zip(0..).collect()), WORTH));
    } else if kinds.len() > 1 {
        let numbered = kinds.iter().map(|kind| kind.tables).zip(0..).flat_map(of_kind);
        starts.push((start("travelling each kind alone", numbered.collect()), WORTH));
    }
    starts
}

/// Changes of a schedule that may make it faster; `options` are those of the whole search.
pub(super) fn moves(kinds: &[Kind<'_>], s: &Schedule, asked: &Asked, options: &CompileOptions) -> Vec<Move> {
    if busy(s) {
        return Vec::new();
    }
    let mut moves = Vec::new();
    if options.bucket_bytes.is_none() {
        moves.extend(buckets(s, asked));
    }
    let open = |kind: &&Kind<'_>| kind.tables.iter().all(|t| !options.tables.groups.contains_key(t));
    let kinds: Vec<Kind<'_>> = kinds.iter().filter(open).copied().collect();
    let groups = &asked.tables.groups;
    moves.extend(kinds.iter().filter_map(|kind| apart(*kind, s, groups)));
    moves.extend(kinds.iter().flat_map(|kind| parts(*kind, groups)));
    for (i, a) in kinds.iter().take(PAIRED).enumerate() {
        moves.extend(kinds.iter().take(i).map(|b| both(*b, *a, groups)));
    }
    moves
}

type Groups = BTreeMap<String, u32>;

/// A number that no table has.
fn free(groups: &Groups) -> u32 {
    groups.values().max().map_or(0, |most| most.saturating_add(1))
}

/// With whom a table travels.
fn said(table: &str, groups: &Groups) -> Way {
    let with = groups.get(table).map(|number| {
        let others = groups.iter().filter(|(name, n)| *n == number && *name != table);
        others.map(|(name, _)| name.as_str()).collect::<Vec<_>>()
    });
    Way::Travelling(match with.as_deref() {
        None => "travelling with what is ready at once".into(),
        Some([]) => "travelling alone".into(),
        Some([one]) => format!("travelling with {one}"),
        Some([one, others @ ..]) => format!("travelling with {one} and {} more", others.len()),
    })
}

fn regroup(kind: Kind<'_>, groups: &Groups, to: String, new: Vec<(String, u32)>) -> Move {
    let from = said(kind.tables.first().map_or("", String::as_str), groups);
    Move {
        tables: kind.tables.to_vec(),
        ways: (from, Way::Travelling(to)),
        change: Change::Groups(new),
        wire: (kind.wire, kind.wire),
        far: (kind.far, kind.far),
        covered: false,
    }
}

/// A kind without the others.
fn apart(kind: Kind<'_>, s: &Schedule, groups: &Groups) -> Option<Move> {
    let number = groups.get(kind.tables.first()?);
    let with = |name: &String| {
        let same = number.is_none_or(|number| groups.get(name) == Some(number));
        same && !kind.tables.contains(name)
    };
    if !s.tables.iter().any(|t| with(&t.name)) {
        return None;
    }
    let new = free(groups);
    let new = kind.tables.iter().map(|t| (t.clone(), new)).collect();
    Some(regroup(kind, groups, "travelling apart from others".into(), new))
}

/// A kind in several transfers.
fn parts(kind: Kind<'_>, groups: &Groups) -> Vec<Move> {
    let (count, new) = (kind.tables.len(), free(groups));
    let cut = |parts: usize, to: &str| {
        let numbered = kind.tables.iter().zip(0..);
        let numbered = numbered.map(|(t, i): (_, usize)| (t.clone(), new + (i * parts / count) as u32));
        regroup(kind, groups, to.into(), numbered.collect())
    };
    let mut moves = Vec::new();
    if count >= 2 {
        moves.push(cut(2, "travelling in two halves"));
    }
    if (3..=ALONE).contains(&count) {
        moves.push(cut(count, "travelling each alone"));
    }
    moves
}

/// Two kinds without others.
fn both(a: Kind<'_>, b: Kind<'_>, groups: &Groups) -> Move {
    let new = free(groups);
    let tables: Vec<String> = a.tables.iter().chain(b.tables).cloned().collect();
    let numbered = tables.iter().map(|t| (t.clone(), new)).collect();
    let kind = Kind { tables: &tables, wire: a.wire + b.wire, far: a.far + b.far };
    regroup(kind, groups, "travelling together, apart from others".into(), numbered)
}

/// Dense gradients in other parts.
fn buckets(s: &Schedule, asked: &Asked) -> Vec<Move> {
    let total: u64 = s.parameters.iter().map(|p| 4 * u64::from(p.rows) * u64::from(p.columns)).sum();
    if s.ranks < 2 || !policy::of(s.strategy).buckets_gradients() {
        return Vec::new();
    }
    // Sums are made in parts, by owners of each, and sent to all.
    let sent = 2.0 * total as f64 * f64::from(s.ranks - 1) / f64::from(s.ranks);
    let said = |bytes: Option<u64>| {
        Way::Travelling(match bytes {
            Some(bytes) if bytes >= total => "summed at once".into(),
            Some(bytes) => format!("summed by {bytes} B"),
            None => "summed by an eighth".into(),
        })
    };
    let to = PARTS.map(|parts| total.div_ceil(parts)).into_iter().filter(|bytes| *bytes >= LEAST);
    to.map(|bytes| Move {
        tables: Vec::new(),
        ways: (said(asked.bucket_bytes), said(Some(bytes))),
        change: Change::Buckets(bytes),
        wire: (sent, sent),
        far: (0.0, 0.0),
        covered: false,
    })
    .collect()
}
