//! Losses, which make their gradient too, and the ranking of items in evaluation.

use super::Effect::{AddsLoss, Ranks, ReadsBatch, ReadsTable};
use super::Flops::{self, Product};
use super::Programs::{Evaluation, Training};
use super::operands::{Context, ONE, Operands, token_group, tokens};
use super::table::entry::{BceWithLogits, RankItems, SampledSoftmax, SampledSoftmaxGrad};
use super::{At, Entries, Entry, Facts, Lists, Memory, Misfit, Payload, Peers, Phase, Results, Transfer};
use crate::signature::{OperandType, index, real};

impl<'a> Entry<'a> for BceWithLogits<'a> {
    fn facts(&self) -> Facts<'a> {
        Facts {
            loss: Some(*self.normalize),
            ..Facts::model(
                Training,
                &[ReadsBatch, AddsLoss],
                Results::FRESH,
                Lists::written(&[0]),
                Flops::None,
                Memory::Once,
            )
        }
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.count(2, 2)?;
        let (rows, columns) = o.real(0)?;
        if columns != 1 {
            return Err(Misfit::relation(format!("logits must have one column, have {columns}")));
        }
        o.read(1, OperandType::Labels { rows })?;
        o.write(0, real(ONE, 1))?;
        o.write(1, real(rows, 1))
    }
}

impl<'a> Entry<'a> for SampledSoftmax<'a> {
    fn facts(&self) -> Facts<'a> {
        let flops = Product(2.0, At::Written(1), At::Read(0));
        Facts {
            entries: Some(Entries { rows: At::Read(1), inverse: &[2, 3] }),
            loss: Some(*self.normalize),
            in_range: self.temperature.is_finite()
                && *self.temperature > 0.0
                && (1..=1 << 20).contains(self.negatives),
            ..Facts::model(
                Training,
                &[AddsLoss],
                Results::FRESH,
                Lists::written(&[0, 1]),
                flops,
                Memory::Once,
            )
        }
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        let negatives = *self.negatives;
        o.count(4, 2)?;
        let ((rows, dim), (_, row_dim)) = (o.real(0)?, o.real(1)?);
        token_group(rows)?;
        if dim != row_dim {
            return Err(Misfit::relation(format!("h has {dim} columns, the rows have {row_dim}")));
        }
        o.read(2, index(rows, 1))?;
        o.read(3, index(rows, negatives))?;
        o.write(0, real(ONE, 1))?;
        o.write(1, real(rows, 1 + negatives))
    }
}

impl<'a> Entry<'a> for SampledSoftmaxGrad<'a> {
    fn facts(&self) -> Facts<'a> {
        let flops = Product(4.0, At::Read(4), At::Read(0));
        Facts {
            entries: Some(Entries { rows: At::Written(1), inverse: &[2, 3] }),
            ..Facts::model(Training, &[], Results::adding(&[0, 1]), Lists::read(&[4]), flops, Memory::Once)
        }
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        let negatives = *self.negatives;
        o.count(5, 2)?;
        let ((rows, dim), (entries, row_dim)) = (o.real(0)?, o.real(1)?);
        if dim != row_dim {
            return Err(Misfit::relation(format!("h has {dim} columns, the rows have {row_dim}")));
        }
        o.read(2, index(rows, 1))?;
        o.read(3, index(rows, negatives))?;
        o.read(4, real(rows, 1 + negatives))?;
        o.write(0, real(rows, dim))?;
        o.write(1, real(entries, dim))
    }
}

impl<'a> Entry<'a> for RankItems<'a> {
    fn facts(&self) -> Facts<'a> {
        Facts {
            phase: Phase::Evaluation,
            // Queries, scores of targets, numbers of better rows.
            transfer: Some(Transfer { peers: Peers::Everyone, payload: Payload::Ranks, rounds: 3 }),
            ..Facts::model(
                Evaluation,
                &[ReadsBatch, ReadsTable, Ranks],
                Results::FRESH,
                Lists::NONE,
                Flops::None,
                Memory::Once,
            )
        }
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.count(3, 0)?;
        let ((rows, columns), g) = (o.real(0)?, o.offsets(1)?);
        match o.reads[2] {
            OperandType::Table { dim, .. } if dim == columns && rows == tokens(g) => Ok(()),
            other => Err(Misfit::relation(format!(
                "h must have the columns of the table and a row per token, table is {other}"
            ))),
        }
    }
}
