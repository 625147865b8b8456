#!/usr/bin/env python3
"""Trains on a GPU through `fsx run` and holds it against PyTorch, against itself and against the CPU.

    tests/cuda/training.py FSC FSX BACKEND [--model MODEL.fs] [--steps N] [--timed MODEL.fs] [--json FILE]

- PyTorch: each model in tests/models/parity_*.fs, begun where its fixture begins, has the fixture's losses, to 1e-4.
- Strategies: serial, prefetch, pec and auto end with the same bits: losses, tables, parameters, optimizer states.
- CPU: its losses to 1e-4, and lists of values to 1e-4 of their norm.
- Copies: what carried out the copies of each transfer, which goes into FILE (left out with a word where CUPTI is not installed).

- Time: with --timed the steps of that model under serial and pec, in f32 and bf16, and how long the host takes to issue one.

Without a model the three before that take a parity model, which is small.
"""

import argparse
import json
import math
import re
import struct
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FAILED = []


def check(what, problem):
    print(f"{'FAILED' if problem else 'ok':<7} {what}" + (f": {problem}" if problem else ""), flush=True)
    FAILED.extend([what] if problem else [])


def tensors(path):
    """Names to type and bytes of a safetensors file."""
    data = Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    cut = lambda t: data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]]
    return {name: (t["dtype"], cut(t)) for name, t in header.items() if name != "__metadata__"}


def numbers(tensor):
    return array({"F32": "f", "F64": "d"}[tensor[0]], tensor[1])


class Runs:
    def __init__(self, given, folder):
        self.given, self.folder = given, folder

    def compile(self, model, strategy, ranks):
        out = self.folder / f"{Path(model).stem}-{strategy}.json"
        command = [self.given.fsc, "compile", model, "-o", out, "--ranks", str(ranks), "--strategy", strategy, "--balance", "off"]
        command += ["--cluster", self.given.cluster]
        subprocess.run(list(map(str, command)), check=True, capture_output=True, cwd=ROOT)
        return out

    def run(self, schedule, backend, *more):
        command = [self.given.fsx, "run", schedule, "--backend", backend, "--json", "--quiet", "--no-evaluate", *more]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=ROOT)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip())
        return json.loads(done.stdout)


def parity(runs, given):
    for model in sorted((ROOT / "tests/models").glob("parity_*.fs")):
        name = model.stem.removeprefix("parity_")
        fixture = ROOT / f"tests/fixtures/{name}.safetensors"
        ranks = int(name[1:].split("_")[0])
        wanted = numbers(tensors(fixture)["losses"])
        try:
            found = runs.run(runs.compile(model, "pec", ranks), given.backend, "--init", fixture)["loss_per_rank"]
        except RuntimeError as error:
            check(f"PyTorch's {name}", str(error))
            continue
        found = [loss for step in found for loss in step]
        off = off_by(found, wanted)
        check(f"PyTorch's losses of {name}, within {off:.1e}", not off <= 1e-4 and "more than 1e-4")


def off_by(found, wanted):
    """The greatest share by which numbers differ; infinite if one is none, or not finite."""
    most = 0.0
    for a, b in zip(found, wanted, strict=True):
        if a is None or b is None or not math.isfinite(a) or not math.isfinite(b):
            return math.inf
        most = max(most, abs(a - b) / abs(b) if b else abs(a))
    return most


def norm(values):
    return sum(x * x for x in values) ** 0.5


def apart(found, wanted):
    """The greatest distance of a list of numbers, by the norm of what is wanted."""
    most = 0.0
    for name, tensor in wanted.items():
        if tensor[0] not in ("F32", "F64"):
            continue
        a, b = numbers(found[name]), numbers(tensor)
        if not all(map(math.isfinite, a)) or not all(map(math.isfinite, b)):
            return math.inf
        distance = norm([x - y for x, y in zip(a, b, strict=True)])
        most = max(most, distance / (norm(b) or 1.0))
    return most


def strategies(runs, given, model, ranks):
    more = ["--steps", given.steps]
    first, schedules = None, {s: runs.compile(model, s, ranks) for s in ["serial", "prefetch", "pec", "auto"]}
    for strategy, schedule in schedules.items():
        saved = runs.folder / f"{strategy}.safetensors"
        try:
            losses = runs.run(schedule, given.backend, *more, "--save", saved)["loss"]
        except RuntimeError as error:
            check(f"{strategy} trains", str(error))
            continue
        own = (losses, tensors(saved))
        first = first or own
        differ = [n for n in first[1] if own[1].get(n) != first[1][n]] + ([] if own[0] == first[0] else ["losses"])
        check(f"{strategy} ends with the bits of serial", differ and f"{', '.join(differ[:5])} differ")
    saved = runs.folder / "cpu.safetensors"
    losses = runs.run(schedules["serial"], "cpu", *more, "--save", saved)["loss"]
    if first:
        off = off_by(first[0], losses)
        check(f"the CPU's losses, within {off:.1e}", not off <= 1e-4 and "more than 1e-4")
        off = apart(first[1], tensors(saved))
        check(f"the CPU's values, within {off:.1e} of a list's norm", not off <= 1e-4 and "more than 1e-4")
    try:
        copies = runs.run(schedules["pec"], given.backend, *more, "--copies")["copies"]
    except RuntimeError as error:
        if "libcupti" in str(error):
            print(f"skipped what carries out copies: {error}")
            return None
        raise
    for t in copies["transfers"]:
        print(f"        {t['operation']}: {t['copies']} copies {t['way']} by {t['by']}, {t['bytes']} bytes")
    return copies


def timed(runs, given):
    """Steps of a model: medians, and what the host takes to enqueue one on each rank, in milliseconds."""
    found = []
    for compute in ["f32", "bf16"]:
        text = given.timed.read_text().replace("train {", f"train {{ precision {{ compute {compute} }}", 1)
        # Files are named by where the model stands.
        text = re.sub(r'\b(import|csv|safetensors) "(?!/)', rf'\1 "{given.timed.parent}/', text)
        model = runs.folder / f"{given.timed.stem}-{compute}.fs"
        model.write_text(text)
        for strategy in ["serial", "pec"]:
            try:
                report = runs.run(runs.compile(model, strategy, 2), given.backend, "--steps", given.steps)
            except RuntimeError as error:
                check(f"{given.timed.stem} in {compute} under {strategy}", str(error))
                continue
            # By the host's clock, without what waits for the device. So this is less than all, without a wait in it.
            issue = report["accounting"]["issue_ms"]
            if not issue > 0:
                check(f"what the host takes to issue a step of {given.timed.stem}", f"{issue} ms")
            found.append({"compute": compute, "strategy": strategy, "step_ms": report["step_ms"]["median"], "issue_ms": issue})
            print(f"        {given.timed.stem} in {compute}, {strategy}: {found[-1]['step_ms']:.3f} ms a step, {issue:.3f} ms of the host to issue it without what waits for the device")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ["fsc", "fsx"]:
        parser.add_argument(name, type=lambda p: Path(p).absolute())
    parser.add_argument("backend")
    parser.add_argument("--model", type=lambda p: Path(p).absolute(), default=ROOT / "tests/models/parity_w2_t2_sgd.fs")
    parser.add_argument("--cluster", default="dgx_h100", help="the machine that schedules are planned for")
    parser.add_argument("--timed", type=lambda p: Path(p).absolute())
    parser.add_argument("--steps", default="20")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        runs = Runs(given, Path(name))
        parity(runs, given)
        found = {"copies": strategies(runs, given, given.model, 2), "timed": timed(runs, given) if given.timed else None}
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{len(FAILED)} failed")
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
