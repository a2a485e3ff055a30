#!/usr/bin/env bash
# Binaries for a machine without cargo, in one archive: pack.sh ARCHIVE.tar.xz
set -euo pipefail
out="$(realpath -m "${1:?archive to write, such as crit-gpu.tar.xz}")"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
cargo build --release --locked -p crit
parity="$(cargo test --release --locked -p crit-kernels --test cuda_parity --no-run --message-format=json |
  sed -n 's/.*"name":"cuda_parity".*"executable":"\([^"]*\)".*/\1/p' | tail -1)"
target="${CARGO_TARGET_DIR:-target}/release"
room="$(mktemp -d)"
trap 'rm -rf "$room"' EXIT
cp "$target/crit" "$room/crit"
cp "$parity" "$room/cuda_parity"
mkdir -p "$room/tests/fixtures/arch"
for model in gemma3 llama qwen2 qwen3 qwen3_moe; do cp -r "tests/fixtures/arch/$model" "$room/tests/fixtures/arch/"; done
cp -r tools/assets/tiny-qwen3 "$room/tiny-qwen3"
strip -s "$room/crit" "$room/cuda_parity"
tar -C "$room" -cf - . | xz -T0 -3 >"$out"
ls -l "$out"
