//! In steady state a step allocates nothing: buffers, outboxes, workspaces, batches and messages have grown to their
//! size. All allocations of the whole process are counted from step to step.
//!
//! Batches of equal size, and batches whose sizes go round: once every size has been there, nothing grows any more.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use fs_compiler::distribution::TableOptions;
use fs_compiler::{At, CompileOptions, Strategy, compile_with};
use fs_dsl::checked::Cluster;
use fs_executor::transport::link::EmulatedLink;
use fs_executor::{Observer, Options, Report, Session, StepEvent};
use fs_schedule::Schedule;
use fs_schedule::file::Reserved;
use fs_tests::pipes::joined;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is left to the system's allocator.
#[allow(unsafe_code, reason = "the only way to count allocations")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The count after each step.
#[derive(Default)]
struct Counts(Vec<u64>);

impl Observer for Counts {
    fn training(&mut self, _: u64, steps: u64) {
        self.0.reserve(steps as usize);
    }
    fn step(&mut self, _: &StepEvent) {
        self.0.push(ALLOCATIONS.load(Ordering::Relaxed));
    }
}

fn model(lengths: &str, samples: &str, sharding: &str) -> String {
    format!(
        "model small {{
  table a {{ rows 400  dim 16  init normal(0, 0.5)  optimizer adagrad(lr: 0.05)  sharding {sharding} }}
  input x: ids(a) {{ max 9 }}
  input click: label like x
  let h = lookup(x)
  let g = layer_norm(h + silu_attention(linear(h, 16), linear(h, 16), linear(h, 16), heads: 2))
  loss bce_with_logits(linear(silu(g), 1), click, normalize: tokens)
}}
train {{ batch 8  steps 300  optimizer adam(lr: 1e-2) }}
workload w {{ generate {{ lengths {lengths}  ids zipf(1.05)  labels hash  samples {samples} }} }}"
    )
}

fn check(counts: &Counts, what: &str) {
    // Without the end, where threads take their leave.
    let steady = &counts.0[200..280];
    let each: Vec<u64> = steady.windows(2).map(|w| w[1] - w[0]).collect();
    let some = each.iter().filter(|n| **n > 0).count();
    assert!(some == 0, "{what}: allocations in {some} of the last {} steps: {each:?}", each.len());
}

/// Two processes that are joined by streams: frames reuse their buffers on both sides.
fn apart(schedule: &Schedule, ranks: &[Vec<usize>], what: &str) {
    let worlds = joined(ranks).expect("streams");
    std::thread::scope(|scope| {
        for (process, (world, _)) in worlds.into_iter().enumerate() {
            scope.spawn(move || {
                let options = Options::default().world(world).evaluate(false);
                let session = Session::<f32>::new(schedule.clone(), options);
                let mut session = session.unwrap_or_else(|e| panic!("{e}"));
                let mut counts = Counts::default();
                session.run(&mut counts).unwrap_or_else(|e| panic!("{e}"));
                check(&counts, &format!("{what}, process {process}"));
            });
        }
    });
}

/// A command that is ended writes its report without memory: another thread may hold the allocator's locks.
fn last_words(report: &Report) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("report.json");
    let reserved = Reserved::new(&path).expect("a place");
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let written = reserved.write(|out| report.write_json(out));
    let taken = ALLOCATIONS.load(Ordering::Relaxed) - before;
    assert!(written.is_ok() && taken == 0, "{written:?}, {taken} allocations");
    assert_eq!(std::fs::read_to_string(&path).expect("written"), report.to_json());
}

/// One test, so that nothing else in this process allocates meanwhile.
#[test]
fn steps_allocate_nothing() {
    let (equal, jagged) = (model("fixed(6)", "40", "row_wise"), model("uniform(0, 9)", "37", "row_wise"));
    let columns = model("uniform(0, 9)", "37", "column_wise");
    let hashed = model("uniform(0, 9)", "37", "row_wise(placement: hashed)");
    let planned = model("uniform(0, 9)", "37", "row_wise(placement: planned)");
    let balanced = jagged.replace("train {", "train { balance on");
    let link = EmulatedLink { bandwidth: 1e9, latency: 20e-6 };
    let few = model("uniform(0, 9)", "11", "row_wise").replace("train {", "train { balance cost(1, 2, 3) ");
    let all = [&equal, &jagged, &balanced, &columns, &hashed, &planned].map(|text| (text, At::Ids, None));
    // Few samples, so that all sizes that a plan can come to have been there soon.
    let moved = At::ALL.map(|at| (&few, at, None));
    for (text, at, link) in all.into_iter().chain(moved).chain([(&jagged, At::Ids, Some(link))]) {
        let loaded = fs_dsl::check_text("model.fs", text);
        let Some(program) = &loaded.program else {
            panic!("{}", fs_dsl::render(&loaded.diagnostics, &loaded.sources, false))
        };
        let strategies = [
            (Strategy::Serial, 1, 1),
            (Strategy::Prefetch, 1, 1),
            (Strategy::Pec, 1, 1),
            (Strategy::Pec, 3, 1),
            (Strategy::Pec, 2, 2),
        ];
        for (strategy, lookahead, microbatches) in strategies {
            let options = CompileOptions::new(strategy, 2)
                .lookahead(lookahead)
                .microbatches(microbatches)
                .balance_at(at);
            let mut schedule = compile_with(program, &options).unwrap_or_else(|e| panic!("{e}")).schedule;
            if let Some(balance) = &mut schedule.settings.balance {
                // Costs that are fitted and change no plan: every batch is within what is not worth moving anything for.
                (balance.fit, balance.slack) =
                    (lookahead == 3, if lookahead == 3 { 1e6 } else { balance.slack });
            }
            let options = Options::default().ranks(2).evaluate(false).link(link);
            let mut session =
                Session::<f32>::new(schedule.clone(), options).unwrap_or_else(|e| panic!("{e}"));
            let mut counts = Counts::default();
            let report = session.run(&mut counts).unwrap_or_else(|e| panic!("{e}"));
            last_words(&report);
            let what = format!(
                "{strategy:?} at {at}, lookahead {lookahead}, {microbatches} microbatches, link {link:?}\n{text}"
            );
            check(&counts, &what);
            if link.is_none() {
                apart(&schedule, &[vec![0], vec![1]], &what);
            }
        }
    }
    // Replicas of hot rows.
    for (text, strategy, microbatches) in [
        (&jagged, Strategy::Serial, 1),
        (&jagged, Strategy::Pec, 2),
        (&columns, Strategy::Prefetch, 1),
        (&columns, Strategy::Pec, 1),
    ] {
        let program = fs_dsl::check_text("model.fs", text).program.expect("the model checks");
        let tables = TableOptions::default().hot([("a".to_owned(), 30)]);
        let options = CompileOptions::new(strategy, 2).microbatches(microbatches).tables(tables);
        let schedule = compile_with(&program, &options).unwrap_or_else(|e| panic!("{e}")).schedule;
        assert_eq!(schedule.tables[0].hot.len(), 30);
        let session = Session::<f32>::new(schedule.clone(), Options::default().evaluate(false));
        let mut counts = Counts::default();
        session.unwrap_or_else(|e| panic!("{e}")).run(&mut counts).unwrap_or_else(|e| panic!("{e}"));
        let what = format!("{strategy:?} with hot rows, {microbatches} microbatches\n{text}");
        check(&counts, &what);
        apart(&schedule, &[vec![0], vec![1]], &what);
    }
    // Sums node by node.
    let program = fs_dsl::check_text("model.fs", &jagged).program.expect("the model checks");
    let local = fs_dsl::cluster::preset("local").expect("a preset");
    let options =
        CompileOptions::new(Strategy::Pec, 4).cluster(Cluster { nodes: 2, gpus_per_node: 2, ..local });
    let schedule = compile_with(&program, &options).unwrap_or_else(|e| panic!("{e}")).schedule;
    assert!(schedule.settings.sums_by_node);
    let session = Session::<f32>::new(schedule.clone(), Options::default().evaluate(false));
    let mut counts = Counts::default();
    session.unwrap_or_else(|e| panic!("{e}")).run(&mut counts).unwrap_or_else(|e| panic!("{e}"));
    check(&counts, "two nodes");
    apart(&schedule, &[vec![0, 1], vec![2, 3]], "two nodes");
}
