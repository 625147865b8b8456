//! Linear layers: `y = x W^T + b`, with `W` of shape `[out, in]`.

use super::Effect::{ReadsParameter, WritesGradient};
use super::Flops::Product;
use super::Programs::{Both, Training};
use super::operands::{Context, Operands};
use super::table::entry::{Linear, LinearGradInput, LinearGradWeight};
use super::{At, Entry, Facts, Lists, Memory, Misfit, Results};
use crate::signature::OperandType;

/// Two operations per row and weight.
const EACH: f64 = 2.0;

impl<'a> Entry<'a> for Linear<'a> {
    fn facts(&self) -> Facts<'a> {
        let flops = Product(EACH, At::Written(0), At::Read(0));
        Facts::model(Both, &[ReadsParameter], Results::FRESH, Lists::NONE, flops, Memory::Once)
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.count(2 + usize::from(*self.bias), 1)?;
        let (x, (out, input)) = (o.activation(0)?, o.parameter(1)?);
        if x.columns != input {
            return Err(Misfit::relation(format!("the weight takes {input} columns, x has {}", x.columns)));
        }
        if *self.bias {
            o.read(2, OperandType::Parameter { rows: 1, columns: out })?;
        }
        o.write(0, x.with(out))
    }
}

impl<'a> Entry<'a> for LinearGradInput {
    fn facts(&self) -> Facts<'a> {
        let flops = Product(EACH, At::Written(0), At::Read(0));
        Facts::model(Training, &[ReadsParameter], Results::adding(&[0]), Lists::NONE, flops, Memory::Once)
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.count(2, 1)?;
        let (gy, (out, input)) = (o.activation(0)?, o.parameter(1)?);
        if gy.columns != out {
            return Err(Misfit::relation(format!(
                "the weight gives {out} columns, the gradient has {}",
                gy.columns
            )));
        }
        o.write(0, gy.with(input))
    }
}

impl<'a> Entry<'a> for LinearGradWeight<'a> {
    fn facts(&self) -> Facts<'a> {
        let results = Results { adds: &[0, 1], gradients: &[0, 1], in_place: false };
        let flops = Product(EACH, At::Read(0), At::Read(1));
        Facts::model(Training, &[WritesGradient], results, Lists::NONE, flops, Memory::Once)
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.count(2, 1 + usize::from(*self.bias))?;
        let (gy, x) = (o.activation(0)?, o.activation(1)?);
        if gy.rows != x.rows {
            return Err(Misfit::relation("operands 0 and 1 must have the same rows"));
        }
        o.read(1, gy.with(x.columns))?;
        o.write(0, OperandType::Gradient { rows: gy.columns, columns: x.columns })?;
        if *self.bias { o.vector_gradient(1, gy.columns) } else { Ok(()) }
    }
}
