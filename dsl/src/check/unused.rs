//! Warnings: names that nothing uses, values that the loss does not depend on.

use super::{Checker, What};
use crate::codes;
use crate::diagnostic::Diagnostic;
use crate::source::Span;
use std::collections::{BTreeMap, HashSet};

/// Whether a declaration has been used, in any iteration or instance.
#[derive(Debug, Clone)]
pub(super) struct Use {
    pub(super) name: String,
    pub(super) what: What,
    pub(super) used: bool,
}

impl Checker<'_> {
    pub(super) fn warn_unused(&mut self) {
        let unused: Vec<(Span, Use)> = self
            .uses
            .iter()
            .filter(|(_, u)| !u.used && u.what != What::Parameter)
            .map(|(s, u)| (*s, u.clone()))
            .collect();
        let mut silent: HashSet<Span> = HashSet::new();
        for (span, u) in unused {
            silent.insert(span);
            if u.name.starts_with('_') {
                continue;
            }
            self.push(
                Diagnostic::warning(
                    codes::UNUSED,
                    span,
                    format!("the {} `{}` is never used", u.what.words(), u.name),
                )
                .label("unused")
                .help(format!("if that is on purpose, call it `_{}`", u.name)),
            );
        }
        let mut needed = vec![false; self.model.values.len()];
        if let Some(loss) = needed.get_mut(self.model.loss.index()) {
            *loss = true;
        }
        let mut consumed = vec![false; self.model.values.len()];
        // By the place of the expression: some iteration of a `repeat` may need what another does not.
        let mut places: BTreeMap<Span, bool> = BTreeMap::new();
        for node in self.model.nodes.iter().rev() {
            let reached = node.results.iter().any(|r| needed[r.index()]);
            // What only another unneeded value uses is not worth a warning of its own.
            let inner = node.results.iter().any(|r| consumed[r.index()]);
            *places.entry(node.span).or_default() |= reached || inner;
            for a in &node.args {
                needed[a.index()] |= reached;
                consumed[a.index()] = true;
            }
        }
        let unreached: Vec<Span> = places.iter().filter(|(_, fine)| !**fine).map(|(s, _)| *s).collect();
        for span in unreached {
            // Not if its name has just been reported.
            let reported =
                silent.iter().any(|n| n.file == span.file && n.end <= span.start && span.start - n.end < 4);
            if !reported {
                self.push(
                    Diagnostic::warning(codes::NO_EFFECT, span, "the loss does not depend on this value")
                        .label("computed for nothing"),
                );
            }
        }
    }
}
