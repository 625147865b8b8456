//! Draws differ between steps and between layers: the same batch is trained on with other masks and negatives.

use fs_executor::{Options, Session};
use fs_tests::compile_text;

/// A model over a batch that is the same in every step.
fn session(body: &str) -> Session<f64> {
    let schedule = compile_text(&format!(
        "model draws {{
  table items {{ rows 50  dim 4  init uniform(-1, 1)  optimizer sgd(lr: 0.1) }}
  input history: ids(items) {{ max 6 }}
  {body}
}}
train {{ batch 4  steps 2  optimizer sgd(lr: 0.1) }}
workload same {{ generate {{ lengths fixed(6)  ids uniform  labels bernoulli(0.5)  samples 4 }} }}"
    ));
    Session::new(schedule, Options::default().ranks(2)).unwrap_or_else(|e| panic!("{e}"))
}

fn losses(session: &mut Session<f64>) -> [f64; 2] {
    [0, 1].map(|step| session.loss_and_gradients(step).map_or_else(|e| panic!("{e}"), |g| g.loss))
}

const BCE: &str = "input click: label like history
  loss bce_with_logits(linear(y, 1, name: \"head\", init: uniform(-1, 1)), click, normalize: tokens)";

#[test]
fn without_draws_both_steps_are_alike() {
    let [a, b] = losses(&mut session(&format!("let y = lookup(history)  {BCE}")));
    // The generator may deal the same samples to other places, which only rounds differently.
    assert!((a - b).abs() < 1e-12, "{a} {b}");
}

#[test]
fn masks_differ_between_steps() {
    let [a, b] = losses(&mut session(&format!("let y = dropout(lookup(history), 0.5)  {BCE}")));
    assert!((a - b).abs() > 1e-6, "{a} {b}");
}

#[test]
fn negatives_differ_between_steps() {
    let body = "input following: next(history)
  loss sampled_softmax(lookup(history), items, following, negatives: 4, temperature: 1, normalize: tokens)";
    let [a, b] = losses(&mut session(body));
    assert!((a - b).abs() > 1e-6, "{a} {b}");
}

#[test]
fn masks_differ_between_layers() {
    // With one mask for both the difference would be zero, and so would be the table's gradient.
    let body = format!("let x = lookup(history)  let y = dropout(x, 0.5) - dropout(x, 0.5)  {BCE}");
    let gradients = session(&body).loss_and_gradients(0).unwrap_or_else(|e| panic!("{e}"));
    assert!(gradients.tables[0].iter().any(|g| g.abs() > 1e-6));
}
