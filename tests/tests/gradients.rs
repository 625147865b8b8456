//! Every primitive's derivative, through language, compiler and executor, against central differences in float64.
//!
//! Each model puts one primitive between a lookup and a loss. All entries of its parameters and tables that the batch
//! touches are moved by +-h; the difference of the losses must agree with the gradient.

use fs_executor::{Options, Session};
use fs_tests::compile_text;

/// Step of the difference quotient: its error is of the order h^2 and 1e-16 / h.
const H: f64 = 1e-5;
/// Agreement asked for, relative to the gradient's size (or to the largest gradient's, for tiny ones).
const TOLERANCE: f64 = 1e-6;

/// A model around `body`, which makes `x` (4 columns, a row per token) into `y` (any columns).
fn sequence_model(body: &str) -> String {
    format!(
        "model check {{
  table items {{ rows 11  dim 4  init uniform(-1, 1)  optimizer sgd(lr: 0.1) }}
  table others {{ rows 7  dim 4  init uniform(-1, 1)  optimizer adagrad(lr: 0.1) }}
  input history: ids(items) {{ max 6 }}
  input other: ids(others) like history
  input click: label like history
  let x = lookup(history)
  let z = lookup(other)
  {body}
  let mixed = linear(y, 3, name: \"mix\", init: uniform(-1, 1), bias_init: uniform(-1, 1))
  loss bce_with_logits(linear(mixed + 0.1 * (mixed * mixed), 1, name: \"head\", init: uniform(-1, 1)), click, normalize: tokens)
}}
{WORKLOAD}"
    )
}

const WORKLOAD: &str = "
train { batch 4  steps 1  optimizer sgd(lr: 0.1)  seed 5 }
workload synthetic { generate { lengths uniform(0, 6)  ids uniform  labels bernoulli(0.4) } }
";

fn sample_model(body: &str) -> String {
    format!(
        "model check {{
  table items {{ rows 11  dim 4  init uniform(-1, 1)  optimizer sgd(lr: 0.1) }}
  table others {{ rows 7  dim 4  init uniform(-1, 1)  optimizer sgd(lr: 0.1) }}
  input history: ids(items) {{ max 6 }}
  input other: ids(others) {{ max 3 }}
  input ages: dense(5)
  input click: label
  {body}
  loss bce_with_logits(linear(y, 1, name: \"head\", init: uniform(-1, 1)), click, normalize: samples)
}}
{WORKLOAD}"
    )
}

fn check(name: &str, text: &str) {
    for ranks in [1, 2] {
        let options = Options::default().ranks(ranks);
        let mut session =
            Session::<f64>::new(compile_text(text), options).unwrap_or_else(|e| panic!("{name}: {e}"));
        let exact = session.loss_and_gradients(0).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(exact.loss.is_finite(), "{name}: the loss is finite");
        let largest =
            exact.parameters.iter().chain(&exact.tables).flatten().fold(0.0f64, |m, g| m.max(g.abs()));
        assert!(largest > 1e-4, "{name}: something is trained");
        let mut compared = 0;
        let counts = (exact.parameters.len(), exact.tables.len());
        for which in 0..counts.0 + counts.1 {
            let is_table = which >= counts.0;
            let at = if is_table { which - counts.0 } else { which };
            let start = if is_table { session.table(at).unwrap() } else { session.parameter(at) };
            let gradient = if is_table { &exact.tables[at] } else { &exact.parameters[at] };
            assert_eq!(gradient.len(), start.len(), "{name}");
            for i in 0..start.len() {
                let mut moved = |by: f64| {
                    let mut values = start.clone();
                    values[i] += by;
                    let set = if is_table {
                        session.set_table(at, &values)
                    } else {
                        session.set_parameter(at, &values)
                    };
                    set.unwrap_or_else(|e| panic!("{name}: {e}"));
                    session.loss_and_gradients(0).map_or_else(|e| panic!("{name}: {e}"), |g| g.loss)
                };
                let difference = (moved(H) - moved(-H)) / (2.0 * H);
                moved(0.0);
                let error =
                    (difference - gradient[i]).abs() / gradient[i].abs().max(1e-3 * largest).max(1e-6);
                assert!(
                    error < TOLERANCE,
                    "{name} on {ranks} ranks: {} {at}, entry {i}: gradient {}, difference {difference}, error {error:e}",
                    if is_table { "table" } else { "parameter" },
                    gradient[i],
                );
                compared += 1;
            }
        }
        assert!(compared > 40, "{name}: {compared} entries compared");
    }
}

macro_rules! primitives {
    ($($name:ident, $model:ident, $body:literal;)*) => {
        $(#[test] fn $name() { check(stringify!($name), &$model($body)); })*
    };
}

primitives! {
    lookup, sequence_model, "let y = x + z";
    linear, sequence_model, "let y = linear(x + z, 5, name: \"l\")";
    linear_without_bias, sequence_model, "let y = linear(x + z, 5, bias: off, name: \"l\")";
    layer_norm, sequence_model, "let y = layer_norm(x * z, name: \"n\")";
    layer_norm_without_parameters, sequence_model, "let y = layer_norm(x + z, affine: off)";
    silu, sequence_model, "let y = silu(x + z)";
    relu, sequence_model, "let y = relu(x + z)";
    gelu, sequence_model, "let y = gelu(x + z)";
    sigmoid, sequence_model, "let y = sigmoid(x + z)";
    softmax, sequence_model, "let y = softmax(x) * z";
    add_of_three, sequence_model, "let y = x + z + x * z";
    mul, sequence_model, "let y = x * z";
    scale, sequence_model, "let y = 0.3 * x + z";
    split_and_concat, sequence_model, "let a, b = split(x, 2)  let c, d = split(z, 2)  let y = concat(b * c, a, d)";
    concat_repeated, sequence_model, "let u = silu(x)  let y = concat(u, u, z, u)";
    concat_of_a_value_and_its_image, sequence_model, "let u = silu(x)  let y = concat(u, dropout(u, 0.5), u)";
    concat_of_a_concat_and_its_part, sequence_model, "let y = concat(concat(x, z), x)";
    concat_of_parts_of_a_concat, sequence_model, "let p, q = split(concat(x, z), [2, 6])  let y = concat(p, q, x)";
    concat_of_a_value_and_its_parts, sequence_model, "let u = silu(x)  let p, q = split(u, 2)  let y = concat(u, q, p, u)";
    split_with_an_unused_part, sequence_model, "let a, _b = split(x, 2)  let y = concat(a, z)";
    positional, sequence_model, "let y = positional(x + z, name: \"p\")";
    dropout, sequence_model, "let y = dropout(x + z, 0.4)";
    l2_normalize, sequence_model, "let y = l2_normalize(x) + z";
    silu_attention, sequence_model, "let y = silu_attention(x, z, x * z, heads: 2)";
    softmax_attention, sequence_model, "let y = softmax_attention(x, z, x * z, heads: 2, causal: on)";
    softmax_attention_both_ways, sequence_model, "let y = softmax_attention(x, z, x * z, heads: 1, causal: off)";
    residual_chain, sequence_model, "let a = x + silu(linear(x, 4, name: \"a\"))  let b = a + linear(layer_norm(a, affine: off), 4, name: \"b\")  let y = b * a + z";
    pool_sum, sample_model, "let y = pool(history) * pool(other, sum) + linear(ages, 4, name: \"d\")";
    pool_mean, sample_model, "let y = pool(history, mean) * pool(other, mean) + linear(ages, 4, name: \"d\")";
    dot_interaction, sample_model, "let d = linear(ages, 4, name: \"d\")  let y = concat(d, dot_interaction(d, pool(history), pool(other)))";
    mlp, sample_model, "let y = mlp(concat(ages, pool(history, mean) + pool(other)), [6, 5], activation: gelu, last: relu)";
}

fn softmax_loss(similarity: &str, body: &str) -> String {
    format!(
        "model check {{
  table items {{ rows 11  dim 4  init uniform(-1, 1)  optimizer sgd(lr: 0.1) }}
  input history: ids(items) {{ max 6 }}
  input following: next(history)
  {body}
  loss sampled_softmax(x, items, following, negatives: 5, temperature: 0.5, similarity: {similarity}, normalize: tokens)
}}
{WORKLOAD}"
    )
}

#[test]
fn sampled_softmax_dot() {
    check("sampled_softmax_dot", &softmax_loss("dot", "let x = linear(lookup(history), 4, name: \"l\")"));
}

#[test]
fn sampled_softmax_cosine() {
    check(
        "sampled_softmax_cosine",
        &softmax_loss("cosine", "let x = linear(lookup(history), 4, name: \"l\")"),
    );
}
