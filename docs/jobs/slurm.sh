#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=01:00:00
# sbatch slurm.sh PROGRAM ARGUMENT...
set -euo pipefail
THALWEG_SECRET=$(head -c 32 /dev/urandom | base64)
export THALWEG_SECRET
srun --kill-on-bad-exit=1 "$@"
