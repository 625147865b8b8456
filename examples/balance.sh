#!/bin/sh
# Samples of lognormal lengths where they are read, and given to the ranks that have least to do: the ranking model both
# ways in turns, measured beside what is predicted from one profile of `serial`, how far rounding takes the losses apart with
# and without balance, then what the plans came to.
# Takes a minute: [RANKS=2] [STRATEGY=pec] [STEPS=96] [BIN=folder of built fsc and fsx] examples/balance.sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/.."
bin=${BIN:-}
if [ -z "$bin" ]; then
    cargo build --release --quiet -p fsc -p fsx
    bin="${CARGO_TARGET_DIR:-$PWD/target}/release"
fi
ranks=${RANKS:-2}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
cp -r "$here/blocks" "$out"
sed 's/^  balance off$//' "$here/ranking.fs" > "$out/ranking.fs"

"$bin/fsc" compile "$out/ranking.fs" -o "$out/serial.json" --ranks "$ranks" --strategy serial --balance off 2> "$out/said" \
    || { cat "$out/said" >&2; exit 1; }
"$bin/fsx" profile "$out/serial.json" -o "$out/profile.json" --quiet
for balance in off on; do
    "$bin/fsc" compile "$out/ranking.fs" -o "$out/$balance.json" --strategy "${STRATEGY:-pec}" \
        --profile "$out/profile.json" --balance "$balance" 2> "$out/said" || { cat "$out/said" >&2; exit 1; }
done
"$bin/fsc" explain "$out/on.json" | grep '^samples:'
# Sums run in another order, so losses differ by rounding, which grows with the steps, and the exit status is 1.
losses() { sed -n 's/^DIFFERENT  [^:]*: losses, //p; s/^equal  .*: losses$/equal/p' "$out/$1"; }
status=0
(cd "$out" && "$bin/fsx" compare off.json on.json --steps "${STEPS:-96}" --block 12) > "$out/compared" || status=$?
[ "$status" -le 1 ]
grep -v '^DIFFERENT' "$out/compared"
echo "losses     of the two runs, in single precision: $(losses compared)"
"$bin/fsc" compile "$out/ranking.fs" -o "$out/halves.json" --strategy "${STRATEGY:-pec}" --ranks "$ranks" \
    --balance off --microbatches 2 2> "$out/said" || { cat "$out/said" >&2; exit 1; }
status=0
(cd "$out" && "$bin/fsx" compare off.json halves.json --steps "${STEPS:-96}" --block 48) > "$out/halved" || status=$?
[ "$status" -le 1 ]
echo "           nothing balanced, the same batches whole and in two microbatches: $(losses halved)"
echo "           both are the same sums in another order; in double precision they agree to 1e-9 (docs/balance.md, Exact)"
"$bin/fsx" run "$out/on.json" --steps 60 2> "$out/said" | grep -A1 '^balance' || { cat "$out/said" >&2; exit 1; }
