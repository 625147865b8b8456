#!/usr/bin/env python3
"""Times TorchRec and `fsx run` on two hosts that a limited link joins, on one data file, and prints tables.

    tests/peers/two_hosts.py PYTHON FSC FSX [--shape wide|deep] [--rates 100,200,500,1000,0] [--steps 40] [--only own]
                           [--json FILE]

PYTHON: of the environment made by install_torchrec.sh; FSX is built with `--features mpi`. Hosts are network namespaces of this
machine (tests/mpi/two_hosts.sh), so it needs root and iproute2, and both share its cores; nothing else should run. Rates are in
Mbit/s, 0: not limited. Bytes are counted on the interface of the first host, both ways, start and end included.

Shapes: wide, four tables and one layer, in which links are busiest; deep, one table and two layers of longer sequences, in which
compute and communication are alike. TorchRec's exposed communication is its step without its compute, which it times apart; `fsx`
tells it from waiting for the other rank.

`fsx` runs with a row per occurrence, as TorchRec does (equal traffic), and with unique rows; with these also with samples moved
between ranks (balanced) and in microbatches, which TorchRec has not. The bound of a step is what takes
longer: its compute, or its bytes (of the busier direction) at the link's rate.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
MPI = HERE.parent / "mpi"
COMMON = ["--world", "2", "--rows", "200000", "--dim", "64", "--batch", "16", "--heads", "2"]
# What TorchRec is told, the model, and its tables.
SHAPES = {
    "wide": (["--tables", "4", "--mean-len", "100", "--max-len", "512", "--sigma", "0.8", "--layers", "1"],
             HERE / "two_hosts.fs", 4),
    "deep": (["--tables", "1", "--mean-len", "200", "--max-len", "1024", "--sigma", "1", "--layers", "2"],
             HERE.parent / "models/peer_t1.fs", 1),
}
# TorchRec allocates large arrays in every step: without these settings each goes back to the system.
ALLOCATOR = ["OMP_NUM_THREADS=1", "MALLOC_MMAP_THRESHOLD_=4000000000", "MALLOC_TRIM_THRESHOLD_=8000000000",
             "MALLOC_TOP_PAD_=500000000"]
# How schedules are compiled: with a row per occurrence as the peer does, and what only `fsx` has, beside unique rows.
ALIKE = [("serial", []), ("prefetch", []), ("pec", []), ("auto", [])]
BALANCED = ["--balance", "on"]
OWN = [("serial, balanced", BALANCED), ("pec, balanced", BALANCED), ("pec, 2 microbatches", ["--microbatches", "2"]),
       ("pec, balanced, 2 microbatches", [*BALANCED, "--microbatches", "2"])]
WARMUP = 3


def run(command, folder, within=600):
    done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=within)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def carried():
    """Bytes that the first host's interface has sent and received."""
    out = subprocess.run(["ip", "-n", "hostA", "-s", "-j", "link", "show", "vethA"], capture_output=True, text=True, check=True)
    stats = json.loads(out.stdout)[0]["stats64"]
    return stats["tx"]["bytes"], stats["rx"]["bytes"]


def counted(work):
    """What `work` returns, and the bytes of the busier direction meanwhile."""
    before = carried()
    found = work()
    return found, max(now - then for now, then in zip(carried(), before))


def torchrec(given, folder, mode):
    """Both hosts' processes; milliseconds of each step on the slower rank, and of its compute."""
    common = [given.python, HERE / "torchrec_step.py", *COMMON, *SHAPES[given.shape][0], "--steps", str(given.steps), "--addr", "10.77.0.1",
              "--mode", mode, "--data", "data.safetensors"]
    def one(rank):
        host = "AB"[rank]
        command = ["ip", "netns", "exec", f"host{host}", "env", f"GLOO_SOCKET_IFNAME=veth{host}", *ALLOCATOR, *common,
                   "--rank", str(rank)] + (["--json", "peer.json"] if rank == 0 else [])
        return subprocess.Popen(list(map(str, command)), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    def both():
        jobs = [one(1), one(0)]
        for job in jobs:
            _, err = job.communicate(timeout=600)
            if job.returncode != 0:
                sys.exit(f"TorchRec {mode}: {job.returncode}\n{err}")
    _, wire = counted(both)
    ranks = json.loads((folder / "peer.json").read_text())["ranks"]
    step = statistics.median([max(t) for t in zip(*(r["total"] for r in ranks))][WARMUP:])
    compute = max(r["med"]["dense_fwd"] + r["med"]["dense_bwd"] + r["med"]["optimizer"] for r in ranks)
    return {"step": step, "compute": compute, "exposed": step - compute, "waits": None, "wire": wire / given.steps,
            "predicted": None}


def plan(given, folder, unique, options):
    if "--balance" not in options:
        options = [*options, "--balance", "off"]
    tables = [x for t in range(SHAPES[given.shape][2]) for x in ("--table", f"t{t}:unique={'on' if unique else 'off'}")]
    run([given.fsc, "compile", "peer.fs", *tables, *options], folder)


def fsx(given, folder, strategy, unique, options, profile):
    plan(given, folder, unique, ["-o", "s.json", "--strategy", strategy, "--profile", profile, *options])
    predicted = json.loads((folder / "s.json").read_text())["prediction"]["step"] * 1e3
    train = [MPI / "mpirun_two_hosts.sh", given.fsx, "run", "s.json", "-q", "--data", "data.safetensors", "--steps",
             str(given.steps), "--report", "r.json"]
    _, wire = counted(lambda: run(train, folder))
    report = json.loads((folder / "r.json").read_text())
    return {"step": report["step_ms"]["median"], "compute": report["accounting"]["compute_ms"],
            "exposed": report["accounting"]["exposed_ms"], "waits": report["accounting"]["straggler_ms"], "wire": wire / given.steps, "predicted": predicted}


def rows_of(given, unique):
    """What is timed: names that begin with a strategy, and options."""
    if given.only == "own":
        return [("serial", []), ("pec", []), *OWN] if unique else []
    return [*ALIKE, *OWN] if unique else ALIKE


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ["python", "fsc", "fsx"]:
        parser.add_argument(name, type=lambda p: Path(p).absolute())
    parser.add_argument("--shape", choices=SHAPES, default="wide")
    parser.add_argument("--rates", default="100,200,500,1000,0")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--only", choices=["own"], help="what only fsx has, beside serial and pec")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shape, model, _ = SHAPES[given.shape]
        text = model.read_text().replace("../../examples/blocks", str(HERE.parent.parent / "examples/blocks"))
        (folder / "peer.fs").write_text(text)
        run([given.python, HERE / "torchrec_step.py", *COMMON, *shape, "--steps", given.steps, "--save-data", "data.safetensors"], folder)
        # What is planned is timed in as many microbatches.
        timed = {(False, 1), (True, 1)} | {(True, 2) for what, _ in rows_of(given, True) if "2 microbatches" in what}
        for unique, microbatches in sorted(timed):
            plan(given, folder, unique, ["-o", "serial.json", "--ranks", "2", "--strategy", "serial", "--microbatches", str(microbatches)])
            run([given.fsx, "profile", "serial.json", "-o", f"here{unique}{microbatches}.json", "--data", "data.safetensors", "-q",
                 "--steps", str(given.steps - 8)], folder)
        for rate in map(int, given.rates.split(",")):
            two = [MPI / "two_hosts.sh", "up"] + ([f"{rate}mbit"] if rate else [])
            run(two, folder)
            try:
                for unique, microbatches in sorted(timed):
                    which = f"{unique}{microbatches}.json"
                    net = [given.fsx, "net", "--profile", "here" + which, "-o", "there" + which, "--seconds", "4", "-q"]
                    run([MPI / "mpirun_two_hosts.sh", *net], folder)
                modes = [] if given.only == "own" else ["base", "pec"]
                rows = {f"TorchRec {mode}": torchrec(given, folder, mode) for mode in modes}
                for unique in [False, True]:
                    for how, options in rows_of(given, unique):
                        what = f"fsx {how}, {'unique rows' if unique else 'a row per occurrence'}"
                        which = f"there{unique}{2 if '2 microbatches' in how else 1}.json"
                        rows[what] = fsx(given, folder, how.split(",")[0], unique, options, which)
            finally:
                run([MPI / "two_hosts.sh", "down"], folder)
            found[rate] = rows
            print(f"\n{f'{rate} Mbit/s' if rate else 'not limited'}\n")
            print("| | step, ms | compute | exposed | waits for the other | wire a step, kB | bound | step / bound | predicted | over measured |")
            print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
            for what, row in rows.items():
                wire = row["wire"] / (rate * 125) if rate else 0
                bound = max(row["compute"], wire)
                waits = "" if row["waits"] is None else f"{row['waits']:.1f}"
                told = f"{row['predicted']:.1f} | {row['predicted'] / row['step']:.2f}" if row["predicted"] else "|"
                print(f"| {what} | {row['step']:.1f} | {row['compute']:.1f} | {row['exposed']:.1f} | {waits} | {row['wire'] / 1e3:.0f} | {bound:.1f} | "
                      f"{row['step'] / bound:.2f} | {told} |", flush=True)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
