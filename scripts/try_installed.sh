#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Checks an installed program. Draws demo shards, trains a tiny decoder, stops it by a signal, continues (at last with two processes),
# draws pictures and writes the report. Takes about a minute on the CPU. Needs only the program and bash.
#
#   scripts/try_installed.sh [PROGRAM (dalle2-train)] [FOLDER (a temporary one)]
set -euo pipefail
case "${1:-}" in --help | -h) sed -n '3,6s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
program=$(command -v "${1:-dalle2-train}") || { echo "try_installed.sh: no program ${1:-dalle2-train}" >&2; exit 2; }
program=$(realpath -s "$program")
if [ $# -ge 2 ]; then
  mkdir -p "$2"
  cd "$2"
else
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  cd "$folder"
fi
say() { printf '[try] %s\n' "$*"; }
fail() {
  echo "[try] FAILED: $*" >&2
  if [ -f output.txt ]; then tail -n 20 output.txt >&2; fi
  exit 1
}
# expect CODE arguments...: runs the program, whose output goes to output.txt.
expect() {
  local wanted=$1 code=0
  shift
  "$program" "$@" > output.txt 2>&1 || code=$?
  [ "$code" = "$wanted" ] || fail "dalle2-train $*: exit code $code instead of $wanted"
}

expect 0 --version
cat output.txt
expect 0 shards demo --out shards --num 240 --image-size 16
last_shard=$(find shards -maxdepth 1 -name '[0-9]*.tar' | wc -l)
cat > tiny.json << JSON
{
  "decoder": {
    "unets": [{"dim": 8, "dim_mults": [1, 2], "image_embed_dim": 32, "cond_dim": 8, "num_resnet_blocks": 1,
               "resnet_groups": 4, "num_image_tokens": 1, "num_time_tokens": 1}],
    "image_size": 16, "timesteps": 50, "sample_timesteps": [3], "learned_variance": false
  },
  "data": {
    "webdataset_base_url": "shards/{}.tar", "img_embeddings_url": "shards/img_emb", "batch_size": 8, "num_workers": 1,
    "end_shard": $((last_shard - 1)), "splits": {"train": 0.75, "val": 0.15, "test": 0.1}, "preprocessing": {"ToTensor": true}
  },
  "train": {"epochs": 100000, "lr": 1e-3, "n_sample_images": 2, "ema_update_after_step": 1, "ema_update_every": 1},
  "evaluate": {},
  "tracker": {
    "data_path": "out", "overwrite_data_path": true,
    "log": {"log_type": "console", "auto_resume": true},
    "load": {"load_from": "local", "file_path": "out/latest.pth", "only_auto_resume": true},
    "save": {"save_to": "local", "save_latest_to": "out/latest.pth", "save_best_to": "out/best.pth"}
  },
  "seed": 0
}
JSON
expect 0 --config tiny.json --dry-run
say "demo shards drawn; training"

"$program" --config tiny.json > output.txt 2>&1 &
run=$!
for _ in $(seq 1200); do
  kill -0 $run 2> /dev/null || fail "the training ended by itself"
  if [ -s out/log.jsonl ]; then break; fi
  sleep 0.1
done
kill -TERM $run
code=0
wait $run || code=$?
[ $code = 75 ] || fail "after SIGTERM: exit code $code instead of 75"
grep -q "there is no usable GPU" output.txt && say "no GPU was found: it trains on the CPU"
say "stopped by SIGTERM with code 75"

expect 0 --config tiny.json --set /train/epochs=2
grep -q "having seen [1-9][0-9]* samples" output.txt || fail "it did not go on where it stopped"
say "went on: $(grep -o "having seen [1-9][0-9]* samples" output.txt)"
# Over Gloo, for there may be one GPU.
DALLE2_GROUP=gloo expect 0 --config tiny.json --set /train/epochs=3 --nproc-per-node 2
grep -q "on each of 2 ranks" output.txt || fail "it did not train with two processes"
say "went on with two processes"
expect 0 fsck out
expect 0 sample --checkpoint out/model.pth --image-embeds shards/heldout/img_emb/img_emb_000000.npy --batch-size 32 --out drawn
[ -s drawn/0000.png ] || fail "no picture was drawn"
say "drew $(find drawn -name '*.png' | wc -l) pictures"
expect 0 report out --out report.html
[ -s report.html ] || fail "there is no report"
say "wrote a report of $(wc -c < report.html) bytes"
say "all works"
