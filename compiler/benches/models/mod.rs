//! Models of any size, for measuring how compilation grows.

use std::fmt::Write as _;

/// A click model with so many tables, pooled, and so many residual layers over them.
pub fn model(tables: usize, layers: usize) -> String {
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
