#!/usr/bin/env python3
"""Prints a model of many pooled tables, for the times of compiling in docs/measurements.md.

    tests/tables.py TABLES alike|different|summed|concat [LAYERS]
    tests/tables.py TABLES open [SEED]

Tables of 16 columns, their rows alike or different, summed (in groups of 64) or put side by side, then LAYERS (1) layers of 64.
Open: tables and inputs drawn at random, next to no two alike, wherever the compiler puts them, side by side below one layer.
"""

import random
import sys

GROUP = 64


def model(tables, kind, layers):
    rows = lambda i: 10_000 + (97 * i if kind == "different" else 0)
    lines = ["model many {"]
    for i in range(tables):
        lines.append(f"  table t{i} {{ rows {rows(i)}  dim 16  init normal(0, 0.5)  optimizer sgd(lr: 0.1)  sharding row_wise }}")
        lines.append(f"  input x{i}: ids(t{i}) {{ max 10 }}")
    lines.append("  input click: label")
    values, sums = [f"pool(x{i}, sum)" for i in range(tables)], 0
    if kind == "concat":
        values = [f"concat({', '.join(values)})"]
    while len(values) > 1:
        groups = [values[i : i + GROUP] for i in range(0, len(values), GROUP)]
        values = [f"s{sums + i}" for i in range(len(groups))]
        lines += [f"  let s{sums + i} = " + " + ".join(group) for i, group in enumerate(groups)]
        sums += len(groups)
    lines.append(f"  let h = relu(linear({values[0]}, 64))")
    lines.append(f"  repeat {layers} as layers {{ h = relu(linear(h, 64)) }}")
    lines.append('  loss bce_with_logits(linear(h, 1, name: "head"), click, normalize: samples)')
    lines.append("}")
    lines.append("train { batch 256  steps 10  optimizer sgd(lr: 0.1) }")
    lines.append("workload w { generate { lengths uniform(1, 10)  ids zipf(1.05)  labels bernoulli(0.5) } }")
    return "\n".join(lines)


def drawn(tables, seed):
    draw = random.Random(seed)
    lines = ["model many {"]
    for i in range(tables):
        rows, columns = int(10 ** draw.uniform(2, 6.3)), draw.choice([8, 16, 32, 64, 128])
        optimizer = draw.choice(["sgd", "adagrad", "rowwise_adagrad"])
        lines.append(f"  table t{i} {{ rows {rows}  dim {columns}  optimizer {optimizer}(lr: 0.1)  sharding auto }}")
        lines.append(f"  input x{i}: ids(t{i}) {{ max {draw.choice([1, 1, 2, 5, 10, 20, 50])} }}")
    pooled = ", ".join(f"pool(x{i})" for i in range(tables))
    lines.append("  input click: label")
    lines.append(f"  loss bce_with_logits(linear(concat({pooled}), 1), click, normalize: samples)")
    lines.append("}")
    lines.append(f"train {{ batch {draw.choice([512, 2048, 8192])}  steps 2 }}")
    lines.append("workload w { generate { lengths lognormal(mean: 12, sigma: 1, max: 50)  ids zipf(1.05)  labels hash } }")
    return "\n".join(lines)


KINDS = ("alike", "different", "summed", "concat", "open")

if __name__ == "__main__":
    given = sys.argv[1:]
    if len(given) not in (2, 3) or given[1] not in KINDS or not all(n.isdigit() and int(n) > 0 for n in (given[0], *given[2:])):
        sys.exit(f"error: say how many tables, which of {', '.join(KINDS)} they are, and perhaps how many layers, or which random ones")
    tables, last = int(given[0]), int(given[2]) if given[2:] else 1
    print(drawn(tables, last) if given[1] == "open" else model(tables, given[1], last))
