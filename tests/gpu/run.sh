#!/usr/bin/env bash
# Parity, limits and speed on this machine's GPU: run.sh ARCHIVE.tar.xz OUT_FOLDER
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
archive="$(realpath "${1:?archive made by pack.sh}")"
out="$(realpath -m "${2:?folder for the answers}")"
shape="$(realpath "${SHAPE:-$here/qwen3-8b.json}")"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
tar -C "$work" -xJf "$archive"
cd "$work"
crit() { "$work/crit" --workspace "$work/ws" "$@"; }
mkdir ws
say() { echo "== $1"; }

say parity
parity=passed
CRIT_MODELS="$work" "$work/cuda_parity" --nocapture --test-threads=1 >"$out/parity.log" 2>&1 || parity=failed
grep -E "^skipped|^test result" "$out/parity.log" || true

say limits
crit probe --devices --json -q >"$out/probe.json"

say "models of $(basename "$shape" .json)'s shape"
crit models synth "$shape" --out "$work/bf16" -q >/dev/null
for scheme in q8_0 q4_k_m; do
  crit models quantize "$work/bf16" --to "$scheme" --out "$work/$scheme.gguf" -q >/dev/null
done

say speed
: >"$out/speed.jsonl"
for model in bf16 q8_0.gguf q4_k_m.gguf; do
  for how in "-p 512 -n 128 -d 0" "-p 4096 -n 16 -d 0" "-p 64 -n 128 -d 16384"; do
    # shellcheck disable=SC2086
    if crit eval speed "$work/$model" --target cuda --engine full $how -r 3 --json -q >answer.json 2>answer.err; then
      printf '{"model": "%s", "how": "%s", "answer": %s}\n' "$model" "$how" "$(tr -d '\n' <answer.json)" >>"$out/speed.jsonl"
    else
      echo "$model $how: $(tail -1 answer.err)"
    fi
  done
done
if [ -x "${LLAMA_BENCH:-}/llama-bench" ]; then
  say llama-bench
  crit models quantize "$work/bf16" --to bf16 --out "$work/bf16.gguf" -q >/dev/null
  for model in bf16.gguf q8_0.gguf q4_k_m.gguf; do
    "$LLAMA_BENCH/llama-bench" -m "$work/$model" -ngl 99 -fa 1 -p 512,4096 -n 128 -o jsonl >>"$out/llama.jsonl"
  done
fi

PARITY="$parity" OUT="$out" python3 - <<'PY'
import json, os
out = os.environ["OUT"]
rows = [json.loads(line) for line in open(f"{out}/speed.jsonl")]
probe = json.load(open(f"{out}/probe.json"))
json.dump({"parity": os.environ["PARITY"], "probe": probe, "speed": rows}, open(f"{out}/gpu.json", "w"), indent=1)
number = lambda v: v["median"] if isinstance(v, dict) and "median" in v else v
device = probe["devices"][0]
print(f"{device['device']['name']}: read {device['read_bytes_s'][0] / 1e12:.2f} TB/s, bf16 {device['bf16_ops_s'][0] / 1e12:.0f} TFLOP/s; parity {os.environ['PARITY']}")
print(f"{'model':12} {'how':24} {'prefill':>9} {'ceiling':>9} {'share':>6} {'decode':>8} {'ceiling':>8} {'share':>6}")
for row in rows:
    a = {k: number(v) for k, v in row["answer"].items()}
    cell = lambda key, form: format(a[key], form) if isinstance(a.get(key), (int, float)) else "-"
    print(f"{row['model']:12} {row['how']:24} {cell('prefill_tok_s', '9.0f'):>9} {cell('prefill_ceiling_tok_s', '9.0f'):>9} "
          f"{cell('prefill_share', '6.2f'):>6} {cell('decode_tok_s', '8.1f'):>8} {cell('decode_ceiling_tok_s', '8.1f'):>8} {cell('decode_share', '6.2f'):>6}")
PY
