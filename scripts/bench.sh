#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Measures our programs and the reference in the same run, in turns.
#
#   scripts/bench.sh loader|memory|step|run|all [arguments of the program in tests/bench: loader.py, loader_memory.py,
#                            decoder_steps.py, decoder_step.py (a whole run), which decoder_save.py follows]
#   scripts/bench.sh step --account CONFIG    where the time of our step goes, and the least that this machine needs; no comparison
#   scripts/bench.sh quickstart [arguments of tests/bench/quickstart.py]   five seeds of the quickstart; no reference
#   scripts/bench.sh samplers [arguments of tests/bench/samplers.py]       the quickstart's decoder by sampler and steps; no reference
#   scripts/bench.sh exchange [arguments of tests/bench/exchange.py]       gradients of several processes, compared with c10d's Reducer
#   scripts/bench.sh prior [arguments of tests/bench/prior_steps.py]       steps of a diffusion prior, compared with DiffusionPriorTrainer
#   scripts/bench.sh sample [arguments of tests/bench/decoder_samples.py]  guided DDIM sampling, compared with Decoder.sample
#   scripts/bench.sh start [arguments of tests/bench/start.py]             from the start of a run to its first batch
#   scripts/bench.sh metrics [arguments of tests/bench/metrics.py]         FID, IS and KID, compared with torchmetrics
#   scripts/bench.sh vae [arguments of tests/bench/vae.py]                 steps of a VQGAN-VAE, compared with muse-maskgit-pytorch
#   scripts/bench.sh clip [arguments of tests/bench/clip.py]               training and embedding with a CLIP, compared with open_clip
#   scripts/bench.sh wandb [arguments of tests/bench/wandb_logging.py]     a step with and without logging to Weights & Biases
#   scripts/bench.sh busy [arguments of tests/bench/busy.py]               training beside busy loops, by threads; no reference
#   scripts/bench.sh growth [arguments of tests/bench/growth.py]           how a step grows with width, depth, pixels and batch
#   scripts/bench.sh estimate [arguments of tests/bench/memory_estimate.py] the dry run's estimate of memory, compared with the run's
#   scripts/bench.sh stamps [arguments of tests/bench/stamps.py]           do pictures drawn from held-out captions fit them? no reference
#   scripts/bench.sh first_runs [arguments of tests/bench/first_runs.py]   what `init` and a run of minutes give on folders of pictures
#   scripts/bench.sh scaling [arguments of tests/bench/scaling.py]         simulates many GPUs; builds nothing
#
# Builds what it needs (scripts/build.sh). At first use it installs the reference (scripts/reference_python.sh, a few
# GB) into a separate environment. Prints a table, then one line per figure: `figure loader.jpeg256.bit_equal = 3.8`.
#
#   DALLE2_REFERENCE_PYTHON=/path/to/python   a Python that has the reference, instead of installing it
#   DALLE2_DEPS=/path                         where the environment goes (default ~/.cache/dalle2-train)
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '3,29s/^# \{0,1\}//p' "$0"; }

case "${1:-}" in
  loader | memory | step | prior | sample | start | growth | run | metrics | vae | clip | quickstart | samplers | all) what=$1; shift ;;
  exchange)
    shift
    [ -f build/CMakeCache.txt ] || scripts/build.sh --no-tests
    cmake --build build --target bench_exchange >/dev/null
    exec python3 tests/bench/exchange.py "$@" ;;
  wandb)
    shift
    [ -f build/CMakeCache.txt ] || scripts/build.sh --no-tests
    cmake --build build --target dalle2-train >/dev/null
    exec python3 tests/bench/wandb_logging.py "$@" ;;
  estimate | busy)
    [ "$1" = busy ] && program=busy.py || program=memory_estimate.py
    shift
    [ -f build/CMakeCache.txt ] || scripts/build.sh --no-tests
    cmake --build build --target dalle2-train >/dev/null
    exec python3 "tests/bench/$program" "$@" ;;
  stamps | first_runs)
    program=$1.py
    shift
    [ -f build/CMakeCache.txt ] || scripts/build.sh --no-tests
    cmake --build build --target dalle2-train >/dev/null
    exec "$(scripts/reference_python.sh)" "tests/bench/$program" "$@" ;;
  scaling) shift; exec "$(scripts/reference_python.sh)" tests/bench/scaling.py "$@" ;;
  --help | -h) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac

[ -f build/CMakeCache.txt ] || scripts/build.sh --no-tests
python=python3
[[ "$what" = quickstart || "$what" = samplers ]] || python=$(scripts/reference_python.sh)
echo "[bench] $(date -u +%Y-%m-%d), $(nproc) cores of $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), load $(cut -d' ' -f1-3 /proc/loadavg)"
if [ "$what" = loader ] || [ "$what" = all ]; then
  cmake --build build --target bench_loader >/dev/null
  OMP_NUM_THREADS=1 "$python" tests/bench/loader.py "$@"
fi
if [ "$what" = memory ] || [ "$what" = all ]; then
  cmake --build build --target bench_loader >/dev/null
  OMP_NUM_THREADS=1 "$python" tests/bench/loader_memory.py "$@"
fi
if [ "$what" = step ] || [ "$what" = all ]; then
  cmake --build build --target bench_step >/dev/null
  "$python" tests/bench/decoder_steps.py "$@"
fi
if [ "$what" = prior ] || [ "$what" = all ]; then
  cmake --build build --target bench_step >/dev/null
  "$python" tests/bench/prior_steps.py "$@"
fi
if [ "$what" = sample ] || [ "$what" = all ]; then
  cmake --build build --target bench_step >/dev/null
  "$python" tests/bench/decoder_samples.py "$@"
fi
if [ "$what" = start ] || [ "$what" = all ]; then
  cmake --build build --target dalle2-train >/dev/null
  "$python" tests/bench/start.py "$@"
fi
if [ "$what" = growth ]; then
  cmake --build build --target bench_step >/dev/null
  "$python" tests/bench/growth.py "$@"
fi
if [ "$what" = run ] || [ "$what" = all ]; then
  cmake --build build --target dalle2-train >/dev/null
  "$python" tests/bench/decoder_step.py "$@"
  "$python" tests/bench/decoder_save.py
fi
if [ "$what" = metrics ]; then
  cmake --build build --target bench_metrics >/dev/null
  "$python" tests/bench/metrics.py "$@"
fi
if [ "$what" = vae ]; then
  cmake --build build --target dalle2-train >/dev/null
  "$python" tests/bench/vae.py "$@"
fi
if [ "$what" = clip ]; then
  cmake --build build --target dalle2-train >/dev/null
  "$python" tests/bench/clip.py "$@"
fi
if [ "$what" = quickstart ] || [ "$what" = samplers ]; then
  cmake --build build --target dalle2-train >/dev/null
  "$python" "tests/bench/$what.py" "$@"
fi
