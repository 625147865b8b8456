//! Rows through relays on GPUs that are emulated: every list that an operation makes, and tables after training, are those
//! of the CPU, bit by bit.

use std::sync::Arc;

use fs_compiler::{CompileOptions, Strategy, compile_with};
use fs_dsl::checked::Cluster;
use fs_executor::device::Device;
use fs_executor::device::cpu::Cpu;
use fs_executor::device::cuda::Cuda;
use fs_executor::{Options, Session, data};
use fs_kernels::cuda::driver::emulated::Emulated;
use fs_schedule::{Leg, Schedule};
use fs_tests::training::{self, Outcome};
use fs_tests::witness::{self, Look, Seen, Witness, difference};
use fs_tests::{emulated, through_relays};

/// A model whose gradients of rows are the same on all devices, though products and exponentials round otherwise: logits are so
/// far from zero that probabilities are 0 or 1, a product with one column has one term for each gradient of a row, and the
/// dense part stays as it is. Rates are so great that the last bits of a sum of gradients are not lost in what rows hold.
fn model(sharding: &str, optimizer: &str, unique: bool) -> String {
    format!(
        "model relayed {{
          table a {{ rows 60  dim 8  init normal(0, 30000)  optimizer {optimizer}  sharding {sharding} }}
          table b {{ rows 40  dim 8  init normal(0, 30000)  optimizer {optimizer}  sharding {sharding} }}
          input x: ids(a) {{ max 9 }}
          input y: ids(b) like x
          input z: ids(a) like x
          input click: label like x
          let h = (lookup(x) + lookup(z)) * lookup(y)
          loss bce_with_logits(linear(h, 1), click, normalize: tokens)
        }}
        train {{ batch 16  steps 3  optimizer sgd(lr: 1e-30)  unique_rows {unique} }}
        workload w {{ generate {{ lengths uniform(0, 7)  ids zipf(1.05)  labels hash  samples 47 }} }}"
    )
}

/// On two nodes of two ranks.
fn compiled(text: &str, strategy: Strategy, microbatches: u32, relayed: bool) -> Schedule {
    let program = fs_dsl::check_text("model.fs", text).program.expect("it checks");
    let options = CompileOptions::new(strategy, 4).lookahead(2).microbatches(microbatches);
    let schedule = if relayed {
        through_relays(&program, options).expect("it compiles")
    } else {
        let local = fs_dsl::cluster::preset("local").expect("a preset");
        let options = options.cluster(Cluster { gpus_per_node: 2, ..local }).balance(false);
        compile_with(&program, &options).expect("it compiles").schedule
    };
    assert_eq!(schedule.settings.node, Some(2));
    assert_eq!(schedule.exchanges.iter().any(|x| matches!(x.leg, Leg::Between { .. })), relayed);
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

fn same(schedule: &Schedule, seed: u64, what: &str) {
    let Some(kernels) = emulated::kernels(env!("CARGO_TARGET_TMPDIR")) else { return };
    let (lists, expected) = trained::<Cpu<f32>>(schedule, ()).unwrap_or_else(|e| panic!("{what}: {e}"));
    let found = trained::<Cuda<Emulated>>(schedule, emulated::device(&kernels, seed));
    let (seen, found) = found.unwrap_or_else(|e| panic!("{what}: {e}"));
    if let Some(difference) = difference(schedule, &seen, &lists) {
        panic!("{what}: {difference}");
    }
    // Sums of products, which round otherwise.
    for (a, b) in found.losses.iter().zip(&expected.losses) {
        let (a, b) = (f64::from_bits(*a), f64::from_bits(*b));
        assert!((a - b).abs() <= 1e-5 * b.abs(), "{what}: a loss of {a}, {b} on the CPU");
    }
    assert!(found.losses.len() == expected.losses.len() && found.state.len() == expected.state.len());
    for (n, (a, b)) in found.state.iter().zip(&expected.state).enumerate() {
        let differ = a.iter().zip(b).filter(|(a, b)| a != b).count();
        assert!(a == b, "{what}: list {n} differs in {differ} of {} numbers", b.len());
    }
}

/// All combinations, or some of them by their numbers.
fn all_same(shardings: &[(&str, &str, bool)], relayed: bool, some: &[u64]) {
    let mut n = 0;
    for (sharding, optimizer, unique) in shardings {
        for (strategy, microbatches) in
            [(Strategy::Pec, 2), (Strategy::Serial, 1), (Strategy::Pec, 1), (Strategy::Serial, 2)]
        {
            n += 1;
            if !emulated::thorough() && !some.contains(&n) {
                continue;
            }
            let text = model(sharding, optimizer, *unique);
            let schedule = compiled(&text, strategy, microbatches, relayed);
            let what = format!(
                "{sharding}, {optimizer}, unique {unique}, {strategy:?}, {microbatches} parts, relays {relayed}"
            );
            same(&schedule, n, &what);
        }
    }
}

#[test]
fn row_wise() {
    let cases = [("row_wise", "sgd(lr: 3000)", true), ("row_wise", "adagrad(lr: 500)", false)];
    all_same(&cases, true, &[1, 6]);
}

#[test]
fn hashed_rows() {
    let hashed = "row_wise(placement: hashed)";
    all_same(&[(hashed, "sgd(lr: 3000)", true), (hashed, "sgd(lr: 3000)", false)], true, &[7]);
}

#[test]
fn table_and_column_wise() {
    let of = |sharding| [(sharding, "sgd(lr: 3000)", true), (sharding, "sgd(lr: 3000)", false)];
    all_same(&of("table_wise"), true, &[5]);
    all_same(&of("column_wise"), true, &[3]);
}

/// Owners sum by node what ranks of other nodes send themselves.
#[test]
fn nodes_without_relays() {
    let cases = [("row_wise", "adagrad(lr: 500)", true), ("column_wise", "sgd(lr: 3000)", false)];
    all_same(&cases, false, &[1]);
}
