//! The .fs language: grammar, syntax tree, checking, diagnostics and formatter.
//!
//! [`load()`] reads a file and what it imports and gives a [`checked::Program`] or diagnostics, which
//! [`render`] shows.

mod ast;
mod check;
pub mod checked;
pub mod cluster;
pub mod codes;
pub mod diagnostic;
mod docs;
mod format;
mod load;
mod parse;
mod recover;
mod signature;
pub mod source;
mod units;

pub use diagnostic::{Diagnostic, Severity, render};
pub use docs::reference;
pub use format::format_text;
pub use load::{Files, Loaded, check_text, load, load_from};
pub use parse::{Parsed, parse};
