//! Tests in one process for many changes. For the verifier's (verifier.rs, boundaries.rs, verdicts.rs of tests/tests): the same
//! schedules and corruptions, made once without a change, judged under each. For the compiler's (snapshots.rs): the same
//! models, compiled under each. `run.py` puts this beside the tests of its copy.
//!
//! `FS_MUTANTS` lists the numbers, all of one `FS_CRATE`. A line for each: the number and what noticed it, or `none`. A
//! panic is noticed; a hang or an end of the process is for `run.py` to notice.

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use fs_compiler::{CompileOptions, compile_with};
use fs_schedule::verify::verify;
use fs_schedule::{Schedule, Strategy};
use fs_tests::boundaries::cases;
use fs_tests::mutations::{BALANCED, BALANCED_MODEL, CLASSES_MODEL, FOLDED, RANKING, bases, mutations};
use fs_tests::schedules::build;
use fs_tests::{snapshots, verdicts};

fn switch(n: u32) {
    fs_schedule::MUTANT.store(n, Ordering::Relaxed);
    fs_compiler::MUTANT.store(n, Ordering::Relaxed);
}

fn example(name: &str, options: &CompileOptions) -> Schedule {
    let program = fs_dsl::load(&fs_tests::root("examples").join(name)).program.expect("examples check");
    compile_with(&program, options).expect("examples compile").schedule
}

struct Suite {
    valid: Vec<Schedule>,
    /// Broken schedules with the rule that must say so, in words that hold these; none for any rule.
    broken: Vec<(Schedule, Option<(&'static str, &'static str)>)>,
    /// Unaimed mutants with all that is said of them.
    said: Vec<(Schedule, String)>,
}

impl Suite {
    fn new() -> Self {
        let built: Vec<Schedule> = bases().iter().map(|(_, plan)| build(plan)).collect();
        let mut valid = built.clone();
        let mut broken = Vec::new();
        for (name, k, m) in [("movielens.fs", 1, 1), ("dlrm.fs", 2, 2), ("ranking.fs", 3, 1)] {
            valid.push(example(name, &CompileOptions::new(Strategy::Serial, 2)));
            let s = example(name, &CompileOptions::new(Strategy::Pec, 2).lookahead(k).microbatches(m));
            for mutation in mutations() {
                let mut bad = s.clone();
                if (mutation.corrupt)(&mut bad).is_some() {
                    broken.push((bad, Some((mutation.rule, ""))));
                }
            }
            valid.push(s);
        }
        for strategy in [Strategy::Serial, Strategy::Prefetch, Strategy::Pec] {
            let s = example("movielens.fs", &CompileOptions::new(strategy, 2));
            for m in RANKING {
                let mut bad = s.clone();
                (m.corrupt)(&mut bad).expect("a place");
                broken.push((bad, Some((m.rule, ""))));
            }
        }
        let balanced = fs_dsl::check_text("model.fs", BALANCED_MODEL).program.expect("the model checks");
        for (strategy, microbatches) in [(Strategy::Serial, 1), (Strategy::Pec, 1), (Strategy::Pec, 3)] {
            let options = CompileOptions::new(strategy, 3).microbatches(microbatches);
            let s = compile_with(&balanced, &options).expect("the model compiles").schedule;
            for m in BALANCED {
                let mut bad = s.clone();
                if (m.corrupt)(&mut bad).is_some() {
                    broken.push((bad, Some((m.rule, ""))));
                }
            }
            valid.push(s);
        }
        let classes = fs_dsl::check_text("model.fs", CLASSES_MODEL).program.expect("the model checks");
        for (program, microbatches) in [(&balanced, 1), (&classes, 1), (&classes, 2)] {
            let options = CompileOptions::new(Strategy::Pec, 3).microbatches(microbatches);
            let options = options.balance_at(fs_compiler::At::Folded);
            let s = compile_with(program, &options).expect("the model compiles").schedule;
            for m in FOLDED {
                let mut bad = s.clone();
                if (m.corrupt)(&mut bad).is_some() {
                    broken.push((bad, Some((m.rule, ""))));
                }
            }
            valid.push(s);
        }
        for s in built.iter().step_by(4) {
            for (i, op) in s.train.ops.iter().enumerate() {
                for n in 0..op.deps.len() {
                    let mut dropped = s.clone();
                    dropped.train.ops[i].deps.remove(n);
                    broken.push((dropped, None));
                    let mut farther = s.clone();
                    farther.train.ops[i].deps[n].distance += 1;
                    broken.push((farther, None));
                }
            }
        }
        for (b, s) in built.iter().enumerate() {
            for (n, m) in mutations().enumerate() {
                // A third of all pairs, each kind and each base among them: tests/verifier.rs has all of them.
                if (b + n) % 3 == 0 {
                    let mut bad = s.clone();
                    if (m.corrupt)(&mut bad).is_some() {
                        broken.push((bad, Some((m.rule, ""))));
                    }
                }
            }
        }
        for case in cases() {
            match case.wrong {
                None => valid.push(case.schedule),
                wrong => broken.push((case.schedule, wrong)),
            }
        }
        let rich = verdicts::bases();
        let said = verdicts::mutants(&rich, 150).into_iter().map(|(_, s)| {
            let words = verdicts::words(&verify(&s));
            (s, words)
        });
        let said = said.collect();
        valid.extend(rich.into_iter().map(|(_, s)| s));
        // Far apart ones first, so that what is noticed at all is noticed soon.
        let stride = 977;
        let mut order: Vec<usize> = (0..broken.len()).collect();
        order.sort_by_key(|i| (i * stride) % broken.len());
        let mut places: Vec<Option<_>> = broken.into_iter().map(Some).collect();
        let broken = order.into_iter().map(|i| places[i].take().expect("once")).collect();
        Self { valid, broken, said }
    }

    fn notices(&self) -> Option<&'static str> {
        let valid = |s: &Schedule| catch_unwind(|| verify(s)).is_ok_and(|v| v.is_empty());
        if !self.valid.iter().all(valid) {
            return Some("verifier or boundaries (valid)");
        }
        let caught = |(s, wrong): &(Schedule, Option<(&str, &str)>)| {
            catch_unwind(AssertUnwindSafe(|| verify(s))).is_ok_and(|v| {
                wrong.map_or(!v.is_empty(), |(rule, part)| {
                    v.iter().any(|v| v.rule == rule && v.message.contains(part))
                })
            })
        };
        if !self.broken.iter().all(caught) {
            return Some("verifier or boundaries (wrong)");
        }
        let same = |(s, words): &(Schedule, String)| {
            catch_unwind(AssertUnwindSafe(|| verify(s))).is_ok_and(|v| verdicts::words(&v) == *words)
        };
        if !self.said.iter().all(same) { Some("verdicts") } else { None }
    }
}

/// Models with what was compiled of them.
struct Compiled(Vec<(snapshots::Wanted, String)>);

impl Compiled {
    fn new() -> Self {
        Self(snapshots::wanted().into_iter().map(|w| { let line = w.line(); (w, line) }).collect())
    }

    fn notices(&self) -> Option<&'static str> {
        let same = |(w, line): &(snapshots::Wanted, String)| {
            catch_unwind(AssertUnwindSafe(|| w.line())).is_ok_and(|now| now == *line)
        };
        if !self.0.iter().all(same) { Some("snapshots") } else { None }
    }
}

#[test]
fn changes_are_noticed() {
    let Ok(numbers) = std::env::var("FS_MUTANTS") else { return };
    switch(0);
    let notices: Box<dyn Fn() -> Option<&'static str>> = if std::env::var("FS_CRATE").is_ok_and(|c| c == "compiler") {
        let compiled = Compiled::new();
        Box::new(move || compiled.notices())
    } else {
        let suite = Suite::new();
        Box::new(move || suite.notices())
    };
    std::panic::set_hook(Box::new(|_| {}));
    let mut out = std::fs::File::options().append(true).open(std::env::var("FS_NOTICED").expect("a file")).expect("it is there");
    for n in numbers.split(',').map(|n| n.parse::<u32>().expect("a number")) {
        writeln!(out, "{n} begun").expect("written");
        switch(n);
        let by = notices();
        switch(0);
        writeln!(out, "{n} {}", by.unwrap_or("none")).expect("written");
    }
}
