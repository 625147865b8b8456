//! Models that compute in bf16 on the (emulated) GPU, held against the CPU, which rounds where the GPU stores brain floats.
//!
//! Both round to the same numbers, but compute what they round in f32, each in its own way: exponentials, and sums within rows. In small
//! models that shows in no brain float. Only in attention a GPU multiplies its weights as brain floats, too, so that results round to
//! neighbours now and then. How far that takes them apart is compared with how far the CPU in f32 is from the CPU in bf16: were any of
//! the two to round elsewhere, or not at all, it would be as much.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::sync::Arc;

use fs_compiler::Strategy;
use fs_executor::device::cpu::Cpu;
use fs_executor::device::cuda::{self, Cuda};
use fs_kernels::cuda::driver::Facts;
use fs_kernels::cuda::driver::emulated::{self, Emulated};
use fs_kernels::cuda::emulated::Emulation;
use fs_kernels::cuda::sources::Precision;
use fs_schedule::{Action, Element, Operand, Place, Schedule};
use fs_tests::emulated::{device, kernels_for, session, thorough, train};
use fs_tests::training::{Outcome, checkpoints, compile, leaving, model, options, state};
use fs_tests::witness::{self, Witness};

type Gpu = Cuda<Emulated>;
type Both = [Arc<Emulation>; 2];

fn kernels() -> Option<Both> {
    let of = |precision| kernels_for(env!("CARGO_TARGET_TMPDIR"), precision);
    Some([of(Precision::F32)?, of(Precision::Bf16)?])
}

fn brain(text: &str) -> String {
    text.replace("train {", "train { precision { compute bf16 } ")
}

const TOKENS: &str = "model tokens {
  table a { rows 50  dim 16  init normal(0, 0.5)  optimizer adagrad(lr: 0.05) }
  input x: ids(a) { max 9 }
  input following: next(x)
  let h = dropout(positional(lookup(x)), 0.3)
  let s = silu_attention(linear(h, 16), linear(h, 16), linear(h, 16), heads: 2)
  let t = softmax_attention(layer_norm(s), h, gelu(h), heads: 2)
  let u, v = split(softmax(l2_normalize(h)), 2)
  let g = h + silu(s) * sigmoid(t) + concat(v, scale(u, 0.5))
  loss sampled_softmax(g, a, following, negatives: 3, temperature: 0.5, similarity: cosine, normalize: tokens)
}
train { batch 6  steps 4  optimizer adam(lr: 1e-3) }
workload w { generate { lengths uniform(0, 7)  ids zipf(1.05)  labels bernoulli(0.5)  samples 31 } }";

const SAMPLES: &str = "model samples {
  table a { rows 50  dim 8  init normal(0, 0.5)  optimizer adagrad(lr: 0.05) }
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
train { batch 6  steps 4  optimizer sgd(lr: 0.05, momentum: 0.9) }
workload w { generate { lengths uniform(0, 7)  ids zipf(1.05)  labels bernoulli(0.5)  samples 31 } }";

fn losses(outcome: &Outcome) -> Vec<f64> {
    outcome.losses.iter().map(|l| f64::from_bits(*l)).collect()
}

/// How far losses are apart at most, as a share of themselves. All must be numbers, or nothing is said.
fn apart(a: &Outcome, b: &Outcome) -> f64 {
    let (a, b) = (losses(a), losses(b));
    assert!(a.iter().chain(&b).all(|l| l.is_finite()), "{a:?} and {b:?}");
    a.iter().zip(&b).map(|(a, b)| (a - b).abs() / b.abs()).fold(0.0, f64::max)
}

/// How far two lists of states are apart, as a share of the second's norm: of the one that is farthest.
fn states_apart(a: &Outcome, b: &Outcome) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let of = |(a, b): (&Vec<u32>, &Vec<u32>)| {
        let pairs = || a.iter().zip(b).map(|(a, b)| [a, b].map(|x| f64::from(f32::from_bits(*x))));
        norm(&mut pairs().map(|[a, b]| a - b)) / norm(&mut pairs().map(|[_, b]| b)).max(1e-30)
    };
    let all: Vec<f64> = a.state.iter().zip(&b.state).map(of).collect();
    assert!(all.iter().all(|x| x.is_finite()), "{all:?}");
    all.into_iter().fold(0.0, f64::max)
}

fn cpu(schedule: &Schedule) -> Outcome {
    train::<Cpu<f32>>(schedule, &(), &mut ()).unwrap_or_else(|e| panic!("{e}"))
}

fn gpu(kernels: &Both, schedule: &Schedule, seed: u64) -> Outcome {
    train::<Gpu>(schedule, &device(kernels, seed), &mut ()).unwrap_or_else(|e| panic!("{e}"))
}

/// Near what the CPU rounds, the same bits in other strategies, and nearer than f32 is by `nearer`.
fn near(kernels: &Both, text: &str, ranks: &[u32], microbatches: u32, nearer: f64) {
    for (n, ranks) in (0..).zip(ranks) {
        let of = |text: &str, strategy, k| compile(text, strategy, *ranks, k, microbatches);
        let own = brain(text);
        let serial = of(&own, Strategy::Serial, 1);
        assert!(serial.train.buffers.iter().any(|b| b.element == Element::Bf16));
        let (on_cpu, wide) = (cpu(&serial), cpu(&of(text, Strategy::Serial, 1)));
        let first = gpu(kernels, &serial, 10 * n);
        let (found, precision) = (apart(&first, &on_cpu), apart(&wide, &on_cpu));
        let (found_state, precision_state) = (states_apart(&first, &on_cpu), states_apart(&wide, &on_cpu));
        eprintln!(
            "{ranks} ranks: losses {found:.1e} off the CPU's, f32 {precision:.1e}; states {found_state:.1e}, f32 \
             {precision_state:.1e}"
        );
        assert!(precision > 1e-5, "{precision} tells nothing apart");
        assert!(found * nearer <= precision, "{found} off, where f32 is {precision} off");
        let mut others = vec![of(&own, Strategy::Prefetch, 1), of(&own, Strategy::Pec, 1)];
        others.extend(thorough().then(|| of(&own, Strategy::Pec, 2)));
        for (i, other) in (1..).zip(&others) {
            let outcome = gpu(kernels, other, 10 * n + i);
            assert!(outcome == first, "{:?} on {ranks} ranks: other bits than serial", other.strategy);
        }
    }
}

#[test]
fn layers_of_tokens() {
    let Some(kernels) = kernels() else { return };
    near(&kernels, TOKENS, &[2], 2, 6.0);
}

#[test]
fn layers_of_samples() {
    let Some(kernels) = kernels() else { return };
    near(&kernels, SAMPLES, &[2], 1, 1e6);
}

#[test]
fn norms_and_products() {
    let Some(kernels) = kernels() else { return };
    let text = model("row_wise", "rowwise_adagrad(lr: 0.05)", 60, true);
    let text = text.replace("batch 12  steps 7", "batch 6  steps 6");
    near(&kernels, &text, if thorough() { &[1, 2, 3] } else { &[1, 3] }, 1, 1e6);
}

/// Every activation that every operation writes in the first step is the CPU's brain float or a near one, and most are the same.
#[test]
fn activations_are_the_cpus() {
    let Some(kernels) = kernels() else { return };
    let plain = TOKENS
        .replace("silu_attention(linear(h, 16), linear(h, 16), linear(h, 16), heads: 2)", "linear(h, 16)");
    let plain =
        plain.replace("softmax_attention(layer_norm(s), h, gelu(h), heads: 2)", "layer_norm(s) * gelu(h)");
    // Weights of attention are rounded on a GPU alone, and all that follows from them goes another way now and then.
    for (text, same) in [(SAMPLES, 0.999), (&plain, 0.999), (TOKENS, 0.8)] {
        let text = brain(text).replace("steps 4", "steps 1");
        let schedule = compile(&text, Strategy::Serial, 1, 1, 1);
        let on_cpu = witness::Options::<Cpu<f32>> { brain_floats: true, ..witness::Options::default() };
        train::<Witness<Cpu<f32>>>(&schedule, &on_cpu, &mut ()).unwrap();
        let on_gpu =
            witness::Options::<Gpu> { own: device(&kernels, 1), seen: Arc::default(), brain_floats: true };
        train::<Witness<Gpu>>(&schedule, &on_gpu, &mut ()).unwrap();
        let (on_cpu, on_gpu) = (on_cpu.seen.lock(), on_gpu.seen.lock());
        let (mut all, mut equal, mut actions) = (0, 0, Vec::new());
        for (key, expected) in on_cpu.iter() {
            let op = &schedule.train.ops[key.1];
            let written: Vec<&Operand> =
                op.writes.iter().filter(|w| witness::noted(&schedule.train, w, true)).collect();
            for ((operand, a), b) in written.iter().zip(&on_gpu[key]).zip(expected) {
                let Place::Buffer(n) = operand.place else { continue };
                if schedule.train.buffers[n as usize].element != Element::Bf16 {
                    continue;
                }
                let (a, b) = (a.as_deref().unwrap(), b.as_deref().unwrap());
                let a: Vec<f32> = a.chunks_exact(2).map(|x| f32::from_le_bytes([0, 0, x[0], x[1]])).collect();
                let b: Vec<f32> =
                    b.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect();
                assert_eq!(a.len(), b.len(), "{}", op.name);
                let largest = b.iter().fold(0.0f32, |m, x| m.max(x.abs()));
                for (a, b) in a.iter().zip(&b) {
                    // Some neighbours away, of a number as large as those that it is made of.
                    assert!((a - b).abs() <= largest / 32.0, "`{}` has written {a}, {b} on the CPU", op.name);
                    all += 1;
                    equal += usize::from(a.to_bits() == b.to_bits());
                }
                actions.push(op.action.name());
            }
        }
        actions.sort_unstable();
        actions.dedup();
        eprintln!("{equal} of {all} are the same, of {actions:?}");
        assert!(actions.len() > 8 && all > 500, "{all} of {actions:?}");
        assert!(equal as f64 >= same * f64::from(all), "{equal} of {all} are the same");
    }
}

const STEPS: u64 = 6;

/// What products read is rounded anew whenever the master changes: by updates, and by values that come from elsewhere.
#[test]
fn runs_go_on_with_the_same_bits() {
    let Some(kernels) = kernels() else { return };
    for (n, text) in (0..).zip([TOKENS, SAMPLES]) {
        let schedule = compile(&brain(text), Strategy::Pec, 2, 1, 1);
        let begin = |seed, options| session::<Gpu>(&schedule, options, &device(&kernels, seed)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut whole = begin(10 * n, options().steps(STEPS).checkpoint(leaving(folder.path(), 2, 99)));
        whole.run(&mut ()).unwrap();
        let end = state(&whole).unwrap();
        let found = checkpoints(folder.path());
        let early = found.iter().filter(|(step, _)| *step < STEPS);
        for (m, (step, path)) in (1..).zip(early) {
            let mut started = begin(10 * n + m, options().init(path.clone()));
            started.advance(STEPS - step, &mut ()).unwrap();
            assert!(state(&started).unwrap() == end, "going on from {step}");
        }
        assert!(found.len() > 1, "{found:?}");
    }
}

/// What a device cannot do in bf16 it says when it is opened, or by an error that says what.
#[test]
fn what_has_no_kernel() {
    let Some([wide, brains]) = kernels() else { return };
    let schedule = compile(&brain(SAMPLES), Strategy::Serial, 1, 1, 1);
    let said = train::<Gpu>(&schedule, &device(&wide, 1), &mut ()).unwrap_err();
    assert!(said.contains("there are no kernels for numbers in bf16"), "{said}");
    // A model in f32 asks for none.
    let plain = compile(SAMPLES, Strategy::Serial, 1, 1, 1);
    assert!(train::<Gpu>(&plain, &device(&wide, 1), &mut ()).is_ok());
    let both = [wide, brains];
    // The weights that products read take memory of their own.
    let none = |text: &str| {
        let facts = Facts { free: 1, ..emulated::Options::default().facts };
        let options = emulated::Options { facts, ..emulated::Options::default() };
        let drivers = vec![Arc::new(Emulated::new(options, Box::new(both.clone())))];
        let schedule = compile(text, Strategy::Serial, 1, 1, 1);
        train::<Gpu>(&schedule, &cuda::Options { drivers, ..cuda::Options::default() }, &mut ()).unwrap_err()
    };
    let large = SAMPLES.replace("dense(3)", "dense(512)");
    let (own, plain) = (none(&brain(&large)), none(&large));
    assert!(own.contains("before the first batch") && own != plain, "{own}\n{plain}");
    let heads = TOKENS.replace("dim 16", "dim 264").replace(", 16)", ", 264)");
    let said = train::<Gpu>(&compile(&brain(&heads), Strategy::Serial, 1, 1, 1), &device(&both, 1), &mut ());
    let said = said.unwrap_err();
    assert!(said.contains("silu_attention") && said.contains("more columns or features"), "{said}");
}

/// A schedule in which an f32 operation reads brain floats, or the other way round, is not run at all.
#[test]
fn nothing_reads_one_as_the_other() {
    let Some(kernels) = kernels() else { return };
    let schedule = compile(&brain(SAMPLES), Strategy::Serial, 1, 1, 1);
    let cast = |s: &Schedule| s.train.ops.iter().position(|op| op.action == Action::Cast).unwrap();
    let mut wrong = schedule.clone();
    let at = cast(&wrong);
    let Place::Buffer(b) = wrong.train.ops[at].writes[0].place else { panic!("a cast writes a buffer") };
    wrong.train.buffers[b as usize].element = Element::Real;
    for (what, s) in [("as it is", &schedule), ("wrong", &wrong)] {
        let on_cpu = train::<Cpu<f32>>(s, &(), &mut ());
        let on_gpu = train::<Gpu>(s, &device(&kernels, 1), &mut ());
        assert_eq!(on_cpu.is_ok(), what == "as it is", "{what}: {:?}", on_cpu.err());
        assert_eq!(on_gpu.is_ok(), what == "as it is", "{what}: {:?}", on_gpu.err());
    }
}
