//! From text to syntax tree, with recovery: a statement that cannot be parsed is reported, blanked out and
//! the rest parsed again, so that one slip hides neither other slips nor the rest of the program.

use crate::ast::{self, Expr, ExprKind, Ident, Item, Settings, Statement, StatementKind, Text};
use crate::codes;
use crate::diagnostic::{Diagnostic, closest};
use crate::recover;
use crate::source::Span;
use crate::units;
use fs_workload::names::{kind, steers};
use pest::Parser;
use pest::error::{ErrorVariant, InputLocation};
use pest::iterators::Pair;

#[derive(pest_derive::Parser)]
#[grammar = "grammar.pest"]
struct Grammar;

type Node<'a> = Pair<'a, Rule>;

/// What parsing found.
#[derive(Debug, Clone, Default)]
pub struct Parsed {
    /// The tree without the parts that could not be parsed.
    pub file: ast::File,
    /// Syntax errors.
    pub errors: Vec<Diagnostic>,
    /// The parts that were left out: nothing should be said about what is missing there.
    pub damaged: Vec<Span>,
    /// Words that stand where a unit would, but are none.
    pub(crate) unknown_units: Vec<ast::Ident>,
}

pub(crate) const MAX_BYTES: usize = 4 << 20;
const MAX_DEPTH: usize = 64;
/// Characters of a name or a number, and between quotes: they stand in messages, pictures and names of files.
const MAX_WORD: usize = 255;
const MAX_TEXT: usize = 4096;
const KEYWORDS: [&str; 15] = [
    "import", "model", "block", "train", "workload", "cluster", "table", "input", "let", "repeat", "loss",
    "return", "as", "like", "from",
];
const MAX_ERRORS: usize = 20;

/// Parses a text; `file` is its index in the source map.
pub fn parse(file: u32, text: &str) -> Parsed {
    let whole = Span { file, start: 0, end: text.len().min(u32::MAX as usize) as u32 };
    let refuse = |d| Parsed { errors: vec![d], damaged: vec![whole], ..Parsed::default() };
    let plain = |c: char| matches!(c, '\n' | '\r' | '\t');
    if let Some((at, c)) = text.char_indices().find(|(_, c)| steers(*c) && !plain(*c)) {
        let span = Span { file, start: at as u32, end: (at + c.len_utf8()) as u32 };
        let message = format!("the text has the character U+{:04X}, {}", u32::from(c), kind(c));
        return refuse(Diagnostic::error(codes::INVISIBLE, span, message));
    }
    if text.len() > MAX_BYTES {
        let start = Span { end: 0, ..whole };
        return refuse(
            Diagnostic::error(codes::FILE_TOO_LARGE, start, "the file is larger than 4 MiB")
                .help("name data files in the `workload` block"),
        );
    }
    if let Some(at) = recover::too_deep(text, MAX_DEPTH) {
        let span = Span { file, start: at as u32, end: at as u32 + 1 };
        return refuse(
            Diagnostic::error(
                codes::NESTING,
                span,
                format!("brackets are nested more than {MAX_DEPTH} deep"),
            )
            .help("give inner parts a name with `let`"),
        );
    }
    if let Some(word) = recover::too_long(text, MAX_WORD, MAX_TEXT) {
        let quoted = text[word.start..].starts_with('"');
        let (what, most) =
            if quoted { ("a text between quotes", MAX_TEXT) } else { ("a name or number", MAX_WORD) };
        let start = word.start as u32;
        let message = format!("{what} has more than {most} characters");
        return refuse(Diagnostic::error(codes::TOO_LONG, Span { file, start, end: start + 1 }, message));
    }
    let mut parsed = Parsed::default();
    let mut rest = text.to_owned();
    loop {
        match Grammar::parse(Rule::file, &rest) {
            Ok(mut pairs) => {
                let builder = Builder { file, comments: recover::comments(&rest) };
                if let Some(root) = pairs.next() {
                    let units = root.clone().into_inner().flatten().filter(|p| p.as_rule() == Rule::unit);
                    parsed.unknown_units = units
                        .filter(|u| units::find(u.as_str()).is_none())
                        .map(|u| builder.ident(&u))
                        .collect();
                    parsed.file = builder.file(root);
                }
                return parsed;
            }
            Err(error) => {
                let at = match error.location {
                    InputLocation::Pos(at) | InputLocation::Span((at, _)) => at,
                };
                let positives = match error.variant {
                    ErrorVariant::ParsingError { positives, .. } => positives,
                    // The grammar has none of its own: the parser stops where little of the thread's stack is left.
                    ErrorVariant::CustomError { message } => {
                        let start = Span { end: 0, ..whole };
                        let message = format!("the file cannot be parsed: {message}");
                        let help = "the stack of this thread is too small; allow a larger one, such as with `ulimit -s 1024`";
                        return refuse(Diagnostic::error(codes::UNREADABLE, start, message).help(help));
                    }
                };
                parsed.errors.push(describe(file, &rest, at, &positives));
                // Where a statement is cut short, the next one is where that shows, but not what is wrong.
                let fine = |r: &Rule| !matches!(words(*r).0, "" | "a statement" | "`}`");
                let at = if positives.iter().all(fine) { recover::cut_short(&rest, at) } else { at };
                let hole = recover::hole(&rest, at);
                parsed.damaged.push(Span { file, start: hole.start as u32, end: hole.end as u32 });
                if parsed.errors.len() >= MAX_ERRORS || !recover::blank(&mut rest, hole) {
                    parsed.damaged.push(whole);
                    return parsed;
                }
            }
        }
    }
}

/// Words for what a rule stands for; keywords and brackets stand for themselves.
fn words(rule: Rule) -> (&'static str, &'static [&'static str]) {
    match rule {
        Rule::file
        | Rule::item
        | Rule::import
        | Rule::model
        | Rule::block
        | Rule::train
        | Rule::workload
        | Rule::cluster => ("", &["import", "model", "block", "train", "workload", "cluster"]),
        Rule::statement
        | Rule::table
        | Rule::input
        | Rule::define
        | Rule::repeat
        | Rule::loss
        | Rule::give
        | Rule::assign => ("a statement", &["table", "input", "let", "repeat", "loss", "return"]),
        Rule::kw_import => ("", &["import"]),
        Rule::kw_model => ("", &["model"]),
        Rule::kw_block => ("", &["block"]),
        Rule::kw_train => ("", &["train"]),
        Rule::kw_workload => ("", &["workload"]),
        Rule::kw_cluster => ("", &["cluster"]),
        Rule::kw_table => ("", &["table"]),
        Rule::kw_input => ("", &["input"]),
        Rule::kw_let => ("", &["let"]),
        Rule::kw_repeat => ("", &["repeat"]),
        Rule::kw_loss => ("", &["loss"]),
        Rule::kw_return => ("", &["return"]),
        Rule::kw_as => ("", &["as"]),
        Rule::kw_like => ("", &["like"]),
        Rule::kw_from => ("", &["from"]),
        Rule::open_brace | Rule::body | Rule::section => ("`{`", &[]),
        Rule::close_brace => ("`}`", &[]),
        Rule::open_paren => ("`(`", &[]),
        Rule::close_paren => ("`)`", &[]),
        Rule::open_bracket => ("`[`", &[]),
        Rule::close_bracket => ("`]`", &[]),
        Rule::comma => ("`,`", &[]),
        Rule::colon => ("`:`", &[]),
        Rule::equals => ("`=`", &[]),
        Rule::name | Rule::param => ("a name", &[]),
        Rule::key | Rule::entry => ("a setting", &[]),
        Rule::argument | Rule::label => ("an argument", &[]),
        Rule::string => ("a string in quotes", &[]),
        Rule::value => ("a value", &[]),
        Rule::sum_sign | Rule::product_sign => ("an operator", &[]),
        Rule::unit => ("a unit", &[]),
        Rule::EOI => ("the end of the file", &[]),
        Rule::input_kind => ("`ids(..)`, `next(..)`, `dense(..)` or `label`", &[]),
        _ => ("an expression", &[]),
    }
}

fn describe(file: u32, text: &str, at: usize, positives: &[Rule]) -> Diagnostic {
    let mut expected: Vec<String> = Vec::new();
    let mut keywords: Vec<&'static str> = Vec::new();
    for &rule in positives {
        let (phrase, list) = words(rule);
        if phrase.is_empty() {
            keywords.extend(list.iter().filter(|k| !keywords.contains(k)).copied().collect::<Vec<_>>());
        } else {
            keywords.extend(list);
            if !expected.iter().any(|e| e == phrase) {
                expected.push(phrase.to_owned());
            }
        }
    }
    // Operators, units and commas may follow nearly everything: they hide what is really missing.
    let weak = |e: &String| matches!(e.as_str(), "an operator" | "a unit" | "`,`" | "`(`");
    if expected.iter().any(|e| !weak(e)) || positives.iter().any(|r| words(*r).0.is_empty()) {
        expected.retain(|e| !weak(e) || (e == "`,`" && text[..at].contains('(')));
    }
    if ["table", "let", "loss"].iter().all(|k| keywords.contains(k)) {
        expected.retain(|e| e != "a name" && e != "a statement");
        expected.insert(0, "a statement".to_owned());
    } else {
        for k in &keywords {
            let quoted = format!("`{k}`");
            if !expected.contains(&quoted) {
                expected.push(quoted);
            }
        }
    }
    let expected = match expected.as_slice() {
        [] => "something else".to_owned(),
        [one] => one.clone(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    };
    let found = recover::token(text, at);
    let span = Span { file, start: found.start as u32, end: found.end as u32 };
    let word = &text[found.clone()];
    let line_ends = text[at..found.start].contains('\n');
    let shown = match word {
        "" => "the end of the file".to_owned(),
        _ if line_ends && positives.contains(&Rule::value) => "the end of the line".to_owned(),
        _ => format!("`{word}`"),
    };
    let span = if shown == "the end of the line" {
        Span { start: at as u32, end: at as u32 + 1, ..span }
    } else {
        span
    };
    let mut d = Diagnostic::error(codes::SYNTAX, span, format!("expected {expected}, found {shown}"))
        .label(format!("expected {expected}"));
    if word.starts_with('"') {
        return d.help("the string is not closed on this line");
    }
    if word.is_empty()
        && let Some(open) = recover::unclosed(text)
    {
        let span = Span { file, start: open as u32, end: open as u32 + 1 };
        d = d.also(span, "never closed");
    }
    if word.starts_with('#') || word.starts_with("/*") {
        return d.help("comments start with `//`");
    }
    if let Some(near) = closest(word, keywords.iter().copied()) {
        return d.help(format!("did you mean `{near}`?"));
    }
    let before = recover::word_before(text, at);
    if !KEYWORDS.contains(&before)
        && let Some(near) = closest(before, KEYWORDS)
    {
        return d.help(format!("did you mean `{near}` instead of `{before}`?"));
    }
    if KEYWORDS.contains(&word) && positives.iter().any(|r| matches!(r, Rule::name | Rule::param)) {
        return d.help(format!("`{word}` is a keyword; choose another name"));
    }
    d
}

/// Turns pest's pairs into the tree. The grammar fixes the shape of every pair; a part that is missing
/// nevertheless becomes an empty one instead of a panic.
struct Builder {
    file: u32,
    comments: Vec<std::ops::Range<usize>>,
}

impl Builder {
    /// Without the white space and comments that repetitions in the grammar leave at the end.
    fn span(&self, n: &Node<'_>) -> Span {
        let s = n.as_span();
        let (start, text) = (s.start(), s.as_str());
        let mut end = start + text.trim_end().len();
        loop {
            let at = self.comments.partition_point(|c| c.end < end);
            match self.comments.get(at) {
                Some(c) if c.start >= start && c.start < end => {
                    end = start + text[..c.start - start].trim_end().len();
                }
                _ => break,
            }
        }
        Span { file: self.file, start: start as u32, end: end as u32 }
    }

    fn ident(&self, n: &Node<'_>) -> Ident {
        Ident { text: n.as_str().to_owned(), span: self.span(n) }
    }

    fn text(&self, n: &Node<'_>) -> Text {
        let raw = n.as_str();
        let inner = raw.get(1..raw.len().saturating_sub(1)).unwrap_or("");
        let mut value = String::with_capacity(inner.len());
        let mut chars = inner.chars();
        while let Some(c) = chars.next() {
            value.push(if c == '\\' { chars.next().unwrap_or('\\') } else { c });
        }
        Text { value, span: self.span(n) }
    }

    fn file(&self, root: Node<'_>) -> ast::File {
        ast::File { items: root.into_inner().filter_map(|n| self.item(n)).collect() }
    }

    fn item(&self, n: Node<'_>) -> Option<Item> {
        let span = self.span(&n);
        match n.as_rule() {
            Rule::import => {
                let path = n.into_inner().find(|p| p.as_rule() == Rule::string)?;
                Some(Item::Import { path: self.text(&path), span })
            }
            Rule::model => {
                let mut inner = n.into_inner().filter(|p| matches!(p.as_rule(), Rule::name | Rule::body));
                let name = self.ident(&inner.next()?);
                Some(Item::Model { name, body: self.body(inner.next()?), span })
            }
            Rule::block => {
                let mut inner = n.into_inner();
                let name = self.ident(&inner.find(|p| p.as_rule() == Rule::name)?);
                let mut params = Vec::new();
                let mut body = None;
                for p in inner {
                    match p.as_rule() {
                        Rule::param => {
                            let mut parts = p.into_inner();
                            let name = self.ident(&parts.next()?);
                            let default = parts.find(|e| e.as_rule() == Rule::expr).map(|e| self.expr(e));
                            params.push((name, default));
                        }
                        Rule::body => body = Some(self.body(p)),
                        _ => {}
                    }
                }
                Some(Item::Block(ast::Block { name, params, body: body?, span }))
            }
            Rule::train | Rule::workload | Rule::cluster => Some(Item::Section(self.section(n)?)),
            _ => None,
        }
    }

    /// `keyword name from name { ... }`
    fn section(&self, n: Node<'_>) -> Option<ast::Section> {
        let span = self.span(&n);
        let mut inner = n.into_inner();
        let keyword = self.ident(&inner.next()?);
        let (mut name, mut from, mut settings) = (None, None, None);
        for p in inner {
            match p.as_rule() {
                Rule::name if name.is_none() => name = Some(self.ident(&p)),
                Rule::name => from = Some(self.ident(&p)),
                Rule::section => settings = Some(self.settings(p)),
                _ => {}
            }
        }
        Some(ast::Section { keyword, name, from, settings, span })
    }

    fn settings(&self, n: Node<'_>) -> Settings {
        let span = self.span(&n);
        let entries =
            n.into_inner().filter(|p| p.as_rule() == Rule::entry).filter_map(|p| self.entry(p)).collect();
        Settings { entries, span }
    }

    fn entry(&self, n: Node<'_>) -> Option<ast::Entry> {
        let span = self.span(&n);
        let mut inner = n.into_inner();
        let key = self.ident(&inner.next()?);
        let (mut value, mut settings) = (None, None);
        for p in inner {
            match p.as_rule() {
                Rule::value => {
                    for q in p.into_inner() {
                        match q.as_rule() {
                            Rule::expr => value = Some(self.expr(q)),
                            Rule::section => settings = Some(self.settings(q)),
                            _ => {}
                        }
                    }
                }
                Rule::section => settings = Some(self.settings(p)),
                _ => {}
            }
        }
        Some(ast::Entry { key, value, settings, span })
    }

    fn body(&self, n: Node<'_>) -> ast::Body {
        let span = self.span(&n);
        ast::Body { statements: n.into_inner().filter_map(|p| self.statement(p)).collect(), span }
    }

    fn statement(&self, n: Node<'_>) -> Option<Statement> {
        let span = self.span(&n);
        let kind = match n.as_rule() {
            Rule::table => StatementKind::Table(self.section(n)?),
            Rule::input => {
                let mut names = Vec::new();
                let (mut kind, mut settings) = (None, None);
                for p in n.into_inner() {
                    match p.as_rule() {
                        Rule::name => names.push(self.ident(&p)),
                        Rule::input_kind => kind = Some(self.atom(p.into_inner().next()?)),
                        Rule::section => settings = Some(self.settings(p)),
                        _ => {}
                    }
                }
                let mut names = names.into_iter();
                StatementKind::Input { name: names.next()?, kind: kind?, like: names.next(), settings }
            }
            Rule::define | Rule::assign => {
                let define = n.as_rule() == Rule::define;
                let mut names = Vec::new();
                let mut value = None;
                for p in n.into_inner() {
                    match p.as_rule() {
                        Rule::name => names.push(self.ident(&p)),
                        Rule::expr => value = Some(self.expr(p)),
                        _ => {}
                    }
                }
                StatementKind::Bind { define, names, value: value? }
            }
            Rule::repeat => {
                let (mut count, mut name, mut body) = (None, None, None);
                for p in n.into_inner() {
                    match p.as_rule() {
                        Rule::expr => count = Some(self.expr(p)),
                        Rule::name => name = Some(self.ident(&p)),
                        Rule::body => body = Some(self.body(p)),
                        _ => {}
                    }
                }
                StatementKind::Repeat { count: count?, name, body: body? }
            }
            Rule::loss => StatementKind::Loss(self.expr(n.into_inner().find(|p| p.as_rule() == Rule::expr)?)),
            Rule::give => StatementKind::Return(
                n.into_inner().filter(|p| p.as_rule() == Rule::expr).map(|p| self.expr(p)).collect(),
            ),
            _ => return None,
        };
        Some(Statement { kind, span })
    }

    fn expr(&self, n: Node<'_>) -> Expr {
        let span = self.span(&n);
        Self::chain(n, span, Rule::sum_sign, "-", ExprKind::Sum, |p| {
            let span = self.span(&p);
            Self::chain(p, span, Rule::product_sign, "/", ExprKind::Product, |p| self.factor(p))
        })
    }

    /// Operands with signs between them; a single operand stands for itself.
    fn chain(
        n: Node<'_>,
        span: Span,
        sign: Rule,
        inverse: &str,
        make: impl Fn(Vec<(bool, Expr)>) -> ExprKind,
        operand: impl Fn(Node<'_>) -> Expr,
    ) -> Expr {
        let mut operands = Vec::new();
        let mut inverted = false;
        for p in n.into_inner() {
            if p.as_rule() == sign {
                inverted = p.as_str() == inverse;
            } else {
                operands.push((inverted, operand(p)));
            }
        }
        if operands.len() == 1
            && let Some((_, only)) = operands.pop()
        {
            return only;
        }
        Expr { kind: make(operands), span }
    }

    fn factor(&self, n: Node<'_>) -> Expr {
        let span = self.span(&n);
        let mut negative = false;
        let mut atom = Expr { kind: ExprKind::List(Vec::new()), span };
        for p in n.into_inner() {
            if p.as_rule() == Rule::minus {
                negative = !negative;
            } else {
                atom = self.atom(p);
            }
        }
        if negative { Expr { kind: ExprKind::Negative(Box::new(atom)), span } } else { atom }
    }

    fn atom(&self, n: Node<'_>) -> Expr {
        let span = self.span(&n);
        let kind = match n.as_rule() {
            Rule::quantity => {
                let mut inner = n.into_inner();
                let digits = inner.next().map_or(String::new(), |d| d.as_str().to_owned());
                ExprKind::Number {
                    digits,
                    unit: inner.find(|p| p.as_rule() == Rule::unit).map(|u| self.ident(&u)),
                }
            }
            Rule::string => ExprKind::Text(self.text(&n).value),
            Rule::list => ExprKind::List(
                n.into_inner().filter(|p| p.as_rule() == Rule::expr).map(|p| self.expr(p)).collect(),
            ),
            Rule::paren => match n.into_inner().find(|p| p.as_rule() == Rule::expr) {
                Some(inner) => ExprKind::Paren(Box::new(self.expr(inner))),
                None => ExprKind::List(Vec::new()),
            },
            Rule::call => {
                let mut inner = n.into_inner();
                let callee = inner.next().map_or(Ident { text: String::new(), span }, |c| self.ident(&c));
                let args =
                    inner.filter(|p| p.as_rule() == Rule::argument).map(|p| self.argument(p)).collect();
                ExprKind::Call { callee, args }
            }
            _ => ExprKind::Name(n.as_str().to_owned()),
        };
        Expr { kind, span }
    }

    fn argument(&self, n: Node<'_>) -> ast::Argument {
        let span = self.span(&n);
        let mut name = None;
        let mut value = Expr { kind: ExprKind::List(Vec::new()), span };
        for p in n.into_inner() {
            match p.as_rule() {
                Rule::label => name = Some(self.ident(&p)),
                Rule::expr => value = self.expr(p),
                _ => {}
            }
        }
        ast::Argument { name, value }
    }
}
