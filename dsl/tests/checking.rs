//! What checking infers: lengths, types, names of parameters, units, settings.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use fs_dsl::checked::{
    Balance, Balancing, DType, DataSource, DenseOptimizer, Duration, Init, InputKind, LengthDistribution,
    Limit, Microbatches, Model, Op, Program, Rows, SparseOptimizer,
};
use fs_dsl::{check_text, codes, render};

fn program(text: &str) -> Program {
    let loaded = check_text("t.fs", text);
    loaded.program.unwrap_or_else(|| panic!("{}", render(&loaded.diagnostics, &loaded.sources, false)))
}

const HEAD: &str = "table t { rows 10  dim 8  optimizer sgd(lr: 0.1) }
    input a: ids(t) { max 5 }
    input b: ids(t) like a
    input c: ids(t) { max 7  keep first }
    input y: label like a
    ";

/// The model with these statements between the inputs and a loss of `x`.
fn model(statements: &str) -> Model {
    let text = format!(
        "model m {{ {HEAD} {statements}
        loss bce_with_logits(linear(x, 1, name: \"head\"), y, normalize: tokens) }}"
    );
    program(&text).model.unwrap()
}

fn params(m: &Model) -> Vec<&str> {
    m.params.iter().map(|p| p.name.as_str()).collect()
}

fn messages(text: &str) -> Vec<(codes::Code, String)> {
    check_text("t.fs", text).diagnostics.into_iter().map(|d| (d.code, d.message)).collect()
}

#[test]
fn sequences_share_lengths_only_if_they_say_so() {
    let m = model("let x = lookup(a) + lookup(b)");
    assert_eq!(m.lengths.iter().map(|l| (l.name.as_str(), l.max)).collect::<Vec<_>>(), [("a", 5), ("c", 7)]);
    let add = m.nodes.iter().find(|n| n.op == Op::Add).unwrap();
    assert!(
        matches!(m.values[add.results[0].index()].ty.rows, Rows::Tokens(l) if m.lengths[l.index()].name == "a")
    );
    let found = messages(&format!(
        "model m {{ {HEAD} let x = lookup(a) + lookup(c) loss bce_with_logits(linear(x, 1), y, normalize: tokens) }}"
    ));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].0, codes::ROWS_DIFFER);
    assert!(found[0].1.contains("tokens of a") && found[0].1.contains("tokens of c"), "{}", found[0].1);
    // `next` has the tokens of what it continues.
    let text = format!(
        "model m {{ {HEAD} input n: next(c) let x = lookup(n) + lookup(c)
        loss sampled_softmax(x, t, n, negatives: 4, normalize: tokens) }}"
    );
    let m = program(&text).model.unwrap();
    assert!(m.inputs.iter().any(|i| matches!(i.kind, InputKind::Next { of } if of.0 == 2)));
}

#[test]
fn layers_are_named_by_name_let_or_kind() {
    let m = model(
        "let first = linear(lookup(a), 8)
        let x = silu(linear(first, 8)) + linear(first, 8, bias: off)
        repeat 2 as l {
            x = x + linear(layer_norm(x, name: \"n1\"), 8, name: \"uvqk\")
            let deep = linear(x, 8)
            x = deep
        }
        x = mlp(x, [4, 8], name: \"top\")",
    );
    assert_eq!(
        params(&m),
        [
            "first.weight",
            "first.bias",
            "linear.weight",
            "linear.bias",
            "linear_2.weight",
            "l.0.n1.weight",
            "l.0.n1.bias",
            "l.0.uvqk.weight",
            "l.0.uvqk.bias",
            "l.0.deep.weight",
            "l.0.deep.bias",
            "l.1.n1.weight",
            "l.1.n1.bias",
            "l.1.uvqk.weight",
            "l.1.uvqk.bias",
            "l.1.deep.weight",
            "l.1.deep.bias",
            "top.0.weight",
            "top.0.bias",
            "top.1.weight",
            "top.1.bias",
            "head.weight",
            "head.bias",
        ]
    );
    let mut unique = params(&m);
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), m.params.len());
    assert_eq!(m.nodes.iter().filter(|n| n.scope == "l.1").count(), 4);
}

#[test]
fn calls_of_blocks_prefix_names_only_if_named() {
    let text = format!(
        "block f(x, out = width(x)) {{ return linear(x, 8, name: \"o\") }}
        block g(x, wide = 8) {{ let z = f(x, 3) return z, scale(z, wide) }}
        model m {{ {HEAD} let p, q = g(lookup(a)) let x = f(p + q, name: \"second\", out: 1)
        loss bce_with_logits(linear(x, 1), y, normalize: tokens) }}"
    );
    // A default cannot see the other parameters.
    assert_eq!(messages(&text.replace("f(x, 3)", "f(x)"))[0].0, codes::UNKNOWN_NAME);
    let m = program(&text.replace("out = width(x)", "out = 8")).model.unwrap();
    assert_eq!(
        params(&m),
        ["o.weight", "o.bias", "second.o.weight", "second.o.bias", "linear.weight", "linear.bias"]
    );
}

#[test]
fn arithmetic() {
    let m =
        model("let x = linear(-lookup(a) * 6 / 4 - 2 * lookup(b) * lookup(a), 2 * (width(t) + 1) / 3 - 1)");
    let ops: Vec<String> = m.nodes.iter().map(|n| format!("{:?}", n.op)).collect();
    let count = |what: &str| ops.iter().filter(|o| o.starts_with(what)).count();
    assert_eq!((count("Scale"), count("Mul"), count("Add")), (4, 1, 1), "{ops:?}");
    assert!(m.nodes.iter().any(|n| n.op == Op::Scale { factor: 1.5 }));
    assert_eq!(m.params[0].shape, [5, 8]);
    let order: Vec<u32> = m.nodes.iter().flat_map(|n| n.results.iter().map(|r| r.0)).collect();
    assert!(order.is_sorted(), "values are numbered in order");
    for n in &m.nodes {
        assert!(n.args.iter().all(|a| a < &n.results[0]), "operands come first");
    }
}

#[test]
fn values_are_carried_through_repeat() {
    let m = model("let x = lookup(a) repeat 3 { x = silu(x) }");
    let silus: Vec<_> = m.nodes.iter().filter(|n| n.op == Op::Silu).collect();
    assert_eq!(silus.len(), 3);
    assert_eq!(silus[1].args, silus[0].results);
    assert_eq!(silus[2].args, silus[1].results);
    let zero = model("let x = lookup(a) repeat 0 { x = silu(x) }");
    assert!(!zero.nodes.iter().any(|n| n.op == Op::Silu));
}

#[test]
fn units_are_si() {
    let p = program(
        "cluster mine { nodes 2 gpus_per_node 4
            intra { bandwidth 400 Gbit/s  latency 8 us } inter { bandwidth 200 Mbit/s  latency 1.5ms }
            host { bandwidth 2 GiB/s  latency 100 ns }
            memory 80 GiB  memory_bandwidth 3.35 TB/s  flops { bf16 989 TFLOP/s  f32 0.5 PFLOP/s } }
        cluster pod from h100x256 { nodes 64  intra { bandwidth 1 TB/s  latency 1 us } }
        cluster h200",
    );
    let c = &p.clusters[0];
    assert_eq!((c.intra.bandwidth, c.intra.latency), (50e9, 8e-6));
    assert_eq!((c.inter.bandwidth, c.inter.latency), (25e6, 1.5e-3));
    assert_eq!((c.host.bandwidth, c.host.latency), (2.0 * 1_073_741_824.0, 1e-7));
    assert_eq!((c.memory, c.memory_bandwidth), (80 << 30, 3.35e12));
    assert_eq!(c.flops, [(DType::F32, 0.5e15), (DType::BF16, 989e12)]);
    assert_eq!((c.copy_engines, c.nics, c.sms), (2, 1, 0));
    let pod = &p.clusters[1];
    assert_eq!((pod.nodes, pod.gpus_per_node, pod.intra.bandwidth, pod.sms), (64, 8, 1e12, 132));
    assert_eq!(p.clusters[2].memory, 141_000_000_000);
}

#[test]
fn settings() {
    let p = program(
        "train { batch 64  steps 10  optimizer sgd(0.1, momentum: 0.9)  balance cost(1, 2, 0.5, limit: 64 KiB)  lookahead 2
            microbatches 4  unique_rows off  precision { output_dist bf16  compute bf16 }  seed 1_000 }
        workload w { generate { lengths lognormal(mean: 20, sigma: 1)  ids zipf(1.05)  samples 5 } }",
    );
    let t = &p.train;
    assert_eq!(
        (t.batch, t.duration, t.lookahead, t.microbatches),
        (64, Duration::Steps(10), 2, Microbatches::Fixed(4))
    );
    let left = program("train { microbatches auto }").train.microbatches;
    assert_eq!((left, Microbatches::Fixed(1)), (Microbatches::Auto, program("train { }").train.microbatches));
    assert_eq!(t.optimizer, DenseOptimizer::Sgd { lr: 0.1, momentum: 0.9, weight_decay: 0.0 });
    assert_eq!(
        t.balance,
        Balancing::On(Balance {
            cost: Some([1.0, 2.0, 0.5]),
            limit: Some(Limit::Bytes(65_536)),
            equal_counts: false,
            fit: false,
        })
    );
    assert!(!t.unique_rows && t.seed == 1000);
    assert_eq!((t.precision.output_dist, t.precision.all_reduce), (DType::BF16, DType::F32));
    assert_eq!(t.precision.compute, DType::BF16);
    let other = program("train { precision { gradient_dist bf16 } }").train.precision;
    assert_eq!((other.compute, other.gradient_dist), (DType::F32, DType::BF16));
    let blocks = program("train { precision { output_dist mxint8 } }").train.precision;
    assert_eq!((blocks.output_dist, blocks.gradient_dist), (DType::MXINT8, DType::F32));
    assert!(t.spans.iter().any(|s| s.0 == "seed"));
    let source = &p.workload.unwrap().source;
    assert!(matches!(
        source,
        DataSource::Generate {
            lengths: LengthDistribution::Lognormal { min: 1, max: None, .. },
            samples: Some(5),
            ..
        }
    ));
    let p = program("cluster local");
    assert_eq!(p.train, fs_dsl::checked::Train::default());
    assert_eq!(p.train.duration, Duration::Epochs(1));
    let m = model("let x = lookup(a)");
    assert_eq!(m.tables[0].init, Init::Normal { mean: 0.0, std: 0.02 });
    assert_eq!(m.tables[0].optimizer, SparseOptimizer::Sgd { lr: 0.1 });
}

#[test]
fn balance_takes_a_limit_in_tokens_or_bytes() {
    let balance =
        |text: &str| program(&format!("train {{ batch 8  {text}  seed 3 }} cluster local")).train.balance;
    let on = |limit, equal_counts| Balancing::On(Balance { cost: None, limit, equal_counts, fit: false });
    assert_eq!(balance(""), Balancing::Auto);
    assert_eq!(balance("balance auto"), Balancing::Auto);
    assert_eq!(balance("balance off"), Balancing::Off);
    assert_eq!(balance("balance on"), on(None, false));
    assert_eq!(balance("balance on(equal_counts: on)"), on(None, true));
    assert_eq!(balance("balance on(limit: 4096 tokens)"), on(Some(Limit::Tokens(4096)), false));
    assert_eq!(balance("balance on(2 * 4_096 tokens, on)"), on(Some(Limit::Tokens(8192)), true));
    assert_eq!(balance("balance on(limit: 1.5 KiB)"), on(Some(Limit::Bytes(1536)), false));
}

#[test]
fn every_primitive_infers_its_type() {
    let text = "model m {
        table t { rows 10  dim 8  optimizer sgd(lr: 0.1) }
        input a: ids(t) { max 5 }
        input n: next(a)
        input d: dense(3)
        input y: label
        let x = positional(lookup(a))
        let q, k = split(linear(layer_norm(x), 16), [8, 8])
        let s = silu_attention(silu(q), relu(k), gelu(x), heads: 4)
        let z = softmax_attention(sigmoid(s), softmax(s), dropout(s, 0.1), heads: 2, causal: false)
        let w = l2_normalize(add(scale(z, 2), mul(s, z), x))
        let wide = concat(w, lookup(n), s)
        let p = dot_interaction(pool(a), mlp(d, [16, 8]), pool(a, mode: mean))
        let _one = bce_with_logits(linear(concat(p, d), 1), y, normalize: 3)
        loss sampled_softmax(linear(wide, 8), t, n, negatives: 2, normalize: samples)
    }";
    let reference = fs_dsl::reference();
    let names: Vec<&str> = reference.lines().filter_map(|l| l.strip_prefix("#### ")).collect();
    assert!(names.len() >= 20);
    for name in &names {
        assert!(text.contains(&format!("{name}(")), "{name} is not in the test");
    }
    assert_eq!(messages(text), [], "an underscore silences the warning");
    let m = program(text).model.unwrap();
    let ty = |name: &str| {
        let ty = m.values.iter().find(|v| v.name == name).unwrap_or_else(|| panic!("{name}")).ty;
        (matches!(ty.rows, Rows::Tokens(_)), ty.columns)
    };
    for (name, tokens, columns) in
        [("x", true, 8), ("k", true, 8), ("s", true, 8), ("w", true, 8), ("wide", true, 24), ("p", false, 3)]
    {
        assert_eq!(ty(name), (tokens, columns), "{name}");
    }
    assert_eq!(m.values[m.loss.index()].ty.rows, Rows::One);
    let distinct: std::collections::HashSet<_> =
        m.nodes.iter().map(|n| std::mem::discriminant(&n.op)).collect();
    assert_eq!(distinct.len(), 23, "each operation is used");
}

#[test]
fn several_mistakes_in_one_run() {
    let found = messages(
        "model m {
            table t { rows 10  dmi 8  optimizer sgd(lr: 0.1) }
            input a: ids(t) { max 5 }
            let x = lookup(a) +
            let z = silu(a)
            loss bce_with_logits(linear(x, 1), q, normalize: tokens)
        }
        train { bach 3 }",
    );
    let codes: Vec<codes::Code> = found.iter().map(|f| f.0).collect();
    assert!(codes.contains(&codes::SYNTAX) && codes.contains(&codes::UNKNOWN_SETTING), "{found:?}");
    assert!(codes.contains(&codes::UNKNOWN_NAME), "{found:?}");
    // Neither `t` nor `x` is called unknown: both are declared, though wrongly.
    assert!(found.iter().all(|f| !f.1.contains("`x`") && !f.1.contains("`t` here")), "{found:?}");
}
