sbatch --parsable <<'EOF'
#!/usr/bin/env bash
#SBATCH --job-name=l16
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gres=gpu:8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --cpus-per-task=12
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@300
#SBATCH --output=%x-%j.log
#SBATCH --export=ALL
#SBATCH --partition=gpu
#SBATCH --time=24:00:00
set -u
export JAX_OPTIMIZATION_LEVEL=O1
export XLA_PYTHON_CLIENT_MEM_FRACTION=0.9
export NCCL_DEBUG=WARN
export WANDB_RUN_ID=l16
export WANDB_RESUME=allow
export OPTIONS='a=b $HOME $(HOME) '"'"'c'"'"''
: "${HF_TOKEN:?export it before sbatch}"
export FIRST_CODE="$SLURM_SUBMIT_DIR/$SLURM_JOB_NAME-$SLURM_JOB_ID.code"
rm -f "$FIRST_CODE"
srun --cpus-per-task=12 --kill-on-bad-exit=1 bash -c 'stop='"'"''"'"' child='"'"''"'"'
trap '"'"'stop=1; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null'"'"' TERM
"$@" &
child=$!
[ -z "$stop" ] || kill -TERM "$child" 2>/dev/null
wait "$child"
code=$?
while kill -0 "$child" 2>/dev/null; do
  wait "$child"
  code=$?
done
if [ "$code" -ne 0 ]; then (set -C; echo "$code" > "$FIRST_CODE") 2>/dev/null; fi
exit "$code"
' task python -m vit_jax.train '--config=my configs/l16.py:a='"'"'b'"'"'' '--workdir=gs://b/$x "y"' --config.compile_cache=/shared/cache
code=$?
if [ -s "$FIRST_CODE" ]; then code=$(cat "$FIRST_CODE"); fi
rm -f "$FIRST_CODE"
case "$code" in
  42 | 134 | 137 | 143)
    if [ "${SLURM_RESTART_COUNT:-0}" -lt 50 ]; then
      echo "launch: exit code $code: queued again"
      scontrol requeue "$SLURM_JOB_ID"
    else
      echo "launch: exit code $code after 50 restarts"
    fi
    ;;
esac
exit "$code"
EOF
