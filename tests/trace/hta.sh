#!/usr/bin/env bash
# Holistic Trace Analysis (HTA), from PyPI, reads traces of fsx and finds the shares that the report says.
#
# Usage: hta.sh FOLDER [FSX]; the folder takes a Python environment and traces, and may be used again. FSX, built with
# `--features mpi`, runs two processes under mpirun instead, whose traces come together on one clock.
# Needs target/release/fsc and fsx, Python 3.10 or later, and the package index on first use.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=${1:?usage: hta.sh FOLDER [FSX]}
mpi=${2:-}
mkdir -p "$work"
python=$work/venv/bin/python

if ! [ -x "$python" ] || ! "$python" -c 'import hta.trace_analysis' 2> /dev/null; then
  # Its own list also asks for Jupyter and pytest, which the analysis does not use.
  if ! { python3 -m venv "$work/venv" &&
    "$python" -m pip install --quiet --no-deps HolisticTraceAnalysis==0.5.0 &&
    "$python" -m pip install --quiet numpy pandas networkx plotly pydot psutil python-dateutil pytz tzdata six \
      packaging narwhals tenacity pyparsing pyyaml; } > "$work/install.log" 2>&1; then
    echo 'skipped: HTA could not be installed:'
    tail -n 3 "$work/install.log"
    exit 0
  fi
fi

if [ -n "$mpi" ]; then
  [ "$(id -u)" != 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  target/release/fsc compile examples/movielens.fs --ranks 2 --strategy pec -o "$work/mpi.json" 2> "$work/compile.log" ||
    { cat "$work/compile.log"; exit 1; }
  rm -rf "${work:?}/processes"
  two() { mpirun --oversubscribe --bind-to none -n 2 "$mpi" run "$work/mpi.json" --quiet --no-evaluate --steps 40 "$@"; }
  two --trace "$work/processes/" --report "$work/processes.report.json"
  two --trace "$work/all.trace.json"
  HTA_DISABLE_NS_ROUNDING=1 "$python" tests/trace/check_hta.py "$work/all.trace.json" "$work/processes"
  exit 0
fi

runs=()
for run in "serial 1" "pec 1" "pec 4"; do
  read -r strategy microbatches <<< "$run"
  name=$strategy-$microbatches
  target/release/fsc compile examples/movielens.fs --ranks 2 --strategy "$strategy" \
    --microbatches "$microbatches" -o "$work/$name.json" 2> "$work/compile.log" || { cat "$work/compile.log"; exit 1; }
  rm -rf "${work:?}/$name"
  target/release/fsx run "$work/$name.json" --quiet --no-evaluate --steps 40 --link '1 Gbit/s, 50 us' \
    --trace "$work/$name/" --report "$work/$name.report.json"
  runs+=("$work/$name")
done
target/release/fsx run "$work/pec-1.json" --quiet --no-evaluate --steps 40 --link '1 Gbit/s, 50 us' \
  --trace "$work/all.trace.json"

# Once with nanoseconds, once as HTA does it by itself: it rounds the ends of every kernel to microseconds.
for exact in 1 0; do
  HTA_DISABLE_NS_ROUNDING=$exact "$python" tests/trace/check_hta.py "$work/all.trace.json" "${runs[@]}"
done
