//! Dependencies of a program that runs in list order, step after step.
//!
//! Derived from what operations read and write: a read waits for the writes of its place, a write for earlier reads
//! and writes of its place and of what lived in its slot before. The list is walked twice, so that the second round
//! finds the dependencies on the step before (distance 1).

use std::collections::BTreeMap;

use fs_schedule::op::{Dep, Element, Operand, Place};
use fs_schedule::{Action, Program};

/// Something that operations can conflict over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Resource {
    Slot(Element, u32),
    Parameter(u32),
    Gradient(u32),
    Table(u32),
    Batch,
}

/// Who used a resource since it was last taken over: instances are numbered through both rounds.
#[derive(Debug, Default, Clone)]
struct Users {
    occupant: Option<u32>,
    writers: Vec<usize>,
    readers: Vec<usize>,
}

/// Fills in [`fs_schedule::Op::deps`].
pub(super) fn add(program: &mut Program) {
    let n = program.ops.len();
    let mut users: BTreeMap<Resource, Users> = BTreeMap::new();
    for instance in 0..2 * n {
        let op = &program.ops[instance % n];
        let mut deps: Vec<usize> = Vec::new();
        for operand in &op.reads {
            let (resource, _) = resource(program, operand);
            let u = users.entry(resource).or_default();
            deps.extend(&u.writers);
            u.readers.push(instance);
        }
        if !matches!(op.action, Action::LoadBatch) {
            // Sizes, and keys of samples and tokens, belong to the batch.
            let u = users.entry(Resource::Batch).or_default();
            deps.extend(&u.writers);
            u.readers.push(instance);
        }
        let loads = matches!(op.action, Action::LoadBatch).then_some((Resource::Batch, None, false));
        let writes = op.writes.iter().map(|w| {
            let (r, occupant) = resource(program, w);
            (r, occupant, w.columns.is_some() || w.accumulate)
        });
        for (resource, occupant, partial) in writes.chain(loads) {
            let u = users.entry(resource).or_default();
            let same = occupant.is_some()
                && u.occupant == occupant
                && !u.writers.iter().all(|w| w / n < instance / n);
            deps.extend(u.readers.iter().filter(|r| **r != instance));
            if same && partial {
                deps.extend(&u.writers);
                u.writers.push(instance);
            } else {
                deps.extend(&u.writers);
                *u = Users { occupant, writers: vec![instance], readers: Vec::new() };
            }
        }
        if instance >= n {
            let mut deps: Vec<Dep> = deps
                .iter()
                .filter(|d| **d != instance)
                .map(|d| Dep { op: (d % n) as u32, distance: u32::from(*d < n) })
                .collect();
            deps.sort_unstable();
            deps.dedup();
            program.ops[instance % n].deps = deps;
        }
    }
}

fn resource(program: &Program, operand: &Operand) -> (Resource, Option<u32>) {
    match operand.place {
        Place::Buffer(b) => {
            let buffer = &program.buffers[b as usize];
            (Resource::Slot(buffer.element, buffer.slot), Some(b))
        }
        Place::Parameter(p) => (Resource::Parameter(p), None),
        Place::Gradient(g) => (Resource::Gradient(g), None),
        Place::Table(t) => (Resource::Table(t), None),
        Place::Input(_) | Place::Lengths(_) => (Resource::Batch, None),
    }
}
