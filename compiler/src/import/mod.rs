//! From a checked program to the `model` dialect: declarations and `@forward`.
//!
//! Nothing is decided here. Initial values get their numbers (fans are known), settings are copied into the module's
//! attributes in the schedule's vocabulary.

mod nodes;
pub(crate) mod settings;

use std::collections::BTreeMap;

use fs_dsl::checked::{self as c, Rows};
use fs_dsl::codes;
use fs_dsl::diagnostic::Diagnostic;
use fs_schedule as s;
use fs_schedule::signature::OperandType;
use fs_schedule::{Extent, Source, Symbol};

use crate::dialect::named;
use crate::ir::attr::attrs_of;
use crate::ir::{Attr, Attrs, Func, Module, OpId, ValueId};

/// A program that checks but cannot be compiled: everything that stands against it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the model cannot be compiled\n\n{text}")]
pub struct ImportError {
    /// What is not possible, and what to write instead.
    pub diagnostics: Vec<Diagnostic>,
    /// The same with the lines at fault.
    text: String,
}

impl ImportError {
    fn new(mut diagnostics: Vec<Diagnostic>, program: &c::Program) -> Self {
        diagnostics.sort_by_key(|d| (d.span.map(|s| (s.file, s.start)), d.code));
        let text = fs_dsl::render(&diagnostics, &program.sources, false).trim_end().to_owned();
        Self { diagnostics, text }
    }
}

/// Stream numbers of draws: dropouts come first, then negatives, tables, parameters; none may coincide.
const NEGATIVES: u32 = 1 << 16;
const TABLES: u32 = 1 << 17;
const PARAMETERS: u32 = 1 << 18;

struct Importer<'a> {
    program: &'a c::Program,
    model: &'a c::Model,
    module: Module,
    tables: Vec<ValueId>,
    lengths: Vec<ValueId>,
    inputs: Vec<ValueId>,
    params: Vec<ValueId>,
    values: BTreeMap<c::ValueId, ValueId>,
    body: Vec<OpId>,
    losses: u32,
    diagnostics: Vec<Diagnostic>,
}

/// Makes a module of a program with a model.
pub fn import(program: &c::Program) -> Result<Module, ImportError> {
    let Some(model) = &program.model else {
        let path = program.sources.files.first().map_or("the program", |f| f.path.as_str());
        let message = format!("{path} has no `model` block to compile");
        return Err(ImportError::new(vec![Diagnostic::without_place(codes::NO_MODEL, message)], program));
    };
    let mut importer = Importer {
        program,
        model,
        module: Module::named(&model.name),
        tables: Vec::new(),
        lengths: Vec::new(),
        inputs: Vec::new(),
        params: Vec::new(),
        values: BTreeMap::new(),
        body: Vec::new(),
        losses: 0,
        diagnostics: Vec::new(),
    };
    importer.settings();
    importer.declarations();
    for node in &model.nodes {
        // Later nodes need the values of earlier ones.
        if let Err(d) = importer.node(node) {
            importer.diagnostics.push(*d);
            break;
        }
    }
    if !importer.diagnostics.is_empty() {
        return Err(ImportError::new(importer.diagnostics, program));
    }
    // The loss comes last: passes take it from there.
    let Importer { mut module, mut body, values, .. } = importer;
    if let Some(loss) = values.get(&model.loss).map(|v| module.value(*v).def) {
        body.retain(|id| *id != loss);
        body.push(loss);
    }
    module.funcs.push(Func { name: "forward".into(), body });
    Ok(module)
}

impl Importer<'_> {
    fn declare(&mut self, name: &str, attrs: Attrs, shape: OperandType) -> ValueId {
        let id = self.module.create(named(name), vec![], attrs, &[shape.into()], "");
        self.module.decls.push(id);
        self.module.op(id).results[0]
    }

    /// Refuses tables that cannot be stored or placed as asked.
    fn check_table(&mut self, t: &c::Table) {
        if t.dtype != c::DType::F32 {
            let d = Diagnostic::error(
                codes::NOT_BUILT,
                t.span,
                format!("table `{}` is not f32, and other types are not built yet", t.name),
            );
            self.diagnostics.push(d.label("this table").help("write `dtype f32`, or leave it out"));
        }
        if t.sharding == c::Sharding::ColumnWise {
            if matches!(t.optimizer, c::SparseOptimizer::RowwiseAdagrad { .. }) {
                let d = Diagnostic::error(
                    codes::PLACEMENT,
                    t.span,
                    format!("table `{}` cannot be column-wise with rowwise_adagrad", t.name),
                )
                .label("this table")
                .note("the state of rowwise_adagrad is the mean over a whole row, which no part of a column-wise table sees")
                .help("use adagrad, adam or sgd, or another sharding");
                self.diagnostics.push(d);
            }
            if t.dim < 2 {
                let message = format!("table `{}` has one column, which cannot be shared out", t.name);
                self.diagnostics
                    .push(Diagnostic::error(codes::PLACEMENT, t.span, message).label("this table"));
            }
        }
    }

    fn declarations(&mut self) {
        let model = self.model;
        for (i, t) in model.tables.iter().enumerate() {
            self.check_table(t);
            let table = s::Table {
                name: t.name.clone(),
                rows: t.rows,
                dim: t.dim,
                sharding: s::Sharding::RowWise,
                placement: s::RowPlacement::Range,
                hot: Vec::new(),
                optimizer: t.optimizer,
                init: init(t.init, t.rows as f64, f64::from(t.dim), i as u64),
                stream: TABLES + i as u32,
            };
            let mut attrs = attrs_of(&table);
            // What is asked for; `plan-sharding` finds the ranks.
            attrs.insert("sharding".into(), Attr::Str(sharding(t.sharding).into()));
            if let c::Sharding::RowWise { placement: Some(rows) } = t.sharding {
                attrs.insert("placement".into(), Attr::Str(placement(rows).into()));
            }
            let shape = OperandType::Table { table: i as u32, dim: t.dim };
            let v = self.declare("model.table", attrs, shape);
            self.tables.push(v);
        }
        for (i, l) in model.lengths.iter().enumerate() {
            let keep = match l.keep {
                c::Keep::First => s::Keep::First,
                c::Keep::Last => s::Keep::Last,
            };
            let lengths = s::Lengths { name: l.name.clone(), max: l.max, keep };
            let v =
                self.declare("model.lengths", attrs_of(&lengths), OperandType::Offsets { lengths: i as u32 });
            self.lengths.push(v);
        }
        let inputs: Vec<s::Input> = model
            .inputs
            .iter()
            .map(|i| s::Input { name: i.name.clone(), kind: input_kind(i.kind) })
            .collect();
        for (input, declared) in inputs.iter().zip(&model.inputs) {
            let shape = match crate::dialect::input_shape(&inputs, input.kind) {
                Ok(shape) => shape,
                Err(e) => {
                    self.diagnostics.push(Diagnostic::error(codes::WRONG_KIND, declared.span, e.to_string()));
                    continue;
                }
            };
            let v = self.declare("model.input", attrs_of(input), shape);
            self.inputs.push(v);
        }
        let fans = self.bias_fans();
        for (i, p) in model.params.iter().enumerate() {
            let fan_in = fans.get(&i).copied().unwrap_or(f64::from(p.shape[1]));
            let param = s::Parameter {
                name: p.name.clone(),
                rows: p.shape[0],
                columns: p.shape[1],
                vector: p.vector,
                init: init(p.init, f64::from(p.shape[0]), fan_in, i as u64),
                stream: PARAMETERS + i as u32,
            };
            let shape = OperandType::Parameter { rows: p.shape[0], columns: p.shape[1] };
            let v = self.declare("model.param", attrs_of(&param), shape);
            self.params.push(v);
        }
    }

    /// The fan-in of a linear layer's bias is that of its weight.
    fn bias_fans(&self) -> BTreeMap<usize, f64> {
        let mut fans = BTreeMap::new();
        for node in &self.model.nodes {
            if let c::Op::Linear { weight, bias: Some(bias) } = &node.op
                && let Some(w) = self.model.params.get(weight.index())
            {
                fans.insert(bias.index(), f64::from(w.shape[1]));
            }
        }
        fans
    }
}

fn source(file: &fs_dsl::source::SourceFile) -> Source {
    Source { path: file.path.clone(), digest: fs_schedule::digest::sha256(file.text.as_bytes()) }
}

fn extent(rows: Rows) -> Extent {
    match rows {
        Rows::One => Extent::Fixed(1),
        Rows::Samples => Extent::Symbol(Symbol::Samples),
        Rows::Tokens(g) => Extent::Symbol(Symbol::Tokens(g.0)),
    }
}

fn input_kind(kind: c::InputKind) -> s::InputKind {
    match kind {
        c::InputKind::Ids { table, lengths } => s::InputKind::Ids { table: table.0, lengths: lengths.0 },
        c::InputKind::Next { of } => s::InputKind::Next { of: of.0 },
        c::InputKind::Dense { width } => s::InputKind::Dense { width },
        c::InputKind::SampleLabel => s::InputKind::SampleLabel,
        c::InputKind::TokenLabel { lengths } => s::InputKind::TokenLabel { lengths: lengths.0 },
    }
}

/// A placement as text, before it is decided.
fn sharding(s: c::Sharding) -> &'static str {
    match s {
        c::Sharding::Auto => "auto",
        c::Sharding::RowWise { .. } => "row_wise",
        c::Sharding::TableWise => "table_wise",
        c::Sharding::ColumnWise => "column_wise",
        c::Sharding::DataParallel => "data_parallel",
    }
}

/// A placement of rows as text, before hot ones are dealt.
fn placement(p: c::Placement) -> &'static str {
    match p {
        c::Placement::Range => "range",
        c::Placement::Hashed => "hashed",
        c::Placement::Planned => "planned",
    }
}

/// Initial values with their numbers. Weights are `[out, in]`: rows are the fan-out.
fn init(init: c::Init, fan_out: f64, fan_in: f64, salt: u64) -> s::Init {
    let uniform = |bound: f64| s::Init::Uniform { low: -bound, high: bound };
    match init {
        c::Init::Zeros => s::Init::Constant(0.0),
        c::Init::Constant(x) => s::Init::Constant(x),
        c::Init::Normal { mean, std } => s::Init::Normal { mean, std },
        c::Init::Uniform { low, high } => s::Init::Uniform { low, high },
        c::Init::XavierUniform => uniform((6.0 / (fan_in + fan_out)).sqrt()),
        c::Init::XavierNormal => s::Init::Normal { mean: 0.0, std: (2.0 / (fan_in + fan_out)).sqrt() },
        c::Init::KaimingUniform => uniform(1.0 / fan_in.sqrt()),
        c::Init::Hash { scale } => s::Init::Hash { scale, salt },
    }
}
