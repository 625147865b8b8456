//! Neighbours as one operation: what one makes the other reads while it is there. All that is made is kept, because
//! derivatives read it; the numbers are those of one after the other. A model's reference knows their parts only.

use super::Effect::ReadsParameter;
use super::Flops::{Each, Product};
use super::Programs::Both;
use super::operands::{Context, Operands};
use super::table::entry::{AddLayerNorm, LayerNorm, LayerNormMul, Linear, LinearUnary};
use super::{Action, At, Entry, Facts, Lists, Memory, Misfit, Results};
use crate::signature::OperandType;

impl Action {
    /// Whether it is several neighbours in one.
    pub fn is_fused(&self) -> bool {
        !self.parts(0).is_empty()
    }

    /// What a fused operation does, in order: each with the positions of its operands, among what the operation reads and, behind
    /// those, what it writes, and of its results. Nothing for any other.
    pub fn parts(&self, reads: usize) -> Vec<Part> {
        let part = |action, operands: Vec<usize>, results: Vec<usize>| Part { action, operands, results };
        match *self {
            Self::LinearUnary { function } => vec![
                part(Self::Linear { bias: true }, vec![0, 1, 2], vec![0]),
                part(Self::Unary { function }, vec![reads], vec![1]),
            ],
            Self::AddLayerNorm { affine, eps } => {
                let norm = std::iter::once(reads).chain(2..reads).collect();
                vec![
                    part(Self::Add, vec![0, 1], vec![0]),
                    part(Self::LayerNorm { affine, eps }, norm, vec![1, 2]),
                ]
            }
            Self::LayerNormMul { affine, eps } => {
                let gate = reads.saturating_sub(1);
                vec![
                    part(Self::LayerNorm { affine, eps }, (0..gate).collect(), vec![0, 2]),
                    part(Self::Mul, vec![reads, gate], vec![1]),
                ]
            }
            _ => Vec::new(),
        }
    }
}

/// A part of a fused operation.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// What it does.
    pub action: Action,
    /// What it reads: positions in what the operation reads, and from there on in what it writes.
    pub operands: Vec<usize>,
    /// What it writes: positions in what the operation writes.
    pub results: Vec<usize>,
}

impl<'a> Entry<'a> for LinearUnary<'a> {
    fn facts(&self) -> Facts<'a> {
        // The function's arithmetic is nothing beside the product's.
        let flops = Product(2.0, At::Written(0), At::Read(0));
        Facts::model(Both, &[ReadsParameter], Results::FRESH, Lists::NONE, flops, Memory::Once)
    }
    fn operands(&self, o: &Operands<'_>, cx: &Context<'_>) -> Result<(), Misfit> {
        o.count(3, 2)?;
        let z = o.writes[0];
        Linear { bias: &true }.operands(&Operands { reads: o.reads, writes: &[z] }, cx)?;
        o.write(1, z)
    }
}

impl<'a> Entry<'a> for AddLayerNorm<'a> {
    fn facts(&self) -> Facts<'a> {
        let norm = LayerNorm { affine: self.affine, eps: self.eps }.facts();
        Facts { lists: Lists::written(&[2]), flops: Each(9.0, At::Written(1)), ..norm }
    }
    fn operands(&self, o: &Operands<'_>, cx: &Context<'_>) -> Result<(), Misfit> {
        o.count(if *self.affine { 4 } else { 2 }, 3)?;
        let sum = o.alike(0..2)?;
        o.write(0, sum.shape())?;
        let norm = LayerNorm { affine: self.affine, eps: self.eps };
        norm.operands(&Operands { reads: &o.reads[1..], writes: &o.writes[1..] }, cx)
    }
}

impl<'a> Entry<'a> for LayerNormMul<'a> {
    fn facts(&self) -> Facts<'a> {
        let norm = LayerNorm { affine: self.affine, eps: self.eps }.facts();
        Facts { lists: Lists::written(&[2]), flops: Each(9.0, At::Written(1)), ..norm }
    }
    fn operands(&self, o: &Operands<'_>, cx: &Context<'_>) -> Result<(), Misfit> {
        let gate = if *self.affine { 3 } else { 1 };
        o.count(gate + 1, 3)?;
        let x = o.activation(0)?;
        o.read(gate, x.shape())?;
        o.write(1, x.shape())?;
        let writes: [OperandType; 2] = [o.writes[0], o.writes[2]];
        let norm = LayerNorm { affine: self.affine, eps: self.eps };
        norm.operands(&Operands { reads: &o.reads[..gate], writes: &writes }, cx)
    }
}
