#!/usr/bin/env python3
"""Holds a report of examples/movielens.fs against the bands of the PyTorch reference (docs/measurements.md).

Usage: check_bands.py REPORT.json [REPORT.json ...]; with several reports their mean must lie in the bands.
"""
import json
import sys

# name, path in the report, centre, half width; popularity is exact to the digits printed.
BANDS = [
    ("unseen HR@10", ("model", "unseen", "hr_10"), 0.079, 0.015),
    ("unseen NDCG@10", ("model", "unseen", "ndcg_10"), 0.043, 0.008),
]
EXACT = [
    (("popularity", "all", "hr_10"), "0.0238"), (("popularity", "all", "ndcg_10"), "0.0116"),
    (("popularity", "unseen", "hr_10"), "0.0417"), (("popularity", "unseen", "ndcg_10"), "0.0194"),
]
# Epoch, lowest and highest loss of three PyTorch seeds, mean over the epoch's steps.
LOSS = [(5, 1.81, 1.88), (10, 1.42, 1.44), (20, 1.14, 1.16)]
SLACK = 0.03


def at(report, path):
    value = report["evaluation"]
    for key in path:
        value = value[key]
    return value


def main():
    reports = [json.load(open(name, encoding="utf-8")) for name in sys.argv[1:]]
    if not reports:
        sys.exit(__doc__)
    failed = False

    def check(ok, text):
        nonlocal failed
        failed |= not ok
        print(("ok      " if ok else "OUTSIDE ") + text)

    for name, path, centre, width in BANDS:
        mean = sum(at(r, path) for r in reports) / len(reports)
        check(abs(mean - centre) <= width, f"{name} {mean:.4f}, band {centre} +- {width}")
    for path, text in EXACT:
        for r in reports:
            check(f"{at(r, path):.4f}" == text, f"{' '.join(path)} {at(r, path):.4f}, exactly {text}")
    for epoch, low, high in LOSS:
        for r in reports:
            steps = len(r["loss"]) // 20
            own = r["loss"][(epoch - 1) * steps:epoch * steps]
            mean = sum(own) / len(own)
            check(low - SLACK <= mean <= high + SLACK, f"loss of epoch {epoch}: {mean:.3f}, range {low} to {high} +- {SLACK}")
    sys.exit(failed)


main()
