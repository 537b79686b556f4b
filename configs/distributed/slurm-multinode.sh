#!/bin/bash
# Training on several nodes, one launcher a node:
#   sbatch --nodes 4 configs/distributed/slurm-multinode.sh CONFIG OUT [key=value ...]
#SBATCH --job-name=specexit-train
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=12:00:00
set -euo pipefail
config=${1:?usage: sbatch slurm-multinode.sh CONFIG OUT [key=value ...]}
out=${2:?usage: sbatch slurm-multinode.sh CONFIG OUT [key=value ...]}
shift 2

gpus=${SLURM_GPUS_ON_NODE:-8}
MAIN=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MAIN
# the run refuses to start when fewer processes than this came up
export SPECEXIT_WORLD_SIZE=$((SLURM_NNODES * gpus))

# --resume: a requeued job goes on from its newest checkpoint
srun --kill-on-bad-exit=1 bash -c "accelerate launch \
  --config_file configs/distributed/zero2.yaml \
  --num_machines $SLURM_NNODES --num_processes $SPECEXIT_WORLD_SIZE \
  --machine_rank \$SLURM_NODEID --main_process_ip \$MAIN --main_process_port 29500 \
  -m training --config $config --out $out --resume engine=zero2 $*"
