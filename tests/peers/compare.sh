#!/bin/sh
# Times TorchRec's step and `fsx run` on one data file, in turn, and prints the ratio of their median step times.
# Usage: tests/peers/compare.sh PYTHON [ROUNDS]   PYTHON: of the environment made by install_torchrec.sh
# BALANCE=on gives samples to ranks (lengths of a data file are not known, so otherwise they stay). STEPS: of each round.
# Both use one compute thread a rank. Nothing else should run meanwhile.
set -eu
cd "$(dirname "$0")/../.."
python=$1
rounds=${2:-3}
steps=${STEPS:-20}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cargo build --release --quiet --bins
target/release/fsc compile tests/models/peer_t1.fs --ranks 2 --strategy serial ${BALANCE:+--balance "$BALANCE"} -o "$work/peer.json"
peer() {
  # TorchRec allocates large arrays in every step: without these settings each goes back to the system.
  OMP_NUM_THREADS=1 MALLOC_MMAP_THRESHOLD_=4000000000 MALLOC_TRIM_THRESHOLD_=8000000000 MALLOC_TOP_PAD_=500000000 \
    "$python" tests/peers/torchrec_step.py --world 2 --tables 1 --rows 200000 --dim 64 --batch 16 --mean-len 200 \
    --max-len 1024 --layers 2 --heads 2 --steps "$steps" "$@" > "$work/peer.log" 2>&1 || { cat "$work/peer.log"; exit 1; }
}
echo 'writing the data file'
peer --save-data "$work/data.safetensors"
round=1
while [ "$round" -le "$rounds" ]; do
  peer --data "$work/data.safetensors" --json "$work/peer.$round.json"
  target/release/fsx run "$work/peer.json" --ranks 2 --data "$work/data.safetensors" --steps "$steps" \
    --report "$work/fsx.$round.json" --quiet
  round=$((round + 1))
done
"$python" - "$work" "$rounds" << 'END'
import json, statistics, sys
work, rounds = sys.argv[1], int(sys.argv[2])
ratios = []
for i in range(1, rounds + 1):
    peer = json.load(open(f"{work}/peer.{i}.json"))
    own = json.load(open(f"{work}/fsx.{i}.json"))
    # A step ends when its slowest rank does; the first three warm up.
    theirs = statistics.median([max(t) for t in zip(*(r["total"] for r in peer["ranks"]))][3:])
    ours = own["step_ms"]["median"]
    ratios.append(ours / theirs)
    print(f"round {i}: TorchRec {theirs:.1f} ms, fsx {ours:.1f} ms, ratio {ours / theirs:.3f}")
print(f"median ratio {statistics.median(ratios):.3f}")
END
