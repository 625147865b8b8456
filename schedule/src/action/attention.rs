//! Attention within jagged sequences.

use super::Effect::ReadsBatch;
use super::Flops::Pairs;
use super::Programs::{Both, Training};
use super::operands::{Context, Operands, heads_fit, token_group};
use super::table::entry::{SiluAttention, SiluAttentionGrad, SoftmaxAttention, SoftmaxAttentionGrad};
use super::{Entry, Facts, Lists, Memory, Misfit, Results};
use crate::signature::{OperandType, real};

/// Operations per pair of positions and column: scores and weighted sum, two each; their gradients, and scores again.
const FORWARD: f64 = 4.0;
const BACKWARD: f64 = 10.0;

/// A causal mask leaves half of the pairs.
fn pairs(each: f64, causal: bool) -> f64 {
    if causal { each / 2.0 } else { each }
}

impl<'a> Entry<'a> for SiluAttention<'a> {
    fn facts(&self) -> Facts<'a> {
        Facts::model(
            Both,
            &[ReadsBatch],
            Results::FRESH,
            Lists::NONE,
            Pairs(pairs(FORWARD, true)),
            Memory::Once,
        )
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.count(4, 1)?;
        let q = o.alike(0..3)?;
        heads_fit(q.columns, *self.heads)?;
        o.read(3, OperandType::Offsets { lengths: token_group(q.rows)? })?;
        o.write(0, q.shape())
    }
}

impl<'a> Entry<'a> for SiluAttentionGrad<'a> {
    fn facts(&self) -> Facts<'a> {
        Facts::model(
            Training,
            &[ReadsBatch],
            Results::FRESH,
            Lists::NONE,
            Pairs(pairs(BACKWARD, true)),
            Memory::Once,
        )
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.count(5, 3)?;
        let q = o.alike(0..3)?;
        heads_fit(q.columns, *self.heads)?;
        o.read(3, OperandType::Offsets { lengths: token_group(q.rows)? })?;
        o.read(4, q.shape())?;
        (0..3).try_for_each(|i| o.write(i, q.shape()))
    }
}

impl<'a> Entry<'a> for SoftmaxAttention<'a> {
    fn facts(&self) -> Facts<'a> {
        let flops = Pairs(pairs(FORWARD, *self.causal));
        Facts::model(Both, &[ReadsBatch], Results::FRESH, Lists::written(&[1]), flops, Memory::Once)
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.count(4, 2)?;
        let q = o.alike(0..3)?;
        heads_fit(q.columns, *self.heads)?;
        o.read(3, OperandType::Offsets { lengths: token_group(q.rows)? })?;
        o.write(0, q.shape())?;
        o.write(1, real(q.rows, *self.heads))
    }
}

impl<'a> Entry<'a> for SoftmaxAttentionGrad<'a> {
    fn facts(&self) -> Facts<'a> {
        let flops = Pairs(pairs(BACKWARD, *self.causal));
        Facts::model(Training, &[ReadsBatch], Results::FRESH, Lists::read(&[4]), flops, Memory::Once)
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.count(7, 3)?;
        let q = o.alike(0..4)?;
        heads_fit(q.columns, *self.heads)?;
        o.read(4, real(q.rows, *self.heads))?;
        o.read(5, OperandType::Offsets { lengths: token_group(q.rows)? })?;
        o.read(6, q.shape())?;
        (0..3).try_for_each(|i| o.write(i, q.shape()))
    }
}
