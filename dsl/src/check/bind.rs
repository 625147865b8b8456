//! Arguments meet parameters: positions, names, defaults, and the kinds that parameters ask for.

use super::Checker;
use super::bound::{Bound, Data};
use super::makers::{self, Maker};
use super::values::{Arg, Failed, Given, Make, Val, plain};
use crate::ast::Ident;
use crate::checked::{InputKind, Limit, Normalize};
use crate::codes::{self, Code};
use crate::diagnostic::{Diagnostic, alternatives, closest};
use crate::signature::{Need, Param, ParamKind};
use crate::source::Span;
use crate::units::{self, Dimension};

/// Tokens or bytes of the largest limit: those of a rank can be counted exactly.
const MOST_LIMIT: f64 = (1u64 << 53) as f64;

/// What is called, for messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Callee<'a> {
    /// "`linear`", "`train`".
    pub(crate) name: &'a str,
    /// Settings in braces rather than arguments in parentheses.
    pub(crate) settings: bool,
    /// Where the name stands.
    pub(crate) span: Span,
    /// Say nothing about what is missing: a part of the text could not be understood.
    pub(crate) damaged: bool,
}

impl Callee<'_> {
    fn codes(self) -> (Code, Code, Code, &'static str) {
        if self.settings {
            (codes::UNKNOWN_SETTING, codes::SETTING_TWICE, codes::MISSING_SETTING, "setting")
        } else {
            (codes::UNKNOWN_ARGUMENT, codes::ARGUMENT_TWICE, codes::MISSING_ARGUMENT, "argument")
        }
    }
}

impl Checker<'_> {
    /// Distributes arguments to parameters. Every mistake is reported; `Err` if there was any, or if an
    /// argument is the result of an earlier one.
    pub(crate) fn bind(
        &mut self,
        callee: Callee<'_>,
        params: &'static [Param],
        args: Vec<Arg>,
        span: Span,
        hint: Option<&str>,
    ) -> Result<Bound, Failed> {
        let (unknown, twice, missing, word) = callee.codes();
        let mut given: Vec<Option<Given>> = vec![None; params.len()];
        let mut rest: Vec<Given> = Vec::new();
        let mut failed = false;
        let mut misspelt: Vec<&str> = Vec::new();
        let mut position = 0;
        for arg in args {
            let Some(name) = arg.name else {
                while position < params.len()
                    && given[position].is_some()
                    && params[position].kind != ParamKind::Values
                {
                    position += 1;
                }
                match params.get(position) {
                    Some(p) if p.kind == ParamKind::Values => rest.push(arg.given),
                    Some(p) if p.kind != ParamKind::LayerName => {
                        given[position] = Some(arg.given);
                        position += 1;
                    }
                    _ => {
                        failed = true;
                        let names = params.iter().map(|p| p.name);
                        self.push(
                            Diagnostic::error(
                                codes::TOO_MANY_ARGUMENTS,
                                arg.given.span,
                                format!("`{}` takes no further argument", callee.name),
                            )
                            .label("one too many")
                            .note(format!(
                                "its parameters are {}",
                                alternatives(names).replace(" or ", " and ")
                            )),
                        );
                    }
                }
                continue;
            };
            match params.iter().position(|p| p.name == name.text) {
                None => {
                    failed = true;
                    let names: Vec<&str> = params.iter().map(|p| p.name).collect();
                    misspelt.extend(closest(&name.text, names.iter().copied()));
                    let note = if names.is_empty() {
                        format!("`{}` takes none", callee.name)
                    } else {
                        format!(
                            "known here: {}",
                            alternatives(names.iter().copied()).replace(" or ", " and ")
                        )
                    };
                    self.push(
                        Diagnostic::error(
                            unknown,
                            name.span,
                            format!("`{}` has no {word} `{}`", callee.name, name.text),
                        )
                        .label(format!("unknown {word}"))
                        .note(note)
                        .suggest(&name.text, names),
                    );
                }
                Some(at) => {
                    if let Some(before) = &given[at] {
                        failed = true;
                        let d =
                            Diagnostic::error(twice, name.span, format!("`{}` is given twice", name.text))
                                .label("a second time")
                                .also(before.span, "first here");
                        self.push(d);
                    } else {
                        given[at] = Some(arg.given);
                    }
                }
            }
        }
        let mut entries = Vec::with_capacity(params.len());
        for (p, g) in params.iter().zip(given) {
            if p.kind == ParamKind::Values {
                let mut values = Vec::new();
                for g in std::mem::take(&mut rest).into_iter().chain(g) {
                    let span = g.span;
                    match self.coerce(p, g, callee) {
                        Ok(Data::Value(v)) => values.push((v, span)),
                        _ => failed = true,
                    }
                }
                entries.push((p.name, Data::Values(values), span));
                continue;
            }
            match (g, p.need) {
                (Some(g), _) => {
                    let at = g.span;
                    match self.coerce(p, g, callee) {
                        Ok(data) => entries.push((p.name, data, at)),
                        Err(Failed) => failed = true,
                    }
                }
                (None, Need::Required) => {
                    failed = true;
                    if !callee.damaged && !misspelt.contains(&p.name) {
                        self.push(
                            Diagnostic::error(
                                missing,
                                callee.span,
                                format!("`{}` needs the {word} `{}`", callee.name, p.name),
                            )
                            .label(format!("`{}` is missing", p.name))
                            .note(format!(
                                "`{}` is {}: {}",
                                p.name,
                                p.kind.words(),
                                p.doc
                            )),
                        );
                    }
                }
                (None, Need::Optional) => entries.push((p.name, Data::Missing, span)),
                (None, Need::Default(text)) => {
                    let g = Given { val: default_value(text), span };
                    match self.coerce(p, g, callee) {
                        Ok(data) => entries.push((p.name, data, span)),
                        Err(Failed) => failed = true,
                    }
                }
            }
        }
        if failed { Err(Failed) } else { Ok(Bound { span, hint: hint.map(str::to_owned), entries }) }
    }

    fn wrong_kind(&mut self, p: &Param, g: &Given, callee: Callee<'_>) -> Failed {
        if let Val::Symbol(name) = &g.val
            && matches!(
                p.kind,
                ParamKind::Value
                    | ParamKind::Values
                    | ParamKind::Table
                    | ParamKind::Ids
                    | ParamKind::Sequence
                    | ParamKind::DenseInput
                    | ParamKind::Label
            )
        {
            return self.unknown_name(name, g.span);
        }
        let found = self.describe(&g.val);
        let d = Diagnostic::error(
            codes::WRONG_KIND,
            g.span,
            format!("`{}` of `{}` must be {}", p.name, callee.name, p.kind.words()),
        )
        .label(format!("this is {found}"));
        self.push(d)
    }

    fn coerce(&mut self, p: &Param, g: Given, callee: Callee<'_>) -> Result<Data, Failed> {
        if matches!(g.val, Val::Poison) {
            return Err(Failed);
        }
        match p.kind {
            ParamKind::Value | ParamKind::Values => match self.as_value(&g) {
                Some(v) => Ok(Data::Value(v)),
                None => Err(self.wrong_kind(p, &g, callee)),
            },
            ParamKind::Table => match g.val {
                Val::Table(t) => Ok(Data::Table(t)),
                _ => Err(self.wrong_kind(p, &g, callee)),
            },
            ParamKind::Ids | ParamKind::Sequence | ParamKind::DenseInput | ParamKind::Label => {
                let Val::Input(i) = g.val else { return Err(self.wrong_kind(p, &g, callee)) };
                let fits = match self.model.inputs[i.index()].kind {
                    InputKind::Ids { .. } => matches!(p.kind, ParamKind::Ids | ParamKind::Sequence),
                    InputKind::Next { .. } => p.kind == ParamKind::Sequence,
                    InputKind::Dense { .. } => p.kind == ParamKind::DenseInput,
                    InputKind::SampleLabel | InputKind::TokenLabel { .. } => p.kind == ParamKind::Label,
                };
                if fits { Ok(Data::Input(i)) } else { Err(self.wrong_kind(p, &g, callee)) }
            }
            ParamKind::Count { min, max } => {
                let value = self.number(p, &g, callee)?;
                whole(value, min, max).map(Data::Count).ok_or_else(|| self.out_of_range(p, value, g.span))
            }
            ParamKind::CountOrAuto { min, max } => match &g.val {
                Val::Symbol(s) if s == "auto" => Ok(Data::CountOrAuto(None)),
                Val::Number { unit: None, value } => match whole(*value, min, max) {
                    Some(n) => Ok(Data::CountOrAuto(Some(n))),
                    None => Err(self.out_of_range(p, *value, g.span)),
                },
                // What measures something is told so.
                Val::Number { .. } => self.number(p, &g, callee).and(Err(Failed)),
                _ => Err(self.wrong_kind(p, &g, callee)),
            },
            ParamKind::Number { min, max, open } => {
                let value = self.number(p, &g, callee)?;
                let fits = if open { value > min && value < max } else { value >= min && value < max };
                if fits { Ok(Data::Number(value)) } else { Err(self.out_of_range(p, value, g.span)) }
            }
            ParamKind::Quantity(dimension) => {
                let Val::Number { value, unit } = g.val else { return Err(self.wrong_kind(p, &g, callee)) };
                let d = match unit {
                    Some(u) if u.dimension == dimension => {
                        let value = u.si(value);
                        if value >= 0.0 && value.is_finite() {
                            return Ok(Data::Number(value));
                        }
                        return Err(self.out_of_range(p, value, g.span));
                    }
                    Some(u) => Diagnostic::error(
                        codes::WRONG_UNIT,
                        g.span,
                        format!("`{}` of `{}` must be {}", p.name, callee.name, dimension.words()),
                    )
                    .label(format!("`{}` measures {}", u.name, u.dimension.noun())),
                    None => Diagnostic::error(
                        codes::WRONG_UNIT,
                        g.span,
                        format!("`{}` of `{}` needs a unit", p.name, callee.name),
                    )
                    .label(format!("expected {}", dimension.words())),
                };
                Err(self.push(d))
            }
            ParamKind::Limit => {
                let Val::Number { value, unit } = g.val else { return Err(self.wrong_kind(p, &g, callee)) };
                let limit = match unit.map(|u| (u.dimension, u.si(value))) {
                    Some((Dimension::Tokens, n)) => (n, Limit::Tokens(n as u64)),
                    Some((Dimension::Bytes, n)) => (n, Limit::Bytes(n as u64)),
                    measured => {
                        let d = Diagnostic::error(
                            codes::WRONG_UNIT,
                            g.span,
                            match measured {
                                None => format!("`{}` of `{}` needs a unit", p.name, callee.name),
                                Some(_) => {
                                    format!("`{}` of `{}` must be {}", p.name, callee.name, p.kind.words())
                                }
                            },
                        )
                        .label(match unit {
                            None => format!("expected {}", p.kind.words()),
                            Some(u) => format!("`{}` measures {}", u.name, u.dimension.noun()),
                        });
                        return Err(self.push(d));
                    }
                };
                // More bytes than can be counted are no limit.
                match limit {
                    (n, limit) if n.fract() == 0.0 && (1.0..=MOST_LIMIT).contains(&n) => {
                        Ok(Data::Limit(limit))
                    }
                    (n, _) => Err(self.out_of_range(p, n, g.span)),
                }
            }
            ParamKind::Switch => match &g.val {
                Val::Symbol(s) if s == "on" || s == "true" => Ok(Data::Switch(true)),
                Val::Symbol(s) if s == "off" || s == "false" => Ok(Data::Switch(false)),
                _ => Err(self.wrong_kind(p, &g, callee)),
            },
            ParamKind::Choice(words) => match &g.val {
                Val::Symbol(s) => match words.iter().find(|w| *w == s) {
                    Some(w) => Ok(Data::Choice(w)),
                    None => Err(self.unknown_choice(p, callee, s, words, g.span)),
                },
                _ => Err(self.wrong_kind(p, &g, callee)),
            },
            ParamKind::Text => match g.val {
                Val::Text(t) => Ok(Data::Text(t)),
                _ => Err(self.wrong_kind(p, &g, callee)),
            },
            ParamKind::LayerName => match &g.val {
                Val::Text(t) if is_layer_name(t) => Ok(Data::Text(t.clone())),
                Val::Text(_) => {
                    let d = Diagnostic::error(
                        codes::OUT_OF_RANGE,
                        g.span,
                        "the name of a layer has letters, digits and `_` only",
                    );
                    Err(self.push(d))
                }
                _ => Err(self.wrong_kind(p, &g, callee)),
            },
            ParamKind::Parts | ParamKind::Widths => match &g.val {
                Val::List(items) if !items.is_empty() => {
                    let mut widths = Vec::new();
                    for item in items {
                        let width = Param { kind: ParamKind::POSITIVE, ..*p };
                        match self.coerce(&width, item.clone(), callee)? {
                            Data::Count(n) => widths.push(n as u32),
                            _ => return Err(Failed),
                        }
                    }
                    Ok(Data::Widths(widths))
                }
                Val::Number { .. } if p.kind == ParamKind::Parts => {
                    self.coerce(&Param { kind: ParamKind::Count { min: 2, max: 1 << 10 }, ..*p }, g, callee)
                }
                _ => Err(self.wrong_kind(p, &g, callee)),
            },
            ParamKind::Normalize => match &g.val {
                Val::Symbol(s) if s == "tokens" => Ok(Data::Normalize(Normalize::Tokens)),
                Val::Symbol(s) if s == "samples" => Ok(Data::Normalize(Normalize::Samples)),
                Val::Symbol(s) => Err(self.unknown_choice(p, callee, s, &["tokens", "samples"], g.span)),
                Val::Number { .. } => {
                    match self.coerce(&Param { kind: ParamKind::ABOVE_ZERO, ..*p }, g, callee)? {
                        Data::Number(c) => Ok(Data::Normalize(Normalize::Constant(c))),
                        _ => Err(Failed),
                    }
                }
                _ => Err(self.wrong_kind(p, &g, callee)),
            },
            ParamKind::Init => self.make(p, &g, callee, makers::INITS).map(Data::Init),
            ParamKind::SparseOptimizer => self.make(p, &g, callee, makers::SPARSE).map(Data::SparseOptimizer),
            ParamKind::DenseOptimizer => self.make(p, &g, callee, makers::DENSE).map(Data::DenseOptimizer),
            ParamKind::Lengths => self.make(p, &g, callee, makers::LENGTHS).map(Data::Lengths),
            ParamKind::IdDistribution => self.make(p, &g, callee, makers::IDS).map(Data::Ids),
            ParamKind::LabelDistribution => self.make(p, &g, callee, makers::LABELS).map(Data::Labels),
            ParamKind::Balance => self.make(p, &g, callee, makers::BALANCE).map(Data::Balance),
            ParamKind::Sharding => self.make(p, &g, callee, makers::SHARDINGS).map(Data::Sharding),
        }
    }

    /// Applies the constructor that a word or call names.
    fn make<T>(
        &mut self,
        p: &Param,
        g: &Given,
        callee: Callee<'_>,
        family: &'static [Maker<T>],
    ) -> Result<T, Failed> {
        let make = match &g.val {
            Val::Make(make) => (**make).clone(),
            Val::Symbol(s) => Make { name: Ident { text: s.clone(), span: g.span }, args: Vec::new() },
            _ => return Err(self.wrong_kind(p, g, callee)),
        };
        let Some(maker) = family.iter().find(|m| m.name == make.name.text) else {
            let names: Vec<&'static str> = family.iter().map(|m| m.name).collect();
            return Err(self.unknown_choice(p, callee, &make.name.text, &names, make.name.span));
        };
        let inner = Callee { name: maker.name, settings: false, span: make.name.span, damaged: false };
        let bound = self.bind(inner, maker.params, make.args, g.span, None)?;
        match (maker.make)(&bound) {
            Ok(Ok(made)) => Ok(made),
            Ok(Err(why)) => Err(self.push(Diagnostic::error(codes::OUT_OF_RANGE, g.span, why.to_string()))),
            Err(Failed) => Err(Failed),
        }
    }

    fn number(&mut self, p: &Param, g: &Given, callee: Callee<'_>) -> Result<f64, Failed> {
        match g.val {
            Val::Number { value, unit: None } => Ok(value),
            Val::Number { unit: Some(u), .. } => {
                let d = Diagnostic::error(
                    codes::WRONG_UNIT,
                    g.span,
                    format!("`{}` of `{}` is a plain number", p.name, callee.name),
                )
                .label(format!("`{}` measures {}", u.name, u.dimension.noun()));
                Err(self.push(d))
            }
            _ => Err(self.wrong_kind(p, g, callee)),
        }
    }

    fn out_of_range(&mut self, p: &Param, value: f64, span: Span) -> Failed {
        self.push(
            Diagnostic::error(codes::OUT_OF_RANGE, span, format!("`{}` must be {}", p.name, p.kind.words()))
                .label(format!("this is {}", plain(value))),
        )
    }

    fn unknown_choice(
        &mut self,
        p: &Param,
        callee: Callee<'_>,
        word: &str,
        words: &[&str],
        span: Span,
    ) -> Failed {
        self.push(
            Diagnostic::error(
                codes::UNKNOWN_CHOICE,
                span,
                format!("`{}` of `{}` cannot be `{word}`", p.name, callee.name),
            )
            .label(format!("expected {}", alternatives(words.iter().copied())))
            .suggest(word, words.iter().copied()),
        )
    }
}

/// A whole number of a range.
fn whole(value: f64, min: u64, max: u64) -> Option<u64> {
    (value.fract() == 0.0 && value >= min as f64 && value <= max as f64).then_some(value as u64)
}

fn is_layer_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// A default as written in a signature.
fn default_value(text: &str) -> Val {
    if let Some((name, args)) = text.strip_suffix(')').and_then(|t| t.split_once('(')) {
        let nowhere = Span { file: 0, start: 0, end: 0 };
        let args = args
            .split(", ")
            .map(|a| Arg { name: None, given: Given { val: default_value(a), span: nowhere } })
            .collect();
        let name = Ident { text: name.to_owned(), span: nowhere };
        return Val::Make(std::rc::Rc::new(Make { name, args }));
    }
    let (number, unit) = text.split_once(' ').map_or((text, None), |(n, unit)| (n, units::find(unit)));
    match number.parse::<f64>() {
        Ok(value) => Val::Number { value, unit },
        Err(_) => Val::Symbol(text.to_owned()),
    }
}
