//! What knows positions within a sequence: positional embedding, dropout.

use super::Effect::{Random, ReadsBatch, ReadsParameter, WritesGradient};
use super::Flops::{self, Each};
use super::Programs::{Both, Training};
use super::operands::{Activation, Context, Operands, tokens};
use super::table::entry::{Dropout, DropoutGrad, Positional, PositionalGrad};
use super::{At, Entry, Facts, Lists, Memory, Misfit, Results};
use crate::signature::OperandType;

fn share(p: f64) -> bool {
    (0.0..1.0).contains(&p)
}

impl<'a> Entry<'a> for Positional {
    fn facts(&self) -> Facts<'a> {
        let flops = Each(1.0, At::Written(0));
        Facts::model(Both, &[ReadsBatch, ReadsParameter], Results::FRESH, Lists::NONE, flops, Memory::Once)
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.count(3, 1)?;
        let (x, g, (_, dim)) = (o.activation(0)?, o.offsets(1)?, o.parameter(2)?);
        if x.rows != tokens(g) || x.columns != dim {
            return Err(Misfit::relation(
                "x must have the rows of the offsets and the columns of the weight",
            ));
        }
        o.write(0, x.shape())
    }
}

impl<'a> Entry<'a> for PositionalGrad {
    fn facts(&self) -> Facts<'a> {
        let results = Results { adds: &[0], gradients: &[0], in_place: false };
        Facts::model(Training, &[ReadsBatch, WritesGradient], results, Lists::NONE, Flops::None, Memory::Once)
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.count(2, 1)?;
        let (Activation { rows, columns, .. }, g) = (o.activation(0)?, o.offsets(1)?);
        match o.writes[0] {
            OperandType::Gradient { columns: c, .. } if c == columns && rows == tokens(g) => Ok(()),
            other => Err(Misfit::operand(
                At::Written(0),
                format!("a gradient with {columns} columns"),
                Some(&other),
            )),
        }
    }
}

impl<'a> Entry<'a> for Dropout<'a> {
    fn facts(&self) -> Facts<'a> {
        let flops = Each(1.0, At::Written(0));
        Facts {
            in_range: share(*self.p),
            ..Facts::model(Training, &[ReadsBatch, Random], Results::FRESH, Lists::NONE, flops, Memory::Once)
        }
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.pointwise(1)
    }
}

impl<'a> Entry<'a> for DropoutGrad<'a> {
    fn facts(&self) -> Facts<'a> {
        let flops = Each(1.0, At::Written(0));
        Facts {
            in_range: share(*self.p),
            ..Facts::model(
                Training,
                &[ReadsBatch, Random],
                Results::adding(&[0]),
                Lists::NONE,
                flops,
                Memory::Once,
            )
        }
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.pointwise(1)
    }
}
