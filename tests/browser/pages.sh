#!/usr/bin/env bash
# Makes the pages that check.py opens: pages.sh FOLDER. Needs release builds of fsc and fsx.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
bin=${CARGO_TARGET_DIR:-$root/target}/release
to=$1
mkdir -p "$to"
"$bin/fsc" compile "$root/examples/movielens.fs" --strategy pec --ranks 2 -o "$to/one.json" 2> "$to/log"
"$bin/fsc" viz "$to/one.json" -o "$to/one.html"
for strategy in serial pec; do
  "$bin/fsc" compile "$root/docs/pictures/movielens.fs" --strategy "$strategy" -o "$to/$strategy.json" 2> "$to/log"
done
"$bin/fsc" viz "$to/serial.json" "$to/pec.json" -o "$to/two.html"
"$bin/fsx" run "$to/one.json" --steps 8 --trace "$to/trace.json" > "$to/log" 2>&1 || { cat "$to/log" >&2; exit 1; }
"$bin/fsc" viz "$to/one.json" --trace "$to/trace.json" -o "$to/run.html"
