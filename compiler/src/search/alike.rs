//! Tables that are alike: they differ in name only, and in who owns them, so that what becomes of one may become of all.

use std::collections::BTreeMap;

use fs_dsl::checked::{self, Program};
use fs_schedule::counts::Counts;
use fs_schedule::reuse::Reuse;
use fs_schedule::{Element, Exchange, Leg, Schedule, Sharding, SparseOptimizer, Table};

use super::asked::anywhere;
use super::uses::uses;
use super::{Candidate, Search, travel};
use crate::algebra::cost::{Classes, Sizes};
use crate::algebra::rules::{Context, Use};
use crate::compile::{CompileOptions, Compiled};
use crate::distribution::{At, Choice};
use crate::passes::plan_sharding::columns;
use crate::sched::evidence::Evidence;
use crate::sched::memo::Memo;
use crate::sched::rows::{Entries, Expected, Law, Popular};
use crate::sched::{relays, sizes};

/// Lists of ids of a table that are looked at, where microbatches are no more.
const LISTS: usize = 8;
/// Reuse distances to tell apart.
const LOOKAHEADS: [u32; 3] = [1, 2, 3];

/// Tables that are alike, and what they may become.
#[derive(Debug, Clone)]
pub struct Alike {
    /// Their names.
    pub tables: Vec<String>,
    /// How they are distributed.
    pub now: Choice,
    /// What rules may know of each.
    pub context: Context,
    /// What to expect of each.
    pub sizes: Sizes,
}

impl Search<'_> {
    /// Those of a schedule, by what they can become.
    pub(super) fn alike(&self, now: &Compiled, candidate: Candidate) -> Vec<Alike> {
        let memo = self.aim.target().memo;
        known_alike(self.program, &now.schedule, (&self.options, self.folds), (candidate, memo))
    }
}

/// How a table is distributed whose first exchange this is.
fn chosen(s: &Schedule, x: &Exchange, t: &Table) -> Choice {
    // Of a table with hot rows that which asks owners for the others.
    let owned = x.shares.and_then(|shares| s.exchanges.get(shares.owned as usize));
    let x = owned.unwrap_or(x);
    Choice {
        unique: x.unique,
        lookahead: x.lookahead,
        windows: x.windows,
        sharding: t.sharding.clone(),
        relayed: x.leg.between().is_some(),
        folded: x.folded,
    }
}

/// How tables are distributed, by name.
pub(super) fn choices(s: &Schedule) -> BTreeMap<String, Choice> {
    let mut choices = BTreeMap::new();
    for x in s.exchanges.iter().filter(|x| x.leg.within().is_none()) {
        let Some(t) = s.tables.get(x.table as usize) else { continue };
        choices.entry(t.name.clone()).or_insert_with(|| chosen(s, x, t));
    }
    choices
}

/// The tables of a schedule that train, by what they can become; those that send most first.
/// `folds`: nobody has said who asks for rows of samples that move.
pub fn alike(
    program: &Program,
    s: &Schedule,
    asked: (&CompileOptions, bool),
    candidate: Candidate,
) -> Vec<Alike> {
    known_alike(program, s, asked, (candidate, None))
}

/// The same with what follows from laws of ids, as far as it is known.
pub(super) fn known_alike(
    program: &Program,
    s: &Schedule,
    (options, folds): (&CompileOptions, bool),
    (candidate, memo): (Candidate, Option<&Memo>),
) -> Vec<Alike> {
    // Of a profile's rows only one kind is known, so laws stand for both.
    let of = (s.ranks, s.settings.microbatches.max(1));
    let counted = |c: &&Counts| options.profile.is_none() && (c.ranks, c.microbatches) == of;
    let counts = options.counts.as_ref().filter(counted);
    let mean = sizes::Sizes::mean(s, Evidence { memo, ..Evidence::counted(counts) });
    let own = Expected::default();
    let known = memo.map_or(&own, |memo| &memo.rows);
    let draws = sizes::draws(s, &mean);
    let ids = sizes::ids_of(s);
    let uses = uses(s);
    // Of samples that are looked up at home nobody else asks for the rows.
    let moved = matches!(At::of(s), Some(At::Ids | At::Folded));
    let share = sizes::moved(s);
    let mut classes: BTreeMap<String, Alike> = BTreeMap::new();
    for (e, x) in (0..).zip(&s.exchanges) {
        // The first part of a table stands for all.
        let (Some(t), Some(used)) = (s.tables.get(x.table as usize), uses.get(&e)) else { continue };
        let Some(drawn) = draws.get(&e).copied() else { continue };
        let declared = program.model.iter().flat_map(|m| &m.tables).find(|d| d.name == t.name);
        let named = &options.tables;
        let open = declared.is_some_and(|d| d.sharding == checked::Sharding::Auto)
            && !named.sharding.contains_key(&t.name)
            && !named.placement.contains_key(&t.name)
            // Replicas ask nobody.
            && named.fold.get(&t.name) != Some(&true)
            // Nor do they have hot rows.
            && t.hot.is_empty()
            && s.ranks > 1;
        let microbatches = s.settings.microbatches.max(1);
        let now = chosen(s, x, t);
        let apart = candidate.policy.tells_rows_apart() && !named.lookahead.contains_key(&t.name);
        let windows = vec![now.windows.unwrap_or(microbatches)];
        let lookaheads = if apart { lookaheads(options.lookahead, now.lookahead) } else { Vec::new() };
        let whole_rows = matches!(t.optimizer, SparseOptimizer::RowwiseAdagrad { .. });
        let of_all = (!folds).then(|| options.balance_at == Some(At::Folded));
        // Nobody lists hot rows for others.
        let never = (!t.hot.is_empty()).then_some(false);
        let folds = named.fold.get(&t.name).copied().or(of_all).or(never);
        let context = Context {
            columns: t.dim,
            exchange: 0,
            uses: vec![Use::Each; stand_ins(used.lists, (microbatches as usize, x.windows == Some(1)))],
            microbatches,
            lookaheads,
            windows,
            cuts: match &t.sharding {
                Sharding::ColumnWise { .. } => columns::columns(t.dim, t.sharding.parts()),
                _ if open && !whole_rows => {
                    let parts = columns::parts(t.dim, s.ranks, s.settings.wire.rows, false);
                    columns::columns(t.dim, parts.unwrap_or(1))
                }
                _ => Vec::new(),
            },
            rows: s.settings.wire.rows,
            // Each occurrence's gradients would be rounded by themselves.
            repeats: used.once
                && s.settings.wire.gradients == Element::Real
                && !named.unique.contains_key(&t.name)
                // Longer lists twice, for next to nothing: others are worth trying more.
                && folds != Some(true),
            moves: open,
            relays: s.settings.node.is_some() && folds != Some(true) && !named.relay.contains_key(&t.name),
            moved,
            folds,
            replicates: u32::try_from(t.rows).is_ok(),
        };
        let ranks = f64::from(s.ranks);
        let law = Law { ids, rows: t.rows, of: Popular::All };
        let expect = |unique, reuse: Option<Reuse>| {
            let expected = known.entries(law, drawn, ranks, unique, reuse);
            let rows = counts.and_then(|counts| counts.rows_of(&t.name, unique));
            rows.map_or_else(
                || expected.clone(),
                |rows| sizes::counted((rows.sent, &rows.reuse), &expected, reuse).0,
            )
        };
        let nodes = relays::nodes(s);
        let relayed = |reuse: Option<Reuse>| {
            let expected = relays::expect(known, law, drawn, nodes, reuse);
            let between = Leg::Between { within: e };
            let rows = counts.and_then(|counts| counts.rows_of(&t.name, true));
            let known = rows.and_then(|rows| rows.of_leg(between, s.settings.node));
            known.map_or_else(|| expected.clone(), |known| sizes::counted(known, &expected, reuse).0)
        };
        let mut of_classes = Vec::new();
        for reuse in context.reuses().chain(now.reuse(microbatches).filter(|_| !apart)) {
            for unique in [true, false] {
                let Entries { forward, backward, .. } = expect(unique, Some(reuse));
                let Entries { forward: looked_up, backward: sent, .. } = relayed(Some(reuse));
                let relayed = [looked_up, sent];
                of_classes.push(Classes { reuse, unique, forward, backward, relayed });
            }
        }
        let values = t.rows as f64 * f64::from(t.dim) + t.optimizer.state(t.rows, t.dim.into()) as f64;
        let sizes = Sizes {
            ranks,
            occurrences: expect(false, None).sent,
            unique: expect(true, None).sent,
            node: travel::of_a_node(s, options).into(),
            relayed: relayed(None).sent,
            asked: [true, false].map(|unique| mean.asked(known, (law, drawn), (ranks, unique), share)),
            classes: of_classes,
            table: 4.0 * values,
            wire: s.settings.wire,
        };
        // Owners differ between tables that are otherwise alike.
        let kind = anywhere(&now);
        // Of what was counted no two tables have the same, or they are the same.
        let counted = counts.map(|_| &sizes);
        let key = format!("{kind:?} {context:?} {} {drawn:?} {:?} {counted:?}", t.rows, t.optimizer);
        let class = classes.entry(key).or_insert_with(|| Alike { tables: Vec::new(), now, context, sizes });
        class.tables.push(t.name.clone());
    }
    let mut classes: Vec<Alike> = classes.into_values().collect();
    let sends = |c: &Alike| {
        let entries = if c.now.unique { c.sizes.unique } else { c.sizes.occurrences };
        entries * f64::from(c.context.columns) * c.tables.len() as f64
    };
    classes.sort_by(|a, b| sends(b).total_cmp(&sends(a)).then_with(|| a.tables.cmp(&b.tables)));
    classes
}

/// Lists of ids that stand for all that a table is used by, as many in each microbatch: what each costs is the same in every way, and
/// the ways of many together fill the memory. In one window it does not matter in which microbatch one is.
fn stand_ins(lists: usize, (microbatches, one_window): (usize, bool)) -> usize {
    if one_window {
        return lists.clamp(1, LISTS);
    }
    let each = lists.div_ceil(microbatches.max(1)).max(1);
    each.min((LISTS / microbatches.max(1)).max(1)) * microbatches.max(1)
}

/// Reuse distances that a table may tell apart: what is asked for, or some; and what it does.
fn lookaheads(asked: Option<u32>, now: Option<u32>) -> Vec<u32> {
    let mut all = asked.map_or_else(|| LOOKAHEADS.to_vec(), |k| vec![k]);
    all.extend(now.filter(|k| !all.contains(k)));
    all
}
