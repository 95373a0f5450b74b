#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Reads thousands of mutated files and answers of servers under the address and undefined-behaviour
# sanitizers: tar, JPEG, PNG, WebP, npy, pickles, checkpoints, configs, logs, lists of urls, pages and
# listings. Builds only the layers that read them, into build-sanitize. Without LibTorch (scripts/setup.sh
# writes its folder to build/torch_dir), checkpoints are left out. The same seed gives the same files.
#
#   scripts/fuzz.sh [mutations of each kind (5000)] [seed (20)]
#   scripts/fuzz.sh --guided [seconds for each parser (1200)] [parser...]
#   scripts/fuzz.sh --keep [parser...]
#
# --guided: libFuzzer looks for inputs that reach new code (needs clang; builds into build-fuzz). It
# begins with tests/fuzz/corpus. Faults go into build-fuzz/found, and its own corpus, with which the
# next run continues, into build-fuzz/corpus. --keep: takes the fewest inputs of that corpus that reach
# as much code, and puts those of at most 400 bytes into tests/fuzz/corpus, as lines of base64.
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in
  --help | -h) sed -n '3,15s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac

expect_number() {
  [[ $1 =~ ^[0-9]+$ ]] || { echo "fuzz.sh: expected a number, got $1 (see --help)" >&2; exit 2; }
}

# @param 1 build folder, the rest: options of CMake
configure() {
  local build=$1
  shift
  mkdir -p "$build"
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 "$@" > "$build/configure.log" ||
    { cat "$build/configure.log"; exit 1; }
}

torch=()
[ ! -f build/torch_dir ] || torch=("-DTORCH_DIR=$(cat build/torch_dir)")

all_parsers() {
  local lists=parsers
  [ ${#torch[@]} -eq 0 ] || lists='\(checkpoint_\)\?parsers'
  tr '\n' ' ' < tests/fuzz/CMakeLists.txt | grep -o "set($lists [^)]*" | tr -s ' ' '\n' | grep -v '^set('
}

# @param 1 file with lines of base64 @param 2 folder
unpack() {
  mkdir -p "$2"
  python3 - "$1" "$2" << 'PYTHON'
import base64, hashlib, pathlib, sys
for line in pathlib.Path(sys.argv[1]).read_text().splitlines():
    content = base64.b64decode(line)
    (pathlib.Path(sys.argv[2]) / hashlib.sha1(content).hexdigest()).write_bytes(content)
PYTHON
}

# The pickle of each checkpoint in a folder. @param 1 folder of checkpoints @param 2 folder
unpack_pickles() {
  mkdir -p "$2"
  python3 - "$1" "$2" << 'PYTHON'
import pathlib, sys, zipfile
for path in pathlib.Path(sys.argv[1]).glob("*.pth"):
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith("/data.pkl"):
                    (pathlib.Path(sys.argv[2]) / path.stem).write_bytes(archive.read(name))
PYTHON
}

keep() {
  local build=build-fuzz parsers=("$@")
  [ ${#parsers[@]} -gt 0 ] || mapfile -t parsers < <(all_parsers)
  mkdir -p tests/fuzz/corpus
  for parser in "${parsers[@]}"; do
    local fewest=$build/fewest/$parser
    rm -rf "$fewest"
    mkdir -p "$fewest"
    "$build/bin/fuzz_$parser" -set_cover_merge=1 "$fewest" "$build/corpus/$parser" > "$build/$parser.merge.log" 2>&1 ||
      { tail -5 "$build/$parser.merge.log"; exit 1; }
    python3 - "$fewest" "tests/fuzz/corpus/$parser.base64" << 'PYTHON'
import base64, pathlib, sys
inputs = sorted((path.read_bytes() for path in pathlib.Path(sys.argv[1]).iterdir()), key=lambda content: (len(content), content))
kept = [base64.b64encode(content).decode() for content in inputs if 0 < len(content) <= 400]
pathlib.Path(sys.argv[2]).write_text("".join(line + "\n" for line in kept))
print(f"{sys.argv[2]}: {len(kept)} of {len(inputs)} inputs")
PYTHON
  done
}

guided() {
  local seconds=${1:-1200} build=build-fuzz fixtures=tests/parity/fixtures
  expect_number "$seconds"
  local parsers=("${@:2}")
  [ ${#parsers[@]} -gt 0 ] || mapfile -t parsers < <(all_parsers)
  configure $build -DDALLE2_FUZZ=ON ${torch[@]+"${torch[@]}"} -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_C_COMPILER=clang -DCCACHE_PROGRAM=
  cmake --build $build --target "${parsers[@]/#/fuzz_}"
  local found=0
  for parser in "${parsers[@]}"; do
    mkdir -p "$build/corpus/$parser" "$build/found/$parser"
    local seeds=()
    case $parser in
      npy_array) seeds=("$fixtures/npy") ;;
      tar_samples) seeds=("$fixtures/webdataset") ;;
      picture) seeds=("$fixtures/images/decode") ;;
      json_text | config_text | stored_config) seeds=(configs) ;;
      zip_archive) seeds=("$fixtures/checkpoints") ;;
      checkpoint_file) seeds=("$fixtures/checkpoints" "$fixtures/lora") ;;
      pickled_value)
        unpack_pickles "$fixtures/checkpoints" "$build/pickles"
        seeds=("$build/pickles")
        ;;
    esac
    if [ -f "tests/fuzz/corpus/$parser.base64" ]; then
      unpack "tests/fuzz/corpus/$parser.base64" "$build/seeds/$parser"
      seeds+=("$build/seeds/$parser")
    fi
    # -timeout counts seconds of the clock, and this process gives way to all others.
    nice -n 15 "$build/bin/fuzz_$parser" -max_total_time="$seconds" -timeout=200 -rss_limit_mb=3000 -print_final_stats=1 \
      -artifact_prefix="$build/found/$parser/" "$build/corpus/$parser" ${seeds[@]+"${seeds[@]}"} \
      > "$build/$parser.log" 2>&1 || { found=1; tail -40 "$build/$parser.log"; }
    echo "fuzz: $parser: $(grep -c . < <(ls "$build/corpus/$parser")) inputs reach what no other reaches;" \
      "$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$parser.log") tried"
  done
  return $found
}

case "${1:-}" in
  --guided) guided "${@:2}"; exit ;;
  --keep) keep "${@:2}"; exit ;;
esac
for argument in "$@"; do expect_number "$argument"; done
build=build-sanitize
configure $build -DDALLE2_SANITIZE=ON ${torch[@]+"${torch[@]}"}
tests=(test_io test_fuzz)
[ ${#torch[@]} -eq 0 ] || tests+=(test_fuzz_checkpoint)
cmake --build $build --target "${tests[@]}"
start=$SECONDS
for test in "${tests[@]}"; do
  DALLE2_MUTATIONS=${1:-5000} DALLE2_MUTATION_SEED=${2:-20} \
    ASAN_OPTIONS=allocator_may_return_null=0:detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 $build/bin/$test "[damage]"
done
echo "fuzz: $((SECONDS - start)) s"
