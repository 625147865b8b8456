#!/usr/bin/env bash
# Exports examples as Chakra traces and reads them back with Google's protobuf (PyPI).
# Usage: check.sh FSC FOLDER: the compiler, and a folder for everything that is written.
set -euo pipefail
fsc=$1 work=$2
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$work"
if ! { python3 -m venv "$work/venv" && "$work/venv/bin/pip" install -q 'protobuf>=5,<8'; } > "$work/pip.log" 2>&1; then
  echo 'skipped: protobuf could not be installed:'; tail -n 3 "$work/pip.log"
  exit 0
fi
read_back() { # MODEL STRATEGY RANKS [OPTIONS...]
  local model=$1 strategy=$2 ranks=$3 name
  name=$(basename "$model" .fs)-$strategy-$ranks
  shift 3
  "$fsc" compile "$model" -o "$work/$name.json" --strategy "$strategy" --ranks "$ranks" --json "$@" > "$work/summary" 2> "$work/log" \
    || { cat "$work/log"; exit 1; }
  "$fsc" chakra "$work/$name.json" -o "$work/traces" --steps 5 2> "$work/log" || { cat "$work/log"; exit 1; }
  local step
  step=$(python3 -c 'import json, sys; print(1e3 * json.load(open(sys.argv[1]))["step"])' "$work/summary")
  "$work/venv/bin/python" "$here/read.py" "$step" "$work/traces/$name"
}
for strategy in serial prefetch pec; do
  read_back "$here/../../docs/pictures/movielens.fs" "$strategy" 2
  read_back "$here/../../examples/dlrm.fs" "$strategy" 4
done
read_back "$here/../../examples/ranking.fs" pec 4 --microbatches 2
