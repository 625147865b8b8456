//! How single tables are distributed: what the algebra derives for each, tried one class of alike tables after the other.
//!
//! Tables are alike that differ in name only. For a class the algebra ([`crate::algebra`]) gives ways, with what they cost in
//! bytes, urgent bytes, touched bytes, transfers and memory. Each is compiled and scheduled in place of what the class has, and
//! stays if the predicted step is shorter, so the outcome is never worse than where the search began. Ways that no other
//! covers come first, and among them the classes that send most; after a change all begins anew, until nothing changes or so many
//! schedules were made as there may be.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use fs_dsl::checked::{self, Program};
use fs_schedule::counts::Counts;
use fs_schedule::reuse::Reuse;
use fs_schedule::search::{OtherWay, Rewrite, TriedStrategy};
use fs_schedule::{Element, Leg, Schedule, Sharding, SparseOptimizer, Way};
use fs_workload::ids::RowLaw;

use super::uses::uses;
use super::{Best, Candidate, Cost, GAIN, Search, Verdict};
use crate::algebra::cost::{Classes, Sizes};
use crate::algebra::derive::{self, Derived, derive, explain};
use crate::algebra::rules::{Context, Use};
use crate::compile::{CompileError, CompileOptions, Compiled};
use crate::distribution::{At, Choice, Lookahead, TableOptions};
use crate::emit;
use crate::ir::Module;
use crate::passes::branches::Branches;
use crate::sched::rows::Entries;
use crate::sched::{relays, sizes};

/// Most ways that are tried, each by a first good order.
const SCHEDULES: usize = 32;
/// Most of which the best order is looked for.
const FULLY: usize = 12;
/// By how much the first order of a way may be longer than that of what there is.
const QUICK: f64 = 1.02;
/// Fewer where each has many operations: about so many in all.
const OPERATIONS: usize = 60_000;
/// Reuse distances to tell apart.
const LOOKAHEADS: [u32; 3] = [1, 2, 3];
/// Ways that were not taken and are told of.
const TOLD: usize = 5;
/// Narrower parts of a row are not worth a transfer.
const NARROWEST: u32 = 16;

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

/// A choice that made the step shorter.
#[derive(Debug, Clone, PartialEq)]
pub struct Swap {
    /// Of these tables.
    pub tables: Vec<String>,
    /// What they were, and what they are.
    pub choices: (Choice, Choice),
    /// Rules by which one follows from the other.
    pub rules: Vec<&'static str>,
    /// Seconds of a step, before and after.
    pub step: (f64, f64),
    /// Bytes that a rank sends of all of them in a step, before and after, as expected.
    pub wire: (f64, f64),
    /// Those to other nodes.
    pub far: (f64, f64),
    /// Seconds of a step with all other swaps and without this one, if that can be scheduled.
    pub without: Option<f64>,
}

/// A way that was scheduled and not taken.
#[derive(Debug, Clone, PartialEq)]
pub struct Other {
    /// For these tables.
    pub tables: Vec<String>,
    /// What they would be.
    pub choice: Choice,
    /// Seconds of a step in the best order that was looked for.
    pub step: f64,
}

/// What became of the search over tables.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// What was changed, in order.
    pub swaps: Vec<Swap>,
    /// Classes of alike tables.
    pub classes: usize,
    /// Ways that were compiled, and of those the ones that were scheduled.
    pub tried: usize,
    /// As said.
    pub scheduled: usize,
    /// Nodes of the largest e-graph.
    pub nodes: usize,
    /// There was more to try.
    pub limited: bool,
    /// What came closest of what was not taken, the shortest step first.
    pub others: Vec<Other>,
}

/// How a table is distributed, in few words.
fn words(choice: &Choice) -> String {
    let place = match &choice.sharding {
        Sharding::RowWise => "row-wise",
        Sharding::TableWise { .. } => "table-wise",
        Sharding::ColumnWise { .. } => "column-wise",
        Sharding::DataParallel => "replicated",
    };
    let rows = if choice.unique { "each row once" } else { "a row per occurrence" };
    let apart = match choice.lookahead {
        Some(k) => format!("lookahead {k}"),
        None => "together".into(),
    };
    let relayed = if choice.relayed { ", through relays" } else { "" };
    let folded = if choice.folded { ", asked for where samples are read" } else { "" };
    format!("{place}, {rows}, {apart}{relayed}{folded}")
}

impl fmt::Display for Swap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, others) = (self.tables.first().map_or("", String::as_str), self.tables.len() - 1);
        let others = if others == 0 { String::new() } else { format!(" and {others} alike") };
        write!(
            f,
            "{first}{others}: {} instead of {} (by {}): {:.3} ms a step instead of {:.3}, {:.3} MB sent instead of {:.3}",
            words(&self.choices.1),
            words(&self.choices.0),
            self.rules.join(", "),
            self.step.1 * 1e3,
            self.step.0 * 1e3,
            self.wire.1 / 1e6,
            self.wire.0 / 1e6,
        )?;
        if self.far == (0.0, 0.0) {
            return Ok(());
        }
        write!(f, ", {:.3} MB between nodes instead of {:.3}", self.far.1 / 1e6, self.far.0 / 1e6)
    }
}

impl Outcome {
    /// Remembers a way and what it costs in the best order known of it.
    fn passed_over(&mut self, tables: &[String], choice: &Choice, cost: Cost) {
        let known = self.others.iter_mut().find(|o| o.tables == tables && o.choice == *choice);
        match known {
            Some(other) => other.step = other.step.min(cost.step),
            None => {
                self.others.push(Other { tables: tables.to_vec(), choice: choice.clone(), step: cost.step });
            }
        }
    }

    /// As a schedule keeps it.
    pub(super) fn record(&self, best: &Best) -> fs_schedule::Search {
        let strategies = best.tried.iter().map(|tried| {
            let (step, at_least) = match tried.verdict {
                Verdict::Scheduled(cost) => (Some(cost.step), None),
                Verdict::Pruned(bound) => (None, Some(bound.step)),
            };
            TriedStrategy { name: tried.candidate.describe(), step, at_least }
        });
        let rewrites = self.swaps.iter().map(|swap| Rewrite {
            tables: swap.tables.clone(),
            from: words(&swap.choices.0),
            to: words(&swap.choices.1),
            rules: swap.rules.iter().map(|rule| (*rule).to_owned()).collect(),
            step: swap.step.into(),
            bytes: swap.wire.into(),
            between_nodes: (swap.far != (0.0, 0.0)).then_some(swap.far.into()),
            without: swap.without,
        });
        let others = self.others.iter().map(|other| OtherWay {
            tables: other.tables.clone(),
            to: words(&other.choice),
            step: other.step,
        });
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        fs_schedule::Search {
            strategies: strategies.collect(),
            rewrites: rewrites.collect(),
            others: others.collect(),
            kinds: count(self.classes),
            nodes: count(self.nodes),
            ways: count(self.tried),
            scheduled: count(self.scheduled),
            limited: self.limited,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = if self.limited { "; there was more to try" } else { "" };
        write!(
            f,
            "{} kind(s) of tables, e-graphs of up to {} nodes, {} other ways tried, {} scheduled, {} taken{more}",
            self.classes,
            self.nodes,
            self.tried,
            self.scheduled,
            self.swaps.len()
        )
    }
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
    let search = Search::new(program, options)?;
    let (cost, mut best) = search.over(candidates, None)?.all()?;
    let (_, outcome) = search.improve(cost, &mut best)?;
    best.compiled.schedule.search = Some(outcome.record(&best));
    emit::proved(&best.compiled.schedule)?;
    Ok((best, outcome))
}

impl Search<'_> {
    /// Other choices for single tables than the best has, as long as they are faster; what it costs then.
    pub(super) fn improve(&self, mut cost: Cost, best: &mut Best) -> Result<(Cost, Outcome), CompileError> {
        let candidate = best.tried[best.chosen].candidate;
        let mut outcome = Outcome::default();
        let mut tables = self.options.tables.clone();
        let most = SCHEDULES.min(OPERATIONS / best.compiled.schedule.train.ops.len().max(1)).max(2);
        let mut seen: BTreeSet<String> = BTreeSet::new();
        let mut known: BTreeMap<String, Derived> = BTreeMap::new();
        let mut first = self.first(candidate, &tables)?.unwrap_or(cost);
        let mut steps: Vec<(Vec<String>, [Choice; 2], bool)> = Vec::new();
        loop {
            let classes =
                alike(self.program, &best.compiled.schedule, (&self.options, self.folds), candidate);
            outcome.classes = classes.len();
            let ways = ways(&classes, &mut known, &mut outcome);
            let mut shortest: Option<(Cost, Compiled, TableOptions, Swap, bool)> = None;
            for (class, way) in &ways {
                // What another covers is looked at where nothing else helps.
                if way.covered && shortest.is_some() {
                    break;
                }
                let asked =
                    asking(&tables, &class.tables, (&class.now, &way.choice), class.context.folds.is_none());
                if way.choice == class.now || !seen.insert(format!("{asked:?}")) {
                    continue;
                }
                outcome.limited = outcome.tried >= most || outcome.scheduled >= FULLY;
                if outcome.limited {
                    break;
                }
                outcome.tried += 1;
                // What cannot be placed or numbered so is no way for this model.
                let Some(module) = self.lowered(candidate, &asked) else { continue };
                let beat = shortest.as_ref().map_or(cost.longer(1.0 / GAIN), |found| found.0);
                let schedule = |module, quick| {
                    // A profile that was measured of tables elsewhere has no times for it: no way either.
                    self.schedule(module, candidate.policy, Some(beat), (quick, !quick)).ok()?.ok()
                };
                // The best order of it is looked for if its first one is not much worse than that of what there is.
                let Some((quick, _)) = schedule(module.clone(), true) else { continue };
                outcome.passed_over(&class.tables, &way.choice, quick);
                if quick >= first.longer(QUICK) {
                    continue;
                }
                outcome.scheduled += 1;
                let Some((now, compiled)) = schedule(module, false) else { continue };
                outcome.passed_over(&class.tables, &way.choice, now);
                if now >= beat {
                    continue;
                }
                let before = ways.iter().find(|(c, w)| c.tables == class.tables && w.choice == class.now);
                let swap = Swap {
                    tables: class.tables.clone(),
                    choices: (class.now.clone(), way.choice.clone()),
                    rules: explain(&class.context, &class.now, &way.choice).unwrap_or_default(),
                    step: (cost.step, now.step),
                    wire: (before.map_or(f64::NAN, |(_, before)| before.wire), way.wire),
                    far: (before.map_or(f64::NAN, |(_, before)| before.far), way.far),
                    without: None,
                };
                shortest = Some((now, compiled, asked, swap, class.context.folds.is_none()));
            }
            let Some((now, compiled, asked, swap, folds)) = shortest else { break };
            let Swap { tables: names, choices: (from, to), .. } = &swap;
            steps.push((names.clone(), [from.clone(), to.clone()], folds));
            (cost, best.compiled, tables) = (now, compiled, asked);
            outcome.swaps.push(swap);
            first = self.first(candidate, &tables)?.unwrap_or(cost);
        }
        let taken = |other: &Other| {
            outcome.swaps.iter().any(|swap| (&swap.tables, &swap.choices.1) == (&other.tables, &other.choice))
        };
        let mut others = std::mem::take(&mut outcome.others);
        others.retain(|other| !taken(other));
        others.sort_by(|a, b| a.step.total_cmp(&b.step).then_with(|| a.tables.cmp(&b.tables)));
        others.truncate(TOLD);
        outcome.others = others;
        // Without the only one there is what the search began with.
        if let [only] = &mut outcome.swaps[..] {
            only.without = Some(only.step.0);
        } else {
            for left_out in 0..steps.len() {
                let others = steps.iter().enumerate().filter(|(n, _)| *n != left_out);
                let asked = others
                    .fold(self.options.tables.clone(), |asked, (_, (names, [from, to], folds))| {
                        asking(&asked, names, (from, to), *folds)
                    });
                let found = self.lowered(candidate, &asked);
                let found = found.map(|module| self.schedule(module, candidate.policy, None, (false, false)));
                outcome.swaps[left_out].without =
                    found.and_then(|found| found.ok()?.ok()).map(|(cost, _)| cost.step);
            }
        }
        Ok((cost, outcome))
    }

    /// The module with these choices; none if it cannot be.
    fn lowered(&self, candidate: Candidate, tables: &TableOptions) -> Option<Module> {
        let options = self.asked(&candidate).tables(tables.clone());
        let stages = self.aim.stages(&self.module, &options).ok()?;
        Branches::new(self.module.clone(), vec![stages]).next()?.ok()
    }

    /// What its first good order costs.
    fn first(&self, candidate: Candidate, tables: &TableOptions) -> Result<Option<Cost>, CompileError> {
        let Some(module) = self.lowered(candidate, tables) else { return Ok(None) };
        Ok(self.schedule(module, candidate.policy, None, (true, false))?.ok().map(|found| found.0))
    }
}

/// How tables can be distributed.
#[derive(Debug)]
struct Possible {
    choice: Choice,
    /// Bytes that a rank sends of all of them, and those to other nodes.
    wire: f64,
    far: f64,
    covered: bool,
}

/// What all classes can become: first what nothing covers, by class.
fn ways<'a>(
    classes: &'a [Alike],
    known: &mut BTreeMap<String, Derived>,
    outcome: &mut Outcome,
) -> Vec<(&'a Alike, Possible)> {
    let mut ways = Vec::new();
    for class in classes {
        let key = format!("{:?} {:?} {:?}", class.context, class.now, class.sizes);
        let derived = known
            .entry(key)
            .or_insert_with(|| derive(&class.context, &class.now, &class.sizes).unwrap_or_default());
        outcome.nodes = outcome.nodes.max(derived.nodes);
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

/// Options with another choice for some tables than there is now; `folds`: nobody has said who asks for their rows.
pub fn asking(
    tables: &TableOptions,
    names: &[String],
    (now, choice): (&Choice, &Choice),
    folds: bool,
) -> TableOptions {
    let each = || names.iter().cloned();
    let mut asked = tables.clone();
    if choice.unique != now.unique {
        asked = asked.unique(each().map(|name| (name, choice.unique)));
    }
    if choice.lookahead != now.lookahead {
        asked = asked.lookahead(each().map(|name| (name, Lookahead(choice.lookahead))));
    }
    if choice.sharding != now.sharding {
        let word = match choice.sharding {
            Sharding::DataParallel => "data_parallel",
            Sharding::ColumnWise { .. } => "column_wise",
            Sharding::TableWise { .. } => "table_wise",
            Sharding::RowWise => "row_wise",
        };
        asked = asked.sharding(each().map(|name| (name, word.to_owned())));
    }
    if choice.relayed != now.relayed {
        asked = asked.relay(each().map(|name| (name, choice.relayed)));
    }
    // Of what was replicated before nothing was said.
    let owned = |c: &Choice| c.sharding != Sharding::DataParallel;
    if folds && (choice.folded != now.folded || (owned(choice) && !owned(now))) {
        asked = asked.fold(each().map(|name| (name, choice.folded)));
    }
    asked
}

/// The tables of a schedule that train, by what they can become; those that send most first.
/// `folds`: nobody has said who asks for rows of samples that move.
pub fn alike(
    program: &Program,
    s: &Schedule,
    (options, folds): (&CompileOptions, bool),
    candidate: Candidate,
) -> Vec<Alike> {
    // Of a profile's rows only one kind is known, so laws stand for both.
    let of = (s.ranks, s.settings.microbatches.max(1));
    let counted = |c: &&Counts| options.profile.is_none() && (c.ranks, c.microbatches) == of;
    let counts = options.counts.as_ref().filter(counted);
    let mean = sizes::Sizes::mean(s, counts);
    let draws = sizes::draws(s, &mean);
    let ids = sizes::ids_of(s);
    let uses = uses(s);
    // Of samples that are looked up at home nobody else asks for the rows.
    let moved = matches!(At::of(s), Some(At::Ids | At::Folded));
    let share = sizes::moved(s);
    let mut laws: BTreeMap<u64, RowLaw> = BTreeMap::new();
    let mut classes: BTreeMap<String, Alike> = BTreeMap::new();
    for (e, x) in (0..).zip(&s.exchanges) {
        // The first part of a table stands for all.
        let (Some(t), Some(used)) = (s.tables.get(x.table as usize), uses.get(&e)) else { continue };
        let Some(drawn) = draws.get(&e).copied() else { continue };
        let declared = program.model.iter().flat_map(|m| &m.tables).find(|d| d.name == t.name);
        let named = &options.tables;
        let open = declared.is_some_and(|d| d.sharding == checked::Sharding::Auto)
            && !named.sharding.contains_key(&t.name)
            // Replicas ask nobody.
            && named.fold.get(&t.name) != Some(&true)
            && s.ranks > 1;
        let microbatches = s.settings.microbatches.max(1);
        let now = Choice {
            unique: x.unique,
            lookahead: x.lookahead,
            sharding: t.sharding.clone(),
            relayed: x.leg.between().is_some(),
            folded: x.folded,
        };
        let apart = candidate.policy.tells_rows_apart() && !named.lookahead.contains_key(&t.name);
        let lookaheads =
            if apart { lookaheads(options.lookahead, now.lookahead, microbatches) } else { Vec::new() };
        let whole_rows = matches!(t.optimizer, SparseOptimizer::RowwiseAdagrad { .. });
        let of_all = (!folds).then(|| options.balance_at == Some(At::Folded));
        let folds = named.fold.get(&t.name).copied().or(of_all);
        let context = Context {
            columns: t.dim,
            exchange: 0,
            uses: vec![Use::Each; used.lists],
            microbatches,
            lookaheads: lookaheads.clone(),
            cuts: match &t.sharding {
                Sharding::ColumnWise { .. } => parts(t.dim, t.sharding.parts()),
                _ if open && !whole_rows && t.dim >= 2 * NARROWEST => {
                    parts(t.dim, (t.dim / NARROWEST).min(s.ranks))
                }
                _ => Vec::new(),
            },
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
        let law = laws.entry(t.rows).or_insert_with(|| RowLaw::new(ids, t.rows));
        let expect = |unique, reuse: Option<Reuse>| {
            let expected = Entries::expect(law, drawn, ranks, unique, reuse);
            let rows = counts.and_then(|counts| counts.rows_of(&t.name, unique));
            rows.map_or_else(
                || expected.clone(),
                |rows| sizes::counted((rows.sent, &rows.reuse), &expected, reuse).0,
            )
        };
        let nodes = relays::nodes(s);
        let relayed = |reuse: Option<Reuse>| {
            let expected = relays::expect(law, drawn, nodes, reuse);
            let between = Leg::Between { within: e };
            let rows = counts.and_then(|counts| counts.rows_of(&t.name, true));
            let known = rows.and_then(|rows| rows.of_leg(between, s.settings.node));
            known.map_or_else(|| expected.clone(), |known| sizes::counted(known, &expected, reuse).0)
        };
        let mut of_classes = Vec::new();
        for lookahead in lookaheads.into_iter().chain(now.lookahead.filter(|_| !apart)) {
            let reuse = Reuse { lookahead, microbatches };
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
            node: nodes.each().into(),
            relayed: relayed(None).sent,
            asked: [true, false].map(|unique| mean.asked(law, drawn, (ranks, unique), share)),
            classes: of_classes,
            table: 4.0 * values,
            number: [s.settings.wire.rows, s.settings.wire.gradients].map(|e| f64::from(e.bytes())),
        };
        // Owners differ between tables that are otherwise alike.
        let mut kind = now.clone();
        match &mut kind.sharding {
            Sharding::TableWise { rank } => *rank = 0,
            Sharding::ColumnWise { ranks } => ranks.fill(0),
            _ => {}
        }
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

/// Reuse distances that a table may tell apart: what is asked for, or some; and what it does.
fn lookaheads(asked: Option<u32>, now: Option<u32>, microbatches: u32) -> Vec<u32> {
    let mut all = asked.map_or_else(|| LOOKAHEADS.to_vec(), |k| vec![k]);
    all.extend(now.filter(|k| !all.contains(k)));
    all.retain(|lookahead| {
        (Reuse { lookahead: *lookahead, microbatches }).count(Way::Forward) <= Reuse::MOST
    });
    all
}

/// Columns in so many parts.
fn parts(columns: u32, parts: u32) -> Vec<(u32, u32)> {
    if parts < 2 {
        return Vec::new();
    }
    let at = |n: u32| (u64::from(columns) * u64::from(n) / u64::from(parts)) as u32;
    (0..parts).map(|n| (at(n), at(n + 1))).collect()
}
