//! How many microbatches, where the model leaves that to the compiler: what is found against every number by itself.

use std::cell::RefCell;
use std::path::Path;

use fs_compiler::sched::explain::explain;
use fs_compiler::sched::policy::{self, Policy};
use fs_compiler::search::microbatches::{self, numbers};
use fs_compiler::search::{self, Best, Candidate, Cost, Verdict, candidates};
use fs_compiler::{CompileError, CompileOptions, Strategy, compile_with};
use fs_dsl::checked::{Cluster, Microbatches, Program};
use fs_schedule::counts::{Counted, Counts, GroupCounts, TableCounts};
use fs_schedule::profile::{ReuseCounts, Rows};
use fs_schedule::{Schedule, file, verify::verify};

/// So much better must more microbatches be.
const GAIN: f64 = 1.001;
/// So many numbers that bring nothing are the last.
const PATIENCE: usize = 2;

fn checked(text: &str) -> Program {
    let loaded = fs_dsl::check_text("m.fs", text);
    loaded.program.unwrap_or_else(|| panic!("{:?}", loaded.diagnostics))
}

fn preset(name: &str) -> Cluster {
    fs_dsl::cluster::preset(name).expect("a preset")
}

fn example(name: &str) -> Program {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../examples/{name}.fs"));
    fs_dsl::load(&path).program.expect("examples check")
}

/// Every token of a history learns from the row of its item, and most rows are used in every batch.
fn busy([rows, dim, length, width, batch]: [u32; 5]) -> Program {
    checked(&format!(
        "model busy {{
           table items {{ rows {rows}  dim {dim}  optimizer sgd(lr: 0.1)  sharding row_wise }}
           input item: ids(items) {{ max {length} }}
           input click: label like item
           loss bce_with_logits(linear(relu(linear(lookup(item), {width})), 1), click, normalize: tokens)
         }}
         train {{ batch {batch}  steps 3  microbatches auto  balance off }}
         workload w {{ generate {{ lengths fixed({length})  ids uniform }} }}"
    ))
}

/// Activations that take far more memory than parameters.
fn wide(batch: u32) -> Program {
    checked(&format!(
        "model wide {{
           table items {{ rows 1000  dim 16  optimizer sgd(lr: 0.1)  sharding row_wise }}
           input item: ids(items) {{ max 20 }}
           input click: label
           let h = relu(linear(relu(linear(pool(item), 512)), 512))
           loss bce_with_logits(linear(h, 1), click, normalize: samples)
         }}
         train {{ batch {batch}  steps 3  microbatches auto  balance off }}
         workload w {{ generate {{ lengths fixed(20)  ids uniform }} }}"
    ))
}

fn cost(best: &Best) -> Cost {
    match best.tried[best.chosen].verdict {
        Verdict::Scheduled(cost) => cost,
        Verdict::Pruned(bound) => panic!("what was not scheduled cannot be chosen: {bound:?}"),
    }
}

/// What is compared, of a finished schedule.
fn finished(s: &Schedule, memory: u64) -> Cost {
    let p = s.prediction.as_ref().expect("a prediction");
    let beyond_memory = if p.memory > memory { p.memory } else { 0 };
    Cost { beyond_in_flight: 0, beyond_memory, step: p.step }
}

fn better(now: Cost, before: Cost) -> bool {
    now < Cost { step: before.step / GAIN, ..before }
}

/// Without how it was found.
fn bare(s: &Schedule) -> String {
    file::to_text(&Schedule { search: None, ..s.clone() })
}

/// The places of those that are better than all before them, `patient` or without an end before the last.
fn leaders(costs: &[Cost], patient: bool) -> Vec<usize> {
    let mut found: Vec<usize> = vec![0];
    for (i, cost) in costs.iter().enumerate().skip(1) {
        let last = found.last().copied().expect("the first");
        if better(*cost, costs[last]) {
            found.push(i);
        } else if patient && i - last == PATIENCE {
            break;
        }
    }
    found
}

/// Those of which tables are changed: not a tenth longer than the best before them, until the search ends.
fn near(costs: &[Cost]) -> Vec<usize> {
    let end = leaders(costs, true).last().map_or(0, |last| last + PATIENCE);
    let best = |i: usize| leaders(&costs[..i], true).last().copied().expect("the first");
    let close =
        |i: &usize| *i == 0 || costs[*i] < Cost { step: costs[best(*i)].step * 1.1, ..costs[best(*i)] };
    (0..costs.len()).filter(|i| *i <= end).filter(close).collect()
}

/// Options for one of the numbers.
fn asks(options: &CompileOptions) -> impl FnMut(u32) -> Result<CompileOptions, CompileError> + '_ {
    |number| Ok(options.clone().microbatches(number))
}

/// All candidates in all numbers, one number after the other, say which is taken; what is taken is what that number gives by
/// itself. The number, and that of the shortest step once single tables were changed (which one candidate alone is not asked for).
fn agrees(name: &str, program: &Program, options: &CompileOptions, all: &[Candidate]) -> (u32, u32) {
    let memory = options.cluster.as_ref().map_or(u64::MAX, |c| c.memory);
    let tried = numbers(program, options).expect("numbers");
    assert!(tried.len() >= 3, "{name}: too few numbers to choose from: {tried:?}");
    let fixed = |n: u32| {
        let mut program = program.clone();
        program.train.microbatches = Microbatches::Fixed(n);
        program
    };
    let each: Vec<Best> = tried
        .iter()
        .map(|n| search::search(&fixed(*n), options, all.iter().copied()).expect("a schedule"))
        .collect();
    let costs: Vec<Cost> = each.iter().map(cost).collect();
    let found = leaders(&costs, true);
    let last = found.last().copied().expect("the first");
    let best = microbatches::search(program, tried.clone(), all, asks(options)).expect("a schedule");
    let s = &best.compiled.schedule;
    assert_eq!(best.tried[best.chosen].candidate.microbatches, Some(tried[last]), "{name}: {costs:?}");
    assert_eq!(s.settings.microbatches, tried[last], "{name}");
    assert_eq!(bare(s), bare(&each[last].compiled.schedule), "{name}: as if the number were asked for");
    assert!(verify(s).is_empty(), "{name}: {:?}", verify(s));
    assert!(cost(&best) <= costs[0], "{name}: worse than one microbatch");
    // What nothing but the end of the search excludes.
    assert_eq!(leaders(&costs, false), found, "{name}: the search ended too early: {costs:?}");
    assert!(!costs.iter().any(|c| better(*c, cost(&best))), "{name}: {costs:?}");
    let record = s.search.as_ref().expect("how it was found");
    assert_eq!(record.strategies.len(), best.tried.len(), "{name}");
    assert!(record.strategies.iter().all(|t| t.name.contains(" microbatch")), "{name}: {record:?}");
    let text = explain(s).and_then(|e| e.text(None)).expect("a prediction");
    assert!(text.contains(" in 2 microbatches") && !text.contains("kind(s)"), "{name}: {text}");

    if all.len() == 1 {
        return (tried[last], tried[last]);
    }
    let with = microbatches::with_tables(program, tried.clone(), all, asks(options));
    let (best, _, changed) = with.expect("a schedule");
    let finals: Vec<Schedule> = near(&costs)
        .iter()
        .map(|i| {
            let found = search::tables::search(&fixed(tried[*i]), options, all.iter().copied());
            found.expect("a schedule").0.compiled.schedule
        })
        .collect();
    let costs: Vec<Cost> = finals.iter().map(|s| finished(s, memory)).collect();
    let steps: Vec<f64> = changed.iter().map(|(_, step)| *step).collect();
    assert_eq!(steps, costs.iter().map(|c| c.step).collect::<Vec<_>>(), "{name}");
    let taken = leaders(&costs, false).last().copied().expect("the first");
    assert_eq!(bare(&best.compiled.schedule), bare(&finals[taken]), "{name}: {costs:?}");
    assert!(finished(&best.compiled.schedule, memory) <= costs[0], "{name}: worse than one microbatch");
    assert!(
        !costs.iter().any(|c| better(*c, finished(&best.compiled.schedule, memory))),
        "{name}: {costs:?}"
    );
    assert!(verify(&best.compiled.schedule).is_empty(), "{name}");
    (tried[last], best.compiled.schedule.settings.microbatches)
}

fn all() -> Vec<Candidate> {
    candidates(None).collect()
}

#[test]
fn launches_ask_for_one() {
    for name in ["ranking", "dlrm"] {
        let options = CompileOptions::new(Strategy::Serial, None).cluster(preset("dgx_h100"));
        assert_eq!(agrees(name, &example(name), &options, &all()), (1, 1), "{name}");
    }
}

#[test]
fn transfers_ask_for_several() {
    let options = |ranks| CompileOptions::new(Strategy::Serial, ranks).cluster(preset("h100x256"));
    let pec = [Candidate::new(policy::of(Strategy::Pec), None)];
    // Single tables gain more where a batch is not cut, or is cut less: that decides in the end.
    for (name, sizes, ranks, all, wanted) in [
        ("pec", [1_000_000, 512, 3_200, 64, 16 * 256], 256, &pec[..], (8, 8)),
        ("several", [200_000, 64, 25_600, 1_024, 8 * 64], 64, &all(), (4, 2)),
        ("one", [200_000, 64, 25_600, 1_024, 4 * 64], 64, &all(), (2, 1)),
    ] {
        assert_eq!(agrees(name, &busy(sizes), &options(ranks), all), wanted, "{name}");
    }
}

/// As many as fit, though each takes longer.
#[test]
fn memory_asks_for_several() {
    let cluster = preset("dgx_h100");
    let program = wide(8 * 256);
    let serial = Candidate::new(policy::of(Strategy::Serial), None);
    let options = CompileOptions::new(Strategy::Serial, None);
    let needs = |parts: u32| {
        let options = options.clone().cluster(cluster.clone()).microbatches(parts);
        let p = compile_with(&program, &options).expect("a schedule").schedule.prediction;
        p.expect("a prediction").memory
    };
    let (two, four) = (needs(2), needs(4));
    assert!(four < two, "{four} of {two}");
    for (memory, takes) in [(two, 2), (two - 1, 4)] {
        let options = options.clone().cluster(Cluster { memory, ..cluster.clone() });
        assert_eq!(agrees("serial", &program, &options, &[serial]).0, takes);
        agrees("all", &program, &options, &all());
    }
    // Nothing fits: the one that exceeds least.
    let options = options.clone().cluster(Cluster { memory: 1 << 20, ..cluster });
    let (last, _) = agrees("too little", &program, &options, &[serial]);
    assert!(last > 4, "{last}");
}

#[test]
fn ranks_have_a_sample_for_each() {
    for (batch, ranks, wanted) in [
        (24, 4, &[1, 2, 4][..]),
        (12, 1, &[1, 2, 4]),
        (9, 3, &[1]),
        (8, 8, &[1]),
        (64, 1, &[1, 2, 4, 8, 16, 32, 64]),
        (1024, 2, &[1, 2, 4, 8, 16, 32, 64]),
    ] {
        let found = numbers(&wide(batch), &CompileOptions::new(Strategy::Serial, ranks));
        assert_eq!(found.expect("numbers"), wanted, "{batch} over {ranks}");
    }
    let not = numbers(&wide(9), &CompileOptions::new(Strategy::Serial, 2)).expect_err("it does not divide");
    assert!(not.to_string().contains("does not divide over 2 ranks"), "{not}");
}

/// Why options could not be had.
#[derive(Debug, PartialEq)]
struct No(String);

impl From<CompileError> for No {
    fn from(error: CompileError) -> Self {
        Self(error.to_string())
    }
}

/// Options are asked for while there is hope, and what goes wrong with them is told.
#[test]
fn numbers_are_asked_for_one_by_one() {
    let program = example("ranking");
    let options = CompileOptions::new(Strategy::Serial, None).cluster(preset("dgx_h100"));
    let asked = RefCell::new(Vec::new());
    let of = |n| {
        asked.borrow_mut().push(n);
        Ok::<_, CompileError>(options.clone())
    };
    microbatches::search(&program, [1, 2, 4, 8, 16], &all(), of).expect("a schedule");
    assert_eq!(asked.into_inner(), [1, 2, 4]);
    let of = |n| if n < 2 { Ok(options.clone()) } else { Err(No(format!("{n}"))) };
    let no = microbatches::search(&program, [1, 2, 4], &all(), of).expect_err("there are no options");
    assert_eq!(no, No("2".into()));
    let no = microbatches::search(&program, [3, 1], &all(), |_| Ok::<_, No>(options.clone()));
    assert!(no.expect_err("a batch of 256").0.contains("cannot be cut into 3"));
    let none = microbatches::search(&program, [], &all(), asks(&options)).expect_err("no number");
    assert!(matches!(none, CompileError::NoCandidate), "{none}");
}

/// Where rows would be of more classes than can be, a number is not tried with what tells them apart.
#[test]
fn classes_end_the_search() {
    let options = CompileOptions::new(Strategy::Serial, 2).cluster(preset("dgx_h100"));
    let pec: &dyn Policy = policy::of(Strategy::Pec);
    let of = |lookahead| [Candidate::new(policy::of(Strategy::Serial), None), Candidate::new(pec, lookahead)];
    for (lookahead, tried) in [(20, 4), (2, 5)] {
        let best = microbatches::search(&wide(128), [1, 64], &of(lookahead), asks(&options));
        assert_eq!(best.expect("a schedule").tried.len(), tried, "{lookahead}");
    }
    let compiled = compile_with(&wide(128), &options.policy(pec).lookahead(20).microbatches(64));
    assert!(compiled.expect_err("too many").to_string().contains("more than 255 classes"));
}

/// Windows that do not cut a number of microbatches are none of it: in one window it may fit.
#[test]
fn windows_do_not_end_the_search() {
    let program = checked(
        "model m {
           table a { rows 200000  dim 128  optimizer sgd(lr: 0.1)  sharding row_wise }
           input x: ids(a) { max 10 }
           input click: label
           loss bce_with_logits(mlp(pool(x), [1024, 1024, 1]), click, normalize: samples)
         }
         train { batch 65536  steps 20  microbatches auto  balance off }
         workload w { generate { lengths lognormal(mean: 20, sigma: 1, max: 50)  ids zipf(1.05)  labels hash } }",
    );
    let pec = [Candidate::new(policy::of(Strategy::Pec), None)];
    let memory = 90 << 20;
    let options = CompileOptions::new(Strategy::Pec, 8).cluster(Cluster { memory, ..preset("h100x256") });
    let numbers = numbers(&program, &options).expect("numbers");
    let best = microbatches::search(&program, numbers, &pec, asks(&options.windows(3))).expect("a schedule");
    let s = best.compiled.schedule;
    assert!(s.settings.microbatches > 2 && s.exchanges[0].windows == Some(1), "{:?}", best.tried);
    assert!(verify(&s).is_empty() && s.prediction.expect("a prediction").memory <= memory);
}

/// Counts of so many microbatches: rows that are all used again at once.
fn counts(parts: u32) -> Counts {
    let of = |unique: bool| {
        let lists = vec![vec![if unique { 10.0 } else { 20.0 }, 0.0, 0.0]; parts as usize];
        Rows {
            table: "items".into(),
            part: 0,
            sent: 10.0 * f64::from(parts) * if unique { 1.0 } else { 2.0 },
            busiest: 1.0,
            hashed: None,
            asking: None,
            owners: Vec::new(),
            hashed_owners: Vec::new(),
            hot: Vec::new(),
            reuse: vec![ReuseCounts { microbatches: parts, forward: lists.clone(), backward: lists }],
            relayed: None,
        }
    };
    Counts {
        of: Counted { digest: "d".into(), first: 0, batches: 8 },
        ranks: 2,
        microbatches: parts,
        samples: 64.0,
        groups: vec![GroupCounts { tokens: 100.0, squares: 200.0, lengths: vec![1, 2, 3] }],
        tables: vec![TableCounts { occurrences: of(false), unique: of(true) }],
    }
}

/// What was counted in parts of another size says nothing.
#[test]
fn counts_are_of_one_number() {
    let options = CompileOptions::new(Strategy::Pec, 2).cluster(preset("dgx_h100"));
    let text =
        |options: &CompileOptions| bare(&compile_with(&wide(128), options).expect("a schedule").schedule);
    for asked in [1, 2] {
        let options = options.clone().microbatches(asked);
        let without = text(&options);
        for counted in [1, 2] {
            let with = text(&options.clone().counts(counts(counted)));
            assert_eq!(with == without, counted != asked, "{counted} of {asked}");
        }
        let tables = |counted: Option<Counts>| {
            let found = search::tables::search(&wide(128), &options.clone().counts(counted), all());
            bare(&found.expect("a schedule").0.compiled.schedule)
        };
        assert_eq!(tables(Some(counts(3 - asked))), tables(None), "{asked}");
    }
}
