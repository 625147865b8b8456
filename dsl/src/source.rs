//! Source texts and places in them.

/// A range of bytes in one of the sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// Index into [`SourceMap::files`].
    pub file: u32,
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

/// A text with the name that errors print.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// Path as the user wrote it, or relative to the importing file.
    pub path: String,
    /// The whole text.
    pub text: String,
}

/// All texts of a program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceMap {
    /// In order of loading.
    pub files: Vec<SourceFile>,
}

impl SourceMap {
    /// Line and column (both from 1, columns in characters) where a span starts.
    pub fn position(&self, span: Span) -> (usize, usize) {
        let text = self.files.get(span.file as usize).map_or("", |f| f.text.as_str());
        let before = text.get(..span.start as usize).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |l| l.chars().count()) + 1;
        (line, column)
    }
}
