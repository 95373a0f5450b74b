#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs the checks and measurements for a machine with a GPU (tests/bench/gpu_check.py). Needs Python 3.9 and the program, which
# may come from a wheel made elsewhere: pip install --no-deps dist/dalle2_train-*.whl next to torch 2.11.0.
#
#   scripts/gpu_check.sh [arguments of tests/bench/gpu_check.py: --help shows them, --list the checks]
#
#   DALLE2_TRAIN=/path/to/dalle2-train     the program (default build/bin/dalle2-train, else what PATH has)
#   DALLE2_REFERENCE_PYTHON=/path/python   a Python that has the reference, to measure it as well
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
program=${DALLE2_TRAIN:-$root/build/bin/dalle2-train}
if ! [ -x "$program" ]; then
  installed=$(command -v dalle2-train || true)
  if [ -n "${DALLE2_TRAIN:-}" ] || [ -z "$installed" ]; then
    echo "gpu_check.sh: $program is not there: scripts/build.sh --cuda makes it, a wheel brings it, or DALLE2_TRAIN names another" >&2
    exit 2
  fi
  program=$installed
fi
DALLE2_TRAIN=$(realpath -s "$program") exec python3 "$root/tests/bench/gpu_check.py" "$@"
