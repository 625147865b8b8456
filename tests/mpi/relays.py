#!/usr/bin/env python3
"""Two hosts of two ranks: what crosses between them, and how long a step takes, with relays and without.

    tests/mpi/relays.py FSC FSX [--model M.fs] [--strategy pec] [--rates 100mbit 200mbit 500mbit] [--steps 40] [--repeat 3]

FSX is built with `--features mpi`. As root, with iproute2: two network namespaces are the hosts (two_hosts.sh). Runs of one rate
alternate; times are medians of a step of the run, bytes are those that the first host has sent, of a step. Bits must be equal.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path

from check import HERE, ROOT, SHARED, fail, sent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fsc", type=Path)
    parser.add_argument("fsx", type=Path)
    parser.add_argument("--model", type=Path, help="a table that all of a host's ranks use without it")
    parser.add_argument("--strategy", default="pec")
    parser.add_argument("--rates", nargs="+", default=["100mbit", "200mbit", "500mbit"])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    fsc, fsx = given.fsc.resolve(), given.fsx.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given.model is None:
            (folder / "m.fs").write_text(SHARED)
        model = str(given.model.resolve() if given.model else folder / "m.fs")
        tables = {}
        for relay in ["off", "on"]:
            compile_ = [fsc, "compile", model, "-o", f"{relay}.json", "--ranks", "4", "--cluster", "local"]
            compile_ += ["--strategy", given.strategy]
            plain = json.loads((folder / "off.json").read_text()) if relay == "on" else {"tables": []}
            for table in plain["tables"]:
                if table["sharding"] != "data_parallel":
                    compile_ += ["--table", f"{table['name']}:relay=on"]
            done = subprocess.run(compile_, cwd=folder, capture_output=True, text=True)
            if done.returncode != 0:
                fail(done.stderr)
        for rate in given.rates:
            subprocess.run([HERE / "two_hosts.sh", "up", rate], check=True)
            try:
                steps, crossed, ends = {"off": [], "on": []}, {}, {}
                for _ in range(given.repeat):
                    for relay in ["off", "on"]:
                        before = sent()
                        run = [HERE / "mpirun_two_hosts.sh", fsx, "run", f"{relay}.json", "-q", "--steps", str(given.steps)]
                        run += ["--save", "end.safetensors", "--report", "report.json"]
                        done = subprocess.run(run, cwd=folder, capture_output=True, text=True)
                        if done.returncode != 0:
                            fail(done.stderr)
                        crossed[relay] = (sent() - before) / given.steps
                        report = json.loads((folder / "report.json").read_text())
                        steps[relay].append(report["step_ms"]["median"])
                        ends[relay] = (folder / "end.safetensors").read_bytes()
                if ends["on"] != ends["off"]:
                    fail("relays train other bits")
                off, on = (statistics.median(steps[relay]) for relay in ["off", "on"])
                print(f"{rate}: {crossed['off'] / 1e6:.3f} MB and {off:.1f} ms a step without relays, "
                      f"{crossed['on'] / 1e6:.3f} MB and {on:.1f} ms with ({crossed['on'] / crossed['off']:.3f}, {on / off:.3f})", flush=True)
            finally:
                subprocess.run([HERE / "two_hosts.sh", "down"], check=True)


if __name__ == "__main__":
    main()
