#!/usr/bin/env python3
"""Two hosts of two ranks: what sums of dense gradients send between them, at once and node by node, and how long a step takes.

    tests/mpi/sums.py FSC FSX [--rates 100mbit 200mbit 500mbit] [--steps 20] [--repeat 3]

FSX is built with `--features mpi`. As root, with iproute2: two network namespaces are the hosts (two_hosts.sh). At once sums a schedule for
four nodes of one rank, node by node one for two of two. Runs of one rate alternate; times are medians of a step of the run, bytes are those
that the first host has sent, of a step.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path

from check import HERE, Job, fail, ok, sent

# Next to nothing but dense gradients.
MODEL = """
model dense {
  table a { rows 1000  dim 64  optimizer sgd(lr: 0.1)  sharding data_parallel }
  input x: ids(a) { max 4 }
  input y: label
  let h = relu(linear(relu(linear(pool(x, sum), 1024)), 1024))
  loss bce_with_logits(linear(h, 1), y, normalize: samples)
}
train { batch 64  steps 6  optimizer sgd(lr: 0.1)  balance off }
workload w { generate { lengths uniform(1, 4)  ids zipf(1.05)  labels hash } }
"""


def compiled(fsc, folder, each):
    """A schedule of four ranks that sums dense gradients by nodes of so many, or at once if that is one."""
    nodes = f"cluster c from h100x256 {{ nodes {4 // each}  gpus_per_node {each} }}\n"
    (folder / "m.fs").write_text(MODEL + nodes)
    compile_ = [fsc, "compile", "m.fs", "-o", "m.json", "--ranks", "4", "--cluster", "c", "--strategy", "overlap"]
    done = subprocess.run(compile_, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"sums of dense gradients: {done.stderr}")
    by_node = json.loads((folder / "m.json").read_text())["settings"].get("sums_by_node", False)
    if by_node != (each > 1):
        fail(f"sums of dense gradients by nodes of {each}: sums_by_node is {by_node}")


def summed_hosts(given, folder):
    """Between two hosts of two ranks a host's sums cross, and not each rank's gradients."""
    crossed = {}
    for each in [1, 2]:
        compiled(given.fsc, folder, each)
        train = [given.fsx, "run", "m.json", "-q", "--save"]
        subprocess.run(train + ["local.safetensors"], cwd=folder, check=True)
        before = sent()
        code, _, err, _ = Job([HERE / "mpirun_two_hosts.sh"] + train + ["mpi.safetensors"], folder).end(240)
        if code != 0 or (folder / "mpi.safetensors").read_bytes() != (folder / "local.safetensors").read_bytes():
            fail(f"two hosts, sums by nodes of {each}: {code}\n{err}")
        crossed[each] = sent() - before
    share = crossed[2] / crossed[1]
    if not 0.45 < share < 0.6:
        fail(f"two hosts that sum dense gradients node by node send {share:.3f} of what they send at once")
    ok(f"sums of dense gradients node by node send {share:.3f} of the bytes between two hosts, and train the bits of threads")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fsc", type=Path)
    parser.add_argument("fsx", type=Path)
    parser.add_argument("--rates", nargs="+", default=["100mbit", "200mbit", "500mbit"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    fsc, fsx = given.fsc.resolve(), given.fsx.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ways = {"at once": 1, "node by node": 2}
        for way, each in ways.items():
            compiled(fsc, folder, each)
            (folder / "m.json").rename(folder / f"{each}.json")
        for rate in given.rates:
            subprocess.run([HERE / "two_hosts.sh", "up", rate], check=True)
            try:
                steps, crossed = {way: [] for way in ways}, {}
                for _ in range(given.repeat):
                    for way, each in ways.items():
                        before = sent()
                        run = [HERE / "mpirun_two_hosts.sh", fsx, "run", f"{each}.json", "-q", "--steps", str(given.steps)]
                        done = subprocess.run([*run, "--report", "report.json"], cwd=folder, capture_output=True, text=True)
                        if done.returncode != 0:
                            fail(done.stderr)
                        crossed[way] = (sent() - before) / given.steps
                        report = json.loads((folder / "report.json").read_text())
                        steps[way].append(report["step_ms"]["median"])
                for way in ways:
                    print(f"{rate}, {way}: {crossed[way] / 1e6:.3f} MB and {statistics.median(steps[way]):.1f} ms a step", flush=True)
            finally:
                subprocess.run([HERE / "two_hosts.sh", "down"], check=True)


if __name__ == "__main__":
    main()
