gcloud compute tpus queued-resources create l16 --zone=us-west4-a --project=p --accelerator-type=v5litepod-16 --runtime-version=v2-alpha-tpuv5-lite --node-id=l16 --spot --quiet
gcloud compute tpus queued-resources describe l16 --zone=us-west4-a --project=p '--format=json(state)'
tee setup.sh <<'EOF'
#!/usr/bin/env bash
set -euo pipefail
cd "$(dirname "$0")"
find_python() { command -v python3.13 || command -v python3.12 || command -v python3.11; }
if ! find_python > /dev/null; then
  sudo apt-get update --quiet
  sudo apt-get install --yes --quiet python3.11 python3.11-venv
fi
if [ ! -x venv/bin/python ]; then "$(find_python)" -m venv venv; fi
cd code
../venv/bin/python -m pip install --quiet --upgrade pip
../venv/bin/python -m pip install --quiet -e '.[tpu]'
EOF
# l16-code.tgz has setup.sh, and in code/: 4 files of the clone
gcloud compute tpus tpu-vm scp l16-code.tgz l16: --worker=all --zone=us-west4-a --project=p
gcloud compute tpus tpu-vm ssh l16 --worker=all --zone=us-west4-a --project=p '--command=mkdir -p vit_jax_runs/l16 && { if [ -e vit_jax_runs/l16/stop.sh ]; then bash vit_jax_runs/l16/stop.sh; fi; } && cd vit_jax_runs/l16 && rm -rf code && tar -xzf ~/l16-code.tgz && rm ~/l16-code.tgz && bash setup.sh'
tee env.sh <<'EOF'
export WANDB_RUN_ID=l16
export WANDB_RESUME=allow
export OPTIONS='a=b $HOME $(HOME) '"'"'c'"'"''
export HF_TOKEN='***'
EOF
tee run.sh <<'EOF'
#!/usr/bin/env bash
cd "$(dirname "$0")" || exit 1
echo "$$" > pid
# shellcheck source=/dev/null
. ./env.sh
PATH="$PWD/venv/bin:$PATH"
ulimit -n "$(ulimit -Hn)"
set -- env --chdir=code python -m vit_jax.train '--config=my configs/l16.py:a='"'"'b'"'"'' '--workdir=gs://b/$x "y"'
stop='' child=''
trap 'stop=1; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null' TERM
"$@" &
child=$!
[ -z "$stop" ] || kill -TERM "$child" 2>/dev/null
wait "$child"
code=$?
while kill -0 "$child" 2>/dev/null; do
  wait "$child"
  code=$?
done
echo "$code" > exit_code.new
mv exit_code.new exit_code
rm -f pid
EOF
tee start.sh <<'EOF'
#!/usr/bin/env bash
set -euo pipefail
cd "$(dirname "$0")"
bash stop.sh
rm -f exit_code
setsid nohup bash run.sh >> log.txt 2>&1 < /dev/null &
until [ -s pid ] || [ -s exit_code ]; do sleep 0.1; done
EOF
tee stop.sh <<'EOF'
#!/usr/bin/env bash
cd "$(dirname "$0")" || exit 1
alive() { [ -s pid ] && [ "$(readlink "/proc/$(cat pid)/cwd")" = "$(pwd -P)" ]; }
alive && kill -TERM "$(cat pid)"
for _ in $(seq 300); do alive || break; sleep 1; done
if alive; then kill -KILL -- "-$(cat pid)"; fi
rm -f pid
EOF
tee status.sh <<'EOF'
#!/usr/bin/env bash
cd "$(dirname "$0")" || exit 1
if [ -s exit_code ]; then
  echo "vit_jax-status $(hostname) $(cat exit_code)"
elif [ -s pid ] && [ "$(readlink "/proc/$(cat pid)/cwd")" = "$(pwd -P)" ]; then
  echo "vit_jax-status $(hostname) running"
else
  echo "vit_jax-status $(hostname) gone"
fi
EOF
# l16-run.tgz has env.sh, run.sh, start.sh, stop.sh, status.sh
gcloud compute tpus tpu-vm scp l16-run.tgz l16: --worker=all --zone=us-west4-a --project=p
gcloud compute tpus tpu-vm ssh l16 --worker=all --zone=us-west4-a --project=p '--command=cd vit_jax_runs/l16 && tar -xzf ~/l16-run.tgz && rm ~/l16-run.tgz && bash start.sh'
gcloud compute tpus tpu-vm ssh l16 --worker=all --zone=us-west4-a --project=p '--command=bash vit_jax_runs/l16/status.sh 2>/dev/null || echo vit_jax-status "$(hostname)" gone'
