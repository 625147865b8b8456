//! Rows and gradients that travel as brain floats, rows also as MXINT8, on GPUs that are emulated: tables after training are those of the CPU, bit by
//! bit, whatever the sharding, the strategy and the links.

use std::sync::Arc;

use fs_compiler::{CompileOptions, Strategy, compile_with};
use fs_dsl::checked::Cluster;
use fs_executor::device::cpu::Cpu;
use fs_executor::device::cuda::Cuda;
use fs_executor::transport::wire::World;
use fs_executor::{Session, data};
use fs_kernels::cuda::driver::emulated::Emulated;
use fs_kernels::cuda::emulated::Emulation;
use fs_kernels::cuda::sources::Precision;
use fs_schedule::{Action, Element, Leg, Op, Operand, Place, Schedule};
use fs_tests::emulated::{device, kernels_for, thorough, train};
use fs_tests::on_all_cores;
use fs_tests::pipes::joined;
use fs_tests::through_relays;
use fs_tests::training::{self, Outcome, options};

type Gpu = Cuda<Emulated>;
type Both = [Arc<Emulation>; 2];

fn kernels() -> Option<Both> {
    let of = |precision| kernels_for(env!("CARGO_TARGET_TMPDIR"), precision);
    Some([of(Precision::F32)?, of(Precision::Bf16)?])
}

/// A model whose gradients of rows are the same on all devices, though products and exponentials round otherwise: logits are so
/// far from zero that probabilities are 0 or 1, and a product with one column has one term for each gradient of a row. Rates are
/// so great that the last bits of a sum of gradients are not lost in what rows hold.
fn model(sharding: &str, optimizer: &str, precision: &str) -> String {
    format!(
        "model wired {{
          table a {{ rows 60  dim 8  init normal(0, 30000)  optimizer {optimizer}  sharding {sharding} }}
          table b {{ rows 40  dim 8  init normal(0, 30000)  optimizer {optimizer}  sharding {sharding} }}
          input x: ids(a) {{ max 9 }}
          input y: ids(b) like x
          input z: ids(a) like x
          input click: label like x
          let h = (lookup(x) + lookup(z)) * lookup(y)
          loss bce_with_logits(linear(h, 1), click, normalize: tokens)
        }}
        train {{ {precision}  batch 24  steps 3  optimizer sgd(lr: 1e-30) }}
        workload w {{ generate {{ lengths uniform(0, 7)  ids zipf(1.05)  labels hash  samples 71 }} }}"
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
}

fn compiled(text: &str, strategy: Strategy, microbatches: u32, links: Links) -> Schedule {
    let program = fs_dsl::check_text("model.fs", text).program.expect("it checks");
    let ranks = if links == Links::Node { 3 } else { 4 };
    let options = CompileOptions::new(strategy, ranks).lookahead(2).microbatches(microbatches);
    let local = fs_dsl::cluster::preset("local").expect("a preset");
    let schedule = match links {
        Links::Node => compile_with(&program, &options).expect("it compiles").schedule,
        Links::Nodes => {
            let options = options.cluster(Cluster { gpus_per_node: 2, ..local }).balance(false);
            compile_with(&program, &options).expect("it compiles").schedule
        }
        Links::Relays => through_relays(&program, options).expect("it compiles"),
    };
    assert_eq!(schedule.settings.node, (links != Links::Node).then_some(2));
    schedule
}

/// What an operand's numbers are.
fn element(s: &Schedule, operand: Option<&Operand>) -> Option<Element> {
    match operand?.place {
        Place::Buffer(n) => Some(s.train.buffers[n as usize].element),
        _ => None,
    }
}

/// What these operations read or write first, all of them; none if there are no such operations.
fn all_of<'o>(s: &'o Schedule, of: impl Fn(&'o Op) -> Option<&'o Operand>) -> Option<Element> {
    let mut found = s.train.ops.iter().filter_map(|op| element(s, of(op)));
    let first = found.next()?;
    assert!(found.all(|other| other == first), "some travel so and some otherwise");
    Some(first)
}

fn cpu(schedule: &Schedule) -> Outcome {
    train::<Cpu<f32>>(schedule, &(), &mut ()).unwrap_or_else(|e| panic!("{e}"))
}

fn assert_same(what: &str, found: &Outcome, expected: &Outcome) {
    assert!(found.losses.len() == expected.losses.len() && found.state.len() == expected.state.len());
    // Sums of products, which round otherwise.
    for (a, b) in found.losses.iter().zip(&expected.losses) {
        let (a, b) = (f64::from_bits(*a), f64::from_bits(*b));
        assert!((a - b).abs() <= 1e-5 * b.abs(), "{what}: a loss of {a}, {b} on the CPU");
    }
    for (n, (a, b)) in found.state.iter().zip(&expected.state).enumerate() {
        let differ = a.iter().zip(b).filter(|(a, b)| a != b).count();
        assert!(a == b, "{what}: list {n} differs in {differ} of {} numbers", b.len());
    }
}

/// What rows, gradients, and the dense graph are.
type Narrow = [Element; 3];
const ROWS: Narrow = [Element::Bf16, Element::Real, Element::Real];
const GRADIENTS: Narrow = [Element::Real, Element::Bf16, Element::Real];
const BOTH: Narrow = [Element::Bf16, Element::Bf16, Element::Real];
const ALL: Narrow = [Element::Bf16; 3];
const BLOCKS: Narrow = [Element::Mxint8, Element::Real, Element::Real];
const LEAST: Narrow = [Element::Mxint8, Element::Bf16, Element::Bf16];

fn precision(narrow: Narrow) -> String {
    let words = narrow.map(|element| match element {
        Element::Bf16 => "bf16",
        Element::Mxint8 => "mxint8",
        _ => "f32",
    });
    format!("precision {{ output_dist {}  gradient_dist {}  compute {} }}", words[0], words[1], words[2])
}

type Case<'a> = (&'a str, &'a str, Strategy, u32, Links, Narrow);

fn same(kernels: &Both, seed: u64, case: Case<'_>) {
    let (sharding, optimizer, strategy, microbatches, links, narrows) = case;
    let what = format!("{case:?}");
    // No block of columns is cut.
    let wide = sharding == "column_wise" && narrows[0] == Element::Mxint8;
    let model = |precision: &str| {
        model(sharding, optimizer, precision).replace("dim 8", if wide { "dim 96" } else { "dim 8" })
    };
    let schedule = compiled(&model(&precision(narrows)), strategy, microbatches, links);
    let relayed = schedule.exchanges.iter().any(|x| matches!(x.leg, Leg::Between { .. }));
    assert_eq!(relayed, links == Links::Relays && sharding != "data_parallel", "{what}");
    let gathered =
        all_of(&schedule, |op| matches!(op.action, Action::Gather { .. }).then(|| op.writes.first())?);
    assert_eq!(gathered, Some(narrows[0]), "{what}");
    let sends = |op: &Op| matches!(op.action, Action::AllToAllGrads { .. } | Action::AllGatherGrads { .. });
    assert_eq!(all_of(&schedule, |op| sends(op).then(|| op.reads.first())?), Some(narrows[1]), "{what}");
    let expected = cpu(&schedule);
    let found = train::<Gpu>(&schedule, &device(kernels, seed), &mut ());
    assert_same(&what, &found.unwrap_or_else(|e| panic!("{what}: {e}")), &expected);
    // Rounding shows: what travels as it is makes another table.
    let text = model(&precision([Element::Real, Element::Real, narrows[2]]));
    let wide = cpu(&compiled(&text, strategy, microbatches, links));
    assert!(wide.state[0] != expected.state[0], "{what}: nothing tells it from f32");
}

/// All of some cases, or the first so many.
fn all_same(cases: &[Case<'_>], some: usize) {
    let Some(kernels) = kernels() else { return };
    let some = if thorough() { cases.len() } else { some };
    let numbered: Vec<_> = (1..).zip(&cases[..some]).collect();
    on_all_cores(&numbered, |(seed, case)| same(&kernels, *seed, **case));
}

const SGD: &str = "sgd(lr: 3000)";
const ADAGRAD: &str = "adagrad(lr: 500)";

#[test]
fn row_wise() {
    use Links::{Node, Nodes, Relays};
    use Strategy::{Pec, Prefetch, Serial};
    let cases = [
        ("row_wise", SGD, Pec, 2, Node, BOTH),
        ("row_wise", ADAGRAD, Pec, 1, Nodes, ALL),
        ("row_wise", SGD, Pec, 2, Relays, BOTH),
        ("row_wise", SGD, Pec, 2, Relays, BLOCKS),
        ("row_wise", ADAGRAD, Pec, 1, Node, LEAST),
        ("row_wise", SGD, Prefetch, 2, Node, ROWS),
        ("row_wise", SGD, Serial, 1, Relays, GRADIENTS),
        ("row_wise(placement: hashed)", ADAGRAD, Pec, 1, Relays, ALL),
        ("row_wise", ADAGRAD, Serial, 2, Nodes, GRADIENTS),
        ("row_wise", SGD, Prefetch, 1, Relays, ROWS),
        ("row_wise", SGD, Prefetch, 2, Nodes, BLOCKS),
        ("row_wise", ADAGRAD, Serial, 1, Relays, LEAST),
    ];
    all_same(&cases, 5);
}

#[test]
fn table_and_column_wise() {
    use Links::{Node, Nodes, Relays};
    use Strategy::{Pec, Prefetch, Serial};
    let cases = [
        ("table_wise", SGD, Prefetch, 1, Node, BOTH),
        ("column_wise", SGD, Pec, 2, Nodes, BOTH),
        ("column_wise", ADAGRAD, Pec, 1, Relays, BLOCKS),
        ("table_wise", SGD, Serial, 2, Nodes, LEAST),
        ("column_wise", ADAGRAD, Serial, 1, Relays, ALL),
        ("table_wise", ADAGRAD, Pec, 2, Relays, ROWS),
        ("table_wise", SGD, Serial, 2, Nodes, ALL),
        ("column_wise", SGD, Pec, 1, Node, GRADIENTS),
    ];
    all_same(&cases, 3);
}

#[test]
fn data_parallel() {
    use Links::{Node, Nodes};
    use Strategy::{Pec, Prefetch, Serial};
    let cases = [
        ("data_parallel", SGD, Pec, 2, Nodes, BOTH),
        ("data_parallel", SGD, Pec, 1, Nodes, BLOCKS),
        ("data_parallel", ADAGRAD, Serial, 1, Node, ALL),
        ("data_parallel", SGD, Prefetch, 1, Node, ROWS),
        ("data_parallel", SGD, Pec, 1, Nodes, GRADIENTS),
    ];
    all_same(&cases, 3);
}

/// Gradients of parameters, whose sums are rounded so much that products which round otherwise are the same.
#[test]
fn sums_over_ranks() {
    let Some(kernels) = kernels() else { return };
    let cases = [
        (Strategy::Pec, 1, Links::Node),
        (Strategy::Serial, 2, Links::Nodes),
        (Strategy::Pec, 2, Links::Relays),
    ];
    for (seed, (strategy, microbatches, links)) in (1..).zip(&cases[..if thorough() { 3 } else { 2 }]) {
        let of = |precision: &str| {
            let text = model("row_wise", SGD, precision).replace("lr: 1e-30", "lr: 1e-7");
            compiled(&text, *strategy, *microbatches, *links)
        };
        let schedule = of("precision { all_reduce bf16 }");
        assert!(schedule.train.buffers.iter().all(|b| b.element != Element::Bf16) && schedule.has_bf16());
        let expected = cpu(&schedule);
        let found = train::<Gpu>(&schedule, &device(&kernels, seed), &mut ());
        let what = format!("{strategy:?} {links:?}");
        assert_same(&what, &found.unwrap_or_else(|e| panic!("{what}: {e}")), &expected);
        assert!(cpu(&of("")).state != expected.state, "{what}: nothing tells it from f32");
    }
}

/// Between processes rows and gradients pass through the host. Gradients of parameters do not, so there are none.
#[test]
fn between_processes() {
    let Some(kernels) = kernels() else { return };
    let all = [Links::Relays, Links::Node];
    let each = all.into_iter().flat_map(|links| [(links, BOTH), (links, LEAST)]);
    for (links, narrows) in each.take(if thorough() { 4 } else { 2 }) {
        let narrows = [narrows[0], narrows[1], Element::Real];
        let text = model("row_wise", SGD, &precision(narrows));
        let text = text.replace("dim 8", "dim 1").replace("linear(h, 1)", "h");
        let schedule = compiled(&text, Strategy::Pec, 2, links);
        let expected = cpu(&schedule);
        let parts = if links == Links::Node { [vec![0], vec![1, 2]] } else { [vec![0, 1], vec![2, 3]] };
        let worlds = joined(&parts).expect("streams");
        let run = |seed, world: World| {
            let schedule = Arc::new(schedule.clone());
            let source = data::open(&schedule, None, None, schedule.settings.seed).expect("data");
            let (options, own) = (options().world(Some(world)), device(&kernels, seed));
            let session = Session::<f32, Gpu>::on(schedule, options, source, &own);
            let mut session = session.unwrap_or_else(|e| panic!("{links:?}: {e}"));
            training::train(&mut session, &mut ()).unwrap_or_else(|e| panic!("{links:?}: {e}")).0
        };
        let found: Vec<Outcome> = std::thread::scope(|scope| {
            let run = |(seed, (world, _))| scope.spawn(move || run(seed, world));
            let running: Vec<_> = (1..).zip(worlds).map(run).collect();
            running.into_iter().map(|thread| thread.join().expect("it ends")).collect()
        });
        for found in &found {
            assert_same(&format!("{links:?}"), found, &expected);
        }
    }
}

/// A device needs kernels of both precisions, also where all is computed in f32.
#[test]
fn what_has_no_kernels() {
    let Some([wide, _]) = kernels() else { return };
    for narrows in [ROWS, GRADIENTS] {
        let schedule =
            compiled(&model("row_wise", SGD, &precision(narrows)), Strategy::Serial, 1, Links::Node);
        let said = train::<Gpu>(&schedule, &device(&wide, 1), &mut ()).unwrap_err();
        assert!(said.contains("there are no kernels for numbers in bf16"), "{said}");
    }
}
