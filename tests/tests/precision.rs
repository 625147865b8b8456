//! Models that compute in bf16 on the CPU, which rounds where a device would store brain floats: losses worked out by hand, the
//! same bits in every strategy, and everything else that holds in f32.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fmt::Write as _;

use fs_compiler::search::{self, candidates};
use fs_compiler::{At, CompileOptions, Strategy, compile_with};
use fs_executor::device::cpu::Cpu;
use fs_executor::{Options, Session};
use fs_schedule::verify::verify;
use fs_schedule::{Action, Element, OperandType, Place, Poly, Schedule};
use fs_tests::mock::{self, Mock};
use fs_tests::training::{
    self, Outcome, SHARDINGS, checkpoints, compile, compile_at, leaving, model, options, session, state,
    states,
};
use fs_tests::witness::{self, Witness};

/// The same model in bf16.
fn brain(text: &str) -> String {
    assert!(text.contains("train {"));
    text.replace("train {", "train { precision { compute bf16 } ")
}

/// The nearest brain float, the even one of two.
fn rounded(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

fn train(schedule: &Schedule, ranks: usize) -> Outcome {
    let mut session = session(schedule, options().ranks(ranks));
    training::train(&mut session, &mut ()).unwrap_or_else(|e| panic!("{e}")).0
}

fn losses(outcome: &Outcome) -> Vec<f64> {
    outcome.losses.iter().map(|l| f64::from_bits(*l)).collect()
}

/// All layers over tokens, and a loss with rows of its own.
const TOKENS: &str = "model tokens {
  table a { rows 50  dim 8  init normal(0, 0.5)  optimizer adagrad(lr: 0.05) }
  input x: ids(a) { max 9 }
  input following: next(x)
  let h = dropout(positional(lookup(x)), 0.3)
  let s = silu_attention(linear(h, 8), linear(h, 8), linear(h, 8), heads: 2)
  let t = softmax_attention(layer_norm(s), h, gelu(h), heads: 2)
  let u, v = split(softmax(l2_normalize(h)), 2)
  let g = h + silu(s) * sigmoid(t) + concat(v, scale(u, 0.5))
  loss sampled_softmax(g, a, following, negatives: 3, temperature: 0.5, similarity: cosine, normalize: tokens)
}
train { batch 12  steps 5  optimizer adam(lr: 1e-3) }
workload w { generate { lengths uniform(0, 7)  ids zipf(1.05)  labels bernoulli(0.5)  samples 31 } }";

/// All layers over samples.
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
train { batch 12  steps 5  optimizer adam(lr: 1e-3) }
workload w { generate { lengths uniform(0, 7)  ids zipf(1.05)  labels bernoulli(0.5)  samples 31 } }";

/// One row, two tokens a sample, labels of 1: every token is alike.
fn alike(layers: &str, dim: u32) -> String {
    format!(
        "model alike {{
           table a {{ rows 1  dim {dim}  init constant(0.3)  optimizer sgd(lr: 1) }}
           input x: ids(a) {{ max 2 }}
           input click: label like x
           {layers}
           loss bce_with_logits(z, click, normalize: tokens)
         }}
         train {{ batch 2  steps 2  optimizer sgd(lr: 1) }}
         workload w {{ generate {{ lengths fixed(2)  ids uniform  labels bernoulli(0.9999999) }} }}"
    )
}

/// The loss of a logit whose label is 1.
fn loss(z: f32) -> f64 {
    let z = f64::from(z);
    z.max(0.0) - z + (-z.abs()).exp().ln_1p()
}

/// Two steps of a layer with a bias: what is rounded, where, and what is not.
#[test]
fn a_layer_worked_out_by_hand() {
    let text = alike("let z = linear(lookup(x), 1)", 4);
    let mut session = session(&compile(&brain(&text), Strategy::Serial, 1, 1, 1), options());
    let mut row = [0.3f32; 4];
    let (mut weight, mut bias) = (session.parameter(0), session.parameter(1));
    if bias.len() > weight.len() {
        std::mem::swap(&mut weight, &mut bias);
    }
    assert_eq!((weight.len(), bias.len()), (4, 1));
    let report = session.run(&mut ()).unwrap();
    for step in 0..2 {
        let (x, w) = (row.map(rounded), [0, 1, 2, 3].map(|i: usize| rounded(weight[i])));
        // Products of brain floats are exact in f32; their sum is not, so its order may show in the last bit of f32.
        let product: f64 = (0..4).map(|i| f64::from(x[i]) * f64::from(w[i])).sum();
        let z = rounded(rounded(product as f32) + bias[0]);
        assert!(
            (report.loss[step] - loss(z)).abs() < 1e-7,
            "step {step}: {} for {}",
            report.loss[step],
            loss(z)
        );
        // Each of four tokens has a quarter of the gradient; what is not the loss's own is rounded.
        let e = f64::from(-z.abs()).exp();
        let sigmoid = if z >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) };
        let g = rounded(((sigmoid - 1.0) / 4.0) as f32);
        for i in 0..4 {
            row[i] -= 4.0 * rounded(g * w[i]);
            weight[i] -= 4.0 * g * x[i];
        }
        bias[0] -= 4.0 * g;
    }
    let near = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6);
    assert!(near(&session.table(0).unwrap(), &row), "{:?} is not {row:?}", session.table(0));
    let found = [session.parameter(0), session.parameter(1)];
    let (w, b) = if found[0].len() == 4 { (&found[0], &found[1]) } else { (&found[1], &found[0]) };
    assert!(near(w, &weight) && near(b, &bias), "{found:?} are not {weight:?} and {bias:?}");
    // Masters are no brain floats, or small steps would be lost.
    assert!(w.iter().any(|x| rounded(*x) != *x), "{w:?}");
}

/// Sums are rounded after every operand, from the left.
#[test]
fn sums_are_rounded_after_every_operand() {
    let text = alike(
        "let h = lookup(x)\n let s = relu(scale(h, 0.0043))\n let z = h + s + relu(scale(h, 0.0043))",
        1,
    );
    let report =
        session(&compile(&brain(&text), Strategy::Serial, 1, 1, 1), options().steps(1)).run(&mut ()).unwrap();
    let (x, part) = (rounded(0.3), rounded(rounded(0.3) * 0.0043));
    let z = rounded(rounded(x + part) + part);
    assert_ne!(z, rounded(x + part + part), "the case tells both ways apart");
    // What adds where the sum stands would round so anyway.
    let schedule = compile(&brain(&text), Strategy::Serial, 1, 1, 1);
    assert!(schedule.train.ops.iter().any(|op| op.action == Action::Add && op.reads.len() == 3));
    assert!((report.loss[0] - loss(z)).abs() < 1e-9, "{} for {}", report.loss[0], loss(z));
}

fn equal(text: &str, ranks: &[u32], microbatches: &[u32]) {
    for (ranks, microbatches) in ranks.iter().flat_map(|r| microbatches.iter().map(move |m| (*r, *m))) {
        let serial = compile(text, Strategy::Serial, ranks, 1, microbatches);
        assert!(serial.train.buffers.iter().any(|b| b.element == Element::Bf16));
        let expected = train(&serial, ranks as usize);
        assert!(losses(&expected).iter().all(|l| l.is_finite()));
        for (strategy, lookahead) in [(Strategy::Prefetch, 1), (Strategy::Pec, 1), (Strategy::Pec, 2)] {
            let other = compile(text, strategy, ranks, lookahead, microbatches);
            let what =
                format!("{strategy:?}, {ranks} ranks, lookahead {lookahead}, {microbatches} microbatches");
            assert_eq!(serial.reference, other.reference, "{what}");
            assert!(train(&other, ranks as usize) == expected, "{what}: other bits than serial");
        }
    }
}

#[test]
fn strategies_over_tokens() {
    equal(&brain(TOKENS), &[1, 3], &[1, 2]);
}

#[test]
fn strategies_over_samples() {
    equal(&brain(SAMPLES), &[2], &[1, 3]);
}

#[test]
fn strategies_in_every_sharding() {
    for (n, sharding) in SHARDINGS.iter().enumerate() {
        equal(&brain(&model(sharding, "adam(lr: 0.05)", 60, n % 2 == 0)), &[[2, 3, 4][n % 3]], &[2]);
    }
}

/// What the search finds has the bits of serial, too.
#[test]
fn what_is_searched_for() {
    let text = brain(TOKENS);
    let program = fs_dsl::check_text("m.fs", &text).program.unwrap();
    let found =
        search::search(&program, &CompileOptions::new(Strategy::Serial, 2), candidates(None)).unwrap();
    let schedule = found.compiled.schedule;
    assert!(schedule.train.buffers.iter().any(|b| b.element == Element::Bf16));
    let serial = compile_with(
        &program,
        &CompileOptions::new(Strategy::Serial, 2).balance(schedule.settings.balance.is_some()),
    );
    assert!(train(&schedule, 2) == train(&serial.unwrap().schedule, 2));
}

/// Wherever samples go, and whoever asks for their rows.
#[test]
fn balanced_samples() {
    let text = brain(&model("row_wise", "adagrad(lr: 0.05)", 60, true));
    let text = text.replace("train {", "train { balance cost(c0: 0, c1: 0, c2: 1) ");
    for microbatches in [1, 2] {
        let of = |strategy, at| compile_at(&text, strategy, Some(at), (3, 1, microbatches));
        let expected = train(&of(Strategy::Serial, At::Ids), 3);
        for (strategy, at) in [
            (Strategy::Pec, At::Ids),
            (Strategy::Serial, At::Folded),
            (Strategy::Pec, At::Folded),
            (Strategy::Pec, At::Rows),
        ] {
            let other = train(&of(strategy, at), 3);
            // Who sums gradients of rows where samples are read sums them in another order.
            if at == At::Rows {
                let serial = train(&of(Strategy::Serial, at), 3);
                assert!(other == serial, "{at:?}, {microbatches} microbatches");
            } else {
                assert!(other == expected, "{strategy:?} {at:?}, {microbatches} microbatches");
            }
        }
    }
}

/// On a device that ends late and poisons what it will write.
#[test]
fn a_late_device() {
    for (n, text) in [TOKENS, SAMPLES].into_iter().enumerate() {
        let schedule = compile(&brain(text), Strategy::Pec, 2, 1, 2);
        let expected = train(&schedule, 2);
        let device = mock::Options { seed: n as u64, polls: 3, slow: 4, ..mock::Options::default() };
        let found = fs_tests::emulated::train::<Mock>(&schedule, &device, &mut ());
        assert!(found.unwrap_or_else(|e| panic!("{e}")) == expected);
        assert!(device.reports.lock().is_empty());
    }
}

/// Buffers of brain floats hold nothing else.
#[test]
fn what_is_written_is_rounded() {
    for text in [TOKENS, SAMPLES] {
        let schedule = compile(&brain(text), Strategy::Serial, 2, 1, 1);
        let device = witness::Options::<Cpu<f32>> { brain_floats: true, ..witness::Options::default() };
        fs_tests::emulated::train::<Witness<Cpu<f32>>>(&schedule, &device, &mut ()).unwrap();
        let (mut all, mut exact) = (0, 0);
        for ((_, op, _), results) in device.seen.lock().iter() {
            let op = &schedule.train.ops[*op];
            let written = op.writes.iter().filter(|w| witness::noted(&schedule.train, w, true));
            for (operand, bytes) in written.zip(results) {
                let Place::Buffer(b) = operand.place else { continue };
                if schedule.train.buffers[b as usize].element != Element::Bf16 {
                    continue;
                }
                let values = bytes.as_deref().unwrap().chunks_exact(4);
                for x in values.map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])) {
                    assert!(rounded(x).to_bits() == x.to_bits(), "`{}` has written {x}", op.name);
                    all += 1;
                    exact += usize::from(x.to_bits().trailing_zeros() >= 23);
                }
            }
        }
        assert!(all > 1000 && exact * 2 < all, "{exact} of {all} are powers of two, or zero");
    }
}

/// The number of ranks changes sums in f32, which changes some roundings: far less than bf16 itself changes.
#[test]
fn ranks_change_less_than_the_precision_does() {
    for text in [TOKENS, SAMPLES] {
        let on = |text: &str, ranks: u32| {
            losses(&train(&compile(text, Strategy::Serial, ranks, 1, 1), ranks as usize))
        };
        let apart = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        let (own, wide) = (on(&brain(text), 1), on(text, 1));
        assert!(own.iter().chain(&wide).all(|l| l.is_finite()), "{own:?} and {wide:?}");
        let precision = apart(&own, &wide);
        assert!(precision > 1e-5, "{own:?} and {wide:?}");
        assert!(own.iter().zip(&wide).all(|(a, b)| (a - b).abs() < 0.02 * b), "{own:?} and {wide:?}");
        for ranks in 2..=4 {
            let many = on(&brain(text), ranks);
            let ranks_apart = apart(&own, &many);
            assert!(ranks_apart < precision / 4.0, "{ranks} ranks: {ranks_apart} of {precision}");
        }
    }
}

/// Checkpoints hold masters, and who goes on from one has the bits of a run that was never stopped.
#[test]
fn checkpoints_go_on_with_the_same_bits() {
    const STEPS: u64 = 8;
    let schedule = compile(&brain(TOKENS), Strategy::Pec, 2, 1, 2);
    let states = states(&schedule, STEPS);
    let folder = tempfile::tempdir().unwrap();
    let mut whole = session(&schedule, options().steps(STEPS).checkpoint(leaving(folder.path(), 3, 99)));
    whole.run(&mut ()).unwrap();
    assert!(state(&whole).unwrap() == states[STEPS as usize]);
    let found = checkpoints(folder.path());
    assert!(!found.is_empty());
    for (step, path) in &found {
        let mut started = session(&schedule, options().init(path.clone()));
        assert!(state(&started).unwrap() == states[*step as usize], "{step}");
        started.advance(STEPS - step, &mut ()).unwrap();
        assert!(state(&started).unwrap() == states[STEPS as usize], "going on from {step}");
    }
    // The same values start a run in f32, which is told that they are another model's.
    let wide = compile(TOKENS, Strategy::Pec, 2, 1, 2);
    assert_ne!(wide.reference.digest, schedule.reference.digest);
    let (last, newest) = found.last().unwrap();
    for (schedule, other) in [(&wide, true), (&schedule, false)] {
        let started = session(schedule, options().init(newest.clone()));
        assert!(state(&started).unwrap() == states[*last as usize]);
        assert_eq!(started.taken().unwrap().other_model, other);
    }
}

/// Half the bytes, and all that follows from that.
#[test]
fn bytes_follow_the_type() {
    for text in [TOKENS, SAMPLES] {
        let (own, wide) =
            (compile(&brain(text), Strategy::Serial, 2, 1, 1), compile(text, Strategy::Serial, 2, 1, 1));
        let by_name = |s: &Schedule| -> BTreeMap<String, (Element, f64)> {
            let bytes = |op: &fs_schedule::Op| op.cost.bytes.eval(|_| 64.0);
            let own = |op: &fs_schedule::Op| match op.writes.first().map(|w| w.place) {
                Some(Place::Buffer(b)) => Some(s.train.buffers[b as usize].element),
                _ => None,
            };
            s.train.ops.iter().filter_map(|op| Some((op.name.clone(), (own(op)?, bytes(op))))).collect()
        };
        let (narrow, whole) = (by_name(&own), by_name(&wide));
        let mut halves = 0;
        for (name, (element, bytes)) in &narrow {
            let Some((_, before)) = whole.get(name) else { continue };
            match element {
                // A scale has one operand and one result, both bf16.
                Element::Bf16 if name.contains("scale") => assert_eq!(2.0 * bytes, *before, "{name}"),
                Element::Bf16 => assert!(bytes < before, "{name}: {bytes} of {before}"),
                _ => assert!(bytes <= before, "{name}: {bytes} of {before}"),
            }
            halves += usize::from(*element == Element::Bf16);
        }
        assert!(halves > 5, "{narrow:?}");
        // What travels and what is kept does not change.
        let wire = |s: &Schedule| -> Poly { s.train.ops.iter().map(|op| op.cost.wire.clone()).sum() };
        assert_eq!(wire(&own), wire(&wide));
        assert!(fs_schedule::to_text(&own).contains("\"element\": \"bf16\""));
        assert!(!fs_schedule::to_text(&wide).contains("bf16"));
    }
}

/// What is f32 in a model that computes in bf16.
#[test]
fn what_stays_f32() {
    let mut seen = 0;
    for text in [TOKENS, SAMPLES] {
        let s = compile(&brain(text), Strategy::Pec, 2, 1, 1);
        for op in &s.train.ops {
            let (reads, writes) = s.shapes(&s.train, op);
            let brains = |list: &[OperandType]| {
                list.iter()
                    .filter(|t| matches!(t, OperandType::Matrix { element: Element::Bf16, .. }))
                    .count()
            };
            let facts = op.action.facts();
            let lists = |list: &[OperandType], which: &[usize]| {
                which.iter().all(|i| {
                    !matches!(list.get(*i), Some(OperandType::Matrix { element: Element::Bf16, .. }))
                })
            };
            assert!(lists(&reads, facts.lists.reads) && lists(&writes, facts.lists.writes), "{}", op.name);
            let wide = facts.phase != fs_schedule::action::Phase::Model
                || facts.entries.is_some()
                || facts.loss.is_some()
                || matches!(op.action, Action::Dense | Action::RankItems { .. });
            assert!(!wide || brains(&reads) + brains(&writes) == 0, "{} reads or writes bf16", op.name);
            seen += brains(&writes);
        }
    }
    assert!(seen > 20, "{seen}");
}

/// On machines with units for it products take less time.
#[test]
fn products_have_the_rate_of_bf16() {
    let text = TOKENS.replace("dim 8", "dim 512").replace(", 8)", ", 512)").replace("batch 12", "batch 4096");
    let of = |text: &str| {
        let loaded = fs_dsl::check_text("m.fs", text);
        let options = CompileOptions::new(Strategy::Serial, 1).cluster(fs_dsl::cluster::preset("dgx_h100"));
        compile_with(&loaded.program.unwrap(), &options).unwrap().schedule
    };
    let (own, wide) = (of(&brain(&text)), of(&text));
    let time = |s: &Schedule| -> u64 {
        s.train.ops.iter().filter(|op| matches!(op.action, Action::Linear { .. })).map(|op| op.time).sum()
    };
    // 989 against 67 TFLOP/s, and half the bytes.
    assert!(time(&own) * 2 <= time(&wide), "{} and {} ns", time(&own), time(&wide));
    let memory = |s: &Schedule| s.prediction.as_ref().unwrap().memory;
    assert!(memory(&own) < memory(&wide), "{} and {}", memory(&own), memory(&wide));
}

/// Items are ranked in f32 by what was rounded: evaluation runs, and says about the same.
#[test]
fn items_are_ranked() {
    let folder = tempfile::tempdir().unwrap();
    let mut visits = String::from("user,item\n");
    for (user, at) in (0..24usize).flat_map(|user| (0..4 + user % 9).map(move |at| (user, at))) {
        let _ = writeln!(visits, "u{user},{}", (user * 7 + at * at * 5 + at * user) % 60);
    }
    let data = folder.path().join("visits.csv");
    std::fs::write(&data, visits).unwrap();
    let text = "model last {
      table items { rows 60  dim 8  init normal(0, 0.5)  optimizer adagrad(lr: 0.1) }
      input history: ids(items) { max 50 }
      input following: next(history)
      let h = lookup(history) + linear(layer_norm(lookup(history)), 8)
      loss sampled_softmax(h, items, following, negatives: 8, temperature: 0.2, similarity: cosine, normalize: tokens)
    }
    train { batch 12  steps 60  optimizer adam(lr: 1e-2) }
    workload visits { csv \"visits.csv\" { user \"user\"  item \"item\" }  evaluate leave_last_out }";
    let run = |text: &str, ranks: u32| {
        let schedule = compile(text, Strategy::Pec, ranks, 1, 1);
        let mut session = Session::<f32>::new(schedule, Options::default().data(data.clone())).unwrap();
        session.run(&mut ()).unwrap().evaluation.unwrap()
    };
    let (own, wide) = (run(&brain(text), 2), run(text, 2));
    assert_eq!((own.users, wide.users), (24, 24));
    // Much better than chance in both; and no rank of a few users decides it.
    let chance = 10.0 / 60.0;
    assert!(own.model.all.hr_10 > 1.5 * chance && wide.model.all.hr_10 > 1.5 * chance, "{own:?} {wide:?}");
    assert!((own.model.all.hr_10 - wide.model.all.hr_10).abs() < 0.25, "{own:?} {wide:?}");
}

/// What is proved of a schedule in one precision is not proved of the other: casts are terms of the reference.
#[test]
fn a_schedule_of_the_other_precision_is_refused() {
    for text in [TOKENS, SAMPLES] {
        let (own, wide) =
            (compile(&brain(text), Strategy::Pec, 2, 1, 1), compile(text, Strategy::Pec, 2, 1, 1));
        assert!(verify(&own).is_empty() && verify(&wide).is_empty());
        for (s, other) in [(&own, &wide), (&wide, &own)] {
            let mut wrong = s.clone();
            wrong.reference = other.reference.clone();
            let found = verify(&wrong);
            assert!(found.iter().any(|v| v.rule == "model"), "{found:?}");
        }
    }
}

/// Casts that are left out, put in, or of another value.
#[test]
fn casts_are_proved() {
    let own = compile(&brain(SAMPLES), Strategy::Serial, 1, 1, 1);
    let casts: Vec<usize> =
        (0..own.train.ops.len()).filter(|i| own.train.ops[*i].action == Action::Cast).collect();
    assert!(casts.len() >= 6, "{casts:?}");
    let (mut tried, ops) = (0, &own.train.ops);
    for (a, b) in casts.iter().flat_map(|a| casts.iter().map(move |b| (*a, *b))) {
        // The same types, so that nothing but the value is another.
        let shapes = |i: usize| own.shapes(&own.train, &ops[i]);
        if a == b || shapes(a) != shapes(b) || a > b {
            continue;
        }
        let mut wrong = own.clone();
        wrong.train.ops[b].reads[0] = ops[a].reads[0];
        let found = verify(&wrong);
        assert!(!found.is_empty(), "`{}` casts what `{}` casts", ops[b].name, ops[a].name);
        tried += 1;
    }
    assert!(tried > 1, "{tried}");
}

/// No rule lets one operand or result be of another precision than the others.
#[test]
fn every_operand_is_of_one_precision() {
    let mut tried = BTreeMap::new();
    for text in [TOKENS, SAMPLES] {
        for text in [text.to_owned(), brain(text)] {
            let s = compile(&text, Strategy::Pec, 2, 1, 1);
            let columns: Vec<u32> = s.exchanges.iter().map(|e| e.columns(&s.tables)).collect();
            let cx = s.context(&columns, 1);
            for op in &s.train.ops {
                let (reads, writes) = s.shapes(&s.train, op);
                assert_eq!(op.action.check(&reads, &writes, &cx), Ok(()), "{}", op.name);
                // With one matrix of floats there is nothing to differ from.
                let floats = reads.iter().chain(&writes).filter(|t| flipped(t).is_some()).count();
                if floats < 2 && matches!(op.action, Action::Zero | Action::PositionalGrad) {
                    continue;
                }
                for n in 0..reads.len() + writes.len() {
                    let (mut reads, mut writes) = (reads.clone(), writes.clone());
                    let at = if n < reads.len() { &mut reads[n] } else { &mut writes[n - reads.len()] };
                    let Some(other) = flipped(at) else { continue };
                    *at = other;
                    let refused = op.action.check(&reads, &writes, &cx).is_err();
                    assert!(refused, "`{}` takes {reads:?} and gives {writes:?}", op.name);
                    *tried.entry(op.action.name()).or_insert(0) += 1;
                }
            }
        }
    }
    assert!(tried.len() > 30, "{tried:?}");
}

/// A matrix of floats in the other precision.
fn flipped(of: &OperandType) -> Option<OperandType> {
    let OperandType::Matrix { element, rows, columns } = *of else { return None };
    let element = match element {
        Element::Real => Element::Bf16,
        Element::Bf16 => Element::Real,
        Element::Mxint8 | Element::Id | Element::Index | Element::Count | Element::Byte => return None,
    };
    Some(OperandType::Matrix { element, rows, columns })
}
