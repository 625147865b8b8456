//! How single tables are distributed: what the algebra derives for each, tried one class of alike tables after the other.
//!
//! Tables are alike that differ in name only. For a class the algebra ([`crate::algebra`]) gives ways, with what they cost in
//! bytes, urgent bytes, touched bytes, transfers and memory. Each is compiled and scheduled in place of what the class has, and
//! stays if the predicted step is shorter, so the outcome is never worse than where the search began. Ways that no other
//! covers come first, and among them the classes that send most; after a change all begins anew, until nothing changes or so many
//! schedules were made as there may be.

use std::collections::BTreeMap;

use fs_dsl::checked::{self, Program};
use fs_schedule::counts::Counts;
use fs_schedule::reuse::Reuse;
use fs_schedule::{Element, Exchange, Leg, Schedule, Sharding, SparseOptimizer, Table};

pub use super::asked::asking;
use super::asked::{Change, anywhere};
use super::budget::{Budget, SIMULATED};
use super::climb::{Climb, Move, large};
use super::derived::{self, Changed};
pub use super::outcome::{Other, Outcome, Swap, Way, place};
use super::owners;
use super::places;
use super::travel::{self, Kind};
use super::uses::uses;
use super::{Best, Candidate, Cost, GAIN, Round, Scheduled, Search};
use crate::algebra::cost::{Classes, Sizes};
use crate::algebra::derive::{self, Derived};
use crate::algebra::rules::{Context, Use};
use crate::compile::{CompileError, CompileOptions, Compiled};
use crate::distribution::{At, Choice};
use crate::emit;
use crate::passes::plan_sharding::columns;
use crate::sched::evidence::Evidence;
use crate::sched::memo::Memo;
use crate::sched::rows::{Entries, Expected, Law};
use crate::sched::{relays, sizes};

/// Lists of ids of a table that are looked at, where microbatches are no more.
const LISTS: usize = 8;
/// Stages of a climb behind its first: with other owners, and with other company twice.
const ENDING: usize = 3;
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

/// As [`super::search`], and then with other choices for single tables where that is faster.
///
/// # Errors
/// As there.
pub fn search(
    program: &Program,
    options: &CompileOptions,
    candidates: impl IntoIterator<Item = Candidate>,
) -> Result<(Best, Outcome), CompileError> {
    search_within(program, options, candidates, SIMULATED)
}

/// The same with at most so many operations simulated for the climbs from one start, about.
///
/// # Errors
/// As there.
pub fn search_within(
    program: &Program,
    options: &CompileOptions,
    candidates: impl IntoIterator<Item = Candidate>,
    most: u64,
) -> Result<(Best, Outcome), CompileError> {
    let mut search = Search::new(program, options)?;
    search.most = most;
    let candidates: Vec<Candidate> = candidates.into_iter().collect();
    let (round, one) = search.over_both(&candidates, None)?;
    let (_, mut best, mut outcome) = search.improve_both(round, one)?;
    outcome.simulated = search.simulated();
    best.compiled.schedule.search = Some(outcome.record(&best));
    emit::proved(&best.compiled.schedule)?;
    Ok((best, outcome))
}

impl Search<'_> {
    /// From the best with a window for each microbatch, and from the best with one for all of them if there is one: where each begins
    /// it ends as if the other were not there. Of large ones only from the shorter.
    pub(super) fn improve_both(
        &self,
        mut round: Round,
        one: Option<Scheduled>,
    ) -> Result<(Cost, Best, Outcome), CompileError> {
        let mut found: Option<(Cost, Best, Outcome)> = None;
        let mut starts: Vec<Scheduled> = [round.best.take(), one].into_iter().flatten().collect();
        if let [each, one] = &starts[..]
            && (large(&each.2) || large(&one.2))
        {
            starts.remove(usize::from(each.0.longer(1.0 / GAIN) <= one.0));
        }
        for (cost, chosen, compiled) in starts {
            let mut other = self.improve(cost, Best { compiled, chosen, tried: round.tried.clone() })?;
            if let Some(mut before) = found.take() {
                if before.0.longer(1.0 / GAIN) <= other.0 {
                    std::mem::swap(&mut before, &mut other);
                }
                other.2.also(&before.2);
            }
            found = Some(other);
        }
        found.ok_or(CompileError::NoCandidate)
    }

    /// What became of the best of all candidates, and how.
    pub(super) fn improve(&self, cost: Cost, best: Best) -> Result<(Cost, Best, Outcome), CompileError> {
        let began = choices(&best.compiled.schedule);
        let (cost, best, mut outcome) = self.climbed(cost, best)?;
        let classes = self.alike(&best.compiled, best.tried[best.chosen].candidate);
        let each = classes.iter().flat_map(|class| class.tables.iter().map(move |name| (name, class)));
        let changed = each.filter_map(|(name, class)| {
            let (from, to) = (anywhere(began.get(name)?), anywhere(&class.now));
            Some(Changed { name, context: &class.context, from, to })
        });
        outcome.derivations = derived::of(changed);
        outcome.limited |= large(&best.compiled);
        Ok((cost, best, outcome))
    }

    /// From the best strategy, and from the best where all tables travel together or each alone, if that is not much worse.
    /// Where one climb ends another may not come by, so the best end counts. What that costs, it, and how it came to be.
    fn climbed(&self, cost: Cost, best: Best) -> Result<(Cost, Best, Outcome), CompileError> {
        let mut known = Known::default();
        let start = Climb::new(self, cost, best)?;
        let (now, candidate) = start.now();
        let classes = self.alike(now, candidate);
        let ways = ways(&classes, &mut known);
        let kinds: Vec<Kind<'_>> = classes.iter().map(|class| kind(class, &ways)).collect();
        let starts = travel::starts(&kinds, &now.schedule, &start.asked, &self.options);
        let places = places::starts(&ways.iter().map(placed).collect::<Vec<_>>());
        let few = !large(now);
        let mut budget = Budget::new(self.simulated(), self.most, now.schedule.train.ops.len());
        let begun = |starts: Vec<(Move, f64)>| {
            let (mut found, until) = (Vec::new(), budget.beginnings(self.simulated()));
            for (way, times) in starts.iter().filter(|_| few) {
                if self.simulated() >= until {
                    return Ok::<_, CompileError>((found, true));
                }
                found.extend(start.begin(way, *times)?);
            }
            Ok((found, false))
        };
        let ((others, left_out), (elsewhere, unlooked)) = (begun(starts)?, begun(places)?);
        budget.expect((1 + elsewhere.len()) * (1 + ENDING) + others.len());
        let mut top = self.distributed(start, &mut known, &mut budget)?;
        top.outcome.limited |= left_out || unlooked;
        for other in others {
            let mut other = self.distributed(other, &mut known, &mut budget)?;
            if other.cost < top.cost {
                std::mem::swap(&mut top, &mut other);
            }
            top.outcome.also(&other.outcome);
        }
        let mut best = self.ended(top, &mut known, &mut budget)?;
        // Where these lead is looked at to the end, so that one may be worse on the way and none is in the end.
        for other in elsewhere {
            let other = self.distributed(other, &mut known, &mut budget)?;
            let mut other = self.ended(other, &mut known, &mut budget)?;
            if other.cost < best.cost {
                std::mem::swap(&mut best, &mut other);
            }
            best.outcome.also(&other.outcome);
        }
        Ok(best.end())
    }

    /// With other owners and company, or with other company only: the better end.
    fn ended<'c, 's>(
        &'s self,
        top: Climb<'c, 's>,
        known: &mut Known,
        budget: &mut Budget,
    ) -> Result<Climb<'c, 's>, CompileError> {
        // Other owners may lead to a worse end than none: what company there is to be gained differs.
        let (before, owned) = (top.outcome.clone(), self.owned(top.clone(), known, budget)?);
        let changed = owned.outcome.swaps.len() > before.swaps.len();
        if !changed {
            return Ok(self.accompanied(owned, known, (budget, 2))?.lean());
        }
        let mut best = self.accompanied(top, known, (budget, 1))?.lean();
        let mut other = self.accompanied(owned, known, (budget, 1))?.lean();
        if other.cost < best.cost {
            std::mem::swap(&mut best, &mut other);
        }
        best.outcome.also(&other.outcome.since(&before));
        Ok(best)
    }

    /// With other distributions of single tables, as far as it goes.
    fn distributed<'c, 's>(
        &'s self,
        mut climb: Climb<'c, 's>,
        known: &mut Known,
        budget: &mut Budget,
    ) -> Result<Climb<'c, 's>, CompileError> {
        climb.allow(1, budget.next(self.simulated(), 1));
        loop {
            let (now, candidate) = climb.now();
            let classes = self.alike(now, candidate);
            let ways = ways(&classes, known);
            (climb.outcome.classes, climb.outcome.nodes) = (classes.len(), known.nodes());
            climb.outcome.limited |= known.cut();
            if !climb.step(moves(&ways))? {
                return Ok(climb);
            }
        }
    }

    /// With other owners.
    fn owned<'c, 's>(
        &'s self,
        mut climb: Climb<'c, 's>,
        known: &mut Known,
        budget: &mut Budget,
    ) -> Result<Climb<'c, 's>, CompileError> {
        climb.allow(2, budget.next(self.simulated(), 1));
        loop {
            let (now, candidate) = climb.now();
            let classes = self.alike(now, candidate);
            let ways = ways(&classes, known);
            let placed = classes.iter().filter(|class| class.context.moves);
            let placed: Vec<_> = placed.map(|class| (&class.now.sharding, kind(class, &ways))).collect();
            if !climb.step(owners::moves(&placed))? {
                return Ok(climb);
            }
        }
    }

    /// With other company.
    fn accompanied<'c, 's>(
        &'s self,
        mut climb: Climb<'c, 's>,
        known: &mut Known,
        (budget, stages): (&mut Budget, usize),
    ) -> Result<Climb<'c, 's>, CompileError> {
        climb.allow(2, budget.next(self.simulated(), stages));
        loop {
            let (now, candidate) = climb.now();
            let classes = self.alike(now, candidate);
            let ways = ways(&classes, known);
            let kinds: Vec<Kind<'_>> = classes.iter().map(|class| kind(class, &ways)).collect();
            let moves = travel::moves(&kinds, &now.schedule, &climb.asked, &self.options);
            if !climb.step(moves)? {
                return Ok(climb);
            }
        }
    }

    pub(super) fn alike(&self, now: &Compiled, candidate: Candidate) -> Vec<Alike> {
        let memo = self.aim.target().memo;
        alike_known(self.program, &now.schedule, (&self.options, self.folds), (candidate, memo))
    }
}

/// What is derived.
#[derive(Default)]
pub(super) struct Known {
    /// By how a table is used, and is distributed wherever it lives.
    graphs: BTreeMap<String, Option<derive::Ways>>,
    /// By these and sizes.
    derived: BTreeMap<String, Derived>,
}

impl Known {
    fn derive(&mut self, class: &Alike) -> &Derived {
        let now = anywhere(&class.now);
        let key = format!("{:?} {now:?}", class.context);
        let ways = self.graphs.entry(key.clone());
        let ways = ways.or_insert_with(|| derive::Ways::of(&class.context, &now).ok());
        let at = || ways.as_ref().map(|ways| ways.at(&class.sizes)).unwrap_or_default();
        self.derived.entry(format!("{key} {:?}", class.sizes)).or_insert_with(at)
    }

    /// Whether rules might have found more of some class than limits let them.
    fn cut(&self) -> bool {
        self.derived.values().any(|derived| !derived.saturated)
    }

    /// Nodes of the largest e-graph.
    fn nodes(&self) -> usize {
        self.derived.values().map(|derived| derived.nodes).max().unwrap_or(0)
    }
}

/// How tables can be distributed.
#[derive(Debug)]
pub(super) struct Possible {
    pub choice: Choice,
    /// Bytes that a rank sends of all of them, and those to other nodes.
    pub wire: f64,
    pub far: f64,
    covered: bool,
}

/// Alike tables as they would be.
fn placed<'c>((class, way): &'c (&Alike, Possible)) -> places::Kind<'c> {
    let (tables, open) = (&class.tables[..], class.context.moves);
    let (context, now, way, wire, far) = (&class.context, &class.now, &way.choice, way.wire, way.far);
    places::Kind { tables, open, context, now, way, wire, far }
}

/// Alike tables as they are.
fn kind<'c>(class: &'c Alike, ways: &[(&Alike, Possible)]) -> Kind<'c> {
    let now = ways.iter().find(|(c, way)| c.tables == class.tables && way.choice == class.now);
    let (wire, far) = now.map_or((0.0, 0.0), |(_, way)| (way.wire, way.far));
    Kind { tables: &class.tables, wire, far }
}

/// Ways as changes of what there is.
fn moves<'w>(ways: &'w [(&Alike, Possible)]) -> impl Iterator<Item = Move> + 'w {
    let others = ways.iter().filter(|(class, way)| way.choice != class.now);
    others.map(|(class, way)| {
        let before = ways.iter().find(|(c, w)| c.tables == class.tables && w.choice == class.now);
        let (from, to) = (class.now.clone(), way.choice.clone());
        Move {
            tables: class.tables.clone(),
            ways: (Way::Distributed(from.clone()), Way::Distributed(to.clone())),
            change: Change::Distribution { context: class.context.clone(), from, to },
            wire: (before.map_or(f64::NAN, |(_, before)| before.wire), way.wire),
            far: (before.map_or(f64::NAN, |(_, before)| before.far), way.far),
            covered: way.covered,
        }
    })
}

/// What all classes can become: first what nothing covers, by class.
pub(super) fn ways<'a>(classes: &'a [Alike], known: &mut Known) -> Vec<(&'a Alike, Possible)> {
    let mut ways = Vec::new();
    for class in classes {
        let derived = known.derive(class);
        ways.extend(derived.found.iter().map(|found| {
            let choice = derive::choice(found.commitment, &class.now);
            let all = class.tables.len() as f64;
            let (wire, far) = (found.cost.wire * all, found.cost.far * all);
            (class, Possible { choice, wire, far, covered: found.covered })
        }));
    }
    ways.sort_by_key(|(_, way)| way.covered);
    ways
}

/// How a table is distributed whose first exchange this is.
fn chosen(x: &Exchange, t: &Table) -> Choice {
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
        choices.entry(t.name.clone()).or_insert_with(|| chosen(x, t));
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
    alike_known(program, s, asked, (candidate, None))
}

/// The same with what follows from laws of ids, as far as it is known.
fn alike_known(
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
            && s.ranks > 1;
        let microbatches = s.settings.microbatches.max(1);
        let now = chosen(x, t);
        let apart = candidate.policy.tells_rows_apart() && !named.lookahead.contains_key(&t.name);
        let windows = vec![now.windows.unwrap_or(microbatches)];
        let lookaheads = if apart { lookaheads(options.lookahead, now.lookahead) } else { Vec::new() };
        let whole_rows = matches!(t.optimizer, SparseOptimizer::RowwiseAdagrad { .. });
        let of_all = (!folds).then(|| options.balance_at == Some(At::Folded));
        let folds = named.fold.get(&t.name).copied().or(of_all);
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
        let law = Law { ids, rows: t.rows };
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

#[cfg(test)]
mod tests {
    use fs_schedule::Strategy;

    use super::*;
    use crate::compile_with;
    use crate::sched::policy;

    /// Tables of other sizes, wherever they live, are ways of one e-graph; of other uses, of another.
    #[test]
    fn tables_that_are_used_alike_have_one_graph() {
        let tables: Vec<(u32, &str, &str)> = (0..12)
            .map(|i| {
                let optimizer = if i < 8 { "sgd(lr: 0.1)" } else { "rowwise_adagrad(lr: 0.1)" };
                (
                    1000 + 97 * i,
                    optimizer,
                    if i % 4 == 0 { "sharding table_wise" } else { "sharding row_wise" },
                )
            })
            .collect();
        let declared = |(i, (rows, optimizer, sharding)): (usize, &(u32, &str, &str))| {
            format!(
                "table t{i} {{ rows {rows}  dim 64  optimizer {optimizer}  {sharding} }}
                 input x{i}: ids(t{i}) {{ max 5 }}"
            )
        };
        let declared: Vec<String> = tables.iter().enumerate().map(declared).collect();
        let sum: Vec<String> = (0..tables.len()).map(|i| format!("pool(x{i})")).collect();
        let text = format!(
            "model m {{ {} input y: label
             loss bce_with_logits(linear({}, 1), y, normalize: samples) }}
             train {{ batch 32  steps 2 }} workload w {{ generate {{ lengths fixed(3)  ids zipf(1.05) }} }}",
            declared.join("\n"),
            sum.join(" + ")
        );
        let program = fs_dsl::check_text("m.fs", &text).program.expect("it checks");
        let options = CompileOptions::new(Strategy::Pec, 4);
        let s = compile_with(&program, &options).expect("it compiles").schedule;
        let candidate = Candidate::new(policy::of(Strategy::Pec), None);
        let classes = alike(&program, &s, (&options, true), candidate);
        assert_eq!(classes.len(), tables.len());
        let mut known = Known::default();
        let found: Vec<Derived> = classes.iter().map(|class| known.derive(class).clone()).collect();
        for (class, found) in classes.iter().zip(&found) {
            let alone = derive::derive(&class.context, &class.now, &class.sizes).expect("ways");
            let told = |d: &Derived| format!("{:?} {}", d.found, d.nodes);
            assert_eq!(told(found), told(&alone), "{:?}", class.tables);
        }
        // Row-wise and table-wise.
        assert_eq!((known.graphs.len(), known.derived.len()), (2, tables.len()));
    }
}
