//! Normalisations of rows: layer norm, l2 normalisation, softmax.

use super::Effect::{ReadsParameter, WritesGradient};
use super::Flops::Each;
use super::Programs::{Both, Training};
use super::operands::{Context, Operands};
use super::table::entry::{L2Normalize, L2NormalizeGrad, LayerNorm, LayerNormGrad, Softmax, SoftmaxGrad};
use super::{At, Entry, Facts, Lists, Memory, Misfit, Results};
use crate::signature::{OperandType, real};

fn bound(eps: f64) -> bool {
    eps.is_finite() && eps >= 0.0
}

impl<'a> Entry<'a> for LayerNorm<'a> {
    fn facts(&self) -> Facts<'a> {
        let effects: &[_] = if *self.affine { &[ReadsParameter] } else { &[] };
        let flops = Each(8.0, At::Written(0));
        Facts {
            in_range: bound(*self.eps),
            ..Facts::model(Both, effects, Results::FRESH, Lists::written(&[1]), flops, Memory::Once)
        }
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.count(if *self.affine { 3 } else { 1 }, 2)?;
        let x = o.activation(0)?;
        if *self.affine {
            o.read(1, OperandType::Parameter { rows: 1, columns: x.columns })?;
            o.read(2, OperandType::Parameter { rows: 1, columns: x.columns })?;
        }
        o.write(0, x.shape())?;
        o.write(1, real(x.rows, 2))
    }
}

impl<'a> Entry<'a> for LayerNormGrad<'a> {
    fn facts(&self) -> Facts<'a> {
        let flops = Each(12.0, At::Written(0));
        if *self.affine {
            let results = Results { adds: &[0, 1, 2], gradients: &[1, 2], in_place: false };
            Facts::model(
                Training,
                &[ReadsParameter, WritesGradient],
                results,
                Lists::read(if *self.affine { &[2] } else { &[1] }),
                flops,
                Memory::Once,
            )
        } else {
            Facts::model(
                Training,
                &[],
                Results::adding(&[0]),
                Lists::read(if *self.affine { &[2] } else { &[1] }),
                flops,
                Memory::Once,
            )
        }
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        let extra = usize::from(*self.affine);
        o.count(3 + extra, 1 + 2 * extra)?;
        let x = o.activation(0)?;
        if *self.affine {
            o.read(1, OperandType::Parameter { rows: 1, columns: x.columns })?;
            o.vector_gradient(1, x.columns)?;
            o.vector_gradient(2, x.columns)?;
        }
        o.read(1 + extra, real(x.rows, 2))?;
        o.read(2 + extra, x.shape())?;
        o.write(0, x.shape())
    }
}

impl<'a> Entry<'a> for L2Normalize<'a> {
    fn facts(&self) -> Facts<'a> {
        let flops = Each(3.0, At::Written(0));
        Facts {
            in_range: bound(*self.eps),
            ..Facts::model(Both, &[], Results::FRESH, Lists::written(&[1]), flops, Memory::Once)
        }
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.count(1, 2)?;
        let x = o.activation(0)?;
        o.write(0, x.shape())?;
        o.write(1, real(x.rows, 1))
    }
}

impl<'a> Entry<'a> for L2NormalizeGrad<'a> {
    fn facts(&self) -> Facts<'a> {
        let flops = Each(5.0, At::Written(0));
        Facts {
            in_range: bound(*self.eps),
            ..Facts::model(Training, &[], Results::adding(&[0]), Lists::read(&[1]), flops, Memory::Once)
        }
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.count(3, 1)?;
        let y = o.activation(0)?;
        o.read(1, real(y.rows, 1))?;
        o.read(2, y.shape())?;
        o.write(0, y.shape())
    }
}

impl<'a> Entry<'a> for Softmax {
    fn facts(&self) -> Facts<'a> {
        Facts::model(Both, &[], Results::FRESH, Lists::NONE, Each(8.0, At::Written(0)), Memory::Once)
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.pointwise(1)
    }
}

impl<'a> Entry<'a> for SoftmaxGrad {
    fn facts(&self) -> Facts<'a> {
        Facts::model(
            Training,
            &[],
            Results::adding(&[0]),
            Lists::NONE,
            Each(4.0, At::Written(0)),
            Memory::Once,
        )
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.pointwise(2)
    }
}
