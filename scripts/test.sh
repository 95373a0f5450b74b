#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs, builds and runs the tests.
#
#   scripts/test.sh [--cpu | --cuda] [--slow] [-- ctest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
build=()
selection=(-LE slow)
while [ $# -gt 0 ]; do
  case "$1" in
    --slow) selection=() ;;
    --cpu | --cuda) build+=("$1") ;;
    --) shift; break ;;
    *) echo "test.sh: unknown option $1 (known: --cpu --cuda --slow --)" >&2; exit 2 ;;
  esac
  shift
done
scripts/build.sh "${build[@]}"
exec ctest --test-dir build --output-on-failure -j "$(nproc)" "${selection[@]}" "$@"
