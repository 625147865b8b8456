//! Schedules made to hurt the verifier: each ends in violations, soon, whatever their counts.

use std::path::Path;
use std::time::{Duration, Instant};

use fs_schedule::verify::{Violation, verify};
use fs_schedule::*;
use fs_schedule::{Engine, LoadError, Schedule, Strategy};
use fs_tests::schedules::{Recipe, build};

fn base() -> Schedule {
    build(&Recipe::new(Strategy::Pec, Some(1), 1))
}

/// Unoptimised builds on busy machines take long; a hang takes longer.
fn soon(name: &str, s: &Schedule) -> Vec<Violation> {
    let start = Instant::now();
    let violations = verify(s);
    assert!(start.elapsed() < Duration::from_mins(1), "{name} took {:?}", start.elapsed());
    assert!(!violations.is_empty(), "{name} is valid");
    assert!(violations.iter().all(|v| v.message.len() < 10_000), "{name}: long messages");
    assert!(violations.len() < 1000, "{name}: {} violations", violations.len());
    violations
}

fn broken(name: &str, s: &Schedule, rule: &str) {
    let violations = soon(name, s);
    assert!(
        violations.iter().any(|v| v.rule == rule),
        "{name} must break `{rule}`: {:?}",
        violations.first()
    );
}

fn copies(s: &mut Schedule, count: usize, fits: impl Fn(&Action) -> bool, change: impl Fn(&mut Op, usize)) {
    let at = s.train.ops.iter().position(|op| fits(&op.action)).expect("such an operation");
    let op = s.train.ops[at].clone();
    for n in 0..count {
        let mut new = Op { name: format!("{} {n}", op.name), start: 1 << 50, ..op.clone() };
        change(&mut new, n);
        s.train.ops.push(new);
    }
}

#[test]
fn many_users_of_one_buffer() {
    let mut s = base();
    copies(&mut s, 30_000, |a| matches!(a, Action::ExpandGrad), |op, _| op.writes[0].accumulate = true);
    soon("30,000 additions into one buffer", &s);
    let mut s = base();
    copies(&mut s, 30_000, |a| matches!(a, Action::Linear { .. }), |_, _| {});
    soon("30,000 overwrites of one buffer", &s);
    // None of these covers the one before, so each has to do with all others.
    let mut s = base();
    copies(
        &mut s,
        30_000,
        |a| matches!(a, Action::Add),
        |op, n| {
            let columns = Some([(0, 3), (1, 4)][n % 2]);
            op.reads.iter_mut().chain(&mut op.writes).for_each(|o| o.columns = columns);
        },
    );
    broken("30,000 writes that overlap", &s, "limits");
}

#[test]
fn many_lookups_and_updates() {
    let mut s = base();
    copies(&mut s, 5_000, |a| matches!(a, Action::Gather { .. }), |_, _| {});
    copies(&mut s, 5_000, |a| matches!(a, Action::Apply { .. }), |_, _| {});
    broken("5,000 lookups and updates of a class", &s, "exchange");
}

#[test]
fn copies_of_copies() {
    let mut s = base();
    let rows = s.train.ops.iter().find(|op| matches!(op.action, Action::Expand)).expect("a lookup").reads[0];
    let Place::Buffer(first) = rows.place else { panic!("rows are a buffer") };
    let template = s.train.buffers[first as usize].clone();
    let mut from = first;
    for depth in 0..60 {
        let to = s.train.buffers.len() as u32;
        s.train.buffers.push(Buffer { slot: 100 + depth, ..template.clone() });
        for n in 0..60 {
            let op =
                s.train.ops.iter().find(|op| matches!(op.action, Action::Expand)).expect("a lookup").clone();
            s.train.ops.push(Op {
                name: format!("copy {depth} {n}"),
                action: Action::Copy,
                reads: vec![Operand::buffer(from)],
                writes: vec![Operand::buffer(to)],
                start: 1 << 50,
                ..op
            });
        }
        from = to;
    }
    copies(&mut s, 1, |a| matches!(a, Action::Expand), |op, _| op.reads[0] = Operand::buffer(from));
    soon("60 copies of 60 copies of ...", &s);
}

#[test]
fn tangled_waits() {
    let mut s = base();
    let n = s.train.ops.len() as u32;
    for (i, op) in (0..).zip(&mut s.train.ops) {
        op.priority = (i % 8) as i32;
        op.deps = (0..n).map(|x| Dep { op: x, distance: 1 + (x * 7 + i) % 5 }).collect();
    }
    soon("everything waits for everything", &s);
    let mut s = base();
    s.train.ops.iter_mut().for_each(|op| op.deps.clear());
    soon("nothing waits", &s);
    let mut s = base();
    copies(
        &mut s,
        300_000,
        |a| matches!(a, Action::Zero | Action::Add),
        |op, n| op.priority = (n % 64) as i32,
    );
    broken("more clocks than memory", &s, "limits");
}

type Change = fn(&mut Schedule);

#[test]
fn extreme_numbers() {
    let extremes: [(&str, Change); 9] = [
        ("stages", |s| s.train.ops.iter_mut().for_each(|op| op.stage = i32::MIN)),
        ("priorities", |s| s.train.ops[0].priority = i32::MAX),
        ("distances", |s| s.train.ops[5].deps = vec![Dep { op: 0, distance: u32::MAX }]),
        ("copies", |s| s.train.buffers[0].copies = u32::MAX),
        ("rows", |s| s.train.buffers[0].rows = Extent::Fixed(u32::MAX)),
        ("columns", |s| s.train.buffers[0].columns = u32::MAX),
        ("lives", |s| s.train.buffers[0].last = u32::MAX),
        ("microbatches", |s| s.settings.microbatches = u32::MAX),
        ("lookahead", |s| s.exchanges[0].lookahead = Some(u32::MAX)),
    ];
    for (name, change) in extremes {
        let mut s = base();
        change(&mut s);
        soon(name, &s);
    }
    let mut s = base();
    s.train.in_flight = u32::MAX;
    soon("in flight", &s);
    let mut s = base();
    s.train.ops.clear();
    soon("no operations", &s);
    let mut s = base();
    s.engines = vec![Engine::Host; 1 << 20];
    soon("engines", &s);
}

/// Pairs of so many operands are more than columns can number.
#[test]
fn more_pairs_than_columns() {
    let mut s = base();
    let hidden =
        s.train.ops.iter().find(|op| matches!(op.action, Action::Linear { .. })).expect("a layer").clone();
    let mut op = Op { name: "pairs".into(), action: Action::DotInteraction, start: 1 << 50, ..hidden };
    op.reads = vec![op.writes[0]; 65_537];
    op.writes = vec![Operand::buffer(s.train.buffers.len() as u32)];
    let like = s.train.buffers[0].clone();
    // 65,537 * 65,536 / 2 is 32,768 more than 2^31 in 32 bits that wrap.
    s.train.buffers.push(Buffer { element: Element::Real, columns: 32_768, ..like });
    s.train.ops.push(op);
    broken("65,537 operands of a dot interaction", &s, "operands");
}

/// Nesting and size are refused before they cost anything.
#[test]
fn files_that_are_too_deep_or_too_large() {
    let path = Path::new("s.json");
    let deep = format!("{{\"format\": {}{}}}", "[".repeat(1 << 20), "]".repeat(1 << 20));
    assert!(matches!(fs_schedule::file::parse(path, deep.as_bytes(), false), Err(LoadError::Format { .. })));
    let folder = tempfile::tempdir().expect("a folder");
    let large = folder.path().join("large.json");
    let file = std::fs::File::create(&large).expect("a file");
    // Sparse: costs no disk.
    file.set_len(fs_schedule::file::MOST_BYTES + 1).expect("a long file");
    assert!(matches!(fs_schedule::read(&large), Err(LoadError::Large { .. })));
}
