#!/usr/bin/env bash
# Draws the README's picture into a folder (default: this one). Nothing is measured: same sources, same bytes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
to=${1:-$here}
mkdir -p "$to"
(cd "$here/../.." && cargo build --release --quiet --package fsc)
fsc=${CARGO_TARGET_DIR:-$here/../../target}/release/fsc
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for strategy in serial pec; do
  "$fsc" compile "$here/movielens.fs" --strategy "$strategy" -o "$work/$strategy.json" 2> "$work/log" || { cat "$work/log" >&2; exit 1; }
done
"$fsc" viz "$work/serial.json" "$work/pec.json" -o "$to/movielens.svg"
