//! Samples on their way to the ranks that work on them: lengths to everyone, a plan, inputs of samples; and, where rows
//! are looked up for samples at home, what is made of rows on its way there, and its gradients on their way back.

use super::Effect::{AssignsBatch, ReadsBatch};
use super::operands::{Context, Operands, SAMPLES, tokens};
use super::table::entry::{Assign, Combine, CopyIds, Dispatch, DispatchRows, ShareLengths};
use super::{
    At, Entry, Facts, Flops, Learns, Lists, Memory, Misfit, Of, Payload, Peers, Phase, Programs, Results,
    Runs, Scope, Sizes, Transfer,
};
use crate::operand::Extent;
use crate::signature::{OperandType, id, index, real};
use crate::size::Symbol;

/// What the first three have in common: they come before everything else that is done with a batch of training.
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
pub(super) fn assignment(cx: &Context<'_>) -> OperandType {
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
        o.count(o.reads.len().clamp(2, 1 + cx.inputs as usize), 0)?;
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

/// Values of a microbatch's samples between where they are read and where they are worked on.
fn carries(peers: Peers, moved: f64) -> Facts<'static> {
    Facts {
        phase: Phase::Model,
        runs: Runs::Link,
        transfer: Some(Transfer { peers, payload: Payload::Values, rounds: 1 }),
        scope: Scope::Samples,
        in_range: (0.0..=1.0).contains(&moved),
        ..FACTS
    }
}

fn carried(o: &Operands<'_>, cx: &Context<'_>) -> Result<(), Misfit> {
    o.count(2, 1)?;
    o.read(0, assignment(cx))?;
    let (rows, columns) = o.real(1)?;
    if !matches!(rows, SAMPLES | Extent::Symbol(Symbol::Tokens(_))) {
        return Err(Misfit::relation(format!("operand 1 must have a row per sample or token, has {rows}")));
    }
    o.write(0, real(rows, columns))
}

impl<'a> Entry<'a> for DispatchRows<'a> {
    fn facts(&self) -> Facts<'a> {
        carries(Peers::ToAssigned, *self.moved)
    }
    fn operands(&self, o: &Operands<'_>, cx: &Context<'_>) -> Result<(), Misfit> {
        carried(o, cx)
    }
}

impl<'a> Entry<'a> for Combine<'a> {
    fn facts(&self) -> Facts<'a> {
        carries(Peers::FromAssigned, *self.moved)
    }
    fn operands(&self, o: &Operands<'_>, cx: &Context<'_>) -> Result<(), Misfit> {
        carried(o, cx)
    }
}

impl<'a> Entry<'a> for CopyIds {
    fn facts(&self) -> Facts<'a> {
        Facts {
            phase: Phase::InputDist,
            runs: Runs::Compute,
            effects: &[ReadsBatch],
            scope: Scope::Samples,
            ..FACTS
        }
    }
    fn operands(&self, o: &Operands<'_>, _: &Context<'_>) -> Result<(), Misfit> {
        o.count(1, 1)?;
        match o.reads[0] {
            OperandType::Ids { lengths, .. } => o.write(0, id(tokens(lengths), 1)),
            other => Err(Misfit::operand(At::Read(0), "ids of an input", Some(&other))),
        }
    }
}
