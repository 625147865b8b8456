//! Errors and warnings with places in the text, and how they are shown.

use crate::codes::{self, Code};
use crate::source::{SourceFile, SourceMap, Span};
use fs_workload::names::steers;
use std::borrow::Cow;
use std::fmt::Write as _;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{Annotation, AnnotationKind, Group, Level, Renderer, Snippet};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The program is refused.
    Error,
    /// The program is accepted, but probably not what was meant.
    Warning,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Its stable code.
    pub code: Code,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong, in one sentence.
    pub message: String,
    /// Where; `None` only if a file could not be read at all.
    pub span: Option<Span>,
    /// Words beside the caret; may be empty.
    pub label: String,
    /// Further places that explain it.
    pub secondary: Vec<(Span, String)>,
    /// Facts that help to understand it.
    pub notes: Vec<String>,
    /// What to do about it.
    pub help: Vec<String>,
}

impl Diagnostic {
    /// An error at a place.
    pub fn error(code: Code, span: Span, message: impl Into<String>) -> Self {
        Self {
            code,
            severity: Severity::Error,
            message: message.into(),
            span: Some(span),
            label: String::new(),
            secondary: Vec::new(),
            notes: Vec::new(),
            help: Vec::new(),
        }
    }

    /// A warning at a place.
    pub(crate) fn warning(code: Code, span: Span, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(code, span, message) }
    }

    /// An error about a file as a whole.
    pub fn without_place(code: Code, message: impl Into<String>) -> Self {
        let nowhere = Span { file: 0, start: 0, end: 0 };
        Self { span: None, ..Self::error(code, nowhere, message) }
    }

    /// Sets the words beside the caret.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Adds a further place.
    #[must_use]
    pub(crate) fn also(mut self, span: Span, label: impl Into<String>) -> Self {
        self.secondary.push((span, label.into()));
        self
    }

    /// Adds a fact.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// Adds advice.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help.push(help.into());
        self
    }

    /// Adds `did you mean` if one of the candidates is close to what was written.
    #[must_use]
    pub(crate) fn suggest<'a>(self, word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Self {
        match closest(word, candidates) {
            Some(c) => self.help(format!("did you mean `{c}`?")),
            None => self,
        }
    }

    /// Whether it refuses the program.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// The candidate that differs least from the word, if any is near enough to be a slip.
pub(crate) fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Candidates that are looked at: thousands of names, each unknown, shall not take minutes.
    const MOST: usize = 5000;
    let lower = word.to_lowercase();
    let allowed = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .take(MOST)
        .filter(|c| !c.is_empty() && *c != word && c.len().abs_diff(word.len()) <= 4 * allowed)
        .map(|c| (strsim::damerau_levenshtein(&lower, &c.to_lowercase()), c))
        .filter(|(d, c)| *d <= allowed && *d < c.chars().count())
        .min()
        .map(|(_, c)| c)
}

/// Words as a list: `a, b or c`.
pub(crate) fn alternatives<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let words: Vec<String> = words.into_iter().map(|w| format!("`{w}`")).collect();
    match words.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    }
}

/// Findings that are shown.
const SHOWN: usize = 50;

/// A text of a message; of a very long one the beginning and the end.
fn short(text: &str) -> Cow<'_, str> {
    const LONGEST: usize = 600;
    const END: usize = 100;
    let at = |n: usize| text.char_indices().nth(n).map(|(at, _)| at);
    let Some(count) = at(LONGEST).map(|_| text.chars().count()) else { return text.into() };
    let (head, tail) = (at(LONGEST - END).unwrap_or(0), at(count - END).unwrap_or(0));
    format!("{} ... {}", &text[..head], &text[tail..]).into()
}

/// All findings as text for a terminal (`color`) or a file, in the order given, with a count at the end.
pub fn render(diagnostics: &[Diagnostic], sources: &SourceMap, color: bool) -> String {
    let renderer = if color { Renderer::styled() } else { Renderer::plain() };
    let renderer = renderer.decor_style(DecorStyle::Ascii);
    let mut out = String::new();
    let errors = diagnostics.iter().filter(|d| d.is_error()).count();
    // All errors, if there is room for them, and then warnings.
    let shown = |d: &&Diagnostic| d.is_error() || errors <= SHOWN;
    let all: Vec<_> = diagnostics.iter().filter(shown).collect();
    for d in all.iter().take(SHOWN) {
        out.push_str(&render_one(d, sources, &renderer));
        out.push_str("\n\n");
    }
    if diagnostics.len() > SHOWN {
        let _ = write!(out, "{} more are not shown\n\n", diagnostics.len() - all.len().min(SHOWN));
    }
    let warnings = diagnostics.len() - errors;
    let count = |n: usize, word: &str| match n {
        0 => None,
        1 => Some(format!("1 {word}")),
        n => Some(format!("{n} {word}s")),
    };
    let counts: Vec<String> =
        [count(errors, "error"), count(warnings, "warning")].into_iter().flatten().collect();
    if !counts.is_empty() {
        out.push_str(&counts.join(", "));
        out.push('\n');
    }
    out
}

fn render_one(d: &Diagnostic, sources: &SourceMap, renderer: &Renderer) -> String {
    let level = match d.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let mut group = Group::with_title(level.primary_title(short(&d.message)).id(d.code.to_string()));
    if let Some(span) = d.span {
        let mut files = vec![span.file];
        for (s, _) in &d.secondary {
            if !files.contains(&s.file) {
                files.push(s.file);
            }
        }
        for file in files {
            let Some(source) = sources.files.get(file as usize) else { continue };
            if d.code == codes::INVISIBLE {
                group = group.element(seen(source, span));
                continue;
            }
            let mut snippet = Snippet::source(source.text.as_str()).path(source.path.as_str());
            if file == span.file {
                let label = (!d.label.is_empty()).then(|| short(&d.label));
                snippet = snippet
                    .annotation(AnnotationKind::Primary.span(first_line(&source.text, span)).label(label));
            }
            for (s, label) in d.secondary.iter().filter(|(s, _)| s.file == file) {
                snippet = snippet.annotation(
                    AnnotationKind::Context.span(first_line(&source.text, *s)).label(short(label)),
                );
            }
            group = group.element(snippet);
        }
    }
    for note in &d.notes {
        group = group.element(Level::NOTE.message(short(note)));
    }
    for help in &d.help {
        group = group.element(Level::HELP.message(short(help)));
    }
    renderer.render(&[group])
}

/// The place of a character that is not seen: as it is it would do what it is refused for, so that it and others of its
/// kind stand there as their escapes.
fn seen(source: &SourceFile, span: Span) -> Snippet<'static, Annotation<'static>> {
    let escaped = |text: &str| {
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            if steers(c) && !matches!(c, '\n' | '\r' | '\t') {
                out.extend(c.escape_unicode());
            } else {
                out.push(c);
            }
        }
        out
    };
    let [start, end] =
        [span.start, span.end].map(|at| escaped(&source.text[..floor(&source.text, at as usize)]).len());
    Snippet::source(escaped(&source.text))
        .path(source.path.clone())
        .annotation(AnnotationKind::Primary.span(start..end))
}

/// The part of a span that lies on its first line: carets under whole bodies say nothing.
fn first_line(text: &str, span: Span) -> std::ops::Range<usize> {
    let start = floor(text, span.start as usize);
    let end = floor(text, (span.end as usize).max(start));
    let line = text[start..end].find('\n').map_or(end, |n| start + n);
    start..line
}

fn floor(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}
