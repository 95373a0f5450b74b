#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Changes one operator, constant or condition at a time in a copy of the tree, links its object instead of
# the library's, and runs the tests of its layer. A change that no test notices shows that a test is
# missing. The tree itself is not touched.
#
#   scripts/mutate.sh [--count 200] [--seed 1] [--jobs N] [--again] [file...]
#
#   --jobs   number of mutations tried at the same time (default: one per core)
#   --again  try only the survivors again, after tests were added
#   file     sources in lib/<layer>/ (default: diffusion, optim, trainer, checkpoint, data)
#
# Copy, build and results are in build-mutate. results.jsonl records each mutation, so an interrupted run
# continues where it was. Remove build-mutate/results.jsonl after a change of the sources.
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
    *) echo "mutate.sh: expected an option of --help or lib/<layer>/.../<file>.cpp, got $1" >&2; exit 2 ;;
  esac
  shift
done
if [ ${#files[@]} -eq 0 ]; then
  mapfile -t files < <(git ls-files lib/{diffusion,optim,trainer,checkpoint,data}/'*.cpp')
fi
[ -f build/torch_dir ] || { echo "mutate.sh: build/torch_dir is missing: run scripts/setup.sh first" >&2; exit 2; }

exec python3 scripts/mutate.py --folder build-mutate ${options[@]+"${options[@]}"} "${files[@]}" --configure \
  CMAKE_BUILD_TYPE=None CMAKE_CXX_FLAGS=-O1 DALLE2_UNITY=OFF CCACHE_PROGRAM= "TORCH_DIR=$(cat build/torch_dir)"
