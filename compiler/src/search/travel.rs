//! Which tables travel together, and in how many parts dense gradients are summed.
//!
//! Rule `together` lets any transfers that do the same be one. One starts once, but waits for the operands of all and ends for
//! all at once: what a table's rows are needed for may have to wait for those of a larger one. By default tables travel
//! together whose operands are ready at once, and dense gradients in up to eight parts that are worth a transfer. Tried are
//! other parts of the dense gradients, many tables in some parts, so that compute works on one while the next is under way, and, from
//! what sends most on, tables apart from the rest, in halves, each by itself, two kinds together, and all.

use std::collections::{BTreeMap, BTreeSet};

use fs_schedule::{Action, Engine, Prediction, Schedule};

use super::asked::{Asked, Change};
use super::climb::Move;
use super::gain;
use super::outcome::Way;
use crate::compile::CompileOptions;
use crate::sched::{policy, relays};

/// Kinds of tables of which pairs are tried.
const PAIRED: usize = 4;
/// Tables of a kind that may travel each by itself.
const ALONE: usize = 8;
/// Kinds that may: a transfer of each is more than any step hides.
const KINDS_ALONE: usize = 256;
/// How many tables may be cut, the most promising first.
const CUTS: [Cut; 10] = [
    Cut::Bytes(3),
    Cut::Tables(3),
    Cut::Bytes(4),
    Cut::Tables(4),
    Cut::Bytes(2),
    Cut::Tables(2),
    Cut::Bytes(8),
    Cut::Tables(8),
    Cut::Bytes(16),
    Cut::Tables(16),
];
/// With how many of these a climb may begin where tables live elsewhere, and with which where they do not.
const BEGUN: usize = 4;
const AT_HOME: Cut = Cut::Bytes(4);

/// In which parts many tables travel.
#[derive(Debug, Clone, Copy)]
enum Cut {
    /// Of as many bytes.
    Bytes(usize),
    /// Of as many tables.
    Tables(usize),
}

impl Cut {
    fn parts(self) -> usize {
        match self {
            Self::Bytes(parts) | Self::Tables(parts) => parts,
        }
    }

    /// In which part what lies at a share of all is.
    fn part(self, share: f64) -> usize {
        ((share * self.parts() as f64) as usize).min(self.parts() - 1)
    }

    fn told(self) -> String {
        match self {
            Self::Bytes(parts) => format!("travelling in {parts} parts"),
            Self::Tables(parts) => format!("travelling in {parts} parts of as many tables"),
        }
    }
}
/// Into how many parts dense gradients may be cut, about.
const PARTS: [u64; 6] = [1, 2, 4, 8, 16, 32];
/// What they may have at least, in bytes.
const LEAST: u64 = 1 << 14;

/// Alike tables, and what a rank sends of all of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind<'a> {
    pub tables: &'a [String],
    /// Bytes, and those to other nodes.
    pub wire: f64,
    pub far: f64,
    /// Values of the rows that it asks for, wherever they live.
    pub rows: f64,
}

/// By how much a step may be longer where a climb begins otherwise, as with each table alone, and be worth it: other changes gain more there.
pub(super) const WORTH: f64 = 1.1;
/// Where compute is busy but for so little no transfer holds much up.
const BUSY: f64 = 1.005;

fn busy(s: &Schedule) -> bool {
    let busy = |p: &Prediction| p.resource == Engine::Compute && p.step <= BUSY * p.resource_bound;
    s.prediction.as_ref().is_none_or(busy)
}

/// Kinds of whose company nobody has said anything.
fn open<'k>(kinds: &[Kind<'k>], options: &CompileOptions) -> Vec<Kind<'k>> {
    let open = |kind: &&Kind<'_>| kind.tables.iter().all(|t| !options.tables.groups.contains_key(t));
    kinds.iter().filter(open).copied().collect()
}

/// From where a climb may begin as well, and how many times as long the step may be there: all tables together wherever their
/// operands are ready; every table, or every kind of many, by itself; and dense gradients at once, unless they are: which strategy
/// is shortest depends on it. What somebody has said stays.
pub(super) fn starts(
    kinds: &[Kind<'_>],
    s: &Schedule,
    asked: &Asked,
    options: &CompileOptions,
) -> Vec<(Move, f64)> {
    let mut starts = Vec::new();
    let least = 1.0 / gain(options);
    let serial = !policy::of(s.strategy).buckets_gradients();
    let sums = s.train.ops.iter().filter(|op| op.action == Action::AllReduce).count();
    if options.bucket_bytes.is_none() && (serial || sums > 1) {
        starts.extend(buckets(s, asked, options).into_iter().take(1).map(|at_once| (at_once, least)));
    }
    let kinds = open(kinds, options);
    // Telling rows apart is work, which other strategies do not have.
    let busy = busy(s) && !policy::of(s.strategy).tells_rows_apart();
    let tables: usize = kinds.iter().map(|kind| kind.tables.len()).sum();
    if busy || tables < 2 {
        return starts;
    }
    let groups = &asked.tables.groups;
    starts.extend(all(&kinds, groups).map(|together| (together, least)));
    let in_parts = cut(&kinds, s, groups, (AT_HOME, |kind| kind.wire)).filter(|_| tables > ALONE);
    starts.extend(in_parts.map(|in_parts| (in_parts, least)));
    let of_kind =
        |(kind, n): (&Kind<'_>, u32)| kind.tables.iter().map(move |t| (t.clone(), n)).collect::<Vec<_>>();
    let each = kinds.iter().flat_map(|kind| kind.tables).cloned();
    if kinds.len() > 1 && tables <= ALONE {
        let numbered = each.zip(free(groups)).collect();
        starts.push((of_all(&kinds, groups, "travelling each alone", numbered), WORTH));
    } else if (2..=KINDS_ALONE).contains(&kinds.len()) {
        let numbered = kinds.iter().zip(free(groups)).flat_map(of_kind).collect();
        starts.push((of_all(&kinds, groups, "travelling each kind alone", numbered), WORTH));
    }
    starts
}

/// A change of several kinds.
fn of_all(kinds: &[Kind<'_>], groups: &Groups, to: &str, numbered: Vec<(String, u32)>) -> Move {
    let tables: Vec<String> = kinds.iter().flat_map(|kind| kind.tables).cloned().collect();
    let sum = |of: fn(&Kind<'_>) -> f64| kinds.iter().map(of).sum();
    let [wire, far, rows] = [sum(|kind| kind.wire), sum(|kind| kind.far), sum(|kind| kind.rows)];
    let kind = Kind { tables: &tables, wire, far, rows };
    regroup(kind, groups, to.into(), numbered)
}

/// All that are open together, wherever their operands are ready.
fn all(kinds: &[Kind<'_>], groups: &Groups) -> Option<Move> {
    let number = free(groups).next()?;
    let numbered: Vec<_> = kinds.iter().flat_map(|kind| kind.tables).map(|t| (t.clone(), number)).collect();
    (numbered.len() > 1).then(|| of_all(kinds, groups, "travelling all together", numbered))
}

/// In which parts a climb may begin where all tables are distributed otherwise. What those send then that others own is as their rows;
/// of replicas that somebody has named this is another number.
pub(super) fn begun(kinds: &[Kind<'_>], s: &Schedule, asked: &Asked, options: &CompileOptions) -> Vec<Move> {
    let kinds = open(kinds, options);
    let cuts = CUTS.iter().take(BEGUN);
    cuts.filter_map(|how| cut(&kinds, s, &asked.tables.groups, (*how, |kind| kind.rows))).collect()
}

/// All that are open in parts, in the model's order, if there are two tables for each part and no table is so large that a part would
/// have none.
fn cut(
    kinds: &[Kind<'_>],
    s: &Schedule,
    groups: &Groups,
    (how, bytes): (Cut, fn(&Kind<'_>) -> f64),
) -> Option<Move> {
    let each = kinds.iter().flat_map(|kind| {
        let share = if matches!(how, Cut::Tables(_)) { 1.0 } else { bytes(kind) / kind.tables.len() as f64 };
        kind.tables.iter().map(move |t| (t.as_str(), share))
    });
    let sends: BTreeMap<&str, f64> = each.collect();
    let all: f64 = sends.values().sum();
    if sends.len() < 2 * how.parts() || !all.is_normal() {
        return None;
    }
    let numbers: Vec<u32> = free(groups).take(how.parts()).collect();
    let mut before = 0.0;
    let tables = s.tables.iter().filter_map(|t| Some((&t.name, *sends.get(t.name.as_str())?)));
    let numbered = tables.map(|(name, bytes)| {
        let part = how.part((before + bytes / 2.0) / all);
        before += bytes;
        (name.clone(), numbers[part])
    });
    let numbered: Vec<(String, u32)> = numbered.collect();
    let found: BTreeSet<u32> = numbered.iter().map(|(_, number)| *number).collect();
    (found.len() == numbers.len()).then(|| of_all(kinds, groups, &how.told(), numbered))
}

/// Other parts of the dense gradients. Fewer are also fewer updates, which compute does.
pub(super) fn sums(s: &Schedule, asked: &Asked, options: &CompileOptions) -> Vec<Move> {
    let open = options.bucket_bytes.is_none() && policy::of(s.strategy).buckets_gradients();
    if open { buckets(s, asked, options) } else { Vec::new() }
}

/// Changes of a schedule that may make it faster; `options` are those of the whole search.
pub(super) fn moves(kinds: &[Kind<'_>], s: &Schedule, asked: &Asked, options: &CompileOptions) -> Vec<Move> {
    let mut moves = sums(s, asked, options);
    if busy(s) {
        return moves;
    }
    let kinds = open(kinds, options);
    let groups = &asked.tables.groups;
    moves.extend(CUTS.iter().filter_map(|how| cut(&kinds, s, groups, (*how, |kind| kind.wire))));
    moves.extend(kinds.iter().filter_map(|kind| apart(*kind, s, groups)));
    moves.extend(kinds.iter().flat_map(|kind| parts(*kind, groups)));
    for (i, a) in kinds.iter().take(PAIRED).enumerate() {
        moves.extend(kinds.iter().take(i).filter_map(|b| both(*b, *a, groups)));
    }
    if kinds.len() > 2 {
        moves.extend(all(&kinds, groups));
    }
    moves
}

type Groups = BTreeMap<String, u32>;

/// Numbers that no table has.
fn free(groups: &Groups) -> impl Iterator<Item = u32> + '_ {
    let taken: BTreeSet<u32> = groups.values().copied().collect();
    (0..=u32::MAX).filter(move |number| !taken.contains(number))
}

/// With whom a table travels.
pub(super) fn said(table: &str, groups: &Groups) -> Way {
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
    let new = free(groups).next()?;
    let new = kind.tables.iter().map(|t| (t.clone(), new)).collect();
    Some(regroup(kind, groups, "travelling apart from others".into(), new))
}

/// A kind in several transfers.
fn parts(kind: Kind<'_>, groups: &Groups) -> Vec<Move> {
    let count = kind.tables.len();
    let cut = |parts: usize, to: &str| {
        let new: Vec<u32> = free(groups).take(parts).collect();
        let numbered = kind.tables.iter().enumerate().map(|(i, t)| (t.clone(), new[i * parts / count]));
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
fn both(a: Kind<'_>, b: Kind<'_>, groups: &Groups) -> Option<Move> {
    let new = free(groups).next()?;
    let numbered = a.tables.iter().chain(b.tables).map(|t| (t.clone(), new)).collect();
    Some(of_all(&[a, b], groups, "travelling together, apart from others", numbered))
}

/// Ranks of a node of the cluster; as relays have it, if nobody has named one.
pub(super) fn of_a_node(s: &Schedule, options: &CompileOptions) -> u32 {
    let named = options.cluster.as_ref().map(|cluster| cluster.gpus_per_node);
    named.unwrap_or_else(|| relays::nodes(s).each()).clamp(1, s.ranks.max(1))
}

/// Bytes of dense gradients.
fn dense(s: &Schedule) -> u64 {
    s.parameters.iter().map(|p| 4 * u64::from(p.rows) * u64::from(p.columns)).sum()
}

/// In how large parts dense gradients are summed.
pub(super) fn summed(s: &Schedule, bytes: Option<u64>) -> Way {
    Way::Travelling(match bytes {
        Some(bytes) if bytes >= dense(s) => "summed at once".into(),
        Some(bytes) => format!("summed by {bytes} B"),
        None => "summed in parts worth a transfer".into(),
    })
}

/// Dense gradients in other parts.
fn buckets(s: &Schedule, asked: &Asked, options: &CompileOptions) -> Vec<Move> {
    let total = dense(s);
    if s.ranks < 2 {
        return Vec::new();
    }
    // Sums are made in parts, by owners of each, and sent to all; or node by node, whose sums go to the owners of other nodes.
    let (ranks, node) = (f64::from(s.ranks), f64::from(of_a_node(s, options)));
    let wire = s.settings.wire.dense;
    let travels: u64 = s.parameters.iter().map(|p| u64::from(p.rows) * wire.row_bytes(p.columns)).sum();
    let nodes = f64::from(s.sums().count());
    let [sent, far] =
        if nodes > 1.0 { [ranks - 1.0, nodes - 1.0] } else { [ranks - 1.0, (ranks - node).max(0.0)] }
            .map(|others| 2.0 * travels as f64 * others / ranks);
    let to = PARTS.map(|parts| total.div_ceil(parts)).into_iter().filter(|bytes| *bytes >= LEAST);
    to.map(|bytes| Move {
        tables: Vec::new(),
        ways: (summed(s, asked.bucket_bytes), summed(s, Some(bytes))),
        change: Change::Buckets(bytes),
        wire: (sent, sent),
        far: (far, far),
        covered: false,
    })
    .collect()
}
