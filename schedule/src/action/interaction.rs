//! Dense features and pairwise interactions.

use super::Effect::ReadsBatch;
use super::Flops::{self, Crossed};
use super::Programs::{Both, Training};
use super::operands::{Context, Operands, SAMPLES};
use super::table::entry::{Dense, DotInteraction, DotInteractionGrad};
use super::{At, Entry, Facts, Lists, Memory, Misfit, Results};
use crate::signature::{OperandType, real};

impl<'a> Entry<'a> for Dense {
    fn facts(&self) -> Facts<'a> {
        Facts::model(Both, &[ReadsBatch], Results::FRESH, Lists::NONE, Flops::None, Memory::Once)
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.count(1, 1)?;
        match o.reads[0] {
            OperandType::Dense { width } => o.write(0, real(SAMPLES, width)),
            other => Err(Misfit::operand(At::Read(0), "dense features", Some(&other))),
        }
    }
}

impl<'a> Entry<'a> for DotInteraction {
    fn facts(&self) -> Facts<'a> {
        Facts::model(Both, &[], Results::FRESH, Lists::NONE, Crossed, Memory::Once)
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.count(o.reads.len().max(2), 1)?;
        let x = o.alike(0..o.reads.len())?;
        o.write(0, x.with(pairs(o.reads.len())?))
    }
}

impl<'a> Entry<'a> for DotInteractionGrad {
    fn facts(&self) -> Facts<'a> {
        Facts::model(Training, &[], Results::FRESH, Lists::NONE, Crossed, Memory::Once)
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        let n = o.writes.len();
        o.count(n.max(2) + 1, n.max(2))?;
        let x = o.alike(0..n)?;
        o.read(n, x.with(pairs(n)?))?;
        (0..n).try_for_each(|i| o.write(i, x.shape()))
    }
}

/// Pairs of so many operands: columns of the result.
fn pairs(n: usize) -> Result<u32, Misfit> {
    let pairs = n as u64 * (n as u64).saturating_sub(1) / 2;
    u32::try_from(pairs)
        .map_err(|_| Misfit::relation(format!("{n} operands have {pairs} pairs, too many for columns")))
}
