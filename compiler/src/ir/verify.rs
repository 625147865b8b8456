//! Rules that hold for every module, whatever its dialects:
//!
//! 1. A value is used below its definition: in declarations, or earlier in the same function (of a scheduled one, in
//!    falling order of stage); a value of another batch is defined anywhere in the function. In a scheduled function
//!    splits and concats are views of storage and take no time: one side of a concat may be read before the other is
//!    there, so their results too are defined anywhere in the function. The schedule's own verifier knows the columns.
//! 2. An operation obeys its definition: attributes, operands and result types.
//! 3. Declarations stand before functions and nowhere else; function names are unique.
//! 4. Microbatches and lookaheads are 1 to 64, as in the language: classes are counted by them.
//! 5. An operation of a function without results acts: on a table, parameters, the batch or what is reported.
//! 6. `into` names, for a result that can be added into, a value of the result's own type that is computed in the
//!    same function and not read at or after the operation: its storage is taken over.
//! 7. An operation works on samples at one site: what it uses was computed of samples there, or is declared, or is of a
//!    rank (rows on their way). Some bring values from one site to another, and a rank's list of ids has ids of both.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use fs_schedule::{OperandType, Site};

use super::parse::Lines;
use super::print::{Names, folded};
use super::{Attr, Context, Module, OpError, OpId, Sites, Type, ValueId, View};

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyError {
    /// The operation at fault.
    pub op: OpId,
    /// What is wrong, as a sentence whose subject is the operation.
    pub broken: Broken,
}

/// What is wrong with an operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// An operand is used above its definition.
    #[error("operand {operand} is used before it is defined")]
    Undefined {
        /// Which.
        operand: usize,
    },
    /// An operand of another batch that no operation of the function gives.
    #[error("operand {operand} of another batch is not computed in this function")]
    OtherFunction {
        /// Which.
        operand: usize,
    },
    /// Samples at one site meet those of another.
    #[error("works on samples {own}, its operand {operand} is of samples {other}")]
    Site {
        /// Where the operation works.
        own: &'static str,
        /// Which operand.
        operand: usize,
        /// Where it was computed.
        other: &'static str,
    },
    /// A rule of the operation's definition.
    #[error(transparent)]
    Definition(#[from] OpError),
    /// It does nothing that can be noticed.
    #[error("has neither results nor effects")]
    Idle,
    /// An operation among declarations.
    #[error("is not a declaration and belongs into a function")]
    NoDeclaration,
    /// A declaration in a function.
    #[error("is a declaration and belongs before functions")]
    Declaration,
    /// It begins a function whose name is taken.
    #[error("a second function @{0}")]
    SecondFunction(String),
    /// A number that others count up to.
    #[error("has a number of {0} outside 1 to {MOST}")]
    Limit(&'static str),
    /// `into` does not match the results.
    #[error("`into` names a value or `_` for every result")]
    IntoCount,
    /// A result that nothing can be added up in.
    #[error("result {result} cannot be added into a value")]
    NoSum {
        /// Which.
        result: usize,
    },
    /// A result is added into a value of another type.
    #[error("result {result} is {ty}, the value that it is added into {into}")]
    IntoType {
        /// Which.
        result: usize,
        /// Its type.
        ty: Type,
        /// The value's.
        into: Type,
    },
    /// A result is added into what a declaration gives.
    #[error("a declared value cannot be added into")]
    IntoDeclared,
    /// A result is added into a value whose storage is not free yet.
    #[error("the value that result {result} is added into is still read")]
    IntoRead {
        /// Which.
        result: usize,
    },
}

/// A set of a module's values.
#[derive(Clone)]
struct Known(Vec<bool>);

impl Known {
    fn add(&mut self, values: &[ValueId]) {
        for v in values {
            self.0[v.0 as usize] = true;
        }
    }
    fn has(&self, v: ValueId) -> bool {
        self.0[v.0 as usize]
    }
}

/// Most microbatches of a batch, and greatest lookahead of an exchange.
const MOST: i128 = 64;

/// Numbers that the other rules count up to.
fn limits(module: &Module) -> Vec<VerifyError> {
    let all = module.decls.iter().chain(module.funcs.iter().flat_map(|f| &f.body));
    let many = |attr: Option<&Attr>| matches!(attr, Some(Attr::Int(n)) if !(1..=MOST).contains(n));
    let settings = match module.attrs.get("settings") {
        Some(Attr::Dict(settings)) => many(settings.get("microbatches")),
        _ => false,
    };
    let microbatches = all.clone().take(usize::from(settings)).map(|op| (*op, "microbatches"));
    let lookaheads =
        all.filter(|op| many(module.op(**op).attrs.get("lookahead"))).map(|op| (*op, "lookahead"));
    let error = |(op, what)| VerifyError { op, broken: Broken::Limit(what) };
    microbatches.chain(lookaheads).map(error).collect()
}

/// All broken rules.
pub fn verify(module: &Module) -> Vec<VerifyError> {
    let limits = limits(module);
    if !limits.is_empty() {
        return limits;
    }
    let mut cx = Context::new(module);
    let mut errors = Vec::new();
    let mut declared = Known(vec![false; module.value_count()]);
    for id in &module.decls {
        check(&cx, *id, &declared, &declared, &mut errors);
        if !is_declaration(module, *id) {
            errors.push(VerifyError { op: *id, broken: Broken::NoDeclaration });
        }
        declared.add(&module.op(*id).results);
    }
    let mut names = BTreeSet::new();
    for func in &module.funcs {
        cx.enter(&func.name);
        let mut known = declared.clone();
        let mut last_read = vec![None; module.value_count()];
        // Scheduled functions are listed in issue order; a batch runs them in falling order of stage.
        let mut body = func.body.clone();
        body.sort_by_key(|id| module.op(*id).placement.as_ref().map_or(0, |p| -p.stage));
        let body = &body;
        for (i, id) in body.iter().enumerate() {
            // The copies behind a scheduled concat have places of their own, which the schedule's verifier judges.
            let op = module.op(*id);
            if op.placement.is_some() && op.def.view == Some(View::Concat) {
                continue;
            }
            for v in &op.operands {
                last_read[v.0 as usize] = Some(i);
            }
        }
        let mut own = Known(vec![false; module.value_count()]);
        for id in body {
            own.add(&module.op(*id).results);
        }
        for (i, id) in body.iter().enumerate() {
            check(&cx, *id, &known, &own, &mut errors);
            if is_declaration(module, *id) {
                errors.push(VerifyError { op: *id, broken: Broken::Declaration });
            }
            check_into(module, *id, i, &declared, &last_read, &mut errors);
            known.add(&module.op(*id).results);
        }
        if !names.insert(&func.name)
            && let Some(first) = func.body.first()
        {
            errors.push(VerifyError { op: *first, broken: Broken::SecondFunction(func.name.clone()) });
        }
    }
    errors
}

fn is_declaration(module: &Module, id: OpId) -> bool {
    module.op(id).def.declares.is_some()
}

fn check(cx: &Context<'_>, id: OpId, known: &Known, own: &Known, errors: &mut Vec<VerifyError>) {
    let op = cx.op(id);
    for (i, v) in op.uses().enumerate() {
        // Another batch's value only has to exist, and so does a view that is read in parts.
        let def = cx.def(v);
        let view = def.def.view.is_some() && def.placement.is_some();
        let anywhere = op.offset(i) != 0 || (view && op.placement.is_some());
        if !(if anywhere { own } else { known }).has(v) {
            let broken = match op.offset(i) {
                0 => Broken::Undefined { operand: i },
                _ => Broken::OtherFunction { operand: i },
            };
            errors.push(VerifyError { op: id, broken });
            return;
        }
    }
    for (i, v) in op.uses().enumerate() {
        let of_rank = match cx.ty(v) {
            Type::Operand(OperandType::Matrix { rows, .. }) => !rows.of_samples(),
            _ => false,
        };
        let wanted = match op.def.sites {
            Sites::Own => op.site,
            Sites::Between(from, _) => {
                if i == 0 {
                    Site::Home
                } else {
                    from
                }
            }
            Sites::Listed => continue,
        };
        let found = cx.site(v);
        if found != wanted && !of_rank && !is_declaration(cx, cx.value(v).def) {
            let (own, other) = (wanted.describe(), found.describe());
            errors.push(VerifyError { op: id, broken: Broken::Site { own, operand: i, other } });
        }
    }
    if let Err(broken) = (op.def.verify)(cx, op) {
        errors.push(VerifyError { op: id, broken: broken.into() });
    } else if op.results.is_empty() && op.def.declares.is_none() && !op.def.effects.acts() {
        errors.push(VerifyError { op: id, broken: Broken::Idle });
    }
}

fn check_into(
    module: &Module,
    id: OpId,
    at: usize,
    declared: &Known,
    last_read: &[Option<usize>],
    errors: &mut Vec<VerifyError>,
) {
    let op = module.op(id);
    if op.into.is_empty() {
        return;
    }
    let mut fail = |broken| errors.push(VerifyError { op: id, broken });
    if op.into.len() != op.results.len() {
        fail(Broken::IntoCount);
        return;
    }
    for (i, (base, result)) in op.into.iter().zip(&op.results).enumerate() {
        let Some(base) = base else { continue };
        if !op.def.accumulates.contains(&i) {
            fail(Broken::NoSum { result: i });
        } else if module.ty(*base) != module.ty(*result) {
            fail(Broken::IntoType { result: i, ty: module.ty(*result), into: module.ty(*base) });
        } else if declared.has(*base) {
            fail(Broken::IntoDeclared);
        } else if last_read[base.0 as usize].is_some_and(|last| last >= at) {
            fail(Broken::IntoRead { result: i });
        }
    }
}

/// The module's text with errors under the operations at fault.
pub fn render(module: &Module, errors: &[VerifyError]) -> String {
    render_with_lines(module, errors, &Lines::default())
}

/// Likewise, with the lines on which the operations stand in the text that was read.
pub fn render_with_lines(module: &Module, errors: &[VerifyError], lines: &Lines) -> String {
    let mut at: BTreeMap<OpId, Vec<&Broken>> = BTreeMap::new();
    for e in errors {
        at.entry(e.op).or_default().push(&e.broken);
    }
    let mut names = Names::default();
    let mut text = String::new();
    for id in module.decls.iter().chain(module.funcs.iter().flat_map(|f| &f.body)) {
        // Every line is made, so that values keep the numbers that they have in the whole text.
        let line = folded(&format!("  {}", module.line(*id, &mut names)));
        for broken in at.get(id).into_iter().flatten() {
            let place = lines.of(*id).map_or(String::new(), |n| format!("line {n}: "));
            let _ = writeln!(text, "{line}\n  ^ {place}{} {broken}", module.op(*id).def.name);
        }
    }
    text
}
