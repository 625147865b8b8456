#!/usr/bin/env python3
"""Prints a click model with many pooled tables: `large_model.py TABLES LAYERS`."""

import sys


def model(tables, layers):
    lines = ["model large {"]
    lines += [f"  table t{t} {{ rows {1000 + t}  dim 16  optimizer rowwise_adagrad(lr: 0.05)  sharding row_wise }}" for t in range(tables)]
    lines += [f"  input i{t}: ids(t{t}) {{ max 8 }}" for t in range(tables)]
    lines += ["  input click: label"]
    lines += [f"  let e{t} = pool(i{t})" for t in range(tables)]
    # Sums of 64, then one of the sums.
    groups = [range(g, min(g + 64, tables)) for g in range(0, tables, 64)]
    lines += [f"  let s{g} = {' + '.join(f'e{t}' for t in group)}" for g, group in enumerate(groups)]
    lines += [f"  let x = {' + '.join(f's{g}' for g in range(len(groups)))}"]
    lines += [f"  repeat {layers} as l {{ x = x + linear(silu(linear(layer_norm(x), 32, name: \"up\")), 16, name: \"down\") }}"]
    lines += ["  loss bce_with_logits(linear(x, 1, name: \"head\"), click, normalize: samples)", "}"]
    lines += ["train { batch 64  steps 10 }", "workload w { generate { lengths uniform(1, 8) } }"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(model(int(sys.argv[1]), int(sys.argv[2])))
