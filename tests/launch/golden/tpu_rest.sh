gcloud compute tpus queued-resources create l16 --zone=us-west4-a --project=p --accelerator-type=v5litepod-16 --runtime-version=v2-alpha-tpuv5-lite --node-id=l16 --quiet
gcloud compute tpus queued-resources describe l16 --zone=us-west4-a --project=p '--format=json(state)'
gcloud compute tpus queued-resources describe l16 --zone=us-west4-a --project=p '--format=json(state)'
gcloud compute tpus tpu-vm ssh l16 --worker=0 --zone=us-west4-a --project=p '--command=tail -n 100 -F vit_jax_runs/l16/log.txt'
gcloud compute tpus tpu-vm ssh l16 --worker=all --zone=us-west4-a --project=p '--command=tail -n 100 -F vit_jax_runs/l16/log.txt'
gcloud compute tpus tpu-vm ssh l16-0 --worker=0 --zone=us-west4-a --project=p '--command=tail -n 100 -F vit_jax_runs/l16/log.txt'
gcloud compute tpus tpu-vm ssh l16-0 --worker=all --zone=us-west4-a --project=p '--command=if [ -e vit_jax_runs/l16/stop.sh ]; then bash vit_jax_runs/l16/stop.sh; fi'
gcloud compute tpus tpu-vm ssh l16-1 --worker=all --zone=us-west4-a --project=p '--command=if [ -e vit_jax_runs/l16/stop.sh ]; then bash vit_jax_runs/l16/stop.sh; fi'
gcloud compute tpus queued-resources delete l16 --zone=us-west4-a --project=p --force --quiet
