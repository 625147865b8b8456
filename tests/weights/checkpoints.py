#!/usr/bin/env python3
"""What checkpoints cost: the steps beside which one is written, and the disk's speed that writing and reading one reach.

    tests/weights/checkpoints.py FSC FSX steps [--every N,N,..] [--rounds N]
    tests/weights/checkpoints.py FSC FSX disk [--rows N] [--rounds N]

`steps` trains one model in turns without checkpoints and with one every so many steps, and compares the median step. `disk` leaves
one checkpoint of a table at the end of a run and goes on from it, with the page cache dropped before (as root; it says so where it
cannot be), beside files of the same size written and read by dd in the same folder, in turns. Nothing is asserted: machines differ.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODEL = """
model m {
  table a { rows ROWS  dim 64  init normal(0, 0.5)  optimizer rowwise_adagrad(lr: 0.05) }
  input x: ids(a) { max 100 }
  input click: label like x
  let h = lookup(x)
  loss bce_with_logits(linear(silu(linear(h, 64)), 1), click, normalize: tokens)
}
train { batch 32  steps 10000  optimizer adam(lr: 1e-2) }
workload w { generate { lengths uniform(90, 100)  ids zipf(1.05)  labels hash } }
"""


def compiled(given, folder, rows):
    (folder / "m.fs").write_text(MODEL.replace("ROWS", str(rows)))
    command = [given.fsc, "compile", "m.fs", "-o", "m.json", "--ranks", "2", "--strategy", "pec"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def run(given, folder, *more):
    began = time.monotonic()
    command = [given.fsx, "run", "m.json", "-q", "--report", "r.json", *map(str, more)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads((folder / "r.json").read_text()), time.monotonic() - began


def spread(values):
    values = sorted(values)
    return f"{statistics.median(values):.3f} ({values[0]:.3f} to {values[-1]:.3f})"


def steps(given, folder):
    compiled(given, folder, given.rows or 2_000_000)
    kinds = [int(n) for n in given.every.split(",")]
    found = {n: {"runs": [], "steps": [], "memory": [], "slowest": []} for n in kinds}
    for _ in range(given.rounds):
        without, _ = run(given, folder, "--steps", min(3000, given.steps))
        for every in kinds:
            shutil.rmtree(folder / "c", ignore_errors=True)
            report, _ = run(given, folder, "--steps", given.steps, "--checkpoint", "c", "--every", every, "--keep", 1)
            kept, own = report["checkpoints"], found[every]
            own["runs"].append(report["step_ms"]["median"] / without["step_ms"]["median"])
            if kept["others_ms"]["median"] > 0:
                own["steps"].append(kept["step_ms"]["median"] / kept["others_ms"]["median"])
            own["slowest"].append(kept["step_ms"]["p99"] / without["step_ms"]["p99"])
            own["memory"].append((report["peak_memory_bytes"] - without["peak_memory_bytes"]) / 1e6)
            own["last"] = (kept, without["step_ms"]["median"])
    for every, own in found.items():
        kept, step = own["last"]
        beside = f"steps beside one / others of the run {spread(own['steps'])}, " if own["steps"] else "all steps beside one, "
        print(f"every {every}: {beside}median of the run / without {spread(own['runs'])}, 99th percentile beside one / without "
              f"{spread(own['slowest'])}, peak memory + {spread(own['memory'])} MB; the last: {kept['written']} written of "
              f"{kept['bytes'] / 1e6:.0f} MB, {kept['seconds']:.1f} s each, {kept['left_out']} left out, "
              f"{kept['rows_aside']} rows aside, a step without {step:.2f} ms")


def dropped():
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
        return True
    except OSError:
        return False


def disk(given, folder):
    compiled(given, folder, given.rows or 20_000_000)
    size = None
    print("the page cache is dropped before reading" if dropped() else "the page cache cannot be dropped: reading is from memory")
    shares = {"write": [], "read": []}
    for _ in range(given.rounds):
        shutil.rmtree(folder / "c", ignore_errors=True)
        dropped()
        report, _ = run(given, folder, "--steps", 1, "--checkpoint", "c", "--every", "10h", "--keep", 1)
        about = report["checkpoints"]
        size = about["bytes"]
        dropped()
        blocks = max(1, size // (8 << 20))
        began = time.monotonic()
        command = ["dd", "if=/dev/zero", "of=plain", "bs=8M", f"count={blocks}", "conv=fdatasync"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        wrote = time.monotonic() - began
        # What a run takes to begin without a checkpoint is not reading.
        without, plain = run(given, folder, "--steps", 1)
        dropped()
        began = time.monotonic()
        subprocess.run(["dd", "if=plain", "of=/dev/null", "bs=8M"], cwd=folder, check=True, capture_output=True)
        read = time.monotonic() - began
        dropped()
        resumed, whole = run(given, folder, "--steps", 2, "--resume", "c")
        (folder / "plain").unlink()
        shares["write"].append(wrote * size / (blocks * (8 << 20)) / about["seconds"])
        shares["read"].append(read * size / (blocks * (8 << 20)) / max(whole - plain, 1e-9))
        print(f"{size / 1e9:.2f} GB: written in {about['seconds']:.1f} s, dd {wrote:.1f} s; "
              f"read in {whole - plain:.1f} s (a run {whole:.1f} s, without {plain:.1f} s), dd {read:.1f} s; "
              f"peak memory {report['peak_memory_bytes'] / 1e6:.0f} and {resumed['peak_memory_bytes'] / 1e6:.0f} MB, "
              f"without {without['peak_memory_bytes'] / 1e6:.0f} MB", flush=True)
    for what, values in shares.items():
        print(f"{what}: {spread(values)} of the disk's speed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fsc", type=Path)
    parser.add_argument("fsx", type=Path)
    parser.add_argument("what", choices=["steps", "disk"])
    parser.add_argument("--every", default="200,1000")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--folder", type=Path, help="where the disk is that is measured")
    given = parser.parse_args()
    given.fsc, given.fsx = given.fsc.resolve(), given.fsx.resolve()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        {"steps": steps, "disk": disk}[given.what](given, Path(name))


if __name__ == "__main__":
    main()
