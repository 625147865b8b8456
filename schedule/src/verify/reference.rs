//! Rule `reference`: the reference makes sense by itself, and has its digest.
//!
//! Terms refer to earlier terms and to what is declared; operands obey the action's signature, where the rows of a table
//! are a matrix with a row per entry and ids are places among them. What results are follows from the operands.

use std::collections::BTreeSet;

use super::{Report, limits};
use crate::action::{Action, At, Context, Effect, Misfit};
use crate::model::InputKind;
use crate::operand::{Element, Extent};
use crate::program::Schedule;
use crate::reference::{Source, Term, Value};
use crate::signature::{self, OperandType, floats, real};
use crate::size::Symbol;

/// Why a term makes no sense.
#[derive(Debug, thiserror::Error)]
enum TermError {
    #[error("there is no action {0}")]
    NoAction(u32),
    #[error("{0} is not of a model")]
    NotOfModel(String),
    #[error("{0} is not there")]
    Missing(Value),
    #[error("{0} has no such columns")]
    NoColumns(Value),
    #[error("rows and ids are of different tables")]
    OtherTable,
    #[error("zeros stand beside other columns only")]
    Zeros,
    #[error("{0} is {1}, not real columns")]
    NotReal(Value, OperandType),
    #[error("{0} has other rows than the columns beside it")]
    OtherRows(Value),
    #[error("{0} is of another precision than the columns beside it")]
    OtherPrecision(Value),
    #[error("too many columns")]
    Columns,
    #[error("nothing stands side by side")]
    Nothing,
    #[error(transparent)]
    Misfit(#[from] Misfit),
}

/// Columns of the results of each term.
pub(super) type Widths = Vec<Vec<u32>>;

/// What terms of training and of evaluation give; a violation if the reference makes no sense.
pub(super) fn check(s: &Schedule, r: &mut Report) -> [Widths; 2] {
    let actual = s.reference_digest();
    r.check(s.reference.digest == actual, "reference", || {
        format!(
            "the reference has digest {}, with the declarations it gives {actual}",
            brief(&s.reference.digest)
        )
    });
    terms(s, r)
}

/// What the terms are by themselves: columns of their results.
pub(super) fn terms(s: &Schedule, r: &mut Report) -> [Widths; 2] {
    let before = r.0.len();
    let train = graph(s, &s.reference.train, 1, r);
    let evaluation = graph(s, s.reference.evaluation.as_deref().unwrap_or_default(), 1, r);
    if r.0.len() == before {
        outcomes(s, &train, r);
    }
    let widths = |shapes: Vec<Vec<OperandType>>| -> Widths {
        shapes.iter().map(|results| results.iter().map(width).collect()).collect()
    };
    [widths(train), widths(evaluation)]
}

fn brief(text: &str) -> String {
    text.chars().take(80).collect()
}

fn width(shape: &OperandType) -> u32 {
    if let OperandType::Matrix { columns, .. } = shape { *columns } else { 1 }
}

/// What is updated, reported and ranked.
fn outcomes(s: &Schedule, train: &[Vec<OperandType>], r: &mut Report) {
    let mut seen = BTreeSet::new();
    for u in &s.reference.updates {
        r.check(seen.insert(u.of) && !u.parts.is_empty(), "reference", || {
            format!("{} is updated twice, or with nothing", u.of)
        });
        for part in &u.parts {
            let shape = match part.source {
                Source::Term(n, i) if part.columns.is_none() => {
                    train.get(n as usize).and_then(|t| t.get(i as usize)).copied()
                }
                _ => None,
            };
            let fits = match (u.of, shape) {
                (Source::Parameter(n), Some(OperandType::Gradient { rows, columns })) => {
                    let p = s.parameters.get(n as usize);
                    p.is_some_and(|p| (rows == p.rows || rows == 0, columns) == (true, p.columns))
                }
                (Source::Table(n), Some(shape)) => {
                    let dim = s.tables.get(n as usize).map_or(0, |t| t.dim);
                    entries(s, n).is_some_and(|e| shape == real(Extent::Symbol(Symbol::Sent(e)), dim))
                }
                _ => false,
            };
            r.check(fits, "reference", || format!("{part} is no gradient of {}", u.of));
        }
    }
    let action = |t: &Term| t.action.and_then(|a| s.reference.actions.get(a as usize));
    let count =
        |list: &[Term], is: fn(&Action) -> bool| list.iter().filter(|t| action(t).is_some_and(is)).count();
    let ranks = |list: &[Term]| count(list, |a| a.has(Effect::Ranks));
    let losses = |list: &[Term]| count(list, |a| a.facts().loss.is_some());
    let evaluation = s.reference.evaluation.as_deref();
    r.check(losses(&s.reference.train) > 0 && ranks(&s.reference.train) == 0, "reference", || {
        "training has at least one loss and ranks nothing".into()
    });
    // Ranks meet to rank items: once, so that none waits for another's second time.
    r.check(evaluation.is_none_or(|e| ranks(e) == 1 && losses(e) == 0), "reference", || {
        "an evaluation ranks items once and has no loss".into()
    });
    r.check(evaluation.is_some() == s.evaluation.is_some(), "reference", || {
        "the schedule and its reference must both have an evaluation, or neither".into()
    });
}

/// Whether an action is a function of its operands, the batch and random numbers. How rows travel, when sums begin and
/// what is updated where are a schedule's, not a model's, and so is which neighbours are fused.
fn of_model(action: &Action) -> bool {
    let pure = action.facts().effects.iter().all(|e| match e {
        Effect::ReadsBatch
        | Effect::Random
        | Effect::ReadsTable
        | Effect::ReadsParameter
        | Effect::WritesGradient
        | Effect::AddsLoss
        | Effect::Ranks => true,
        Effect::LoadsBatch
        | Effect::AssignsBatch
        | Effect::ReadsBatches
        | Effect::WritesTable
        | Effect::WritesParameter
        | Effect::ReadsGradient
        | Effect::ReadsUses
        | Effect::WritesUses => false,
    });
    let moves = action.facts().carries().is_some() || *action == Action::CopyIds;
    pure && !moves
        && !action.is_fused()
        && action.exchanges().is_empty()
        && !matches!(action, Action::Zero | Action::Copy)
}

/// The exchange that moves a table's entries.
fn entries(s: &Schedule, table: u32) -> Option<u32> {
    let asks = |e: &crate::model::Exchange| {
        e.table == table && e.part == 0 && e.leg.within().is_none() && e.of.is_none()
    };
    s.exchanges.iter().position(asks).map(|e| e as u32)
}

/// The table that an operand's ids are of.
pub(super) fn table_of_ids(s: &Schedule, list: &[Term], v: &Value) -> Option<u32> {
    match v.source {
        Source::Input(n) => match s.inputs.get(n as usize)?.kind {
            InputKind::Ids { table, .. } => Some(table),
            InputKind::Next { of } => match s.inputs.get(of as usize)?.kind {
                InputKind::Ids { table, .. } => Some(table),
                _ => None,
            },
            _ => None,
        },
        Source::Term(n, 0) => match s.reference.actions.get(list.get(n as usize)?.action? as usize)? {
            Action::DrawNegatives { table, .. } => Some(*table),
            _ => None,
        },
        _ => None,
    }
}

/// Shapes of all results of some terms.
fn graph(s: &Schedule, list: &[Term], microbatches: u32, r: &mut Report) -> Vec<Vec<OperandType>> {
    let columns: Vec<u32> = s.exchanges.iter().map(|e| e.columns(&s.tables)).collect();
    let cx = s.context(&columns, microbatches);
    let first: Vec<Option<u32>> = (0..s.tables.len() as u32).map(|t| entries(s, t)).collect();
    let mut graph = Graph { s, list, entries: first, shapes: Vec::with_capacity(list.len()) };
    for (n, term) in list.iter().enumerate() {
        match graph.term(term, &cx) {
            Ok(shapes) => graph.shapes.push(shapes),
            Err(e) => {
                r.fail("reference", format!("v{n}: {e}"));
                // What follows would only complain of this one.
                break;
            }
        }
    }
    graph.shapes
}

struct Graph<'a> {
    s: &'a Schedule,
    list: &'a [Term],
    entries: Vec<Option<u32>>,
    shapes: Vec<Vec<OperandType>>,
}

impl Graph<'_> {
    fn term(&self, term: &Term, cx: &Context<'_>) -> Result<Vec<OperandType>, TermError> {
        let Some(number) = term.action else { return self.concat(term) };
        let action = self.s.reference.actions.get(number as usize).ok_or(TermError::NoAction(number))?;
        if !of_model(action) {
            return Err(TermError::NotOfModel(action.name()));
        }
        let reads: Vec<OperandType> =
            term.operands.iter().map(|v| self.shape(v, action)).collect::<Result<_, _>>()?;
        if let Some((rows, ids)) = self.places(action, term, &reads)
            && (!rows || ids.is_none())
        {
            return Err(TermError::OtherTable);
        }
        let writes = self.results(action, &reads, term);
        action.check(&reads, &writes, cx)?;
        Ok(writes)
    }

    fn concat(&self, term: &Term) -> Result<Vec<OperandType>, TermError> {
        let (mut columns, mut first) = (0u32, None);
        for v in &term.operands {
            let width = match v.source {
                Source::Zero(n) if n > 0 && v.columns.is_none() => n,
                _ => match self.shape(v, &Action::Copy)? {
                    OperandType::Matrix { element, rows, columns } if element.is_float() => {
                        match *first.get_or_insert((element, rows)) {
                            (_, height) if rows != height => return Err(TermError::OtherRows(*v)),
                            (floats, _) if element != floats => return Err(TermError::OtherPrecision(*v)),
                            _ => columns,
                        }
                    }
                    other => return Err(TermError::NotReal(*v, other)),
                },
            };
            columns = columns.checked_add(width).filter(|c| *c <= 1 << 24).ok_or(TermError::Columns)?;
        }
        let (element, rows) = first.ok_or(TermError::Nothing)?;
        Ok(vec![floats(element, rows, columns)])
    }

    fn shape(&self, v: &Value, action: &Action) -> Result<OperandType, TermError> {
        let missing = || TermError::Missing(*v);
        let s = self.s;
        let all = match v.source {
            Source::Term(n, i) => {
                *self.shapes.get(n as usize).and_then(|t| t.get(i as usize)).ok_or_else(missing)?
            }
            Source::Parameter(n) => {
                let p = s.parameters.get(n as usize).ok_or_else(missing)?;
                OperandType::Parameter { rows: p.rows, columns: p.columns }
            }
            Source::Table(n) => {
                let dim = s.tables.get(n as usize).ok_or_else(missing)?.dim;
                // What looks rows up itself is given the table.
                if action.has(Effect::ReadsTable) {
                    OperandType::Table { table: n, dim }
                } else {
                    real(Extent::Symbol(Symbol::Sent(self.entries[n as usize].ok_or_else(missing)?)), dim)
                }
            }
            Source::Input(n) => {
                let kind = s.inputs.get(n as usize).ok_or_else(missing)?.kind;
                input(s, kind)
            }
            Source::Lengths(n) => {
                s.lengths.get(n as usize).ok_or_else(missing)?;
                OperandType::Offsets { lengths: n }
            }
            Source::Zero(_) => return Err(TermError::Zeros),
        };
        // Ids are known by their places among the entries.
        let all = match all {
            OperandType::Ids { lengths, .. } => signature::index(Extent::Symbol(Symbol::Tokens(lengths)), 1),
            OperandType::Matrix { element: Element::Id, rows, columns } => signature::index(rows, columns),
            other => other,
        };
        let Some((start, end)) = v.columns else { return Ok(all) };
        match all {
            OperandType::Matrix { element, rows, columns }
                if element.is_float() && start < end && end <= columns =>
            {
                Ok(floats(element, rows, end - start))
            }
            _ => Err(TermError::NoColumns(*v)),
        }
    }

    /// Whether the operand with a row per entry is of the ids' table, and that table; `None` if there are no ids.
    fn places(&self, action: &Action, term: &Term, reads: &[OperandType]) -> Option<(bool, Option<u32>)> {
        let entries = action.facts().entries?;
        let rows = match entries.rows {
            At::Read(n) => Some(n),
            // What it sums follows from the ids.
            At::Written(_) => None,
        };
        let tables: Vec<Option<u32>> = entries
            .inverse
            .iter()
            .map(|i| term.operands.get(*i).and_then(|v| table_of_ids(self.s, self.list, v)))
            .collect();
        let table = tables.first().copied().flatten().filter(|_| tables.windows(2).all(|w| w[0] == w[1]));
        let sent = table.and_then(|t| self.entries.get(t as usize).copied().flatten());
        let fits = rows.is_none_or(|i| match reads.get(i) {
            Some(OperandType::Matrix { rows: Extent::Symbol(Symbol::Sent(e)), .. }) => Some(*e) == sent,
            _ => false,
        });
        Some((fits && sent.is_some(), table))
    }

    /// What an action gives, if its operands fit; the signature judges both.
    fn results(&self, action: &Action, reads: &[OperandType], term: &Term) -> Vec<OperandType> {
        let matrix = |i: usize| match reads.get(i) {
            Some(OperandType::Matrix { rows, columns, .. }) => (*rows, *columns),
            _ => (Extent::Fixed(0), 0),
        };
        let precision = |i: usize| match reads.get(i) {
            Some(OperandType::Matrix { element, .. }) if element.is_float() => *element,
            _ => Element::Real,
        };
        // Activations have the precision of an operand, statistics and what is a loss's are f32.
        let wide = |i: usize, columns: u32| floats(precision(i), matrix(i).0, columns);
        let like = |i: usize| wide(i, matrix(i).1);
        let rows_by = |i: usize, columns: u32| real(matrix(i).0, columns);
        let samples = Extent::Symbol(Symbol::Samples);
        let (weight_rows, weight_columns) = match reads.get(1) {
            Some(OperandType::Parameter { rows, columns }) => (*rows, *columns),
            _ => (0, 0),
        };
        let vector = |columns: u32| OperandType::Gradient { rows: 1, columns };
        let summed = |columns: u32| {
            let table = term.operands.get(1).and_then(|v| table_of_ids(self.s, self.list, v));
            let e = table.and_then(|t| self.entries.get(t as usize).copied().flatten());
            e.map_or_else(Vec::new, |e| vec![real(Extent::Symbol(Symbol::Sent(e)), columns)])
        };
        match action {
            Action::DrawNegatives { lengths, count, .. } => {
                vec![signature::id(Extent::Symbol(Symbol::Tokens(*lengths)), *count)]
            }
            Action::Dense => match reads.first() {
                Some(OperandType::Dense { width }) => vec![real(samples, *width)],
                _ => Vec::new(),
            },
            Action::Linear { .. } => vec![wide(0, weight_rows)],
            Action::LinearGradInput => vec![wide(0, weight_columns)],
            Action::LinearGradWeight { bias } => {
                let mut all = vec![OperandType::Gradient { rows: matrix(0).1, columns: matrix(1).1 }];
                all.extend(bias.then(|| vector(matrix(0).1)));
                all
            }
            Action::LayerNorm { .. } => vec![like(0), rows_by(0, 2)],
            Action::LayerNormGrad { affine } => {
                let mut all = vec![like(0)];
                if *affine {
                    all.extend([vector(matrix(0).1); 2]);
                }
                all
            }
            Action::L2Normalize { .. } => vec![like(0), rows_by(0, 1)],
            Action::MulGrad => vec![like(0), like(0)],
            // The rows of the weight follow from the parameter that the gradient updates.
            Action::PositionalGrad => vec![OperandType::Gradient { rows: 0, columns: matrix(0).1 }],
            Action::Expand => vec![real(matrix(1).0, matrix(0).1)],
            Action::Pool { .. } => vec![real(samples, matrix(0).1)],
            Action::ExpandGrad | Action::PoolGrad { .. } => summed(matrix(0).1),
            Action::SoftmaxAttention { heads, .. } => vec![like(0), rows_by(0, *heads)],
            Action::SiluAttentionGrad { .. } | Action::SoftmaxAttentionGrad { .. } => vec![like(0); 3],
            Action::DotInteraction => {
                let n = reads.len() as u64;
                vec![wide(0, u32::try_from(n * n.saturating_sub(1) / 2).unwrap_or(u32::MAX))]
            }
            Action::Cast => {
                let other = if precision(0) == Element::Real { Element::Bf16 } else { Element::Real };
                vec![floats(other, matrix(0).0, matrix(0).1)]
            }
            Action::DotInteractionGrad => reads[..reads.len().saturating_sub(1)].to_vec(),
            Action::BceWithLogits { .. } => vec![real(Extent::Fixed(1), 1), rows_by(0, 1)],
            Action::SampledSoftmax { negatives, .. } => {
                vec![real(Extent::Fixed(1), 1), rows_by(0, negatives.saturating_add(1))]
            }
            Action::SampledSoftmaxGrad { .. } => vec![like(0), like(1)],
            Action::RankItems { .. } => Vec::new(),
            Action::Unary { .. }
            | Action::UnaryGrad { .. }
            | Action::Softmax
            | Action::SoftmaxGrad
            | Action::Add
            | Action::Mul
            | Action::Scale { .. }
            | Action::Copy
            | Action::Zero
            | Action::Positional
            | Action::Dropout { .. }
            | Action::DropoutGrad { .. }
            | Action::L2NormalizeGrad { .. }
            | Action::SiluAttention { .. }
            // What neighbours become is said of no reference either.
            | Action::LinearUnary { .. }
            | Action::AddLayerNorm { .. }
            | Action::LayerNormMul { .. }
            // How rows travel and what is updated is no part of a reference, which was said before (`of_model`).
            | Action::LoadBatch
            | Action::ShareLengths
            | Action::Assign
            | Action::Dispatch { .. }
            | Action::DispatchRows { .. }
            | Action::Combine { .. }
            | Action::CopyIds
            | Action::Unique { .. }
            | Action::UniqueFor { .. }
            | Action::UniqueAsked { .. }
            | Action::PassClasses { .. }
            | Action::PassRows { .. }
            | Action::SumAsked { .. }
            | Action::AllToAllIds { .. }
            | Action::AllToAllIdsFor { .. }
            | Action::AllGatherIds { .. }
            | Action::Partition { .. }
            | Action::AllToAllClasses { .. }
            | Action::Positions { .. }
            | Action::Gather { .. }
            | Action::AllToAllRows { .. }
            | Action::Merge { .. }
            | Action::Split { .. }
            | Action::AllToAllGrads { .. }
            | Action::AllGatherGrads { .. }
            | Action::Apply { .. }
            | Action::AllReduce
            | Action::DenseUpdate => vec![like(0)],
        }
    }
}

/// The shape of an input. The rule `inputs` has seen to it that what continues a sequence refers to ids, so it ends.
fn input(s: &Schedule, kind: InputKind) -> OperandType {
    match kind {
        InputKind::Ids { table, lengths } => OperandType::Ids { table, lengths },
        InputKind::Next { of } => input(s, s.inputs[of as usize].kind),
        InputKind::Dense { width } => OperandType::Dense { width },
        InputKind::SampleLabel => OperandType::Labels { rows: Extent::Symbol(Symbol::Samples) },
        InputKind::TokenLabel { lengths } => {
            OperandType::Labels { rows: Extent::Symbol(Symbol::Tokens(lengths)) }
        }
    }
}

/// Bounds before anything is computed.
pub(super) fn limits(s: &Schedule, r: &mut Report) {
    let lists = std::iter::once(s.reference.train.as_slice()).chain(s.reference.evaluation.as_deref());
    let terms: usize = lists.clone().map(<[Term]>::len).sum();
    let operands: usize = lists.flatten().map(|t| t.operands.len()).sum();
    let parts: usize = s.reference.updates.iter().map(|u| u.parts.len()).sum();
    let microbatches = s.settings.microbatches.clamp(1, 64) as usize;
    let counts = [
        ("terms", terms, limits::MOST_OPS),
        ("actions", s.reference.actions.len(), limits::MOST_OPS),
        ("operands over all microbatches", operands.saturating_mul(microbatches), 2 * limits::MOST_LINKS),
        ("gradients over all microbatches", parts.saturating_mul(microbatches), limits::MOST_LINKS),
    ];
    for (what, count, most) in counts {
        r.check(count <= most, "limits", || {
            format!("the reference has {count} {what}, at most {most} are allowed")
        });
    }
}
