#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Training on a busy machine: samples a second by number of threads and by how waiting threads wait, alone and beside busy loops.

    scripts/bench.sh busy [--only quickstart a32 laion32] [--rounds 5] [--seconds 8] [--loops 0 2] [--before PROGRAM] [--settings ...]

A setting is `default` (no variable set), `before` (the same of an earlier program) or threads and policy, as `1 passive`, `2 active`; a number
instead of the policy is GOMP_SPINCOUNT. In a round, each setting trains once, in turns, with the default a second time as the control. The steps
of the first two seconds do not count. The configs are configs/quickstart.json and those of tests/bench/step, on demo shards.
"""
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import tempfile
import time

import memory_estimate
from decoder_steps import text_of
from shared import ROOT, make_demo, parser_of, tracker

VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
GRID = [f"{threads} {policy}" for threads in (1, 2) for policy in ("active", "passive")]
CONTROL = "default again"


def prepare(arguments, name, folder):
    """@return the path of a config on demo shards, which saves nothing"""
    path = folder / "config.json"
    if name == "quickstart":
        config = json.loads((ROOT / "configs/quickstart.json").read_text())
        make_demo(arguments.binary, folder / "shards", 6000, 32)
        config["data"].update(webdataset_base_url=f"{folder}/shards/{{}}.tar", img_embeddings_url=f"{folder}/shards/img_emb")
    else:
        config = json.loads(memory_estimate.prepare(arguments, name, folder).read_text())
    config["train"].update(n_sample_images=0, epochs=1000, save_every_n_samples=10**9)
    config["tracker"] = tracker(folder)
    path.write_text(json.dumps(config))
    return path


def samples_per_second(arguments, config, setting):
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    if setting[0].isdigit():
        threads, wait = setting.split()
        environment.update({"OMP_NUM_THREADS": threads, "GOMP_SPINCOUNT" if wait.isdigit() else "OMP_WAIT_POLICY": wait})
    trace = config.parent / "trace.rank0"
    trace.unlink(missing_ok=True)
    shutil.rmtree(config.parent / "out", ignore_errors=True)  # the locks of earlier versions differ
    (config.parent / "latest.pth").unlink(missing_ok=True)
    program = arguments.before if setting == "before" else arguments.binary
    process = subprocess.Popen([program, "--config", config],
                               env={**environment, "DALLE2_TRACE_SAMPLES": str(config.parent / "trace")}, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE)
    try:
        while not (trace.exists() and trace.stat().st_size):
            if process.poll() is not None:
                raise SystemExit(f"{setting}: no batch came\n{process.stderr.read().decode()[-2000:]}")
            time.sleep(0.01)
        ends = []  # of steps: bytes of the trace, and when
        for pause in (2, arguments.seconds):
            time.sleep(pause)
            size = trace.stat().st_size
            while trace.stat().st_size == size and process.poll() is None:
                time.sleep(0.01)
            ends.append((trace.stat().st_size, time.monotonic()))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    (first, begin), (last, end) = ends
    lines = trace.read_bytes()[first:last].decode().splitlines()
    return sum(len(json.loads(line)["keys"]) for line in lines if line.endswith("}") and '"train"' in line) / (end - begin)


def main():
    parser = parser_of(__doc__, "dalle2-train", rounds=5)
    parser.add_argument("--before", help="the program of an earlier version")
    parser.add_argument("--only", nargs="+", default=["quickstart", "a32", "laion32"])
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--loops", nargs="+", type=int, default=[0, 2])
    parser.add_argument("--settings", nargs="+")
    arguments = parser.parse_args()
    settings = arguments.settings or ["default", *GRID, *(["before"] if arguments.before else []), CONTROL]
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            config = prepare(arguments, name, pathlib.Path(folder))
            for loops in arguments.loops:
                busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(loops)]
                rates = {setting: [] for setting in settings}
                try:
                    for _ in range(arguments.rounds):
                        for setting in settings:
                            rates[setting].append(samples_per_second(arguments, config, setting))
                finally:
                    for each in busy:
                        each.kill()
                        each.wait()
                medians = {setting: statistics.median(values) for setting, values in rates.items()}
                for setting, values in rates.items():
                    print(f"{name}, {loops} busy loops, {setting}: {text_of(values)} samples/s", flush=True)
                if set(GRID) <= set(settings):
                    print(f"figure busy.{name}.{loops}_loops.of_best = {medians['default'] / max(medians[each] for each in GRID):.2f}")
                if "before" in settings:
                    print(f"figure busy.{name}.{loops}_loops.of_before = {medians['default'] / medians['before']:.2f}")


if __name__ == "__main__":
    main()
