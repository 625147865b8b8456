//! What training changes lies on the (emulated) GPU alone: every rule of updates, what checkpoints, evaluation and the host get to see
//! of it, and what is said where a GPU cannot do it.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::sync::Arc;

use fs_compiler::Strategy;
use fs_executor::Options;
use fs_executor::device::cpu::Cpu;
use fs_executor::device::cuda::{self, Cuda};
use fs_kernels::cuda::driver::Facts;
use fs_kernels::cuda::driver::emulated::{self, Emulated};
use fs_kernels::cuda::emulated::Emulation;
use fs_kernels::cuda::sources::Precision;
use fs_schedule::{Action, Schedule};
use fs_tests::emulated::{assert_list_near, assert_near, device, kernels_for, session, thorough, train};
use fs_tests::training::{
    OPTIMIZERS, SHARDINGS, bits, checkpoints, compile, compile_on_gpus, leaving, model, options, state,
};

type Gpu = Cuda<Emulated>;

fn kernels() -> Option<Arc<Emulation>> {
    fs_tests::emulated::kernels(env!("CARGO_TARGET_TMPDIR"))
}

/// A small model with this optimizer of dense parameters.
fn small(sharding: &str, sparse: &str, dense: &str, unique: bool) -> String {
    let text = model(sharding, sparse, 60, unique).replace("batch 12  steps 7", "batch 6  steps 9");
    text.replace("optimizer adam(lr: 1e-2)", &format!("optimizer {dense}"))
}

const DENSE: [&str; 5] = [
    "sgd(lr: 0.05)",
    "sgd(lr: 0.02, momentum: 0.9)",
    "sgd(lr: 0.02, momentum: 0.9, weight_decay: 0.05)",
    "adam(lr: 1e-2)",
    "adam(lr: 1e-2, beta1: 0.8, beta2: 0.95, eps: 1e-6, weight_decay: 0.05)",
];

const SPARSE: [&str; 5] = [
    "sgd(lr: 0.1)",
    "rowwise_adagrad(lr: 0.05, eps: 1e-4)",
    "adagrad(lr: 0.05)",
    "adam(lr: 0.02, beta1: 0.8, beta2: 0.95, eps: 1e-6)",
    "rowwise_adagrad(lr: 0.05)",
];

/// Near the CPU, and the same bits in both schedules.
#[test]
fn every_optimizer() {
    let Some(kernels) = kernels() else { return };
    for (n, (sparse, dense)) in SPARSE.iter().zip(DENSE).enumerate() {
        let sharding = SHARDINGS[(n + 2) % SHARDINGS.len()];
        let text = small(sharding, sparse, dense, n % 2 == 0);
        let serial = compile(&text, Strategy::Serial, 3, 1, 1);
        let on_cpu = train::<Cpu<f32>>(&serial, &(), &mut ()).unwrap();
        let mut first = None;
        for (i, schedule) in [&serial, &compile(&text, Strategy::Pec, 3, 2, 1)].into_iter().enumerate() {
            let what = format!("{sharding}, {sparse}, {dense}, schedule {i}");
            let outcome = train::<Gpu>(schedule, &device(&kernels, (10 * n + i) as u64), &mut ());
            let outcome = outcome.unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_near(&what, &outcome, &on_cpu);
            let first = first.get_or_insert_with(|| outcome.clone());
            assert!(outcome == *first, "{what}: other bits than with the first schedule");
        }
    }
}

/// A row's gradients are summed alike, whether each source rank sends one or one for each occurrence.
#[test]
fn sums_of_a_row_do_not_depend_on_who_sums() {
    let Some(kernels) = kernels() else { return };
    for (n, sharding) in ["row_wise", "table_wise"].into_iter().enumerate() {
        let [once, each] = [true, false].map(|unique| {
            let schedule = compile(&small(sharding, SPARSE[3], DENSE[1], unique), Strategy::Serial, 3, 1, 1);
            train::<Gpu>(&schedule, &device(&kernels, n as u64), &mut ()).unwrap()
        });
        assert!(once == each, "{sharding}");
    }
}

/// However an all-reduce is cut, its sums have the same bits.
#[test]
fn an_all_reduce_in_pieces() {
    let Some(kernels) = kernels() else { return };
    let Some(brain) = kernels_for(env!("CARGO_TARGET_TMPDIR"), Precision::Bf16) else { return };
    let kernels = [kernels, brain];
    let mut ends = Vec::new();
    for precision in ["f32", "bf16"] {
        let text = small("row_wise", SPARSE[0], DENSE[1], true);
        let text = text.replace("train {", &format!("train {{ precision {{ all_reduce {precision} }} "));
        let mut schedule = compile(&text, Strategy::Serial, 3, 1, 1);
        assert_eq!(schedule.has_bf16(), precision == "bf16");
        let whole = train::<Gpu>(&schedule, &device(&kernels, 1), &mut ()).unwrap();
        let mut cut = 0;
        for (n, chunk) in [4, 12, 100].into_iter().enumerate() {
            for op in schedule.train.ops.iter_mut().filter(|op| op.action == Action::AllReduce) {
                op.chunk = Some(chunk);
                cut += 1;
            }
            let own = train::<Gpu>(&schedule, &device(&kernels, 2 + n as u64), &mut ());
            assert!(own.unwrap() == whole, "{precision} in pieces of {chunk} bytes");
        }
        assert!(cut > 0);
        ends.push(whole);
    }
    assert!(ends[0] != ends[1], "rounding shows");
}

const STEPS: u64 = 12;

/// What is written while training goes on is the state after a step, and who goes on from it has the bits of a run that was
/// never stopped. What the CPU takes of it is the same.
fn checkpoint(kernels: &Arc<Emulation>, schedule: &Schedule, room: usize, seed: u64) -> (u64, u64, f64) {
    let on = |n: u64| cuda::Options { room, ..device(kernels, 100 * seed + n) };
    let begin = |n, options| session::<Gpu>(schedule, options, &on(n)).unwrap();
    let mut alone = begin(0, options());
    let mut states = vec![state(&alone).unwrap()];
    for _ in 0..STEPS {
        alone.advance(1, &mut ()).unwrap();
        states.push(state(&alone).unwrap());
    }
    let folder = tempfile::tempdir().unwrap();
    let mut whole = begin(1, options().steps(STEPS).checkpoint(leaving(folder.path(), 3, 99)));
    let report = whole.run(&mut ()).unwrap();
    assert!(state(&whole).unwrap() == states[STEPS as usize], "a whole run");
    let found = checkpoints(folder.path());
    let mut during = 0;
    for (n, (step, path)) in (2..).zip(&found) {
        let begins = |options: Options| options.init(path.clone());
        let mut started = begin(n, begins(options()));
        let same = |now: Vec<Vec<u32>>, step: u64| now == states[step as usize];
        assert!(same(state(&started).unwrap(), *step), "step {step} as written");
        let on_cpu = session::<Cpu<f32>>(schedule, begins(options()), &()).unwrap();
        assert!(same(state(&on_cpu).unwrap(), *step), "step {step} on the CPU");
        started.advance(STEPS - step, &mut ()).unwrap();
        assert!(same(state(&started).unwrap(), STEPS), "going on from {step}");
        during += u64::from(*step < STEPS);
    }
    assert_eq!(found.last().map(|(step, _)| *step), Some(STEPS));
    let written = report.checkpoints.unwrap();
    (during, written.rows_aside, written.waited_ms)
}

#[test]
fn checkpoints_go_on_with_the_same_bits() {
    let Some(kernels) = kernels() else { return };
    let (mut during, mut aside, mut waited) = (0, 0, 0.0);
    let some = if thorough() { SHARDINGS.len() } else { 2 };
    for (n, sharding) in SHARDINGS.iter().enumerate() {
        // How many rows are put aside is up to the order of things: if few were, others are tried, too.
        if n >= some && aside > 20 {
            break;
        }
        let strategy = [Strategy::Pec, Strategy::Serial, Strategy::Prefetch][n % 3];
        let text = small(sharding, OPTIMIZERS[n % 4], DENSE[n % 5], n % 2 == 1);
        // On GPUs one launch starts several updates, but for those that put rows aside.
        let compile = if n % 2 == 0 { compile_on_gpus } else { compile };
        let schedule = compile(&text, strategy, [2, 3][n % 2], 1 + n as u32 % 2, 1);
        // Every other one with so little room that updates wait for it.
        let room = if n % 2 == 0 { 64 << 20 } else { 256 };
        let own = checkpoint(&kernels, &schedule, room, n as u64);
        (during, aside, waited) = (during + own.0, aside + own.1, waited + own.2);
    }
    assert!(during >= some as u64, "{during} were written while training went on");
    assert!(aside > 20, "{aside} rows were put aside");
    // Whether one of a few finds none is up to the order of things.
    assert!(waited > 0.0 || !thorough(), "none waited for room");
    eprintln!("{during} were written beside training, {aside} rows put aside, {waited} ms waited for room");
}

/// Gradients that are asked for change nothing.
#[test]
fn gradients_are_kept() {
    let Some(kernels) = kernels() else { return };
    for (n, sharding) in ["row_wise", "column_wise", "data_parallel"].into_iter().enumerate() {
        let schedule = compile(&small(sharding, SPARSE[2], DENSE[3], n == 0), Strategy::Serial, 2, 1, 1);
        let mut own = session::<Gpu>(&schedule, options(), &device(&kernels, n as u64)).unwrap();
        let mut cpu = session::<Cpu<f32>>(&schedule, options(), &()).unwrap();
        let before = state(&own).unwrap();
        assert!(before == state(&cpu).unwrap(), "{sharding}: initial values");
        for step in [0, 1] {
            let found = own.loss_and_gradients(step).unwrap();
            let expected = cpu.loss_and_gradients(step).unwrap();
            assert!((found.loss - expected.loss).abs() <= 1e-4 * expected.loss.abs());
            let lists = found.tables.iter().zip(&expected.tables);
            for (a, b) in lists.chain(found.parameters.iter().zip(&expected.parameters)) {
                assert!(b.iter().any(|g| *g != 0.0), "{sharding}: there are gradients");
                assert_list_near(sharding, a, b);
            }
        }
        assert!(state(&own).unwrap() == before, "{sharding}: nothing has changed");
        own.advance(2, &mut ()).unwrap();
        assert!(state(&own).unwrap() != before, "{sharding}: updates go on");
    }
}

/// Items are ranked by what was trained last, before and after more of it, and by what the host has set.
#[test]
fn evaluation_sees_what_was_trained() {
    let Some(kernels) = kernels() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("visits.csv");
    let mut text = String::from("user,item\n");
    for user in 0..40 {
        for at in 0..4 + user % 9 {
            writeln!(text, "u{user},{}", (user * 7 + at * at * 5 + at * user) % 50).unwrap();
        }
    }
    std::fs::write(&path, text).unwrap();
    let tried = |(n, sharding): &(usize, &&str)| !sharding.contains("planned") && (thorough() || n % 3 == 0);
    for (n, sharding) in SHARDINGS.iter().enumerate().filter(tried) {
        let text = format!(
            "model last {{
              table items {{ rows 60  dim 4  init normal(0, 0.5)  optimizer adagrad(lr: 0.5)  sharding {sharding} }}
              input history: ids(items) {{ max 50 }}
              input following: next(history)
              loss sampled_softmax(linear(lookup(history), 4), items, following, negatives: 3, temperature: 0.5, similarity: cosine, normalize: tokens)
            }}
            train {{ batch 12  epochs 2  optimizer sgd(lr: 0.5) }}
            workload visits {{ csv \"visits.csv\" {{ user \"user\"  item \"item\" }}  evaluate leave_last_out }}"
        );
        let schedule = compile(&text, Strategy::Serial, 2, 1, 1);
        let from = || Options::default().data(path.clone());
        let mut own = session::<Gpu>(&schedule, from(), &device(&kernels, n as u64)).unwrap();
        let mut cpu = session::<Cpu<f32>>(&schedule, from(), &()).unwrap();
        let mut seen = Vec::new();
        for round in 0..3 {
            // The same values on both, so that equal scores are told apart alike.
            let values = own.table(0).unwrap();
            let values: Vec<f32> = values.iter().map(|x| if round == 2 { -x } else { *x }).collect();
            cpu.set_table(0, &values).unwrap();
            own.set_table(0, &values).unwrap();
            assert_eq!(bits(&own.table(0).unwrap()), bits(&values), "{sharding}");
            for p in 0..schedule.parameters.len() {
                let values = own.parameter(p);
                cpu.set_parameter(p, &values).unwrap();
            }
            let found = own.evaluate(&mut ()).unwrap();
            let expected = cpu.evaluate(&mut ()).unwrap();
            let [found, expected] = [found, expected].map(|scores| {
                let scores = scores.unwrap().model.all;
                [scores.hr_10, scores.hr_50, scores.ndcg_10]
            });
            for (a, b) in found.into_iter().zip(expected) {
                assert!((a - b).abs() < 1e-6, "{sharding}, round {round}: {a}, {b} on the CPU");
            }
            seen.push(found);
            own.advance(3, &mut ()).unwrap();
        }
        assert!(seen[0] != seen[1] && seen[1] != seen[2], "{sharding}: {seen:?}");
    }
}

/// What is said before anything begins where tables do not fit.
#[test]
fn too_little_memory_is_said() {
    let Some(kernels) = kernels() else { return };
    let schedule = compile(&small("row_wise", SPARSE[3], DENSE[3], true), Strategy::Serial, 2, 1, 1);
    let facts = Facts { memory: 5000, free: 5000, ..emulated::Options::default().facts };
    let options = emulated::Options { facts, ..emulated::Options::default() };
    let driver = Arc::new(Emulated::new(options, Box::new(Arc::clone(&kernels))));
    let device = cuda::Options { drivers: vec![driver], ..cuda::Options::default() };
    let said = session::<Gpu>(&schedule, fs_tests::training::options(), &device).err().map(|e| e.to_string());
    let said = said.unwrap_or_default();
    assert!(
        said.contains("of 2 take") && said.contains("before the first batch, and emulated has"),
        "{said}"
    );
}

/// Heads that no kernel has room for.
#[test]
fn what_no_kernel_does_is_an_error() {
    let Some(kernels) = kernels() else { return };
    let text = "model wide {
      table a { rows 20  dim 8  init normal(0, 0.5)  optimizer sgd(lr: 0.1)  sharding row_wise }
      input x: ids(a) { max 5 }
      input click: label like x
      let h = linear(lookup(x), 129)
      loss bce_with_logits(linear(silu_attention(h, h, h, heads: 1), 1), click, normalize: tokens)
    }
    train { batch 4  steps 2 }
    workload w { generate { lengths uniform(1, 5)  ids zipf(1.05)  labels bernoulli(0.5)  samples 31 } }";
    let schedule = compile(text, Strategy::Serial, 1, 1, 1);
    let said = train::<Gpu>(&schedule, &device(&kernels, 1), &mut ()).err().unwrap_or_default();
    assert!(said.contains("a GPU cannot do `") && said.contains("columns"), "{said}");
}
