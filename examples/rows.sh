#!/bin/sh
# Rows by range, hashed and planned in turns, of a ranking model whose rows are numbered by popularity, over an emulated
# link: which is faster, and whether all train the same bits. Takes a minute: [RANKS=4] [LINK="20 Mbit/s, 50 us"]
# [STEPS=24] [BIN=folder of built fsc and fsx] examples/rows.sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/.."
bin=${BIN:-}
if [ -z "$bin" ]; then
    cargo build --release --quiet -p fsc -p fsx
    bin="${CARGO_TARGET_DIR:-$PWD/target}/release"
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
cp -r "$here/blocks" "$out"
sed 's/zipf(1.05)/zipf(1.05, numbered: by_popularity)/' "$here/ranking.fs" > "$out/ranking.fs"
for rows in range hashed planned; do
    "$bin/fsc" compile "$out/ranking.fs" -o "$out/$rows.json" --strategy pec --ranks "${RANKS:-4}" \
        --table "items:sharding=row_wise,placement=$rows" --table "authors:sharding=row_wise,placement=$rows"
done
"$bin/fsx" compare "$out/range.json" "$out/hashed.json" "$out/planned.json" \
    --link "${LINK:-20 Mbit/s, 50 us}" --steps "${STEPS:-24}" --block 4
for rows in range hashed planned; do
    "$bin/fsx" run "$out/$rows.json" --link "${LINK:-20 Mbit/s, 50 us}" --steps 10 | grep 'busiest owner'
done
