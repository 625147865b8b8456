//! Tables, inputs and the loss of a model.

use super::bind::Callee;
use super::settings;
use super::values::{Failed, Given, Val};
use super::{Checker, Frame, What};
use crate::ast::{self, Body, Expr, ExprKind, Ident, StatementKind};
use crate::checked::{DType, Input, InputId, InputKind, Keep, Lengths, LengthsId, Op, Table, TableId, Type};
use crate::codes;
use crate::diagnostic::{Diagnostic, alternatives};
use crate::source::Span;
use std::collections::HashMap;

pub(super) fn dtype(word: &str) -> DType {
    match word {
        "f16" => DType::F16,
        "bf16" => DType::BF16,
        "mxint8" => DType::MXINT8,
        _ => DType::F32,
    }
}

impl<'a> Checker<'a> {
    pub(super) fn check_model(&mut self, name: &'a Ident, body: &'a Body, span: Span) {
        self.model.name.clone_from(&name.text);
        self.model.span = Span { end: name.span.end, ..span };
        self.frames.push(Frame { levels: vec![HashMap::new()] });
        for s in &body.statements {
            if let StatementKind::Table(section) = &s.kind {
                self.table(section);
            }
        }
        for s in &body.statements {
            if let StatementKind::Input { name, kind, like, settings } = &s.kind {
                let val = self.input(name, kind, like.as_ref(), settings.as_ref(), s.span);
                self.declare(name, val.unwrap_or(Val::Poison), What::Input);
            }
        }
        self.loss_span = None;
        self.model_statements(body);
        if self.loss_span.is_none() && !self.is_damaged(span) && !self.stopped {
            self.push(
                Diagnostic::error(
                    codes::NO_LOSS,
                    name.span,
                    format!("the model `{}` has no loss", name.text),
                )
                .label("no `loss` inside")
                .help("say what to minimise: `loss bce_with_logits(..)` or `loss sampled_softmax(..)`"),
            );
        }
        if !self.diagnostics.iter().any(Diagnostic::is_error) {
            self.warn_unused();
        }
        self.frames.pop();
    }

    fn table(&mut self, section: &'a ast::Section) {
        let Some(name) = &section.name else { return };
        let val = match self.table_settings(name, section) {
            Ok(table) => {
                self.model.tables.push(table);
                Val::Table(TableId(self.model.tables.len() as u32 - 1))
            }
            Err(Failed) => Val::Poison,
        };
        self.declare(name, val, What::Table);
    }

    fn table_settings(&mut self, name: &Ident, section: &'a ast::Section) -> Result<Table, Failed> {
        let title = format!("table {}", name.text);
        let b = self.settings(&title, section.keyword.span, section.settings.as_ref(), settings::TABLE)?;
        Ok(Table {
            name: name.text.clone(),
            rows: b.count("rows")?,
            dim: b.count("dim")? as u32,
            init: b.init("init")?,
            optimizer: b.sparse_optimizer("optimizer")?,
            sharding: b.sharding("sharding")?,
            dtype: dtype(b.choice("dtype")?),
            span: name.span,
        })
    }

    fn input(
        &mut self,
        name: &Ident,
        kind: &'a Expr,
        like: Option<&Ident>,
        given: Option<&'a ast::Settings>,
        span: Span,
    ) -> Result<Val, Failed> {
        let (word, word_span, args): (&str, Span, &'a [ast::Argument]) = match &kind.kind {
            ExprKind::Call { callee, args } => (&callee.text, callee.span, args),
            ExprKind::Name(n) => (n, kind.span, &[]),
            _ => return Err(Failed),
        };
        let Some(params) = settings::INPUT_KINDS.iter().find(|k| k.name == word).map(|k| k.params) else {
            let known = || settings::INPUT_KINDS.iter().map(|k| k.name);
            return Err(self.push(
                Diagnostic::error(
                    codes::UNKNOWN_CHOICE,
                    word_span,
                    format!("there is no kind of input `{word}`"),
                )
                .label(format!("expected {}", alternatives(known())))
                .suggest(word, known()),
            ));
        };
        let args = args
            .iter()
            .map(|a| {
                let given = Given { val: self.eval(&a.value, None), span: a.value.span };
                super::values::Arg { name: a.name.clone(), given }
            })
            .collect();
        let callee = Callee { name: word, settings: false, span: word_span, damaged: false };
        let bound = self.bind(callee, params, args, kind.span, None);
        let shared = match like {
            Some(like) if !matches!(word, "ids" | "label") => {
                return Err(self.push(
                    Diagnostic::error(
                        codes::CONFLICT,
                        like.span,
                        format!("a `{word}` input cannot share lengths with another"),
                    )
                    .label("`like` does not go with it"),
                ));
            }
            Some(like) => Some(self.lengths_of(like)?),
            None => None,
        };
        if let Some(s) = given
            && (word != "ids" || shared.is_some())
        {
            let why = if shared.is_some() {
                "an input takes its lengths, with their settings, from the one after `like`".to_owned()
            } else {
                format!("a `{word}` input has no settings")
            };
            return Err(self.push(Diagnostic::error(codes::CONFLICT, s.span, why).label("not needed")));
        }
        let kind = match word {
            "ids" => {
                let lengths = match shared {
                    Some(l) => Ok(l),
                    None => self.new_lengths(name, given),
                };
                InputKind::Ids { table: bound?.table("table")?, lengths: lengths? }
            }
            "next" => {
                let bound = bound?;
                InputKind::Next { of: bound.input("of")? }
            }
            "dense" => InputKind::Dense { width: bound?.count("width")? as u32 },
            _ => match shared {
                Some(lengths) => InputKind::TokenLabel { lengths },
                None => InputKind::SampleLabel,
            },
        };
        self.model.inputs.push(Input { name: name.text.clone(), kind, span });
        Ok(Val::Input(InputId(self.model.inputs.len() as u32 - 1)))
    }

    fn new_lengths(&mut self, name: &Ident, given: Option<&'a ast::Settings>) -> Result<LengthsId, Failed> {
        let b = self.settings(&format!("input {}", name.text), name.span, given, settings::IDS)?;
        let keep = if b.choice("keep")? == "first" { Keep::First } else { Keep::Last };
        let max = b.count("max")? as u32;
        self.model.lengths.push(Lengths { name: name.text.clone(), max, keep, span: name.span });
        Ok(LengthsId(self.model.lengths.len() as u32 - 1))
    }

    fn lengths_of(&mut self, like: &Ident) -> Result<LengthsId, Failed> {
        match self.lookup(&like.text) {
            Some(Val::Input(i)) => match self.model.inputs[i.index()].kind {
                InputKind::Ids { lengths, .. } | InputKind::TokenLabel { lengths } => Ok(lengths),
                InputKind::Next { of } => self.group_of(of).ok_or(Failed),
                InputKind::Dense { .. } | InputKind::SampleLabel => Err(self.push(
                    Diagnostic::error(
                        codes::WRONG_KIND,
                        like.span,
                        format!("`{}` has one entry per sample, so it has no lengths", like.text),
                    )
                    .label("not a sequence"),
                )),
            },
            Some(Val::Poison) => Err(Failed),
            Some(_) => Err(self.push(
                Diagnostic::error(
                    codes::WRONG_KIND,
                    like.span,
                    "`like` is followed by an input with lengths",
                )
                .label("not an input"),
            )),
            None => Err(self.unknown_name(&like.text, like.span)),
        }
    }

    /// The group of sequences that an input's tokens belong to; `None` for inputs with a row per sample.
    pub(crate) fn group_of(&self, input: InputId) -> Option<LengthsId> {
        match self.model.inputs[input.index()].kind {
            InputKind::Ids { lengths, .. } | InputKind::TokenLabel { lengths } => Some(lengths),
            InputKind::Next { of } => match self.model.inputs[of.index()].kind {
                InputKind::Ids { lengths, .. } => Some(lengths),
                _ => None,
            },
            InputKind::Dense { .. } | InputKind::SampleLabel => None,
        }
    }

    /// The table that an id input names rows of.
    pub(crate) fn table_of(&self, input: InputId) -> Option<TableId> {
        match self.model.inputs[input.index()].kind {
            InputKind::Ids { table, .. } => Some(table),
            InputKind::Next { of } => match self.model.inputs[of.index()].kind {
                InputKind::Ids { table, .. } => Some(table),
                _ => None,
            },
            _ => None,
        }
    }

    pub(super) fn loss(&mut self, e: &'a Expr, span: Span) {
        if let Some(first) = self.loss_span {
            let d = Diagnostic::error(codes::SEVERAL_LOSSES, span, "a model has one loss")
                .label("a second loss")
                .also(first, "the first");
            self.push(d);
            return;
        }
        self.loss_span = Some(span);
        match self.eval(e, None) {
            Val::Tensor(v)
                if self.model.nodes.iter().any(|n| {
                    matches!(n.op, Op::BceWithLogits { .. } | Op::SampledSoftmax { .. })
                        && n.results.contains(&v)
                }) =>
            {
                self.model.loss = v;
            }
            Val::Poison => {}
            Val::Symbol(name) => {
                self.unknown_name(&name, e.span);
            }
            other => {
                let found = self.describe(&other);
                let d = Diagnostic::error(codes::NOT_A_LOSS, e.span, "this is not a loss")
                    .label(format!("this is {found}"))
                    .help("losses are `bce_with_logits(..)` and `sampled_softmax(..)`");
                self.push(d);
            }
        }
    }

    /// Adds a dense parameter.
    pub(crate) fn param(
        &mut self,
        name: String,
        shape: [u32; 2],
        vector: bool,
        init: crate::checked::Init,
        span: Span,
    ) -> crate::checked::ParamId {
        self.model.params.push(crate::checked::Param { name, shape, vector, init, span });
        crate::checked::ParamId(self.model.params.len() as u32 - 1)
    }

    /// A type with this many columns, unless they are too many.
    pub(crate) fn columns(
        &mut self,
        rows: crate::checked::Rows,
        columns: u64,
        span: Span,
    ) -> Result<Type, Failed> {
        const MAX: u64 = 1 << 20;
        if columns <= MAX {
            return Ok(Type { rows, columns: columns as u32 });
        }
        let d =
            Diagnostic::error(codes::OUT_OF_RANGE, span, format!("a value can have at most {MAX} columns"))
                .label(format!("this has {columns}"));
        Err(self.push(d))
    }
}
