//! In which order parts of instances have their turns, the same on all ranks.
//!
//! A transfer in chunks that an urgent one passes is several parts, as planned. Whoever has one link for all transfers
//! and takes what is ready first would take them in another order on another rank, and collectives would wait for each
//! other for ever; so transfers form one chain, in the order of their planned starts.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fs_schedule::Schedule;

use super::unroll::Instance;
use crate::viz::timeline::Timeline;

/// Uninterrupted work on an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    /// Nanoseconds from the start of the operation's step.
    pub start: u64,
    /// Nanoseconds.
    pub time: u64,
}

/// A part of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn {
    /// Which instance.
    pub instance: u32,
    /// Which of its parts.
    pub part: u32,
    /// A number of its own.
    pub tag: u32,
    /// It is a transfer between ranks, and waits for the one before.
    pub linked: bool,
}

/// Parts of each operation in the steady state.
pub(super) fn parts(s: &Schedule, timeline: &Timeline) -> Vec<Vec<Part>> {
    let mut parts: Vec<Vec<Part>> = vec![Vec::new(); s.train.ops.len()];
    for piece in timeline.lanes.iter().flat_map(|lane| &lane.pieces) {
        let start = (piece.start - f64::from(piece.step) * timeline.step).round().max(0.0) as u64;
        let time = ((piece.end - piece.start).round() as u64).max(1);
        parts[piece.op as usize].push(Part { start, time });
    }
    for (op, parts) in s.train.ops.iter().zip(&mut parts) {
        parts.sort_unstable_by_key(|p| p.start);
        // One that nothing interrupts is as planned.
        if parts.len() < 2 {
            *parts = vec![Part { start: op.start, time: op.time }];
        }
    }
    parts
}

/// All parts of all instances by their planned starts, each after all that it waits for. `linked`: which operations
/// are transfers between ranks; `step`: nanoseconds.
pub(super) fn turns(instances: &[Instance], parts: &[Vec<Part>], linked: &[bool], step: u64) -> Vec<Turn> {
    let mut waits: Vec<u32> = vec![0; instances.len()];
    let mut after: Vec<Vec<u32>> = vec![Vec::new(); instances.len()];
    for (i, instance) in instances.iter().enumerate() {
        for before in instance.data.iter().chain(&instance.order) {
            after[*before as usize].push(i as u32);
            waits[i] += 1;
        }
    }
    let planned = |instance: u32, part: u32| {
        let Instance { op, step: at, .. } = instances[instance as usize];
        Reverse((at * step + parts[op as usize][part as usize].start, instance, part))
    };
    let free = (0..instances.len() as u32).filter(|i| waits[*i as usize] == 0);
    let mut ready: BinaryHeap<_> = free.map(|i| planned(i, 0)).collect();
    let mut turns = Vec::with_capacity(instances.len());
    while let Some(Reverse((_, instance, part))) = ready.pop() {
        let op = instances[instance as usize].op as usize;
        turns.push(Turn { instance, part, tag: turns.len() as u32, linked: linked[op] });
        if part as usize + 1 < parts[op].len() {
            ready.push(planned(instance, part + 1));
            continue;
        }
        for next in &after[instance as usize] {
            let left = &mut waits[*next as usize];
            *left -= 1;
            if *left == 0 {
                ready.push(planned(*next, 0));
            }
        }
    }
    turns
}
