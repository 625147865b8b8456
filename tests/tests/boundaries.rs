//! Declarations and references at their bounds: `fs_tests::boundaries`.

use std::fmt::Write as _;

use fs_schedule::verify::verify;
use fs_schedule::{Action, Dep, Op, Operand, Place, Reuse, Strategy, Way};
use fs_tests::boundaries::cases;
use fs_tests::schedules::{Recipe, build};

#[test]
fn bounds_are_where_they_are_said_to_be() {
    let mut failures = String::new();
    let cases = cases();
    for case in &cases {
        let found = verify(&case.schedule);
        let ok = match case.wrong {
            None => found.is_empty(),
            Some((rule, part)) => found.iter().any(|v| v.rule == rule && v.message.contains(part)),
        };
        if !ok {
            let _ = writeln!(failures, "{}: {:?}, found {:?}", case.name, case.wrong, found.first());
        }
    }
    assert_eq!(failures, "");
    let wrong = cases.iter().filter(|c| c.wrong.is_some()).count();
    assert!(wrong > 100 && cases.len() - wrong > 20, "{wrong} of {}", cases.len());
}

/// Of many violations of a rule 16 are listed, of a long message its beginning.
#[test]
fn complaints_are_bounded() {
    let of = |name: &str| cases().into_iter().find(|c| c.name == name).expect("the case").schedule;
    let found = verify(&of("forty parameters of one name"));
    assert_eq!(found.iter().filter(|v| v.rule == "tables").count(), 16);
    let mut s = of("the example");
    // A name may be long; messages repeat several.
    let long = "x".repeat(1 << 10);
    s.train.ops[0].name.clone_from(&long);
    s.train.ops[1].name.clone_from(&long);
    let found = verify(&s);
    assert!(found.iter().any(|v| v.rule == "names"), "{found:?}");
    assert!(found.iter().all(|v| v.message.len() <= 2003), "messages end");
    s.train.ops[1].name.push('x');
    assert!(verify(&s).iter().any(|v| v.rule == "limits"));
}

/// Violations name the operations and what is wrong with them.
#[test]
fn complaints_name_what_they_are_about() {
    let of = |name: &str| cases().into_iter().find(|c| c.name == name).expect("the case").schedule;
    let digest = verify(&of("a long digest"));
    let message = &digest.iter().find(|v| v.rule == "reference").expect("it").message;
    let shown = "another ".repeat(10);
    assert!(message.contains(&format!("has digest {shown}, with")), "{message}");
}

/// What a program holds is counted over its operations: no single one here is over the limit.
#[test]
fn counts_add_up_over_operations() {
    let base = build(&Recipe::new(Strategy::Serial, None, 1));
    let half = (1 << 21) + 1;
    let operand: Operand = Operand { place: Place::Buffer(0), columns: None, accumulate: false, batch: 0 };
    let many = |what: &str, first: fn(&mut Op, usize, Operand), second: fn(&mut Op, usize, Operand)| {
        let mut s = base.clone();
        first(&mut s.train.ops[0], half, operand);
        second(&mut s.train.ops[1], half, operand);
        let found = verify(&s);
        let said = found.iter().any(|v| v.rule == "limits" && v.message.contains(what));
        assert!(said, "{what}: {:?}", found.first());
    };
    let reads = |op: &mut Op, n, o| op.reads = vec![o; n];
    let writes = |op: &mut Op, n, o| op.writes = vec![o; n];
    many("operands", reads, reads);
    many("operands", reads, writes);
    many("operands", writes, writes);
    let deps = |op: &mut Op, n, _: Operand| op.deps = vec![Dep { op: 0, distance: 1 }; n];
    many("dependencies", deps, deps);
    let listed = |op: &mut Op, n, _: Operand| op.action = Action::AllToAllIds { exchanges: vec![0; n] };
    many("exchanges in collectives", listed, listed);
}

/// The reference is counted too: terms, actions, operands and gradients over microbatches.
#[test]
fn counts_of_the_reference_add_up() {
    let base = build(&Recipe::new(Strategy::Serial, None, 2));
    let check = |what: &str, change: &dyn Fn(&mut fs_schedule::Schedule)| {
        let mut s = base.clone();
        change(&mut s);
        let found = verify(&s);
        let said = found.iter().any(|v| v.rule == "limits" && v.message.contains(what));
        assert!(said, "{what}: {:?}", found.first());
    };
    let last = base.reference.train.len() - 1;
    check("terms", &|s| s.reference.train.resize((1 << 19) + 1, s.reference.train[0].clone()));
    check("actions", &|s| s.reference.actions.resize((1 << 19) + 1, Action::Add));
    // Two microbatches: half of the limit is enough.
    check("operands over all", &|s| {
        let v = s.reference.train[last].operands[0];
        s.reference.train[last].operands = vec![v; (1 << 22) + 1];
    });
    // Half of the limit is not too much.
    let mut s = base.clone();
    let v = s.reference.train[last].operands[0];
    s.reference.train[last].operands = vec![v; (1 << 21) + 2];
    assert!(verify(&s).iter().all(|v| v.rule != "limits"));
    check("gradients over all", &|s| {
        let v = s.reference.updates[0].parts[0];
        s.reference.updates[0].parts = vec![v; (1 << 21) + 1];
    });
}

/// A class is found by what it is; distances that are not told apart share the last one.
#[test]
fn classes_are_found_by_what_they_are() {
    for (lookahead, microbatches) in [(1, 1), (3, 1), (2, 2), (3, 4)] {
        let reuse = Reuse::new(lookahead, microbatches);
        for way in [Way::Forward, Way::Backward] {
            for (n, class) in (0..).zip(reuse.classes(way)) {
                assert_eq!(reuse.class(way, class.window, class.distance), Some(n), "{reuse:?} {class:?}");
            }
            let far = reuse.class(way, 0, Some(lookahead + 1));
            assert_eq!(far, reuse.class(way, 0, None), "{reuse:?}: beyond the lookahead");
            assert_eq!(reuse.class(way, microbatches, None), None, "{reuse:?}: no such microbatch");
        }
    }
}

/// One complaint of distances is enough: classes are counted where distances and microbatches are in range.
#[test]
fn classes_of_too_many_distances_are_not_counted() {
    let mut s = build(&Recipe::new(Strategy::Pec, Some(2), 2));
    s.exchanges[0].lookahead = Some(300);
    s.reference.digest = s.reference_digest();
    let found = verify(&s);
    let said: Vec<&str> =
        found.iter().filter(|v| v.rule == "exchanges").map(|v| v.message.as_str()).collect();
    assert_eq!(said, ["exchange 0 tells apart 300 reuse distances, must be in 1..=64"]);
}

/// Pairs of lookups and updates are compared for so many of them and no more.
#[test]
fn lookups_and_updates_are_counted() {
    let base = build(&Recipe::new(Strategy::Pec, Some(2), 1));
    let said = |fits: fn(&Action) -> bool, count: usize| {
        let mut s = base.clone();
        let there = s.train.ops.iter().filter(|op| fits(&op.action)).count();
        let op = s.train.ops.iter().find(|op| fits(&op.action)).expect("one of them").clone();
        for n in there..count {
            s.train.ops.push(Op { name: format!("more {n}"), start: 1 << 50, ..op.clone() });
        }
        verify(&s).iter().any(|v| v.rule == "exchange" && v.message.contains("more than 256 times"))
    };
    for fits in
        [|a: &Action| matches!(a, Action::Gather { .. }), |a: &Action| matches!(a, Action::Apply { .. })]
    {
        assert_eq!([256, 257, 258].map(|n| said(fits, n)), [false, true, true]);
    }
}
