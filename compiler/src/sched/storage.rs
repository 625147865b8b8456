//! How many copies a buffer needs, and which buffers share memory.
//!
//! A buffer lives from the start of its first use to the end of its last, in planned time, uses by other batches
//! included. If that is longer than a step, batches overlap in it: it gets as many copies as there are batches at
//! once, and memory of its own. The others live within one step, modulo the initiation interval; those of one element type
//! that do not overlap there share a slot, chosen so that little memory is added. Whoever writes a buffer then waits for
//! whoever used its memory before; since that is earlier as planned, these relations never contradict others.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use fs_schedule::{Buffer, Element, Op, Place};

use super::freeze::Frozen;
use super::graph::{Edge, Why};

/// Uses of one buffer.
#[derive(Debug, Clone, Copy)]
struct Life<'a> {
    /// Operations with the batch offset of the buffer that they mean.
    uses: &'a [(u32, i32)],
    writers: &'a [u32],
    first: i64,
    last: i64,
}

/// Those of all buffers, one buffer's after the other's.
struct Lives {
    uses: Vec<(u32, i32)>,
    writers: Vec<u32>,
    /// By buffer: where its uses and its writers are, and how long it lives.
    of: Vec<([std::ops::Range<usize>; 2], i64, i64)>,
}

impl Lives {
    fn of(&self, buffer: usize) -> Life<'_> {
        let ([uses, writers], first, last) = &self.of[buffer];
        Life {
            uses: &self.uses[uses.clone()],
            writers: &self.writers[writers.clone()],
            first: *first,
            last: *last,
        }
    }
}

/// Storage of a program.
#[derive(Debug, Clone, Default)]
pub(crate) struct Storage {
    /// Copies of each buffer.
    pub copies: Vec<u32>,
    /// Slot of each buffer.
    pub slot: Vec<u32>,
    /// What waits for memory to be free.
    pub edges: Vec<Edge>,
    /// Bytes of all slots at the expected sizes.
    pub bytes: f64,
}

/// Operations with the buffers and batches that they use, and whether they write them.
fn operands(ops: &[Op]) -> impl Iterator<Item = (usize, usize, i32, bool)> {
    ops.iter().enumerate().flat_map(|(i, op)| {
        let operands = op.reads.iter().map(|o| (o, false)).chain(op.writes.iter().map(|o| (o, true)));
        operands.filter_map(move |(o, writes)| match o.place {
            Place::Buffer(b) => Some((i, b as usize, o.batch, writes)),
            _ => None,
        })
    })
}

fn lives(buffers: &[Buffer], ops: &[Op], time: &[u64], frozen: &Frozen) -> Lives {
    // Room for as many as there may be: a use twice by one operation is one.
    let mut most = vec![[0; 2]; buffers.len()];
    for (_, b, _, writes) in operands(ops) {
        most[b][0] += 1;
        most[b][1] += usize::from(writes);
    }
    let mut at = [0; 2];
    let of = most.iter().map(|most| {
        let empty = at.map(|at| at..at);
        (at[0], at[1]) = (at[0] + most[0], at[1] + most[1]);
        (empty, i64::MAX, i64::MIN)
    });
    let mut lives = Lives { of: of.collect(), uses: vec![(0, 0); at[0]], writers: vec![0; at[1]] };
    for (i, b, batch, writes) in operands(ops) {
        let ([used, wrote], first, last) = &mut lives.of[b];
        // An operation of batch m that means batch m + k uses the buffer k steps earlier in that batch's time.
        let at = frozen.position[i] - i64::from(batch) * frozen.ii;
        *first = (*first).min(at);
        *last = (*last).max(at + time[i] as i64);
        if lives.uses[used.clone()].last() != Some(&(i as u32, batch)) {
            lives.uses[used.end] = (i as u32, batch);
            used.end += 1;
        }
        if writes && lives.writers[wrote.clone()].last() != Some(&(i as u32)) {
            lives.writers[wrote.end] = i as u32;
            wrote.end += 1;
        }
    }
    lives
}

/// Of the uses of a buffer those that may be last: the latest of each queue, with the batches that they are behind.
fn ends(life: Life<'_>, frozen: &Frozen, queue: &[u16]) -> Vec<(u32, i32)> {
    // There are few queues.
    let mut last: Vec<(u16, i64, u32, i32)> = Vec::new();
    for (op, batch) in life.uses {
        let at = frozen.position[*op as usize] - i64::from(*batch) * frozen.ii;
        let queue = queue[*op as usize];
        match last.iter_mut().find(|other| other.0 == queue) {
            Some(known) if (at, *op) > (known.1, known.2) => *known = (queue, at, *op, *batch),
            Some(_) => {}
            None => last.push((queue, at, *op, *batch)),
        }
    }
    last.sort_unstable();
    last.into_iter().map(|(_, _, op, batch)| (op, batch)).collect()
}

/// Assigns copies and slots. `time`: of each operation until others may start; `bytes`: of each buffer at the expected sizes; `queue`: of each operation.
pub(crate) fn assign(
    buffers: &[Buffer],
    ops: &[Op],
    time: &[u64],
    frozen: &Frozen,
    queue: &[u16],
    bytes: &[f64],
) -> Storage {
    let lives = lives(buffers, ops, time, frozen);
    let mut s = Storage {
        copies: vec![1; buffers.len()],
        slot: vec![0; buffers.len()],
        edges: Vec::new(),
        bytes: 0.0,
    };
    let mut numbers: BTreeMap<Element, u32> = BTreeMap::new();
    let mut shared: Vec<usize> = Vec::new();
    for b in 0..buffers.len() {
        let life = lives.of(b);
        if life.uses.is_empty() {
            shared.push(b);
            continue;
        }
        let copies = (life.last - life.first + frozen.ii - 1).div_euclid(frozen.ii).max(1) as u32;
        s.copies[b] = copies;
        if copies == 1 {
            shared.push(b);
            continue;
        }
        s.slot[b] = number(&mut numbers, buffers[b].element);
        s.bytes += bytes[b] * f64::from(copies);
        reuse(&mut s.edges, &ends(life, frozen, queue), life.writers, copies as i32);
    }
    share(&mut s, &mut numbers, buffers, &lives, frozen, queue, bytes, shared);
    s
}

fn number(numbers: &mut BTreeMap<Element, u32>, element: Element) -> u32 {
    let n = numbers.entry(element).or_insert(0);
    *n += 1;
    *n - 1
}

/// Whoever writes waits for the last uses `distance` batches earlier.
fn reuse(edges: &mut Vec<Edge>, ends: &[(u32, i32)], writers: &[u32], distance: i32) {
    for (from, batch) in ends {
        for to in writers {
            let distance = distance + batch;
            if *from != *to || distance != 0 {
                edges.push(Edge { from: *from, to: *to, distance, why: Why::Memory });
            }
        }
    }
}

struct Slot {
    number: u32,
    size: f64,
    /// Start of its first occupant, end of its last, around the step.
    first: i64,
    free: i64,
    occupants: Vec<usize>,
}

/// How many free slots are looked at before a new one is made.
const TRIES: usize = 8;

fn share(
    s: &mut Storage,
    numbers: &mut BTreeMap<Element, u32>,
    buffers: &[Buffer],
    lives: &Lives,
    frozen: &Frozen,
    queue: &[u16],
    bytes: &[f64],
    mut list: Vec<usize>,
) {
    let ii = frozen.ii;
    let used = |b: usize| Some(lives.of(b)).filter(|life| !life.uses.is_empty());
    let begin = |b: usize| used(b).map_or(0, |life| life.first.rem_euclid(ii));
    let length = |b: usize| used(b).map_or(0, |life| life.last - life.first);
    list.sort_by_cached_key(|b| (begin(*b), *b));
    let mut slots: Vec<Slot> = Vec::new();
    // Slots in use by the end of their occupant, and free ones by size.
    let mut busy: BinaryHeap<Reverse<(i64, usize)>> = BinaryHeap::new();
    let mut free: BTreeSet<(Element, u64, usize)> = BTreeSet::new();
    for b in list {
        let (from, to) = (begin(b), begin(b) + length(b));
        while let Some(Reverse((end, slot))) = busy.peek().copied() {
            if end > from {
                break;
            }
            busy.pop();
            free.insert((buffers[slots[slot].occupants[0]].element, slots[slot].size as u64, slot));
        }
        let element = buffers[b].element;
        let size = bytes[b] as u64;
        // The smallest that is large enough, else the largest that is not.
        let above = free.range((element, size, 0)..=(element, u64::MAX, usize::MAX)).take(TRIES);
        let below = free.range((element, 0, 0)..(element, size, 0)).rev().take(TRIES);
        let key = above.chain(below).copied().find(|k| to <= slots[k.2].first + ii);
        let at = if let Some(key) = key {
            free.remove(&key);
            key.2
        } else {
            let number = number(numbers, element);
            slots.push(Slot { number, size: 0.0, first: from, free: 0, occupants: Vec::new() });
            slots.len() - 1
        };
        let slot = &mut slots[at];
        slot.size = slot.size.max(bytes[b]);
        slot.free = to;
        slot.occupants.push(b);
        s.slot[b] = slot.number;
        busy.push(Reverse((to, at)));
    }
    // Around the step, whoever comes next waits for the one before.
    for slot in &slots {
        s.bytes += slot.size;
        let used: Vec<Life<'_>> = slot.occupants.iter().filter_map(|b| used(*b)).collect();
        for (i, life) in used.iter().enumerate() {
            let next = used[(i + 1) % used.len()];
            let lap = |life: &Life<'_>| life.first.div_euclid(ii) as i32;
            let distance = lap(life) - lap(&next) + i32::from(i + 1 == used.len());
            reuse(&mut s.edges, &ends(*life, frozen, queue), next.writers, distance);
        }
    }
}

#[cfg(test)]
mod tests {
    use fs_schedule::{Action, Engine, Extent, Operand, Site};

    use super::*;

    fn buffer(element: Element) -> Buffer {
        Buffer {
            name: String::new(),
            element,
            rows: Extent::Fixed(1),
            columns: 2,
            microbatch: None,
            site: Site::Home,
            copies: 1,
            slot: 0,
            first: 0,
            last: 0,
        }
    }

    fn op(reads: &[Operand], writes: &[Operand]) -> Op {
        let mut op = Op::new("op", Action::Copy, Engine::Compute);
        (op.reads, op.writes) = (reads.to_vec(), writes.to_vec());
        op
    }

    fn frozen(position: &[i64]) -> Frozen {
        Frozen { ii: 10, position: position.to_vec(), stage: Vec::new(), order: Vec::new() }
    }

    fn edge(from: u32, to: u32, distance: i32) -> Edge {
        Edge { from, to, distance, why: Why::Memory }
    }

    /// Who reads two batches back holds a copy for two steps more; who reads the next batch's, less.
    #[test]
    fn other_batches_hold_copies() {
        let of = |batch| Operand { batch, ..Operand::buffer(0) };
        let half = |start| Operand { columns: Some((start, start + 1)), ..of(0) };
        let ops = [
            op(&[], &[half(0), half(1)]),
            op(&[of(0)], &[]),
            op(&[of(1)], &[]),
            op(&[of(-2)], &[]),
            op(&[of(0)], &[]),
        ];
        // Written at 0, read at 3, at 12 - 10, at 1 + 20 and at 4.
        let frozen = frozen(&[0, 3, 12, 1, 4]);
        let s = assign(&[buffer(Element::Index)], &ops, &[2; 5], &frozen, &[0, 1, 1, 2, 2], &[7.0]);
        assert_eq!(s.copies, [3], "23 ns of 10 ns each");
        assert!((s.bytes - 21.0).abs() < 1e-9, "{}", s.bytes);
        // The last of each queue, once: the writer itself, the reader at 3, the one two batches behind.
        assert_eq!(s.edges, [edge(0, 0, 3), edge(1, 0, 3), edge(3, 0, 1)]);
    }

    /// Lives within a step share a slot of the greater size, around the step.
    #[test]
    fn slots_are_shared_around_the_step() {
        let of = |b| Operand::buffer(b);
        let ops = [op(&[], &[of(0)]), op(&[of(0)], &[]), op(&[], &[of(1)]), op(&[of(1)], &[of(2)])];
        let all = [Element::Real, Element::Real, Element::Index].map(buffer);
        let s = assign(&all, &ops, &[2; 4], &frozen(&[0, 2, 4, 7]), &[0, 0, 0, 0], &[5.0, 6.0, 1.0]);
        assert_eq!((s.copies, s.slot), (vec![1; 3], vec![0, 0, 0]));
        assert!((s.bytes - 7.0).abs() < 1e-9, "{}", s.bytes);
        assert_eq!(s.edges, [edge(1, 2, 0), edge(3, 0, 1), edge(3, 3, 1)]);
    }
}
