#!/usr/bin/env python3
"""What HTA computes of a run's trace, beside the run's own report; fails if they differ by a point or more.

Usage: check_hta.py ALL.json FOLDER..., with FOLDER.report.json beside each folder of traces; ALL.json is a trace of all ranks.

HTA counts the traced steps but the last, from the first kernel's start to the last one's end, without the host:
  idle_time         no kernel runs                         report: traced.ranks[].idle
  compute_time      a kernel other than a transfer runs    traced.ranks[].compute
  comm_comp_overlap share of the time with a transfer in   traced.ranks[].overlap
                    which something is computed
The report's accounting asks what the compute engine waited for, from step end to step end. There is one number that
both have, how long compute works (accounted_compute); what HTA splits into idle and non-compute time is all that
compute waits for (accounted_bubble).
"""
import json
import logging
import sys
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
from hta.trace_analysis import TraceAnalysis  # noqa: E402

POINT = 1.0


def main():
    everything, *folders = sys.argv[1:]
    wrong = []
    overlap_of = {}
    print(f"{'run':<10} {'rank':>4} {'':<28} {'HTA':>8} {'report':>8}")
    for folder in folders:
        name = folder.rstrip("/").rsplit("/", 1)[-1]
        with open(f"{folder}.report.json") as file:
            traced = json.load(file)["traced"]
        analysis = TraceAnalysis(trace_dir=folder)
        times = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
        overlaps = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")
        if sorted(times.index) != list(range(len(traced["ranks"]))):
            wrong.append(f"{name}: HTA found the ranks {sorted(times.index)}")
            continue
        # The last step is not counted.
        steps = [f"ProfilerStep#{n}" for n in range(traced["first_step"], traced["end_step"] - 1)]
        for rank, own in enumerate(traced["ranks"]):
            names = {analysis.t.symbol_table.get_sym_table()[n] for n in analysis.t.get_trace(rank)["name"]}
            if {n for n in names if n.startswith("ProfilerStep")} != set(steps):
                wrong.append(f"{name}, rank {rank}: HTA does not count the steps {steps[0]} to {steps[-1]}")
            time, overlap = times.loc[rank], overlaps.loc[rank]["comp_comm_overlap_pctg"]
            overlap_of[name] = overlap
            rows = [
                ("idle", time["idle_time_pctg"], own["idle"]),
                ("compute", time["compute_time_pctg"], own["compute"]),
                ("overlap", overlap, own["overlap"]),
                ("compute, accounted", time["compute_time_pctg"], own["accounted_compute"]),
                ("idle + non-compute, accounted", time["idle_time_pctg"] + time["non_compute_time_pctg"],
                 own["accounted_bubble"]),
            ]
            for what, hta, report in rows:
                print(f"{name:<10} {rank:>4} {what:<28} {hta:>7.2f}% {100 * report:>7.2f}%")
                if not abs(hta - 100 * report) < POINT:
                    wrong.append(f"{name}, rank {rank}: {what} is {hta:.2f}% by HTA, {100 * report:.2f}% in the report")
        # Every kernel that HTA keeps is one or the other.
        kinds = analysis.get_gpu_kernel_breakdown(visualize=False)[0]
        if not {"COMMUNICATION", "COMPUTATION"} <= set(kinds["kernel_type"]) or kinds["sum"].min() <= 0:
            wrong.append(f"{name}: kernels of the kinds {kinds.to_dict()}")
        idle = analysis.get_idle_time_breakdown(ranks=[0, 1], visualize=False)[0]
        if not (idle["idle_time"] >= 0).all():
            wrong.append(f"{name}: negative idle times, so kernels of a stream overlap")
    # A check that sees no overlap anywhere would prove little.
    if "serial-1" in overlap_of and not overlap_of["serial-1"] < POINT < 2 * POINT < max(overlap_of["pec-1"], overlap_of["pec-4"]):
        wrong.append(f"overlaps are not what the strategies mean: {overlap_of}")
    # Of one file of all ranks it makes one rank.
    whole = TraceAnalysis(trace_files=[everything]).get_temporal_breakdown(visualize=False)
    if list(whole["rank"]) != [0] or not whole["compute_time_pctg"][0] > 0:
        wrong.append(f"HTA does not read {everything}")
    for line in wrong:
        print(f"WRONG  {line}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
