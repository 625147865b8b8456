//! Nodes of the graph become operations of `@forward`.

use fs_dsl::checked::{self as c, LengthsId};
use fs_dsl::codes;
use fs_dsl::diagnostic::Diagnostic;
use fs_dsl::source::Span;
use fs_schedule::{Extent, Function, Normalize, PoolMode, Symbol};

use super::{Importer, NEGATIVES, extent};
use crate::dialect::named;
use crate::ir::{Attr, Attrs, Type, ValueId};

/// Why a node has no operation.
type Refusal = Box<Diagnostic>;

impl Importer<'_> {
    #[expect(clippy::unused_self, reason = "reads as what it is at its many callers")]
    fn error(&self, span: Span, message: impl Into<String>) -> Refusal {
        Box::new(Diagnostic::error(codes::WRONG_ROWS, span, message))
    }

    fn ty(&self, v: c::ValueId) -> Type {
        let ty = self.model.values[v.index()].ty;
        Type::real(extent(ty.rows), ty.columns)
    }

    pub(super) fn node(&mut self, node: &c::Node) -> Result<(), Refusal> {
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
        let offsets = |this: &Self| -> Result<ValueId, Refusal> {
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

    fn normalize(&self, n: c::Normalize, rows: Extent, node: &c::Node) -> Result<Normalize, Refusal> {
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
    ) -> Result<ValueId, Refusal> {
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
