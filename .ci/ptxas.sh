#!/usr/bin/env bash
# Assembles the checked-in PTX of every family for every architecture it promises, without a GPU, and prints what each
# kernel takes (shared memory that is chosen at launch is not in it). Fails where a kernel spills, has a
# stack frame (local memory), or calls a function.
# usage: .ci/ptxas.sh [FILE...]
set -euo pipefail
cd "$(dirname "$0")/.."

[[ $# -gt 0 ]] || set -- kernels-gpu/ptx/*.ptx
version=13.0.88
venv=target/ptxas-$version
ptxas=
find_ptxas() { ptxas=$(find "$venv" -path '*/bin/ptxas' 2>/dev/null | head -1) || true; }

find_ptxas
if [[ -z $ptxas ]]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet "nvidia-cuda-nvcc==$version"
    find_ptxas
    chmod +x "$ptxas"
fi

status=0
printf '%-9s %-66s %9s %7s %6s %7s\n' target kernel registers shared stack spills
for ptx in "$@"; do
entries=$(grep -c '^\.visible \.entry' "$ptx")
if grep -nE '^\s*(@!?%p[0-9]+\s+)?call\b' "$ptx"; then
    echo "error: $ptx: calls are left; mark the callee #[inline(always)]" >&2
    status=1
fi
# PTX for sm_NN runs on newer architectures too, PTX for sm_NNa on no other.
target=$(sed -n 's/^\.target \([a-z0-9_]*\).*/\1/p' "$ptx")
architectures="sm_75 sm_80 sm_86 sm_89 sm_90 sm_100 sm_120"
[[ $target != *a ]] || architectures=$target
for arch in $architectures; do
    number=${arch#sm_} oldest=${target#sm_}
    [[ ${number%a} -ge ${oldest%a} ]] || continue
    "$ptxas" -v -arch="$arch" -o /dev/null "$ptx" 2>&1 | awk -v arch="$arch" -v entries="$entries" '
        / error / || /fatal/ { print > "/dev/stderr"; bad = 1 }
        /Compiling entry function/ { split($0, part, "\047"); kernel = part[2]; stack = spills = 0 }
        /bytes stack frame/ { stack += $1; spills += $5 + $9 }
        /Used [0-9]+ registers/ {
            if (kernel == "") next
            match($0, /Used [0-9]+/); registers = substr($0, RSTART + 5, RLENGTH - 5)
            shared = match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART, RLENGTH - 11) : 0
            mark = ""
            if (stack + spills > 0) { mark = "  <- local memory"; bad = 1 }
            printf "%-9s %-66s %9d %7d %6d %7d%s\n", arch, kernel, registers, shared, stack, spills, mark
            kernel = ""; seen++
        }
        END {
            if (seen != entries) { print "error: " arch ": " seen + 0 " of " entries " kernels assembled" > "/dev/stderr"; bad = 1 }
            exit bad
        }
    ' || status=1
done
done
exit $status
