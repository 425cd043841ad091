#!/bin/bash
# Four nodes, eight workers on each. Slurm starts one ddprun on each node, and no flag says how they
# meet (docs/schedulers.md).
#SBATCH --job-name=digits
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --output=%x-%j.out
set -euo pipefail
# From Slurm 22.05 on srun takes --cpus-per-task from here alone; without it a task may have one
# processor.
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"

# One value does not come from the file system of the login node: the token of this very job.
DDPRUN_TOKEN=$(head -c 32 /dev/urandom | base64)
export DDPRUN_TOKEN

# Looks at all nodes first, for some seconds: no GPU is lost, and each node reaches each other one.
srun --kill-on-bad-exit=1 ddprun --nproc-per-node=8 doctor train.py

# 300 s before the end each worker gets SIGTERM and has 280 s to save. 122 is a job that was told to
# end: with RequeueExit=122 in slurm.conf Slurm starts it again.
srun ddprun --nproc-per-node=8 --max-restarts=3 --shutdown-timeout=280 --exit-codes=detailed train.py "$@"
