#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Start, step, save and resume of two builds of our program, in turns on one machine.

    tests/bench/two_programs.py --before OTHER/build/bin/dalle2-train [--binary build/bin/dalle2-train] [--rounds 30] [--steps 40] [--threads 1]

A round trains the decoder of tests/bench/step.json with each program, and once more with a copy of ours as the control, in an order that
changes from round to round. A run saves its state at once every tenth step; then a second start resumes it. Times are noise and
what it adds to, so the figures are the smallest of all rounds, and their quotients. "start" and "resume" last to the first batch.
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

from shared import ROOT, make_demo, parser_of

UNITS = {"start": "s", "run": "s", "processor": "s", "step": "ms", "save": "ms", "resume": "s"}


def prepare(arguments, folder):
    config = json.loads((ROOT / "tests/bench/step.json").read_text())
    make_demo(arguments.binary, folder / "shards", 1000, 32)
    config["data"].update(webdataset_base_url=f"{folder}/shards/{{}}.tar", img_embeddings_url=f"{folder}/shards/img_emb", batch_size=4)
    config["train"].update(epochs=1, n_sample_images=0, validation_samples=1, log_every_n_updates=1, async_save=False,
                           epoch_samples=arguments.steps * 4, save_every_n_samples=39)
    config["tracker"] = {"data_path": "out", "overwrite_data_path": True, "log": {"log_type": "console", "auto_resume": True},
                         "load": {"load_from": "local", "file_path": "out/latest.pth", "only_auto_resume": True},
                         "save": {"save_to": "local", "save_latest_to": "out/latest.pth"}}
    (folder / "config.json").write_text(json.dumps(config))


def start(arguments, program, folder, *more):
    """@return the process, and the seconds to its first batch"""
    trace = folder / "trace.rank0"
    trace.unlink(missing_ok=True)
    begin = time.monotonic()
    process = subprocess.Popen([program, "--config", "config.json", "--quiet", *more], cwd=folder, stdout=subprocess.DEVNULL,
                               env={**os.environ, "OMP_NUM_THREADS": str(arguments.threads), "DALLE2_TRACE_SAMPLES": str(folder / "trace")})
    while not (trace.exists() and trace.stat().st_size):
        if process.poll() is not None:
            raise SystemExit(f"{program}: no batch came")
        time.sleep(0.0005)
    return process, time.monotonic() - begin


def measure(arguments, program, folder):
    shutil.rmtree(folder / "out", ignore_errors=True)
    begin = time.monotonic()
    process, first = start(arguments, program, folder)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{program}: the run failed")
    found = {"start": first, "run": time.monotonic() - begin, "processor": usage.ru_utime + usage.ru_stime}
    steps = [record for record in map(json.loads, (folder / "out/log.jsonl").read_text().splitlines()) if "Seconds forward" in record]
    saves = [record["Seconds save"] for record in steps if record.get("Seconds save")]
    found["step"] = 1e3 * statistics.median(sum(value for key, value in record.items() if key.startswith("Seconds ") and key != "Seconds save")
                                            for record in steps)
    found["save"] = 1e3 * min(saves)
    process, found["resume"] = start(arguments, program, folder, "--set", "/train/epochs=2")
    process.send_signal(signal.SIGKILL)
    process.wait()
    return found


def main():
    parser = parser_of(__doc__, "dalle2-train", rounds=30, threads=1)
    parser.add_argument("--before", required=True, type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        again = folder / "dalle2-train"
        shutil.copy(arguments.binary, again)
        programs = [("before", arguments.before.resolve()), ("now", arguments.binary.resolve()), ("control", again)]
        prepare(arguments, folder)
        for _, program in programs:  # files come into the page cache
            measure(arguments, program, folder)
        rounds = {title: [] for title, _ in programs}
        for number in range(arguments.rounds):
            shift = number % len(programs)
            for title, program in programs[shift:] + programs[:shift]:
                rounds[title].append(measure(arguments, program, folder))
        for key, unit in UNITS.items():
            least = {title: min(found[key] for found in rows) for title, rows in rounds.items()}
            middle = {title: statistics.median(found[key] for found in rows) for title, rows in rounds.items()}
            print(f"{key}: " + ", ".join(f"{title} {least[title]:.3f} (median {middle[title]:.3f})" for title in rounds)
                  + f" {unit}; now / before {least['now'] / least['before']:.3f}, control / now {least['control'] / least['now']:.3f}", flush=True)


if __name__ == "__main__":
    main()
