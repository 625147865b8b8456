#!/usr/bin/env bash
# Trains movielens with every strategy over an emulated link on which the transfers of `serial` take about half as long
# as its compute, and prints what each strategy makes of it: examples/strategies.sh [LINK]
# A profile of `serial` tells the compiler what operations and the link take here, so predicted and measured steps can be
# held side by side. Builds what is not built; about half a minute then. Leaves nothing behind.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
link=${1:-"3200 Mbit/s, 50 us"}
ranks=2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

(cd "$root" && cargo build --release --quiet --bins)
bin="${CARGO_TARGET_DIR:-$root/target}/release"
model="$root/examples/movielens.fs"

"$bin/fsc" compile "$model" -o "$work/plain.json" --ranks "$ranks" --strategy serial 2> "$work/said" \
  || { cat "$work/said" >&2; exit 1; }
"$bin/fsx" profile "$work/plain.json" -o "$work/profile.json" --link "$link" --quiet
schedules=()
for strategy in serial prefetch pec; do
  "$bin/fsc" compile "$model" -o "$work/$strategy.json" --ranks "$ranks" --strategy "$strategy" \
    --profile "$work/profile.json" 2> "$work/said" || { cat "$work/said" >&2; exit 1; }
  schedules+=("$strategy.json")
done
echo "movielens on $ranks ranks, link $link"
cd "$work" && "$bin/fsx" compare "${schedules[@]}" --ranks "$ranks" --steps 126 --block 21 --link "$link"
