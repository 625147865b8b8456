//! From a checked program to the `model` dialect: declarations and `@forward`.
//!
//! Nothing is decided here. Initial values get their numbers (fans are known), settings are copied into the module's
//! attributes in the schedule's vocabulary.

use std::collections::BTreeMap;
use std::path::Path;

use fs_dsl::checked::{self as c, LengthsId, Rows};
use fs_dsl::source::Span;
use fs_schedule as s;
use fs_schedule::op::{Extent, Function, Normalize, PoolMode};
use fs_schedule::signature::Shape;
use fs_schedule::{Source, Symbol};

use crate::dialect::named;
use crate::ir::attr::attrs_of;
use crate::ir::{Attr, Attrs, Func, Module, OpId, Type, ValueId};

/// A program that checks but cannot be compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}:{line}:{column}: {message}")]
pub struct ImportError {
    /// The file.
    pub path: String,
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// What is not possible, and what to write instead.
    pub message: String,
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
}

/// Makes a module of a program with a model.
pub fn import(program: &c::Program) -> Result<Module, ImportError> {
    let Some(model) = &program.model else {
        let path = program.sources.files.first().map_or_else(String::new, |f| f.path.clone());
        let message = "there is no `model` block to compile".into();
        return Err(ImportError { path, line: 1, column: 1, message });
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
    };
    importer.settings()?;
    importer.declarations()?;
    for node in &model.nodes {
        importer.node(node)?;
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
    fn error(&self, span: Span, message: impl Into<String>) -> ImportError {
        let (line, column) = self.program.sources.position(span);
        let path =
            self.program.sources.files.get(span.file as usize).map_or_else(String::new, |f| f.path.clone());
        ImportError { path, line, column, message: message.into() }
    }

    fn setting_span(&self, name: &str) -> Span {
        let found = self.program.train.spans.iter().find(|(n, _)| n == name);
        found.map_or(self.model.span, |(_, span)| *span)
    }

    fn settings(&mut self) -> Result<(), ImportError> {
        let train = &self.program.train;
        let p = train.precision;
        if [p.output_dist, p.gradient_dist, p.all_reduce].iter().any(|d| *d != c::DType::F32) {
            let span = self.setting_span("precision");
            return Err(self.error(
                span,
                "reduced precision on the wire is not built yet; write f32 for every collective",
            ));
        }
        if train.microbatches != 1 {
            let span = self.setting_span("microbatches");
            return Err(self.error(span, "microbatches are not built yet; write `microbatches 1`"));
        }
        if train.balance.is_some() {
            let span = self.setting_span("balance");
            return Err(self.error(span, "sample balancing is not built yet; write `balance off`"));
        }
        let settings = s::Settings {
            batch: train.batch,
            microbatches: train.microbatches,
            duration: match train.duration {
                c::Duration::Steps(n) => s::Duration::Steps(n),
                c::Duration::Epochs(n) => s::Duration::Epochs(n),
            },
            seed: train.seed,
            optimizer: match train.optimizer {
                c::DenseOptimizer::Sgd { lr, momentum, weight_decay } => {
                    s::DenseOptimizer::Sgd { lr, momentum, weight_decay }
                }
                c::DenseOptimizer::Adam { lr, beta1, beta2, eps, weight_decay } => {
                    s::DenseOptimizer::Adam { lr, beta1, beta2, eps, weight_decay }
                }
            },
        };
        let data = self.program.workload.as_ref().map(|w| self.data(w));
        let evaluate = self.program.workload.as_ref().and_then(|w| w.evaluate);
        let evaluate = evaluate.map(|c::Evaluate::LeaveLastOut| s::Evaluate::LeaveLastOut);
        let sources: Vec<Source> = self.program.sources.files.iter().map(source).collect();
        let unique = train.unique_rows;
        self.module.attrs = Attrs::from([
            ("settings".into(), Attr::from(&settings)),
            ("data".into(), Attr::from(&data)),
            ("evaluate".into(), Attr::from(&evaluate)),
            ("sources".into(), Attr::from(&sources)),
            ("unique_rows".into(), Attr::Bool(unique)),
            ("lookahead".into(), Attr::Int(train.lookahead.into())),
        ]);
        Ok(())
    }

    /// A path in a `.fs` file is relative to that file.
    fn path(&self, workload: &c::Workload, path: &str) -> String {
        let file = self.program.sources.files.get(workload.span.file as usize);
        let folder = file.and_then(|f| Path::new(&f.path).parent()).unwrap_or(Path::new(""));
        folder.join(path).to_string_lossy().into_owned()
    }

    fn data(&self, workload: &c::Workload) -> s::Data {
        match &workload.source {
            c::DataSource::Csv { path, user, item, time, rating, min_interactions } => s::Data::Csv {
                path: self.path(workload, path),
                user: user.clone(),
                item: item.clone(),
                time: time.clone(),
                rating: rating.clone(),
                min_interactions: *min_interactions,
            },
            c::DataSource::Safetensors { path } => s::Data::Safetensors { path: self.path(workload, path) },
            c::DataSource::Generate { lengths, ids, labels, samples } => s::Data::Generate {
                lengths: match *lengths {
                    c::LengthDistribution::Fixed(n) => s::LengthDistribution::Fixed(n),
                    c::LengthDistribution::Uniform { min, max } => {
                        s::LengthDistribution::Uniform { min, max }
                    }
                    c::LengthDistribution::Lognormal { mean, sigma, min, max } => {
                        s::LengthDistribution::Lognormal { mean, sigma, min, max }
                    }
                },
                ids: match *ids {
                    c::IdDistribution::Uniform => s::IdDistribution::Uniform,
                    c::IdDistribution::Zipf(a) => s::IdDistribution::Zipf(a),
                },
                labels: match *labels {
                    c::LabelDistribution::Hash => s::LabelDistribution::Hash,
                    c::LabelDistribution::Bernoulli(p) => s::LabelDistribution::Bernoulli(p),
                },
                samples: *samples,
            },
        }
    }

    fn declare(&mut self, name: &str, attrs: Attrs, shape: Shape) -> ValueId {
        let id = self.module.create(named(name), vec![], attrs, &[shape.into()], "");
        self.module.decls.push(id);
        self.module.op(id).results[0]
    }

    fn declarations(&mut self) -> Result<(), ImportError> {
        let model = self.model;
        for (i, t) in model.tables.iter().enumerate() {
            if !matches!(t.sharding, c::Sharding::Auto | c::Sharding::RowWise) {
                return Err(
                    self.error(t.span, "only row-wise sharding is built yet; write `sharding row_wise`")
                );
            }
            if t.dtype != c::DType::F32 {
                return Err(self.error(t.span, "only f32 tables are built yet; write `dtype f32`"));
            }
            let table = s::Table {
                name: t.name.clone(),
                rows: t.rows,
                dim: t.dim,
                sharding: s::Sharding::RowWise,
                optimizer: sparse_optimizer(t.optimizer),
                init: init(t.init, t.rows as f64, f64::from(t.dim), i as u64),
                stream: TABLES + i as u32,
            };
            let shape = Shape::Table { table: i as u32, dim: t.dim };
            let v = self.declare("model.table", attrs_of(&table), shape);
            self.tables.push(v);
        }
        for (i, l) in model.lengths.iter().enumerate() {
            let keep = match l.keep {
                c::Keep::First => s::Keep::First,
                c::Keep::Last => s::Keep::Last,
            };
            let lengths = s::Lengths { name: l.name.clone(), max: l.max, keep };
            let v = self.declare("model.lengths", attrs_of(&lengths), Shape::Offsets { lengths: i as u32 });
            self.lengths.push(v);
        }
        let inputs: Vec<s::Input> = model
            .inputs
            .iter()
            .map(|i| s::Input { name: i.name.clone(), kind: input_kind(i.kind) })
            .collect();
        for (input, declared) in inputs.iter().zip(&model.inputs) {
            let shape =
                crate::dialect::input_shape(&inputs, input.kind).map_err(|e| self.error(declared.span, e))?;
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
            let shape = Shape::Parameter { rows: p.shape[0], columns: p.shape[1] };
            let v = self.declare("model.param", attrs_of(&param), shape);
            self.params.push(v);
        }
        Ok(())
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

    fn ty(&self, v: c::ValueId) -> Type {
        let ty = self.model.values[v.index()].ty;
        Type::real(extent(ty.rows), ty.columns)
    }

    fn node(&mut self, node: &c::Node) -> Result<(), ImportError> {
        let mut operands = Vec::with_capacity(node.args.len() + 2);
        for a in &node.args {
            let v = self
                .values
                .get(a)
                .ok_or_else(|| self.error(node.span, "a value is used before it is computed"))?;
            operands.push(*v);
        }
        let mut types: Vec<Type> = node.results.iter().map(|r| self.ty(*r)).collect();
        let scope = self.scope(node);
        let group = |ty: Type| match ty.as_real() {
            Some((Extent::Symbol(Symbol::Tokens(g)), _)) => Some(g),
            _ => None,
        };
        let offsets = |this: &Self| -> Result<ValueId, ImportError> {
            let ty = node.args.first().map(|a| this.ty(*a));
            let g = ty.and_then(group).ok_or_else(|| this.error(node.span, "needs one row per token"))?;
            Ok(this.lengths[g as usize])
        };
        let mut attrs = Attrs::new();
        let mut set = |name: &str, attr: Attr| {
            attrs.insert(name.to_owned(), attr);
        };
        let name = match &node.op {
            c::Op::Lookup { table, input } => {
                operands = vec![self.tables[table.index()], self.inputs[input.index()]];
                "model.lookup"
            }
            c::Op::Pool { table, input, mode } => {
                let lengths = self
                    .lengths_of(*input)
                    .ok_or_else(|| self.error(node.span, "needs a sequence of ids"))?;
                operands = vec![
                    self.tables[table.index()],
                    self.inputs[input.index()],
                    self.lengths[lengths.index()],
                ];
                let mode = match mode {
                    c::PoolMode::Sum => PoolMode::Sum,
                    c::PoolMode::Mean => PoolMode::Mean,
                };
                set("mode", Attr::from(&mode));
                "model.pool"
            }
            c::Op::Dense { input } => {
                operands = vec![self.inputs[input.index()]];
                "model.dense"
            }
            c::Op::Linear { weight, bias } => {
                operands.push(self.params[weight.index()]);
                operands.extend(bias.map(|b| self.params[b.index()]));
                set("bias", Attr::Bool(bias.is_some()));
                "model.linear"
            }
            c::Op::LayerNorm { weight, bias, eps } => {
                if let (Some(w), Some(b)) = (weight, bias) {
                    operands.extend([self.params[w.index()], self.params[b.index()]]);
                }
                set("affine", Attr::Bool(weight.is_some() && bias.is_some()));
                set("eps", Attr::Float(*eps));
                types.push(Type::real(types[0].as_real().map_or(Extent::Fixed(0), |(r, _)| r), 2));
                "model.layer_norm"
            }
            c::Op::Silu | c::Op::Relu | c::Op::Gelu | c::Op::Sigmoid => {
                let function = match &node.op {
                    c::Op::Silu => Function::Silu,
                    c::Op::Relu => Function::Relu,
                    c::Op::Gelu => Function::Gelu,
                    _ => Function::Sigmoid,
                };
                set("function", Attr::from(&function));
                "model.unary"
            }
            c::Op::Softmax => "model.softmax",
            c::Op::Add => "model.add",
            c::Op::Mul => "model.mul",
            c::Op::Scale { factor } => {
                set("factor", Attr::Float(*factor));
                "model.scale"
            }
            c::Op::Split { sizes } => {
                set("sizes", Attr::from(sizes));
                "model.split"
            }
            c::Op::Concat => "model.concat",
            c::Op::Positional { weight } => {
                operands.push(offsets(self)?);
                operands.push(self.params[weight.index()]);
                "model.positional"
            }
            c::Op::Dropout { p, stream } => {
                set("p", Attr::Float(*p));
                set("stream", Attr::Int((*stream).into()));
                "model.dropout"
            }
            c::Op::L2Normalize { eps } => {
                set("eps", Attr::Float(*eps));
                types.push(Type::real(types[0].as_real().map_or(Extent::Fixed(0), |(r, _)| r), 1));
                "model.l2_normalize"
            }
            c::Op::SiluAttention { heads } => {
                operands.push(offsets(self)?);
                set("heads", Attr::Int((*heads).into()));
                "model.silu_attention"
            }
            c::Op::SoftmaxAttention { heads, causal } => {
                operands.push(offsets(self)?);
                set("heads", Attr::Int((*heads).into()));
                set("causal", Attr::Bool(*causal));
                types.push(Type::real(types[0].as_real().map_or(Extent::Fixed(0), |(r, _)| r), *heads));
                "model.softmax_attention"
            }
            c::Op::DotInteraction => "model.dot_interaction",
            c::Op::BceWithLogits { labels, normalize } => {
                operands.push(self.inputs[labels.index()]);
                let rows = self.ty(node.args[0]).as_real().map_or(Extent::Fixed(0), |(r, _)| r);
                set("normalize", Attr::from(&self.normalize(*normalize, rows, node)?));
                types.push(Type::real(rows, 1));
                "model.bce_with_logits"
            }
            c::Op::SampledSoftmax { table, target, negatives, temperature, cosine, normalize } => {
                let rows = self.ty(node.args[0]).as_real().map_or(Extent::Fixed(0), |(r, _)| r);
                let drawn = self.draw_negatives(*table, rows, *negatives, node)?;
                operands.extend([self.tables[table.index()], self.inputs[target.index()], drawn]);
                set("negatives", Attr::Int((*negatives).into()));
                set("temperature", Attr::Float(*temperature));
                set("cosine", Attr::Bool(*cosine));
                set("normalize", Attr::from(&self.normalize(*normalize, rows, node)?));
                types.push(Type::real(rows, 1 + negatives));
                "model.sampled_softmax"
            }
        };
        let id = self.module.create(named(name), operands, attrs, &types, &scope);
        self.body.push(id);
        let results = self.module.op(id).results.clone();
        self.values.extend(node.results.iter().copied().zip(results));
        Ok(())
    }

    /// Scope path and, for layers, the name that their parameters carry.
    fn scope(&self, node: &c::Node) -> String {
        let param = match &node.op {
            c::Op::Linear { weight, .. }
            | c::Op::Positional { weight }
            | c::Op::LayerNorm { weight: Some(weight), .. } => Some(weight),
            _ => None,
        };
        let owner = param.and_then(|p| self.model.params[p.index()].name.rsplit_once('.'));
        owner.map_or_else(|| node.scope.clone(), |(path, _)| path.to_owned())
    }

    fn lengths_of(&self, input: c::InputId) -> Option<LengthsId> {
        match self.model.inputs[input.index()].kind {
            c::InputKind::Ids { lengths, .. } => Some(lengths),
            c::InputKind::Next { of } => self.lengths_of(of),
            _ => None,
        }
    }

    fn normalize(&self, n: c::Normalize, rows: Extent, node: &c::Node) -> Result<Normalize, ImportError> {
        match (n, rows) {
            (c::Normalize::Constant(x), _) => Ok(Normalize::Constant(x)),
            (c::Normalize::Samples, _) => Ok(Normalize::Samples),
            (c::Normalize::Tokens, Extent::Symbol(Symbol::Tokens(g))) => Ok(Normalize::Tokens(g)),
            (c::Normalize::Tokens, _) => {
                Err(self.error(node.span, "this loss has no tokens to be normalised by"))
            }
        }
    }

    fn draw_negatives(
        &mut self,
        table: c::TableId,
        rows: Extent,
        count: u32,
        node: &c::Node,
    ) -> Result<ValueId, ImportError> {
        let Extent::Symbol(Symbol::Tokens(lengths)) = rows else {
            return Err(self.error(node.span, "sampled softmax needs one row per token"));
        };
        let attrs = Attrs::from([
            ("table".into(), Attr::Int(table.0.into())),
            ("lengths".into(), Attr::Int(lengths.into())),
            ("count".into(), Attr::Int(count.into())),
            ("stream".into(), Attr::Int((NEGATIVES + self.losses).into())),
        ]);
        self.losses += 1;
        let ty = fs_schedule::signature::id(rows, count).into();
        let id = self.module.create(named("model.draw_negatives"), vec![], attrs, &[ty], "");
        self.body.push(id);
        Ok(self.module.op(id).results[0])
    }
}

fn source(file: &fs_dsl::source::SourceFile) -> Source {
    Source { path: file.path.clone(), digest: fs_schedule::file::sha256(file.text.as_bytes()) }
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

fn sparse_optimizer(o: c::SparseOptimizer) -> s::SparseOptimizer {
    match o {
        c::SparseOptimizer::Sgd { lr } => s::SparseOptimizer::Sgd { lr },
        c::SparseOptimizer::RowwiseAdagrad { lr, eps } => s::SparseOptimizer::RowwiseAdagrad { lr, eps },
        c::SparseOptimizer::Adagrad { lr, eps } => s::SparseOptimizer::Adagrad { lr, eps },
        c::SparseOptimizer::Adam { lr, beta1, beta2, eps } => {
            s::SparseOptimizer::Adam { lr, beta1, beta2, eps }
        }
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
