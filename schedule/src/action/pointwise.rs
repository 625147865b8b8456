//! Pointwise functions, sums and products, copies, casts and zeros.

use super::Flops::{self, Each};
use super::Programs::{Both, Training};
use super::operands::{Context, Operands};
use super::table::entry::{Add, Cast, Copy, Mul, MulGrad, Scale, Unary, UnaryGrad, Zero};
use super::{At, Entry, Facts, Lists, Memory, Misfit, Results};
use crate::operand::Element;
use crate::signature::{OperandType, floats};

impl<'a> Entry<'a> for Unary<'a> {
    fn facts(&self) -> Facts<'a> {
        Facts::model(Both, &[], Results::FRESH, Lists::NONE, Each(8.0, At::Written(0)), Memory::Once)
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.pointwise(1)
    }
}

impl<'a> Entry<'a> for UnaryGrad<'a> {
    fn facts(&self) -> Facts<'a> {
        Facts::model(
            Training,
            &[],
            Results::adding(&[0]),
            Lists::NONE,
            Each(12.0, At::Written(0)),
            Memory::Once,
        )
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.pointwise(2)
    }
}

impl<'a> Entry<'a> for Add {
    fn facts(&self) -> Facts<'a> {
        Facts::model(Both, &[], Results::FRESH, Lists::NONE, Each(1.0, At::Written(0)), Memory::Once)
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.pointwise(o.reads.len().max(1))
    }
}

impl<'a> Entry<'a> for Mul {
    fn facts(&self) -> Facts<'a> {
        Facts::model(Both, &[], Results::FRESH, Lists::NONE, Each(1.0, At::Written(0)), Memory::Once)
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.pointwise(2)
    }
}

impl<'a> Entry<'a> for MulGrad {
    fn facts(&self) -> Facts<'a> {
        Facts::model(
            Training,
            &[],
            Results::adding(&[0, 1]),
            Lists::NONE,
            Each(2.0, At::Written(0)),
            Memory::Once,
        )
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.count(3, 2)?;
        let x = o.alike(0..3)?;
        o.write(0, x.shape())?;
        o.write(1, x.shape())
    }
}

impl<'a> Entry<'a> for Scale<'a> {
    fn facts(&self) -> Facts<'a> {
        let flops = Each(1.0, At::Written(0));
        Facts {
            in_range: self.factor.is_finite(),
            ..Facts::model(Both, &[], Results::adding(&[0]), Lists::NONE, flops, Memory::Once)
        }
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.pointwise(1)
    }
}

impl<'a> Entry<'a> for Copy {
    fn facts(&self) -> Facts<'a> {
        Facts::model(Both, &[], Results::adding(&[0]), Lists::NONE, Flops::None, Memory::Once)
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.pointwise(1)
    }
}

impl<'a> Entry<'a> for Cast {
    fn facts(&self) -> Facts<'a> {
        Facts::model(Both, &[], Results::adding(&[0]), Lists::NONE, Flops::None, Memory::Once)
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.count(1, 1)?;
        let x = o.activation(0)?;
        let other = if x.element == Element::Real { Element::Bf16 } else { Element::Real };
        o.write(0, floats(other, x.rows, x.columns))
    }
}

impl<'a> Entry<'a> for Zero {
    fn facts(&self) -> Facts<'a> {
        Facts::model(Both, &[], Results::FRESH, Lists::NONE, Flops::None, Memory::Once)
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.count(0, 1)?;
        match o.writes[0] {
            OperandType::Matrix { element, .. } if element.is_float() => Ok(()),
            other => Err(Misfit::operand(At::Written(0), "a real or bf16 matrix", Some(&other))),
        }
    }
}
