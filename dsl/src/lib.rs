//! The .fs language: grammar, syntax tree, checking, diagnostics and formatter.

pub mod checked;
pub mod source;
