#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# From a bare Debian 12 to pictures: installs, builds, draws demo shards, trains configs/quickstart.json,
# samples the combinations it has never seen, and compares them with the requests.
# All results are in runs/quickstart. After a stop, run it again: it continues where it stopped.
#
#   scripts/quickstart.sh [--cpu | --cuda]
set -euo pipefail
cd "$(dirname "$0")/.."
for argument in "$@"; do
  case "$argument" in
    --cpu | --cuda) ;;
    --help | -h) sed -n '3,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "quickstart.sh: unknown option $argument (known: --cpu --cuda --help)" >&2; exit 2 ;;
  esac
done
scripts/build.sh --no-tests "$@"

program=build/bin/dalle2-train
run=runs/quickstart
say() { printf '\n[quickstart] %s\n' "$*"; }

say "demo shards: captioned shapes with a known truth"
if [ ! -f $run/shards/complete ]; then
  rm -rf $run/shards  # half a set, if anything
  $program shards demo --out $run/shards --num 6000 --image-size 32
  touch $run/shards/complete
fi
say "training configs/quickstart.json (about five minutes on two cores)"
start=$SECONDS
$program --config configs/quickstart.json
say "trained in $((SECONDS - start)) s; drawing 64 held-out combinations"
$program sample --checkpoint $run/model.pth --image-embeds $run/shards/heldout/img_emb/img_emb_000000.npy \
  --cond-scale 1.5 --batch-size 32 --out $run/drawn --overwrite
$program shards score --drawn $run/drawn --heldout $run/shards/heldout --grid $run/grid.png --overwrite
say "asked for / drawn: $run/grid.png. Loss and samples over time: $run/tracker/log.jsonl, $run/tracker/images"
