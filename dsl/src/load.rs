//! From files to a checked program: reading, imports, parsing, checking.

use crate::ast::Item;
use crate::check::{self, Unit};
use crate::checked::Program;
use crate::codes;
use crate::diagnostic::Diagnostic;
use crate::parse;
use crate::source::{SourceFile, SourceMap, Span};
use fs_workload::encoding::unmarked;
use fs_workload::names::steers;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Component, Path, PathBuf};

/// What loading found.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The program; `None` if there is any error.
    pub program: Option<Program>,
    /// Errors and warnings in order of place.
    pub diagnostics: Vec<Diagnostic>,
    /// The texts that diagnostics point into.
    pub sources: SourceMap,
}

/// Where files come from.
pub trait Files {
    /// The bytes of a file; the path is the one given by the user, or an import's joined to its file's folder,
    /// without `..` inside.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
}

impl<F: Fn(&Path) -> io::Result<Vec<u8>>> Files for F {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self(path)
    }
}

/// Loads and checks a file and what it imports.
pub fn load(path: &Path) -> Loaded {
    load_from(path, &|at: &Path| read_file(at, at == path))
}

/// The bytes of a file, no more than show that it is too large. A device need not end. What the user names may be a pipe;
/// that of an import would be waited for if nobody fills it.
fn read_file(path: &Path, named: bool) -> io::Result<Vec<u8>> {
    use std::os::unix::fs::FileTypeExt as _;
    let wrong = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
    // Before it is opened, which may be what waits.
    let kind = std::fs::metadata(path)?.file_type();
    if !named && (kind.is_fifo() || kind.is_socket()) {
        return Err(wrong("it is a pipe, not a file"));
    }
    let file = File::open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_char_device() || kind.is_block_device() {
        return Err(wrong("it is a device, not a file"));
    }
    let mut bytes = Vec::new();
    file.take(parse::MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > parse::MAX_BYTES {
        // The cut may lie within a character.
        let whole = (bytes.len() - 4..=bytes.len()).rev().find(|n| std::str::from_utf8(&bytes[..*n]).is_ok());
        if let Some(whole) = whole.filter(|n| *n <= parse::MAX_BYTES) {
            bytes.truncate(whole);
            bytes.resize(parse::MAX_BYTES + 1, b' ');
        }
    }
    Ok(bytes)
}

/// Loads and checks a file from anywhere.
pub fn load_from(path: &Path, files: &dyn Files) -> Loaded {
    let mut loader = Loader::new(files);
    match loader.read(path) {
        Ok(text) => loader.add(path, text),
        Err((code, message)) => loader.diagnostics.push(Diagnostic::without_place(code, message)),
    }
    loader.finish()
}

/// Checks a text that is not in a file; its imports are not found.
pub fn check_text(name: &str, text: &str) -> Loaded {
    let nothing = |_: &Path| Err(io::Error::from(io::ErrorKind::NotFound));
    let mut loader = Loader::new(&nothing);
    loader.add(Path::new(name), text.to_owned());
    loader.finish()
}

const MAX_FILES: usize = 256;

struct Loader<'a> {
    files: &'a dyn Files,
    sources: SourceMap,
    paths: Vec<PathBuf>,
    units: Vec<Unit>,
    open: Vec<PathBuf>,
    diagnostics: Vec<Diagnostic>,
}

impl<'a> Loader<'a> {
    fn new(files: &'a dyn Files) -> Self {
        Self {
            files,
            sources: SourceMap::default(),
            paths: Vec::new(),
            units: Vec::new(),
            open: Vec::new(),
            diagnostics: Vec::new(),
        }
    }

    fn read(&self, path: &Path) -> Result<String, (codes::Code, String)> {
        let shown = shown(path);
        let bytes =
            self.files.read(path).map_err(|e| (codes::UNREADABLE, format!("cannot read `{shown}`: {e}")))?;
        let text = unmarked(&bytes).map_err(|e| (codes::NOT_UTF8, format!("cannot read `{shown}`: {e}")))?;
        String::from_utf8(text.to_vec()).map_err(|e| {
            let at = e.utf8_error().valid_up_to() + (bytes.len() - text.len());
            (codes::NOT_UTF8, format!("`{shown}` is not UTF-8 text: byte {at} does not belong there"))
        })
    }

    /// Parses a text and, before it counts as added, what it imports.
    fn add(&mut self, path: &Path, text: String) {
        let file = self.sources.files.len() as u32;
        let parsed = parse::parse(file, &text);
        self.sources.files.push(SourceFile { path: shown(path), text });
        self.paths.push(normal(path));
        self.diagnostics.extend(parsed.errors);
        let imports: Vec<(String, Span)> = parsed
            .file
            .items
            .iter()
            .filter_map(|i| match i {
                Item::Import { path, .. } => Some((path.value.clone(), path.span)),
                _ => None,
            })
            .collect();
        self.units.push(Unit { file: parsed.file, damaged: parsed.damaged });
        self.open.push(normal(path));
        for (import, span) in imports {
            self.import(path, &import, span);
        }
        self.open.pop();
    }

    fn import(&mut self, from: &Path, import: &str, span: Span) {
        let key = normal(&from.parent().unwrap_or(Path::new("")).join(import));
        if let Some(start) = self.open.iter().position(|p| *p == key) {
            let chain: Vec<String> =
                self.open[start..].iter().chain([&key]).map(|p| format!("`{}`", shown(p))).collect();
            self.diagnostics.push(
                Diagnostic::error(
                    codes::IMPORT_CYCLE,
                    span,
                    format!("imports form a cycle: {}", chain.join(" -> ")),
                )
                .label("closes the cycle"),
            );
            return;
        }
        if self.paths.contains(&key) {
            return;
        }
        if self.sources.files.len() >= MAX_FILES {
            self.diagnostics.push(Diagnostic::error(
                codes::UNREADABLE,
                span,
                format!("more than {MAX_FILES} files are imported"),
            ));
            return;
        }
        match self.read(&key) {
            Ok(text) => self.add(&key, text),
            Err((code, message)) => {
                self.diagnostics.push(Diagnostic::error(code, span, message).label("imported here"));
            }
        }
    }

    fn finish(mut self) -> Loaded {
        if self.units.is_empty() {
            return Loaded { program: None, diagnostics: self.diagnostics, sources: self.sources };
        }
        if self.diagnostics.is_empty() && self.units.iter().all(|u| u.file.items.is_empty()) {
            let start = Span { file: 0, start: 0, end: 0 };
            self.diagnostics.push(
                Diagnostic::error(codes::EMPTY, start, "the file declares nothing")
                    .label("expected `model`, `block`, `train`, `workload` or `cluster`"),
            );
        }
        let clean = self.diagnostics.is_empty();
        let (program, found) = check::check(&self.units, &self.sources, clean);
        self.diagnostics.extend(found);
        self.diagnostics.sort_by_key(|d| (d.span.map(|s| (s.file, s.start)), d.severity, d.code));
        Loaded { program, diagnostics: self.diagnostics, sources: self.sources }
    }
}

/// A path for messages, which steers no terminal.
fn shown(path: &Path) -> String {
    let escaped = |c: char| if steers(c) { c.escape_unicode().to_string() } else { c.to_string() };
    path.to_string_lossy().chars().map(escaped).collect()
}

/// A path without `.` and, where possible, without `..`, so that one file has one name.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if matches!(out.components().next_back(), Some(Component::Normal(_))) => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}
