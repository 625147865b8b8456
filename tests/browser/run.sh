#!/usr/bin/env bash
# The pages of `fsc viz` in a headless Chromium: run.sh [check.py's options]. Needs release builds of fsc and fsx.
# Installs Chromium (Debian) and websocket-client (into a folder of its own) if they are missing; says so loudly and
# ends well if they cannot be had.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
skip() { printf '\n*** SKIPPED: pictures were not opened in a browser: %s ***\n\n' "$1"; exit 0; }
found() { command -v chromium > /dev/null || command -v chromium-browser > /dev/null || command -v google-chrome > /dev/null; }
if ! found; then
  { apt-get update && apt-get install -y --no-install-recommends chromium fonts-dejavu-core; } > "$work/log" 2>&1 || true
  found || skip "Chromium could not be installed ($(tail -n 1 "$work/log"))"
fi
python=python3
if ! python3 -c 'import websocket' 2> /dev/null; then
  { python3 -m venv "$work/venv" && "$work/venv/bin/pip" install --quiet 'websocket-client>=1.6,<2'; } > "$work/log" 2>&1 \
    || skip "websocket-client could not be installed ($(tail -n 1 "$work/log"))"
  python=$work/venv/bin/python
fi
"$here/pages.sh" "$work/pages"
"$python" "$here/check.py" "$work/pages" "$@"
