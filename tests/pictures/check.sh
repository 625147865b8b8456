#!/usr/bin/env bash
# Pictures as other programs see them: SVG rendered by librsvg, DOT by Graphviz (Debian packages), and the README's
# picture drawn again.
# Usage: check.sh FSC FOLDER: the compiler, and a folder for everything that is written.
set -euo pipefail
fsc=$1 work=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$work"
"$root/docs/pictures/make.sh" "$work/again"
cmp "$work/again/movielens.svg" "$root/docs/pictures/movielens.svg" || {
  echo 'docs/pictures/movielens.svg is not what the compiler draws now: run docs/pictures/make.sh and look at it'
  exit 1
}
[ "$(stat -c %s "$root/docs/pictures/movielens.svg")" -le 61440 ]
if ! command -v rsvg-convert > /dev/null || ! command -v dot > /dev/null; then
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends librsvg2-bin graphviz; } > "$work/apt.log" 2>&1 || {
    echo 'skipped: librsvg and Graphviz could not be installed:'; tail -n 3 "$work/apt.log"
    exit 0
  }
fi
for model in "$root"/examples/*.fs; do
  for strategy in serial pec; do
    name=$work/$(basename "$model" .fs)-$strategy
    "$fsc" compile "$model" -o "$name.json" --strategy "$strategy" 2> "$work/log" || { cat "$work/log"; exit 1; }
    "$fsc" viz "$name.json" -o "$name.svg"
    "$fsc" viz "$name.json" -o "$name.dot"
    rsvg-convert "$name.svg" -o "$name.png"
    # A picture of one colour shows nothing: it would be this small.
    [ "$(stat -c %s "$name.png")" -gt 4000 ] || { echo "$name.svg is empty"; exit 1; }
    timeout 60 dot -Tsvg "$name.dot" -o "$name.dot.svg" 2> "$work/log" || { cat "$work/log"; exit 1; }
    [ ! -s "$work/log" ] || { echo "Graphviz on $name.dot:"; cat "$work/log"; exit 1; }
    grep -q '<polygon' "$name.dot.svg"
    "$fsc" inspect "$name.json" --width 80 > "$name.txt"
  done
done
# On a terminal: its colours and its width; not with NO_COLOR.
if command -v script > /dev/null; then
  on_terminal() { TERM=xterm script -qec "stty rows 24 cols 77; $1 '$fsc' inspect '$name.json' --ascii" /dev/null; }
  on_terminal '' > "$work/coloured.txt"
  grep -q "$(printf '\033')\[48;5;" "$work/coloured.txt" || { echo 'no colour on a terminal'; exit 1; }
  on_terminal 'NO_COLOR=1' > "$work/plain.txt"
  if grep -q "$(printf '\033')" "$work/plain.txt"; then echo 'colour in spite of NO_COLOR'; exit 1; fi
  awk '/^compute +[0-9]+%/ { gsub(/\r/, ""); n++; if (length($0) != 77) bad = 1 } END { exit bad || n == 0 }' "$work/plain.txt" || { echo 'not as wide as the terminal'; exit 1; }
fi
echo "$(ls "$work"/*.png | wc -l) pictures rendered, $(ls "$work"/*.dot.svg | wc -l) graphs laid out"
