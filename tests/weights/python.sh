#!/usr/bin/env bash
# The readers of docs/weights.md and docs/checkpoints.md, with the packages safetensors and numpy from PyPI.
#
# Usage: python.sh FOLDER; the folder takes a Python environment, and may be used again.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=${1:?usage: python.sh FOLDER}
mkdir -p "$work"
python=$work/venv/bin/python

if ! [ -x "$python" ] || ! "$python" -c 'import safetensors.numpy' 2> /dev/null; then
  if ! { python3 -m venv "$work/venv" && "$python" -m pip install --quiet safetensors numpy; } > "$work/install.log" 2>&1; then
    echo 'skipped: safetensors could not be installed:'
    tail -n 3 "$work/install.log"
    exit 0
  fi
fi
FS_PYTHON=$(realpath -s "$python") cargo test --quiet --workspace --test values --test checkpoints -- --nocapture python_reads
