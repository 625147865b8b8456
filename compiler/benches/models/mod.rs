//! Models of any size, for measuring how compilation grows.

use std::fmt::Write as _;

/// A click model with so many tables, pooled, and so many residual layers over them.
pub(crate) fn model(tables: usize, layers: usize) -> String {
    let mut text = String::from("model large {\n");
    for t in 0..tables {
        let _ = writeln!(
            text,
            "  table t{t} {{ rows {}  dim 16  optimizer rowwise_adagrad(lr: 0.05)  sharding row_wise }}",
            1000 + t
        );
    }
    for t in 0..tables {
        let _ = writeln!(text, "  input i{t}: ids(t{t}) {{ max 8 }}");
    }
    text += "  input click: label\n";
    for t in 0..tables {
        let _ = writeln!(text, "  let e{t} = pool(i{t})");
    }
    // Sums of 64: a model of one sum would measure that sum.
    let groups = tables.div_ceil(64);
    for g in 0..groups {
        let parts: Vec<String> = (g * 64..tables.min((g + 1) * 64)).map(|t| format!("e{t}")).collect();
        let _ = writeln!(text, "  let s{g} = {}", parts.join(" + "));
    }
    let sums: Vec<String> = (0..groups).map(|g| format!("s{g}")).collect();
    let _ = writeln!(text, "  let x = {}", sums.join(" + "));
    let _ = writeln!(
        text,
        "  repeat {layers} as l {{ x = x + linear(silu(linear(layer_norm(x), 32, name: \"up\")), 16, name: \"down\") }}"
    );
    text += "  loss bce_with_logits(linear(x, 1, name: \"head\"), click, normalize: samples)\n}\n";
    text += "train { batch 64  steps 10 }\nworkload w { generate { lengths uniform(1, 8) } }\n";
    text
}

/// A click model of dense features: `body` defines what `score` is made of.
fn dense(body: &str, score: &str) -> String {
    format!(
        "model wide {{\n  input f: dense(4)\n  input click: label\n{body}  loss bce_with_logits(linear({score}, 1), click, normalize: samples)\n}}
train {{ batch 64  steps 10  optimizer adam(lr: 1e-3) }}\nworkload w {{ generate {{ lengths uniform(1, 8) }} }}\n"
    )
}

/// A concat of so many values, each computed by itself.
pub(crate) fn concat(operands: usize) -> String {
    let mut body = String::from("  let h = linear(f, 4)\n");
    for i in 0..operands {
        let _ = writeln!(body, "  let a{i} = silu(h)");
    }
    let all: Vec<String> = (0..operands).map(|i| format!("a{i}")).collect();
    dense(&body, &format!("concat({})", all.join(", ")))
}

/// So many parts of splits, 500 of each, activated by themselves and put side by side again.
pub(crate) fn split(parts: usize) -> String {
    let (mut body, mut all) = (String::new(), Vec::new());
    for s in 0..parts.div_ceil(500) {
        let names: Vec<String> = (0..500).map(|i| format!("s{s}_{i}")).collect();
        let _ = writeln!(body, "  let h{s} = linear(f, 2000)\n  let {} = split(h{s}, 500)", names.join(", "));
        for name in names {
            let _ = writeln!(body, "  let t{name} = silu({name})");
            all.push(format!("t{name}"));
        }
    }
    dense(&body, &format!("concat({})", all.join(", ")))
}

/// So many layers.
pub(crate) fn mlp(layers: usize) -> String {
    dense("", &format!("mlp(f, [{}])", vec!["4"; layers].join(", ")))
}
