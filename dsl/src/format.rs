//! The formatter: one canonical layout, derived from the syntax tree.
//!
//! Kept from the text are comments, single blank lines between statements, and whether short braces stand on
//! one line. Comments inside a statement move in front of it.

use crate::ast::{self, Body, Entry, Expr, ExprKind, Ident, Item, Settings, Statement, StatementKind};
use crate::diagnostic::Diagnostic;
use crate::parse::parse;
use crate::recover;
use crate::source::Span;
use crate::units;
use std::fmt::Write as _;
use std::ops::Range;

const WIDTH: usize = 100;
const STEP: usize = 2;

/// Formats a text; its syntax errors and unknown units if it has any. The name stands in for a path and changes nothing.
pub fn format_text(_name: &str, text: &str) -> Result<String, Vec<Diagnostic>> {
    let parsed = parse(0, text);
    if !parsed.errors.is_empty() {
        return Err(parsed.errors);
    }
    if !parsed.unknown_units.is_empty() {
        // Such a word may be a setting without its value: where the line ends decides, so it must stay as it is.
        return Err(parsed.unknown_units.iter().map(units::unknown).collect());
    }
    let mut p = Printer {
        text,
        out: String::with_capacity(text.len() + text.len() / 8),
        comments: recover::comments(text),
        next: 0,
        last: 0,
        indent: 0,
        first: true,
        force: false,
    };
    p.file(&parsed.file);
    Ok(p.out)
}

struct Printer<'t> {
    text: &'t str,
    out: String,
    comments: Vec<Range<usize>>,
    /// The first comment that has not been printed.
    next: usize,
    /// Where the last printed part ends in the text.
    last: usize,
    indent: usize,
    /// Nothing has been printed in these braces yet.
    first: bool,
    /// A blank line must follow.
    force: bool,
}

fn range(span: Span) -> Range<usize> {
    span.start as usize..span.end as usize
}

impl Printer<'_> {
    fn file(&mut self, file: &ast::File) {
        let mut imports = false;
        for item in &file.items {
            let import = matches!(item, Item::Import { .. });
            let list = import && imports;
            self.force = !(self.first || list);
            imports = import;
            match item {
                Item::Import { path, span } => {
                    self.open_line(range(*span), range(*span).end);
                    self.out.push_str("import ");
                    self.out.push_str(&quoted(&path.value));
                    self.close_line(range(*span).end);
                }
                Item::Model { name, body, span } => self.braced(&format!("model {}", name.text), body, *span),
                Item::Block(b) => {
                    let params: Vec<String> = b
                        .params
                        .iter()
                        .map(|(name, default)| match default {
                            Some(e) => format!("{} = {}", name.text, flat(e)),
                            None => name.text.clone(),
                        })
                        .collect();
                    self.braced(&format!("block {}({})", b.name.text, params.join(", ")), &b.body, b.span);
                }
                Item::Section(s) => self.section(s),
            }
        }
        self.force = false;
        self.comments_before(self.text.len());
    }

    /// Comments in front of a part, a blank line if there was one, comments from inside the part's head (up to
    /// `head`), and the indentation.
    fn open_line(&mut self, part: Range<usize>, head: usize) {
        self.comments_before(part.start);
        self.blank_line(part.start);
        while let Some(c) = self.comments.get(self.next).filter(|c| c.start < head).cloned() {
            self.comment_line(&c);
            self.next += 1;
        }
        self.pad();
    }

    fn close_line(&mut self, end: usize) {
        self.last = end;
        self.first = false;
        if let Some(c) = self.comments.get(self.next)
            && c.start >= end
            && !self.text[end..c.start].contains('\n')
        {
            let c = c.clone();
            self.out.push_str("  ");
            self.out.push_str(self.text[c.clone()].trim_end());
            self.last = c.end;
            self.next += 1;
        }
        self.out.push('\n');
    }

    fn comments_before(&mut self, at: usize) {
        while let Some(c) = self.comments.get(self.next).filter(|c| c.start < at).cloned() {
            self.blank_line(c.start);
            self.comment_line(&c);
            self.last = c.end;
            self.first = false;
            self.next += 1;
        }
    }

    fn comment_line(&mut self, c: &Range<usize>) {
        self.pad();
        self.out.push_str(self.text[c.clone()].trim_end());
        self.out.push('\n');
    }

    fn blank_line(&mut self, at: usize) {
        let gap = self.text.get(self.last..at).map_or(0, |g| g.matches('\n').count());
        if !self.first && (self.force || gap > 1) {
            self.out.push('\n');
        }
        self.force = false;
    }

    fn pad(&mut self) {
        self.out.extend(std::iter::repeat_n(' ', self.indent));
    }

    fn has_comment(&self, part: Range<usize>) -> bool {
        self.comments.iter().any(|c| c.start >= part.start && c.end <= part.end)
    }

    /// Whether braces stand on one line and may stay there.
    fn on_one_line(&self, braces: Range<usize>) -> bool {
        !self.has_comment(braces.clone()) && !self.text[braces].contains('\n')
    }

    fn fits(&self, head: usize, rest: &str) -> bool {
        self.indent + head + 1 + rest.chars().count() <= WIDTH
    }

    /// `head { statements }`
    fn braced(&mut self, head: &str, body: &Body, span: Span) {
        let braces = range(body.span);
        self.open_line(range(span), braces.start);
        self.out.push_str(head);
        self.out.push(' ');
        if self.on_one_line(braces.clone())
            && body.statements.len() <= 1
            && let Some(flat) = flat_body(body)
            && self.fits(head.chars().count(), &flat)
        {
            self.out.push_str(&flat);
        } else {
            self.lines(&braces, |p| {
                for s in &body.statements {
                    p.statement(s);
                }
            });
        }
        self.close_line(braces.end);
    }

    /// Braces with what is between them indented on lines of its own.
    fn lines(&mut self, braces: &Range<usize>, inside: impl FnOnce(&mut Self)) {
        self.out.push_str("{\n");
        self.indent += STEP;
        self.first = true;
        self.last = braces.start + 1;
        inside(self);
        self.comments_before(braces.end);
        self.indent -= STEP;
        self.pad();
        self.out.push('}');
    }

    fn section(&mut self, s: &ast::Section) {
        let head = section_head(s);
        match &s.settings {
            Some(settings) => self.with_settings(&head, settings, s.span),
            None => self.plain(&head, s.span),
        }
    }

    fn plain(&mut self, line: &str, span: Span) {
        self.open_line(range(span), range(span).end);
        self.out.push_str(line);
        self.close_line(range(span).end);
    }

    fn with_settings(&mut self, head: &str, settings: &Settings, span: Span) {
        let braces = range(settings.span);
        self.open_line(range(span), braces.start);
        self.out.push_str(head);
        self.out.push(' ');
        let flat = flat_settings(settings);
        if self.on_one_line(braces.clone()) && self.fits(head.chars().count(), &flat) {
            self.out.push_str(&flat);
        } else {
            self.lines(&braces, |p| {
                for e in &settings.entries {
                    p.entry(e);
                }
            });
        }
        self.close_line(braces.end);
    }

    fn entry(&mut self, e: &Entry) {
        let head = entry_head(e);
        match (&e.settings, &e.value) {
            (Some(s), _) => self.with_settings(&head, s, e.span),
            (None, Some(value)) => {
                self.with_expr(&format!("{} ", e.key.text), std::slice::from_ref(value), e.span);
            }
            (None, None) => self.plain(&head, e.span),
        }
    }

    /// A line that ends in expressions, which are broken if they do not fit.
    fn with_expr(&mut self, head: &str, exprs: &[Expr], span: Span) {
        self.open_line(range(span), range(span).end);
        self.out.push_str(head);
        let mut column = self.indent + head.chars().count();
        for (i, e) in exprs.iter().enumerate() {
            if i > 0 {
                self.out.push_str(", ");
                column += 2;
            }
            let laid = lay(e, self.indent, column);
            column = match laid.rfind('\n') {
                Some(n) => laid[n + 1..].chars().count(),
                None => column + laid.chars().count(),
            };
            self.out.push_str(&laid);
        }
        self.close_line(range(span).end);
    }

    fn statement(&mut self, s: &Statement) {
        match &s.kind {
            StatementKind::Table(section) => self.section(section),
            StatementKind::Input { settings, .. } => {
                let head = input_head(&s.kind);
                match settings {
                    Some(settings) => self.with_settings(&head, settings, s.span),
                    None => self.plain(&head, s.span),
                }
            }
            StatementKind::Bind { define, names, value } => {
                let head = bind_head(*define, names);
                self.with_expr(&head, std::slice::from_ref(value), s.span);
            }
            StatementKind::Repeat { count, name, body } => {
                self.braced(&repeat_head(count, name.as_ref()), body, s.span);
            }
            StatementKind::Loss(e) => self.with_expr("loss ", std::slice::from_ref(e), s.span),
            StatementKind::Return(es) => self.with_expr("return ", es, s.span),
        }
    }
}

fn section_head(s: &ast::Section) -> String {
    let mut head = s.keyword.text.clone();
    if let Some(name) = &s.name {
        head = format!("{head} {}", name.text);
    }
    if let Some(from) = &s.from {
        head = format!("{head} from {}", from.text);
    }
    head
}

fn entry_head(e: &Entry) -> String {
    match &e.value {
        Some(value) => format!("{} {}", e.key.text, flat(value)),
        None => e.key.text.clone(),
    }
}

fn input_head(kind: &StatementKind) -> String {
    let StatementKind::Input { name, kind, like, .. } = kind else { return String::new() };
    let like = like.as_ref().map_or(String::new(), |l| format!(" like {}", l.text));
    format!("input {}: {}{like}", name.text, flat(kind))
}

fn bind_head(define: bool, names: &[Ident]) -> String {
    let names: Vec<&str> = names.iter().map(|n| n.text.as_str()).collect();
    format!("{}{} = ", if define { "let " } else { "" }, names.join(", "))
}

fn repeat_head(count: &Expr, name: Option<&Ident>) -> String {
    match name {
        Some(name) => format!("repeat {} as {}", flat(count), name.text),
        None => format!("repeat {}", flat(count)),
    }
}

fn flat_settings(s: &Settings) -> String {
    if s.entries.is_empty() {
        return "{}".into();
    }
    let entries: Vec<String> = s
        .entries
        .iter()
        .map(|e| match &e.settings {
            Some(inner) => format!("{} {}", entry_head(e), flat_settings(inner)),
            None => entry_head(e),
        })
        .collect();
    format!("{{ {} }}", entries.join("  "))
}

fn flat_body(body: &Body) -> Option<String> {
    let Some(s) = body.statements.first() else { return Some("{}".into()) };
    let inside = match &s.kind {
        StatementKind::Bind { define, names, value } => bind_head(*define, names) + &flat(value),
        StatementKind::Return(es) => format!("return {}", es.iter().map(flat).collect::<Vec<_>>().join(", ")),
        _ => return None,
    };
    Some(format!("{{ {inside} }}"))
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// An expression on one line.
fn flat(e: &Expr) -> String {
    match &e.kind {
        ExprKind::Number { digits, unit: Some(unit) } => format!("{digits} {}", unit.text),
        ExprKind::Number { digits, unit: None } => digits.clone(),
        ExprKind::Text(t) => quoted(t),
        ExprKind::Name(n) => n.clone(),
        ExprKind::Call { callee, args } => {
            format!("{}({})", callee.text, args.iter().map(flat_argument).collect::<Vec<_>>().join(", "))
        }
        ExprKind::List(items) => format!("[{}]", items.iter().map(flat).collect::<Vec<_>>().join(", ")),
        ExprKind::Paren(inner) => format!("({})", flat(inner)),
        ExprKind::Sum(terms) => chain(terms, " - ", " + "),
        ExprKind::Product(factors) => chain(factors, " / ", " * "),
        ExprKind::Negative(inner) => format!("-{}", flat(inner)),
    }
}

fn flat_argument(a: &ast::Argument) -> String {
    match &a.name {
        Some(name) => format!("{}: {}", name.text, flat(&a.value)),
        None => flat(&a.value),
    }
}

fn chain(operands: &[(bool, Expr)], inverse: &str, sign: &str) -> String {
    let mut out = String::new();
    for (i, (inverted, e)) in operands.iter().enumerate() {
        if i > 0 {
            out.push_str(if *inverted { inverse } else { sign });
        }
        out.push_str(&flat(e));
    }
    out
}

/// An expression that starts at a column, on lines indented by more than `indent` where it does not fit.
fn lay(e: &Expr, indent: usize, column: usize) -> String {
    let one_line = flat(e);
    if column + one_line.chars().count() <= WIDTH {
        return one_line;
    }
    let pad = " ".repeat(indent + STEP);
    let end = " ".repeat(indent);
    match &e.kind {
        ExprKind::Call { callee, args } if !args.is_empty() => {
            let mut out = format!("{}(\n", callee.text);
            for a in args {
                let head = a.name.as_ref().map_or(String::new(), |n| format!("{}: ", n.text));
                let value = lay(&a.value, indent + STEP, indent + STEP + head.chars().count() + 1);
                let _ = writeln!(out, "{pad}{head}{value},");
            }
            out + &end + ")"
        }
        ExprKind::List(items) if !items.is_empty() => {
            let mut out = String::from("[\n");
            for i in items {
                let _ = writeln!(out, "{pad}{},", lay(i, indent + STEP, indent + STEP + 1));
            }
            out + &end + "]"
        }
        ExprKind::Paren(inner) => format!("({})", lay(inner, indent, column + 1)),
        ExprKind::Negative(inner) => format!("-{}", lay(inner, indent, column + 1)),
        ExprKind::Sum(operands) => lay_chain(operands, ["+ ", "- "], indent, column),
        ExprKind::Product(operands) => lay_chain(operands, ["* ", "/ "], indent, column),
        _ => one_line,
    }
}

fn lay_chain(operands: &[(bool, Expr)], signs: [&str; 2], indent: usize, column: usize) -> String {
    let pad = " ".repeat(indent + STEP);
    let mut out = String::new();
    for (i, (inverted, e)) in operands.iter().enumerate() {
        if i == 0 {
            out.push_str(&lay(e, indent + STEP, column));
        } else {
            let sign = signs[usize::from(*inverted)];
            let _ = write!(out, "\n{pad}{sign}{}", lay(e, indent + STEP, indent + STEP + 2));
        }
    }
    out
}
