#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tries train.sbatch with a Slurm of one node on this machine (Debian: apt-get install slurm-wlm munge; as root): two
# processes train, are warned by Slurm, save, are queued again and finish. Leaves nothing behind but the folder it names
# when something fails.
#
#   scripts/slurm/try_one_node.sh [program (build/bin/dalle2-train)]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
program=$(realpath "${1:-$here/../../build/bin/dalle2-train}")
for needed in slurmctld slurmd munged sbatch "$program"; do
  command -v "$needed" > /dev/null || { echo "try_one_node.sh: $needed is missing: apt-get install slurm-wlm munge; build the program" >&2; exit 2; }
done
[ "$(id -u)" -eq 0 ] || { echo "try_one_node.sh: the daemons of Slurm need root" >&2; exit 2; }
work=$(mktemp -d /tmp/dalle2-slurm-XXXXXX)
export SLURM_CONF=$work/slurm.conf
started=()
finish() {
  for process in "${started[@]}"; do kill "$process" 2> /dev/null || true; done
  wait
}
trap finish EXIT
fail() {
  echo "try_one_node.sh: $1; see $work" >&2
  exit 1
}

node=$(hostname -s)
cat > "$SLURM_CONF" <<CONF
ClusterName=one
SlurmctldHost=$node(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldPort=16817
SlurmdPort=16818
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
MpiDefault=none
NodeName=$node NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
mkdir "$work/state" "$work/spool"
chmod 755 "$work"
(umask 077 && head -c 1024 /dev/urandom > "$work/munge.key")
munged --foreground --force --key-file="$work/munge.key" --socket="$work/munge.socket" --pid-file="$work/munge.pid" \
  --log-file="$work/munge.log" --seed-file="$work/munge.seed" > "$work/munged.txt" 2>&1 & started+=($!)
for _ in $(seq 50); do [ -S "$work/munge.socket" ] && break; sleep 0.1; done
slurmctld -D > "$work/slurmctld.txt" 2>&1 & started+=($!)
slurmd -D > "$work/slurmd.txt" 2>&1 & started+=($!)
for _ in $(seq 100); do sinfo -h -o %T 2> /dev/null | grep -q idle && break; sleep 0.2; done
sinfo -h -o %T | grep -q idle || fail "the node did not come up"

cd "$work"
"$program" shards demo --out shards --num 400 --image-size 16 > demo.log
cat > my.json <<JSON
{"decoder": {"unets": [{"dim": 8, "dim_mults": [1, 2], "image_embed_dim": 32, "cond_dim": 8, "num_resnet_blocks": 1, "resnet_groups": 4,
                        "num_image_tokens": 1, "num_time_tokens": 1}],
             "image_size": 16, "timesteps": 50, "sample_timesteps": [3], "learned_variance": false},
 "data": {"webdataset_base_url": "shards/{}.tar", "img_embeddings_url": "shards/img_emb", "batch_size": 8, "num_workers": 1,
          "end_shard": 15, "splits": {"train": 0.6, "val": 0.2, "test": 0.2}},
 "train": {"epochs": 20, "device": "cpu", "n_sample_images": 0, "log_every_n_updates": 1},
 "evaluate": {},
 "tracker": {"data_path": "out", "overwrite_data_path": true, "log": {"log_type": "console", "auto_resume": true},
             "load": {"load_from": "local", "file_path": "out/latest.pth", "only_auto_resume": true},
             "save": {"save_to": "local", "save_latest_to": "out/latest.pth"}},
 "seed": 0}
JSON
job=$(DALLE2_TRAIN=$program OMP_NUM_THREADS=1 sbatch --parsable --ntasks 2 --cpus-per-task 1 --overcommit "$here/train.sbatch" my.json)
log=dalle2-train-$job.log
lines() { [ -f out/log.jsonl ] && wc -l < out/log.jsonl || echo 0; }
for _ in $(seq 600); do [ "$(lines)" -ge 20 ] && break; sleep 0.1; done
[ "$(lines)" -ge 20 ] || fail "the run did not begin"
scancel --signal=USR1 "$job"  # what --signal sends before the time is up
for _ in $(seq 600); do grep -q "queued again" "$log" && break; sleep 0.1; done
grep -q "saving and stopping" "$log" || fail "the warning was not heard"
scontrol update job "$job" StartTime=now 2> /dev/null || true
ended=0  # while it is being queued again it may seem to have failed for a moment
for _ in $(seq 1800); do
  state=$(scontrol show job "$job" | sed -n 's/.*JobState=\([A-Z]*\).*/\1/p')
  case $state in 
    COMPLETED) break ;;
    FAILED | CANCELLED) ended=$((ended + 1)) ;;
    *) ended=0 ;;
  esac
  [ $ended -lt 50 ] || fail "the job ended as $state"
  [ "$state" = PENDING ] && scontrol update job "$job" StartTime=now 2> /dev/null || true
  sleep 0.2
done
[ "$state" = COMPLETED ] || fail "the job did not finish ($state)"
grep -q "having seen" "$log" || fail "the run did not go on from its checkpoint"
"$program" fsck out > fsck.log || fail "its checkpoints are not whole"
grep -E "queued again|having seen|done:" "$log"
cd /
trap - EXIT
finish
rm -rf "$work"
echo "try_one_node.sh: stopped by Slurm, queued again, finished"
