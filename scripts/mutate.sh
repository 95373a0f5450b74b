#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Changes one operator, constant or condition at a time in a copy of the tree, links its object in the place
# of the library's and runs the tests of its layer: a change that no test notices shows a test that is
# missing. Nothing in the tree itself is touched.
#
#   scripts/mutate.sh [--count 200] [--seed 1] [--jobs N] [--again] [file...]
#
#   --jobs   mutations that are tried at a time (default: one for each core)
#   --again  only what survived so far, for tests that were added since
#   file     sources in lib/<layer>/ (default: diffusion, optim, trainer, checkpoint, data)
#
# Copy, build and results lie in build-mutate; results.jsonl keeps each mutation, so that a run that was
# cut goes on where it was. Remove build-mutate/results.jsonl after a change of the sources.
set -euo pipefail
cd "$(dirname "$0")/.."
options=()
files=()
while [ $# -gt 0 ]; do
  case "$1" in
    --help | -h) sed -n '3,14s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --count | --seed | --jobs)
      [[ ${2:-} =~ ^[0-9]+$ ]] || { echo "mutate.sh: expected a number behind $1 (see --help)" >&2; exit 2; }
      options+=("$1" "$2")
      shift
      ;;
    --again) options+=(--again) ;;
    lib/*/*.cpp) files+=("$1") ;;
    *) echo "mutate.sh: expected an option of --help or lib/<layer>/<file>.cpp, got $1" >&2; exit 2 ;;
  esac
  shift
done
if [ ${#files[@]} -eq 0 ]; then
  files=(lib/{diffusion,optim,trainer,checkpoint,data}/*.cpp)
fi
[ -f build/torch_dir ] || { echo "mutate.sh: build/torch_dir is missing: run scripts/setup.sh first" >&2; exit 2; }

exec python3 scripts/mutate.py --folder build-mutate ${options[@]+"${options[@]}"} "${files[@]}" --configure \
  CMAKE_BUILD_TYPE=None CMAKE_CXX_FLAGS=-O1 DALLE2_UNITY=OFF CCACHE_PROGRAM= "TORCH_DIR=$(cat build/torch_dir)"
