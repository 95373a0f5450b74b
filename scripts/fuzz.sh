#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Reads thousands of mutated tar, JPEG, PNG, WebP and npy files under the address and undefined-behaviour
# sanitizers. Builds only the layers up to lib/io, without LibTorch, into build-sanitize; the Debian
# packages of scripts/setup.sh have to be there. A mutation has a number: the same seed gives the same files.
#
#   scripts/fuzz.sh [mutations of each kind (5000)] [seed (20)]
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in
  --help | -h) sed -n '3,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
for argument in "$@"; do
  [[ $argument =~ ^[0-9]+$ ]] || { echo "fuzz.sh: expected a number, got $argument (see --help)" >&2; exit 2; }
done
build=build-sanitize
mkdir -p $build
cmake -S . -B $build -G Ninja -DDALLE2_SANITIZE=ON -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 > $build/configure.log ||
  { cat $build/configure.log; exit 1; }
cmake --build $build --target test_io
start=$SECONDS
DALLE2_MUTATIONS=${1:-5000} DALLE2_MUTATION_SEED=${2:-20} \
  ASAN_OPTIONS=allocator_may_return_null=0:detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 $build/bin/test_io "[damage]"
echo "fuzz: $((SECONDS - start)) s"
