#!/usr/bin/env python3
"""Ranks in processes that MPI joins train to the same bits as threads of one process, and failures end all of them.

    tests/mpi/check.py FSC FSX [--hosts]

FSX is built with `--features mpi`. Runs on this machine, with mpirun of Open MPI. With --hosts (as root, with iproute2) two
network namespaces are two hosts, joined by a limited link (two_hosts.sh). Every run has a time in which it must end, and
leaves no process behind.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
MODEL = """
model m {
  table a { rows 90  dim 8  init normal(0, 0.5)  optimizer adagrad(lr: 0.05)  sharding SHARDING }
  input x: ids(a) { max 9 }
  input following: next(x)
  let h = dropout(positional(lookup(x)), 0.3)
  let g = h + silu_attention(linear(h, 8), linear(h, 8), linear(h, 8), heads: 2)
  loss sampled_softmax(g, a, following, negatives: 5, temperature: 0.5, normalize: tokens)
}
train { batch 12  steps 20  optimizer adam(lr: 1e-2)  BALANCE }
workload w { generate { lengths uniform(0, 7)  ids zipf(1.05)  labels bernoulli(0.5)  samples 31 } }
"""
PASSED = 0


def fail(text):
    sys.exit(f"FAILED: {text}")


def ok(text):
    global PASSED
    PASSED += 1
    print(f"ok  {text}", flush=True)


class Job:
    """A run of several processes, which ends within a time."""

    def __init__(self, command, cwd, **more):
        self.command, self.began = command, time.monotonic()
        self.process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        start_new_session=True, **more)

    def end(self, within):
        try:
            out, err = self.process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            fail(f"{' '.join(map(str, self.command))} goes on after {within} s")
        return self.process.returncode, out, err, time.monotonic() - self.began

    def leave(self, within):
        """For a launcher whose processes have gone."""
        try:
            self.process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()


def workers(fsx):
    """Processes of fsx, but for those of others."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.path.realpath(entry / "exe") == os.path.realpath(fsx):
                    found.append(int(entry.name))
            except OSError:
                pass
    return sorted(found)


def by_rank(fsx):
    """The process of each rank."""
    found = {}
    for pid in workers(fsx):
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        rank = next(v for v in variables if v.startswith(b"OMPI_COMM_WORLD_RANK="))
        found[int(rank.split(b"=")[1])] = pid
    return found


def gone(fsx):
    until = time.monotonic() + 5
    while workers(fsx):
        if time.monotonic() > until:
            fail(f"processes are left: {workers(fsx)}")
        time.sleep(0.1)


def equal(given, folder):
    """All strategies and shardings, on 2, 3 and 4 processes, with and without balance."""
    reference = None
    for sharding in ["row_wise", "table_wise", "column_wise", "data_parallel"]:
        for balance in ["", "balance on"]:
            text = MODEL.replace("SHARDING", sharding).replace("BALANCE", balance)
            (folder / "m.fs").write_text(text)
            for strategy in ["serial", "prefetch", "pec"]:
                microbatches = "2" if strategy == "prefetch" else "1"
                run = [given.fsc, "compile", "m.fs", "-o", "m.json", "--ranks", "4", "--strategy", strategy]
                done = subprocess.run(run + ["--microbatches", microbatches], cwd=folder, capture_output=True, text=True)
                if done.returncode != 0:
                    fail(f"{sharding} {strategy}: {done.stderr}")
                train = [given.fsx, "run", "m.json", "-q", "--save"]
                subprocess.run(train + ["local.safetensors"], cwd=folder, check=True)
                reference = (folder / "local.safetensors").read_bytes()
                for processes in [2, 3, 4]:
                    job = Job(MPIRUN + ["-np", str(processes)] + train + ["mpi.safetensors"], folder)
                    code, _, err, _ = job.end(60)
                    if code != 0:
                        fail(f"{sharding} {strategy} {processes}: {code}\n{err}")
                    if (folder / "mpi.safetensors").read_bytes() != reference:
                        fail(f"{sharding} {balance} {strategy}: {processes} processes train other bits")
                    (folder / "mpi.safetensors").unlink()
        ok(f"{sharding}: 2, 3 and 4 processes train the bits of one, all strategies, balance on and off")


def relays(given, folder):
    """Rows through relays on two nodes of two ranks: the bits of a schedule without, on threads and on 2, 3 and 4 processes."""
    for sharding in ["row_wise", "table_wise", "column_wise"]:
        (folder / "m.fs").write_text(MODEL.replace("SHARDING", sharding).replace("BALANCE", "balance off"))
        for strategy in ["serial", "prefetch", "pec"]:
            ends = {}
            for relay in ["off", "on"]:
                compile_ = [given.fsc, "compile", "m.fs", "-o", "m.json", "--ranks", "4", "--cluster", "local"]
                compile_ += ["--strategy", strategy, "--table", f"a:relay={relay}"]
                done = subprocess.run(compile_, cwd=folder, capture_output=True, text=True)
                if done.returncode != 0:
                    fail(f"relays {sharding} {strategy}: {done.stderr}")
                train = [given.fsx, "run", "m.json", "-q", "--save"]
                subprocess.run(train + [f"{relay}.safetensors"], cwd=folder, check=True)
                ends[relay] = (folder / f"{relay}.safetensors").read_bytes()
            if ends["on"] != ends["off"]:
                fail(f"relays {sharding} {strategy}: threads train other bits")
            for processes in [2, 3, 4]:
                code, _, err, _ = Job(MPIRUN + ["-np", str(processes)] + train + ["mpi.safetensors"], folder).end(60)
                if code != 0 or (folder / "mpi.safetensors").read_bytes() != ends["off"]:
                    fail(f"relays {sharding} {strategy}: {processes} processes: {code}\n{err}")
                (folder / "mpi.safetensors").unlink()
    ok("rows through relays: 2, 3 and 4 processes train the bits of threads without them")


def hot_rows(given, folder):
    """Replicas of hot rows: the bits of a schedule without, on threads and on 2 and 3 processes."""
    for sharding in ["row_wise", "table_wise", "column_wise"]:
        (folder / "m.fs").write_text(MODEL.replace("SHARDING", sharding).replace("BALANCE", "balance off"))
        for strategy in ["serial", "prefetch", "pec"]:
            want = None
            for hot in [0, 12]:
                compile_ = [given.fsc, "compile", "m.fs", "-o", "m.json", "--ranks", "3", "--cluster", "local"]
                compile_ += ["--strategy", strategy, "--table", f"a:hot={hot}"]
                done = subprocess.run(compile_, cwd=folder, capture_output=True, text=True)
                if done.returncode != 0:
                    fail(f"hot rows {sharding} {strategy}: {done.stderr}")
                train = [given.fsx, "run", "m.json", "-q", "--save"]
                subprocess.run(train + ["threads.safetensors"], cwd=folder, check=True)
                end = (folder / "threads.safetensors").read_bytes()
                want = want or end
                if end != want:
                    fail(f"hot rows {sharding} {strategy}: threads train other bits")
            for processes in [2, 3]:
                code, _, err, _ = Job(MPIRUN + ["-np", str(processes)] + train + ["mpi.safetensors"], folder).end(60)
                if code != 0 or (folder / "mpi.safetensors").read_bytes() != want:
                    fail(f"hot rows {sharding} {strategy}: {processes} processes: {code}\n{err}")
                (folder / "mpi.safetensors").unlink()
    ok("hot rows: 2 and 3 processes train the bits of threads without them")


# Both ranks of a host use nearly all rows of a batch.
SHARED = """
model m {
  table a { rows 6000  dim 64  init normal(0, 0.5)  optimizer adagrad(lr: 0.05)  sharding row_wise }
  input x: ids(a) { max 100 }
  input y: label
  loss bce_with_logits(linear(pool(x, sum), 1), y, normalize: samples)
}
train { batch 1024  steps 30  optimizer adam(lr: 1e-2)  balance off }
workload w { generate { lengths fixed(100)  ids uniform  labels hash  samples 4096 } }
"""


def sent(host="hostA", link="vethA"):
    """Bytes that a host has sent."""
    shown = subprocess.run(["ip", "-n", host, "-j", "-s", "link", "show", link], capture_output=True, text=True, check=True)
    return json.loads(shown.stdout)[0]["stats64"]["tx"]["bytes"]


def relayed_hosts(given, folder):
    """Between two hosts of two ranks each rows that both use cross once."""
    (folder / "m.fs").write_text(SHARED)
    crossed, took, ends = {}, {}, {}
    for relay in ["off", "on"]:
        compile_ = [given.fsc, "compile", "m.fs", "-o", "m.json", "--ranks", "4", "--cluster", "local", "--strategy", "pec"]
        subprocess.run(compile_ + ["--table", f"a:relay={relay}"], cwd=folder, check=True, capture_output=True)
        train = [given.fsx, "run", "m.json", "-q", "--save", "mpi.safetensors"]
        before = sent()
        code, _, err, took[relay] = Job([HERE / "mpirun_two_hosts.sh"] + train, folder).end(240)
        if code != 0:
            fail(f"two hosts, relays {relay}: {code}\n{err}")
        crossed[relay] = sent() - before
        ends[relay] = (folder / "mpi.safetensors").read_bytes()
    share = crossed["on"] / crossed["off"]
    if ends["on"] != ends["off"] or not 0.4 < share < 0.65:
        fail(f"two hosts with relays send {share:.3f} of what they send without, or train other bits")
    ok(f"relays of two hosts send {share:.3f} of the bytes, the same bits ({took['on']:.1f} s instead of {took['off']:.1f})")


def long(given, folder):
    """Many steps, one process that is now and then stopped for a while."""
    (folder / "m.fs").write_text(MODEL.replace("SHARDING", "row_wise").replace("BALANCE", ""))
    compile_ = [given.fsc, "compile", "m.fs", "-o", "m.json", "--ranks", "3", "--strategy", "pec"]
    subprocess.run(compile_, cwd=folder, check=True, capture_output=True)
    train = [given.fsx, "run", "m.json", "-q", "--steps", "3000", "--save"]
    subprocess.run(train + ["local.safetensors"], cwd=folder, check=True)
    job = Job(MPIRUN + ["-np", "3"] + train + ["mpi.safetensors"], folder)
    stops = asked = 0
    while job.process.poll() is None and stops < 40:
        for pid in workers(given.fsx)[stops % 3 : stops % 3 + 1]:
            try:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.01 + 0.003 * (stops * 7 % 11))
                os.kill(pid, signal.SIGCONT)
                # A process by itself, and all of them by mpirun.
                if stops % 10 == 5:
                    os.kill(pid if stops % 20 == 5 else job.process.pid, signal.SIGUSR1)
                    asked += 1
            except ProcessLookupError:
                pass
        stops += 1
        time.sleep(0.02)
    code, _, err, _ = job.end(120)
    if code != 0 or (folder / "mpi.safetensors").read_bytes() != (folder / "local.safetensors").read_bytes():
        fail(f"3,000 steps with stops: {code}\n{err}")
    tables = err.count("where the ranks are:\n")
    if not 0 < tables <= asked or "error" in err:
        fail(f"asked {asked} times, {tables} answers\n{err}")
    ok(f"3,000 steps on 3 processes, stopped {stops} times and asked {asked} times where they are, train the same bits")


def traced(given, folder):
    """One trace of all processes, on one clock."""
    (folder / "m.fs").write_text(MODEL.replace("SHARDING", "row_wise").replace("BALANCE", ""))
    compile_ = [given.fsc, "compile", "m.fs", "-o", "m.json", "--ranks", "3", "--strategy", "pec"]
    subprocess.run(compile_, cwd=folder, check=True, capture_output=True)
    train = [given.fsx, "run", "m.json", "-q", "--steps", "60", "--trace"]
    code, _, err, _ = Job(MPIRUN + ["-np", "3"] + train + ["t.json", "--trace-steps", "20..40"], folder).end(60)
    if code != 0:
        fail(f"a trace: {code}\n{err}")
    trace = json.loads((folder / "t.json").read_text())
    events = [e for e in trace["traceEvents"] if "op" in e.get("args", {})]
    clocks = trace["schedule"]["clocks"]
    if {e["pid"] for e in events} != {0, 1, 2} or [c["ranks"] for c in clocks] != [[1], [2]]:
        fail(f"a trace: {clocks}, {len(events)} events")
    # No transfer ends on a rank before all have begun it, but for what is not known of clocks.
    wrong = max(trip for c in clocks for trip in c["round_trip_ns"]) / 1e3 + 1
    spans = {}
    for e in events:
        if e["name"].startswith("nccl"):
            spans.setdefault((e["args"]["op"], e["args"]["step"]), []).append((e["ts"], e["ts"] + e["dur"]))
    early = [at for at, s in spans.items() if len(s) != 3 or min(end for _, end in s) + wrong < max(start for start, _ in s)]
    if early or not spans:
        fail(f"a trace: {early[:3]} end before all have begun, clocks {clocks}")
    viz = [given.fsc, "viz", "m.json", "--trace", "t.json", "-o", "t.html"]
    drawn = subprocess.run(viz, cwd=folder, capture_output=True, text=True)
    if drawn.returncode != 0 or "note" in drawn.stderr:
        fail(f"a trace is not drawn: {drawn.stderr}")
    code, _, err, took = Job(MPIRUN + ["-np", "3"] + train + ["no/t.json"], folder).end(30)
    if code == 0 or "no/t.json" not in err or (folder / "no").exists():
        fail(f"a trace that cannot be written: {code}\n{err}")
    gone(given.fsx)
    code, _, err, _ = Job(MPIRUN + ["-np", "3"] + train + ["traces/"], folder).end(60)
    files = sorted(path.name for path in (folder / "traces").iterdir())
    if code != 0 or files != ["rank-0.json", "rank-1.json", "rank-2.json"]:
        fail(f"a folder of traces: {code} {files}\n{err}")
    ok(f"one trace of 3 processes, whose clocks are known to {wrong:.0f} us; one that cannot be written ends all before training")


def one_error(text, code, err, wanted, processes, back=None):
    """All that are left say the same, and the job fails. (A job that may recover does not fail for mpirun.) `back` is the
    number of the rank that was stopped: mpirun lets it go on to end it, and on a busy machine it may first say that it has
    lost the others, once."""
    said = [line for line in err.splitlines() if line.startswith("error: ")]
    blames = rf"error: (rank {back} failed in |.* for rank {back}$)"
    strays = [line for line in said if back is not None and not re.match(blames, line)]
    if len(strays) == 1:
        said.remove(strays[0])
    if code == 0 or len(said) < processes or not all(re.search(wanted, line) for line in said):
        fail(f"{text}: {code}\n{err}")
    if len(set(said)) != 1:
        fail(f"{text}: not all say the same\n{err}")


def failures(given, folder):
    base = [given.fsx, "run", "m.json", "-q"]
    many = base + ["--steps", "100000000", "--timeout", "4"]

    def mpirun(arguments, processes=3, recover=False):
        return Job(MPIRUN + (["--enable-recovery"] if recover else []) + ["-np", str(processes)] + arguments, folder)

    def one(script):
        return ["sh", "-c", f"if [ $OMPI_COMM_WORLD_RANK = 1 ]; then {script}"]

    own = " ".join(map(str, base))
    code, _, err, took = mpirun(one(f"exec {own} --data /nowhere.csv; fi; exec {own}")).end(30)
    said = [line for line in err.splitlines() if line.startswith("error: ")]
    if code == 0 or len(said) != 3 or not all("/nowhere.csv" in line for line in said):
        fail(f"a missing file: {code}\n{err}")
    gone(given.fsx)
    ok(f"a data file that one process lacks ends all with its name ({took:.1f} s)")

    code, _, err, _ = mpirun(one(f"exec {own} --seed 7; fi; exec {own}")).end(30)
    one_error("another seed", code, err, r"the seed is 0 on rank 0 and 7 on rank 1", 3)
    ok("another seed is named, with its rank")

    code, _, err, _ = mpirun(base, processes=4).end(30)
    one_error("more processes than ranks", code, err, r"4 processes for 3 rank", 4)
    ok("more processes than ranks are refused")

    # MPI's start waits for all: for one that is gone before, where mpirun lets the others live, and for one that hangs.
    waits = f"fi; exec {own} --timeout 4"
    for name, script, recover in [("is gone", "kill -9 $$", True), ("hangs", "exec sleep 60", False)]:
        code, _, err, took = mpirun(one(f"{script}; {waits}"), recover=recover).end(4 + 5)
        said = [line for line in err.splitlines() if line.startswith("error: ")]
        wanted = all("MPI has not started within 4 s" in line and "--timeout" in line for line in said)
        # Where it may, mpirun ends all as soon as one of them has.
        if not (said and wanted) or (len(said) != 2 if recover else code == 0):
            fail(f"a process that {name} before MPI has started: {code}\n{err}")
        gone(given.fsx)
        ok(f"a process that {name} before MPI has started ends all ({took:.1f} s, timeout 4 s)")

    for name, sent in [("killed", signal.SIGKILL), ("stopped", signal.SIGSTOP)]:
        # mpirun itself would end the others of one that is killed before they can say why.
        killed = sent == signal.SIGKILL
        job = mpirun(many, recover=killed)
        time.sleep(3)
        victim = by_rank(given.fsx)[2]
        os.kill(victim, sent)
        began = time.monotonic()
        if sent == signal.SIGSTOP:
            # Whoever is stopped is ended by whoever started it.
            code, _, err, _ = job.end(4 + 5 + 6)
        else:
            code, _, err, _ = job.end(4 + 5)
        one_error(f"a process that is {name}", code or killed, err, "rank 2", 2, None if killed else 2)
        why = "is gone" if killed else "(is gone|says nothing)"
        # Who comes back when mpirun ends it may say where it is, too.
        if len(re.findall(rf"\n  rank 2: its process {why}", err)) != 1:
            fail(f"a process that is {name}: where the others are is not said once\n{err}")
        if not re.search(r"the first operation that not all have begun is .*: ranks 0, 1 have, rank 2 not", err):
            fail(f"a process that is {name}: what it has not begun is not said\n{err}")
        gone(given.fsx)
        ok(f"a process that is {name} ends all, with one message ({time.monotonic() - began:.1f} s, timeout 4 s)")

    # The answer of a job of which a process is stopped, asked of each of the others, and of one whose first is.
    for victim, asked, wanted in [
        (2, 0, r"ranks 0, 1 have, rank 2 not(.|\n)*\n  rank 2: its process says nothing"),
        (2, 1, r"ranks 0, 1 have, rank 2 not(.|\n)*\n  rank 2: its process says nothing"),
        (0, 1, r"\n  rank 0: its process says nothing(.|\n)*\n  rank 1\n"),
    ]:
        job = mpirun(base + ["--steps", "100000000", "--timeout", "20"])
        time.sleep(2)
        pids = by_rank(given.fsx)
        os.kill(pids[victim], signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(pids[asked], signal.SIGUSR1)
        time.sleep(2)
        os.kill(pids[victim], signal.SIGCONT)
        time.sleep(0.5)
        os.kill(pids[1], signal.SIGINT)
        code, _, err, _ = job.end(10)
        gone(given.fsx)
        # The first process answers late, once it goes on.
        answers = err.count("where the ranks are:\n")
        if answers not in ([1, 2] if victim == 0 else [1]) or not re.search(wanted, err) or "error: " in err:
            fail(f"process {victim} is stopped, {asked} is asked: {code}\n{err}")
    ok("where the ranks are is said though a process is stopped, and the job goes on")

    job = mpirun(many)
    time.sleep(3)
    os.kill(workers(given.fsx)[0], signal.SIGINT)
    code, _, err, _ = job.end(10)
    gone(given.fsx)
    if code == 0:
        fail(f"interrupted: {code}\n{err}")
    ok("a signal to one process ends all")

    alone = subprocess.run(base + ["--transport", "mpi"], cwd=folder, capture_output=True, text=True)
    if alone.returncode != 1 or "mpirun -n 4" not in alone.stderr:
        fail(f"without a launcher: {alone.returncode}\n{alone.stderr}")
    ok("without a launcher it says what to do")

    full = base + ["--save", "/dev/full"]
    code, _, err, _ = mpirun(full).end(30)
    if code == 0 or "No space left" not in err:
        fail(f"a full disk: {code}\n{err}")
    gone(given.fsx)
    ok("a full disk ends all")

    (folder / "nan.fs").write_text((folder / "m.fs").read_text().replace("adam(lr: 1e-2)", "adam(lr: 1e30)"))
    subprocess.run([given.fsc, "compile", "nan.fs", "-o", "nan.json", "--ranks", "3"], cwd=folder, check=True, capture_output=True)
    lost = [given.fsx, "run", "nan.json", "-q", "--steps", "100000000", "--save", "nan.safetensors", "--report", "nan.report"]
    code, _, err, took = mpirun(lost).end(30)
    gone(given.fsx)
    said = [line for line in err.splitlines() if line.startswith("error: the loss of step")]
    losses = json.loads((folder / "nan.report").read_text())["loss"]
    if code == 0 or len(said) != 1 or None not in losses or (folder / "nan.safetensors").exists():
        fail(f"a loss that is no number: {code} {losses[:9]}\n{err}")
    ok(f"a loss that is no number ends all, with one message ({took:.1f} s)")


def kept(given, folder):
    """Killed at random moments, one process or all, jobs of 2 and of 3 processes go on to the bits of a run that never stopped.
    FS_KILLS says how often (6 without it)."""
    kills, random = int(os.environ.get("FS_KILLS", "6")), Random(7)
    text = MODEL.replace("SHARDING", "row_wise(placement: hashed)").replace("BALANCE", "").replace("rows 90", "rows 30000")
    (folder / "m.fs").write_text(text)
    compile_ = [given.fsc, "compile", "m.fs", "-o", "m.json", "--ranks", "3", "--strategy", "pec"]
    subprocess.run(compile_, cwd=folder, check=True, capture_output=True)
    run = [given.fsx, "run", "m.json", "-q", "--steps", "2000", "--save"]
    subprocess.run(run + ["local.safetensors"], cwd=folder, check=True)
    wanted = (folder / "local.safetensors").read_bytes()
    leaves = run + ["mpi.safetensors", "--checkpoint", "c", "--every", "100", "--keep", "2", "--resume", "c", "--timeout", "20"]
    killed, gone_on, ended, longest = 0, 0, 0, 2.0
    # A job goes on from the last kill too, and nothing of it is left for those that follow.
    interrupted = True

    def lacking():
        # One kill at least is of a job that goes on.
        return killed < kills or (kills > 0 and gone_on == 0)

    while lacking() or interrupted:
        if killed > 4 * kills and gone_on == 0:
            fail(f"none of {killed} kills was of a job that goes on")
        recover = ["--enable-recovery"] if killed % 2 else []
        more = MPIRUN + recover + ["-np", str(random.choice([2, 3]))]
        job, resumed = Job(more + leaves, folder), len(list(folder.glob("c/step-*[0-9]")))
        kill = lacking()
        if kill:
            time.sleep(random.uniform(0.2, longest))
        own = workers(given.fsx)
        if kill and own and job.process.poll() is None:
            for pid in own if killed % 3 else own[-1:]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            killed, gone_on, interrupted = killed + 1, gone_on + (resumed > 0), True
            # No rank goes on. mpirun itself at times waits for ever for processes that were killed while they started.
            until = time.monotonic() + 60
            while workers(given.fsx) and time.monotonic() < until:
                time.sleep(0.05)
            gone(given.fsx)
            job.leave(20)
            continue
        code, _, err, took = job.end(120)
        if code != 0 or (folder / "mpi.safetensors").read_bytes() != wanted:
            fail(f"after {killed} kills: {code}\n{err}")
        ended, longest, interrupted = ended + 1, max(1.0, 0.9 * took), False
        shutil.rmtree(folder / "c")
    ok(f"killed {killed} times, {gone_on} of them after going on, {ended} jobs of 2 and 3 processes end with the same bits")


def links(given, folder):
    """`fsx net` measures all pairs and writes profiles that `fsc` plans with."""
    net = [given.fsx, "net", "--seconds", "1", "--json", "--sizes", "0,1k,1M"]
    compile_ = [given.fsc, "compile", "m.fs", "-o", "m.json", "--ranks", "3", "--strategy", "serial"]
    subprocess.run(compile_, cwd=folder, check=True, capture_output=True)
    measure = [given.fsx, "profile", "m.json", "-o", "p.json", "--steps", "20", "-q"]
    subprocess.run(measure, cwd=folder, check=True)
    code, out, err, _ = Job(MPIRUN + ["-np", "3"] + net + ["--profile", "p.json", "-o", "q.json"], folder).end(60)
    if code != 0:
        fail(f"fsx net: {code}\n{err}")
    found = json.loads(out)
    pairs = sorted((d["from"], d["to"]) for d in found["directions"])
    if pairs != [(a, b) for a in range(3) for b in range(3) if a != b]:
        fail(f"fsx net: {pairs}")
    if any(d["latency"] <= 0 or d["bandwidth"] <= 0 for d in found["directions"]) or len(found["hosts"]) != 3:
        fail(f"fsx net: {found}")
    timed = [(e["bytes"], e["seconds"] > 0) for e in found["exchanges"]]
    if timed != [(0, True), (1024, True), (1 << 20, True)]:
        fail(f"fsx net: {found['exchanges']}")
    before, after = (json.loads((folder / name).read_text()) for name in ["p.json", "q.json"])
    link = after["transfers"]["link"]
    if link["bandwidth"] != found["together"] or "3 processes" not in after["link"]:
        fail(f"fsx net: {link} {after['link']}")
    before["transfers"]["link"], before["link"] = link, after["link"]
    # Nor are times of transfers without these links kept.
    moves = [op for op in before["ops"] if op["kind"].startswith("all_")]
    before["ops"] = [op for op in before["ops"] if op not in moves]
    if not moves:
        fail("fsx profile has no transfers")
    if before != after:
        fail("fsx net changes more of a profile than its link")
    plan = [given.fsc, "compile", "m.fs", "--profile", "q.json", "-o", "n.json"]
    subprocess.run(plan, cwd=folder, check=True, capture_output=True)
    ok("links of three processes are measured, and planned with")
    before["ranks"] = 2
    # What each of three ranks was asked for is nothing of two.
    for rows in before["rows"]:
        for counted in ["asking", "owners", "hashed_owners"]:
            rows.pop(counted, None)
    (folder / "two.json").write_text(json.dumps(before))
    wrong = net + ["--profile", "two.json", "-o", "q.json"]
    code, _, err, _ = Job(MPIRUN + ["-np", "3"] + wrong, folder).end(60)
    if code == 0 or "2 rank(s)" not in err or "Traceback" in err or "panicked" in err:
        fail(f"fsx net with a profile of two ranks: {code}\n{err}")
    ok("a profile of fewer ranks than processes is refused")


def hosts(given, folder):
    """Two network namespaces, a link of 200 Mbit/s."""
    from sums import summed_hosts

    two = HERE / "two_hosts.sh"
    subprocess.run([two, "up", "200mbit"], check=True)
    try:
        train = [given.fsx, "run", "m.json", "-q", "--steps", "200", "--save"]
        compile_ = [given.fsc, "compile", "m.fs", "-o", "m.json", "--ranks", "2", "--strategy", "pec"]
        subprocess.run(compile_, cwd=folder, check=True, capture_output=True)
        subprocess.run(train + ["local.safetensors"], cwd=folder, check=True)
        code, _, err, took = Job([HERE / "mpirun_two_hosts.sh"] + train + ["mpi.safetensors"], folder).end(120)
        if code != 0 or (folder / "mpi.safetensors").read_bytes() != (folder / "local.safetensors").read_bytes():
            fail(f"two hosts: {code}\n{err}")
        ok(f"two hosts train the same bits ({took:.1f} s)")
        # In a folder of its own: what follows goes on with the model that there is.
        (folder / "relays").mkdir()
        relayed_hosts(given, folder / "relays")
        (folder / "sums").mkdir()
        summed_hosts(given, folder / "sums")
        leaves = ["--checkpoint", "kept", "--every", "30"]
        train = [given.fsx, "run", "m.json", "-q", "--steps"]
        code, _, err, _ = Job([HERE / "mpirun_two_hosts.sh"] + train + ["100"] + leaves, folder).end(120)
        if code != 0:
            fail(f"checkpoints of two hosts: {code}\n{err}")
        left = sorted(path.name for path in (folder / "kept").iterdir())
        if "step-000000000100" not in left or any("part" in name for name in left):
            fail(f"checkpoints of two hosts: {left}")
        going = train + ["200", "--resume", "kept", "--save", "kept.safetensors"]
        subprocess.run(going, cwd=folder, check=True)
        if (folder / "kept.safetensors").read_bytes() != (folder / "local.safetensors").read_bytes():
            fail("what two hosts have left goes on to other bits")
        ok("threads go on from a checkpoint of two hosts, to the same bits")
        net = [given.fsx, "net", "--seconds", "4", "--json"]
        code, out, err, _ = Job([HERE / "mpirun_two_hosts.sh"] + net, folder).end(120)
        if code != 0:
            fail(f"fsx net on two hosts: {code}\n{err}")
        rates = [d["bandwidth"] / 125e3 for d in json.loads(out)["directions"]] + [json.loads(out)["together"] / 125e3]
        # Nothing is faster than the link, but for the 64 kB that it lets through at once.
        if not all(50 < rate < 205 for rate in rates):
            fail(f"fsx net on a link of 200 Mbit/s: {rates}")
        ok(f"links of 200 Mbit/s are found ({', '.join(f'{rate:.0f}' for rate in rates)} Mbit/s)")
        many = [given.fsx, "run", "m.json", "-q", "--steps", "100000000", "--timeout", "4"]
        # To a file: the launcher's half on the other host keeps what it writes to open.
        said = folder / "said.txt"
        with said.open("w") as out:
            job = subprocess.Popen([HERE / "mpirun_two_hosts.sh"] + many, cwd=folder, stdout=out, stderr=out, text=True)
        time.sleep(4)
        if len(workers(given.fsx)) != 2:
            fail(f"two hosts: {workers(given.fsx)} run")
        began = time.monotonic()
        subprocess.run(["ip", "-n", "hostB", "link", "set", "vethB", "down"], check=True)
        # The launcher's own link is the one that is cut: it may wait for its other half, the ranks must not.
        until = began + 4 + 5
        while workers(given.fsx) and time.monotonic() < until:
            time.sleep(0.1)
        took, left = time.monotonic() - began, workers(given.fsx)
        job.kill()
        for host in ["hostA", "hostB"]:
            pids = subprocess.run(["ip", "netns", "pids", host], capture_output=True, text=True).stdout.split()
            for pid in pids:
                os.kill(int(pid), signal.SIGKILL)
        job.wait()
        if left or "error: " not in said.read_text():
            fail(f"a cut link: {left} are left\n{said.read_text()}")
        ok(f"a cut link ends both hosts ({took:.1f} s, timeout 4 s)")
    finally:
        subprocess.run([two, "down"], check=True)


def slow_disk(given, folder):
    """However long one process's disk takes to sync, the others wait for it; the checkpoints are those of a fast disk."""
    library = folder / "slow_disk.so"
    cc = ["cc", "-shared", "-fPIC", "-o", library, Path(__file__).resolve().parent / "slow_disk.c", "-ldl"]
    subprocess.run(cc, check=True)
    text = MODEL.replace("SHARDING", "table_wise").replace("BALANCE", "")
    (folder / "m.fs").write_text(text)
    compile_ = [given.fsc, "compile", "m.fs", "-o", "m.json", "--ranks", "2", "--strategy", "pec"]
    subprocess.run(compile_, cwd=folder, check=True, capture_output=True)
    train = [given.fsx, "run", "m.json", "-q", "--steps", "90", "--checkpoint", "c", "--every", "30", "--keep", "9", "--timeout", "2"]
    ends = {}
    for rank in [None, 0, 1]:
        slow = [] if rank is None else ["-x", f"LD_PRELOAD={library}", "-x", "SLOW_SECONDS=3.5", "-x", f"SLOW_RANK={rank}"]
        code, _, err, took = Job(MPIRUN + slow + ["-np", "2"] + train, folder).end(90)
        if code != 0 or rank is not None and took < 2 * 3.5:
            fail(f"a slow disk of process {rank} ends the run, or is none: {code} after {took:.1f} s\n{err}")
        ends[rank] = {str(f.relative_to(folder / "c")): f.read_bytes() for f in (folder / "c").glob("step-*/*.safetensors")}
        shutil.rmtree(folder / "c")
    # While one is written others are left out.
    for rank in [0, 1]:
        steps = {name.split("/")[0] for name in ends[rank]}
        wanted = {name: held for name, held in ends[None].items() if name.split("/")[0] in steps}
        if "step-000000000090" not in steps or len(steps) < 2 or ends[rank] != wanted:
            fail(f"with a slow disk of process {rank}: {sorted(steps)}")
    ok("processes wait for one whose disk is slow")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fsc", type=Path)
    parser.add_argument("fsx", type=Path)
    parser.add_argument("--hosts", action="store_true")
    given = parser.parse_args()
    given.fsc, given.fsx = given.fsc.resolve(), given.fsx.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        equal(given, folder)
        relays(given, folder)
        hot_rows(given, folder)
        long(given, folder)
        traced(given, folder)
        failures(given, folder)
        kept(given, folder)
        slow_disk(given, folder)
        links(given, folder)
        if given.hosts:
            hosts(given, folder)
    print(f"{PASSED} passed")


if __name__ == "__main__":
    main()
