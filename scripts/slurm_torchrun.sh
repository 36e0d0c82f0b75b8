#!/usr/bin/env bash
# Train one run on the GPUs of several nodes with torchrun, for clusters where `launcher=slurm` does not fit.
#   sbatch --partition=gpu --nodes=2 scripts/slurm_torchrun.sh dataset=imagenet framework=moco_v2 batch_size=b1024
# Five minutes before the time limit Slurm sends SIGUSR2. The ranks then save their state, and the job is requeued and
# resumes from that state, as after a preemption. After a node failure, which Slurm notices within SlurmdTimeout (5
# minutes by default), the job is requeued too and resumes from the last checkpoint. On nodes without GPUs set
# RANKS_PER_NODE. If the ranks fail with "Gloo connectFullMesh failed", export GLOO_SOCKET_IFNAME=<network interface>
# before sbatch.
#SBATCH --job-name=ssl_bench
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR2@300
#SBATCH --requeue
#SBATCH --open-mode=append
set -u

first=$(scontrol show hostnames "${SLURM_JOB_NODELIST:?start this script with sbatch}" | head -n 1)
export MASTER_ADDR=$first MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export RANKS_PER_NODE=${RANKS_PER_NODE:-${SLURM_GPUS_ON_NODE:?there are no GPUs: set RANKS_PER_NODE}}

# Signal the step: a signal to srun would kill it.
trap 'scancel --signal=TERM "$SLURM_JOB_ID.0"; wait $!; exec scontrol requeue "$SLURM_JOB_ID"' USR2

# shellcheck disable=SC2016  # each task expands the variables
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 bash -c '
    exec torchrun --nnodes="$SLURM_JOB_NUM_NODES" --node-rank="$SLURM_NODEID" --nproc-per-node="$RANKS_PER_NODE" \
        --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" -m ssl_bench train "$@"' bash "$@" &
wait $!
code=$?

# Slurm does not requeue a job that is preempted and ends within its time of grace.
scontrol show job "$SLURM_JOB_ID" | grep -q 'PreemptTime=[0-9]' && exec scontrol requeue "$SLURM_JOB_ID"
exit $code
