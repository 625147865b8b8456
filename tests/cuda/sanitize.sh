#!/usr/bin/env bash
# The tests of the CUDA kernels, emulated, with the address and undefined-behaviour sanitizers in the kernels. Says first
# that these stop what they are there for.
set -euo pipefail
cd "$(dirname "$0")/../.."

if ! asan=$(g++ -print-file-name=libasan.so) || [ ! -e "$asan" ]; then
  echo 'skipped: g++ has no address sanitizer here'
  exit 0
fi
# As the workspace builds it, so that nothing is built twice.
test=$(cargo test --quiet --workspace --test cuda --no-run --message-format=json |
  sed -n '/kernels#/s/.*"executable":"\([^"]*cuda-[^"]*\)".*/\1/p')
# Leaks are none of a kernel's: test harnesses leave memory to the end of the process.
run() {
  (cd kernels && FS_CUDA_SANITIZED=1 LD_PRELOAD="$asan" \
    ASAN_OPTIONS=detect_leaks=0:abort_on_error=0 UBSAN_OPTIONS=print_stacktrace=1 "$test" "$@")
}

stops() {
  if said=$(FS_CUDA_BREAKS=$1 run --exact execution::what_sanitizers_stop --ignored --nocapture 2>&1); then
    echo "$1 ran to its end"; exit 1
  fi
  grep -q "$2" <<< "$said" || { printf '%s\n' "$said"; echo "$1: no '$2'"; exit 1; }
  grep -q 'selftest.cu:' <<< "$said" || { printf '%s\n' "$said"; echo "$1: not where"; exit 1; }
  echo "stopped: $1 ($2)"
}
stops selftest_reads_past_the_end heap-buffer-overflow
stops selftest_writes_past_shared heap-buffer-overflow
stops selftest_writes_past_an_array 'out of bounds'
stops selftest_misaligned misaligned
stops selftest_overflows 'signed integer overflow'
run
