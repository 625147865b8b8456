//! Samples on their way to the ranks that work on them: lengths to everyone, a plan, samples. All at home.

use super::Effect::{AssignsBatch, ReadsBatch};
use super::operands::{Context, Operands};
use super::table::entry::{Assign, Dispatch, ShareLengths};
use super::{
    At, Entry, Facts, Flops, Learns, Lists, Memory, Misfit, Of, Payload, Peers, Phase, Programs, Results,
    Runs, Scope, Sizes, Transfer,
};
use crate::operand::Extent;
use crate::signature::{OperandType, index};

/// What the three have in common: they come before everything else that is done with a batch of training.
const FACTS: Facts<'static> = Facts {
    phase: Phase::Balance,
    runs: Runs::Host,
    programs: Programs::Training,
    transfer: None,
    effects: &[],
    results: Results::FRESH,
    lists: Lists::NONE,
    of: Of::NONE,
    learns: Learns::NOTHING,
    scope: Scope::Batch,
    entries: None,
    loss: None,
    in_range: true,
    flops: Flops::None,
    memory: Memory::Once,
};

/// Lengths of all samples of a batch, a column for each group; of a batch without sequences one that says nothing.
fn lengths(cx: &Context<'_>) -> OperandType {
    index(Extent::Fixed(cx.batch), cx.groups.max(1))
}

/// The rank and the microbatch of all samples of a batch.
fn assignment(cx: &Context<'_>) -> OperandType {
    index(Extent::Fixed(cx.batch), 2)
}

impl<'a> Entry<'a> for ShareLengths {
    fn facts(&self) -> Facts<'a> {
        Facts {
            runs: Runs::Link,
            transfer: Some(Transfer { peers: Peers::Everyone, payload: Payload::Lengths, rounds: 1 }),
            effects: &[ReadsBatch],
            ..FACTS
        }
    }
    fn operands(&self, o: &Operands<'_>, cx: &Context<'_>) -> Result<(), Misfit> {
        o.count(cx.groups as usize, 1)?;
        for g in 0..cx.groups {
            o.read(g as usize, OperandType::Offsets { lengths: g })?;
        }
        o.write(0, lengths(cx))
    }
}

impl<'a> Entry<'a> for Assign {
    fn facts(&self) -> Facts<'a> {
        Facts { learns: Learns { sizes: Sizes::Assigned, host_sync: true }, ..FACTS }
    }
    fn operands(&self, o: &Operands<'_>, cx: &Context<'_>) -> Result<(), Misfit> {
        o.count(1, 1)?;
        o.read(0, lengths(cx))?;
        o.write(0, assignment(cx))
    }
}

impl<'a> Entry<'a> for Dispatch<'a> {
    fn facts(&self) -> Facts<'a> {
        Facts {
            runs: Runs::Link,
            transfer: Some(Transfer { peers: Peers::ToAssigned, payload: Payload::Samples, rounds: 1 }),
            effects: &[ReadsBatch, AssignsBatch],
            in_range: (0.0..=1.0).contains(self.moved),
            ..FACTS
        }
    }
    fn operands(&self, o: &Operands<'_>, cx: &Context<'_>) -> Result<(), Misfit> {
        o.count(1 + cx.inputs as usize, 0)?;
        o.read(0, assignment(cx))?;
        for (i, r) in o.reads.iter().enumerate().skip(1) {
            if !matches!(r, OperandType::Ids { .. } | OperandType::Dense { .. } | OperandType::Labels { .. })
            {
                return Err(Misfit::operand(At::Read(i), "an input", Some(r)));
            }
        }
        Ok(())
    }
}
