//! Rule `limits`: how large a schedule may be, so that a hostile file costs bounded time and memory.
//!
//! Checked before anything else: the other rules allocate and loop in proportion to these numbers.

use std::collections::BTreeSet;

use super::Report;
use crate::program::{Program, Schedule};

/// Operations or buffers of a program.
pub(crate) const MOST_OPS: usize = 1 << 19;
/// Operands and dependencies of a program.
pub(crate) const MOST_LINKS: usize = 1 << 22;
/// Tables, inputs, length groups, exchanges.
pub(crate) const MOST_DECLARATIONS: usize = 1 << 17;
/// Dense parameters.
pub(crate) const MOST_PARAMETERS: usize = 1 << 19;
/// Queues (engines times priorities) of a program.
pub(crate) const MOST_QUEUES: usize = 64;
/// Entries of all vector clocks of a program.
pub(crate) const MOST_CLOCKS: usize = 1 << 24;
/// Bytes of a name: messages repeat names.
pub(crate) const MOST_NAME: usize = 1 << 10;
/// Comparisons between the users of shared storage.
pub(crate) const MOST_STEPS: u64 = 1 << 28;

pub(super) fn check(s: &Schedule, r: &mut Report) {
    let declared = [
        ("tables", s.tables.len(), MOST_DECLARATIONS),
        ("inputs", s.inputs.len(), MOST_DECLARATIONS),
        ("length groups", s.lengths.len(), MOST_DECLARATIONS),
        ("exchanges", s.exchanges.len(), MOST_DECLARATIONS),
        ("parameters", s.parameters.len(), MOST_PARAMETERS),
    ];
    for (what, count, most) in declared {
        r.check(count <= most, "limits", || format!("there are {count} {what}, at most {most} are allowed"));
    }
    let names = (s.tables.iter().map(|t| &t.name))
        .chain(s.inputs.iter().map(|i| &i.name))
        .chain(s.lengths.iter().map(|l| &l.name))
        .chain(s.parameters.iter().map(|p| &p.name))
        .chain([&s.model])
        .chain(s.prediction.iter().map(|p| &p.cluster));
    short_names(names, r);
    super::reference::limits(s, r);
    for p in std::iter::once(&s.train).chain(&s.evaluation) {
        program(p, r);
    }
}

fn short_names<'a>(names: impl Iterator<Item = &'a String>, r: &mut Report) {
    for name in names {
        r.check(name.len() <= MOST_NAME, "limits", || {
            let start: String = name.chars().take(40).collect();
            format!("the name `{start}...` has {} bytes, at most {MOST_NAME} are allowed", name.len())
        });
    }
}

fn program(p: &Program, r: &mut Report) {
    let queues: BTreeSet<_> = p.ops.iter().map(|op| (op.engine, op.priority)).collect();
    let (mut operands, mut deps, mut listed) = (0, 0, 0);
    for op in &p.ops {
        operands += op.reads.len() + op.writes.len();
        deps += op.deps.len();
        listed += op.action.exchanges().len();
    }
    let counts = [
        ("operations", p.ops.len(), MOST_OPS),
        ("buffers", p.buffers.len(), MOST_OPS),
        ("operands", operands, MOST_LINKS),
        ("dependencies", deps, MOST_LINKS),
        ("exchanges in collectives", listed, MOST_LINKS),
        ("queues", queues.len(), MOST_QUEUES),
        ("operations times queues", p.ops.len().saturating_mul(queues.len()), MOST_CLOCKS),
    ];
    for (what, count, most) in counts {
        r.check(count <= most, "limits", || {
            format!("a program has {count} {what}, at most {most} are allowed")
        });
    }
    short_names(p.ops.iter().map(|op| &op.name).chain(p.buffers.iter().map(|b| &b.name)), r);
}
