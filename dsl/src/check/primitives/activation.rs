//! Functions of single elements, and softmax.

use super::embedding::no_loss;
use super::{Primitive, X};
use crate::checked::Op;

macro_rules! activation {
    ($name:literal, $op:expr, $doc:literal) => {
        Primitive {
            name: $name,
            params: &[X],
            result: "the type of `x`",
            doc: $doc,
            apply: |c, b| {
                let x = b.value("x")?;
                let ty = c.ty(x);
                no_loss(c, $name, ty, b.span_of("x"))?;
                Ok(c.node1($op, vec![x], ty, b.span))
            },
        }
    };
}

pub(super) const ALL: &[Primitive] = &[
    activation!("silu", Op::Silu, "`x * sigmoid(x)`."),
    activation!("relu", Op::Relu, "`max(x, 0)`."),
    activation!("gelu", Op::Gelu, "`x` times the Gaussian distribution function of x, in its exact form."),
    activation!("sigmoid", Op::Sigmoid, "`1 / (1 + exp(-x))`."),
    activation!("softmax", Op::Softmax, "Over the columns of every row."),
];
