//! From syntax trees to a checked program: names, types, shapes, parameters.
//!
//! Checking is abstract interpretation: blocks are inlined and `repeat` is unrolled while their statements
//! are executed on types. A mistake gives a poison value that is silent from then on, so that everything
//! else is still checked.

mod bind;
mod block;
mod bound;
mod eval;
pub(crate) mod makers;
mod model;
pub(crate) mod primitives;
mod sections;
pub(crate) mod settings;
mod unused;
mod values;

pub(crate) use bound::Bound;
pub(crate) use values::{Failed, Given, Val};

use crate::ast::{self, Item};
use crate::checked::{Model, Op, Program, Rows, Type, ValueId};
use crate::codes::{self, Code};
use crate::diagnostic::{Diagnostic, Severity, closest};
use crate::source::{SourceMap, Span};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Most operations of a program.
pub(crate) const MAX_NODES: usize = 200_000;
/// Most statements executed and expressions evaluated while unrolling and inlining.
const MAX_WORK: u32 = 4_000_000;
/// Deepest nesting of expressions and `repeat` through inlined blocks: bounds the use of the stack.
const MAX_DEPTH: u32 = 256;
const MAX_DIAGNOSTICS: usize = 100;

/// A loaded file: its tree and what could not be parsed.
pub(crate) struct Unit {
    pub(crate) file: ast::File,
    pub(crate) damaged: Vec<Span>,
}

/// A name that is visible somewhere.
#[derive(Debug, Clone)]
pub(crate) struct Binding {
    val: Val,
    span: Span,
    what: What,
}

/// How a name came into being.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Table,
    Input,
    Parameter,
    Let,
}

impl What {
    fn words(self) -> &'static str {
        match self {
            What::Table => "table",
            What::Input => "input",
            What::Parameter => "parameter",
            What::Let => "value",
        }
    }
}

/// The names visible in a model or in one instance of a block, innermost braces last.
#[derive(Debug, Default)]
struct Frame {
    levels: Vec<HashMap<String, Binding>>,
}

pub(crate) struct Checker<'a> {
    diagnostics: Vec<Diagnostic>,
    seen: HashSet<(Code, Option<Span>)>,
    blocks: BTreeMap<&'a str, &'a ast::Block>,
    called: BTreeSet<&'a str>,
    damaged: Vec<Span>,
    /// Names in parts that could not be parsed: they may well be declared there.
    forgiven: HashSet<String>,
    pub(crate) model: Model,
    frames: Vec<Frame>,
    /// Blocks being inlined, with the calls that did it.
    calls: Vec<(String, Span)>,
    /// Something was nested too deeply: blocks further down have not been seen and may still be called.
    unseen: bool,
    scope: Vec<String>,
    layers: HashMap<String, Span>,
    dropouts: u32,
    work: u32,
    depth: u32,
    /// An unknown call may yet be a constructor: what it is the value of knows which.
    lenient: bool,
    stopped: bool,
    uses: BTreeMap<Span, unused::Use>,
    dense: HashMap<u32, ValueId>,
    loss_span: Option<Span>,
}

/// Checks the files of a program together. The program is `Some` only without errors.
pub(crate) fn check(
    units: &[Unit],
    sources: &SourceMap,
    parsed_cleanly: bool,
) -> (Option<Program>, Vec<Diagnostic>) {
    let mut c = Checker::new(units, sources);
    c.collect_blocks(units);
    let mut models = Vec::new();
    let mut sections: Vec<&ast::Section> = Vec::new();
    for item in units.iter().flat_map(|u| &u.file.items) {
        match item {
            Item::Model { name, body, span } => models.push((name, body, *span)),
            Item::Section(s) => sections.push(s),
            Item::Import { .. } | Item::Block(_) => {}
        }
    }
    if let [first, more @ ..] = models.as_slice() {
        for (name, _, _) in more {
            let d = Diagnostic::error(codes::SEVERAL, name.span, "a program has one model")
                .label("a second model")
                .also(first.0.span, "the first");
            c.push(d);
        }
        c.check_model(first.0, first.1, first.2);
    }
    let has_model = !models.is_empty();
    c.check_idle_blocks(units.first());
    let (train, workload, clusters) = c.check_sections(&sections, has_model);
    let mut diagnostics = c.diagnostics;
    let errors = !parsed_cleanly || diagnostics.iter().any(Diagnostic::is_error);
    if errors {
        // A value may look unused only because what used it was refused.
        diagnostics.retain(Diagnostic::is_error);
    }
    let program = (!errors).then(|| Program {
        sources: sources.clone(),
        model: has_model.then_some(c.model),
        train,
        workload,
        clusters,
    });
    (program, diagnostics)
}

impl<'a> Checker<'a> {
    fn new(units: &'a [Unit], sources: &SourceMap) -> Self {
        let nowhere = Span { file: 0, start: 0, end: 0 };
        let damaged: Vec<Span> = units.iter().flat_map(|u| u.damaged.iter().copied()).collect();
        let mut forgiven = HashSet::new();
        for span in &damaged {
            let text = sources.files.get(span.file as usize).map_or("", |f| f.text.as_str());
            let text = text.get(span.start as usize..span.end as usize).unwrap_or("");
            let words = text.split(|ch: char| !ch.is_ascii_alphanumeric() && ch != '_');
            forgiven.extend(words.filter(|w| !w.is_empty()).map(str::to_owned));
        }
        Self {
            diagnostics: Vec::new(),
            seen: HashSet::new(),
            blocks: BTreeMap::new(),
            called: BTreeSet::new(),
            damaged,
            forgiven,
            model: Model {
                name: String::new(),
                tables: Vec::new(),
                lengths: Vec::new(),
                inputs: Vec::new(),
                params: Vec::new(),
                values: Vec::new(),
                nodes: Vec::new(),
                loss: ValueId(0),
                span: nowhere,
            },
            frames: Vec::new(),
            calls: Vec::new(),
            unseen: false,
            scope: Vec::new(),
            layers: HashMap::new(),
            dropouts: 0,
            work: 0,
            depth: 0,
            lenient: false,
            stopped: false,
            uses: BTreeMap::new(),
            dense: HashMap::new(),
            loss_span: None,
        }
    }

    /// Reports something, once per place; says where the block that it stands in was called.
    pub(crate) fn push(&mut self, mut d: Diagnostic) -> Failed {
        // Two iterations or instances can meet at one place.
        if let Some(primary) = d.span {
            d.secondary.retain(|(s, _)| *s != primary);
        }
        let new = self.seen.insert((d.code, d.span));
        if new && self.diagnostics.len() < MAX_DIAGNOSTICS {
            if d.severity == Severity::Error
                && let Some((block, call)) = self.calls.last()
                && d.span != Some(*call)
            {
                d = d.also(*call, format!("in this call of `{block}`"));
            }
            self.diagnostics.push(d);
        }
        Failed
    }

    /// Whether a part of this text could not be parsed.
    fn is_damaged(&self, span: Span) -> bool {
        self.damaged.iter().any(|d| d.file == span.file && d.start < span.end && span.start < d.end)
    }

    /// Counts work; false once the program has turned out too large.
    fn step(&mut self, span: Span) -> bool {
        self.work += 1;
        if self.work > MAX_WORK && !self.stopped {
            self.too_large(span);
        }
        !self.stopped
    }

    fn too_large(&mut self, span: Span) {
        if !self.stopped {
            self.stopped = true;
            self.push(
                Diagnostic::error(codes::TOO_LARGE, span, "the unrolled program is too large")
                    .label("reached here")
                    .note(format!("a program may have {MAX_NODES} operations")),
            );
        }
    }

    fn lookup(&mut self, name: &str) -> Option<Val> {
        let frame = self.frames.last()?;
        let binding = frame.levels.iter().rev().find_map(|l| l.get(name))?;
        let (val, span) = (binding.val.clone(), binding.span);
        if let Some(u) = self.uses.get_mut(&span) {
            u.used = true;
        }
        Some(val)
    }

    /// Reports a name that nothing is bound to.
    pub(crate) fn unknown_name(&mut self, name: &str, span: Span) -> Failed {
        if self.forgiven.contains(name) {
            return Failed;
        }
        let visible: Vec<&str> = self
            .frames
            .last()
            .iter()
            .flat_map(|f| &f.levels)
            .flat_map(|l| l.keys().map(String::as_str))
            .collect();
        let near = closest(name, visible).map(str::to_owned);
        let mut d = Diagnostic::error(codes::UNKNOWN_NAME, span, format!("nothing is called `{name}` here"))
            .label("unknown name");
        if let Some(near) = near {
            d = d.help(format!("did you mean `{near}`?"));
        } else if primitives::find(name).is_some() || self.blocks.contains_key(name) {
            d = d.help(format!("`{name}` is called with parentheses: `{name}(..)`"));
        } else if self.frames.len() > 1 {
            d = d.help("a block sees its parameters only: pass it as an argument");
        }
        self.push(d)
    }

    /// The number of the next dropout, so that each draws its own mask.
    pub(crate) fn next_dropout(&mut self) -> u32 {
        self.dropouts += 1;
        self.dropouts - 1
    }

    /// Adds an operation.
    pub(crate) fn node(&mut self, op: Op, args: Vec<ValueId>, types: &[Type], span: Span) -> Vec<ValueId> {
        if self.model.nodes.len() >= MAX_NODES {
            self.too_large(span);
        }
        let results: Vec<ValueId> = types
            .iter()
            .map(|&ty| {
                self.model.values.push(crate::checked::Value { name: String::new(), ty });
                ValueId(self.model.values.len() as u32 - 1)
            })
            .collect();
        let scope = self.scope.join(".");
        self.model.nodes.push(crate::checked::Node { op, args, results: results.clone(), scope, span });
        results
    }

    /// Adds an operation with one result.
    pub(crate) fn node1(&mut self, op: Op, args: Vec<ValueId>, ty: Type, span: Span) -> Val {
        let results = self.node(op, args, &[ty], span);
        results.first().map_or(Val::Poison, |&v| Val::Tensor(v))
    }

    /// The type of a value.
    pub(crate) fn ty(&self, v: ValueId) -> Type {
        self.model.values[v.index()].ty
    }

    /// A type in words: `[tokens of history, 64]`.
    pub(crate) fn type_words(&self, ty: Type) -> String {
        match ty.rows {
            Rows::One => "a loss".into(),
            Rows::Samples => format!("[samples, {}]", ty.columns),
            Rows::Tokens(l) => format!("[tokens of {}, {}]", self.model.lengths[l.index()].name, ty.columns),
        }
    }

    /// What a value is, with its type if it has one.
    fn describe(&self, val: &Val) -> String {
        use crate::checked::InputKind;
        match val {
            Val::Tensor(v) => format!("a value `{}`", self.type_words(self.ty(*v))),
            Val::Table(t) => format!("the table `{}`", self.model.tables[t.index()].name),
            Val::Input(i) => {
                let input = &self.model.inputs[i.index()];
                let kind = match input.kind {
                    InputKind::Ids { .. } => "ids",
                    InputKind::Next { .. } => "next",
                    InputKind::Dense { .. } => "dense",
                    InputKind::SampleLabel | InputKind::TokenLabel { .. } => "label",
                };
                format!("the `{kind}` input `{}`", input.name)
            }
            other => other.words(),
        }
    }

    fn scoped(&self, name: &str) -> String {
        let mut path = self.scope.join(".");
        if !path.is_empty() {
            path.push('.');
        }
        path + name
    }

    /// The full name of a new layer: given by `name:`, or by `let`, or the primitive's own, made unique.
    pub(crate) fn layer(&mut self, b: &Bound, own: &str) -> Result<String, Failed> {
        if b.has("name") {
            let path = self.scoped(&b.text("name")?);
            let span = b.span_of("name");
            if let Some(&first) = self.layers.get(&path) {
                let d = Diagnostic::error(
                    codes::LAYER_NAME_TWICE,
                    span,
                    format!("two layers are called `{path}`"),
                )
                .label("the second")
                .also(first, "the first")
                .help(
                    "give the layers, or the calls of the blocks around them, different names with `name:`",
                );
                return Err(self.push(d));
            }
            self.layers.insert(path.clone(), span);
            return Ok(path);
        }
        let base = self.scoped(b.hint.as_deref().unwrap_or(own));
        let mut path = base.clone();
        let mut n = 1;
        while self.layers.contains_key(&path) {
            n += 1;
            path = format!("{base}_{n}");
        }
        self.layers.insert(path.clone(), b.span);
        Ok(path)
    }
}
