//! Schedules on GPUs that are emulated (`fs_kernels::cuda::driver::emulated`): work is done late and in another order,
//! and nothing is used that nothing orders. `FS_THOROUGH=1` tries all strategies in each case.

use std::sync::Arc;

use fs_compiler::Strategy;
use fs_executor::device::Device;
use fs_executor::device::cpu::Cpu;
use fs_executor::device::cuda::{self, Cuda};
use fs_executor::{Observer, StepEvent};
use fs_kernels::cuda::driver::emulated::Emulated;
use fs_kernels::cuda::emulated::Emulation;
use fs_schedule::{Element, Engine, Op, Operand, Place, Schedule};
use fs_tests::emulated::{assert_near, device, thorough};
use fs_tests::training::{Outcome, compile, compile_on_gpus, model};

struct Accounts;

impl Observer for Accounts {
    fn step(&mut self, event: &StepEvent) {
        for a in &event.accounts {
            assert_eq!(a.time, a.compute + a.exposed + a.straggler + a.host + a.other, "step {}", event.step);
        }
    }
}

fn train<D: Device<Real = f32>>(s: &Schedule, device: &D::Options) -> Result<Outcome, String> {
    fs_tests::emulated::train::<D>(s, device, &mut Accounts)
}

fn kernels() -> Option<Arc<Emulation>> {
    fs_tests::emulated::kernels(env!("CARGO_TARGET_TMPDIR"))
}

/// Every strategy, lookahead and number of microbatches on so many ranks: near the CPU, and with the same bits whatever the
/// strategy.
fn equal(text: &str, ranks: &[u32], microbatches: &[u32]) {
    let Some(kernels) = kernels() else { return };
    let microbatches = if thorough() { microbatches } else { &microbatches[microbatches.len() - 1..] };
    for (n, ranks) in (0..).zip(ranks) {
        for microbatches in microbatches {
            let serial = compile(text, Strategy::Serial, *ranks, 1, *microbatches);
            let on_cpu = train::<Cpu<f32>>(&serial, &()).unwrap_or_else(|e| panic!("{e}"));
            let mut all = vec![serial, compile(text, Strategy::Prefetch, *ranks, 1, *microbatches)];
            all.extend((1..=3).map(|k| compile(text, Strategy::Pec, *ranks, k, *microbatches)));
            if !thorough() {
                // Another one beside the first for each test and number.
                let other = 1 + (text.len() + (*ranks + *microbatches) as usize) % 4;
                all = [0, other].map(|i| all[i].clone()).to_vec();
            }
            let mut expected = None;
            for (i, schedule) in (0..).zip(&all) {
                let seed = 100 * n + 10 * u64::from(*microbatches) + i;
                let what = format!(
                    "{ranks} ranks, {microbatches} microbatches, {:?} (schedule {i}), seed {seed}",
                    schedule.strategy
                );
                let outcome = train::<Cuda<Emulated>>(schedule, &device(&kernels, seed));
                let outcome = outcome.unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_near(&what, &outcome, &on_cpu);
                let first = expected.get_or_insert_with(|| outcome.clone());
                assert!(outcome == *first, "{what}: other bits than with the first schedule");
            }
        }
    }
}

/// A small model, for less work a step.
fn small(sharding: &str, optimizer: &str, unique: bool) -> String {
    model(sharding, optimizer, 60, unique).replace("batch 12  steps 7", "batch 6  steps 9")
}

#[test]
fn row_wise() {
    equal(&small("row_wise", "rowwise_adagrad(lr: 0.05)", true), &[2], &[1, 2]);
}

/// Of about 840 positions of a rank one of two rows has more than are summed by a row of threads, as those do that owners receive.
#[test]
fn rows_that_are_used_by_hundreds() {
    for unique in [true, false] {
        let text = model("row_wise", "sgd(lr: 0.05)", 2, unique);
        let text =
            text.replace("batch 12  steps 7", "batch 480  steps 2").replace("samples 31", "samples 977");
        equal(&text, &[2], &[1]);
    }
}

#[test]
fn row_wise_on_one_and_three_ranks() {
    equal(&small("row_wise", "rowwise_adagrad(lr: 0.05)", true), &[1, 3], &[1]);
}

#[test]
fn one_row_per_occurrence() {
    equal(&small("row_wise", "adam(lr: 0.05)", false), &[2], &[1, 2]);
}

#[test]
fn table_wise() {
    equal(&small("table_wise", "adagrad(lr: 0.05)", true), &[2], &[1, 2]);
}

#[test]
fn column_wise() {
    equal(&small("column_wise", "adam(lr: 0.05)", true), &[2], &[1, 2]);
}

#[test]
fn data_parallel() {
    equal(&small("data_parallel", "sgd(lr: 0.1)", true), &[2], &[1, 2]);
}

/// Layers and losses over tokens.
#[test]
fn layers_of_tokens() {
    let text = "model tokens {
      table a { rows 50  dim 8  init normal(0, 0.5)  optimizer adagrad(lr: 0.05)  sharding row_wise }
      input x: ids(a) { max 9 }
      input following: next(x)
      let h = dropout(positional(lookup(x)), 0.3)
      let s = silu_attention(linear(h, 8), linear(h, 8), linear(h, 8), heads: 2)
      let t = softmax_attention(layer_norm(s), h, gelu(h), heads: 2)
      let g = h + silu(s) * sigmoid(t)
      loss sampled_softmax(g, a, following, negatives: 3, temperature: 0.5, similarity: cosine, normalize: tokens)
    }
    train { batch 6  steps 4  optimizer adam(lr: 1e-3) }
    workload w { generate { lengths uniform(0, 7)  ids zipf(1.05)  labels bernoulli(0.5)  samples 31 } }";
    equal(text, &[2], &[1, 2]);
}

/// Layers over samples: features, pooled rows, interactions.
#[test]
fn layers_of_samples() {
    let text = "model samples {
      table a { rows 50  dim 8  init normal(0, 0.5)  optimizer adagrad(lr: 0.05)  sharding row_wise }
      table b { rows 40  dim 8  init normal(0, 0.5)  optimizer sgd(lr: 0.05)  sharding data_parallel }
      input x: ids(a) { max 9 }
      input y: ids(b) { max 5 }
      input features: dense(3)
      input click: label
      let d = linear(features, 8)
      let p = pool(x, sum)
      let q = scale(pool(y, mean), 0.5)
      let z = concat(dot_interaction(d, p, q), relu(p * q), d)
      loss bce_with_logits(linear(dropout(z, 0.2), 1), click, normalize: samples)
    }
    train { batch 6  steps 4  optimizer adam(lr: 1e-3) }
    workload w { generate { lengths uniform(0, 7)  ids zipf(1.05)  labels bernoulli(0.5)  samples 31 } }";
    equal(text, &[2], &[1, 2]);
}

/// Whether two operations use one place on the device. Counts are the host's, as batches are.
fn share(schedule: &Schedule, a: &Op, b: &Op) -> bool {
    let slot = |operand: &Operand| match operand.place {
        Place::Buffer(n) => {
            let buffer = &schedule.train.buffers[n as usize];
            (buffer.element != Element::Count).then_some((buffer.element, buffer.slot))
        }
        _ => None,
    };
    let same = |x: &Operand, y: &Operand| match (x.place, y.place) {
        (Place::Buffer(_), Place::Buffer(_)) => slot(x).is_some() && slot(x) == slot(y),
        (Place::Lengths(_) | Place::Input(_), _) => false,
        (x, y) => x == y,
    };
    let all = |op: &Op| -> Vec<Operand> { op.reads.iter().chain(&op.writes).copied().collect() };
    all(a).iter().any(|x| all(b).iter().any(|y| same(x, y)))
}

/// Without its dependencies an operation uses what others may still be at. All that wait for another queue are tried; those that
/// share no place on the device with what they wait for (a batch, counts) may go unnoticed.
#[test]
fn a_dependency_that_is_left_out_is_noticed() {
    let Some(kernels) = kernels() else { return };
    let text = small("row_wise", "adagrad(lr: 0.05)", true).replace("steps 9", "steps 14");
    let (mut tried, mut unnoticed) = (0, Vec::new());
    let all = [(Strategy::Pec, 2, 2), (Strategy::Prefetch, 1, 1), (Strategy::Pec, 1, 1)];
    let some = if thorough() { &all[..] } else { &all[..1] };
    let schedules = some.iter().map(|(strategy, lookahead, microbatches)| {
        ((*strategy, *lookahead), compile(&text, *strategy, 2, *lookahead, *microbatches), false)
    });
    // Of operations that one launch starts none waits then.
    let on_gpus = compile_on_gpus(&text, Strategy::Pec, 2, 2, 1);
    for ((strategy, lookahead), schedule, joined) in schedules.chain([((Strategy::Pec, 2), on_gpus, true)]) {
        let ops = &schedule.train.ops;
        for (i, op) in ops.iter().enumerate() {
            if joined && !ops.get(i + 1).is_some_and(|next| next.joined) {
                continue;
            }
            let others = op.deps.iter().map(|dep| &ops[dep.op as usize]);
            let others = others.filter(|o| (o.engine, o.priority) != (op.engine, op.priority));
            // Where work on ids is planned among what else compute does is no need of its.
            let planned = |o: &&Op| {
                (o.engine, op.engine) == (Engine::Compute, Engine::Compute) && o.priority < op.priority
            };
            let others = others.filter(|o| !planned(o));
            let others: Vec<&Op> = others.collect();
            if others.is_empty() {
                continue;
            }
            tried += 1;
            let options = cuda::Options { careless: Some(op.name.clone()), ..device(&kernels, tried) };
            let driver = Arc::clone(&options.drivers[0]);
            let what = format!("{strategy:?}, lookahead {lookahead}, joined {joined}, `{}`", op.name);
            if let Err(error) = train::<Cuda<Emulated>>(&schedule, &options) {
                // A kernel may meet poison before what should have come before it does.
                let noticed = ["nothing orders the two", "met an index that is out of range"];
                assert!(noticed.iter().any(|how| error.contains(how)), "{what}: {error}");
                continue;
            }
            if driver.done(&op.name) == 0 {
                // A class without rows in all of these steps.
                tried -= 1;
                continue;
            }
            let shared = others.iter().any(|other| share(&schedule, other, op));
            assert!(!shared, "{what}: not noticed");
            unnoticed.push(what);
        }
    }
    eprintln!("{} of {tried} operations went unnoticed: {unnoticed:#?}", unnoticed.len());
    assert!(
        tried > 15 * some.len() as u64 && unnoticed.len() <= some.len(),
        "{} of {tried}: {unnoticed:#?}",
        unnoticed.len()
    );
}
