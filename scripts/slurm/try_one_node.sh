#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tries train.sbatch with a Slurm of one node on this machine (Debian: apt-get install slurm-wlm munge; as root): two
# processes train, are warned by Slurm, save, are queued again, one is killed, they are queued again and finish. A job
# whose data is not there is not tried again, nor is one that is cancelled, whose run saves. The files that training
# leaves are those of two processes of --nproc-per-node, and of torchrun if TORCHRUN names one. Leaves nothing behind but
# the folder it names when something fails.
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
submit() { DALLE2_TRAIN=$program OMP_NUM_THREADS=1 sbatch --parsable --ntasks 2 --cpus-per-task 1 --overcommit "$here/train.sbatch" "$1"; }
state_of() { scontrol show job "$1" | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p'; }
# A job that was queued again would wait for minutes. Not at once: the node still clears the start before away.
start_if_queued() { # JOB, asked every 0.2 s
  [ "$(state_of "$1")" = PENDING ] || { queued=0; return 0; }
  queued=$((queued + 1))
  [ $queued -lt 25 ] || scontrol update job "$1" StartTime=now 2> /dev/null || true
}
queued=0
until_state() { # JOB STATE
  local for_so_long=0 # while it is being queued again it may seem to have failed for a moment
  for _ in $(seq 900); do
    [ "$(state_of "$1")" = "$2" ] && for_so_long=$((for_so_long + 1)) || for_so_long=0
    [ $for_so_long -lt 15 ] || return 0
    start_if_queued "$1"
    sleep 0.2
  done
  return 1
}
until_lines() { # NUMBER: the log of the run has so many
  for _ in $(seq 450); do
    [ -f out/log.jsonl ] && [ "$(wc -l < out/log.jsonl)" -ge "$1" ] && return 0
    start_if_queued "$job"
    sleep 0.2
  done
  return 1
}
process_of() { # JOB: a process of the program, the last that it started
  local each last=
  for each in $(scontrol listpids "$1" | awk 'NR > 1 { print $1 }'); do
    [ "$(readlink "/proc/$each/exe")" = "$program" ] && last=$each
  done
  echo "$last"
}
until_told() { # TEXT in the log of the job
  for _ in $(seq 900); do
    grep -q "$1" "$log" && return 0
    sleep 0.1
  done
  return 1
}

job=$(submit my.json)
log=dalle2-train-$job.log
until_lines 20 || fail "the run did not begin"
scancel --signal=USR1 "$job"  # what --signal sends before the time is up
until_told "stopped by a signal after saving: queued again" || fail "the warning was not heard"
grep -q "saving and stopping" "$log" || fail "the run did not save"
until_lines 60 || fail "the run did not go on"
[ -n "$(process_of "$job")" ] && kill -KILL "$(process_of "$job")" || fail "there is no process to kill"
until_told "a process was lost: queued again" || fail "the lost process was not told"
until_state "$job" COMPLETED || fail "the job did not finish ($(state_of "$job"))"
[ "$(grep -c "having seen" "$log")" -ge 2 ] || fail "the run did not go on from its checkpoints"
[ ! -e ".dalle2-train-$job" ] || fail "notes of the job are left"

sed 's|"shards/img_emb"|"nowhere"|; s|"out|"broken|g' my.json > broken.json
broken=$(submit broken.json)
until_state "$broken" FAILED || fail "the job without its data did not fail ($(state_of "$broken"))"
scontrol show job "$broken" | grep -q "Restarts=0 .*ExitCode=3:0" || fail "the job without its data: expected exit code 3 and no second start"

sed 's|"out"|"cancelled"|; s|"out/|"cancelled/|g; s|"epochs": 20|"epochs": 2000|' my.json > cancelled.json
job=$(submit cancelled.json)
for _ in $(seq 300); do [ -f cancelled/log.jsonl ] && break; sleep 0.2; done
[ -f cancelled/log.jsonl ] || fail "the run to cancel did not begin"
scancel "$job"
until_state "$job" CANCELLED || fail "the cancelled job is not at its end ($(state_of "$job"))"
ended="the job was told to end (code 75 of the run)"
for _ in $(seq 100); do grep -qF "$ended" "dalle2-train-$job.log" && break; sleep 0.2; done
grep -qF "$ended" "dalle2-train-$job.log" || fail "the cancelled job did not stop as it should"
"$program" fsck cancelled > fsck.log || fail "what the cancelled run saved is not intact"
scontrol show job "$job" | grep -q "Restarts=0 " || fail "the cancelled job was queued again"

same() { # NAME: the files of that run hold what Slurm's hold, but for the id of the run
  for file in checkpoint.pth model.pth; do
    "$program" convert "out/$file" "$file.slurm.safetensors" --overwrite > /dev/null
    "$program" convert "$1/out/$file" "$file.$1.safetensors" --overwrite > /dev/null
    for of in slurm "$1"; do
      LC_ALL=C sed -E 's/(run_id[\\]?":[\\]?")[0-9a-f-]{36}/\1/' "$file.$of.safetensors" > "$file.$of"
    done
    cmp "$file.slurm" "$file.$1" || fail "$file of $1 differs from Slurm's"
  done
}
launched() { # NAME COMMAND...: the same run, started anew in a folder of its own
  mkdir "$1" && ln -s "$work/shards" "$1/shards"
  (cd "$1" && shift && OMP_NUM_THREADS=1 "$@" > log.txt 2>&1) || fail "$1 failed"
  same "$1"
}
launched nproc "$program" --config ../my.json --nproc-per-node 2
[ -z "${TORCHRUN:-}" ] || launched torchrun "$TORCHRUN" --standalone --no-python --nproc-per-node 2 "$program" --config ../my.json
"$program" fsck out > fsck.log || fail "its checkpoints are not intact"
grep -E "queued again|having seen|done:" "$log"
cd /
trap - EXIT
finish
rm -rf "$work"
echo "try_one_node.sh: stopped by Slurm, queued again, killed, queued again, finished; the files are those of --nproc-per-node${TORCHRUN:+ and torchrun}"
