//! Expressions.

use super::bind::Callee;
use super::makers;
use super::primitives::{self, PRIMITIVES};
use super::values::{Arg, Failed, Given, Make, Val};
use super::{Checker, What};
use crate::ast::{self, Expr, ExprKind, Ident};
use crate::checked::{InputKind, Op, Rows, Type, ValueId};
use crate::codes;
use crate::diagnostic::{Diagnostic, closest};
use crate::source::Span;
use crate::units;
use std::rc::Rc;

impl<'a> Checker<'a> {
    /// Evaluates an expression; `hint` is the name that `let` gives to the result.
    pub(super) fn eval(&mut self, e: &'a Expr, hint: Option<&str>) -> Val {
        if !self.step(e.span) {
            return Val::Poison;
        }
        if !self.deeper(e.span) {
            return Val::Poison;
        }
        let val = self.eval_inner(e, hint);
        self.depth -= 1;
        val
    }

    /// Goes one level down, unless that is too deep for the stack; then it says so.
    pub(super) fn deeper(&mut self, span: Span) -> bool {
        let fits = self.depth < super::MAX_DEPTH;
        if fits {
            self.depth += 1;
        } else {
            self.unseen = true;
            let message = "expressions, `repeat` and blocks are nested too deeply here";
            let help = "give inner parts a name with `let`";
            self.push(Diagnostic::error(codes::NESTING, span, message).help(help));
        }
        fits
    }

    fn eval_inner(&mut self, e: &'a Expr, hint: Option<&str>) -> Val {
        let lenient = std::mem::take(&mut self.lenient);
        match &e.kind {
            ExprKind::Number { digits, unit } => self.literal(digits, unit.as_ref(), e.span),
            ExprKind::Text(t) => Val::Text(t.clone()),
            ExprKind::Name(name) => self.lookup(name).unwrap_or_else(|| Val::Symbol(name.clone())),
            ExprKind::Paren(inner) => self.eval(inner, hint),
            ExprKind::List(items) => self.list(items),
            ExprKind::Negative(inner) => match self.eval(inner, None) {
                Val::Number { value, unit } => Val::Number { value: -value, unit },
                val => self.scaled(&Given { val, span: inner.span }, -1.0, e.span),
            },
            ExprKind::Sum(terms) => self.sum(terms, e.span),
            ExprKind::Product(factors) => self.product(factors, e.span),
            ExprKind::Call { callee, args } => self.call(callee, args, e.span, hint, lenient),
        }
    }

    /// Lists hold numbers, so they cannot grow by being nested.
    fn list(&mut self, items: &'a [Expr]) -> Val {
        let mut list = Vec::with_capacity(items.len());
        for i in items {
            let val = self.eval(i, None);
            match val {
                Val::Number { .. } => list.push(Given { val, span: i.span }),
                Val::Poison => return Val::Poison,
                Val::Symbol(name) => {
                    self.unknown_name(&name, i.span);
                    return Val::Poison;
                }
                other => {
                    let d = Diagnostic::error(codes::WRONG_KIND, i.span, "lists are lists of numbers")
                        .label(format!("this is {}", self.describe(&other)));
                    self.push(d);
                    return Val::Poison;
                }
            }
        }
        Val::List(list)
    }

    fn literal(&mut self, digits: &str, unit: Option<&Ident>, span: Span) -> Val {
        let plain: String = digits.chars().filter(|c| *c != '_').collect();
        let value: f64 = plain.parse().unwrap_or(f64::INFINITY);
        let whole = plain.bytes().all(|b| b.is_ascii_digit());
        if !value.is_finite() || (whole && value > 9_007_199_254_740_992.0) {
            self.push(Diagnostic::error(
                codes::NUMBER_TOO_LARGE,
                span,
                "the number is too large to be represented",
            ));
            return Val::Poison;
        }
        let Some(unit) = unit else { return Val::Number { value, unit: None } };
        if let Some(found) = units::find(&unit.text) {
            return Val::Number { value, unit: Some(found) };
        }
        let d = units::unknown(unit);
        self.push(d);
        Val::Poison
    }

    /// A value of the graph, or a dense input that stands for its features.
    pub(super) fn as_value(&mut self, g: &Given) -> Option<ValueId> {
        match g.val {
            Val::Tensor(v) => Some(v),
            Val::Input(i) => match self.model.inputs[i.index()].kind {
                InputKind::Dense { width } => {
                    if let Some(&v) = self.dense.get(&i.0) {
                        return Some(v);
                    }
                    let ty = Type { rows: Rows::Samples, columns: width };
                    let v = self.node(Op::Dense { input: i }, Vec::new(), &[ty], g.span).first().copied()?;
                    self.dense.insert(i.0, v);
                    Some(v)
                }
                _ => None,
            },
            _ => None,
        }
    }

    fn operand(&mut self, g: &Given, operator: &str) -> Result<ValueId, Failed> {
        if let Some(v) = self.as_value(g) {
            return Ok(v);
        }
        match &g.val {
            Val::Poison => Err(Failed),
            Val::Symbol(name) => Err(self.unknown_name(name, g.span)),
            other => {
                let mut d = Diagnostic::error(
                    codes::WRONG_KIND,
                    g.span,
                    format!("`{operator}` works on numbers and on values of the graph"),
                )
                .label(format!("this is {}", self.describe(other)));
                if let Val::Input(_) = other {
                    d = d.help("`lookup(..)` or `pool(..)` turns ids into a value");
                }
                Err(self.push(d))
            }
        }
    }

    fn scaled(&mut self, g: &Given, factor: f64, span: Span) -> Val {
        match self.operand(g, "*") {
            Ok(v) => {
                let ty = self.ty(v);
                self.node1(Op::Scale { factor }, vec![v], ty, span)
            }
            Err(Failed) => Val::Poison,
        }
    }

    fn sum(&mut self, terms: &'a [(bool, Expr)], span: Span) -> Val {
        let given: Vec<(bool, Given)> = terms
            .iter()
            .map(|(minus, e)| (*minus, Given { val: self.eval(e, None), span: e.span }))
            .collect();
        if given.iter().all(|(_, g)| matches!(g.val, Val::Number { unit: None, .. })) {
            let value = given.iter().fold(0.0, |sum, (minus, g)| match g.val {
                Val::Number { value, .. } => sum + if *minus { -value } else { value },
                _ => sum,
            });
            return self.finite(value, span);
        }
        let mut args = Vec::with_capacity(given.len());
        let mut failed = false;
        for (minus, g) in &given {
            if let Val::Number { unit, .. } = &g.val {
                failed = true;
                let message = if unit.is_some() {
                    "numbers with units cannot be added"
                } else {
                    "a number cannot be added to a value of the graph"
                };
                self.push(Diagnostic::error(codes::WRONG_KIND, g.span, message).label("this is a number"));
                continue;
            }
            match self.operand(g, if *minus { "-" } else { "+" }) {
                Ok(v) if *minus => {
                    let ty = self.ty(v);
                    match self.node1(Op::Scale { factor: -1.0 }, vec![v], ty, g.span) {
                        Val::Tensor(v) => args.push((v, g.span)),
                        _ => failed = true,
                    }
                }
                Ok(v) => args.push((v, g.span)),
                Err(Failed) => failed = true,
            }
        }
        if failed {
            return Val::Poison;
        }
        self.elementwise(Op::Add, &args, span).unwrap_or(Val::Poison)
    }

    fn product(&mut self, factors: &'a [(bool, Expr)], span: Span) -> Val {
        let mut number = 1.0;
        let mut unit = None;
        let mut scaled = false;
        let mut values: Vec<(ValueId, Span)> = Vec::new();
        let mut failed = false;
        for (divides, e) in factors {
            let g = Given { val: self.eval(e, None), span: e.span };
            match g.val {
                Val::Number { value, unit: u } => {
                    if *divides && value == 0.0 {
                        self.push(Diagnostic::error(codes::OUT_OF_RANGE, g.span, "division by zero"));
                        failed = true;
                    }
                    number = if *divides { number / value } else { number * value };
                    scaled = true;
                    if u.is_some() && (unit.is_some() || *divides) {
                        self.push(Diagnostic::error(
                            codes::WRONG_UNIT,
                            g.span,
                            "numbers with units are multiplied by plain numbers only",
                        ));
                        failed = true;
                    }
                    unit = unit.or(u);
                }
                _ if *divides => {
                    failed = true;
                    if self.operand(&g, "/").is_ok() {
                        self.push(
                            Diagnostic::error(
                                codes::WRONG_KIND,
                                g.span,
                                "values can be divided by numbers only",
                            )
                            .label("this is a value of the graph"),
                        );
                    }
                }
                _ => match self.operand(&g, "*") {
                    Ok(v) => values.push((v, g.span)),
                    Err(Failed) => failed = true,
                },
            }
        }
        if failed {
            return Val::Poison;
        }
        let Some((&first, rest)) = values.split_first() else {
            return match self.finite(number, span) {
                Val::Number { value, .. } => Val::Number { value, unit },
                other => other,
            };
        };
        if unit.is_some() {
            self.push(Diagnostic::error(
                codes::WRONG_UNIT,
                span,
                "a value is multiplied by plain numbers only",
            ));
            return Val::Poison;
        }
        let mut product = first;
        for &next in rest {
            match self.elementwise(Op::Mul, &[product, next], span) {
                Ok(Val::Tensor(v)) => product = (v, span),
                _ => return Val::Poison,
            }
        }
        if scaled {
            if matches!(self.finite(number, span), Val::Poison) {
                return Val::Poison;
            }
            return self.scaled(&Given { val: Val::Tensor(product.0), span }, number, span);
        }
        Val::Tensor(product.0)
    }

    fn finite(&mut self, value: f64, span: Span) -> Val {
        if value.is_finite() {
            return Val::Number { value, unit: None };
        }
        self.push(Diagnostic::error(
            codes::NUMBER_TOO_LARGE,
            span,
            "the result is too large to be represented",
        ));
        Val::Poison
    }

    /// `Add` or `Mul` of values of one type.
    pub(crate) fn elementwise(
        &mut self,
        op: Op,
        args: &[(ValueId, Span)],
        span: Span,
    ) -> Result<Val, Failed> {
        let verb = if op == Op::Mul { "multiplied" } else { "added" };
        let ty = self.same_type(args, verb)?;
        Ok(self.node1(op, args.iter().map(|a| a.0).collect(), ty, span))
    }

    /// The common type of some values.
    pub(crate) fn same_type(&mut self, args: &[(ValueId, Span)], verb: &str) -> Result<Type, Failed> {
        let rows = self.same_rows(args, verb)?;
        let Some((&first, rest)) = args.split_first() else { return Err(Failed) };
        let ty = self.ty(first.0);
        for other in rest {
            if self.ty(other.0).columns != ty.columns {
                let d = self
                    .pair(codes::COLUMNS_DIFFER, first, *other)
                    .note(format!("values that are {verb} have the same number of columns"));
                return Err(self.push(d));
            }
        }
        Ok(Type { rows, columns: ty.columns })
    }

    /// The common rows of some values.
    pub(crate) fn same_rows(&mut self, args: &[(ValueId, Span)], verb: &str) -> Result<Rows, Failed> {
        let Some((&first, rest)) = args.split_first() else { return Err(Failed) };
        let ty = self.ty(first.0);
        if ty.rows == Rows::One {
            let d = Diagnostic::error(codes::WRONG_ROWS, first.1, format!("a loss cannot be {verb}"));
            return Err(self.push(d));
        }
        for other in rest {
            let b = self.ty(other.0);
            if b.rows != ty.rows {
                let mut d = self.pair(codes::ROWS_DIFFER, first, *other);
                if let (Rows::Tokens(x), Rows::Tokens(y)) = (ty.rows, b.rows) {
                    let (x, y) = (&self.model.lengths[x.index()].name, &self.model.lengths[y.index()].name);
                    d = d.note(format!("the sequences `{x}` and `{y}` have lengths of their own")).help(
                        format!(
                            "if they always have the same lengths, say so: `input {y}: ids(..) like {x}`"
                        ),
                    );
                } else {
                    d = d
                        .note("one has a row for each token, the other for each sample")
                        .help("`pool(..)` gives a row per sample");
                }
                return Err(self.push(d));
            }
        }
        Ok(ty.rows)
    }

    fn pair(&self, code: codes::Code, a: (ValueId, Span), b: (ValueId, Span)) -> Diagnostic {
        let (x, y) = (self.type_words(self.ty(a.0)), self.type_words(self.ty(b.0)));
        let d = Diagnostic::error(code, b.1, format!("`{x}` and `{y}` do not go together"))
            .label(format!("`{y}`"));
        if a.1 == b.1 { d } else { d.also(a.1, format!("`{x}`")) }
    }

    fn call(
        &mut self,
        callee: &'a Ident,
        args: &'a [ast::Argument],
        span: Span,
        hint: Option<&str>,
        lenient: bool,
    ) -> Val {
        let name = callee.text.as_str();
        if let Some(block) = self.blocks.get(name).copied() {
            return self.call_block(block, callee, args, span);
        }
        let given: Vec<Arg> = args
            .iter()
            .map(|a| {
                let given = Given { val: self.eval(&a.value, None), span: a.value.span };
                Arg { name: a.name.clone(), given }
            })
            .collect();
        if let Some(p) = primitives::find(name) {
            let call = Callee { name, settings: false, span: callee.span, damaged: false };
            let Ok(bound) = self.bind(call, p.params, given, span, hint) else { return Val::Poison };
            return (p.apply)(self, &bound).unwrap_or(Val::Poison);
        }
        if name == "width" {
            return self.width(callee, given);
        }
        if lenient || makers::is_maker(name) {
            for arg in &given {
                if matches!(arg.given.val, Val::Make(_) | Val::List(_) | Val::Results(_)) {
                    let d = Diagnostic::error(
                        codes::WRONG_KIND,
                        arg.given.span,
                        format!("`{name}(..)` takes numbers"),
                    )
                    .label(format!("this is {}", arg.given.val.words()));
                    self.push(d);
                    return Val::Poison;
                }
            }
            return Val::Make(Rc::new(Make { name: callee.clone(), args: given }));
        }
        if !self.forgiven.contains(name) {
            let known: Vec<&str> = PRIMITIVES
                .iter()
                .flat_map(|f| f.primitives)
                .map(|p| p.name)
                .chain(self.blocks.keys().copied())
                .chain(makers::names())
                .chain(["width"])
                .collect();
            let near = closest(name, known);
            let mut d = Diagnostic::error(
                codes::UNKNOWN_FUNCTION,
                callee.span,
                format!("there is no primitive or block `{name}`"),
            )
            .label("unknown");
            if let Some(near) = near {
                d = d.help(format!("did you mean `{near}`?"));
            }
            self.push(d);
        }
        Val::Poison
    }

    /// `width(x)`: columns of a value, of a table or of dense features.
    fn width(&mut self, callee: &Ident, args: Vec<Arg>) -> Val {
        let mut args = args.into_iter();
        let (Some(arg), None) = (args.next(), args.next()) else {
            self.push(
                Diagnostic::error(codes::MISSING_ARGUMENT, callee.span, "`width` takes one argument")
                    .note("it gives the number of columns of a value, a table or a dense input"),
            );
            return Val::Poison;
        };
        let number = |n: u32| Val::Number { value: f64::from(n), unit: None };
        match &arg.given.val {
            Val::Poison => Val::Poison,
            Val::Tensor(v) => number(self.ty(*v).columns),
            Val::Table(t) => number(self.model.tables[t.index()].dim),
            Val::Input(i) if matches!(self.model.inputs[i.index()].kind, InputKind::Dense { .. }) => {
                match self.model.inputs[i.index()].kind {
                    InputKind::Dense { width } => number(width),
                    _ => Val::Poison,
                }
            }
            Val::Symbol(name) => {
                self.unknown_name(name, arg.given.span);
                Val::Poison
            }
            other => {
                let d = Diagnostic::error(
                    codes::WRONG_KIND,
                    arg.given.span,
                    "`width` takes a value, a table or a dense input",
                )
                .label(format!("this is {}", self.describe(other)));
                self.push(d);
                Val::Poison
            }
        }
    }

    /// A whole number from an expression, such as the count of `repeat`.
    pub(super) fn whole(&mut self, e: &'a Expr, what: &str) -> Result<u64, Failed> {
        match self.eval(e, None) {
            Val::Poison => Err(Failed),
            Val::Number { value, unit: None } if value.fract() == 0.0 && value >= 0.0 => Ok(value as u64),
            Val::Symbol(name) => Err(self.unknown_name(&name, e.span)),
            other => {
                let d = Diagnostic::error(codes::WRONG_KIND, e.span, format!("{what} is a whole number"))
                    .label(format!("this is {}", self.describe(&other)));
                Err(self.push(d))
            }
        }
    }

    /// Brings a name into being in the innermost braces.
    pub(super) fn declare(&mut self, name: &Ident, val: Val, what: What) -> bool {
        let Some(frame) = self.frames.last_mut() else { return false };
        if let Some(old) = frame.levels.iter().rev().find_map(|l| l.get(&name.text)) {
            let mut d = Diagnostic::error(
                codes::DUPLICATE_NAME,
                name.span,
                format!("there is already a {} called `{}`", old.what.words(), name.text),
            )
            .label("declared again")
            .also(old.span, "first here");
            if old.what == What::Let && what == What::Let {
                d = d.help(format!("to give it a new value, write `{} = ...` without `let`", name.text));
            }
            self.push(d);
            return false;
        }
        if let Some(level) = frame.levels.last_mut() {
            level.insert(name.text.clone(), super::Binding { val, span: name.span, what });
        }
        let use_ = super::unused::Use { name: name.text.clone(), what, used: false };
        self.uses.entry(name.span).or_insert(use_);
        true
    }
}
