//! Between rows per entry of an exchange and values per token or sample: expansion, pooling, their gradients.

use super::Effect::ReadsBatch;
use super::Flops::{self, Each};
use super::Programs::{Both, Training};
use super::operands::{Context, Operands, SAMPLES, sent_rows, tokens};
use super::table::entry::{Expand, ExpandGrad, Pool, PoolGrad};
use super::{At, Entries, Entry, Facts, Lists, Memory, Misfit, Results};
use crate::signature::{index, real};

const TAKEN: Option<Entries> = Some(Entries { rows: At::Read(0), inverse: &[1] });
const SUMMED: Option<Entries> = Some(Entries { rows: At::Written(0), inverse: &[1] });

impl<'a> Entry<'a> for Expand {
    fn facts(&self) -> Facts<'a> {
        Facts {
            entries: TAKEN,
            ..Facts::model(Both, &[], Results::FRESH, Lists::NONE, Flops::None, Memory::Repeated)
        }
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.count(2, 1)?;
        let ((_, dim), (rows, per_row)) = (o.real(0)?, o.index(1)?);
        if per_row != 1 {
            return Err(Misfit::relation(format!("operand 1 must have one column, has {per_row}")));
        }
        o.write(0, real(rows, dim))
    }
}

impl<'a> Entry<'a> for ExpandGrad {
    fn facts(&self) -> Facts<'a> {
        let flops = Each(1.0, At::Written(0));
        Facts {
            entries: SUMMED,
            ..Facts::model(Training, &[], Results::adding(&[0]), Lists::NONE, flops, Memory::Once)
        }
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.count(2, 1)?;
        let ((rows, dim), inverse) = (o.real(0)?, o.index(1)?);
        if inverse != (rows, 1) {
            return Err(Misfit::relation("operands 0 and 1 must have the same rows"));
        }
        o.write(0, real(sent_rows(o.writes)?, dim))
    }
}

impl<'a> Entry<'a> for Pool<'a> {
    fn facts(&self) -> Facts<'a> {
        let flops = Each(1.0, At::Written(0));
        Facts {
            entries: TAKEN,
            ..Facts::model(Both, &[ReadsBatch], Results::FRESH, Lists::NONE, flops, Memory::Once)
        }
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.count(3, 1)?;
        let ((_, dim), g) = (o.real(0)?, o.offsets(2)?);
        o.read(1, index(tokens(g), 1))?;
        o.write(0, real(SAMPLES, dim))
    }
}

impl<'a> Entry<'a> for PoolGrad<'a> {
    fn facts(&self) -> Facts<'a> {
        let flops = Each(1.0, At::Written(0));
        Facts {
            entries: SUMMED,
            ..Facts::model(Training, &[ReadsBatch], Results::adding(&[0]), Lists::NONE, flops, Memory::Once)
        }
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.count(3, 1)?;
        let ((rows, dim), g) = (o.real(0)?, o.offsets(2)?);
        if rows != SAMPLES {
            return Err(Misfit::relation(format!("operand 0 must have a row per sample, has {rows}")));
        }
        o.read(1, index(tokens(g), 1))?;
        o.write(0, real(sent_rows(o.writes)?, dim))
    }
}
