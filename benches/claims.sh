#!/usr/bin/env bash
# Runs every command of docs/claims.md on one GPU, one after another, and prints what they print.
#   benches/claims.sh               builds them first
#   BIN=FOLDER benches/claims.sh    takes the programs of this folder, as on a machine without Rust
# Where PYTHON (python3, if it is not set) has PyTorch, its DataLoader trains on the same files.
set -euo pipefail
cd "$(dirname "$0")/.."

# Runs an example or a benchmark: its package, its name, and its arguments.
example() { run "cargo run -q --release ${features:+--features $features} -p $1 --example $2 --" "${@:2}"; }
bench() { run "cargo bench -q -p $1 --bench $2 --" "${@:2}"; }
run() {
    local cargo=$1 name=$2
    shift 2
    echo "\$ $name $*"
    if [ -n "${BIN:-}" ]; then "$BIN/$name" "$@"; else $cargo "$@"; fi
    echo
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
nproc
example thalweg priority
bench thalweg waits
bench thalweg pinned
example thalweg interleaved
example thalweg grouped
for batch in 8 32 128; do
    example thalweg-train encoder_decoder --batch $batch --runs 5
    example thalweg-train micro_batches --batch $batch --runs 5
    features=vision example thalweg-train augment_train --batch $batch --runs 3
    features=vision example thalweg-train texture_prefetch --batch $batch --runs 3
done
for tokens in 8 16 32 128; do
    features=vision example thalweg-train vlm_pipeline --batch $tokens --runs 3
done
files=$(mktemp -d)
trap 'rm -r "$files"' EXIT
features=vision example thalweg-train prefetch --files "$files"
python=${PYTHON:-python3}
if "$python" -c "import torch, PIL" 2>/dev/null; then
    "$python" benches/peers/torch_loader.py "$files" --steps 30 --workers "0,8,$(nproc)"
fi
