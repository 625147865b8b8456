//! Hot rows that every rank has, on GPUs that are emulated: every list that an operation makes, and tables after training, are
//! those of the CPU, bit by bit, and those of a schedule without hot rows.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::sync::Arc;

use fs_compiler::distribution::TableOptions;
use fs_compiler::{CompileOptions, Strategy, compile_with};
use fs_dsl::checked::Cluster;
use fs_executor::data::planning::{Found, look};
use fs_executor::device::Device;
use fs_executor::device::cpu::Cpu;
use fs_executor::device::cuda::{self, Cuda};
use fs_executor::{Options, Session, data};
use fs_kernels::cuda::driver::emulated::Emulated;
use fs_kernels::cuda::emulated::Emulation;
use fs_kernels::cuda::sources::Precision;
use fs_schedule::{Leg, Schedule};
use fs_tests::emulated::{assert_near, device, kernels_for, session, thorough, train};
use fs_tests::on_all_cores;
use fs_tests::training::{self, Outcome, checkpoints, leaving, options, state};
use fs_tests::witness::{self, Look, Seen, Witness, difference};

type Gpu = Cuda<Emulated>;
type Both = [Arc<Emulation>; 2];

const ROWS: u32 = 60;
const SGD: &str = "sgd(lr: 3000)";
const ADAGRAD: &str = "adagrad(lr: 500)";
const ROWWISE: &str = "rowwise_adagrad(lr: 500)";
const ADAM: &str = "adam(lr: 300)";
const F32: &str = "";

fn kernels() -> Option<Both> {
    let of = |precision| kernels_for(env!("CARGO_TARGET_TMPDIR"), precision);
    Some([of(Precision::F32)?, of(Precision::Bf16)?])
}

/// A model whose gradients of rows are the same on all devices, though products and exponentials round otherwise: as in
/// `cuda_relays.rs`.
fn model(case: &Case<'_>) -> String {
    let Case { sharding, optimizer, unique, precision, .. } = case;
    // No block of columns is cut.
    let dim = if precision.contains("mxint8") && sharding.contains("column") { 96 } else { 8 };
    format!(
        "model hot {{
          table a {{ rows {ROWS}  dim {dim}  init normal(0, 30000)  optimizer {optimizer}  sharding {sharding} }}
          table b {{ rows 40  dim {dim}  init normal(0, 30000)  optimizer {optimizer}  sharding {sharding} }}
          input x: ids(a) {{ max 9 }}
          input y: ids(b) like x
          input z: ids(a) like x
          input click: label like x
          let h = (lookup(x) + lookup(z)) * lookup(y)
          loss bce_with_logits(linear(h, 1), click, normalize: tokens)
        }}
        train {{ {precision}  batch 48  steps 3  optimizer sgd(lr: 1e-30)  unique_rows {unique} }}
        workload w {{ generate {{ lengths uniform(0, 7)  ids zipf(1.05)  labels hash  samples 131 }} }}"
    )
}

/// Where ranks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Links {
    /// Three on a node.
    Node,
    /// Two nodes of two, and every rank asks owners itself.
    Nodes,
    /// The same, and rows come through relays.
    Relays,
    /// Three, for which one launch starts the same of several tables.
    Gpus,
}

#[derive(Debug, Clone, Copy)]
struct Case<'a> {
    sharding: &'a str,
    optimizer: &'a str,
    unique: bool,
    strategy: Strategy,
    microbatches: u32,
    links: Links,
    precision: &'a str,
    /// Hot rows of both tables.
    hot: [u32; 2],
}

fn compiled(text: &str, case: &Case<'_>, hot: [u32; 2]) -> Schedule {
    let program = fs_dsl::check_text("model.fs", text).program.expect("it checks");
    let ranks = if matches!(case.links, Links::Node | Links::Gpus) { 3 } else { 4 };
    let options = CompileOptions::new(case.strategy, ranks).lookahead(2).microbatches(case.microbatches);
    let windows = (case.strategy == Strategy::Pec && case.microbatches > 2).then_some(2);
    let local = fs_dsl::cluster::preset("local").expect("a preset");
    let cluster = match case.links {
        Links::Node => local,
        Links::Gpus => fs_dsl::cluster::preset("dgx_h100").expect("a preset"),
        Links::Nodes | Links::Relays => Cluster { gpus_per_node: 2, ..local },
    };
    let names = || ["a", "b"].map(str::to_owned);
    let tables = TableOptions::default().hot(names().into_iter().zip(hot).filter(|(_, n)| *n > 0));
    let relay = names().map(|name| (name, true));
    let tables = if case.links == Links::Relays { tables.relay(relay) } else { tables };
    let options = options.windows(windows).cluster(cluster).balance(false).tables(tables);
    let schedule = compile_with(&program, &options).unwrap_or_else(|e| panic!("{case:?}: {e}")).schedule;
    assert!(schedule.tables.iter().map(|t| t.hot.len() as u32).eq(hot), "{case:?}");
    let relayed = schedule.exchanges.iter().any(|x| matches!(x.leg, Leg::Between { .. }));
    assert_eq!(relayed, case.links == Links::Relays, "{case:?}");
    schedule
}

/// What all lists were, and what was trained.
fn trained<D: Look + Device<Real = f32>>(s: &Schedule, own: D::Options) -> Result<(Seen, Outcome), String> {
    let schedule = Arc::new(s.clone());
    let source = data::open(&schedule, None, None, schedule.settings.seed).map_err(|e| e.to_string())?;
    let device = witness::Options::<D> { own, seen: Arc::default(), brain_floats: false };
    let options = Options::default().evaluate(false);
    let session = Session::<f32, Witness<D>>::on(schedule, options, source, &device);
    let mut session = session.map_err(|e| e.to_string())?;
    let (outcome, _) = training::train(&mut session, &mut ()).map_err(|e| e.to_string())?;
    let seen = std::mem::take(&mut *device.seen.lock());
    Ok((seen, outcome))
}

fn assert_state(what: &str, found: &Outcome, expected: &Outcome) {
    assert_eq!(found.state.len(), expected.state.len(), "{what}");
    for (n, (a, b)) in found.state.iter().zip(&expected.state).enumerate() {
        let differ = a.iter().zip(b).filter(|(a, b)| a != b).count();
        assert!(a == b, "{what}: list {n} differs in {differ} of {} numbers", b.len());
    }
}

fn same(kernels: &Both, seed: u64, case: &Case<'_>) {
    let (what, text) = (format!("{case:?}"), model(case));
    let (schedule, plain) = (compiled(&text, case, case.hot), compiled(&text, case, [0, 0]));
    let (lists, expected) = trained::<Cpu<f32>>(&schedule, ()).unwrap_or_else(|e| panic!("{what}: {e}"));
    let found = trained::<Gpu>(&schedule, device(kernels, seed));
    let (seen, found) = found.unwrap_or_else(|e| panic!("{what}: {e}"));
    if let Some(difference) = difference(&schedule, &seen, &lists) {
        panic!("{what}: {difference}");
    }
    // Sums of products, which round otherwise.
    assert_eq!(found.losses.len(), expected.losses.len(), "{what}");
    for (a, b) in found.losses.iter().zip(&expected.losses) {
        let (a, b) = (f64::from_bits(*a), f64::from_bits(*b));
        assert!((a - b).abs() <= 1e-5 * b.abs(), "{what}: a loss of {a}, {b} on the CPU");
    }
    // A sum over the columns of a row, likewise.
    if case.optimizer == ROWWISE {
        assert_near(&what, &found, &expected);
    } else {
        assert_state(&what, &found, &expected);
    }
    let without = train::<Gpu>(&plain, &device(kernels, seed + 1000), &mut ());
    let without = without.unwrap_or_else(|e| panic!("{what}, no hot rows: {e}"));
    assert_state(&format!("{what}, beside none"), &found, &without);
    assert_eq!(found.losses, without.losses, "{what}, beside none");
}

/// All of some cases, or the first so many.
fn all_same(cases: &[Case<'_>], some: usize) {
    let Some(kernels) = kernels() else { return };
    let some = if thorough() { cases.len() } else { some.min(cases.len()) };
    let numbered: Vec<_> = (1..).zip(&cases[..some]).collect();
    on_all_cores(&numbered, |(seed, case)| same(&kernels, *seed, case));
}

const fn case<'a>(
    (sharding, optimizer, unique): (&'a str, &'a str, bool),
    (strategy, microbatches, links): (Strategy, u32, Links),
    precision: &'a str,
    hot: [u32; 2],
) -> Case<'a> {
    Case { sharding, optimizer, unique, strategy, microbatches, links, precision, hot }
}

#[test]
fn row_wise() {
    use Links::{Gpus, Node, Nodes};
    use Strategy::{Pec, Prefetch, Serial};
    let hashed = "row_wise(placement: hashed)";
    let cases = [
        case(("row_wise", ROWWISE, true), (Pec, 4, Node), F32, [7, 1]),
        // More of them than a rank has rows, and all there are.
        case(("row_wise", ADAM, true), (Pec, 1, Node), F32, [50, 40]),
        case(("row_wise", ADAM, false), (Serial, 1, Node), F32, [33, 0]),
        case((hashed, ROWWISE, true), (Prefetch, 4, Nodes), F32, [9, 20]),
        case(("row_wise", ROWWISE, true), (Pec, 1, Gpus), F32, [9, 20]),
        case((hashed, ADAM, false), (Pec, 4, Node), F32, [40, 3]),
        case(("row_wise", SGD, true), (Serial, 4, Node), F32, [1, 0]),
        case(("row_wise", ADAGRAD, false), (Prefetch, 1, Gpus), F32, [12, 30]),
        case(("row_wise", ADAM, true), (Pec, 4, Nodes), F32, [0, 40]),
        case((hashed, ADAGRAD, true), (Serial, 1, Gpus), F32, [60, 0]),
    ];
    all_same(&cases, 5);
}

#[test]
fn table_and_column_wise() {
    use Links::{Gpus, Node, Nodes};
    use Strategy::{Pec, Prefetch, Serial};
    let cases = [
        case(("table_wise", ADAM, true), (Pec, 4, Node), F32, [5, 40]),
        case(("column_wise", ADAGRAD, true), (Pec, 1, Node), F32, [20, 1]),
        case(("column_wise", ADAM, false), (Serial, 4, Nodes), F32, [11, 0]),
        case(("column_wise", ADAM, true), (Pec, 4, Gpus), F32, [60, 9]),
        case(("table_wise", ROWWISE, false), (Prefetch, 1, Node), F32, [60, 9]),
        case(("table_wise", ROWWISE, true), (Serial, 1, Gpus), F32, [1, 0]),
        case(("column_wise", ADAGRAD, true), (Prefetch, 4, Nodes), F32, [0, 12]),
    ];
    all_same(&cases, 4);
}

#[test]
fn narrow_rows() {
    use Links::{Node, Nodes, Relays};
    use Strategy::{Pec, Prefetch, Serial};
    let both = "precision { output_dist bf16  gradient_dist bf16 }";
    let blocks = "precision { output_dist mxint8  gradient_dist f32 }";
    let least = "precision { output_dist mxint8  gradient_dist bf16  compute bf16 }";
    let cases = [
        case(("row_wise", SGD, true), (Pec, 2, Node), both, [20, 1]),
        case(("row_wise", ADAGRAD, true), (Pec, 1, Nodes), least, [9, 40]),
        case(("column_wise", SGD, true), (Serial, 1, Node), blocks, [9, 0]),
        case(("row_wise", SGD, true), (Pec, 2, Relays), both, [20, 1]),
        case(("table_wise", SGD, true), (Prefetch, 1, Nodes), both, [20, 9]),
        case(("row_wise", SGD, false), (Serial, 4, Node), blocks, [30, 9]),
        case(("column_wise", ADAGRAD, true), (Pec, 2, Relays), least, [30, 9]),
    ];
    all_same(&cases, 4);
}

#[test]
fn through_relays() {
    use Links::Relays;
    use Strategy::{Pec, Serial};
    let cases = [
        case(("row_wise", ROWWISE, true), (Pec, 2, Relays), F32, [7, 1]),
        case(("row_wise", ADAGRAD, false), (Serial, 1, Relays), F32, [33, 40]),
        case(("column_wise", SGD, true), (Pec, 1, Relays), F32, [12, 0]),
        case(("table_wise", SGD, true), (Serial, 2, Relays), F32, [7, 12]),
        case(("row_wise(placement: hashed)", ADAM, false), (Pec, 2, Relays), F32, [60, 5]),
        case(("table_wise", ADAM, false), (Pec, 4, Relays), F32, [7, 12]),
        case(("column_wise", ADAM, false), (Pec, 4, Relays), F32, [40, 5]),
    ];
    all_same(&cases, 4);
}

const STEPS: u64 = 6;

/// What is written while training goes on has the replicas as they were after its step, and who goes on from it has the bits of a
/// run that was never stopped.
#[test]
fn checkpoints_go_on_with_the_same_bits() {
    let Some(kernels) = kernels() else { return };
    let (node, f32) = (Links::Node, F32);
    let cases = [
        case(("row_wise", ADAM, true), (Strategy::Pec, 1, node), f32, [9, 40]),
        case(("column_wise", ADAGRAD, true), (Strategy::Serial, 1, node), f32, [20, 1]),
        case(("table_wise", ADAGRAD, true), (Strategy::Prefetch, 1, node), f32, [9, 0]),
    ];
    let (mut during, mut aside) = (0, 0);
    for (n, case) in cases.iter().enumerate() {
        let schedule = compiled(&model(case), case, case.hot);
        // Every other one with so little room that updates wait for it.
        let room = if n % 2 == 0 { 64 << 20 } else { 256 };
        let on = |k: u64| cuda::Options { room, ..device(&kernels, 100 * n as u64 + k) };
        let begin = |k, options| session::<Gpu>(&schedule, options, &on(k)).unwrap();
        let mut alone = begin(0, options());
        let mut states = vec![state(&alone).unwrap()];
        for _ in 0..STEPS {
            alone.advance(1, &mut ()).unwrap();
            states.push(state(&alone).unwrap());
        }
        let folder = tempfile::tempdir().unwrap();
        let mut whole = begin(1, options().steps(STEPS).checkpoint(leaving(folder.path(), 3, 99)));
        let report = whole.run(&mut ()).unwrap();
        assert!(state(&whole).unwrap() == states[STEPS as usize], "{case:?}: a whole run");
        for (k, (step, path)) in (2..).zip(&checkpoints(folder.path())) {
            let begins = |options: Options| options.init(path.clone());
            let mut started = begin(k, begins(options()));
            assert!(state(&started).unwrap() == states[*step as usize], "{case:?}: step {step} as written");
            let on_cpu = session::<Cpu<f32>>(&schedule, begins(options()), &()).unwrap();
            assert!(state(&on_cpu).unwrap() == states[*step as usize], "{case:?}: step {step} on the CPU");
            started.advance(STEPS - step, &mut ()).unwrap();
            assert!(state(&started).unwrap() == states[STEPS as usize], "{case:?}: going on from {step}");
            during += u64::from(*step < STEPS);
        }
        aside += report.checkpoints.unwrap().rows_aside;
    }
    assert!(during >= cases.len() as u64, "{during} were written while training went on");
    eprintln!("{during} were written beside training, {aside} rows put aside");
}

/// Gradients that are asked for are those of the CPU, of hot rows too, and change nothing.
#[test]
fn gradients_are_kept() {
    let Some(kernels) = kernels() else { return };
    for (n, sharding) in ["row_wise", "column_wise", "table_wise"].into_iter().enumerate() {
        let case = case(
            (sharding, ADAM, n == 0),
            (Strategy::Serial, 1, Links::Node),
            F32,
            [[9, 40], [60, 1]][n % 2],
        );
        let text = model(&case);
        let of = |hot| {
            let schedule = compiled(&text, &case, hot);
            let mut own = session::<Gpu>(&schedule, options(), &device(&kernels, n as u64)).unwrap();
            let before = state(&own).unwrap();
            let found = own.loss_and_gradients(1).unwrap();
            assert!(state(&own).unwrap() == before, "{sharding}: nothing has changed");
            found.tables
        };
        let (found, expected) = (of(case.hot), of([0, 0]));
        assert!(expected.iter().flatten().any(|g| *g != 0.0), "{sharding}: there are gradients");
        for (a, b) in found.iter().zip(&expected) {
            assert!(training::bits(a) == training::bits(b), "{sharding}");
        }
    }
}

const ITEMS: usize = 60;

/// Items are ranked by what hot rows have become.
#[test]
fn items_are_ranked() {
    let Some(kernels) = kernels() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("visits.csv");
    let all = (0..ITEMS).map(|item| format!("all,{item}\n"));
    let visit = |user: usize, at: usize| (user * 7 + at * at * 5 + at * user) % ITEMS;
    let each =
        (0..26).flat_map(|user| (0..3 + user % 9).map(move |at| format!("u{user},{}\n", visit(user, at))));
    std::fs::write(&path, format!("user,item\n{}", all.chain(each).collect::<String>())).unwrap();
    for (n, sharding) in ["row_wise", "column_wise", "table_wise"].into_iter().enumerate() {
        let text = format!(
            "model last {{
              table items {{ rows {ITEMS}  dim 4  init normal(0, 1)  optimizer sgd(lr: 0.1)  sharding {sharding} }}
              input history: ids(items) {{ max 50 }}
              input following: next(history)
              loss sampled_softmax(lookup(history), items, following, negatives: 3, temperature: 1, similarity: {}, normalize: tokens)
            }}
            train {{ batch 12  epochs 1  optimizer sgd(lr: 0.1) }}
            workload visits {{ csv \"visits.csv\" {{ user \"user\"  item \"item\" }}  evaluate leave_last_out }}",
            ["dot", "cosine"][n % 2]
        );
        let file = folder.path().join("m.fs");
        std::fs::write(&file, text).unwrap();
        let program = fs_dsl::load(&file).program.unwrap();
        let options = CompileOptions::new(Strategy::Pec, 3).balance(false);
        let plain = Arc::new(compile_with(&program, &options).unwrap().schedule);
        let Found::Counts { counts, .. } = look(&plain, false).unwrap() else { panic!("nothing is counted") };
        let hot = TableOptions::default().hot([("items".to_owned(), 25)]);
        let schedule = compile_with(&program, &options.counts(*counts).tables(hot)).unwrap().schedule;
        assert_eq!(schedule.tables[0].hot.len(), 25);
        let from = || Options::default().data(path.clone());
        let mut own = session::<Gpu>(&schedule, from(), &device(&kernels, n as u64)).unwrap();
        let mut cpu = session::<Cpu<f32>>(&schedule, from(), &()).unwrap();
        let mut without = session::<Gpu>(&plain, from(), &device(&kernels, 10 + n as u64)).unwrap();
        for _ in 0..2 {
            let found = own.outcomes(&mut ()).unwrap().unwrap();
            assert!(found.len() > 20, "{sharding}");
            assert_eq!(found, without.outcomes(&mut ()).unwrap().unwrap(), "{sharding}, beside none");
            assert_eq!(found, cpu.outcomes(&mut ()).unwrap().unwrap(), "{sharding}");
            own.advance(2, &mut ()).unwrap();
            without.advance(2, &mut ()).unwrap();
            // Which rounds otherwise.
            cpu.set_table(0, &own.table(0).unwrap()).unwrap();
        }
        assert!(state(&own).unwrap() == state(&without).unwrap(), "{sharding}");
    }
}
