//! Rows and gradients on their way, values of the model, storage: what is right in an unusual way, and what is wrong in
//! few.

use fs_compiler::{CompileOptions, compile_with};
use fs_schedule::{Action, Buffer, Engine, Op, Operand, Place, Schedule, Strategy};

use super::{Cases, Wrong};
use crate::mutations::{all, find, insert, remove};
use crate::schedules::{DIM, Recipe, build};

/// Two tables of one shape, of which one is drawn from; of a product's columns only those in the middle are used.
const TWO: &str = "model two {
  table items { rows 40  dim 8  optimizer sgd(lr: 0.1) }
  table others { rows 40  dim 8  optimizer sgd(lr: 0.1) }
  input history: ids(items) { max 6 }
  input seen: ids(others) like history
  input following: next(history)
  let a, b, c = split(linear(concat(lookup(history), lookup(seen)), 24), 3)
  loss sampled_softmax(b, items, following, negatives: 4, temperature: 0.1, similarity: cosine, normalize: tokens)
}
train { batch 8  steps 4  optimizer sgd(lr: 0.1) }";

const EXCHANGE: Wrong = Some(("exchange", ""));

/// All of these.
pub(super) fn flows(cases: &mut Cases) {
    for strategy in [Strategy::Serial, Strategy::Prefetch, Strategy::Pec] {
        let loaded = fs_dsl::check_text("two.fs", TWO);
        let rendered = fs_dsl::render(&loaded.diagnostics, &loaded.sources, false);
        let program = loaded.program.unwrap_or_else(|| panic!("{rendered}"));
        let two = compile_with(&program, &CompileOptions::new(strategy, 2)).expect("it compiles").schedule;
        assert!(two.train.ops.iter().any(|op| op.action == Action::Zero), "columns that nothing uses");
        cases.add(format!("columns that nothing uses, {strategy:?}"), &two, None, |_| {});
        let wrong = Some(("exchange", "which are not ids of table 0"));
        cases.add(format!("ids drawn for another table, {strategy:?}"), &two, wrong, |s| {
            for op in &mut s.train.ops {
                if let Action::DrawNegatives { table, .. } = &mut op.action {
                    *table = 1;
                }
            }
        });
    }
    copies(cases);
    gradients(cases);
    let serial = build(&Recipe::new(Strategy::Serial, None, 1));
    let gathered = find(&serial, |a| matches!(a, Action::Gather { .. })).expect("a lookup");
    let sent = find(&serial, |a| matches!(a, Action::AllToAllRows { .. })).expect("rows sent");
    cases.add("rows sent from beside where they were looked up", &serial, value("something else"), |s| {
        let Place::Buffer(b) = s.train.ops[gathered].writes[0].place else { return };
        s.train.buffers[b as usize].columns = 2 * DIM;
        s.train.ops[gathered].writes[0].columns = Some((0, DIM));
        s.train.ops[sent].reads[0].columns = Some((DIM, 2 * DIM));
    });
    slots(cases);
}

fn value(what: &'static str) -> Wrong {
    Some(("exchange", what))
}

/// Puts an operation in front of another one, which writes some columns of a new buffer with rows like another's.
fn put(
    s: &mut Schedule,
    at: usize,
    action: Action,
    from: &[Operand],
    columns: u32,
    to: (u32, u32),
) -> Operand {
    let like = s.train.ops[find(s, |a| matches!(a, Action::Expand)).expect("a lookup")].reads[0].place;
    let Place::Buffer(like) = like else { panic!("rows are a buffer") };
    let (number, like) = (s.train.buffers.len() as u32, s.train.buffers[like as usize].clone());
    let name = format!("put{number}");
    let ops = &s.train.ops;
    let last = (0..ops.len()).max_by_key(|i| (-ops[*i].stage, *i)).expect("operations");
    let (first, last) = (at as u32, last as u32);
    s.train.buffers.push(Buffer {
        name: name.clone(),
        columns,
        copies: 1,
        slot: number,
        first,
        last,
        ..like
    });
    let to = Operand { columns: Some(to), ..Operand::buffer(number) };
    into(s, at, &name, action, from, to);
    s.train.buffers[number as usize].first = at as u32;
    to
}

fn into(s: &mut Schedule, at: usize, name: &str, action: Action, from: &[Operand], to: Operand) {
    let mut op = Op::new(&format!("{name} {}", s.train.ops.len()), action, Engine::Compute);
    (op.reads, op.writes, op.start) = (from.to_vec(), vec![to], s.train.ops[at].start);
    insert(s, at, op);
}

/// Rows that reach who reads them through copies: all there, or copied before the last of them arrive.
fn copies(cases: &mut Cases) {
    let base = build(&Recipe::new(Strategy::Pec, Some(1), 2));
    let reader = *all(&base, |a| matches!(a, Action::Expand)).last().expect("a lookup");
    let merge = *all(&base, |a| matches!(a, Action::Merge { .. })).last().expect("a merge");
    assert!(merge < reader && base.train.ops[merge].writes[0].accumulate);
    let rows = base.train.ops[reader].reads[0];
    for (when, at, wrong) in [("before", merge, EXCHANGE), ("after", reader, None)] {
        for deep in [1, 9, 20] {
            cases.add(format!("{deep} copies {when} all rows are there"), &base, wrong, |s| {
                let mut from = rows;
                for n in 0..deep {
                    from = put(s, at + n, Action::Copy, &[from], DIM, (0, DIM));
                }
                s.train.ops[reader + deep].reads[0] = from;
            });
        }
        cases.add(format!("columns of wider copies {when} all rows are there"), &base, wrong, |s| {
            let beside = put(s, at, Action::Copy, &[rows], DIM + 5, (3, DIM + 3));
            // Zeros on both sides of them, behind them in time.
            for (n, columns) in [(1, (1, 3)), (2, (DIM + 3, DIM + 5))] {
                into(s, at + n, "beside", Action::Zero, &[], Operand { columns: Some(columns), ..beside });
            }
            let most = Operand { columns: Some((1, DIM + 3)), ..beside };
            let wide = put(s, at + 3, Action::Copy, &[most], DIM + 4, (2, DIM + 4));
            s.train.ops[reader + 4].reads[0] = Operand { columns: Some((4, DIM + 4)), ..wide };
        });
        cases.add(format!("a sum for another microbatch {when} all rows are there"), &base, wrong, |s| {
            let sum = put(s, at, Action::Add, &[rows], DIM, (0, DIM));
            s.train.ops[at].microbatch = Some(0);
            s.train.ops[reader + 1].reads[0] = sum;
        });
    }
    cases.add("other columns of a copy than those of the rows", &base, EXCHANGE, |s| {
        let zeros = put(s, reader, Action::Zero, &[], 2 * DIM, (0, 2 * DIM));
        let beside = Operand { columns: Some((DIM, 2 * DIM)), ..zeros };
        into(s, reader + 1, "beside", Action::Copy, &[rows], beside);
        s.train.ops[reader + 2].reads[0] = Operand { columns: Some((DIM - 1, 2 * DIM - 1)), ..zeros };
    });
}

fn gradients(cases: &mut Cases) {
    let serial = build(&Recipe::new(Strategy::Serial, None, 1));
    let sum = find(&serial, |a| matches!(a, Action::ExpandGrad)).expect("a sum");
    let sent = find(&serial, |a| matches!(a, Action::AllToAllGrads { .. })).expect("gradients sent");
    cases.add("gradients beside other columns", &serial, None, |s| {
        let Place::Buffer(b) = s.train.ops[sum].writes[0].place else { return };
        s.train.buffers[b as usize].columns = 2 * DIM;
        s.train.ops[sum].writes[0].columns = Some((0, DIM));
        s.train.ops[sent].reads[0].columns = Some((0, DIM));
        let beside = Operand { columns: Some((DIM, 2 * DIM)), ..Operand::buffer(b) };
        into(s, sum + 1, "beside", Action::Zero, &[], beside);
    });
    cases.add("rows sent as gradients", &serial, value("puts something else"), |s| {
        let rows = find(s, |a| matches!(a, Action::Expand)).expect("a lookup");
        s.train.ops[sent].reads[0] = s.train.ops[rows].reads[0];
    });
    let pec = build(&Recipe::new(Strategy::Pec, Some(1), 1));
    cases.add("gradients of classes that nothing makes", &pec, value("gradients that nothing makes"), |s| {
        let sum = find(s, |a| matches!(a, Action::ExpandGrad)).expect("a sum");
        remove(s, sum);
    });
}

/// A buffer that operations of other batches read has several copies, so it shares no slot. If it does, who takes the slot
/// over must wait for those batches' readers.
fn slots(cases: &mut Cases) {
    let pec = build(&Recipe::new(Strategy::Pec, Some(2), 1));
    let number = |name| pec.train.buffers.iter().position(|b| b.name == name).expect("a buffer");
    let (rows, other) = (number("rows0"), number("owner0f1"));
    let wrong = "`partition0f` of batch m must come before `positions_owner0f` of batch m-2";
    cases.add("a slot shared while another batch reads it", &pec, Some(("storage", wrong)), |s| {
        for n in [rows, other] {
            (s.train.buffers[n].copies, s.train.buffers[n].slot) = (1, rows as u32);
        }
    });
}
