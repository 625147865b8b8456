//! Layers with parameters, and those that act on whole rows.

use super::embedding::no_loss;
use super::{NAME, Primitive, X};
use crate::check::{Bound, Checker, Failed, Val};
use crate::checked::{Init, Op, Type, ValueId};
use crate::signature::{Param, ParamKind};

const WEIGHT_INIT: Param =
    Param::default("init", ParamKind::Init, "kaiming_uniform", "Values of the weight before training.");
const BIAS_INIT: Param =
    Param::default("bias_init", ParamKind::Init, "kaiming_uniform", "Values of the bias before training.");
const ACTIVATIONS: ParamKind = ParamKind::Choice(&["none", "relu", "silu", "gelu", "sigmoid"]);

pub(super) const ALL: &[Primitive] = &[
    Primitive {
        name: "linear",
        params: &[
            X,
            Param::required("out", ParamKind::POSITIVE, "Columns of the result."),
            Param::default("bias", ParamKind::Switch, "on", "Whether to add a bias."),
            WEIGHT_INIT,
            BIAS_INIT,
            NAME,
        ],
        result: "`[rows of x, out]`",
        doc: "`x W^T + b`. Parameters: `weight`, `[out, columns of x]`, and `bias`, `[out]`. The defaults are PyTorch's.",
        apply: |c, b| {
            let x = b.value("x")?;
            let path = c.layer(b, "linear")?;
            let out = b.count("out")?;
            linear(c, b, x, &path, out, b.switch("bias")?).map(Val::Tensor)
        },
    },
    Primitive {
        name: "mlp",
        params: &[
            X,
            Param::required("widths", ParamKind::Widths, "Columns after each layer."),
            Param::default("activation", ACTIVATIONS, "relu", "Between layers."),
            Param::default("last", ACTIVATIONS, "none", "After the last layer."),
            Param::default("bias", ParamKind::Switch, "on", "Whether layers have a bias."),
            WEIGHT_INIT,
            BIAS_INIT,
            NAME,
        ],
        result: "`[rows of x, last width]`",
        doc: "Linear layers with activations between them, written out as such. Their names are the mlp's with `.0`, `.1`, ...",
        apply: |c, b| {
            let mut x = b.value("x")?;
            let path = c.layer(b, "mlp")?;
            let widths = b.widths("widths")?;
            let bias = b.switch("bias")?;
            for (i, &width) in widths.iter().enumerate() {
                x = linear(c, b, x, &format!("{path}.{i}"), u64::from(width), bias)?;
                let which = if i + 1 == widths.len() { "last" } else { "activation" };
                let op = match b.choice(which)? {
                    "relu" => Op::Relu,
                    "silu" => Op::Silu,
                    "gelu" => Op::Gelu,
                    "sigmoid" => Op::Sigmoid,
                    _ => continue,
                };
                let ty = c.ty(x);
                x = c.node(op, vec![x], &[ty], b.span).first().copied().ok_or(Failed)?;
            }
            Ok(Val::Tensor(x))
        },
    },
    Primitive {
        name: "layer_norm",
        params: &[
            X,
            Param::default("eps", ParamKind::NOT_NEGATIVE, "1e-5", "Added to the variance."),
            Param::default("affine", ParamKind::Switch, "on", "Whether to scale and shift by parameters."),
            NAME,
        ],
        result: "the type of `x`",
        doc: "Every row minus its mean, divided by the root of its variance. Parameters if affine: `weight` (ones) and `bias` (zeros), `[columns]`.",
        apply: |c, b| {
            let x = b.value("x")?;
            let ty = c.ty(x);
            no_loss(c, "layer_norm", ty, b.span_of("x"))?;
            let eps = b.number("eps")?;
            let (mut weight, mut bias) = (None, None);
            if b.switch("affine")? {
                let path = c.layer(b, "layer_norm")?;
                let shape = [1, ty.columns];
                weight = Some(c.param(format!("{path}.weight"), shape, true, Init::Constant(1.0), b.span));
                bias = Some(c.param(format!("{path}.bias"), shape, true, Init::Zeros, b.span));
            }
            Ok(c.node1(Op::LayerNorm { weight, bias, eps }, vec![x], ty, b.span))
        },
    },
    Primitive {
        name: "dropout",
        params: &[
            X,
            Param::required(
                "p",
                ParamKind::Number { min: 0.0, max: 1.0, open: false },
                "Probability of zero.",
            ),
        ],
        result: "the type of `x`",
        doc: "In training: elements are zeroed with probability p, the others divided by 1 - p. In evaluation: x.",
        apply: |c, b| {
            let x = b.value("x")?;
            let ty = c.ty(x);
            no_loss(c, "dropout", ty, b.span_of("x"))?;
            let p = b.number("p")?;
            let stream = c.next_dropout();
            Ok(c.node1(Op::Dropout { p, stream }, vec![x], ty, b.span))
        },
    },
    Primitive {
        name: "l2_normalize",
        params: &[X, Param::default("eps", ParamKind::ABOVE_ZERO, "1e-12", "Lower bound of the divisor.")],
        result: "the type of `x`",
        doc: "Every row divided by its Euclidean length, or by eps if that is greater.",
        apply: |c, b| {
            let x = b.value("x")?;
            let ty = c.ty(x);
            no_loss(c, "l2_normalize", ty, b.span_of("x"))?;
            Ok(c.node1(Op::L2Normalize { eps: b.number("eps")? }, vec![x], ty, b.span))
        },
    },
];

fn linear(
    c: &mut Checker<'_>,
    b: &Bound,
    x: ValueId,
    path: &str,
    out: u64,
    with_bias: bool,
) -> Result<ValueId, Failed> {
    let Type { rows, columns } = c.ty(x);
    no_loss(c, "linear", c.ty(x), b.span_of("x"))?;
    let ty = c.columns(rows, out, b.span)?;
    let weight = c.param(format!("{path}.weight"), [ty.columns, columns], false, b.init("init")?, b.span);
    let bias = if with_bias {
        Some(c.param(format!("{path}.bias"), [1, ty.columns], true, b.init("bias_init")?, b.span))
    } else {
        None
    };
    c.node(Op::Linear { weight, bias }, vec![x], &[ty], b.span).first().copied().ok_or(Failed)
}
