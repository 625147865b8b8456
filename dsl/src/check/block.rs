//! Statements, `repeat`, and the inlining of blocks.

use super::values::{Failed, Given, Val};
use super::{Binding, Checker, Frame, Unit, What};
use super::{makers, primitives};
use crate::ast::{self, Body, Expr, Ident, Item, Statement, StatementKind};
use crate::checked::ValueId;
use crate::codes;
use crate::diagnostic::Diagnostic;
use crate::source::Span;
use std::collections::HashMap;

const MAX_REPEAT: u64 = 100_000;
/// Blocks that may be inlined into each other: like `MAX_DEPTH` it bounds the use of the stack.
const MAX_CALLS: usize = 64;

/// Where statements stand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Model,
    Block,
    Repeat,
}

impl<'a> Checker<'a> {
    pub(super) fn collect_blocks(&mut self, units: &'a [Unit]) {
        for item in units.iter().flat_map(|u| &u.file.items) {
            let Item::Block(block) = item else { continue };
            let name = block.name.text.as_str();
            if primitives::find(name).is_some() || makers::is_maker(name) || name == "width" {
                self.push(
                    Diagnostic::error(
                        codes::DUPLICATE_NAME,
                        block.name.span,
                        format!("`{name}` is part of the language"),
                    )
                    .label("choose another name"),
                );
            } else if let Some(old) = self.blocks.get(name) {
                let d = Diagnostic::error(
                    codes::DUPLICATE_NAME,
                    block.name.span,
                    format!("there is already a block called `{name}`"),
                )
                .label("declared again")
                .also(old.name.span, "first here");
                self.push(d);
            } else {
                self.blocks.insert(name, block);
            }
            let mut seen: HashMap<&str, Span> = HashMap::new();
            for (param, _) in &block.params {
                if let Some(first) = seen.insert(&param.text, param.span) {
                    let d = Diagnostic::error(
                        codes::DUPLICATE_NAME,
                        param.span,
                        format!("two parameters are called `{}`", param.text),
                    )
                    .also(first, "first here");
                    self.push(d);
                }
                if param.text == "name" {
                    self.push(
                        Diagnostic::error(
                            codes::DUPLICATE_NAME,
                            param.span,
                            "no parameter can be called `name`",
                        )
                        .note("`name:` in the call of a block prefixes the names of the layers inside"),
                    );
                }
            }
        }
    }

    /// Checks blocks that nothing calls as far as that is possible without arguments.
    pub(super) fn check_idle_blocks(&mut self, main: Option<&'a Unit>) {
        let idle: Vec<&'a ast::Block> =
            self.blocks.iter().filter(|(n, _)| !self.called.contains(*n)).map(|(_, b)| *b).collect();
        let library = main.is_some_and(|u| !u.file.items.iter().any(|i| matches!(i, Item::Model { .. })));
        for block in &idle {
            if self.unseen {
                return;
            }
            let mut level = HashMap::new();
            for (name, _) in &block.params {
                level.insert(
                    name.text.clone(),
                    Binding { val: Val::Poison, span: name.span, what: What::Parameter },
                );
            }
            let before = self.uses.clone();
            self.run_block(block, level);
            self.uses = before;
        }
        // What another idle block calls is not idle by itself.
        for block in idle {
            if block.name.span.file == 0 && !library && !self.called.contains(block.name.text.as_str()) {
                self.push(
                    Diagnostic::warning(
                        codes::UNUSED_BLOCK,
                        block.name.span,
                        format!("the block `{}` is never called", block.name.text),
                    )
                    .label("unused"),
                );
            }
        }
    }

    pub(super) fn call_block(
        &mut self,
        block: &'a ast::Block,
        callee: &Ident,
        args: &'a [ast::Argument],
        span: Span,
    ) -> Val {
        self.called.insert(&block.name.text);
        let name = block.name.text.as_str();
        // Every call of a block inlines it, so one that is being inlined already would never end.
        if self.calls.iter().any(|(n, _)| n == name) {
            let d =
                Diagnostic::error(codes::RECURSION, callee.span, format!("the block `{name}` calls itself"))
                    .label("again here")
                    .also(block.name.span, "the block")
                    .help("use `repeat` to apply something several times");
            self.push(d);
            return Val::Poison;
        }
        if self.calls.len() >= MAX_CALLS {
            self.unseen = true;
            let d = Diagnostic::error(
                codes::NESTING,
                callee.span,
                format!("calls of blocks are nested more than {MAX_CALLS} deep"),
            )
            .label(format!("`{name}` is one too many"))
            .help("give the result of an inner call a name with `let`, outside of the blocks around it");
            self.push(d);
            return Val::Poison;
        }
        let mut given: Vec<Option<Val>> = vec![None; block.params.len()];
        let mut scope = None;
        let mut position = 0;
        let mut failed = false;
        for arg in args {
            let val = self.eval(&arg.value, None);
            let Some(key) = &arg.name else {
                while given.get(position).is_some_and(Option::is_some) {
                    position += 1;
                }
                if let Some(slot) = given.get_mut(position) {
                    *slot = Some(val);
                } else {
                    failed = true;
                    let d = Diagnostic::error(
                        codes::TOO_MANY_ARGUMENTS,
                        arg.value.span,
                        format!("the block `{name}` takes {} arguments", block.params.len()),
                    )
                    .label("one too many")
                    .also(block.name.span, "declared here");
                    self.push(d);
                }
                continue;
            };
            if key.text == "name" {
                match val {
                    Val::Text(t)
                        if !t.is_empty() && t.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') =>
                    {
                        scope = Some(t);
                    }
                    _ => {
                        failed = true;
                        self.push(Diagnostic::error(
                            codes::WRONG_KIND,
                            arg.value.span,
                            "`name` is a string of letters, digits and `_`",
                        ));
                    }
                }
                continue;
            }
            match block.params.iter().position(|(p, _)| p.text == key.text) {
                Some(at) if given[at].is_none() => given[at] = Some(val),
                Some(_) => {
                    failed = true;
                    self.push(Diagnostic::error(
                        codes::ARGUMENT_TWICE,
                        key.span,
                        format!("`{}` is given twice", key.text),
                    ));
                }
                None => {
                    failed = true;
                    let d = Diagnostic::error(
                        codes::UNKNOWN_ARGUMENT,
                        key.span,
                        format!("the block `{name}` has no parameter `{}`", key.text),
                    )
                    .label("unknown parameter")
                    .also(block.name.span, "declared here")
                    .suggest(&key.text, block.params.iter().map(|(p, _)| p.text.as_str()));
                    self.push(d);
                }
            }
        }
        let mut level = HashMap::new();
        for ((param, default), val) in block.params.iter().zip(given) {
            let val = match (val, default) {
                (Some(val), _) => val,
                (None, Some(e)) => {
                    // Defaults see nothing of the caller.
                    self.frames.push(Frame::default());
                    let val = self.eval(e, None);
                    self.frames.pop();
                    val
                }
                (None, None) => {
                    if !failed {
                        let d = Diagnostic::error(
                            codes::MISSING_ARGUMENT,
                            callee.span,
                            format!("`{name}` needs the argument `{}`", param.text),
                        )
                        .label(format!("`{}` is missing", param.text))
                        .also(param.span, "declared here");
                        self.push(d);
                    }
                    failed = true;
                    Val::Poison
                }
            };
            // A word that nobody knows stays a word: its meaning depends on where the block uses it.
            level.insert(param.text.clone(), Binding { val, span: param.span, what: What::Parameter });
        }
        if failed {
            return Val::Poison;
        }
        self.calls.push((name.to_owned(), span));
        let scoped = scope.is_some();
        self.scope.extend(scope);
        let result = self.run_block(block, level);
        if scoped {
            self.scope.pop();
        }
        self.calls.pop();
        result
    }

    fn run_block(&mut self, block: &'a ast::Block, level: HashMap<String, Binding>) -> Val {
        self.frames.push(Frame { levels: vec![level, HashMap::new()] });
        let (last, body) = match block.body.statements.split_last() {
            Some((Statement { kind: StatementKind::Return(results), .. }, body)) => (Some(results), body),
            _ => (None, block.body.statements.as_slice()),
        };
        self.statements(body, Scope::Block);
        let result = if let Some(results) = last {
            self.results(results)
        } else {
            if !self.is_damaged(block.span) {
                self.push(
                    Diagnostic::error(
                        codes::RETURN,
                        block.name.span,
                        format!("the block `{}` returns nothing", block.name.text),
                    )
                    .label("has no `return` at its end"),
                );
            }
            Val::Poison
        };
        self.frames.pop();
        result
    }

    fn results(&mut self, results: &'a [Expr]) -> Val {
        if let [one] = results {
            let val = self.eval(one, None);
            if let Val::Symbol(name) = &val {
                self.unknown_name(name, one.span);
                return Val::Poison;
            }
            return val;
        }
        let mut given = Vec::with_capacity(results.len());
        for e in results {
            let mut val = self.eval(e, None);
            match &val {
                Val::Symbol(name) => {
                    self.unknown_name(name, e.span);
                    val = Val::Poison;
                }
                Val::Results(several) => {
                    let n = several.len();
                    self.push(
                        Diagnostic::error(codes::RESULT_COUNT, e.span, "each result is one value")
                            .label(format!("gives {}", counted(n, "result"))),
                    );
                    val = Val::Poison;
                }
                _ => {}
            }
            given.push(Given { val, span: e.span });
        }
        Val::Results(given)
    }

    pub(super) fn model_statements(&mut self, body: &'a Body) {
        self.statements(&body.statements, Scope::Model);
    }

    fn statements(&mut self, statements: &'a [Statement], place: Scope) {
        for s in statements {
            if !self.step(s.span) {
                return;
            }
            match &s.kind {
                StatementKind::Table(_) | StatementKind::Input { .. } => {
                    if place != Scope::Model {
                        self.misplaced(s.span, "tables and inputs stand directly in the model");
                    }
                }
                StatementKind::Loss(e) => {
                    if place == Scope::Model {
                        self.loss(e, s.span);
                    } else {
                        self.misplaced(s.span, "the loss stands directly in the model");
                    }
                }
                StatementKind::Return(_) => {
                    let why = if place == Scope::Block {
                        "nothing follows `return`"
                    } else {
                        "`return` stands last in a block"
                    };
                    self.misplaced(s.span, why);
                }
                StatementKind::Bind { define, names, value } => self.bind_names(*define, names, value),
                StatementKind::Repeat { count, name, body } => self.repeat(count, name.as_ref(), body),
            }
        }
    }

    fn misplaced(&mut self, span: Span, why: &str) {
        self.push(Diagnostic::error(codes::MISPLACED, span, why).label("not allowed here"));
    }

    fn repeat(&mut self, count: &'a Expr, name: Option<&'a Ident>, body: &'a Body) {
        // A wrong count is reported once; the body is still worth checking.
        let n = self.whole(count, "the count of `repeat`").unwrap_or(1);
        if n > MAX_REPEAT {
            let d = Diagnostic::error(codes::TOO_LARGE, count.span, format!("`repeat {n}` is too much"))
                .label(format!("at most {MAX_REPEAT}"))
                .note("every iteration becomes operations of its own");
            self.push(d);
            return;
        }
        if !self.deeper(count.span) {
            return;
        }
        let label = name.map_or("repeat", |n| n.text.as_str());
        for i in 0..n {
            self.scope.push(format!("{label}.{i}"));
            if let Some(frame) = self.frames.last_mut() {
                frame.levels.push(HashMap::new());
            }
            self.statements(&body.statements, Scope::Repeat);
            if let Some(frame) = self.frames.last_mut() {
                frame.levels.pop();
            }
            self.scope.pop();
            if self.stopped {
                break;
            }
        }
        self.depth -= 1;
    }

    fn bind_names(&mut self, define: bool, names: &'a [Ident], value: &'a Expr) {
        let hint = match names {
            [one] if define => Some(one.text.as_str()),
            _ => None,
        };
        let mut val = self.eval(value, hint);
        if let Val::Symbol(name) = &val {
            self.unknown_name(name, value.span);
            val = Val::Poison;
        }
        let vals: Vec<Val> = match val {
            Val::Poison => vec![Val::Poison; names.len()],
            Val::Results(r) if r.len() == names.len() => r.into_iter().map(|g| g.val).collect(),
            val if names.len() == 1 && !matches!(val, Val::Results(_)) => vec![val],
            val => {
                let found = match &val {
                    Val::Results(r) => r.len(),
                    _ => 1,
                };
                let d = Diagnostic::error(
                    codes::RESULT_COUNT,
                    value.span,
                    format!(
                        "{} on the left, {} on the right",
                        counted(names.len(), "name"),
                        counted(found, "result")
                    ),
                )
                .label(format!("gives {}", counted(found, "result")));
                self.push(d);
                vec![Val::Poison; names.len()]
            }
        };
        for (name, val) in names.iter().zip(vals) {
            if let Val::Tensor(v) = val {
                self.name_value(v, &name.text);
            }
            if define {
                self.declare(name, val, What::Let);
            } else {
                let _ = self.assign(name, val);
            }
        }
    }

    fn name_value(&mut self, v: ValueId, name: &str) {
        let path = self.scoped(name);
        let value = &mut self.model.values[v.index()];
        if value.name.is_empty() {
            value.name = path;
        }
    }

    fn assign(&mut self, name: &Ident, val: Val) -> Result<(), Failed> {
        let Some(frame) = self.frames.last_mut() else { return Err(Failed) };
        match frame.levels.iter_mut().rev().find_map(|l| l.get_mut(&name.text)) {
            Some(b) if b.what == What::Let || (b.what == What::Parameter && is_value(&b.val)) => {
                b.val = val;
                Ok(())
            }
            Some(b) => {
                let (what, span) = (b.what.words(), b.span);
                let d = Diagnostic::error(
                    codes::NOT_ASSIGNABLE,
                    name.span,
                    format!("the {what} `{}` keeps its meaning", name.text),
                )
                .label("cannot be assigned")
                .also(span, "declared here");
                Err(self.push(d))
            }
            None if self.forgiven.contains(&name.text) => Err(Failed),
            None => {
                let visible: Vec<String> = frame.levels.iter().flat_map(|l| l.keys().cloned()).collect();
                let d = Diagnostic::error(
                    codes::NOT_ASSIGNABLE,
                    name.span,
                    format!("there is no value `{}` to assign to", name.text),
                )
                .label("unknown name")
                .suggest(&name.text, visible.iter().map(String::as_str));
                let d = if d.help.is_empty() {
                    d.help(format!("introduce it with `let {} = ...`", name.text))
                } else {
                    d
                };
                Err(self.push(d))
            }
        }
    }
}

fn is_value(val: &Val) -> bool {
    matches!(val, Val::Tensor(_) | Val::Poison)
}

fn counted(n: usize, word: &str) -> String {
    if n == 1 { format!("one {word}") } else { format!("{n} {word}s") }
}
