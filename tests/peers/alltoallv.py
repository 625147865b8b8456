#!/usr/bin/env python3
"""Times exchanges of all with all by `fsx net` and by MPI_Ialltoallv alone, in turns, and prints their bandwidths.

    tests/peers/alltoallv.py PYTHON FSX [--hosts RATE,...] [--processes N] [--sizes 4k,64k,...] [--rounds 5] [--json FILE]

PYTHON has mpi4py and numpy (pip install mpi4py numpy); FSX is built with `--features mpi`. Without --hosts processes are on this
machine and talk through memory; with it on two hosts (network namespaces, root and iproute2 needed) that a link of so many
Mbit/s joins (0: not limited). Each round asks both; given are medians over rounds, of the median of each round's exchanges on
the slowest process.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
MPI = HERE.parent / "mpi"
UNITS = {"k": 1 << 10, "M": 1 << 20}


def size(text):
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def worker(sizes, each):
    """One process of the peer: MPI_Ialltoallv and MPI_Wait."""
    import time

    import numpy
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    n, found = world.size, []
    for size in sizes:
        counts = [0 if other == world.rank else size for other in range(n)]
        starts = [sum(counts[:k]) for k in range(n)]
        send, receive = (numpy.zeros(max(sum(counts), 1), numpy.uint8) for _ in range(2))

        def exchange():
            start = time.perf_counter()
            world.Ialltoallv([send, counts, starts, MPI.BYTE], [receive, counts, starts, MPI.BYTE]).Wait()
            return time.perf_counter() - start

        world.Barrier()
        warm = world.bcast(statistics.median(exchange() for _ in range(3)))
        count = int(min(max(each / max(warm, 1e-9), 11), 1001))
        own = statistics.median(exchange() for _ in range(count))
        found.append(max(world.allgather(own)))
    if world.rank == 0:
        print(json.dumps(found))


def run(command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.returncode}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def compare(given, start):
    sizes = [size(text) for text in given.sizes.split(",")]
    ours, theirs = [], []
    net = [given.fsx, "net", "--json", "--sizes", given.sizes, "--seconds", given.seconds]
    peer = [given.python, Path(__file__).resolve(), "worker", given.sizes]
    for _ in range(given.rounds):
        ours.append([e["seconds"] for e in run(start + net)["exchanges"]])
        theirs.append(run(start + peer))
    middle = lambda rounds: [statistics.median(column) for column in zip(*rounds)]
    return list(zip(sizes, middle(ours), middle(theirs)))


def main():
    if sys.argv[1] == "worker":
        return worker([size(text) for text in sys.argv[2].split(",")], 0.2)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", type=Path)
    parser.add_argument("fsx", type=Path)
    parser.add_argument("--hosts", help="rates of links between two hosts, in Mbit/s; 0: not limited")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--sizes", default="4k,16k,64k,256k,1M,4M,16M")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    given.python, given.fsx = (Path(os.path.abspath(path)) for path in (given.python, given.fsx))
    results = {}
    for rate in (given.hosts or "").split(","):
        if rate:
            subprocess.run([MPI / "two_hosts.sh", "up", *([f"{rate}mbit"] if rate != "0" else [])], check=True)
            os.environ["SLOTS"] = str(max(given.processes // 2, 1))
            start, where = [MPI / "mpirun_two_hosts.sh"], f"two hosts, {rate if rate != '0' else 'no limit of'} Mbit/s"
        else:
            start = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", given.processes]
            where = "one host"
        try:
            rows = compare(given, start)
        finally:
            if rate:
                subprocess.run([MPI / "two_hosts.sh", "down"], check=True)
        results[where] = rows
        print(f"\n{where}, {given.processes} processes\n{'bytes':>10} {'fsx us':>10} {'MPI us':>10} {'fsx Mbit/s':>11} {'MPI Mbit/s':>11} {'ratio':>6}")
        for bytes_, ours, theirs in rows:
            rate_of = lambda seconds: (given.processes - 1) * bytes_ * 8e-6 / seconds
            print(f"{bytes_:>10} {ours * 1e6:>10.0f} {theirs * 1e6:>10.0f} {rate_of(ours):>11.0f} {rate_of(theirs):>11.0f} {theirs / ours:>6.2f}")
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
