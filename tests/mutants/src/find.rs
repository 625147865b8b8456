//! Finds what a listed change is about in the syntax tree.
//!
//! The list says where an operator, an arm or a body stands; the tree says what its operands are.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::edit::Edit;

/// A line (from 1) and a column (from 1).
type Place = (usize, usize);

/// An entry of the list.
pub(crate) struct Change {
    /// Its number, from 1.
    pub number: usize,
    /// The file, below the workspace's root.
    pub file: String,
    genre: String,
    start: Place,
    replacement: String,
}

impl Change {
    /// Reads an entry of `cargo mutants --list --json`.
    pub(crate) fn new(number: usize, entry: &serde_json::Value) -> Option<Self> {
        let text = |key: &str| Some(entry.get(key)?.as_str()?.to_string());
        let start = entry.get("span")?.get("start")?;
        let number_of = |key: &str| Some(start.get(key)?.as_u64()? as usize);
        Some(Self {
            number,
            file: text("file")?,
            genre: text("genre")?,
            start: (number_of("line")?, number_of("column")?),
            replacement: text("replacement")?,
        })
    }
}

struct Finder<'a> {
    source: &'a str,
    /// Changes by genre and place that are not found yet.
    open: BTreeMap<(&'a str, Place), Vec<&'a Change>>,
    edits: Vec<Edit>,
    /// Within what the compiler computes.
    constant: usize,
    not: BTreeSet<usize>,
}

/// The edits for the changes, and the numbers of those that can't be switched.
pub(crate) fn edits(source: &str, changes: &[Change]) -> syn::Result<(Vec<Edit>, Vec<usize>)> {
    let file = syn::parse_file(source)?;
    let mut open: BTreeMap<(&str, Place), Vec<&Change>> = BTreeMap::new();
    for c in changes {
        open.entry((c.genre.as_str(), c.start)).or_default().push(c);
    }
    let mut finder = Finder { source, open, edits: Vec::new(), constant: 0, not: BTreeSet::new() };
    finder.visit_file(&file);
    let mut not: Vec<usize> = finder.not.into_iter().collect();
    not.extend(finder.open.values().flatten().map(|c| c.number));
    Ok((finder.edits, not))
}

fn place(span: Span) -> Place {
    (span.start().line, span.start().column + 1)
}

/// Whether a chain of `&&` holds a `let`.
fn binds(e: &syn::Expr) -> bool {
    match e {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(b) if matches!(b.op, syn::BinOp::And(_)) => binds(&b.left) || binds(&b.right),
        _ => false,
    }
}

impl<'a> Finder<'a> {
    fn text(&self, range: Range<usize>) -> &'a str {
        &self.source[range]
    }

    fn take(&mut self, genre: &'a str, span: Span) -> Vec<&'a Change> {
        let found = self.open.remove(&(genre, place(span))).unwrap_or_default();
        if self.constant > 0 {
            self.not.extend(found.iter().map(|c| c.number));
            return Vec::new();
        }
        found
    }

    fn choose(&mut self, range: Range<usize>, arms: Vec<(usize, String)>) {
        if !arms.is_empty() {
            self.edits.push(Edit::Choice { range, arms });
        }
    }

    fn body(&mut self, signature: &syn::Signature, block: &'a syn::Block) {
        let at = block.brace_token.span.open().byte_range().end;
        let Some(first) = block.stmts.first() else { return };
        let start = first.span();
        // Two values of which each has a type of its own can't be told apart at run time.
        let opaque = matches!(&signature.output, syn::ReturnType::Type(_, t) if matches!(**t, syn::Type::ImplTrait(_)));
        for c in self.take("FnValue", start) {
            if opaque {
                self.not.insert(c.number);
                continue;
            }
            let text = format!(
                "/*M{0}*/ if crate::mutant_on() == {0} {{ return {1}; }}/*E*/",
                c.number, c.replacement
            );
            self.edits.push(Edit::Insert { at, text });
        }
    }

    fn constant(&mut self, yes: bool, visit: impl FnOnce(&mut Self)) {
        self.constant += usize::from(yes);
        visit(self);
        self.constant -= usize::from(yes);
    }
}

impl<'a> Visit<'a> for Finder<'a> {
    fn visit_item_fn(&mut self, i: &'a syn::ItemFn) {
        self.constant(i.sig.constness.is_some(), |s| {
            s.body(&i.sig, &i.block);
            visit::visit_item_fn(s, i);
        });
    }
    fn visit_impl_item_fn(&mut self, i: &'a syn::ImplItemFn) {
        self.constant(i.sig.constness.is_some(), |s| {
            s.body(&i.sig, &i.block);
            visit::visit_impl_item_fn(s, i);
        });
    }
    fn visit_trait_item_fn(&mut self, i: &'a syn::TraitItemFn) {
        if let Some(block) = &i.default {
            self.body(&i.sig, block);
        }
        visit::visit_trait_item_fn(self, i);
    }
    fn visit_item_const(&mut self, i: &'a syn::ItemConst) {
        self.constant(true, |s| visit::visit_item_const(s, i));
    }
    fn visit_impl_item_const(&mut self, i: &'a syn::ImplItemConst) {
        self.constant(true, |s| visit::visit_impl_item_const(s, i));
    }
    fn visit_item_static(&mut self, i: &'a syn::ItemStatic) {
        self.constant(true, |s| visit::visit_item_static(s, i));
    }

    fn visit_expr_binary(&mut self, e: &'a syn::ExprBinary) {
        let changes = self.take("BinaryOperator", e.op.span());
        if binds(&e.left) || binds(&e.right) {
            // `||` takes no `let`.
            self.not.extend(changes.iter().map(|c| c.number));
        } else {
            let (left, right) =
                (self.text(e.left.span().byte_range()), self.text(e.right.span().byte_range()));
            let assigns = self.text(e.op.span().byte_range()).ends_with('=')
                && !["==", "!=", "<=", ">="].contains(&self.text(e.op.span().byte_range()));
            let arms = changes.iter().map(|c| {
                let text = if assigns {
                    format!("{left} {} {right}", c.replacement)
                } else {
                    format!("({left}) {} ({right})", c.replacement)
                };
                (c.number, text)
            });
            let arms = arms.collect();
            self.choose(e.span().byte_range(), arms);
        }
        visit::visit_expr_binary(self, e);
    }

    fn visit_expr_struct(&mut self, e: &'a syn::ExprStruct) {
        let whole = e.span().byte_range();
        let mut arms = Vec::new();
        for field in &e.fields {
            for c in self.take("StructField", field.span()) {
                // Without it, and with the comma behind it.
                let mut range = field.span().byte_range();
                let rest = self.text(range.end..whole.end);
                range.end += rest.len() - rest.trim_start().trim_start_matches(',').len();
                let text = [self.text(whole.start..range.start), self.text(range.end..whole.end)].concat();
                arms.push((c.number, text));
            }
        }
        self.choose(whole, arms);
        visit::visit_expr_struct(self, e);
    }

    fn visit_expr_unary(&mut self, e: &'a syn::ExprUnary) {
        let inner = self.text(e.expr.span().byte_range());
        let arms =
            self.take("UnaryOperator", e.op.span()).iter().map(|c| (c.number, inner.to_string())).collect();
        self.choose(e.span().byte_range(), arms);
        visit::visit_expr_unary(self, e);
    }

    fn visit_arm(&mut self, arm: &'a syn::Arm) {
        let deleted = self.take("MatchArm", arm.pat.span());
        let tests: Vec<String> =
            deleted.iter().map(|c| format!("crate::mutant_on() != {}", c.number)).collect();
        let tests = tests.join(" && ");
        if let Some((_, guard)) = &arm.guard {
            let arms = self
                .take("MatchArmGuard", guard.span())
                .iter()
                .map(|c| (c.number, c.replacement.clone()))
                .collect();
            if binds(guard) {
                self.not.extend(deleted.iter().map(|c| c.number));
            } else {
                let range = guard.span().byte_range();
                if !tests.is_empty() {
                    self.edits.push(Edit::Insert { at: range.start, text: format!("{tests} && (") });
                    self.edits.push(Edit::Insert { at: range.end, text: ")".into() });
                }
                self.choose(range, arms);
            }
        } else if !tests.is_empty() {
            let at = arm.pat.span().byte_range().end;
            self.edits.push(Edit::Insert { at, text: format!(" if {tests}") });
        }
        visit::visit_arm(self, arm);
    }
}
