#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs what is missing, configures, and builds build/bin/dalle2-train and (without --no-tests) the tests.
#
#   scripts/build.sh [--cpu | --cuda] [--parquet] [--no-tests]
#
#   --parquet          with Arrow, for captions in .parquet files; stays on for later builds in this folder
#   DALLE2_WERROR=ON   treat compiler warnings as errors (OFF: do not; unset: as in the last build)
set -euo pipefail
cd "$(dirname "$0")/.."
tests=ON
setup=()
for argument in "$@"; do
  case "$argument" in
    --no-tests) tests=OFF ;;
    --cpu | --cuda | --parquet) setup+=("$argument") ;;
    --help | -h) sed -n '3,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "build.sh: unknown option $argument (known: --cpu --cuda --parquet --no-tests --help)" >&2; exit 2 ;;
  esac
done
scripts/setup.sh "${setup[@]}"
preset=cpu
[ "$(cat build/variant)" = cuda ] && preset=release
echo "[build] configuring (preset $preset)"
cmake --preset "$preset" -DTORCH_DIR="$(cat build/torch_dir)" -DARROW_DIR="$(cat build/arrow_dir 2>/dev/null)" -DDALLE2_TESTS=$tests \
  ${DALLE2_WERROR:+"-DCMAKE_COMPILE_WARNING_AS_ERROR=$DALLE2_WERROR"} > build/configure.log || { cat build/configure.log; exit 1; }
# A file that sees LibTorch takes about 1.5 GB to compile.
jobs=$(awk -v cores="$(nproc)" '/MemAvailable/ {n = int($2 / 1500000); if (n < 1) n = 1; print n < cores ? n : cores}' /proc/meminfo)
echo "[build] compiling with $jobs jobs (minutes the first time)"
cmake --build build -j "$jobs"
