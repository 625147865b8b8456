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
