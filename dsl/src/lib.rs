//! The .fs language: grammar, syntax tree, checking, diagnostics and formatter.
