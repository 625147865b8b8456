//! The frame of a step: the batch, dense gradients summed over ranks, dense parameters updated.

use super::Effect::{LoadsBatch, ReadsGradient, WritesGradient, WritesParameter};
use super::operands::{Context, Operands};
use super::table::entry::{AllReduce, DenseUpdate, LoadBatch};
use super::{
    At, Entry, Facts, Flops, Learns, Lists, Memory, Misfit, Of, Payload, Peers, Phase, Programs, Results,
    Runs, Scope, Transfer,
};
use crate::signature::OperandType;

impl<'a> Entry<'a> for LoadBatch {
    fn facts(&self) -> Facts<'a> {
        Facts {
            phase: Phase::Load,
            runs: Runs::Host,
            programs: Programs::Both,
            transfer: None,
            effects: &[LoadsBatch],
            results: Results::FRESH,
            lists: Lists::NONE,
            of: Of::NONE,
            // Lengths come with the batch: the host has them before.
            learns: Learns::NOTHING,
            scope: Scope::Batch,
            entries: None,
            loss: None,
            in_range: true,
            flops: Flops::None,
            memory: Memory::Once,
        }
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.count(0, 0)
    }
}

impl<'a> Entry<'a> for AllReduce {
    fn facts(&self) -> Facts<'a> {
        Facts {
            phase: Phase::DenseUpdate,
            runs: Runs::Link,
            programs: Programs::Training,
            // Parts go to who sums them, sums to everyone.
            transfer: Some(Transfer { peers: Peers::Reduce, payload: Payload::Sums, rounds: 2 }),
            effects: &[ReadsGradient, WritesGradient],
            results: Results { adds: &[], gradients: &[], in_place: true },
            lists: Lists::NONE,
            of: Of::NONE,
            learns: Learns::NOTHING,
            scope: Scope::Entries,
            entries: None,
            loss: None,
            in_range: true,
            flops: Flops::None,
            memory: Memory::Once,
        }
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.count(o.reads.len(), o.reads.len())?;
        for (i, r) in o.reads.iter().enumerate() {
            match r {
                OperandType::Gradient { .. } => o.write(i, *r)?,
                other => return Err(Misfit::operand(At::Read(i), "a gradient", Some(other))),
            }
        }
        Ok(())
    }
}

impl<'a> Entry<'a> for DenseUpdate {
    fn facts(&self) -> Facts<'a> {
        Facts {
            phase: Phase::DenseUpdate,
            runs: Runs::Compute,
            programs: Programs::Training,
            transfer: None,
            effects: &[ReadsGradient, WritesParameter],
            results: Results::FRESH,
            lists: Lists::NONE,
            of: Of::NONE,
            learns: Learns::NOTHING,
            scope: Scope::Batch,
            entries: None,
            loss: None,
            in_range: true,
            flops: Flops::None,
            memory: Memory::UpdatedParameters,
        }
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.count(o.reads.len(), o.reads.len())?;
        for (i, r) in o.reads.iter().enumerate() {
            match *r {
                OperandType::Gradient { rows, columns } => {
                    o.write(i, OperandType::Parameter { rows, columns })?;
                }
                other => return Err(Misfit::operand(At::Read(i), "a gradient", Some(&other))),
            }
        }
        Ok(())
    }
}
