#!/bin/bash
# Sixteen runs of one node each, with different seeds. Each task of the array is a job of its own.
#SBATCH --job-name=sweep
#SBATCH --array=0-15
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
#SBATCH --output=%x-%A-%a.out
set -euo pipefail
# From Slurm 22.05 on srun takes --cpus-per-task from here alone; without it a task may have one
# processor.
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"

srun ddprun --nproc-per-node=2 train.py --seed "$SLURM_ARRAY_TASK_ID"
