//! Thousands of values in one buffer: what each of them takes does not depend on how many there are. Nothing is timed here
//! (benches/compile.rs does), but with anything quadratic in the operands of a concat this would not end in minutes.

use std::fmt::Write as _;

use fs_compiler::{Strategy, compile};
use fs_schedule::{Action, Schedule};

const PARTS: usize = 6_000;

fn schedule(body: &str, score: &str, strategy: Strategy) -> Schedule {
    let text = format!(
        "model m {{\n  input f: dense(4)\n  input click: label\n{body}  loss bce_with_logits(linear({score}, 1), click, normalize: samples)\n}}
train {{ batch 8  steps 1  optimizer sgd(lr: 0.1) }}\nworkload w {{ generate {{ lengths fixed(1) }} }}\n"
    );
    let loaded = fs_dsl::check_text("wide.fs", &text);
    let rendered = fs_dsl::render(&loaded.diagnostics, &loaded.sources, false);
    let Some(program) = &loaded.program else { panic!("{rendered}") };
    compile(program, strategy, 2).unwrap_or_else(|e| panic!("{e}")).schedule
}

fn count(s: &Schedule, wanted: impl Fn(&Action) -> bool) -> usize {
    s.train.ops.iter().filter(|op| wanted(&op.action)).count()
}

/// Each operand is computed where it belongs, and the gradient of what all of them read is summed in place.
#[test]
fn a_wide_concat_copies_nothing() {
    let mut body = String::from("  let h = linear(f, 4)\n");
    let mut all = Vec::new();
    for i in 0..PARTS {
        let _ = writeln!(body, "  let a{i} = silu(h)");
        all.push(format!("a{i}"));
    }
    let s = schedule(&body, &format!("concat({})", all.join(", ")), Strategy::Pec);
    assert_eq!(count(&s, |a| matches!(a, Action::Copy | Action::Add)), 0);
    // One of them is made with what it reads.
    assert_eq!(count(&s, |a| a.name() == "linear_unary"), 1);
    assert_eq!(count(&s, |a| a.name() == "unary"), PARTS - 1);
    let sums = s.train.ops.iter().filter(|op| op.writes.iter().any(|w| w.accumulate)).count();
    assert_eq!(sums, PARTS - 1);
}

/// A value that stands in one place cannot stand in others too.
#[test]
fn a_repeated_operand_is_copied() {
    let all = vec!["h"; PARTS].join(", ");
    let s = schedule("  let h = linear(f, 4)\n", &format!("concat({all})"), Strategy::Serial);
    assert_eq!(count(&s, |a| matches!(a, Action::Copy)), PARTS);
}

/// Parts of splits are views, and so are their gradients.
#[test]
fn wide_splits_copy_nothing() {
    let (mut body, mut all) = (String::new(), Vec::new());
    for s in 0..PARTS / 500 {
        let names: Vec<String> = (0..500).map(|i| format!("s{s}_{i}")).collect();
        let _ = writeln!(body, "  let h{s} = linear(f, 1000)\n  let {} = split(h{s}, 500)", names.join(", "));
        for name in names {
            let _ = writeln!(body, "  let t{name} = silu({name})");
            all.push(format!("t{name}"));
        }
    }
    let s = schedule(&body, &format!("concat({})", all.join(", ")), Strategy::Pec);
    assert_eq!(count(&s, |a| matches!(a, Action::Copy | Action::Add)), 0);
    assert_eq!(count(&s, |a| a.name() == "unary_grad"), PARTS);
}
