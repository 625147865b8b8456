//! What one table's terms become: from how it is distributed to how else it can be.

use std::time::Duration;

use egg::{EGraph, RecExpr, Runner, StopReason};
use fs_schedule::{Extent, Sharding, Symbol};

use super::analysis::{Kind, Kinds};
use super::convert::{ConvertError, Table, to_nodes};
use super::cost::Sizes;
use super::extract::{Commitment, Found, extract};
use super::lang::Node;
use super::rules::{About, Context, RULES, Use};
use crate::distribution::build::{Distribution, Numbered};
use crate::distribution::{Choice, Id, Op, Terms, TypeError};

/// Most nodes of an e-graph.
const NODES: usize = 20_000;
/// Most rounds of rules.
const ROUNDS: usize = 20;

/// What a table can become.
#[derive(Debug, Clone, Default)]
pub struct Derived {
    /// Ways, cheapest by bytes first.
    pub found: Vec<Found>,
    /// Nodes of the e-graph.
    pub nodes: usize,
    /// Classes of it.
    pub classes: usize,
    /// Rules found nothing more; else one of the limits was hit, and what was found so far is what there is.
    pub saturated: bool,
}

/// The terms of a table that is distributed as chosen and used as `context` says.
///
/// # Errors
/// None that a choice has.
pub fn table(terms: &mut Terms, context: &Context, choice: &Choice) -> Result<Table, ConvertError> {
    let cuts = match choice.sharding {
        Sharding::ColumnWise { .. } if context.cuts.len() > 1 => context.cuts.clone(),
        _ => vec![(0, context.columns)],
    };
    let exchanges = (context.exchange..).zip(cuts).map(|(exchange, columns)| Numbered {
        exchange,
        between: choice.relayed.then(|| context.between(exchange)),
        columns,
    });
    let exchanges: Vec<Numbered> = exchanges.collect();
    let count = context.uses.len() as u32;
    let each = count.div_ceil(context.microbatches.max(1)).max(1);
    let tokens = Extent::Symbol(Symbol::Tokens(0));
    let mut ids = Vec::new();
    for source in 0..count {
        let op = Op::Ids { source, rows: tokens, columns: 1, microbatch: source / each };
        let at_home = terms.add(op, &[])?;
        let offsets = terms.add(Op::Offsets { source }, &[])?;
        ids.push(moved(terms, context, at_home, Some(offsets))?);
    }
    let d = Distribution::build(terms, 0, choice, &exchanges, &ids, Some(context.microbatches))?;
    let (mut uses, mut sums) = (Vec::new(), Vec::new());
    for ((source, how), ids) in (0..).zip(&context.uses).zip(&ids) {
        let rows = d.rows(terms, source / each)?;
        let place = terms.add(Op::Inverse, &[d.entries, *ids])?;
        let given = |rows| Op::Given { source, rows, columns: context.columns };
        let (used, sum) = match how {
            Use::Each => {
                let given = terms.add(given(tokens), &[])?;
                let offsets = terms.add(Op::Offsets { source }, &[])?;
                let given = moved(terms, context, given, Some(offsets))?;
                (terms.add(Op::Expand, &[rows, place])?, terms.add(Op::ExpandGrad, &[given, place])?)
            }
            pools => {
                let mean = *pools == Use::Mean;
                let offsets = terms.add(Op::Offsets { source }, &[])?;
                let offsets = moved(terms, context, offsets, None)?;
                let given = terms.add(given(Extent::Symbol(Symbol::Samples)), &[])?;
                let given = moved(terms, context, given, None)?;
                let used = terms.add(Op::Pool { mean }, &[rows, place, offsets])?;
                (used, terms.add(Op::PoolGrad { mean }, &[given, place, offsets])?)
            }
        };
        uses.push(used);
        sums.push(sum);
    }
    let sum = match sums[..] {
        [one] => one,
        ref sums => terms.add(Op::Sum, sums)?,
    };
    Ok(Table { uses, update: Some(d.update(terms, sum)?) })
}

/// Something of samples where they are worked on: one per id, with the offsets at home, or one per sample.
fn moved(terms: &mut Terms, context: &Context, of: Id, offsets: Option<Id>) -> Result<Id, TypeError> {
    if !context.moved {
        return Ok(of);
    }
    let operands: Vec<Id> = std::iter::once(of).chain(offsets).collect();
    terms.add(Op::Dispatch, &operands)
}

pub(super) fn saturate(start: &RecExpr<Node>, context: &Context, explains: bool) -> Runner<Node, Kinds> {
    let runner = Runner::default();
    let runner = if explains { runner.with_explanations_enabled() } else { runner };
    let rewrites: Vec<_> = RULES
        .iter()
        .filter(|rule| rule.exact && rule.about == About::Table)
        .flat_map(|rule| rule.rewrites(context))
        .collect();
    // Time decides nothing: with the same limits the same comes out on any machine.
    let limited = runner.with_iter_limit(ROUNDS).with_node_limit(NODES).with_time_limit(Duration::MAX);
    limited.with_scheduler(egg::SimpleScheduler).with_expr(start).run(&rewrites)
}

/// All that a table can be that is distributed as chosen, whatever its sizes: terms have symbols for those, so one e-graph is of all
/// tables that are used alike.
#[derive(Debug)]
pub struct Ways {
    graph: EGraph<Node, Kinds>,
    root: egg::Id,
    context: Context,
    choice: Choice,
    saturated: bool,
}

impl Ways {
    /// What rules find.
    ///
    /// # Errors
    /// None that a choice has.
    pub fn of(context: &Context, choice: &Choice) -> Result<Self, ConvertError> {
        let mut terms = Terms::default();
        let start = table(&mut terms, context, choice)?;
        let start = to_nodes(&terms, &start)?;
        let runner = saturate(&start, context, false);
        Ok(Self {
            root: runner.roots.first().copied().unwrap_or_default(),
            saturated: matches!(runner.stop_reason, Some(StopReason::Saturated)),
            graph: runner.egraph,
            context: context.clone(),
            choice: choice.clone(),
        })
    }

    /// The terms of one that was found.
    pub fn nodes(&self, found: &Found) -> RecExpr<Node> {
        found.nodes(&self.graph, self.root)
    }

    /// Those that nothing covers at these sizes, in what they cost.
    pub fn at(&self, sizes: &Sizes) -> Derived {
        let Self { graph, context, choice, .. } = self;
        // No value is of two types or sizes, whatever was found to be equal.
        let sound = graph.classes().all(|class| class.data != Kind::Ill);
        // Rules need all ways to ask; what is said of that is kept here.
        let may = |way: Commitment| {
            let said =
                context.folds.is_none() || way.folded.is_none_or(|folded| Some(folded) == context.folds);
            said || self::choice(way, choice) == *choice
        };
        let found = if sound { extract(graph, (self.root, context.columns), sizes, may) } else { Vec::new() };
        Derived {
            found,
            nodes: graph.total_number_of_nodes(),
            classes: graph.number_of_classes(),
            saturated: self.saturated,
        }
    }
}

/// How else a table that is distributed as chosen can be, in what it costs.
///
/// # Errors
/// None that a choice has.
pub fn derive(context: &Context, choice: &Choice, sizes: &Sizes) -> Result<Derived, ConvertError> {
    Ok(Ways::of(context, choice)?.at(sizes))
}

/// The choice that a way is; `otherwise` says where rows of a table that stays whole and at its owners live.
pub fn choice(commitment: Commitment, otherwise: &Choice) -> Choice {
    let sharding = match (commitment.everywhere, commitment.cut, &otherwise.sharding) {
        (Some(true), ..) => Sharding::DataParallel,
        (_, cut, Sharding::ColumnWise { ranks }) if cut == Some(true) || ranks.len() < 2 => {
            Sharding::ColumnWise { ranks: ranks.clone() }
        }
        // Whoever places tables finds owners of the parts.
        (_, Some(true), _) => Sharding::ColumnWise { ranks: Vec::new() },
        (_, _, Sharding::TableWise { rank }) => Sharding::TableWise { rank: *rank },
        _ => Sharding::RowWise,
    };
    let lookahead = commitment.lookahead.map_or(otherwise.lookahead, |l| l.0);
    let windows = commitment.windows.unwrap_or(otherwise.windows);
    Choice {
        unique: commitment.unique.unwrap_or(otherwise.unique),
        lookahead,
        windows: windows.filter(|_| lookahead.is_some()),
        relayed: sharding != Sharding::DataParallel && commitment.relayed.unwrap_or(otherwise.relayed),
        folded: sharding != Sharding::DataParallel && commitment.folded.unwrap_or(otherwise.folded),
        sharding,
    }
}
