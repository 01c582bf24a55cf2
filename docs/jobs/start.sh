#!/usr/bin/env bash
# Starts the ranks of one machine of a job on several machines: start.sh PROGRAM ARGUMENT...
#
# It runs once on each machine, with a process for each GPU. Which machines there are and which one this is stands in
# CLUSTER_SPEC, as Vertex AI sets it; without it there is one machine. GPUS is the number of ranks of a machine, if it
# is not that of its GPUs. Set THALWEG_SECRET to the same value on all machines.
set -euo pipefail
gpus=${GPUS:-$(find /dev -maxdepth 1 -name 'nvidia[0-9]*' 2>/dev/null | wc -l)}
[ "$gpus" -gt 0 ] || gpus=1
read -r machines machine MASTER_ADDR MASTER_PORT < <(python3 - <<'PY'
import json, os

spec = json.loads(os.environ.get("CLUSTER_SPEC") or "{}")
pools = spec.get("cluster", {"workerpool0": ["127.0.0.1:2222"]})
task = spec.get("task", {"type": "workerpool0", "index": 0})
before = sum(len(pools[name]) for name in pools if name < task["type"])
first, port = pools[min(pools)][0].rsplit(":", 1)
print(sum(map(len, pools.values())), before + int(task["index"]), first, port)
PY
)
export MASTER_ADDR MASTER_PORT WORLD_SIZE=$((machines * gpus)) LOCAL_WORLD_SIZE=$gpus
ranks=()
for ((local = 0; local < gpus; local++)); do
    RANK=$((machine * gpus + local)) LOCAL_RANK=$local "$@" &
    ranks+=($!)
done
trap 'kill "${ranks[@]}" 2>/dev/null || true' TERM INT
code=0
for _ in "${ranks[@]}"; do
    wait -n || { code=$?; break; }
done
if [ "$code" != 0 ]; then
    # The others end with an error of their own, which names the rank.
    for _ in 1 2 3 4 5; do [ -n "$(jobs -rp)" ] || break; sleep 1; done
    kill "${ranks[@]}" 2>/dev/null || true
    wait || true
fi
exit "$code"
