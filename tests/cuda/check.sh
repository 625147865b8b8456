#!/usr/bin/env bash
# Compiles every CUDA kernel for sm_90 and sm_100 and holds registers, shared memory and spills against resources.tsv.
# Usage: check.sh [FOLDER] [options of compile.py]; FOLDER keeps the virtual environment (target/cuda by default).
# Needs Python 3.10 or later and, on first use, the package index. `check.sh --update` writes the table.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$here/../../target/cuda
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
  work=$1
  shift
fi
mkdir -p "$work"
python=$work/venv/bin/python
# The versions of CUDA 13.0: a driver of that version takes no later PTX.
wheels='nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-nvcc==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88
  nvidia-nvvm==13.0.88 nvidia-cuda-cccl==13.0.*'
if [ ! -e "$work/installed" ]; then
  # shellcheck disable=SC2086
  if ! { python3 -m venv "$work/venv" && "$python" -m pip install --quiet --only-binary=:all: $wheels; } > "$work/install.log" 2>&1; then
    echo "skipped: NVIDIA's compiler could not be installed:"; tail -n 3 "$work/install.log"
    exit 0
  fi
  touch "$work/installed"
fi
"$python" "$here/compile.py" "$@"
