#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Text to pictures from nothing: draws captioned shapes, trains a CLIP on them, embeds them, trains a prior and a
# decoder on the embeddings, draws 64 captions that no training shard holds, and compares the pictures with the captions.
# All results are in runs/text. After a stop, run it again: it continues where it stopped.
#
#   scripts/pipeline_demo.sh [--seed N] [--quick] [--cpu | --cuda]
#
# --quick trains for one epoch each: it shows that the parts work together, but its drawings cannot be recognised.
set -euo pipefail
cd "$(dirname "$0")/.."
build_options=()
seed=0
quick=
changes=()
while [ $# -gt 0 ]; do
  case "$1" in
    --cpu | --cuda) build_options+=("$1") ;;
    --seed) seed=${2:?pipeline_demo.sh: --seed needs a number}; shift ;;
    --quick) quick=1; changes=(--set /train/epochs=1) ;;
    --help | -h) sed -n '3,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "pipeline_demo.sh: unknown option $1 (known: --seed --quick --cpu --cuda --help)" >&2; exit 2 ;;
  esac
  shift
done
scripts/build.sh --no-tests "${build_options[@]}"

program=build/bin/dalle2-train
run=runs/text
changes+=(--set "/seed=$seed")
made_with="--seed $seed${quick:+ --quick}"
if [ -f $run/made_with ] && [ "$(cat $run/made_with)" != "$made_with" ]; then
  echo "pipeline_demo.sh: $run was made with $(cat $run/made_with), and this call has $made_with: move the folder away first" >&2
  exit 2
fi
mkdir -p $run
echo "$made_with" > $run/made_with
start=$SECONDS
say() { printf '\n[pipeline] %s\n' "$*"; }

say "captioned shapes"
if [ ! -f $run/shards/complete ]; then
  rm -rf $run/shards  # half a set, if anything
  $program shards demo --out $run/shards --num 6000 --image-size 32 --seed "$seed"
  touch $run/shards/complete
fi
say "training a CLIP: configs/text_clip.json"
$program --config configs/text_clip.json "${changes[@]}"
say "its embeddings of all pictures and captions"
[ -f $run/embedded/embeddings.json ] ||
  $program shards embed $run/shards --clip $run/clip.pth --out $run/embedded --batch-size 256
say "training a prior: configs/text_prior.json"
$program --config configs/text_prior.json "${changes[@]}"
say "training a decoder: configs/text_decoder.json"
$program --config configs/text_decoder.json "${changes[@]}"
say "trained in $((SECONDS - start)) s; drawing 64 captions that no shard holds"
$program sample --text @$run/shards/heldout/captions.txt --clip $run/clip.pth --prior $run/prior.pth \
  --checkpoint $run/decoder.pth --num-prior-samples 4 --cond-scale 1.5 --batch-size 32 --seed "$seed" --out $run/drawn --overwrite
$program shards score --drawn $run/drawn --heldout $run/shards/heldout --grid $run/grid.png --overwrite | sed 's/^right:/text:/'
say "asked for / drawn: $run/grid.png, captions in $run/shards/heldout/captions.txt"
