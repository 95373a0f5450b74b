#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What can be checked on a machine with one GPU, and what it measures there: tests/bench/gpu_check.py says what.
#
#   scripts/gpu_check.sh [arguments of tests/bench/gpu_check.py]
#
#   DALLE2_TRAIN=/path/to/dalle2-train   the program (default build/bin/dalle2-train, which has to be there)
set -euo pipefail
cd "$(dirname "$0")/.."
program=${DALLE2_TRAIN:-build/bin/dalle2-train}
if ! [ -x "$program" ]; then
  echo "gpu_check.sh: $program is not there: scripts/build.sh --cuda makes it, or DALLE2_TRAIN names another" >&2
  exit 2
fi
DALLE2_TRAIN=$(realpath "$program") exec python3 tests/bench/gpu_check.py "$@"
