#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs, builds and runs the tests.
#
#   scripts/test.sh [--cpu | --cuda] [--slow] [--reference] [-- ctest arguments]
#
#   --slow       also run the long tests
#   --reference  also run the tests in which Python and the reference judge our files, and the parity tests on all cases
#                from a fresh seed. Installs the reference (a few GB) at first use, see scripts/reference_python.sh. Without
#                this option the tests are listed as skipped. To run only them: --reference -- -L reference
set -euo pipefail
cd "$(dirname "$0")/.."
build=()
selection=(-LE slow)
reference=no
while [ $# -gt 0 ]; do
  case "$1" in
    --slow) selection=() ;;
    --reference) reference=yes ;;
    --cpu | --cuda) build+=("$1") ;;
    --help | -h) sed -n '3,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --) shift; break ;;
    *) echo "test.sh: unknown option $1 (known: --cpu --cuda --slow --reference --help --)" >&2; exit 2 ;;
  esac
  shift
done
scripts/build.sh "${build[@]}"
if [ "$reference" = yes ]; then
  DALLE2_REFERENCE_PYTHON=$(scripts/reference_python.sh)
  export DALLE2_REFERENCE_PYTHON
fi
status=0
ctest --test-dir build --output-on-failure -j "$(nproc)" "${selection[@]}" "$@" || status=$?
if [ -z "${DALLE2_REFERENCE_PYTHON:-}" ]; then
  echo "[test] tests labelled reference were skipped: they need a Python with the reference, which ./scripts/test.sh --reference installs"
fi
exit $status
