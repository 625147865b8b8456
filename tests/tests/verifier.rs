//! The schedule verifier catches corrupted schedules: each kind of corruption by its own rule, on every example.

use std::path::PathBuf;

use fs_schedule::op::{Dep, Element, Extent, Operand, Place};
use fs_schedule::verify::verify;
use fs_schedule::{Action, Duration, Schedule, Strategy, Symbol};

fn examples() -> Vec<Schedule> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples");
    ["movielens.fs", "ranking.fs", "dlrm.fs"]
        .iter()
        .map(|name| {
            let program = fs_dsl::load(&root.join(name)).program.expect("examples check");
            fs_compiler::compile(&program, Strategy::Serial, 2).expect("examples compile").schedule
        })
        .collect()
}

/// Position of the first operation that fits.
fn find(s: &Schedule, fits: impl Fn(&Action) -> bool) -> usize {
    s.train.ops.iter().position(|op| fits(&op.action)).expect("the operation is there")
}

/// The first operation that reads a buffer, with the position of a same-step dependency on its writer.
fn reader_and_writer(s: &Schedule) -> (usize, usize) {
    let writes = |i: usize, place: Place| s.train.ops[i].writes.iter().any(|w| w.place == place);
    for (i, op) in s.train.ops.iter().enumerate().rev() {
        for o in op.reads.iter().filter(|o| matches!(o.place, Place::Buffer(_))) {
            let direct = |d: &Dep| d.distance == 0 && writes(d.op as usize, o.place);
            if let Some(at) = op.deps.iter().position(direct) {
                return (i, at);
            }
        }
    }
    panic!("some operation reads a buffer");
}

type Mutation = (&'static str, &'static str, fn(&mut Schedule));

/// Name, rule that must catch it, corruption.
const MUTATIONS: &[Mutation] = &[
    ("another version", "version", |s| s.version = 99),
    ("another format", "version", |s| s.format = "chakra".into()),
    ("no samples in a batch", "settings", |s| s.settings.batch = 0),
    ("no ranks", "settings", |s| s.ranks = 0),
    ("no steps", "settings", |s| s.settings.duration = Duration::Steps(0)),
    ("a table without rows", "tables", |s| s.tables[0].rows = 0),
    ("an infinite initial value", "tables", |s| {
        s.tables[0].init = fs_schedule::Init::Constant(f64::INFINITY);
    }),
    ("two parameters of one name", "tables", |s| s.parameters[1].name = s.parameters[0].name.clone()),
    ("an exchange of a table that is not there", "tables", |s| s.exchanges[0].table = 77),
    ("a sequence of a group that is not there", "inputs", |s| {
        s.inputs[0].kind = fs_schedule::InputKind::TokenLabel { lengths: 99 };
    }),
    ("a group of empty sequences", "inputs", |s| s.lengths[0].max = 0),
    ("an operand that is not there", "indices", |s| {
        let at = find(s, |a| matches!(a, Action::Linear { .. }));
        s.train.ops[at].reads[0] = Operand::buffer(9999);
    }),
    ("columns outside of a buffer", "indices", |s| {
        let at = find(s, |a| matches!(a, Action::Linear { .. }));
        s.train.ops[at].reads[0].columns = Some((0, 1 << 20));
    }),
    ("a buffer with rows of an unknown group", "indices", |s| {
        s.train.buffers[0].rows = Extent::Symbol(Symbol::Tokens(99));
    }),
    ("a dependency on nothing", "indices", |s| s.train.ops[3].deps.push(Dep { op: 9999, distance: 0 })),
    ("a missing operand", "operands", |s| {
        let at = find(s, |a| matches!(a, Action::Linear { .. }));
        s.train.ops[at].reads.pop();
    }),
    ("a weight of another layer", "operands", |s| {
        let layers = |op: &&mut fs_schedule::Op| matches!(op.action, Action::Linear { .. });
        s.train.ops.iter_mut().filter(layers).nth(1).expect("a second layer").reads[1] =
            Operand::new(Place::Parameter(0));
    }),
    ("a result of another type", "operands", |s| {
        let at = find(s, |a| matches!(a, Action::Unique { .. }));
        let Place::Buffer(b) = s.train.ops[at].writes[0].place else { panic!("entries are a buffer") };
        s.train.buffers[b as usize].element = Element::Real;
    }),
    ("two operations of one name", "names", |s| s.train.ops[2].name = s.train.ops[1].name.clone()),
    ("a dependency on a later operation", "order", |s| {
        let last = s.train.ops.len() as u32 - 1;
        s.train.ops[1].deps.push(Dep { op: last, distance: 0 });
    }),
    ("a dependency twice", "order", |s| {
        let op = s.train.ops.iter_mut().find(|o| !o.deps.is_empty()).expect("dependencies");
        op.deps.push(op.deps[0]);
    }),
    ("an operation that overwrites what it reads", "writes", |s| {
        let at = find(s, |a| matches!(a, Action::Unary { .. }));
        s.train.ops[at].writes = s.train.ops[at].reads.clone();
    }),
    ("an addition by an operation that overwrites", "writes", |s| {
        let at = find(s, |a| matches!(a, Action::Linear { .. }));
        s.train.ops[at].writes[0].accumulate = true;
    }),
    ("a dropped dependency on the writer of an operand", "fresh", |s| {
        let (op, _) = reader_and_writer(s);
        s.train.ops[op].deps.retain(|d| d.distance > 0);
    }),
    ("an addition to nothing", "fresh", |s| {
        let at = find(s, |a| matches!(a, Action::LinearGradInput));
        s.train.ops[at].writes[0].accumulate = true;
    }),
    ("a lifetime that ends too early", "storage", |s| {
        let b = s.train.buffers.iter_mut().find(|b| b.last > b.first).expect("a buffer with a life");
        b.last -= 1;
    }),
    ("two living buffers in one slot", "storage", |s| {
        let slot_of = |b: &fs_schedule::op::Buffer| (b.element, b.slot);
        let buffers = &s.train.buffers;
        let (i, j) = (0..buffers.len())
            .flat_map(|i| (0..i).map(move |j| (i, j)))
            .find(|(i, j)| {
                let (a, b) = (&buffers[*i], &buffers[*j]);
                a.element == b.element && slot_of(a) != slot_of(b) && a.first <= b.last && b.first <= a.last
            })
            .expect("two buffers that live at once");
        s.train.buffers[i].slot = s.train.buffers[j].slot;
    }),
    ("an operation on the batch before it is loaded", "batch", |s| {
        let at = find(s, |a| matches!(a, Action::Unique { .. }));
        s.train.ops[at].deps.retain(|d| d.distance > 0);
    }),
    ("two batches in a step", "frame", |s| {
        let mut load = s.train.ops[0].clone();
        load.name = "again".into();
        s.train.ops.push(load);
    }),
    ("a gradient that is not reduced", "frame", |s| {
        let at = find(s, |a| matches!(a, Action::AllReduce));
        s.train.ops[at].reads.pop();
        s.train.ops[at].writes.pop();
    }),
    ("a parameter updated with another's gradient", "operands", |s| {
        let at = find(s, |a| matches!(a, Action::DenseUpdate));
        s.train.ops[at].writes.reverse();
    }),
    ("gradients sent twice", "exchange", |s| {
        let at = find(s, |a| matches!(a, Action::AllToAllGrads { .. }));
        let mut again = s.train.ops[at].clone();
        again.name = "again".into();
        again.deps.push(Dep { op: at as u32, distance: 0 });
        again.deps.sort();
        s.train.ops.push(again);
    }),
];

#[test]
fn examples_are_valid() {
    for s in examples() {
        assert_eq!(verify(&s), vec![], "{}", s.model);
    }
}

#[test]
fn every_corruption_is_caught_by_its_rule() {
    for s in examples() {
        for (name, rule, corrupt) in MUTATIONS {
            let mut bad = s.clone();
            corrupt(&mut bad);
            assert_ne!(bad, s, "{}: {name} changes something", s.model);
            let violations = verify(&bad);
            assert!(
                violations.iter().any(|v| v.rule == *rule),
                "{}: {name} must break `{rule}`, breaks {violations:?}",
                s.model
            );
        }
    }
}

#[test]
fn text_round_trips_and_every_changed_byte_is_noticed() {
    let path = std::path::Path::new("s.json");
    for s in examples() {
        let text = fs_schedule::to_text(&s);
        let again = fs_schedule::file::parse(path, text.as_bytes(), true).expect("a written schedule loads");
        assert_eq!(fs_schedule::to_text(&again), text, "same input, same bytes");
        // A prime stride visits every kind of place in the text.
        for at in (0..text.len()).step_by(211) {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'7' { b'8' } else { b'7' };
            assert!(fs_schedule::file::parse(path, &bytes, true).is_err(), "byte {at} of {}", s.model);
        }
        for cut in [0, 1, text.len() / 2, text.len() - 2] {
            assert!(fs_schedule::file::parse(path, &text.as_bytes()[..cut], true).is_err(), "cut at {cut}");
        }
    }
}
