//! The dialects: which operations exist at each level, their rules, derivatives and costs.
//!
//! `model` is what the user wrote, `train` one differentiated training step, `comm` collectives with meaning.
//! An operation is one [`OpDef`] in the file of its family; the family's list stands in [`FAMILIES`]. Adding an
//! operation touches its file, or adds a file and a line there.
//!
//! An operation's definition says its effects too: what it reads and writes beside its values.
//!
//! An operation whose name after the dot is an action of the schedule's vocabulary is *executable*: its attributes
//! are the action's fields and its operands obey the action's signature, which is written down once, in
//! [`fs_schedule::signature`].

mod attention;
mod decl;
mod embedding;
mod exchange;
mod fused;
mod interaction;
mod linear;
mod loss;
mod norm;
mod pointwise;
mod rules;
mod sequence;
mod shape;
mod step;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use crate::ir::parse::{self, Lines, ParseError};
use crate::ir::{Module, OpDef};

pub(crate) use decl::input_shape;
pub(crate) use rules::action;

/// Every family of operations.
static FAMILIES: &[&[OpDef]] = &[
    decl::OPS,
    embedding::OPS,
    linear::OPS,
    norm::OPS,
    pointwise::OPS,
    fused::OPS,
    shape::OPS,
    sequence::OPS,
    attention::OPS,
    interaction::OPS,
    loss::OPS,
    exchange::OPS,
    step::OPS,
];

/// All operations in the order of their families.
pub fn all() -> impl Iterator<Item = &'static OpDef> {
    FAMILIES.iter().flat_map(|f| f.iter())
}

/// The operation of a name.
pub(crate) fn find(name: &str) -> Option<&'static OpDef> {
    static INDEX: OnceLock<BTreeMap<&'static str, &'static OpDef>> = OnceLock::new();
    INDEX.get_or_init(|| all().map(|d| (d.name, d)).collect()).get(name).copied()
}

/// The operation of a name that this crate itself writes.
///
/// # Panics
/// If there is none: a misspelling in the compiler, which any test that reaches it shows.
pub(crate) fn named(name: &str) -> &'static OpDef {
    find(name).unwrap_or_else(|| unreachable!("operation {name} is not registered"))
}

/// Reads the text of a module.
pub fn parse(text: &str) -> Result<Module, ParseError> {
    parse::parse(text, find)
}

/// Reads the text of a module, and says where its operations stand.
pub fn parse_with_lines(text: &str) -> Result<(Module, Lines), ParseError> {
    parse::parse_with_lines(text, find)
}

/// docs/ir-operations.md.
pub fn document() -> String {
    use std::fmt::Write as _;
    let mut text =
        String::from("# Operations of the IR\n\nGenerated from the definitions in `compiler/src/dialect`.\n");
    for dialect in ["model", "train", "comm"] {
        let _ = write!(
            text,
            "\n## `{dialect}`\n\n| operation | what it does | effects | derivative |\n|---|---|---|---|\n"
        );
        for def in all().filter(|d| d.name.split('.').next() == Some(dialect)) {
            let vjp = if def.vjp.is_some() { "yes" } else { "" };
            let _ = writeln!(text, "| `{}` | {} | {} | {vjp} |", def.name, def.summary, def.effects);
        }
    }
    text
}
